"""The figures of Liu, Hu, Wu and Smith, On Privacy and Personalization in Cross-Silo Federated Learning: what each
shows, and its statements."""

from __future__ import annotations

from functools import partial

from benchmarks.studies.reproduce.cross_silo_measures import (
    DITTO,
    FEDAVG,
    GLEAM,
    IFCA,
    LOCAL,
    MASKS,
    MEAN,
    MOCHA,
    PART,
    SCHOOL,
    SCHOOL_WORDS,
    TAUS,
    TUNE,
    VEHICLE,
    WARM,
    best_inside,
    cifar,
    figure_2,
    figure_3,
    figure_4,
    figure_5,
    figure_6,
    figure_7,
    outweighed,
)
from benchmarks.studies.reproduce.records import Claim, Curves, Item, Printed, at, means, never_below


def items() -> list[Item]:
    """Every table and figure, in the paper's order."""
    found = [
        Item("cross-silo/figure-1", "client level and silo-specific sample level", "A drawing of two definitions.")
    ]
    found.append(
        Item(
            "cross-silo/figure-2",
            "FedAvg cancels noise; fine-tuning brings it back (Vehicle)",
            "Without privacy local training is better than FedAvg, with privacy FedAvg is better; fine-tuning loses "
            "under privacy what averaging gained.",
            (
                Claim(
                    "without privacy local is better than FedAvg", lambda c: means(c, LOCAL)[-1] > means(c, FEDAVG)[-1]
                ),
                Claim(
                    "at the smallest epsilon FedAvg is better than local",
                    lambda c: means(c, FEDAVG)[0] > means(c, LOCAL)[0],
                ),
                Claim(
                    "at the smallest epsilon fine-tuning is worse than FedAvg",
                    lambda c: means(c, TUNE)[0] < means(c, FEDAVG)[0],
                ),
            ),
            figure_2,
        )
    )
    school_claims = (
        Claim(
            "MR-MTL is better than local and FedAvg at epsilon 6",
            lambda c: at(c, MEAN, 6.0) < min(at(c, LOCAL, 6.0), at(c, FEDAVG, 6.0)),
        ),
        Claim(
            "MR-MTL is better than fine-tuning, Ditto and Mocha at epsilon 6",
            lambda c: at(c, MEAN, 6.0) < min(at(c, n, 6.0) for n in (TUNE, DITTO, MOCHA)),
        ),
        Claim(
            "at the smallest epsilon FedAvg is better than local", lambda c: means(c, FEDAVG)[0] < means(c, LOCAL)[0]
        ),
    )
    best = (
        Claim(
            "MR-MTL is at least as good as local and FedAvg up to 0.01, but perhaps at the smallest epsilon",
            lambda c: all(
                m >= max(a, b) - 0.01
                for m, a, b in list(zip(means(c, MEAN), means(c, LOCAL), means(c, FEDAVG), strict=True))[1:]
            ),
        ),
        Claim(
            "at some epsilon MR-MTL is better than both",
            lambda c: any(
                m > max(a, b) for m, a, b in zip(means(c, MEAN), means(c, LOCAL), means(c, FEDAVG), strict=True)
            ),
        ),
    )
    shows = (
        "MR-MTL is at least as good as local training and FedAvg, except at the smallest epsilons, and clearly better "
        "around epsilon {}."
    )
    found += [
        Item(
            "cross-silo/figure-3a",
            "privacy and utility (Vehicle)",
            shows.format("0.5"),
            best,
            partial(figure_3, VEHICLE, PART),
        ),
        Item(
            "cross-silo/figure-3b",
            "privacy and utility (School)",
            shows.format("6"),
            school_claims,
            partial(figure_3, SCHOOL, SCHOOL_WORDS),
            printed=school_numbers(),
            read="At epsilon 6 from the README of the authors' code; at 3 and 1.5 from runs of the authors' "
            "setting (5 seeds, the best strength of 0.3 to 10). The paper has them in the figure only.",
            up="pooled test MSE",
        ),
        Item(
            "cross-silo/figure-3c",
            "privacy and utility (GLEAM)",
            shows.format("1.5"),
            best,
            partial(figure_3, GLEAM, "a stand-in for GLEAM: 38 silos, 120 rows, 40 features", stand_in=True),
        ),
        Item(
            "cross-silo/figure-3d",
            "privacy and utility (CIFAR-10)",
            "MR-MTL is at least as good as the other methods.",
            best,
            cifar,
        ),
        Item(
            "cross-silo/figure-4",
            "what choosing clusters and extra steps cost",
            "Ditto and IFCA need more noise than local training, FedAvg and MR-MTL for the same budget; choosing "
            "clusters in every round is prohibitive.",
            (
                Claim("Ditto needs more noise", lambda c: never_below(c, DITTO, "local, FedAvg, MR-MTL", -1e-9)),
                Claim(
                    "choosing in every round needs more than in the first 10 %",
                    lambda c: never_below(
                        c, "IFCA, choosing in every round", "IFCA, choosing in the first 10 %", -1e-9
                    ),
                ),
                Claim(
                    "choosing in the first 10 % needs hardly more (under 5 %)",
                    lambda c: all(
                        a <= 1.05 * b
                        for a, b in zip(
                            means(c, "IFCA, choosing in the first 10 %"), means(c, "local, FedAvg, MR-MTL"), strict=True
                        )
                    ),
                ),
            ),
            figure_4,
            up="noise multiplier",
        ),
        Item(
            "cross-silo/figure-5",
            "over the strength (Vehicle)",
            "The best strength is better than both ends, larger with privacy than without, and Ditto is worse than "
            "MR-MTL under privacy.",
            (
                Claim(
                    "the best MR-MTL is better than local and FedAvg under privacy",
                    lambda c: best_inside(c, f"{MEAN}, epsilon 2", (f"{LOCAL}, epsilon 2", f"{FEDAVG}, epsilon 2")),
                ),
                Claim(
                    "the best strength is not smaller with privacy",
                    lambda c: _best(c, f"{MEAN}, epsilon 2") >= _best(c, f"{MEAN}, no privacy"),
                ),
                Claim(
                    "the best Ditto is worse than the best MR-MTL under privacy",
                    lambda c: max(means(c, f"{DITTO}, epsilon 2")) < max(means(c, f"{MEAN}, epsilon 2")),
                ),
            ),
            figure_5,
            across="strength",
        ),
    ]
    for letter, masks in MASKS.items():
        claims = [
            Claim(
                "MR-MTL, warm-started or not, is within 0.02 of the best",
                lambda c: max(means(c, MEAN)[0], means(c, WARM)[0]) >= _highest(c) - 0.02,
            )
        ]
        if letter == "a":
            claims += [
                Claim("clustering is best (to 0.02)", lambda c: means(c, IFCA)[0] >= _highest(c) - 0.02),
                Claim(
                    "warm-started MR-MTL is within 0.02 of IFCA",
                    lambda c: means(c, WARM)[0] >= means(c, IFCA)[0] - 0.02,
                ),
            ]
        found.append(
            Item(
                f"cross-silo/figure-6{letter}",
                f"rotated and masked MNIST, masks level {'abcd'.index(letter)}",
                "Warm-started MR-MTL matches IFCA where clusters are all there is, and MR-MTL stays at the top as "
                "silos differ more.",
                tuple(claims),
                partial(figure_6, masks),
            )
        )
    for letter, tau in TAUS.items():
        found.append(
            Item(
                f"cross-silo/figure-7{letter}",
                f"what tuning the strength costs, tau {tau:g}",
                "Tuning over 10 strengths on average may cost more than the best strength gains over an end of the "
                "spectrum.",
                (
                    Claim(
                        "the best private strength is better than both ends",
                        lambda c: min(means(c, "private")) < min(means(c, "private")[0], means(c, "private")[-1]),
                    ),
                    Claim("some way of tuning ends above an end of the private curve", outweighed),
                ),
                partial(figure_7, tau),
                printed=ends(letter),
                read="In the figure only; these are the ends of the private curve in the setting of the authors' "
                "plotting script, worked out with exact Renyi accounting.",
                across="strength",
                log_up=True,
                up="mean squared error",
            )
        )
    return found


SCHOOL_NUMBERS = {
    FEDAVG: ((1.5, 0.02579), (3.0, 0.02565), (6.0, 0.02564)),
    LOCAL: ((1.5, 0.0648), (3.0, 0.0335), (6.0, 0.02628)),
    MEAN: ((1.5, 0.0277), (3.0, 0.0255), (6.0, 0.02394)),
}


def school_numbers() -> tuple[Printed, ...]:
    """What the authors' code gives; a mean of 5 seeds moves by 0.0002 with the noise alone, and 5 % where it rules."""
    return tuple(
        Printed(name, value, name, epsilon, max(0.0004, 0.05 * value) if value > 0.03 else 0.0004)
        for name, rows in SCHOOL_NUMBERS.items()
        for epsilon, value in rows
    )


ENDS = {"a": (0.00610, 0.00116), "b": (0.00610, 0.00639), "c": (0.00610, 0.0383)}


def ends(letter: str) -> tuple[Printed, ...]:
    """Errors of training alone and of averaging."""
    local, averaged = ENDS[letter]
    rows = (("private, local", local, 1e-3), ("private, FedAvg", averaged, 1e4))
    return tuple(Printed(what, value, "private", x, 0.01 * value) for what, value, x in rows)


def _highest(curves: Curves) -> float:
    """The best of all methods at the first place."""
    return max(points[0][1] for points in curves.values())


def _best(curves: Curves, name: str) -> float:
    return max(curves[name], key=lambda p: p[1])[0]

"""The tables and figures of Hu, Wu and Smith, Private Multi-Task Learning; client level.

FEMNIST is run (300 writers of LEAF's, not the authors' 205). CelebA and StackOverflow cannot be had here: their panels
run on stand-ins. What was measured in full for FEMNIST is read from the femnist study's results.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies.femnist import run as femnist_study
from benchmarks.studies.reproduce.comparison import NO_PRIVACY, Comparison, Method, Noises, compare, over_rounds
from benchmarks.studies.reproduce.records import Curves, ElsewhereError, Measured, Size, Strengths, settled
from benchmarks.studies.reproduce.scores import point
from benchmarks.studies.reproduce.stand_ins import like_celeba, like_stackoverflow
from kinfolk.data.sets import celeba, stackoverflow
from kinfolk.data.sets.download import Source, kept
from kinfolk.data.sets.femnist import femnist
from kinfolk.training.experiment import ModelChoice

FULL_FEMNIST = Path(__file__).parents[1] / "femnist" / "results" / "full.json"
WEAK_FEMNIST = FULL_FEMNIST.with_name("weak.json")
"""Of weak pulls and the most rounds, where fine-tuning was not run."""
GLOBAL, PERSONAL, PLAIN, PROX = "global (FedAvg)", "PMTL (mean-regularised)", "MTL, plain privacy", "global (FedProx)"
EPSILONS = {"0.1": 0.1, "0.8": 0.8, "2": 2.0, "8": 8.0, "none": NO_PRIVACY}
OBJECTIVES = ("vanilla", "mean", "symmetric_kl", "ewc")

FEMNIST = Comparison(
    data=lambda seed: femnist(writers=30, most_images=20),
    methods={},
    epsilons=(2.0, 8.0),
    model=ModelChoice("cnn", (8, 16)),
    clip=0.5,
    cohort=15,
    rounds=15,
    batch=10,
    seeds=2,
)
STACKOVERFLOW = replace(
    FEMNIST, data=like_stackoverflow, model=ModelChoice("sparse_softmax"), cohort=2, clip=0.5, step_size=1.0
)
CELEBA = replace(FEMNIST, data=like_celeba, model=ModelChoice("logistic"), cohort=20, clip=0.5, step_size=1e-3)


@dataclass(frozen=True)
class Set:
    """One of the paper's three, and what stands in for it where its file is not there."""

    setting: Comparison
    words: str
    source: Source | None = None
    """Of the set's own file; None: it can be had."""
    own: Comparison | None = None
    own_words: str = ""

    def here(self) -> tuple[Comparison, str, bool]:
        """The setting, its data in words, and whether they are a stand-in."""
        if self.source is None or self.own is None:
            return self.setting, self.words, False
        return (self.setting, self.words, True) if kept(self.source) is None else (self.own, self.own_words, False)


WHOLE: dict[str, Any] = {"cohort": 100, "epsilons": (0.8, 2.0, 8.0)}
"""Where a set's own file is there."""
SETS = {
    "FEMNIST": Set(FEMNIST, "FEMNIST of LEAF: 30 of 300 writers, at most 20 images each, a small CNN"),
    "StackOverflow": Set(
        STACKOVERFLOW,
        "a stand-in for StackOverflow: 4 users, 10 000 words, 500 tags",
        stackoverflow.SOURCE,
        replace(STACKOVERFLOW, data=lambda seed: stackoverflow.stackoverflow(seed=seed), **WHOLE),
        "StackOverflow: a row's most used tag of 500, from 10 000 words, 15 rounds",
    ),
    "CelebA": Set(
        CELEBA,
        "a stand-in for CelebA: 40 clients, pictures of 84 x 84",
        celeba.SOURCE,
        replace(CELEBA, data=lambda seed: celeba.celeba(celebrities=515, seed=seed), **WHOLE),
        "CelebA: 515 celebrities, a linear model (theirs: a CNN), 15 rounds",
    ),
}
PRINTED = {"pull": "step"}
"""As algorithm 1 has it: the pull is part of every local step."""
MOVED = (
    "the mean moves by displacements, not by algorithm 1's increments, which in cohorts add up to more than the mean, "
    "and with them noise"
)
BOTH = {GLOBAL: Method("fedavg"), PERSONAL: Method("mean_regularized", PRINTED, (0.0, 1.0, 10.0, 100.0, 1e3, math.inf))}

THREE = {PLAIN: Method("joint", {"strength": 1.0}), **BOTH}


def sized(setting: Comparison, size: Size, stand_in: bool) -> Comparison:
    """The setting, or one that is over in seconds: stand-ins say nothing, so they take no longer."""
    if size != "cell" and not (stand_in and size == "quick"):
        return setting
    if setting.model.name == "cnn":
        few = partial(femnist, writers=8, most_images=8)
        setting = replace(setting, data=lambda seed: few(seed=seed), model=ModelChoice("softmax"), cohort=4)
    methods = {name: replace(m, strengths=m.strengths[1:2]) for name, m in setting.methods.items()}
    return replace(setting, methods=methods, epsilons=setting.epsilons[-2:-1], rounds=2, seeds=1)


def panel(what: str, methods: dict[str, Method], size: Size, epsilons: tuple[float, ...] | None = None) -> Measured:
    """Methods against epsilon on one of the three sets."""
    base, words, stand_in = SETS[what].here()
    setting = sized(replace(base, methods=methods, epsilons=epsilons or base.epsilons), size, stand_in)
    found = compare(setting)
    return Measured(found.curves, words, setting.seeds, client_budget(setting), stand_in, strengths=found.strengths)


def client_budget(setting: Comparison, clip: str = "") -> str:
    """The guarantee and the rounds, in words; `clip`: where it is not the setting's."""
    assert setting.cohort is not None
    return (
        f"client level, delta {setting.delta:g}, {clip or f'clip {setting.clip:g}'}, {setting.rounds} rounds, "
        f"{setting.cohort:g} clients expected in each; {MOVED}. {THEIRS}"
    )


EACH = "noise on the mean and clip as each curve says"
THEIRS = (
    "The paper: delta one over the number of clients, exactly 100 clients in a round (of 205 for FEMNIST), noise, clip "
    "and rounds chosen for every epsilon, which goes from 0.05 to 4"
)


@cache
def study_rows(size: Size) -> dict[str, Any]:
    """What the femnist study measured: in full, or its quick version, run now."""
    if size == "full":
        return json.loads(FULL_FEMNIST.read_text())
    with tempfile.TemporaryDirectory() as folder:
        return femnist_study.quick(Path(folder), select=False, say=lambda row: None)


def hardly_pulled() -> str:
    """What PMTL has with a weak pull and the most rounds, which the study's curves do not show."""
    rows = [row for row in json.loads(WEAK_FEMNIST.read_text())["rows"] if row["part"] == "figure"]
    found = {row["epsilon"]: np.mean([seed["mean"] for seed in row["by_seed"]]) for row in rows}
    said = " and ".join(f"{mean:.3f} at epsilon {epsilon}" for epsilon, mean in sorted(found.items()))
    return (
        f"Not in these curves: with strength {rows[0]['strength']}, hardly pulled, and {rows[0]['rounds']} rounds PMTL "
        f"has {said}, more than the global model and less than training alone."
    )


def of_study(size: Size, curves: Curves, note: str = "", strengths: Strengths | None = None) -> Measured:
    """Curves of the femnist study, with what is known of its runs."""
    found = study_rows(size)
    setting, spent = found["setting"], [row["seconds"] for row in found["rows"] if row["part"] == "figure"]
    many = len(setting["rounds"]) > 1
    rounds = "rounds chosen for every epsilon on training images" if many else f"{setting['rounds'][0]} rounds"
    notes = [note] * bool(note) + [hardly_pulled()] * (size == "full")
    return Measured(
        curves,
        f"FEMNIST of LEAF: {setting['writers'] or 294} writers, at most {setting['most_images']} images each, "
        + ("cnn_paper" if size == "full" else "a small CNN"),
        setting["seeds"],
        f"client level, delta 1e-3, clip 0.5, {rounds}, strengths likewise, of which 0, training alone, was none, "
        f"{setting['cohort']} writers expected in each; {MOVED}. {THEIRS}",
        note=" ".join(notes),
        took=f"Measured by the femnist study on {found['device']}: {sum(spent):.0f} s of training for all curves.",
        machine=found["device"] if size == "full" else "",
        strengths=strengths or {},
    )


def curves_of(size: Size, wanted: dict[str, str]) -> Measured:
    """Curves of the femnist study by our names, with the strengths that it chose."""
    curves, strengths, every = {}, {}, study_rows(size)["rows"]
    chosen = next((row for row in every if row["part"] == "chosen"), None)
    for name, method in wanted.items():
        rows = [row for row in every if row["part"] == "figure" and row["method"] == method]
        found = {row["epsilon"]: np.array([seed["mean"] for seed in row["by_seed"]]) for row in rows}
        curves[name] = sorted(point(EPSILONS[epsilon], values) for epsilon, values in found.items())
        if method == "personal" and chosen:
            grid = [float(strength) for strength in chosen["grid"]]
            picked = sorted((EPSILONS[row["epsilon"]], float(row["strength"])) for row in rows)
            strengths[name] = [(x, strength, settled(grid, strength)) for x, strength in picked]
    return of_study(size, curves, strengths=strengths)


def figure_1(size: Size) -> Measured:
    if size == "full":
        raise ElsewhereError("plain")
    return replace(panel("FEMNIST", THREE, size, (2.0, 8.0)), note=UNTUNED)


UNTUNED = "Plain privacy was run with strength 1 only, PMTL with the best of six."


def against_global(what: str, methods: dict[str, Method], size: Size) -> Measured:
    if what == "FEMNIST" and size != "cell":
        return curves_of(
            size, {GLOBAL: "global", PERSONAL: "personal"} | ({PROX: "FedProx"} if PROX in methods else {})
        )
    return panel(what, methods, size)


def follow(strength: float) -> dict[str, Method]:
    """The method whose rounds are followed; the paper does not say with which strength."""
    return {PERSONAL: Method("mean_regularized", {**PRINTED, "strength": strength})}


ROUNDS_STRENGTH, NOISE_STRENGTH = 1.0, 10.0
"""Of figure 2, and of figures 4 to 6."""
STRENGTH_OURS = "The strength, which the paper does not give, is {:g}."


def trajectories(what: str, grid: Sequence[tuple[float, float]], size: Size) -> Measured:
    """Loss, accuracy and epsilon over rounds, for noise on the mean and clip norm; small runs take one clip norm."""
    base, words, stand_in = SETS[what].here()
    if size == "full" and what == "FEMNIST":
        raise ElsewhereError("noise")
    strength = ROUNDS_STRENGTH if len(grid) == 1 else NOISE_STRENGTH
    setting = sized(replace(base, methods=follow(strength)), size, stand_in)
    setting = replace(setting, epsilons=(1.0,))
    if size != "full":
        grid = [pair for pair in grid if pair[1] == grid[-1][1]]
    found, note = over_rounds(setting, noises(setting, grid)), STRENGTH_OURS.format(strength)
    return Measured(found, words, setting.seeds, client_budget(setting, EACH), stand_in, note)


def noises(setting: Comparison, grid: Sequence[tuple[float, float]]) -> Noises:
    """Noise multipliers and clip norms, by the noise on a cohort's mean as the paper names it."""
    assert setting.cohort is not None
    return {f"noise {s:g}, clip {c:g}": (s * setting.cohort / c, c) for s, c in grid}


def fine_tuned(size: Size) -> Measured:
    """Table 1: from the personal and from the global model, with four objectives."""
    if size == "cell":
        return replace(panel("FEMNIST", BOTH, "cell"), note="The cell trains, and fine-tunes nothing.")
    study = study_rows(size)
    rows, seeds = [row for row in study["rows"] if row["part"] == "tune"], study["setting"]["seeds"]
    curves = {}
    for start in ("personal", "global"):
        for objective in OBJECTIVES:
            own = [row for row in rows if (row["start"], row["objective"]) == (start, objective)]
            found = {e: np.array([row["mean"] for row in own if row["epsilon"] == e]) for e in EPSILONS}
            curves[f"{start}: {objective}"] = [point(EPSILONS[e], found[e]) for e in EPSILONS if len(found[e])]
    private = private_cells(curves)
    note = (
        f"Personal plus fine-tuning does not beat global plus fine-tuning in {private - cells_ahead(curves)} of the "
        f"paper's {private} cells with privacy."
    )
    same = sorted({EPSILONS[row["epsilon"]] for row in rows if "same_as" in row})
    one_seed = sorted({p.x for points in curves.values() for p in points if len(p.seeds) == 1 < seeds})
    notes = [note, *([same_as_global(same)] if same else []), *([of_one_seed(one_seed)] if one_seed else [])]
    return of_study(size, curves, " ".join(notes))


def same_as_global(epsilons: Sequence[float]) -> str:
    """Why both columns are the same at these."""
    return (
        f"With {listed(epsilons)} PMTL is best with infinite strength, where its models are the global ones: they are "
        "fine-tuned once, and both columns are the same."
    )


def of_one_seed(epsilons: Sequence[float]) -> str:
    """Why there is no standard error at these."""
    return f"With {listed(epsilons)} what starts from PMTL was fine-tuned with one seed."


def listed(epsilons: Sequence[float]) -> str:
    """Budgets, in words."""
    named = [f"epsilon {epsilon:g}" if epsilon != NO_PRIVACY else "no privacy" for epsilon in epsilons]
    return f"{', '.join(named[:-1])}{' and ' * (len(named) > 1)}{named[-1]}"


MOST_PRINTED = 2.0
"""The largest epsilon of tables 1 and 3."""


def cells_ahead(curves: Curves) -> int:
    """In how many of the paper's cells with privacy fine-tuning from the personal model is better."""
    return sum(
        own.mean > common.mean
        for objective in OBJECTIVES
        for own, common in zip(curves[f"personal: {objective}"], curves[f"global: {objective}"], strict=True)
        if own.x <= MOST_PRINTED
    )


def private_cells(curves: Curves) -> int:
    """How many those are."""
    return sum(point.x <= MOST_PRINTED for objective in OBJECTIVES for point in curves[f"personal: {objective}"])


LOCAL, TUNED = "local", "PMTL, best fine-tuning"


def table_3(size: Size) -> Measured:
    if size == "cell":
        return panel("FEMNIST", {LOCAL: Method("local"), PERSONAL: BOTH[PERSONAL]}, "cell")
    found, tuned = curves_of(size, {PERSONAL: "personal", LOCAL: "local"}), fine_tuned(size).curves
    best = [
        max((tuned[f"personal: {objective}"][n] for objective in OBJECTIVES), key=lambda point: point.mean)
        for n in range(len(tuned["personal: vanilla"]))
    ]
    alone = found.curves[LOCAL][0]
    flat = [alone._replace(x=point.x) for point in found.curves[PERSONAL]]
    return replace(found, curves={LOCAL: flat, PERSONAL: found.curves[PERSONAL], TUNED: best})

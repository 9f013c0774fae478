"""The tables and figures of Liang et al., Model-Protected Multi-Task Learning: what each shows, and its statements.

The published noise is not private (docs/explain/published-noise.md): statements are tried on sound noise, unless they
say otherwise.
"""

from __future__ import annotations

from functools import partial

from benchmarks.studies.reproduce.model_protected_measures import (
    ALONE,
    AVERAGED,
    EPSILONS,
    ONE_SHOT,
    OURS,
    PUBLISHED,
    RELATED,
    SHARED,
    between,
    figure_2,
    figure_3,
    figure_4,
    figure_5,
    figure_6,
    figure_7,
    figure_8,
    lsoa,
    table_1,
)
from benchmarks.studies.reproduce.records import Claim, Item, Printed, at, means, never_below

TABLE_1 = {
    "delta 0, plain, convex": 1 / 3,
    "delta > 0, plain, convex": 2 / 5,
    "plain, strongly convex": 1 / 2,
    "delta 0, accelerated, convex": 2 / 5,
    "delta > 0, accelerated, convex": 4 / 9,
    "accelerated, strongly convex": 1.0,
}


def above(name: str, value: float) -> tuple[Printed, ...]:
    """A bound that a caption states for every epsilon."""
    return tuple(Printed(name, value, name, epsilon, 0.0, bound="above") for epsilon in EPSILONS)


def items() -> list[Item]:
    """Every table and figure, in the paper's order."""
    drawing = Item("model-protected/figure-1", "the framework", "A drawing.")
    notation = Item("model-protected/table-2", "notation", "A list of symbols.")
    worse = Claim(
        "DP-MTRL and DP-AGGR are worse than MP-MTL",
        lambda c: never_below(c, RELATED, OURS) and never_below(c, AVERAGED, OURS),
    )
    inside = Claim("MP-MTL lies between single-task and non-private MTL (to 1 %)", lambda c: between(c, OURS))
    best = lambda c, name: min(c[name], key=lambda p: p[1])[0]  # noqa: E731
    schedule = (
        Claim(
            "acceleration helps under sound noise",
            lambda c: min(means(c, f"{OURS}, accelerated")) < min(means(c, f"{OURS}, plain")),
        ),
        Claim("the best schedule does not fall over rounds", lambda c: best(c, f"{OURS}, accelerated") >= 0),
    )
    shared = lambda *places: tuple(  # noqa: E731
        Printed("MTL, no privacy", 0.0140, SHARED, x, 0.0015, source="figure 4's caption") for x in places
    )
    return [
        drawing,
        Item(
            "model-protected/table-1",
            "utility bounds",
            "Bounds on the excess error: powers of d log(d) / (sqrt(m) epsilon) for low-rank patterns, of log(d) / (m "
            "epsilon) for group-sparse ones; with acceleration 2/5 and 4/9 (convex; delta 0 and above) or 1 (strongly "
            "convex).",
            (
                Claim(
                    "acceleration improves every bound",
                    lambda c: all(
                        means(c, name)[0] < means(c, name.replace("plain", "accelerated"))[0]
                        for name in c
                        if "plain" in name
                    ),
                ),
            ),
            table_1,
            printed=tuple(Printed(name, value, name, 0.0, 1e-3) for name, value in TABLE_1.items()),
            read="Printed in its table.",
            across="",
            up="power",
            log_across=False,
        ),
        notation,
        Item(
            "model-protected/figure-2",
            "a model that leaks, and one that is protected",
            "Without noise the tenth task changes the others' models much; with noise hardly.",
            (
                Claim(
                    "with the published noise the others turn less",
                    lambda c: at(c, "as published (NOT PRIVATE)", 0.1) < at(c, "without noise", 0.1),
                ),
            ),
            figure_2,
            up="1 - cosine to what they were",
        ),
        Item(
            "model-protected/figure-3",
            "relations between tasks, and models, at epsilon 0.1",
            "MP-MTL's models and relations look like the true ones, DP-MTRL's do not.",
            tuple(
                Claim(
                    f"MP-MTL's {what} are nearer to the truth than DP-MTRL's",
                    lambda c, w=what: at(c, f"{OURS}: {w}", 0.1) > at(c, f"{RELATED}: {w}", 0.1),
                )
                for what in ("models", "relations")
            ),
            figure_3,
            up="cosine to the truth",
        ),
        Item(
            "model-protected/figure-4a",
            "budget over rounds, powers of t",
            "Acceleration helps, and budgets that grow a little over rounds are best. Without privacy nMSE 0.0140.",
            schedule,
            partial(figure_4, "power"),
            printed=shared(-1.0, 0.0, 1.0),
            read="Of its caption; the other curves are in the figure only.",
            across="power",
            up="nMSE",
            log_across=False,
        ),
        Item(
            "model-protected/figure-4b",
            "budget over rounds, geometric",
            "Acceleration helps, and budgets that grow over rounds are best.",
            schedule,
            partial(figure_4, "ratio"),
            printed=shared(-0.3, 0.0, 0.3),
            read="Of its caption; the other curves are in the figure only.",
            across="-log Q",
            up="nMSE",
            log_across=False,
        ),
        Item(
            "model-protected/figure-5",
            "noise over signal in every round",
            "At epsilon 0.1 the noise is larger than the signal in every round.",
            (Claim("the noise is larger than the signal in every round", lambda c: min(means(c, PUBLISHED)) > 0),),
            figure_5,
            printed=(Printed(RELATED, 0.2670, RELATED, 1.0, 0.05, spread=0.0075, source="text of section 4.4.2"),),
            read="DP-MTRL's number is in the text; the curve is in the figure only.",
            across="round",
            up="log10 noise / signal",
            log_across=False,
        ),
        *(
            Item(
                f"model-protected/figure-6{letter}",
                f"error and epsilon, {pattern.replace('_', '-')}",
                "MP-MTL lies between single-task and non-private MTL, and rivals the latter at epsilon 10; DP-MTRL and "
                "DP-AGGR are far worse.",
                (
                    inside,
                    worse,
                    Claim(
                        "MP-MTL is within 20 % of non-private MTL at epsilon 10",
                        lambda c: at(c, OURS, 10.0) <= 1.2 * at(c, SHARED, 10.0),
                    ),
                ),
                partial(figure_6, pattern),
                printed=(*(shared(0.1, 1.0, 10.0) if letter == "a" else above(RELATED, 0.16)), *above(AVERAGED, 0.78)),
                read="Of its caption and figure 4's; the other curves are in the figure only.",
                up="nMSE",
                log_up=True,
            )
            for letter, pattern in (("a", "low_rank"), ("b", "group_sparse"))
        ),
        Item(
            "model-protected/figure-7",
            "error and the number of tasks",
            "The first 20 tasks' error falls as more tasks take part.",
            (
                Claim("more tasks, less error (sound noise)", lambda c: means(c, OURS)[-1] < means(c, OURS)[0]),
                Claim(
                    "with all tasks MP-MTL is not worse than single-task (to 1 %)",
                    lambda c: means(c, OURS)[-1] <= 1.01 * means(c, ALONE)[-1],
                ),
            ),
            figure_7,
            across="tasks",
            up="nMSE of the first 20",
        ),
        Item(
            "model-protected/figure-8a",
            "error and epsilon (School)",
            "MP-MTL lies between single-task and non-private MTL.",
            (inside,),
            figure_8,
            up="nMSE",
        ),
        Item(
            "model-protected/figure-8b",
            "error and epsilon (LSOA II)",
            "MP-MTL lies between single-task and non-private MTL.",
            (Claim("sharing does no harm", lambda c: never_below(c, ALONE, ONE_SHOT, 0.001)),),
            lsoa,
            read="Of its caption: DP-AGGR's mean AUC is below 0.66; the curves are in the figure only.",
            up="nMSE",
        ),
    ]

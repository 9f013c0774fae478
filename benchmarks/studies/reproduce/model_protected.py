"""The tables and figures of Liang et al., Model-Protected Multi-Task Learning: what each shows, and its statements.

The published noise is not private (docs/explain/published-noise.md): statements are tried on sound noise, unless they
say otherwise.
"""

from __future__ import annotations

from functools import partial

from benchmarks.studies.reproduce.model_protected_errors import figure_6, figure_7, figure_8, lsoa, table_1
from benchmarks.studies.reproduce.model_protected_measures import (
    ALONE,
    AVERAGED,
    DEFINED,
    IN_ALGORITHM,
    ONE_SHOT,
    OTHER,
    OURS,
    PUBLISHED,
    RELATED,
    SHARED,
    figure_2,
    figure_3,
    figure_4,
    figure_5,
)
from benchmarks.studies.reproduce.records import (
    Claim,
    Curves,
    Item,
    Point,
    Printed,
    ahead,
    at,
    clearly,
    everywhere,
    means,
    never_below,
)
from kinfolk.theory.covariance_rates import group_sparse_rounds

TABLE_1 = {
    "delta 0, plain, convex": 1 / 3,
    "delta > 0, plain, convex": 2 / 5,
    "plain, strongly convex": 1 / 2,
    "delta 0, accelerated, convex": 2 / 5,
    "delta > 0, accelerated, convex": 4 / 9,
    "accelerated, strongly convex": 1.0,
}


OF_CAPTION_4 = "Of its caption: multi-task learning without privacy; the curves are in the figure only."


def items() -> list[Item]:
    """Every table and figure, in the paper's order."""
    drawing = Item("model-protected/figure-1", "the framework", "A drawing.")
    notation = Item("model-protected/table-2", "notation", "A list of symbols.")
    worse = Claim(
        "MP-MTL is better than DP-MTRL and DP-AGGR at every epsilon",
        lambda c: everywhere(c, OURS, [RELATED, AVERAGED], lower=True),
    )
    inside, other_inside = (
        (
            Claim(
                f"{who} is not worse than single-task (by more than 1 %)",
                lambda c, name=name: no_more(c, name, ALONE, 1.01),
            ),
            Claim(
                f"{who} is not better than non-private MTL (by more than 5 %)",
                lambda c, name=name: no_more(c, SHARED, name, 1 / 0.95),
            ),
        )
        for who, name in (("MP-MTL", OURS), ("the other algorithm", OTHER))
    )
    schedule = (
        Claim(
            "acceleration helps under sound noise",
            lambda c: ahead(lowest(c, f"{OURS}, accelerated"), lowest(c, f"{OURS}, plain"), lower=True),
        ),
        Claim("there is a local optimum at a positive value", lambda c: dips(c, f"{OURS}, accelerated")),
    )
    negative = Claim(
        "with acceleration there is a local optimum at a negative value",
        lambda c: dips(c, f"{OURS}, accelerated", -1),
    )
    without_noise = Printed(SHARED, 0.0140, SHARED, 0.0, 0.0014, source="caption")
    in_panel = {
        "low_rank": (
            Claim(
                "algorithm 2 (low-rank) is within 20 % of non-private MTL at epsilon 10",
                lambda c: at(c, OURS, 10.0) <= 1.2 * at(c, SHARED, 10.0),
            ),
            Claim(
                "algorithm 3 (group-sparse) is worse than algorithm 2 at some epsilon",
                lambda c: clearly(c, OURS, [OTHER], lower=True),
            ),
        ),
        "group_sparse": (
            Claim(
                "algorithm 2 (low-rank) is within 20 % of non-private MTL at epsilon 10",
                lambda c: at(c, OTHER, 10.0) <= 1.2 * at(c, SHARED, 10.0),
            ),
            Claim(
                "algorithm 2 is within 20 % of algorithm 3 (group-sparse) at every epsilon",
                lambda c: all(a <= 1.2 * b for a, b in zip(means(c, OTHER), means(c, OURS), strict=True)),
            ),
        ),
    }
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
                    "acceleration improves every bound (low-rank column)",
                    lambda c: all(
                        means(c, name)[0] < means(c, name.replace("plain", "accelerated"))[0]
                        for name in c
                        if "plain" in name
                    ),
                ),
                Claim(
                    "the group-sparse column's theorem can be applied where 4 of 30 features are used: it chooses as "
                    "many rounds as its assumption needs (constants of 1)",
                    lambda c: any(
                        chosen >= needed
                        for chosen, needed in (group_sparse_rounds(30, 4, accelerated=fast) for fast in (False, True))
                    ),
                ),
            ),
            table_1,
            printed=tuple(Printed(name, value, name, 0.0, 1e-3) for name, value in TABLE_1.items()),
            read="Printed in its table: 16 exponents, of which the six of the low-rank column that differ are shown. "
            "Those of the group-sparse column are the same.",
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
                *(
                    Claim(
                        f"with {noise.removesuffix(' (NOT PRIVATE)')} the others turn less than without",
                        lambda c, own=noise: clearly(c, own, ["without noise"], 0.1, lower=True),
                    )
                    for noise in (DEFINED, IN_ALGORITHM)
                ),
            ),
            figure_2,
            up="1 - cosine to what they were",
        ),
        Item(
            "model-protected/figure-3",
            "relations between tasks, and models, at epsilon 0.1",
            "MP-MTL's models and relations look like the true ones, DP-MTRL's do not (tried is which are nearer).",
            tuple(
                Claim(
                    f"MP-MTL's {what} are nearer to the truth than DP-MTRL's",
                    lambda c, w=what: clearly(c, f"{OURS}: {w}", [f"{RELATED}: {w}"]),
                )
                for what in ("models", "relations")
            ),
            figure_3,
            up="cosine to the truth",
        ),
        Item(
            "model-protected/figure-4a",
            "budget over rounds, powers of t",
            "Acceleration helps, and there are local optima at small positive values. Without privacy nMSE 0.0140.",
            schedule,
            partial(figure_4, "power"),
            printed=(without_noise,),
            read=OF_CAPTION_4,
            across="power",
            up="nMSE",
            log_across=False,
        ),
        Item(
            "model-protected/figure-4b",
            "budget over rounds, geometric",
            "Acceleration helps, and there are local optima at small positive values, and with acceleration one at a "
            "negative value. Without privacy nMSE 0.0140.",
            (*schedule, negative),
            partial(figure_4, "ratio"),
            printed=(without_noise,),
            read=OF_CAPTION_4,
            across="-log Q",
            up="nMSE",
            log_across=False,
        ),
        Item(
            "model-protected/figure-5",
            "noise over signal in every round",
            "High noise in algorithm 2 at epsilon 0.1, which has little influence on the models (not tried); for "
            "DP-MTRL the ratio's logarithm is 0.2670.",
            (
                Claim(
                    "the noise (as published) is larger than the signal in every round",
                    lambda c: min(means(c, PUBLISHED)) > 0,
                ),
            ),
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
                "Algorithms 2 and 3 lie between single-task and non-private MTL; algorithm 2 rivals the latter at "
                "epsilon 10 in both panels, is better than algorithm 3 in (a) and rivals it in (b). DP-MTRL and "
                "DP-AGGR are far worse: above 0.16 in (b), and above 0.78 in both.",
                (*inside, *other_inside, worse, *in_panel[pattern]),
                partial(figure_6, pattern),
                read="Of its caption: where DP-MTRL and DP-AGGR lie. These are not compared with ours, which are not "
                "theirs; the curves are in the figure only.",
                up="nMSE",
                log_up=True,
            )
            for letter, pattern in (("a", "low_rank"), ("b", "group_sparse"))
        ),
        Item(
            "model-protected/figure-7",
            "error and the number of tasks",
            "The first 20 tasks' error falls as more tasks take part; MP-MTL always outperforms single-task (section "
            "4.1, of all experiments).",
            (
                Claim("more tasks, less error (sound noise)", lambda c: falls(c, OURS)),
                Claim(
                    "MP-MTL is better than single-task with every number of tasks",
                    lambda c: everywhere(c, OURS, [ALONE], lower=True),
                ),
            ),
            figure_7,
            across="tasks",
            up="nMSE of the first 20",
        ),
        Item(
            "model-protected/figure-8a",
            "error and epsilon (School)",
            "As figure 6; MP-MTL is better than DP-MTRL and DP-AGGR, and always better than single-task.",
            (
                *inside,
                worse,
                Claim(
                    "MP-MTL is better than single-task at every epsilon",
                    lambda c: everywhere(c, OURS, [ALONE], lower=True),
                ),
            ),
            figure_8,
            up="nMSE",
        ),
        Item(
            "model-protected/figure-8b",
            "error and epsilon (LSOA II)",
            "MP-MTL lies between single-task and non-private MTL.",
            (Claim("the one-shot method is not worse than single-task", lambda c: never_below(c, ONE_SHOT, ALONE)),),
            lsoa,
            read="Of its caption: DP-AGGR's mean AUC is below 0.66; the curves are in the figure only.",
            up="mean AUC",
        ),
    ]


def no_more(curves: Curves, name: str, other: str, times: float) -> bool:
    """Whether a method's errors are at most so many times those of another."""
    return all(a <= times * b for a, b in zip(means(curves, name), means(curves, other), strict=True))


def dips(curves: Curves, name: str, sign: int = 1) -> bool:
    """Whether a curve has a point, at a place of this sign, that is better than both of its neighbours."""
    trios = zip(curves[name], curves[name][1:], curves[name][2:], strict=False)
    return any(sign * b.x > 0 and ahead(b, a, lower=True) and ahead(b, c, lower=True) for a, b, c in trios)


def lowest(curves: Curves, name: str) -> Point:
    """A curve's lowest point."""
    return min(curves[name], key=lambda point: point.mean)


def falls(curves: Curves, name: str) -> bool:
    """Whether a curve ends below its beginning, by more than two standard errors."""
    return ahead(curves[name][-1], curves[name][0], lower=True)

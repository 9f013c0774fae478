"""How far iterative covariance sharing gets: theorems 2 to 6 and table 1 of Liang et al., worked out again.

They put one step's error (lemmas 2 and 3, first order in the noise) into what Schmidt, Le Roux and Bach (2011) proved
of inexact proximal gradient (`inexact`), with round t's share of the budget growing like `t^power` (convex losses) or
`ratio^-t` (strongly convex), and choose the number of rounds. With the error of one step that had the whole budget,
relative to the start, called `error`, the result is `(error / factor)^exponent`; T rounds share it by `sum e_t^2 = e^2`
(delta above 0) or `sum e_t = e` (delta 0).

* **Table 1** holds: all sixteen exponents follow, eight rows that are alike in both columns (`power_exponent`,
  `ratio_exponent`). **Theorem 6** needs a small `error`: both best powers and ratios follow (`best_power`,
  `best_ratio`), but it names no range, and where `error` is not below `best_power_up_to` or `best_ratio_up_to` budgets
  that fall fast (convex) or fall at all (strongly convex) have a smaller bound: their exponent is smaller and their
  factor larger.
* **Theorems 2 and 4** (low-rank) hold as rates in m, epsilon and d for the noise as printed, where their assumptions
  do: as many clients as `low_rank_tasks_needed` (with a constant of 1, 30 features and delta 1 / (m log m) for the
  paper's 320 clients that is 5.3 million at epsilon 0.1 and 3069 at epsilon 10), and no round with more than
  `low_rank_largest_budget`. With the scale that the paper's own definition needs, K^2 for 2K, `error` has one more
  factor K. Threshold `s / L = c K sqrt(m)` leaves at most 1/c^2 directions (all singular values together have K^2 m): k
  is a small number or 0.
* **Theorems 3 and 5** (group-sparse) are empty where few features are used: what theorem 3 asks of the budget leaves
  less than one round (with constants of 1 wherever anything is sparse; accelerated, wherever more than one feature is
  not used), while its assumption needs millions (`group_sparse_rounds`); theorem 5's number of rounds is negative,
  whatever the constant (`group_sparse_logarithm`); the threshold `c K d sqrt(m)` is above every row unless c <= 1/d.
* With Gaussian noise, which is private, the same argument gives sqrt(d) for d log d (`low_rank_error`).

`low_rank_error` and `group_sparse_error` leave out the root of `spread`, as the paper does in its table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import optimize

from kinfolk.limits import Limit, whole
from kinfolk.theory.ranges import (
    CHANCE,
    CONDITION,
    COUNT,
    FINITE,
    NOT_NEGATIVE,
    POSITIVE,
    STRONGLY_CONVEX,
    require,
    require_each,
)


def power_exponent(power: float, *, accelerated: bool, pure: bool = False) -> float:
    """Equations 13 and 15: what `error` is raised to, with epsilon_t growing like t^power.

    `power`: alpha. `accelerated`: with momentum (t - 1) / (t + 2). `pure`: delta 0, table 1's upper half.
    """
    require(FINITE, power=power)
    turns, gained = (2, 2) if accelerated else (1, 1)  # errors count t^(turns - 1) times; the start decays as T^-gained
    share = 1.0 if pure else 0.5
    from_sum = max(0.0, 2 * turns - power)
    from_share = max(0.0, power + share)
    return gained / (from_sum + from_share)


def power_factor(power: float, *, accelerated: bool, pure: bool = False) -> float:
    """What `error` is divided by: `(power/2 - 1)^2 sqrt|2 power + 1|`, with 2 for 1 if accelerated.

    `power`, `accelerated`, `pure`: as in `power_exponent`. For delta 0 the root is `|power + 1|`.
    """
    require(FINITE, power=power)
    share = abs(power + 1) if pure else math.sqrt(abs(2 * power + 1))
    return (power / 2 - (2 if accelerated else 1)) ** 2 * share


def best_power(*, accelerated: bool, pure: bool = False) -> float:
    """Theorem 6, convex losses: 0, or 2/5 if accelerated. (For delta 0: 0 and 2/3.)

    Of all powers only where `error` is at most `best_power_up_to`.

    `accelerated`, `pure`: as in `power_exponent`.
    """
    low, high = _middle_powers(accelerated, pure)
    return _smallest(lambda p: -math.log(power_factor(p, accelerated=accelerated, pure=pure)), low, high)


def best_power_up_to(*, accelerated: bool, pure: bool = False) -> float:
    """The largest `error` at which `best_power` has the smallest bound `(error / factor)^exponent` of all powers.

    0.0173, or 0.0752 if accelerated. (For delta 0: 0.0154 and 0.0711.) Above it a power below the middle range is
    better: budgets that fall. At an `error` of 0.1 without acceleration -1.49 gives 0.341, and 0 gives 0.398.

    `accelerated`, `pure`: as in `power_exponent`.
    """
    low, high = _middle_powers(accelerated, pure)

    def bound(power: float) -> tuple[float, float]:
        factor = power_factor(power, accelerated=accelerated, pure=pure)
        return power_exponent(power, accelerated=accelerated, pure=pure), math.log(factor)

    best = bound(best_power(accelerated=accelerated, pure=pure))
    return _overtaken(best, lambda u: bound(low - math.exp(u)), lambda u: bound(high + math.exp(u)))


def kept_per_round(condition: float, accelerated: bool) -> float:
    """What is left of the distance after one exact round: `1 - mu/L`, or `1 - sqrt(mu/L)` of the gap if `accelerated`.

    `condition`: mu / L.
    """
    require(CONDITION, condition=condition)
    return 1 - math.sqrt(condition) if accelerated else 1 - condition


def ratio_exponent(ratio: float, condition: float, *, accelerated: bool) -> float:
    """Equation 19's: what `error` is raised to, with epsilon_t growing like ratio^-t. At best 1/2, or 1 if accelerated.

    `ratio`: Q. `condition`: mu / L. `accelerated`: with momentum (1 - sqrt(mu/L)) / (1 + sqrt(mu/L)).
    """
    require(POSITIVE, ratio=ratio)
    require(STRONGLY_CONVEX, condition=condition)
    kept = kept_per_round(condition, accelerated)
    edge = kept if accelerated else kept**2
    base = ratio if ratio < edge else edge if ratio < 1 else edge / ratio
    return math.log(kept) / math.log(base)


def ratio_factor(ratio: float, condition: float, *, accelerated: bool) -> float:
    """What `error` is divided by: `(kept / sqrt(ratio) - 1)^2 sqrt|1 - ratio^2|`, kept being its root if accelerated.

    `ratio`, `condition`, `accelerated`: as in `ratio_exponent`.
    """
    require(POSITIVE, ratio=ratio)
    kept = kept_per_round(condition, accelerated)
    kept = math.sqrt(kept) if accelerated else kept
    return (kept / math.sqrt(ratio) - 1) ** 2 * math.sqrt(abs(1 - ratio**2))


def best_ratio(condition: float, *, accelerated: bool) -> float:
    """Theorem 6, strongly convex losses: `(1 - mu/L)^(2/5)`, or `(1 - sqrt(mu/L))^(1/5)` if accelerated.

    Of all ratios only where `error` is at most `best_ratio_up_to`.

    `condition`: mu / L. `accelerated`: as in `ratio_exponent`.
    """
    require(STRONGLY_CONVEX, condition=condition)
    kept = kept_per_round(condition, accelerated)
    edge = kept if accelerated else kept**2
    return _smallest(lambda q: -math.log(ratio_factor(q, condition, accelerated=accelerated)), edge, 1.0)


def best_ratio_up_to(condition: float, *, accelerated: bool) -> float:
    """The largest `error` at which `best_ratio` has the smallest bound `(error / factor)^exponent` of all ratios.

    For mu / L of 0.1 it is 3.2e-5, or 1.3e-4 if accelerated; for 0.01 it is 1e-7, or 6e-6. Above it a ratio above 1 is
    better: budgets that fall.

    `condition`: mu / L. `accelerated`: as in `ratio_exponent`.
    """
    require(STRONGLY_CONVEX, condition=condition)
    kept = kept_per_round(condition, accelerated)
    edge = kept if accelerated else kept**2

    def bound(ratio: float) -> tuple[float, float]:
        factor = ratio_factor(ratio, condition, accelerated=accelerated)
        return ratio_exponent(ratio, condition, accelerated=accelerated), math.log(factor)

    best = bound(best_ratio(condition, accelerated=accelerated))
    reach = -math.log(edge)
    return _overtaken(
        best,
        lambda u: bound(edge * math.exp(-min(reach * math.exp(u), 300.0))),
        lambda u: bound(math.exp(min(reach * math.exp(u), 300.0))),
    )


def inexact(errors: np.ndarray, *, accelerated: bool, condition: float = 0.0) -> float:
    """Schmidt, Le Roux and Bach's propositions 1 to 4, for L = 1 and a start at distance 1: the bound after all rounds.

    On the objective's gap; on the distance for strongly convex losses without acceleration, as in theorems 4 and 5. For
    strongly convex losses with acceleration the start counts by its gap, which is to be at most 1/2: without a penalty
    distance 1 is enough for that.

    `errors`: how far above its smallest value each proximal step ends. `accelerated`: with momentum. `condition`: mu /
    L; 0 is convex only.
    """
    require_each(NOT_NEGATIVE, errors=errors)
    require(CONDITION, condition=condition)
    t, rounds = np.arange(1, len(errors) + 1), len(errors)
    roots = np.sqrt(2 * np.asarray(errors))
    if not condition:
        weight = t if accelerated else 1.0
        inner = 1 + 2 * (weight * roots).sum() + math.sqrt((weight**2 * roots**2).sum())
        return float(2 / (rounds + 1) ** 2 * inner**2 if accelerated else inner**2 / (2 * rounds))
    kept = kept_per_round(condition, accelerated)
    if not accelerated:
        return float(kept**rounds + (kept ** (rounds - t) * roots).sum())
    decay = kept ** ((rounds - t) / 2)
    start, late = kept ** (rounds / 2), (decay * roots).sum() * math.sqrt(2 / condition)
    return float((start + late + math.sqrt((decay**2 * roots**2).sum() / 2)) ** 2)


def low_rank_error(features: int, clients: int, epsilon: float, *, above: int = 1, gaussian: float = 0.0) -> float:
    """`error` of theorems 2 and 4: `k d log d / (sqrt(m) epsilon)`, which they have times the root of `spread`.

    `features`: d. `clients`: m. `epsilon`: of the whole run. `above`: k, directions that survive. `gaussian`: a
    log(1/delta), to have `k sqrt(d log(1/delta)) / (sqrt(m) epsilon)` instead: noise that is private.
    """
    require(COUNT, features=features, clients=clients)
    require(POSITIVE, epsilon=epsilon)
    require(_up_to(features), above=above)
    require(NOT_NEGATIVE, gaussian=gaussian)
    size = math.sqrt(features * gaussian) if gaussian else features * math.log(features)
    return above * size / (math.sqrt(clients) * epsilon)


def group_sparse_error(features: int, clients: int, epsilon: float, *, above: int = 1) -> float:
    """`error` of theorems 3 and 5 for models of norm 1, `k log d / (m epsilon)`; theirs is times the root of `spread`.

    `features`: d. `clients`: m. `epsilon`: of the whole run. `above`: k, features that survive.
    """
    require(COUNT, features=features, clients=clients)
    require(POSITIVE, epsilon=epsilon)
    require(_up_to(features), above=above)
    return above * math.log(features) / (clients * epsilon)


def spread(epsilon: float, delta: float) -> float:
    """What composing the rounds adds under the root of every bound: `log(e + epsilon / (sqrt(2) delta)) + 2 epsilon`.

    `epsilon`, `delta`: of the whole run.
    """
    require(POSITIVE, epsilon=epsilon)
    require(CHANCE, delta=delta)
    return math.log(math.e + epsilon / (math.sqrt(2) * delta)) + 2 * epsilon


def low_rank_tasks_needed(features: int, epsilon: float, delta: float, constant: float = 1.0) -> float:
    """Assumption 1 of theorems 2 and 4: more clients than this, `C d^2 log^2 d spread / epsilon^2`.

    For a constant of 1 that says that `low_rank_error` with one direction, times the root of `spread`, is below 1.

    `features`: d. `epsilon`, `delta`: of the whole run. `constant`: C, "sufficiently large".
    """
    require(COUNT, features=features)
    require(POSITIVE, constant=constant)
    return constant * spread(epsilon, delta) * (features * math.log(features) / epsilon) ** 2


def low_rank_largest_budget(features: int, clients: int, *, above: int = 1, clip: float = 1.0) -> float:
    """What theorems 2 and 4 ask of each round: epsilon_t of at most `4 K k^2 d log d / min(d, m)^2`.

    `features`: d. `clients`: m. `above`: k, directions that survive. `clip`: K.
    """
    require(COUNT, features=features, clients=clients)
    require(_up_to(min(features, clients)), above=above)
    require(POSITIVE, clip=clip)
    return 4 * clip * above**2 * features * math.log(features) / min(features, clients) ** 2


def group_sparse_rounds(
    features: int, above: int, constant: float = 1.0, rounds_constant: float = 1.0, *, accelerated: bool = False
) -> tuple[float, float]:
    """How many rounds theorem 3 chooses, and how many its assumption 1 needs, at the largest budget that it allows.

    It asks for `epsilon_t <= k^2 log(d) / (4 K d (d - k)^2 m)` in every round; T equal rounds then have at most
    `epsilon = sqrt(2 T log) epsilon_t`, with the same log as everywhere in the theorem. Its T is the fixed point
    `c^(5/4) sqrt(k / (2 sqrt(2) d (d - k)^2))`, below 1 for a c of 1 and k < d; if accelerated it is
    `c^(9/8) (sqrt(2) k / (d (d - k)^2))^(1/4)`, below 1 for a c of 1 and k < d - 1. Assumption 1,
    `m epsilon > C log(d) sqrt(log) / K`, needs `T > 8 C^2 d^2 (d - k)^4 / k^4`.

    `features`: d. `above`: k. `constant`: C, "sufficiently large". `rounds_constant`: c, of the Theta in T.
    `accelerated`: with momentum (t - 1) / (t + 2).
    """
    require(COUNT, features=features)
    require(_up_to(features), above=above)
    require(POSITIVE, constant=constant, rounds_constant=rounds_constant)
    left = features - above
    if not left:
        return math.inf, 0.0
    exponent, factor = (2 / 9, 4.0) if accelerated else (2 / 5, 1.0)
    once = factor * math.sqrt(2) * above / (4 * features * left**2)  # T is c (sqrt(T) once)^exponent
    chosen = (rounds_constant * once**exponent) ** (1 / (1 - exponent / 2))
    return chosen, 8 * constant**2 * features**2 * left**4 / above**4


def group_sparse_logarithm(features: int, above: int, ratio: float, condition: float, *, accelerated: bool) -> float:
    """At most this is what theorem 5 takes the logarithm of, to choose how many rounds: below 1, so fewer than none.

    Below 1 for every ratio from kept^2 (kept, if accelerated) to 1, the best one included. The theorem asks for
    the same `epsilon_t` as theorem 3. With shares that grow like ratio^-t all rounds together then have at most
    `sqrt(2 log / |1 - ratio^2|) max(1, ratio)` of the largest one, and the rest cancels but for
    `(kept / sqrt(ratio) - 1)^2 sqrt(2) max(1, ratio) k / (4 d (d - k)^2)`.

    `features`: d. `above`: k, below d. `ratio`, `condition`, `accelerated`: as in `ratio_factor`.
    """
    require(COUNT, features=features)
    require(_up_to(features - 1), above=above)
    require(POSITIVE, ratio=ratio)
    kept = kept_per_round(condition, accelerated)
    start = ((math.sqrt(kept) if accelerated else kept) / math.sqrt(ratio) - 1) ** 2
    return start * math.sqrt(2) * max(1.0, ratio) * above / (4 * features * (features - above) ** 2)


def _middle_powers(accelerated: bool, pure: bool) -> tuple[float, float]:
    """Between which powers the exponent is largest, and the same."""
    return (-1 if pure else -0.5), (4 if accelerated else 2)


def _overtaken(best: tuple[float, float], *tails: Callable[[float], tuple[float, float]]) -> float:
    """From which error on another budget than the best has a smaller `(error / factor)^exponent`.

    With exponent a and factor F against the best's a* and F* it is so from `(F*^a* / F^a)^(1 / (a* - a))` on; the least
    of them over both tails is found on a grid and then near its best point.

    `best`: exponent and logarithm of the factor. `tails`: the same of others, by the logarithm of how far out.
    """

    def crossing(tail: Callable[[float], tuple[float, float]], out: float) -> float:
        exponent, factor = tail(out)
        return (best[0] * best[1] - exponent * factor) / (best[0] - exponent)

    found, grid = [], np.linspace(-7, 5, 121)
    for tail in tails:
        values = [crossing(tail, float(out)) for out in grid]
        middle = float(grid[int(np.argmin(values))])
        nearer = _smallest(lambda out, tail=tail: crossing(tail, out), middle - 0.1, middle + 0.1)
        found.append(min(*values, crossing(tail, nearer)))
    return math.exp(min(found))


def _up_to(features: int) -> Limit:
    return whole(1, features, "it counts what survives of the features")


def _smallest(function: Callable[[float], float], low: float, high: float) -> float:
    found: Any = optimize.minimize_scalar(
        function, bounds=(low + 1e-9, high - 1e-9), method="bounded", options={"xatol": 1e-12}
    )
    return float(found.x)

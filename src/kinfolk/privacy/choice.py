"""Private choices: which of several candidates fits a client's examples best, or nearly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk import trees
from kinfolk.privacy.release import Cost, Meter, PrivacyError, Secret, release
from kinfolk.types import Tree, Value

AT_A_TIME = 256
"""Units whose scores for a choice are computed together."""
SCORE_STEPS = 2**10
"""In a release run a unit's score is a whole multiple of bound / SCORE_STEPS."""
TRIALS = 1024
"""In a release run, how many candidates are proposed."""
MOST_CANDIDATES = 16
TURNED_DOWN = (1 - 1 / MOST_CANDIDATES) ** TRIALS
"""At most this likely are all proposals turned down; the first candidate is taken then. It comes out of delta."""
PROPOSALS = 720720
"""The least common multiple of 1 to 16: a uniform number below it names each of up to 16 candidates evenly."""


def _each(function: Callable[[Tree], Array], units: Tree, count: int) -> Array:
    """The function of every unit; of many units, some at a time, so that deep models fit into memory."""
    if count <= AT_A_TIME:
        return jax.vmap(function)(units)
    return jax.lax.map(function, units, batch_size=AT_A_TIME)


@trees.register
@dataclass(frozen=True)
class NoisyMin:
    """The candidate with the smallest sum of scores, with Gumbel noise: the exponential mechanism.

    A unit's score for a candidate is cut to [0, bound], and one that is not a number counts as the bound. Leaving a
    unit out lowers all sums, by at most the bound, so noise of scale bound / epsilon gives a choice of cost epsilon
    (twice the scale where a unit is replaced).
    """

    open: ClassVar[bool] = False
    law: ClassVar[str] = "laplace"

    bound: Value
    noise_multiplier: Value
    """Scale of the Gumbel noise divided by the bound."""
    relation: str = field(default="zero_out", metadata={"static": True})
    score: str = field(default="loss", metadata={"static": True})
    """What an example says about a candidate: its `loss`, or its `error` (0 or 1: then a bound of 1 cuts nothing)."""

    def __call__(
        self,
        kind: str,
        meter: Meter,
        scores: Callable[[Tree, Tree], Array],
        candidates: Tree,
        units: Tree,
        mask: Array,
        active: Value = True,
    ) -> tuple[Array, Meter]:
        def body(secret: Secret, private: tuple[Tree, Array], own: NoisyMin, candidates: Tree) -> Array:
            units, mask = private
            each = _each(lambda unit: scores(candidates, unit), units, mask.shape[0])
            cut = jnp.where(jnp.isnan(each), own.bound, jnp.clip(each, 0, own.bound))
            if secret.integers is not None:
                return _exact_choice(secret.integers, cut / own.bound, mask)
            total = jnp.where(mask[:, None], cut, 0).sum(axis=0)
            noise = own.bound * own.noise_multiplier * jax.random.gumbel(secret.noise, total.shape, total.dtype)
            return jnp.argmin(total - noise).astype(jnp.int32)

        return release(kind, body, meter, (units, mask), self, candidates, active)

    def costs(self) -> list[Cost]:
        noise = np.atleast_1d(np.asarray(self.noise_multiplier, float))
        return [Cost("choice", float(z), 1.0, self.relation, TURNED_DOWN) for z in noise]


@trees.register
@dataclass(frozen=True)
class ExactMin:
    """The candidate with the smallest sum of scores: no noise, no privacy."""

    open: ClassVar[bool] = True
    law: ClassVar[str] = "none"

    bound: Value = 1.0
    score: str = field(default="loss", metadata={"static": True})

    def __call__(
        self,
        kind: str,
        meter: Meter,
        scores: Callable[[Tree, Tree], Array],
        candidates: Tree,
        units: Tree,
        mask: Array,
        active: Value = True,
    ) -> tuple[Array, Meter]:
        each = _each(lambda unit: scores(candidates, unit), units, mask.shape[0])
        best = jnp.argmin(jnp.where(mask[:, None], each, 0).sum(axis=0)).astype(jnp.int32)
        return jnp.where(jnp.asarray(active), best, 0), meter

    def costs(self) -> list[Cost]:
        return []


def _exact_choice(integers: Array, shares: Array, mask: Array) -> Array:
    """The exponential mechanism by rejection: a proposed candidate is taken with probability exp(-gap / scale).

    `integers`: proposals, then thresholds, of which each reaches k with probability exp(-k / scale). `shares`: scores
    (units x candidates) in [0, 1]; the gap is between a candidate's sum and the smallest, in whole steps.
    """
    candidates = shares.shape[1]
    if candidates > MOST_CANDIDATES:
        raise PrivacyError(f"a release chooses among at most {MOST_CANDIDATES} candidates, not {candidates}")
    steps = jnp.clip(jnp.floor(shares * SCORE_STEPS), 0, SCORE_STEPS).astype(jnp.int32)
    total = jnp.where(mask[:, None], steps, 0).sum(axis=0)
    proposed, thresholds = integers[:TRIALS] % candidates, integers[TRIALS:]
    taken = thresholds >= (total - total.min())[proposed]
    return jnp.where(taken.any(), proposed[jnp.argmax(taken)], 0).astype(jnp.int32)


Chooser = NoisyMin | ExactMin
"""What stands at the door of a choice: like a mechanism, but it returns the number of the best candidate."""

"""Every mechanism attacked as a release makes it: clipped sums on the integer grid, noise from a tape, coins inside.

That the noise itself has its law is tested with the samplers; here it is drawn in the program, by the same law.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import Array

from kinfolk.accounting import composition, noise_for_budget
from kinfolk.accounting.noise_for_budget import Case
from kinfolk.privacy import choice, clipping, moments, statistics
from kinfolk.privacy.choice import PROPOSALS, SCORE_STEPS, NoisyMin
from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.mechanisms import AdaptiveSum, GaussianSum, LaplaceSum, Sampling
from kinfolk.privacy.release import Cost, Meter, Tape, new_meter
from kinfolk.verify.attack import Problem, attack
from kinfolk.verify.attack_problems import DELTA, FAR
from kinfolk.verify.statistics_attack import binary_queries, canary, queries

ROWS = clipping.rows(lambda _, unit: unit)
EPSILON, ONE = 2.0, jnp.float32(1)
PROPOSED = 64
"""Proposals of a choice: fewer than in a release, and enough for two candidates."""
CANARY = jnp.zeros((4, 3), jnp.float32).at[0].set(FAR * jnp.asarray([1.0, -1.0, 1.0], jnp.float32))
WEIGHTED = (CANARY, jnp.ones(4, jnp.float32))


@dataclass(frozen=True)
class Attacked:
    """A mechanism, what it sums, and how often it is used; the first of the units is the canary."""

    mechanism: Any
    what: Any = ROWS
    units: Any = field(default_factory=lambda: CANARY)
    uses: int = 1
    width: int = 3


def _normal(uses: int = 1, rate: float = 1.0) -> Array:
    (z,) = noise_for_budget.noise_multipliers([Case(EPSILON, DELTA, uses, rate)])
    return jnp.float32(z)


def _votes() -> Array:
    """The canary is for the second candidate, another for the first."""
    return FAR * jnp.eye(2, dtype=jnp.float32)


def _asked(query: statistics.Query) -> clipping.Sum:
    """The sum of what rows contribute to one of the queries of few releases."""
    what = statistics.bounded()
    return clipping.Sum(
        what.strategy,
        lambda _, *rest: what.exact(query, *rest),
        lambda _, *rest: what.clipped(query, *rest),
        lambda _, *rest: what.on_grid(query, *rest),
    )


CASES: dict[str, Callable[[], Attacked]] = {
    "gaussian": lambda: Attacked(GaussianSum(ONE, _normal())),
    "gaussian, sampled": lambda: Attacked(GaussianSum(ONE, _normal(2, 0.5), Sampling(jnp.float32(0.5))), uses=2),
    "adaptive": lambda: Attacked(AdaptiveSum(ONE, _normal(), expected=jnp.float32(4)), width=4),
    "laplace": lambda: Attacked(LaplaceSum(ONE, jnp.float32(1 / EPSILON)), moments.squares(), WEIGHTED),
    "second moment": lambda: Attacked(GaussianSum(ONE, _normal()), moments.second_moments(), WEIGHTED, width=9),
    "first look": lambda: Attacked(GaussianSum(ONE, _normal()), _asked(queries(1)[0]), canary()[0], width=8),
    "row moments": lambda: Attacked(GaussianSum(ONE, _normal()), _asked(queries(1)[1]), canary()[0], width=6),
    "residuals": lambda: Attacked(GaussianSum(ONE, _normal()), _asked(queries(1)[2]), canary()[0], width=4),
    "losses": lambda: Attacked(GaussianSum(ONE, _normal()), _asked(queries(1)[3]), canary()[0]),
    "feature look": lambda: Attacked(GaussianSum(ONE, _normal()), _asked(binary_queries()[0]), canary()[0]),
    "feature spread": lambda: Attacked(GaussianSum(ONE, _normal()), _asked(binary_queries()[1]), canary()[0], width=4),
    "logistic gradient": lambda: Attacked(GaussianSum(ONE, _normal()), _asked(binary_queries()[2]), canary()[0]),
    "choice": lambda: Attacked(NoisyMin(ONE, ONE), lambda _, unit: unit, _votes(), width=2 * PROPOSED),
}


def integers(own: Attacked, key: Array, noise: Array) -> Array:
    """Noise for the tape: `noise` times what the mechanism is charged for."""
    shape, scale = (own.uses, own.width), noise * own.mechanism.noise_multiplier
    if isinstance(own.mechanism, NoisyMin):
        first, second = jax.random.split(key)
        proposals = jax.random.randint(first, (own.uses, PROPOSED), 0, PROPOSALS)
        thresholds = jnp.floor(jax.random.exponential(second, (own.uses, PROPOSED)) * SCORE_STEPS * scale)
        return jnp.concatenate([proposals, thresholds.astype(jnp.int32)], axis=1)
    law = jax.random.laplace if own.mechanism.law == "laplace" else jax.random.normal
    return jnp.round(law(key, shape) * GRID_STEPS * scale).astype(jnp.int32)


def problem(own: Attacked, name: str) -> Problem:
    costs: list[tuple[Cost, int]] = [(cost, own.uses) for cost in own.mechanism.costs()]
    count = jax.tree.leaves(own.units)[0].shape[0]

    def observe(key: Array, present: Array, noise: Array) -> Array:
        coins, drawn = jax.random.split(key)
        tape = Tape({"sum": integers(own, drawn, noise)}, "noise")
        meter: Meter = replace(new_meter(coins, ("sum",)), tape=tape)
        mask, seen = jnp.ones(count, bool).at[0].set(present > 0), []
        for _ in range(own.uses):
            found, meter = own.mechanism("sum", meter, own.what, (), own.units, mask)
            seen += [jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(found)]
        return jnp.concatenate([*seen, meter.memory[None]])

    return Problem(name, "client", "published", composition.epsilon(costs, DELTA), DELTA, observe)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_no_attack_on_exact_noise_exceeds_its_claim_and_half_the_noise_would(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "TRIALS", PROPOSED)
    own = CASES[name]()
    found = attack(problem(own, name), runs=20_000, confidence=1 - 1e-5)
    assert not found.exceeded
    assert found.power is not None
    assert found.power > 0.9

"""Sampling, rounds and accounts that do not fit together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk.accounting import composition, noise_for_budget
from kinfolk.accounting.calibrate import check_deltas
from kinfolk.accounting.composition import BudgetError
from kinfolk.accounting.noise_for_budget import Case
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.mean_regularized import MeanRegularized
from kinfolk.engines import resident
from kinfolk.engines.cohorts import Cohort
from kinfolk.privacy.levels import Level, PrivacyLevel
from kinfolk.verify.attack_problems import DELTA, ROWS, Game, level_for, problem_of, set_up

from .checking import Bug, found_by_attack, found_by_replay


def fixed_size(sampling: Any, key: Any, number: Any, clients: int) -> Cohort:
    """Exactly one client in every round."""
    chosen = jax.random.randint(jax.random.fold_in(key, number), (), 0, clients)
    return Cohort(jnp.arange(clients) == chosen, None)


def _one_of_four() -> Game:
    """One client of four is expected in a round, by Poisson sampling, at epsilon 1."""
    return set_up(FedAvg(), PrivacyLevel(Level.CLIENT, 1.0, DELTA, cohort=1.0))


def _with_fixed_size() -> list[str]:
    with mock.patch.object(resident, "draw_cohort", fixed_size):
        return found_by_attack(problem_of(_one_of_four(), "fixed-size cohort"))


def _batches() -> Game:
    return set_up(FedAvg(), level_for("example", 2.0, sampled=True), batch_size=ROWS // 2)


def _with_noise_for(uses_factor: float, rate_factor: float) -> Game:
    """A game whose noise was calibrated to other uses and another rate than it has, and whose claim believes it."""
    game = _batches()
    ((cost, real_uses),) = game.charges
    uses, rate = round(real_uses * uses_factor), cost.rate * rate_factor
    (noise,) = noise_for_budget.noise_multipliers([Case(2.0, DELTA, uses, rate)])
    data: Any = game.terms.data
    data = replace(data, noise_multiplier=jnp.full_like(data.noise_multiplier, noise))
    believed = replace(cost, noise_multiplier=noise, rate=rate)
    return replace(game, terms=replace(game.terms, data=data), charges=((believed, uses),))


def chained(plan: Any, algorithm: Any, terms: Any, clients: Any, state: Any, number: Any) -> Any:
    """Every client starts from the model that the client before it left behind."""
    passed_on = jax.tree.map(lambda leaf: jnp.roll(leaf, 1, axis=0), state.personal)
    return resident.one_round(plan, algorithm, terms, clients, replace(state, personal=passed_on), number)


def _personal_game() -> Game:
    return set_up(MeanRegularized(), level_for("client", 2.0, sampled=False))


def _delta_of(delta: float) -> list[str]:
    try:
        check_deltas(PrivacyLevel(Level.CLIENT, 1.0, delta), tuple("abcdefgh"), np.full(8, 10))
    except BudgetError as error:
        return [str(error)]
    return []


BUGS = (
    Bug(
        "fixed-size cohort",
        "cohorts of one fixed size are accounted as Poisson samples; the other clients know who is missing",
        "attack",
        _with_fixed_size,
        lambda: found_by_attack(problem_of(_one_of_four(), "Poisson cohort")),
    ),
    Bug(
        "a step not counted",
        "of two local steps in a round one is paid for",
        "attack",
        lambda: found_by_attack(problem_of(_with_noise_for(0.5, 1.0), "half the steps")),
        lambda: found_by_attack(problem_of(_with_noise_for(1.0, 1.0), "all steps")),
    ),
    Bug(
        "client sampling in every step's rate",
        "the chance that a silo takes part is multiplied into the rate of each of its steps",
        "attack",
        lambda: found_by_attack(problem_of(_with_noise_for(1.0, 0.5), "half the rate")),
        lambda: found_by_attack(problem_of(_with_noise_for(1.0, 1.0), "the rate")),
    ),
    Bug(
        "a client chained to the previous one",
        "clients share one model object, so that raw weights of one client reach the next",
        "replay",
        lambda: found_by_replay(_personal_game(), chained),
        lambda: found_by_replay(_personal_game()),
    ),
    Bug(
        "delta of 1/m",
        "delta is one over the number of clients: a guarantee that allows publishing one of them",
        "mechanism",
        lambda: _delta_of(1 / 8),
        lambda: _delta_of(composition.default_delta(8)),
    ),
)

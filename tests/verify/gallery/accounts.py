"""Sampling, rounds and accounts that do not fit together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk.accounting import composition, noise_for_budget
from kinfolk.accounting.budgets import check_deltas
from kinfolk.accounting.composition import BudgetError
from kinfolk.accounting.noise_for_budget import Case
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.mean_regularized import MeanRegularized
from kinfolk.engines import resident
from kinfolk.engines.cohorts import Cohort
from kinfolk.engines.release_counts import count_uses
from kinfolk.privacy.levels import Level, PrivacyLevel
from kinfolk.privacy.release import PrivacyError
from kinfolk.training.prepare import check_job
from kinfolk.verify.attack_problems import DELTA, ROWS, Game, level_for, problem_of, set_up
from tests.conformance.worlds import world

from .checking import Bug, found_by_attack, found_by_replay
from .leaks import Changed


def fixed_size(sampling: Any, key: Any, number: Any, clients: int, homes: int = 1) -> Cohort:
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


def silent_while_counting(self: Any, shared: Any, inbox: Any) -> Any:
    """Makes no release while releases are only counted."""
    tape = inbox._meter.tape
    return (shared, inbox) if tape and tape.mode == "count" else type(self).server(self, shared, inbox)


def _counted_and_traced(**changes: Any) -> list[str]:
    """What a release refuses before it starts: counts that the traced program does not bear out."""
    w, algorithm = world("fedavg", "client", blocks=1), Changed(jax.tree.map(jnp.float32, FedAvg()), **changes)
    counted = count_uses(w.plan, algorithm, w.terms, w.clients, range(1))
    check = check_job(w.plan, algorithm, w.terms, jax.tree.map(lambda leaf: leaf[None], w.clients))
    try:
        check.require(counted)
    except PrivacyError as error:
        return [str(error)]
    return []


BUGS = (
    Bug(
        "a release skipped while counting",
        "a method makes no release while releases are only counted, so that none would be charged",
        "flow",
        lambda: _counted_and_traced(new_server=silent_while_counting),
        _counted_and_traced,
    ),
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
        "a client chained to the previous one, in a release",
        "the same where noise comes from the operating system and sums lie on a grid",
        "replay",
        lambda: found_by_replay(_personal_game(), chained, release=True),
        lambda: found_by_replay(_personal_game(), release=True),
    ),
    Bug(
        "delta of 1/m",
        "delta is one over the number of clients: a guarantee that allows publishing one of them",
        "mechanism",
        lambda: _delta_of(1 / 8),
        lambda: _delta_of(composition.default_delta(8)),
    ),
)

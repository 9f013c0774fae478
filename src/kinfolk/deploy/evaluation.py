"""The one evaluation of a study, as all its parties compute it from their own copy: who is counted, and in which cells.

At example level each silo releases a noisy table of its own test rows, and pays for it. At client level the silo is the
unit: it sends the vector that its rows make to the aggregator, which it trusts with its messages too, and which bounds
every vector once more, adds the noise and pays; or, where sums are secure, it adds its share of the noise and masks to
it, pays, and the aggregator sees the sum alone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk.accounting.account import Account
from kinfolk.data.tables.targets import target_of
from kinfolk.data.target import Target
from kinfolk.deploy.policy import Policy, has_leave
from kinfolk.deploy.silo_rows import SiloRows
from kinfolk.deploy.study import Study
from kinfolk.privacy.exact_noise import MOST_UNITS
from kinfolk.privacy.mechanisms import NoisySum
from kinfolk.privacy.tables import SCORED, Board, Unit
from kinfolk.training.build import shared_model
from kinfolk.training.evaluation_account import paid_by, with_room
from kinfolk.training.evaluation_units import Question, edges_of, ordinary_score, per_row
from kinfolk.types import Params, Tree

EVALUATE = "evaluate"
"""The kind of the question, which a message asks and says no more about."""


@dataclass(frozen=True)
class Evaluation:
    """What a study asks of test rows, and which silos."""

    study: Study

    @property
    def epsilon(self) -> float:
        """What it costs each unit."""
        assert self.study.experiment.evaluate is not None
        return self.study.experiment.evaluate

    @property
    def asked(self) -> tuple[int, ...]:
        """The places of the silos that keep rows for it."""
        return tuple(place for place, count in enumerate(self.study.roster.tests) if count)

    @property
    def counted(self) -> np.ndarray:
        """How many rows, or people, of each silo are counted: those it keeps, as far as an exact sum can hold them."""
        return np.minimum(self.study.roster.tests, MOST_UNITS)

    @property
    def by_client(self) -> bool:
        """Whether each silo has a table, and noise, of its own."""
        return self.study.level.clients_pay

    def board(self, shared: Tree) -> Board:
        """Where rows go.

        `shared`: the state after the last round, which everybody has.
        """
        study, model = self.study, self.study.model
        common = shared_model(study.experiment.phases[-1].method, model, jax.tree.map(jnp.asarray, shared))
        counted = int(self.counted.sum()) if self.by_client else len(self.asked)
        epsilon = self.epsilon / (len(self.asked) ** 0.5 if self.by_client else 1.0)
        one = jnp.zeros(len(study.roster.features), jnp.float32)
        centre = ordinary_score(model, one, common, None) if model.outcome in SCORED else 0.0
        answers = study.roster.answers
        curves = counted / (answers if model.outcome == "survival" else 1)
        edges = edges_of(model, self.target, curves, epsilon, centre)
        return Board(edges, None, None if self.by_client else common, model, answers)

    @cached_property
    def target(self) -> Target:
        """What is predicted, as the study declares it."""
        return target_of(self.study.roster.declared)

    @cached_property
    def cells(self) -> int:
        """Numbers in an answer."""
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.study.shapes[-1])
        return self.question(zeros, ()).cells

    @property
    def form(self) -> jax.ShapeDtypeStruct:
        """The shape of an answer."""
        return jax.ShapeDtypeStruct((self.cells,), jnp.float32)

    def question(self, shared: Tree, heard: Collection[int]) -> Question:
        """What the server knows of it: how many were counted, and in which cells; nobody's rows.

        `shared`: the state after the last round. `heard`: the places of those who answered.
        """
        tests = np.where([place in heard for place in range(self.study.clients)], self.counted, 0)
        mask = np.arange(self.counted.max())[None] < tests[:, None]
        nobody = Unit((), (), (), ())
        words = "rows (people, where a silo's table has them)" if self.by_client else CLIENTS
        own = mask if self.by_client else tests > 0
        return self._question(self.board(shared), nobody, own, None, words)

    def question_of(self, tests: SiloTests, shared: Tree, model: Params) -> Question:
        """What a silo is asked of its own rows.

        `shared`: the state after the last round. `model`: the silo's own.
        """
        one: Params = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], model)
        if self.by_client:
            return self._question(self.board(shared), tests.units, tests.mask, one, "rows")
        return self._question(self.board(shared), replace(tests.units, params=one), tests.mask, None, CLIENTS)

    def _question(self, board: Board, units: Unit, mask: np.ndarray, own: Params | None, words: str) -> Question:
        return Question(board, units, mask, self.by_client, own, groups=(), by="", target=self.target, unit=words)


CLIENTS = "clients, each with the mean of its rows"


@dataclass(frozen=True)
class SiloTests:
    """What a silo brings to its study's evaluation."""

    shared: Evaluation
    """What all parties compute alike."""
    units: Unit
    """At example level with axes (1, units, rows), at client level (1, rows)."""
    mask: np.ndarray
    """Which units are real: (1, units), or (1,)."""
    account: Account | None
    """The silo's own; None where the aggregator is trusted, and pays."""
    mechanism: NoisySum | None


def tests_of(
    study: Study, policy: Policy, rows: SiloRows, training: Account, rounds: int
) -> tuple[Account, SiloTests | None]:
    """The silo's account with a promise that has room for its evaluation, and what it brings to that.

    `training`: the account without it, that the silo's ledger keeps. `rounds`: that the silo serves.
    """
    if rows.tests is None or not has_leave(policy, study):
        return training, None
    shared = Evaluation(study)
    x, y, mask = (np.asarray(part)[None] for part in (rows.tests.x, rows.tests.y, rows.tests.mask))
    unit = Unit(x, y, np.zeros(mask.shape, np.int32), mask, None)
    real = one = np.ones(1, bool)
    if shared.by_client:
        unit, real = per_row(unit, None if rows.whose is None else rows.whose[None], max(1, rows.people))
    elif not study.sums_are_secure:
        return training, SiloTests(shared, unit, real, None, None)
    training = with_room(training, shared.epsilon, one, rounds)
    account, mechanism = paid_by(training, shared.epsilon, one)
    return training, SiloTests(shared, unit, np.asarray(real), account, mechanism)

"""The secure sums of a study at client level: what a round's one vector is made of, and on which terms it is added.

Server and silos run the `server_round` that simulation runs. A silo runs it with its own message alone and without
noise, and keeps what the release would have been, in grid steps: that is its part of the sum. The server runs it with
nobody's message, and the sum that was opened takes the place of the noise. So whatever a method releases (means,
mixtures, second moments, the count of adaptive clipping beside them) is one vector, clipped by its own rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk.accounting.account import Account
from kinfolk.deploy.evaluation import Evaluation
from kinfolk.deploy.keys import MAKE_SIGNING_KEY, signing_bytes
from kinfolk.deploy.round_account import checked_phase, round_tape
from kinfolk.deploy.server_terms import server_account
from kinfolk.deploy.study import Study
from kinfolk.privacy import noise_tape
from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.gates import EVALUATION
from kinfolk.privacy.levels import Terms
from kinfolk.privacy.release import Meter, Tape, new_meter
from kinfolk.rounds import Mail, RoundSpec, server_round
from kinfolk.secure.agreement import Agreement
from kinfolk.toml import ConfigError
from kinfolk.training.evaluation_account import ONCE, paid_by
from kinfolk.types import Algorithm, Tree
from kinfolk.verify.round_check import RoundCheck


@dataclass(frozen=True)
class Sums:
    """What every party of a study computes alike from its own copy of it."""

    study: Study
    account: Account
    """The federation's: costs, noise and clips of every round."""
    checks: tuple[RoundCheck, ...]
    """The flow check of every phase."""
    evaluation: tuple[Evaluation, Account] | None = None
    """The study's, where it has one: one more sum, under the number after the last round's."""

    def kind(self, number: int) -> str:
        """The one kind of release that a round makes.

        `number`: of the round.
        """
        if self.is_evaluation(number):
            return EVALUATION
        uses = {kind: int(counts[number].sum()) for kind, counts in self.account.uses.items()}
        made = [kind for kind, count in uses.items() if count]
        if sum(uses.values()) != 1:
            names = ", ".join(made) or "none"
            raise ConfigError(
                f"round {number} makes {sum(uses.values())} releases ({names}): aggregator='secure' needs "
                "exactly one in every round, as all of it is one vector. Use another method, or phases without "
                "rounds that release nothing"
            )
        return made[0]

    def is_evaluation(self, number: int) -> bool:
        """Whether the sum of this number is the evaluation's, which comes after the last round's.

        `number`: of the sum.
        """
        return self.evaluation is not None and number == self.study.experiment.rounds

    def length(self, number: int) -> int:
        """Numbers in a round's vector.

        `number`: of the round.
        """
        if self.evaluation is not None and self.is_evaluation(number):
            return self.evaluation[0].cells
        return self.checks[self.study.phase(number)].sizes[self.kind(number)]

    def agreement(self, number: int) -> Agreement:
        """The terms of a round's sum.

        `number`: of the round.
        """
        study, shares = self.study, self.account.privacy.shares(self.study.clients)
        assert shares is not None
        account, this = self.account, range(number, number + 1)
        if self.evaluation is not None and self.is_evaluation(number):
            account, this = self.evaluation[1], ONCE
        ((noise,),) = account.scales(self.kind(number), this, 1)
        return Agreement(
            study.digest,
            study.roster.clients,
            self._keys,
            survivors=shares.survivors,
            colluding=shares.colluding,
            length=self.length(number),
            clip=1.0,
            deviation=float(math.ceil(float(noise) * GRID_STEPS)),
        )

    @cached_property
    def _keys(self) -> tuple[bytes, ...]:
        return tuple(map(signing_bytes, self.study.roster.keys))

    def contribution(self, number: int, shared: Tree, message: Tree, slot: int, memory: float) -> np.ndarray:
        """One silo's part of a round's vector, in grid steps, without noise.

        `number`: of the round. `shared`: the published state. `message`: the silo's. `slot`: its place in the roster.
        `memory`: where adaptive clipping has got to; public.
        """
        study = self.study
        fixed = (
            RoundSpec(study.model, study.level, 1, study.clients),
            tuple(sorted(self.checks[study.phase(number)].sizes.items())),
        )
        own = (jax.tree.map(np.asarray, message), np.int32(slot), np.float32(memory), study.weights())
        shared, algorithm = jax.tree.map(np.asarray, shared), study.algorithms[study.phase(number)]
        found = _steps(fixed, algorithm, self.account.terms, shared, own, np.int32(number))
        return np.asarray(found[self.kind(number)])[: self.length(number)].astype(np.int64)

    def meter(self, number: int, total: np.ndarray, memory: Array) -> Meter:
        """The aggregator's meter with the opened sum in place of its noise.

        `number`: of the round. `total`: modulo 2^32. `memory`: where adaptive clipping has got to.
        """
        own = self.kind(number)

        def drawn(kind: str, shape: tuple[int, ...]) -> np.ndarray:
            found = np.zeros(shape, np.int32)
            if kind == own:
                found[0, : total.size] = total.astype(np.uint32).view(np.int32)
            return found

        shapes = round_tape(self.account, self.checks[self.study.phase(number)].sizes)
        meter = new_meter(noise_tape.fresh_keys(), self.study.level.inbox_kinds)
        return replace(noise_tape.with_fresh_noise(meter, shapes, drawn), memory=memory)


@partial(jax.jit, static_argnums=0)
def _steps(
    fixed: tuple[RoundSpec, tuple[tuple[str, int], ...]],
    algorithm: Algorithm,
    terms: Terms,
    shared: Tree,
    own: tuple[Tree, Array, Array, Array],
    number: Array,
) -> dict[str, Array]:
    """What each kind of release gets from one client's message, in grid steps, coordinate by coordinate.

    `own`: the message, the client's place, where adaptive clipping has got to, and all clients' weights.
    """
    spec, sizes = fixed
    message, slot, memory, weights = own
    inbox = terms.at(number).inbox
    one: Tree = jax.tree.map(lambda leaf: leaf[None], (message, weights[slot], slot))
    empty = replace(new_meter(jax.random.key(0), spec.level.inbox_kinds), memory=memory)

    def released(present: bool, noise: int) -> dict[str, Array]:
        drawn = {kind: jnp.full((1, size), noise, jnp.int32) for kind, size in sizes}
        tape = Tape({kind: jnp.zeros((1, size), jnp.float32) for kind, size in sizes}, "record", drawn)
        meter, here = replace(empty, tape=tape), jnp.full(1, present)
        mail = Mail(one[0], one[1], one[2], here, meter, inbox, inbox.sampling.rate * weights)
        after = server_round(spec, algorithm, shared, mail, number)[1].tape
        assert after is not None
        return after.values

    whole, one_step = released(True, 0), released(False, 1)
    return {
        kind: jnp.rint(whole[kind][0] / jnp.where(one_step[kind][0] > 0, one_step[kind][0], 1)).astype(jnp.int32)
        for kind, _ in sizes
    }


def sums_of(study: Study) -> Sums:
    """The sums of a study, checked: every round makes one release, and all of them fit into 32 bits."""
    if len(study.roster.keys) != study.clients:
        raise ConfigError(
            f"aggregator='secure' needs keys in study.toml, one for each of the {study.clients} clients. "
            f"{MAKE_SIGNING_KEY}"
        )
    account = server_account(study, released=True)
    spec = RoundSpec(study.model, study.level, 1, study.clients)

    def check(phase: int) -> RoundCheck:
        program = (spec, study.algorithms[phase], account.terms, study.row_shapes(2))
        return checked_phase(program, account, study.experiment.spans[phase])

    evaluation = None
    if study.experiment.evaluate is not None:
        shared = Evaluation(study)
        evaluation = shared, paid_by(account, shared.epsilon, np.ones(1, bool))[0]
    found = Sums(study, account, tuple(check(phase) for phase in range(len(study.algorithms))), evaluation)
    for number in range(study.experiment.rounds + (evaluation is not None)):
        found.agreement(number)
    return found

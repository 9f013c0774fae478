"""The server's part of an evaluation: asks the silos once, adds what they answer, and computes what may be shown.

At example level it sees noisy tables alone, and all it does is post-processing. At client level, where it is trusted,
it gets one vector of each silo, and makes the release: charged, computed, published, in that order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk.accounting.account import Account
from kinfolk.accounting.ledger import Ledger, LedgerError
from kinfolk.deploy.evaluation import Evaluation
from kinfolk.deploy.study import Study
from kinfolk.privacy.gates import EVALUATION
from kinfolk.privacy.mechanisms import NoisySum
from kinfolk.privacy.release import new_meter
from kinfolk.secure.contribution import as_numbers
from kinfolk.training import published, run_directory
from kinfolk.training.evaluation_account import ONCE, laplace_scale, paid_by, with_room
from kinfolk.training.evaluation_units import Question
from kinfolk.training.run_directory import Run
from kinfolk.training.shown import Release, Shown, metrics_of
from kinfolk.types import Tree

NOT_EVALUATED = "not_evaluated.txt"
"""The private file that says why there is nothing to show."""
BY_SILOS = "each silo's own, in its statement"


@dataclass(frozen=True)
class ServerEvaluation:
    """A server's evaluation of one run."""

    shared: Evaluation
    paid: tuple[Account, NoisySum] | None
    """At client level: the federation's account, and the mechanism; None at example level, where silos pay."""

    def take(self, heard: Mapping[int, np.ndarray], shared: Tree, ledger: Ledger, run: Run) -> None:
        """Publishes what may be shown of the answers; where nothing may be, a private file says why.

        `heard`: by place. `shared`: the state after the last round.
        """
        quorum = max(1, min(self.shared.study.roster.quorum, len(self.shared.asked)))
        if len(heard) < quorum:
            give_up(run, f"{len(heard)} of the {len(self.shared.asked)} silos that keep rows answered; quorum={quorum}")
        elif self.shared.by_client:
            self._publish(self._of_tables(heard, shared), heard, run)
        else:
            try:
                self._publish(self._of_vectors(heard, shared, ledger, run), heard, run)
            except LedgerError as error:
                give_up(run, str(error))

    def take_sum(self, total: np.ndarray, heard: Collection[int], shared: Tree, run: Run) -> None:
        """Publishes what may be shown of a secure sum, which `pay` has paid for.

        `total`: modulo 2^32. `heard`: the places of the survivors.
        """
        assert self.paid is not None
        account, mechanism = self.paid
        study, privacy = self.shared.study, account.privacy
        shares = privacy.shares(study.clients)
        assert shares is not None
        each = shares.share(float(np.max(mechanism.noise_multiplier)))
        asked = self.shared.question(shared, heard)
        program = published.checked(self._posted(asked, {}), mechanism, exact=False).program
        how = Release(self.shared.epsilon, each * len(heard) ** 0.5, program, simulated=False, law=mechanism.law)
        self._publish(metrics_of(asked, as_numbers(total, 1.0), how), heard, run)

    def pay(self, ledger: Ledger, run: str) -> None:
        """Charges a secure sum, on disk when this returns."""
        assert self.paid is not None
        self.paid[0].require(ledger, run, [ONCE])
        self.paid[0].charge(ledger, run, ONCE)

    def _publish(self, found: Shown, heard: Collection[int], run: Run) -> None:
        names = self.shared.study.roster.clients
        silent = [names[place] for place in self.shared.asked if place not in heard]
        shown: Shown = {**found, "without": silent, "ledger_run": run.name}
        run_directory.write_json(run.public / run_directory.EVALUATIONS, [shown])
        (run.private / NOT_EVALUATED).unlink(missing_ok=True)

    def _posted(self, asked: Question, heard: Mapping[int, np.ndarray]) -> Question:
        """The question with the vectors that silos sent in place of their rows."""
        vectors = np.zeros((self.shared.study.clients, self.shared.cells), np.float32)
        for place, vector in heard.items():
            vectors[place] = vector
        return replace(asked, board=replace(asked.board, posted=True), units=jnp.asarray(vectors))

    def _of_tables(self, heard: Mapping[int, np.ndarray], shared: Tree) -> Shown:
        """Metrics of silos' noisy tables, added up."""
        privacy = self.shared.study.experiment.privacy
        scale = laplace_scale(privacy, self.shared.epsilon)
        how = Release(self.shared.epsilon, scale, BY_SILOS, self.shared.study.experiment.seed is not None)
        total = np.sum([table.astype(np.float64) for table in heard.values()], axis=0)
        return metrics_of(self.shared.question(shared, heard), total, how)

    def _of_vectors(self, heard: Mapping[int, np.ndarray], shared: Tree, ledger: Ledger, run: Run) -> Shown:
        """The release of silos' vectors, and its metrics."""
        study = self.shared.study
        asked = self._posted(self.shared.question(shared, heard), heard)
        assert self.paid is not None
        ready = published.plan_of(asked, *self.paid)
        key = jax.random.fold_in(study.key, published.EVALUATIONS_FROM)
        table = published.released(ready, ledger, run.name, new_meter(key, (EVALUATION,)))[0]
        how = Release(self.shared.epsilon, ready.scale, ready.report.program, not ready.account.released)
        return metrics_of(asked, table, how)


def give_up(run: Run, why: str) -> None:
    """Notes why there is nothing to show."""
    run_directory.write_text(run.private / NOT_EVALUATED, f"{why}\n")


def server_evaluation(study: Study, training: Account) -> ServerEvaluation | None:
    """The evaluation that a study asks for, if it does; refused where what was promised does not cover it.

    `training`: the federation's account at client level; it is empty at example level.
    """
    if study.experiment.evaluate is None:
        return None
    shared, there = Evaluation(study), np.ones(1, bool)
    if shared.by_client:
        return ServerEvaluation(shared, None)
    whole = with_room(training, shared.epsilon, there, study.experiment.rounds)
    return ServerEvaluation(shared, paid_by(whole, shared.epsilon, there))

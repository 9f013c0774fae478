"""The server's part of an evaluation: asks the silos once, adds what they answer, and computes what may be shown.

At example level it sees noisy tables alone, and all it does is post-processing. At client level, where it is trusted,
it gets one vector of each silo, and makes the release: charged, computed, published, in that order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk.accounting.account import Account
from kinfolk.accounting.ledger import Ledger, LedgerError
from kinfolk.deploy.evaluation import Evaluation
from kinfolk.deploy.study import Study
from kinfolk.privacy.gates import EVALUATION
from kinfolk.privacy.mechanisms import LaplaceSum
from kinfolk.privacy.release import new_meter
from kinfolk.training import published, run_directory
from kinfolk.training.evaluation_account import noise_for, paid_by, with_room
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
    paid: tuple[Account, LaplaceSum] | None
    """At client level: the federation's account, and the mechanism; None at example level, where silos pay."""

    def take(self, heard: Mapping[int, np.ndarray], shared: Tree, ledger: Ledger, run: Run) -> None:
        """Publishes what may be shown of the answers; where nothing may be, a private file says why.

        `heard`: by place. `shared`: the state after the last round.
        """
        study, asked = self.shared.study, self.shared.asked
        quorum = max(1, min(study.roster.quorum, len(asked)))
        try:
            if len(heard) < quorum:
                raise LedgerError(
                    f"{len(heard)} of the {len(asked)} silos that keep rows for it answered: quorum={quorum}"
                )
            found = (
                self._of_tables(heard, shared)
                if self.shared.by_client
                else self._of_vectors(heard, shared, ledger, run)
            )
        except LedgerError as error:
            run_directory.write_text(run.private / NOT_EVALUATED, f"{error}\n")
            return
        silent = [study.roster.clients[place] for place in asked if place not in heard]
        shown: Shown = {**found, "without": silent, "ledger_run": run.name}
        run_directory.write_json(run.public / run_directory.EVALUATIONS, [shown])

    def _of_tables(self, heard: Mapping[int, np.ndarray], shared: Tree) -> Shown:
        """Metrics of silos' noisy tables, added up."""
        privacy = self.shared.study.experiment.privacy
        scale = float(np.nextafter(np.float32(noise_for(privacy, self.shared.epsilon)), np.float32(np.inf)))
        how = Release(self.shared.epsilon, scale, BY_SILOS, self.shared.study.experiment.seed is not None)
        total = np.sum([table.astype(np.float64) for table in heard.values()], axis=0)
        return metrics_of(self.shared.question(shared, heard), total, how)

    def _of_vectors(self, heard: Mapping[int, np.ndarray], shared: Tree, ledger: Ledger, run: Run) -> Shown:
        """The release of silos' vectors, and its metrics."""
        study = self.shared.study
        asked = self.shared.question(shared, heard)
        vectors = np.zeros((study.clients, self.shared.cells), np.float32)
        for place, vector in heard.items():
            vectors[place] = vector
        assert self.paid is not None
        asked = replace(asked, board=replace(asked.board, posted=True), units=jnp.asarray(vectors))
        ready = published.plan_of(asked, *self.paid)
        key = jax.random.fold_in(study.key, published.EVALUATIONS_FROM)
        table = published.released(ready, ledger, run.name, new_meter(key, (EVALUATION,)))[0]
        how = Release(self.shared.epsilon, ready.scale, ready.report.program, not ready.account.released)
        return metrics_of(asked, table, how)


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

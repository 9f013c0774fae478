"""A silo's answer to its study's evaluation: once in a run, after its end, paid for and stored before it is sent."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk.accounting.ledger import Ledger
from kinfolk.deploy.evaluation import SiloTests
from kinfolk.deploy.silo_program import Program
from kinfolk.deploy.silo_state import MODEL, SLACK
from kinfolk.files import Room
from kinfolk.privacy.gates import EVALUATION
from kinfolk.privacy.release import PrivacyError, new_meter
from kinfolk.privacy.tables import Unit, at_most_one
from kinfolk.training import published, run_directory
from kinfolk.training.evaluation_account import ONCE
from kinfolk.training.evaluation_units import Question

EVALUATED = "evaluation.npz"
"""What a silo answered, in the folder of a run: it is only ever sent again."""


def reserve(tests: SiloTests | None, ledger: Ledger, run: str) -> None:
    """Keeps room in the silo's ledger for the evaluation before the run's first round, or refuses the run."""
    if tests is not None and tests.account is not None:
        tests.account.require(ledger, run, [ONCE])


def sent(tests: SiloTests, folder: Path) -> np.ndarray:
    """The answer that was stored."""
    return run_directory.read_tree(folder / EVALUATED, {"table": tests.shared.form})[0]["table"]


def programs(folder: Path) -> list[str]:
    """The fingerprint of the program that released the answer, for the statement; none where there was no release."""
    if not (folder / EVALUATED).exists():
        return []
    found = run_directory.read_tree(folder / EVALUATED, {})[1]["program"].tobytes().decode()
    return [found] if found else []


def answered(program: Program, tests: SiloTests, ledger: Ledger, folder: Path) -> np.ndarray:
    """The silo's answer, in this order: disk space, the flow check, the charge, the release, stored."""
    study = program.study
    form = {"model": study.model_shape, "shared": study.shapes[-1]}
    kept = run_directory.read_tree(folder / MODEL, form)[0]
    asked = tests.shared.question_of(tests, kept["shared"], kept["model"])
    with run_directory.writing(folder):
        space = Room(folder / EVALUATED, 4 * asked.cells + SLACK)
    with space as room:
        table, checked = released(program, tests, asked, ledger, folder.name)
        if not np.isfinite(table).all():
            raise PrivacyError("the table is not finite: nothing is sent")
        mark = np.frombuffer(checked.encode(), np.uint8)
        with run_directory.writing(folder):
            room.write(run_directory.tree_bytes({"table": table}, program=mark))
    return table


def released(program: Program, tests: SiloTests, asked: Question, ledger: Ledger, run: str) -> tuple[np.ndarray, str]:
    """The noisy table of the silo's rows, and the fingerprint of its program.

    At client level the vector of its rows, without noise, for an aggregator that is trusted with messages too.
    """
    if tests.account is None or tests.mechanism is None:
        return vector_of(asked), ""
    ready = published.plan_of(asked, tests.account, tests.mechanism)
    key = jax.random.fold_in(program.study.key, published.EVALUATIONS_FROM)
    own = jax.random.split(key, program.study.clients)[program.slot][None]
    meter = jax.vmap(lambda one: new_meter(one, (EVALUATION,)))(own)
    return published.released(ready, ledger, run, meter)[0].astype(np.float32), ready.report.program


def vector_of(asked: Question) -> np.ndarray:
    """What one client's rows add to the table: absolute values that sum to at most 1."""
    own: Unit = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], asked.units)
    return np.asarray(jax.jit(lambda board, unit: at_most_one(board.contribution(unit)))(asked.board, own))

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
from kinfolk.training.published import Planned
from kinfolk.types import Tree

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
    """The silo's answer, in this order: the flow check, disk space, the charge, the release, stored."""
    asked = question(program, tests, folder)
    ready = None
    if tests.account is not None and tests.mechanism is not None:
        ready = published.plan_of(asked, tests.account, tests.mechanism)
    with room(folder, asked.cells) as space:
        table = vector_of(asked) if ready is None else released(program, ready, ledger, folder.name)
        if not np.isfinite(table).all():
            raise PrivacyError("the table is not finite: nothing is sent")
        store(folder, space, {"table": table}, "" if ready is None else ready.report.program)
    return table


def question(program: Program, tests: SiloTests, folder: Path) -> Question:
    """What is asked of the silo's rows, after a run: its model is the one that the run's end left."""
    form = {"model": program.study.model_shape, "shared": program.study.shapes[-1]}
    kept = run_directory.read_tree(folder / MODEL, form)[0]
    return tests.shared.question_of(tests, kept["shared"], kept["model"])


def released(program: Program, ready: Planned, ledger: Ledger, run: str) -> np.ndarray:
    """The noisy table of the silo's rows, charged to its ledger."""
    key = jax.random.fold_in(program.study.key, published.EVALUATIONS_FROM)
    own = jax.random.split(key, program.study.clients)[program.slot][None]
    meter = jax.vmap(lambda one: new_meter(one, (EVALUATION,)))(own)
    return published.released(ready, ledger, run, meter)[0].astype(np.float32)


def checked(program: Program, tests: SiloTests, folder: Path) -> tuple[Question, str]:
    """What is asked in a secure sum, and the fingerprint of its program, which the flow check has passed."""
    asked = question(program, tests, folder)
    assert tests.mechanism is not None
    return asked, published.checked(asked, tests.mechanism, exact=False).program


def pay(tests: SiloTests, ledger: Ledger, run: str) -> None:
    """Charges the silo's part of a secure sum, on disk when this returns."""
    assert tests.account is not None
    tests.account.require(ledger, run, [ONCE])
    tests.account.charge(ledger, run, ONCE)


def masked(folder: Path) -> dict[str, np.ndarray] | None:
    """What was stored of a secure sum, if anything was."""
    if not (folder / EVALUATED).exists():
        return None
    return {name.strip("[]'"): found for name, found in run_directory.read_tree(folder / EVALUATED, {})[1].items()}


def room(folder: Path, numbers: int) -> Room:
    """Disk space for an answer of so many numbers, before it is paid for."""
    with run_directory.writing(folder):
        return Room(folder / EVALUATED, 4 * numbers + SLACK)


def store(folder: Path, space: Room, answer: Tree, program: str) -> None:
    """Writes an answer whole or not at all, with the fingerprint of its program."""
    with run_directory.writing(folder):
        space.write(run_directory.tree_bytes(answer, program=np.frombuffer(program.encode(), np.uint8)))


def vector_of(asked: Question) -> np.ndarray:
    """What one client's rows add to the table: absolute values that sum to at most 1."""
    own: Unit = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], asked.units)
    return np.asarray(jax.jit(lambda board, unit: at_most_one(board.contribution(unit)))(asked.board, own))

"""How far predictions reach to hold with a chosen chance, as a run keeps it."""

from __future__ import annotations

from typing import NotRequired, TypedDict

import numpy as np

from kinfolk.data.tables.schema import Column
from kinfolk.training import run_directory, run_files
from kinfolk.training.run_directory import Run

Columns = dict[str, np.ndarray]


class Reach(TypedDict):
    """Of one client: how little an outcome may conform to a prediction and still belong to its set."""

    client: str
    """Whose."""
    score: float | None
    """What a number may miss, as models see it; or one minus the least chance of a label. None: everything belongs."""
    of: str
    """Whose rows it comes from: `own`, or `everybody` where the client's are too few."""
    rows: int
    """How many rows (people) of its own there are."""


class Sets(TypedDict):
    """The prediction sets of a run."""

    version: int
    """Of this format."""
    coverage: float
    """The chance with which they hold, at least."""
    epsilon: float | None
    """What they cost each unit; None: nothing, as they stay with the clients."""
    simulated: bool
    """Whether the noise can be repeated from a seed."""
    outcome: str
    """`number`, `binary` or `classes`."""
    factor: float
    """What turns the reach of a number into the target's own unit."""
    unit: str
    """What that is."""
    clients: list[Reach]
    """Of every client how far predictions reach."""
    everybody: float | None
    """The score for a client that is not there, from everybody's rows; None: everything belongs."""
    program: NotRequired[str]
    """Hash of the program that the flow check passed."""
    ledger_run: NotRequired[str]
    """What the ledger calls the release."""


def reach_of(sets: Sets, client: str) -> float | None:
    """How little an outcome may conform to a client's prediction and still belong to its set; None: anything does."""
    known = {reach["client"]: reach["score"] for reach in sets["clients"]}
    return known.get(client, sets["everybody"])


def columns(sets: Sets, clients: np.ndarray, found: np.ndarray, chances: np.ndarray | None, target: Column) -> Columns:
    """What stands beside predictions: `lowest` and `highest` of a number, or all `plausible` labels.

    `clients`: whose each row is. `found`: predictions in the target's own unit, or labels. `chances`: of each label.
    `target`: its column.
    """
    reach = np.array([np.inf if (one := reach_of(sets, name)) is None else one for name in clients.tolist()])
    if chances is None:
        low, high = (-np.inf if target.low is None else target.low), (np.inf if target.high is None else target.high)
        wide = sets["factor"] * reach
        return {"lowest": np.clip(found - wide, low, high), "highest": np.clip(found + wide, low, high)}
    belongs = 1 - chances <= reach[:, None]
    labels = np.asarray(target.classes)
    return {"plausible": np.array(["|".join(labels[own]) for own in belongs])}


def sets_before(where: Run) -> list[Sets]:
    """The prediction sets that a run has released."""
    path = where.public / run_directory.SETS
    return run_files.read_json(path, list[Sets]) if path.exists() else []


def read(where: Run) -> Sets | None:
    """The newest prediction sets of a run: released ones, or private ones; None where it has none."""
    path = where.private / run_directory.SETS
    released = sets_before(where)
    own = run_files.read_json(path, list[Sets]) if path.exists() else []
    return (released or own or [None])[-1]

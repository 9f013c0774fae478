"""A federation's data: rows of all clients, split into training and test parts, padded into arrays.

>>> import numpy as np
>>> fed = from_rows(np.ones((6, 2)), np.arange(6.0), ["a", "b"] * 3, test_fraction=0.3)
>>> fed.ids, fed.train.sizes.tolist()
(('a', 'b'), [2, 2])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import numpy as np

from kinfolk import limits
from kinfolk.data.client_data import ClientData, Data, FunctionData, RaggedData, extent, target_shape, together
from kinfolk.data.given_rows import NOBODY, DataError, Split, check_rows, declared_identity, drawing, held_out_rows
from kinfolk.data.identity import ROWS_PER_PERSON, Identity, label
from kinfolk.data.target import NUMBERED, Target, as_integers, check_outcome, misfits, unfit
from kinfolk.types import Tree
from kinfolk.units import Several


def _check_targets(data: Data, outcome: str, classes: int) -> None:
    """Refuses targets that the outcome has no meaning for; what a function makes is not looked at."""
    if isinstance(data, FunctionData):
        return
    y = data.flat_y if isinstance(data, RaggedData) else data.y
    own = target_shape(data)
    if own != ((classes,) if outcome == "labels" else ()):
        expected = f"classes={classes} columns" if outcome == "labels" else "one number"
        raise DataError(
            f"y has {f'{own} numbers' if own else 'one number'} per row, and outcome={outcome!r} has {expected}: give "
            "y.ravel() for a single column, outcome='labels' for columns of 0 and 1 (classes= is their number)"
        )
    found = misfits(outcome, classes, y)
    if len(found) and isinstance(data, ClientData):  # padding may hold anything
        found = misfits(outcome, classes, y[np.arange(y.shape[1])[None, :] < data.sizes[:, None]])
    if len(found):
        raise unfit(outcome, classes, found.tolist()[0])
    if outcome in NUMBERED and y.dtype.kind not in "iu":
        raise DataError(f"y holds {y.dtype}, and outcome={outcome!r} takes integers: give y.astype(np.int32)")


@dataclass(frozen=True)
class Federation:
    """What a run trains on. Clients are ordered by their number of rows, so that engines can group them."""

    name: str
    """The data set's name in ledger and statement; all releases under one name add up."""
    ids: tuple[str, ...]
    """The clients' names; public."""
    train: Data
    """Rows to train on."""
    test: Data
    """Rows to test on; they belong to the protected unit too."""
    outcome: str
    """`number` (regression), `binary` (labels 0 and 1), `classes` (numbers from 0), `count`, `ordinal` (levels, numbers
    from 0), `survival` (as `courses` makes them) or `labels` (several of 0 and 1)."""
    classes: int = 0
    """How many classes, levels, intervals or labels there are, where the outcome has such."""
    scaling: str = "none"
    """How features were scaled, for the privacy statement."""
    scaling_is_private: bool = True
    """False when scaling looked at data outside the account."""
    encoding: str = ""
    """How raw rows became arrays (a schema as TOML), so that new rows can be treated alike; empty: unknown."""
    guesses: tuple[str, ...] = ()
    """Columns whose bounds, values or kinds were guessed from all clients' rows: never in a release."""
    grouping: str = ""
    """What makes a client: a column's name, a file each. Names of clients mean the same only within one grouping;
    empty: nobody knows."""
    identity: Identity | None = None
    """What its rows are known by in other tables and other years, as declared by their owner."""
    target: Target | None = None
    """What the target is called and measured in, where that is known."""

    def __post_init__(self) -> None:
        if self.outcome == "labels" and not self.classes and not isinstance(self.train, FunctionData):
            object.__setattr__(self, "classes", (target_shape(self.train) or (0,))[0])
        check_outcome(self.outcome, self.classes)
        for part in (self.train, self.test):
            _check_targets(part, self.outcome, self.classes)

    def __repr__(self) -> str:
        tests = int(self.test.sizes.sum())
        return f"Federation({self.name!r}, {extent(self.train)}, {tests} rows for testing, outcome={self.outcome!r})"

    @property
    def has_people(self) -> bool:
        """Whether people, with all their rows, are the units that it is trained on."""
        return not isinstance(self.train, FunctionData) and isinstance(self.train.any_x, Several)

    @cached_property
    def test_units(self) -> tuple[np.ndarray, ...]:
        """For each client the number of the unit, among the client's own, that each test row belongs to.

        Where no person is declared every row is a unit of its own. It is as private as the rows.
        """
        sizes = self.test.sizes.tolist()
        if self.identity is None or self.identity.kind != "person":
            return tuple(np.arange(size) for size in sizes)
        whose = (
            values[len(values) - size :].tolist() for values, size in zip(self.identity.values, sizes, strict=True)
        )
        return tuple(np.unique(list(map(label, own)), return_inverse=True)[1] for own in whose)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example, where features are one array."""
        return self.train.example_shape


def pooled(federation: Federation) -> Federation:
    """One client with everybody's rows: what could be learned if data were not kept apart.

    `federation`: whose clients are put together.
    """

    def joined(data: Data) -> ClientData:
        keep = np.arange(data.y.shape[1])[None, :] < data.sizes[:, None]
        x = jax.tree.map(lambda leaf: leaf[keep][None], data.x)
        features = getattr(data, "features", None)
        return ClientData(x, data.y[keep][None], np.array([int(keep.sum())]), features)

    train, test, identity = joined(federation.train), joined(federation.test), federation.identity
    if identity is not None:
        sizes = federation.train.sizes.tolist()
        pairs = [np.split(values, [size]) for values, size in zip(identity.values, sizes, strict=True)]
        identity = replace(identity, values=(np.concatenate([part[k] for k in (0, 1) for part in pairs]),))
    return replace(federation, ids=("everybody",), train=train, test=test, identity=identity)


def from_rows(
    x: Tree,
    y: np.ndarray,
    clients: Sequence[str] | np.ndarray,
    *,
    test_fraction: float | None = None,
    test: Sequence[bool] | Sequence[int] | np.ndarray | None = None,
    seed: int = 0,
    name: str = "data",
    outcome: str = "number",
    classes: int = 0,
    scaling: str = "none",
    scaling_is_private: bool = True,
    row_ids: Sequence[object] | np.ndarray | None = None,
    person_ids: Sequence[object] | np.ndarray | None = None,
    rows_per_person: int = ROWS_PER_PERSON,
    grouping: str = "",
) -> Federation:
    """A federation from a table: rows of all clients, split into training and test rows.

    `x` is an array with one row per example, or a dict of such arrays, for models that read several.

    `y`: one target per row; for `labels` a column for each. `clients`: the client of each row; rows of the integer -1
    are nobody's (`data/partition.py`), and are left out. `test_fraction`: share of each client's rows (0.2 by default)
    that is kept for testing, drawn at random by `seed`; or `test`: a fixed split, as one truth value per row or as the
    numbers of the test rows. `name`: the data set's name in ledger and statement; all releases under one name add up.
    `outcome`: `number` (regression), `binary` (labels 0 and 1), `classes` (numbers from 0), `count` (0 or more),
    `ordinal` (levels, numbers from 0), `survival` (as `courses` makes them) or `labels` (several, each 0 or 1).
    `classes`: how many classes, levels or intervals there are, where the outcome has such; of `labels` it is the number
    of columns. `scaling`: how features were scaled, in words; repeated in the privacy statement. `scaling_is_private`:
    False if scaling looked at data; every statement then says so, and a release at example level is refused. `row_ids`
    or `person_ids`: what a record, or a person, is known by in every table and year, one value per row; accounts then
    follow them, whatever tables and clients are called. With `person_ids` a person, with all rows, is the unit at
    example level: splits, sizes and batches count people. `rows_per_person`: how many rows of one person count; public,
    and of somebody with more some are left out. `grouping`: what makes a client (`ward`, `hospital`), so that another
    release knows a client by its name; without it, and without identities, any row may be any other.
    """
    x = {name: np.asarray(part) for name, part in x.items()} if isinstance(x, dict) else np.asarray(x)
    y, clients = np.asarray(y), np.asarray(clients)
    check_rows(x, y, clients)
    y = as_integers(outcome, y)
    held_out = None if test is None else held_out_rows(test, test_fraction, len(y))
    generator = drawing(seed)
    fraction = limits.checked("test_fraction", 0.2 if test_fraction is None else test_fraction)
    known = declared_identity(row_ids, person_ids, len(y), int(limits.checked("rows_per_person", rows_per_person)))
    split_of = Split(generator, fraction, held_out, known if person_ids is not None else None)
    parts = []
    names, counts = np.unique(clients, return_counts=True)
    by_client = np.split(np.argsort(clients, kind="stable"), np.cumsum(counts)[:-1])
    for client, found in zip(names.tolist(), by_client, strict=True):
        if client == NOBODY and clients.dtype.kind == "i":
            continue
        split = split_of(found)
        if not len(split[0]):
            rule, remedy = (
                ("test", "move rows out of test")
                if held_out is not None
                else (f"test_fraction={fraction}", "lower test_fraction")
            )
            raise DataError(
                f"client {str(client)!r} has {len(found)} row(s), and {rule} leaves none for training: drop the "
                f"client, or {remedy}"
            )
        parts.append((str(client), *split))
    if not parts:
        raise DataError(f"every row's client is {NOBODY}, which is nobody: give rows to clients 0, 1, ...")
    parts.sort(key=lambda part: (len(part[1]), part[0]))
    own = [np.concatenate(part[1:]) for part in parts]
    return Federation(
        name=name,
        ids=tuple(part[0] for part in parts),
        train=together(x, y, [part[1] for part in parts]),
        test=together(x, y, [part[2] for part in parts]),
        outcome=outcome,
        classes=classes,
        scaling=scaling,
        scaling_is_private=scaling_is_private,
        grouping=grouping,
        identity=known and replace(known, values=tuple(known.values[0][places] for places in own)),
    )

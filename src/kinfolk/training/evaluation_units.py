"""The test rows of a run as the units that an evaluation counts: rows, people or clients, each with all its rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk.data.federation import DataError, Federation
from kinfolk.data.tables import schema as schemas
from kinfolk.data.target import Target
from kinfolk.metrics import misses, scores
from kinfolk.privacy.exact_noise import MOST_UNITS
from kinfolk.privacy.tables import GAINS, SCORED, Board, Unit, score
from kinfolk.toml import ConfigError
from kinfolk.training import run_directory
from kinfolk.training.build import shared_model
from kinfolk.training.prepare import Job
from kinfolk.training.run_directory import Run
from kinfolk.types import Model, Params, Rows, Tree

MOST_GROUPS = 12
COUNTED = 20.0
"""The range of misses of a count, where nobody declared how many count."""


@dataclass(frozen=True)
class Question:
    """What an evaluation asks: public numbers, and the units they are asked of."""

    board: Board
    """Without the clients' own models, where these are public: `boards` has them."""
    units: Tree
    """`Unit`s: at example level with axes (clients, units, rows), at client level (clients, rows); or the vectors that
    clients made of them: (clients, cells)."""
    mask: np.ndarray
    """Which units are real: (clients, units), or (clients,)."""
    by_client: bool
    """Each client has a table, and noise, of its own."""
    models: Params | None
    """The clients' models, where they are public."""
    groups: tuple[str, ...]
    """Names of the groups; empty: everybody is in one."""
    by: str
    target: Target
    unit: str
    """What is counted, in words."""

    @property
    def cells(self) -> int:
        """How many numbers are released."""
        return int(np.prod(self.board.shape)) + (GAINS if self.board.shared is not None else 0)

    @property
    def parties(self) -> int:
        """How many tables, each with noise of its own, are added up."""
        return int(self.mask.any(axis=-1).sum()) if self.by_client else 1

    def boards(self) -> Board:
        """One board for each client, with its model, along a leading axis."""
        count = self.mask.shape[0]
        edges = jnp.broadcast_to(self.board.edges, (count, *self.board.edges.shape))
        return replace(self.board, edges=edges, params=self.models)


def question(job: Job, where: Run, epsilon: float, by: str | None = None) -> Question:
    """What is asked of a run's test rows; where rows go is decided by public numbers alone.

    `epsilon`: of the evaluation. `by`: the column whose values make groups.
    """
    data, model, level = job.federations[0], job.plan.model, job.plan.level
    require_test_rows(job)
    own, shared = models_of(job, where)
    rows = data.test.rows(slice(None), int(np.asarray(data.test.sizes).max()))
    group, names = groups_of(data.encoding, rows, by)
    unit = Unit(rows.x, rows.y, group, np.asarray(rows.mask), None)
    by_client = level.clients_pay
    if by_client:
        units, mask = per_row(unit, *people_of(data))
    else:
        units, mask = replace(unit, params=own), np.asarray(rows.mask).any(axis=1)
    target = data.target or _unnamed(data)
    mask = np.asarray(mask)
    parties = int(mask.any(axis=-1).sum()) if by_client else 1
    one: Tree = jax.tree.map(lambda leaf: jnp.zeros(np.shape(leaf)[2:], np.asarray(leaf).dtype), rows.x)
    edges = edges_of(
        model,
        target,
        int(mask.sum()) / max(1, len(names)) / (data.classes if model.outcome == "survival" else 1),
        epsilon / parties**0.5,
        ordinary_score(model, one, shared, own if by_client else None) if model.outcome in SCORED else 0.0,
    )
    board = Board(edges, None, None if by_client else shared, model, data.classes, max(1, len(names)))
    rows_or_people = "people, each with the mean of its rows" if data.has_people else "rows"
    words = rows_or_people if by_client else "clients, each with the mean of its rows"
    public = own if by_client else None
    return Question(board, units, mask, by_client, public, groups=names, by=by or "", target=target, unit=words)


def edges_of(model: Model, target: Target, units: float, epsilon: float, centre: float) -> Array:
    """Where bins of scores end, or nodes of misses lie: public numbers decide, all parties alike.

    `units`: that are counted for one curve. `epsilon`: of the release, over the root of the number of parties.
    `centre`: the score of an ordinary example.
    """
    if model.outcome in ("number", "count"):
        found = misses.nodes(target.scaled_high - target.scaled_low)
    elif model.outcome in SCORED:
        found = scores.edges(scores.bins_for(units, epsilon), centre)
    else:
        found = np.zeros(1)
    return jnp.asarray(found, jnp.float32)


def _unnamed(data: Federation) -> Target:
    """What is known of a target of which nobody said anything: its classes, or its intervals, by number."""
    numbers = range(1, data.classes + 1)
    if data.outcome == "survival":
        return Target("interval", edges=tuple(map(float, numbers)))
    if data.outcome == "count":
        return Target(low=0.0, high=COUNTED, scaled_low=0.0, scaled_high=COUNTED)
    return Target(labels=tuple(str(number - 1) for number in numbers))


def require_test_rows(job: Job) -> None:
    """Refuses where nothing was kept from training, or where clients are streamed."""
    data = job.federations[0]
    if not int(np.asarray(data.test.sizes).sum()):
        raise DataError(f"data {data.name!r} has no test rows: nothing can be evaluated. Train with a --test-fraction")
    if data.test is data.train:
        raise DataError(
            f"data {data.name!r} was all trained on: metrics on the same rows would be too good. Keep test rows"
        )
    if job.experiment.engine.store != "device":
        raise ConfigError(f"store={job.experiment.engine.store!r}: an evaluation needs store='device'")


def models_of(job: Job, where: Run) -> tuple[Params, Params | None]:
    """The clients' models, along a leading axis, and the shared one, where the method has one."""
    model, algorithm = job.plan.model, job.algorithms[-1]
    params = jax.eval_shape(model.init, jax.random.key(0))
    public = where.public / "models.npz"
    own = run_directory.read_tree(public if public.exists() else where.private / "models.npz", params)[0]
    shared_like = jax.eval_shape(lambda: algorithm.init(model.init(jax.random.key(0)), len(job.ids)))
    own, state = jax.tree.map(jnp.asarray, (own, run_directory.read_tree(where.public / "shared.npz", shared_like)[0]))
    return own, shared_model(job.experiment.phases[-1].method, model, state)


def people_of(data: Federation) -> tuple[np.ndarray | None, int]:
    """The number of each test row's person within its client, axes (clients, rows), and how many rows of one count."""
    if not data.has_people or data.identity is None:
        return None, 1
    longest = int(np.asarray(data.test.sizes).max())
    padded = [np.pad(own, (0, longest - len(own))) for own in data.test_units]
    return np.stack(padded), data.identity.rows_per_person


def per_row(rows: Unit, whose: np.ndarray | None = None, most_rows: int = 1) -> tuple[Unit, np.ndarray]:
    """Rows of clients, axes (clients, rows), as units with all their rows, and which units are real.

    `whose`: the number of each row's unit within its client; None: each row is one. `most_rows`: how many rows of a
    unit count, which is public, and the room that each has: shapes do not tell how many somebody has. At most as many
    units of a client as an exact sum can hold are kept, the first ones: rows are in random order.
    """
    keep = np.asarray(rows.keep)
    if whose is None:
        most = min(keep.shape[1], MOST_UNITS)
        cut = jax.tree.map(lambda leaf: np.asarray(leaf)[:, :most, None], rows)
        return cut, keep[:, :most]
    found = [[np.flatnonzero(own & real) for own in _each(ids, real)] for ids, real in zip(whose, keep, strict=True)]
    found = [[unit[:most_rows] for unit in units[:MOST_UNITS]] for units in found]
    count = max(1, *(len(units) for units in found))
    index = np.zeros((len(found), count, most_rows), int)
    real = np.zeros(index.shape, bool)
    for k, units in enumerate(found):
        for n, unit in enumerate(units):
            index[k, n, : len(unit)], real[k, n, : len(unit)] = unit, True
    clients = np.arange(len(found))[:, None, None]
    moved: Unit = jax.tree.map(lambda leaf: np.asarray(leaf)[clients, index], rows)
    return replace(moved, keep=real), np.asarray(real.any(axis=2))


def _each(ids: np.ndarray, real: np.ndarray) -> list[np.ndarray]:
    return [ids == one for one in np.unique(ids[real])]


def groups_of(encoding: str, rows: Rows, by: str | None) -> tuple[np.ndarray, tuple[str, ...]]:
    """The number of each row's group, and the groups' names: the declared values of a column, and none of them."""
    nobody = np.zeros(np.asarray(rows.mask).shape, np.int32)
    if by is None:
        return nobody, ()
    if not encoding:
        raise ConfigError(f"by={by!r}: groups are values of a column, and these data were not read from tables")
    schema = schemas.from_toml(encoding)
    column = next((one for one in schema.columns if one.name == by), None)
    if column is None or column.kind == "number":
        usable = [one.name for one in schema.columns if one.kind != "number"]
        raise ConfigError(f"by={by!r} is not one of the columns with declared values: {', '.join(usable) or 'none'}")
    place, x = list(schema.feature_names()).index(column.feature_names()[0]), np.asarray(rows.x)
    if column.kind == "yes_no":
        no, yes = column.classes
        return (x[..., place] > 0).astype(np.int32), (f"{by}={no}", f"{by}={yes}")
    if len(column.values) >= MOST_GROUPS:
        raise ConfigError(f"by={by!r} has {len(column.values)} values, and at most {MOST_GROUPS - 1} can be compared")
    own = x[..., place : place + len(column.values)]
    known = own.max(axis=-1) > 0
    names = (*(f"{by}={value}" for value in column.values), f"{by}: none of them")
    return np.where(known, own.argmax(axis=-1), len(column.values)).astype(np.int32), names


def ordinary_score(model: Model, example: Tree, shared: Params | None, own: Params | None) -> float:
    """The score of an example whose features are all in the middle, by public models; 0 where none is public.

    Rounded, so that two machines agree about it. `shared`: the model for everybody, where there is one. `own`: the
    clients' models, along a leading axis, where they are public.
    """
    if shared is not None:
        found = np.asarray(score(model, model.predict(shared, example)))
    elif own is not None:
        found = np.median(np.asarray(jax.vmap(lambda params: score(model, model.predict(params, example)))(own)))
    else:
        return 0.0
    value = round(float(found), 2)
    return float(np.clip(value, -4, 4)) if np.isfinite(value) else 0.0

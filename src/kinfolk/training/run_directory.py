"""A run's directory: written while training, read by everything else.

`public/` holds what anybody may see: configuration, ledger, privacy statement, shared state. `private/` holds what
must stay: checkpoints, metrics, and personal models where they are not protected.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import jax
import numpy as np
from numpy.typing import ArrayLike

from kinfolk.files import Room, npz, write_whole
from kinfolk.toml import to_toml
from kinfolk.training import run_files
from kinfolk.training.experiment import Experiment, load
from kinfolk.training.run_files import RunError
from kinfolk.types import Tree

if TYPE_CHECKING:
    from kinfolk.accounting.statement import Statement

VERSION = 1
EVALUATIONS = "evaluation.json"
"""What may be shown of test rows: every evaluation of a run."""
SETS = "prediction_sets.json"
"""How far predictions reach: public where that was released, private where it was free."""
PUBLIC = (
    "experiment.toml",
    "environment.json",
    "schema.toml",
    "ledger.jsonl",
    "strengths.jsonl",
    "statement.txt",
    "statement.json",
    "shared.npz",
    "models.npz",
    EVALUATIONS,
    SETS,
)
"""What may lie in `public/`, besides the rounds in `public/shared/`: everything else is private."""


class Metrics(TypedDict):
    """What was measured after some rounds, as means over seeds; the round alone, where no client has test rows."""

    round: int
    loss: float
    error: float
    worst_decile_error: float
    afterwards: NotRequired[bool]
    strength: NotRequired[float | dict[str, float]]


class ClientResult(TypedDict):
    """What a client's model was worth on its test rows, seed by seed."""

    client: str
    loss: list[float]
    error: list[float]
    value: NotRequired[list[float]]
    """By the first metric of the scorecard, in the target's own unit."""
    constant: NotRequired[list[float]]
    """The same of its own constant."""
    shared: NotRequired[list[float]]
    """The same of the shared model."""


class Begun(TypedDict):
    """What a run keeps to know its settings, its ledger and its data again."""

    version: int
    ledger: str
    experiment: str
    job: NotRequired[str]


class Environment(TypedDict):
    """Versions of what a result may depend on."""

    version: int
    python: str
    platform: str
    device: str
    packages: dict[str, str]


class StoppedError(RunError):
    """A release that ended before its last round, for good."""


@dataclass(frozen=True)
class Run:
    """What a run left behind."""

    path: Path
    """Its directory."""

    @property
    def public(self) -> Path:
        """The folder with what anybody may see."""
        return self.path / "public"

    @property
    def private(self) -> Path:
        """The folder with what must stay: metrics, checkpoints, models that are not protected."""
        return self.path / "private"

    @property
    def name(self) -> str:
        """The directory's name, by which ledgers know the run."""
        return self.path.name

    def experiment(self) -> Experiment:
        """The settings, as they were resolved."""
        path = self.public / "experiment.toml"
        found = load(path)
        if not self._as_begun("experiment") and not {*to_toml(found).splitlines()} <= {*path.read_text().splitlines()}:
            raise run_files.damaged(path, "a part of the settings is missing")
        return found

    def digests(self) -> dict[str, str]:
        """What the settings and the schema are known by: they must not change after the start of a run."""
        files = {"experiment": self.public / "experiment.toml", "schema": self.schema_path}
        return {name: sha256(path.read_bytes()).hexdigest() for name, path in files.items() if path is not None}

    def _as_begun(self, name: str) -> bool:
        """Whether a file is known to be as it was when the run began; refused where it is known not to be."""
        path = self.private / "run.json"
        known = run_files.read_json(path, dict[str, object]).get(name) if os.path.exists(path) else None
        if known is not None and known != self.digests().get(name):
            raise RunError(f"{name}.toml was changed since the run began, by what {path} says: {run_files.REMEDY}")
        return known is not None

    def statement(self) -> Statement:
        """The privacy statement as plain values; there when the run is done."""
        from kinfolk.accounting.statement import Statement

        return run_files.read_json(self.public / "statement.json", Statement)

    def metrics(self) -> list[Metrics]:
        """Errors on test rows after some rounds: private."""
        return run_files.read_json_lines(
            self.private / "metrics.jsonl", Metrics, ("loss", "error", "worst_decile_error")
        )

    def clients(self) -> list[ClientResult]:
        """Losses and errors of every client at the end, one of each per seed: private."""
        path = self.private / "clients.json"
        found = run_files.read_json(path, list[ClientResult])
        if not found:
            raise run_files.damaged(path, "it has no clients")
        return found

    def schema(self) -> str | None:
        """The table's schema as TOML, where there is one."""
        self._as_begun("schema")
        return None if self.schema_path is None else run_files.read_text(self.schema_path)

    @property
    def schema_path(self) -> Path | None:
        """The file with the table's schema, where there is one; private where it was guessed from the data."""
        found = [folder / "schema.toml" for folder in (self.public, self.private)]
        return next((path for path in found if path.exists()), None)

    def done(self) -> bool:
        """Whether the run came to its end."""
        return (self.public / "statement.json").exists()


def create(parent: Path, experiment: Experiment) -> Run:
    """A new run directory, named after the experiment, the time and chance: ledgers know a run by this name."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    run = Run(parent / f"{experiment.name}-{stamp}-{secrets.token_hex(3)}")
    with writing(parent):
        run.path.mkdir(parents=True)
        run.public.mkdir()
        run.private.mkdir(mode=0o700)
    write_text(run.public / "experiment.toml", to_toml(experiment))
    write_json(run.public / "environment.json", environment())
    return run


LATEST = "latest"
"""The link beside run directories that leads to the newest."""


def mark_latest(run: Path) -> None:
    """Lets `latest`, beside a run directory, lead to it; where links cannot be made, there is none.

    `run`: the directory.
    """
    link = run.parent / LATEST
    if link.exists() and not link.is_symlink():  # somebody's own
        return
    unfinished = run.parent / f".{LATEST}-{run.name}"
    with contextlib.suppress(OSError):
        unfinished.symlink_to(run.name, target_is_directory=True)
        os.replace(unfinished, link)


def unlisted(public: Path) -> list[str]:
    """Files in a run's public folder that have no business there."""
    found = [path.relative_to(public).as_posix() for path in sorted(public.rglob("*")) if path.is_file()]
    return [name for name in found if not _is_listed(name)]


def _is_listed(name: str) -> bool:
    return name in PUBLIC or re.fullmatch(r"shared/\d{6}\.npz", name) is not None


def _require_listed(path: Path) -> None:
    """Refuses to write a file into a run's public folder that is not listed."""
    for public in list(path.parents)[:2]:
        own = public.name == "public" and (public / "experiment.toml").exists()
        if own and not _is_listed(path.relative_to(public).as_posix()):
            raise RunError(f"{path} would be public, and only {', '.join(PUBLIC)} may be: write it to private/")


def publish(
    folder: Path, number: int, tree: Tree, *, room: Room | None = None, anew: bool = False, **arrays: ArrayLike
) -> None:
    """What others may have of a round, written whole or not at all, and once: it is only ever sent again.

    `room`: disk space that was reserved for it. `anew`: in place of an attempt at the round that was given up.
    """
    path = published(folder, number)
    with writing(folder):
        folder.mkdir(exist_ok=True)
    if path.exists() and not anew:
        return
    if room is None:
        write_tree(path, tree, **arrays)
    else:
        with writing(path):
            room.write(tree_bytes(tree, **arrays))


def published(folder: Path, number: int) -> Path:
    """Where a round is kept."""
    return folder / f"{number:06d}.npz"


def open_run(path: Path) -> Run:
    """An existing run directory.

    `path`: the directory.
    """
    if not (path / "public" / "experiment.toml").exists():
        raise RunError(f"{path} is not a run directory: it has no public/experiment.toml")
    return Run(path)


def environment() -> Environment:
    """Versions of what a result may depend on."""
    packages = ("kinfolk", "jax", "jaxlib", "numpy", "scipy", "dp-accounting")
    return {
        "version": VERSION,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": jax.devices()[0].device_kind,
        "packages": {name: metadata.version(name) for name in packages},
    }


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns a failed write into an error with the remedy."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path} cannot be written: {error.strerror or error}. Nothing half-written is left; make room or choose "
            "another directory (--output), then resume"
        ) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all, and returns when it is on disk."""
    _require_listed(path)
    with writing(path):
        write_whole(path, content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def write_tree(path: Path, tree: Tree, **extra: ArrayLike) -> None:
    """A pytree of arrays as an npz file: one array per leaf, named by its place, and `extra` arrays beside them."""
    write_bytes(path, tree_bytes(tree, **extra))


def tree_bytes(tree: Tree, **extra: ArrayLike) -> bytes:
    """What `write_tree` writes."""
    leaves = {
        jax.tree_util.keystr(where): np.asarray(leaf) for where, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
    return npz({**leaves, **extra}, compressed=False)


def read_tree(path: Path, like: Tree) -> tuple[Tree, dict[str, np.ndarray]]:
    """The tree written by `write_tree`, in the structure of `like`, and what was beside it."""
    arrays, leaves = run_files.read_arrays(path), []
    for where, leaf in jax.tree_util.tree_leaves_with_path(like):
        name, shape = jax.tree_util.keystr(where), tuple(getattr(leaf, "shape", ()))
        if name not in arrays:
            raise run_files.damaged(path, f"it has no array {name!r}, so it is of another run or method")
        found = arrays.pop(name)
        if found.shape[found.ndim - len(shape) :] != shape:
            raise run_files.damaged(path, f"its array {name!r} has shape {found.shape} instead of {shape}")
        leaves.append(found)
    return jax.tree.unflatten(jax.tree.structure(like), leaves), arrays


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSON Lines file; one that a full disk or a crash has torn is left out."""
    found = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return [value for value in found if isinstance(value, dict)]


def append_json(path: Path, value: object) -> None:
    """One more line of a JSON Lines file."""
    _require_listed(path)
    with writing(path), path.open("a") as file:
        file.write(json.dumps(value) + "\n")

"""What a silo keeps of a run, a file for each round that it served: what was sent, and what it goes on from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np

from kinfolk.deploy.silo_program import Program
from kinfolk.deploy.wire import size_of
from kinfolk.files import Room
from kinfolk.privacy.release import Meter
from kinfolk.training import run_directory
from kinfolk.types import Tree

MODEL = "model.npz"
"""What a silo keeps of a run that has ended."""
SLACK = 16384
"""Bytes of a stored round besides its arrays."""


@dataclass(frozen=True)
class Kept:
    """A silo's own side of a run, between two rounds."""

    personal: Tree
    uses: dict[str, int]
    draws: int
    """How far the streams of test keys were used."""
    tail: Tree = ()
    """The mean of its models over the last rounds; of those rounds whose shared state it was sent."""
    seen: int = 0
    """How many models that mean is over."""


def path_of(folder: Path, number: int) -> Path:
    """Where a round is kept."""
    return run_directory.published(folder, number)


def served(folder: Path) -> list[int]:
    """The rounds that were served in a run."""
    return sorted(int(path.stem) for path in folder.glob("[0-9]*.npz"))


def last_round(folder: Path) -> int | None:
    """The last round that was served in a run."""
    return max(served(folder), default=None)


def sent(program: Program, folder: Path, number: int) -> Tree:
    """The message of a round that was served before."""
    form = {"message": program.kept_shape(number)}
    return run_directory.read_tree(path_of(folder, number), form)[0]["message"]


def reserve(program: Program, folder: Path, number: int) -> Room:
    """Disk space for a round, before it is paid for: what is charged can be stored."""
    study, phase = program.study, program.study.phase(number)
    parts = (program.kept_shape(number), program.personal_shape(phase), study.model_shape)
    leaves = len(jax.tree.leaves(parts)) + len(study.level.data_kinds)
    with run_directory.writing(folder):
        folder.mkdir(exist_ok=True)
        for old in folder.glob(".*.npz.*"):  # of a process that was killed; the silo's lock says that it is not alive
            old.unlink()
        return Room(path_of(folder, number), sum(map(size_of, parts)) + SLACK + leaves * SLACK // 16)


def store(folder: Path, number: int, room: Room, message: Tree, kept: Kept, *, anew: bool = False) -> None:
    """Writes a round into the space that was reserved for it, whole or not at all.

    `anew`: in place of an attempt at it that was given up.
    """
    counts = {f"uses_{kind}": np.int64(count) for kind, count in kept.uses.items()}
    tree = {"message": message, "personal": kept.personal, "tail": kept.tail}
    extra = {"draws": np.int64(kept.draws), "seen": np.int64(kept.seen), **counts}
    run_directory.publish(folder, number, tree, room=room, anew=anew, **extra)


def before(program: Program, folder: Path, phase: int, entry: Tree, number: int | None = None) -> Kept:
    """What the silo goes on from in a phase that began with the shared state `entry`.

    `number`: of the round to come, of which there may be an attempt that was given up. None: after all rounds.
    """
    kinds = program.study.level.data_kinds
    last = max((done for done in served(folder) if number is None or done < number), default=None)
    if last is None:
        return Kept(program.start() if phase == 0 else program.begin(phase, entry), dict.fromkeys(kinds, 0), 0)
    with np.load(path_of(folder, last)) as file:
        seen = int(file["seen"])
    own = program.study.phase(last)
    form = {"personal": program.personal_shape(own), "tail": program.study.model_shape if seen else ()}
    tree, rest = run_directory.read_tree(path_of(folder, last), form)
    kept = Kept(tree["personal"], {k: int(rest[f"uses_{k}"]) for k in kinds}, int(rest["draws"]), tree["tail"], seen)
    return kept if own == phase else replace(kept, personal=program.begin(phase, entry))


def after_round(program: Program, kept: Kept, number: int, shared: Tree) -> Kept:
    """With the model after a round, whose shared state the silo is sent with the next one, in the tail average."""
    study = program.study
    if study.tail_from is None or number < study.tail_from:
        return kept
    newest, seen = program.model(study.phase(number), shared, kept.personal), kept.seen + 1
    mean = newest if seen == 1 else jax.tree.map(lambda old, new: old + (new - old) / seen, kept.tail, newest)
    return replace(kept, tail=mean, seen=seen)


def with_round(kept: Kept, personal: Tree, meter: Meter) -> Kept:
    """After a round of the silo's own."""
    uses = {kind: int(count) for kind, count in meter.uses.items()}
    return replace(kept, personal=personal, uses=uses, draws=int(meter.draws))

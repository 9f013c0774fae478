"""Independent pieces of work: one after another here, or side by side on Ray, with the same results.

A piece is done by a plain function of what all pieces have in common and of the piece itself; it gives plain values,
and arrays by name, so that what is finished can be kept on disk and is not computed again. A piece that fails does not
stop the others. Simulations only: Ray does a piece again when a process is killed, and a release that is done twice has
drawn its noise twice.

>>> def root(common: float, piece: float) -> Result:
...     return Result(common * piece**0.5)
>>> {name: found.values for name, found in each(root, 10.0, {"four": 4.0, "nine": 9.0}).items()}
{'four': 20.0, 'nine': 30.0}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from kinfolk.files import npz, write_whole
from kinfolk.privacy.release import PrivacyError
from kinfolk.training import on_ray, run_files
from kinfolk.training.experiment import Experiment

VALUES = "values"
"""The array that has a result's plain values, as JSON, in the file that keeps it."""


class Result(NamedTuple):
    """What a piece of work gives."""

    values: Any
    """Plain values: what JSON holds."""
    arrays: Mapping[str, np.ndarray] = {}
    """By name; none of them is called `values`."""


Common = TypeVar("Common")
Piece = TypeVar("Piece")
Work = Callable[[Common, Piece], Result]
Told = Callable[[str, Result | Exception], None]
"""Called with a piece's name and what came of it, as soon as that is known."""


class Each(Protocol):
    """Does all pieces, wherever that is; `each` is one."""

    def __call__(
        self,
        work: Work[Common, Piece],
        common: Common,
        pieces: Mapping[str, Piece],
        *,
        told: Told | None = None,
    ) -> dict[str, Result]:
        """What `work` makes of each of the `pieces`, in their order."""
        ...


def each(
    work: Work[Common, Piece],
    common: Common,
    pieces: Mapping[str, Piece],
    *,
    told: Told | None = None,
    on: str | None = None,
    kept: Path | None = None,
) -> dict[str, Result]:
    """What `work` makes of each piece, by name and in their order; the first error, once all others are done.

    `work`: a function that can be imported, of `common` and a piece. `common`: what all pieces need, data for instance,
    which is sent once. `pieces`: by name. `told`: is told of every piece when it is done. `on`: None for here, `ray`
    for a Ray of this machine, or HOST:PORT of a cluster. `kept`: a folder in which results are kept as they come, and
    where those that are there already are taken from; None: none are.
    """
    names = list(pieces)
    found = {} if kept is None else {name: _read(path) for name, path in _files(kept, names) if path.exists()}
    for name, result in found.items():
        _tell(told, name, result)
    left = {name: piece for name, piece in pieces.items() if name not in found}
    outcomes = on_ray.outcomes(work, common, left, on) if on and left else _here(work, common, left)
    failed: dict[str, Exception] = {}
    for name, outcome in outcomes:
        if isinstance(outcome, Exception):
            failed[name] = outcome
        else:
            outcome = found[name] = Result(json.loads(json.dumps(outcome.values)), outcome.arrays)
            if kept is not None:
                _write(dict(_files(kept, names))[name], outcome)
        _tell(told, name, outcome)
    for name in filter(failed.__contains__, names):
        others = "".join(f" {n} failed too: {e}." for n, e in failed.items() if str(e) != str(failed[name]))
        if found or others:
            failed[name].add_note(f"That was {name}; {len(found)} of {len(names)} pieces are done.{others}")
        raise failed[name]
    return {name: found[name] for name in names}


def require_simulation(experiment: Experiment) -> None:
    """Refuses a release as a piece of work.

    `experiment`: what the piece is.
    """
    if experiment.seed is None:
        raise PrivacyError(
            "seed=None makes a release, and pieces of work are simulations: a piece is done again where a process is "
            "killed, so that noise would be drawn twice for one charge. Give a seed, or release it with `kinfolk train`"
        )


def _here(work: Work[Common, Piece], common: Common, pieces: Mapping[str, Piece]) -> Iterator[tuple[str, Any]]:
    for name, piece in pieces.items():
        try:
            yield name, work(common, piece)
        except Exception as error:
            yield name, error


def _tell(told: Told | None, name: str, outcome: Result | Exception) -> None:
    if told is not None:
        told(name, outcome)


def _files(folder: Path, names: list[str]) -> Iterator[tuple[str, Path]]:
    """Where each result is kept; names may hold what file names may not."""
    return ((name, folder / f"{number}.npz") for number, name in enumerate(names))


def _write(path: Path, result: Result) -> None:
    write_whole(path, npz({VALUES: np.array(json.dumps(result.values)), **result.arrays}, compressed=False))


def _read(path: Path) -> Result:
    arrays = run_files.read_arrays(path)
    return Result(json.loads(str(arrays.pop(VALUES))), arrays)

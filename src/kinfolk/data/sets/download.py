"""Where built-in data sets come from: a directory the user names, the cache of an earlier download, their home, or
files that the user fetched by hand."""

from __future__ import annotations

import hashlib
import http.client
import math
import os
import shutil
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kinfolk.data.federation import DataError
from kinfolk.files import npz, write_whole

Arrays = dict[str, np.ndarray]
CONTENT = ("x", "indices", "indptr", "event", "time", "y", "labels", "label_starts", "client")
"""The arrays that a checksum covers, in this order."""
PER_ROW = ("x", "event", "time", "y", "client", "is_test")
"""The arrays that have one entry per row, where rows are not sparse."""
STARTS = ("indptr", "label_starts")
"""Where each row begins in those that have several per row, and where the last ends."""


@dataclass(frozen=True)
class File:
    """A file of a data set, as it is published."""

    name: str
    """What it is called."""
    url: str = ""
    """Where it can be downloaded; empty: by hand only."""
    digest: str = ""
    """`sha256:...` or `md5:...`, where its publisher or others state it."""


@dataclass(frozen=True)
class Source:
    """A data set's origin, and how its files become arrays."""

    name: str
    """`NAME.npz` is what is kept."""
    title: str
    """What it is, in one line: what is predicted, and what makes a client."""
    home: str
    """The page to read."""
    licence: str
    """Its terms."""
    files: tuple[File, ...]
    """As published; all of them are needed."""
    convert: Callable[[Sequence[Path]], Arrays]
    """From these files to rows of all clients one after another: `x`, `y`, `client`, and what else there is."""
    checksum: str = ""
    """Of the arrays, where it is known."""
    needs: tuple[str, ...] = ("x", "y", "client")
    """The arrays without which it cannot be used."""
    called: str = ""
    """Its name in `kinfolk data list`, where that is not the file's."""
    others: tuple[str, ...] = ()
    """Files of other names with the same arrays (a part, other features) that are read where this one is not there."""
    by_hand: str = ""
    """What to fetch, where there is no direct download, or what else can be converted."""

    @property
    def command(self) -> str:
        """What gets it."""
        return f"kinfolk data get {self.called or self.name}"

    @property
    def remedy(self) -> str:
        """What to do where it cannot be downloaded."""
        hand = self.by_hand or f"fetch {', '.join(file.name for file in self.files)} from {self.home}"
        return (
            f"{hand}; then `{self.command} --from FILE...`, or set KINFOLK_DATA (or --data-dir) to a directory with "
            f"{self.name}.npz"
        )


def folder(directory: str | Path | None = None) -> Path:
    """Where files of built-in sets are kept: as said, as KINFOLK_DATA says, or the user's cache."""
    named = directory or os.environ.get("KINFOLK_DATA")
    return Path(named) if named else Path.home() / ".cache" / "kinfolk"


def kept(source: Source, directory: str | Path | None = None) -> Path | None:
    """The file with a set's arrays, if it is there."""
    places = (folder(directory) / f"{name}.npz" for name in (source.name, *source.others))
    return next((path for path in places if path.exists()), None)


def load_arrays(source: Source, directory: str | Path | None = None) -> Arrays:
    """The arrays of a data set: rows of all clients one after another.

    Read from `NAME.npz` in `directory`, or the one that KINFOLK_DATA names; without either, from the user's cache,
    after a download from the data set's home.
    """
    path = kept(source, directory)
    if path is None:
        if directory or os.environ.get("KINFOLK_DATA"):
            names = " or ".join(f"{name}.npz" for name in (source.name, *source.others))
            raise DataError(
                f"{names} is not in {folder(directory)}: set KINFOLK_DATA (or --data-dir) to where it is, or "
                f"`{source.command}`"
            )
        return obtain(source)[0]
    return _read(source, path)


def _read(source: Source, path: Path) -> Arrays:
    """The arrays of a file that was kept."""
    arrays: Arrays = {}
    try:
        with path.open("rb") as content, np.load(content, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        flaw = _flaw(source, arrays)
    except PermissionError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): give this user the right to") from error
    except Exception as error:  # numpy, zipfile and zlib have many words for a broken file
        flaw = str(error) or type(error).__name__
    if flaw:
        raise DataError(f"{path} is broken ({flaw}): remove it and run `{source.command}`")
    return arrays


def _flaw(source: Source, arrays: Arrays) -> str:
    """Why arrays cannot be the set's, if so: one is missing, they have no rows, or not equally many."""
    if missing := [name for name in source.needs if name not in arrays]:
        return f"it has no array {' and '.join(missing)}"
    per_row = [name for name in PER_ROW if name in arrays and not (name == "x" and "indptr" in arrays)]
    rows = {name: arrays[name].shape[:1] for name in per_row}
    rows |= {name: (len(arrays[name]) - 1,) for name in STARTS if name in arrays}
    if len(set(rows.values())) > 1:
        return "its arrays have " + ", ".join(f"{math.prod(count)} rows of {name}" for name, count in rows.items())
    return "" if math.prod(next(iter(rows.values()))) else "it has no rows"


def obtain(
    source: Source, directory: str | Path | None = None, files: Sequence[Path] = ()
) -> tuple[Arrays, Path | None]:
    """The arrays, converted from files that are there or else downloaded, and where they are kept, if they are.

    Nothing is kept of files that ended early, have changed or cannot be read, nor of the files themselves. Files given
    by hand are held to the same digests (by their names) and checksum as a download: what a set is called by must be
    the same rows everywhere.
    """
    with tempfile.TemporaryDirectory(prefix=f"kinfolk-{source.name}-") as temporary:
        for path in files:
            _check_given(source, Path(path))
        found = [Path(path) for path in files] or [_download(source, file, Path(temporary)) for file in source.files]
        arrays = _converted(source, found)
    if source.checksum and (sum_found := content_checksum(arrays)) != source.checksum:
        sums = f"checksum {sum_found[:12]}, expected {source.checksum[:12]}"
        if not files:
            raise DataError(f"{source.files[0].url} has changed ({sums}): it was not used; {source.remedy}")
        raise DataError(
            f"{_names(found)}: these rows are not those of {source.name} as it is published ({sums}), so a file is "
            f"another version, was changed or is not whole, and nothing was kept: {source.remedy}; rows of your own "
            "are for from_rows, or tables"
        )
    return arrays, _keep(folder(directory) / f"{source.name}.npz", arrays)


def _converted(source: Source, files: Sequence[Path]) -> Arrays:
    """The arrays that files hold, if they hold them all."""
    try:
        arrays = source.convert(files)
        flaw = _flaw(source, arrays)
    except DataError as error:
        raise DataError(f"{error}; nothing was kept") from error
    except Exception as error:  # every format's reader has words of its own for a file that is broken or another's
        flaw = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise DataError(f"{_names(files)} cannot be read as {source.name} ({flaw}): {source.remedy}") from error
    if flaw:
        raise DataError(f"{_names(files)} cannot be read as {source.name} ({flaw}): {source.remedy}")
    return arrays


def _names(files: Sequence[Path]) -> str:
    return ", ".join(path.name for path in files)


def content_checksum(arrays: Arrays) -> str:
    """SHA-256 of the rows, targets and client numbers."""
    digest = hashlib.sha256()
    for name in CONTENT:
        if name in arrays:
            digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def _download(source: Source, file: File, into: Path) -> Path:
    """One file, whole and as published."""
    if not file.url:
        raise DataError(f"{file.name} of data set {source.name!r} has no direct download: {source.remedy}")
    path = into / file.name
    try:
        with urllib.request.urlopen(file.url, timeout=60) as answer, path.open("wb") as content:
            shutil.copyfileobj(answer, content, 1 << 20)
            length = answer.headers.get("Content-Length")
    except (OSError, http.client.HTTPException) as error:
        raise DataError(
            f"data set {source.name!r} could not be downloaded from {file.url} ({error}): {source.remedy}"
        ) from error
    if length is not None and (size := path.stat().st_size) != int(length):
        raise DataError(
            f"the download of {file.url} ended after {size} of {length} bytes, and nothing of it was kept: try again, "
            f"or {source.remedy}"
        )
    if other := _other_digest(file, path):
        raise DataError(f"{file.url} has changed ({other}): it was not used; compare it with what its home states")
    return path


def _check_given(source: Source, path: Path) -> None:
    """Refuses a file that has a published one's name and other content."""
    for file in source.files:
        if file.name == path.name and path.is_file() and (other := _other_digest(file, path)):
            raise DataError(
                f"{path} is not the published {file.name} ({other}), and nothing was kept: it is another version, was "
                f"changed or is not whole; {source.remedy}"
            )


def _other_digest(file: File, path: Path) -> str:
    """Found and expected digest, where one is stated and differs."""
    kind, _, expected = file.digest.partition(":")
    if not expected:
        return ""
    with path.open("rb") as content:
        found = hashlib.file_digest(content, kind).hexdigest()
    return "" if found == expected else f"{kind} {found[:12]}, expected {expected[:12]}"


def _keep(path: Path, arrays: Arrays) -> Path | None:
    """Writes the cache whole or not at all; a cache that cannot be written is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, npz(arrays))
    except OSError:
        return None
    return path

"""Where built-in data sets come from: a directory the user names, the cache of an earlier download, their home, or
files that the user fetched by hand."""

from __future__ import annotations

import hashlib
import http.client
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
    others: tuple[str, ...] = ()
    """Files of other names with the same arrays (a part, other features) that are read where this one is not there."""
    by_hand: str = ""
    """What to fetch, where there is no direct download, or what else can be converted."""

    @property
    def remedy(self) -> str:
        """What to do where it cannot be downloaded."""
        hand = self.by_hand or f"fetch {', '.join(file.name for file in self.files)} from {self.home}"
        return (
            f"{hand}; then `kinfolk data get {self.name} --from FILE...`, or set KINFOLK_DATA (or --data-dir) to a "
            f"directory with {self.name}.npz"
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
                f"`kinfolk data get {source.name}`"
            )
        return obtain(source)[0]
    with np.load(path, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def obtain(
    source: Source, directory: str | Path | None = None, files: Sequence[Path] = ()
) -> tuple[Arrays, Path | None]:
    """The arrays, converted from files that are there or else downloaded, and where they are kept, if they are.

    Nothing is kept of a download that ended early, has changed or cannot be read, nor of the files themselves.
    """
    with tempfile.TemporaryDirectory(prefix=f"kinfolk-{source.name}-") as temporary:
        found = [Path(path) for path in files] or [_download(source, file, Path(temporary)) for file in source.files]
        try:
            arrays = source.convert(found)
        except DataError:
            raise
        except (ValueError, KeyError, IndexError, OSError, EOFError) as error:
            names = ", ".join(path.name for path in found)
            raise DataError(f"{names} cannot be read as {source.name} ({error}): {source.remedy}") from error
    if source.checksum and not files and (sum_found := content_checksum(arrays)) != source.checksum:
        raise DataError(
            f"{source.files[0].url} has changed (checksum {sum_found[:12]}, expected {source.checksum[:12]}): it was "
            f"not used; {source.remedy}"
        )
    return arrays, _keep(folder(directory) / f"{source.name}.npz", arrays)


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
    _check(file, path)
    return path


def _check(file: File, path: Path) -> None:
    if not file.digest:
        return
    kind, _, expected = file.digest.partition(":")
    with path.open("rb") as content:
        found = hashlib.file_digest(content, kind).hexdigest()
    if found != expected:
        raise DataError(
            f"{file.url} has changed ({kind} {found[:12]}, expected {expected[:12]}): it was not used; compare it with "
            "what its home states"
        )


def _keep(path: Path, arrays: Arrays) -> Path | None:
    """Writes the cache whole or not at all; a cache that cannot be written is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, npz(arrays))
    except OSError:
        return None
    return path

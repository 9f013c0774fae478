"""Where built-in data sets come from: a directory the user names, the cache of an earlier download, or their home."""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from kinfolk.data.federation import DataError
from kinfolk.files import npz, write_whole

Arrays = dict[str, np.ndarray]


def load_arrays(
    name: str, urls: Sequence[str], convert: Callable[..., Arrays], checksum: str, directory: str | Path | None = None
) -> Arrays:
    """The arrays `x`, `y` and `client` of a data set: rows of all clients one after another.

    Read from `NAME.npz` in `directory`, or the one that KINFOLK_DATA names; without either, from the user's cache,
    after a download from the data set's home: `convert` gets the content of each file. A download is used only if its
    arrays have the expected checksum.
    """
    named = directory or os.environ.get("KINFOLK_DATA")
    path = (Path(named) if named else Path.home() / ".cache" / "kinfolk") / f"{name}.npz"
    if not path.exists():
        if named:
            raise DataError(f"{path.name} is not in {path.parent}: set KINFOLK_DATA (or --data-dir) to where it is")
        arrays = convert(*(_download(name, url) for url in urls))
        if (found := content_checksum(arrays)) != checksum:
            raise DataError(f"{urls[0]} has changed (checksum {found[:12]}, expected {checksum[:12]}): it was not used")
        _keep(path, arrays)
        return arrays
    with np.load(path, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def content_checksum(arrays: Arrays) -> str:
    """SHA-256 of the rows, targets and client numbers."""
    digest = hashlib.sha256()
    for name in ("x", "y", "client"):
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def _download(name: str, url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.read()
    except (urllib.error.URLError, OSError) as error:
        raise DataError(
            f"data set {name!r} could not be downloaded from {url} ({error}): fetch it by other means and set "
            f"KINFOLK_DATA (or --data-dir) to a directory with {name}.npz"
        ) from error


def _keep(path: Path, arrays: Arrays) -> None:
    """Writes the cache whole or not at all; a cache that cannot be written is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, npz(arrays))
    except OSError:
        return

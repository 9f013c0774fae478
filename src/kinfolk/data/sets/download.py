"""Getting built-in data sets: from a directory the user names, the cache of an earlier download, their home, or files
that the user fetched by hand."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import os
import shutil
import signal
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from kinfolk.data.given_rows import DataError
from kinfolk.data.sets.source import Arrays, File, Source, content_checksum, flaw
from kinfolk.files import npz, write_whole

OWN_ROWS = "rows of your own are for from_rows, or tables"


def folder(directory: str | Path | None = None) -> Path:
    """Where files of built-in sets are kept: as said, as KINFOLK_DATA says, or the user's cache."""
    named = directory or os.environ.get("KINFOLK_DATA")
    return Path(os.path.expanduser(named)) if named else Path.home() / ".cache" / "kinfolk"


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
    if path is not None:
        arrays = read_kept(source, path, directory)
        if path.stem == source.name and (sums := other_checksum(source, arrays)):
            raise DataError(
                f"{path} holds other rows than {source.name} as it is published ({sums}): remove it and run "
                f"`{source.command(directory)}`; {OWN_ROWS}"
            )
        return arrays
    if directory or os.environ.get("KINFOLK_DATA"):
        names = " or ".join(f"{name}.npz" for name in (source.name, *source.others))
        raise DataError(
            f"{names} is not in {folder(directory)}: set KINFOLK_DATA (or --data-dir) to where it is, or "
            f"`{source.command(directory)}`"
        )
    with _stopped_by_signals():
        arrays = _published(source, None)
        with contextlib.suppress(OSError):  # they can be used all the same
            _keep(folder() / f"{source.name}.npz", arrays)
    return arrays


def read_kept(source: Source, path: Path, directory: str | Path | None = None) -> Arrays:
    """The arrays of a file that was kept, if it is whole and they can be the set's; `directory`: where it was named."""
    arrays: Arrays = {}
    try:
        with path.open("rb") as content, np.load(content, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        words = flaw(source, arrays, another=path.stem != source.name)
    except PermissionError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): give this user the right to") from error
    except Exception as error:  # numpy, zipfile and zlib have many words for a broken file
        words = str(error) or type(error).__name__
    if words:
        raise DataError(f"{path} is broken ({words}): remove it and run `{source.command(directory)}`")
    return arrays


def other_checksum(source: Source, arrays: Arrays) -> str:
    """Found and expected checksum of arrays, where one is known and differs."""
    found = content_checksum(arrays) if source.checksum else ""
    return "" if found == source.checksum else f"checksum {found[:12]}, expected {source.checksum[:12]}"


def obtain(source: Source, directory: str | Path | None = None, files: Sequence[Path] = ()) -> tuple[Arrays, Path]:
    """The arrays, converted from files that are there or else downloaded, and where they are kept.

    Nothing is kept of files that ended early, have changed or cannot be read, nor of the files themselves. Files given
    by hand are held to the same digests (by their names) and checksum as a download: what a set is called by must be
    the same rows everywhere. A file that is kept already is never replaced.
    """
    path = folder(directory) / f"{source.name}.npz"
    there = load_arrays(source, directory) if path.is_file() else None
    if there is not None and not files:
        return there, path
    with _stopped_by_signals():
        arrays = _published(source, directory, files)
        if there is not None:
            if content_checksum(there) != content_checksum(arrays):
                raise DataError(f"{path} is there already, with other rows: remove it first to keep these")
            return there, path
        try:
            _keep(path, arrays)
        except OSError as error:
            raise DataError(
                f"{path} cannot be written ({error.strerror or error}), and nothing was kept: make room or give this "
                "user the right to, or name another directory with --data-dir"
            ) from error
    return arrays, path


def _published(source: Source, directory: str | Path | None, files: Sequence[Path] = ()) -> Arrays:
    """The arrays as they are published, from these files or else a download."""
    remedy = source.remedy(directory)
    with tempfile.TemporaryDirectory(prefix=f"kinfolk-{source.name}-") as temporary:
        found = _given(source, files, remedy)
        for path in found:
            _check_given(source, path, remedy)
        found = found or [_download(source, file, Path(temporary), remedy) for file in source.files]
        arrays = _converted(source, found, remedy)
    if sums := other_checksum(source, arrays):
        if not files:
            raise DataError(f"{source.files[0].url} has changed ({sums}): it was not used; {remedy}")
        raise DataError(
            f"{_names(found)}: these rows are not those of {source.name} as it is published ({sums}), so a file is "
            f"another version, was changed or is not whole, and nothing was kept: {remedy}; {OWN_ROWS}"
        )
    return arrays


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end what is begun as an exception does, so that nothing half done is left behind."""
    before = {}
    if threading.current_thread() is threading.main_thread():  # no other may say what a signal does
        numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
        before = {number: signal.getsignal(number) for number in numbers}
        for number in [number for number in numbers if before[number] is signal.SIG_DFL]:
            signal.signal(number, _stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is signal.SIG_DFL:
                signal.signal(number, handler)


def _stop(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _given(source: Source, paths: Sequence[Path], remedy: str) -> list[Path]:
    """The files given by hand; of a folder those with the set's names, or else itself, if the set reads folders."""
    found = []
    for path in map(Path, paths):
        found += _inside(source, path, remedy) if path.is_dir() else [path]
    if len(source.files) == 1 < len(found) and not source.reads_folders:
        raise DataError(f"{_names(found)}: {len(found)} files were given, and {source.name} is one: give one of them")
    return found


def _inside(source: Source, path: Path, remedy: str) -> list[Path]:
    """The set's files in a folder, or in those in it: of each name the first; one alone where the set is one file."""
    there: dict[str, Path] = {}
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        there.setdefault(file.name, file)
    published = [file.name for file in source.files]
    names = [*published, *(name.removesuffix(".gz") for name in published if name.endswith(".gz")), *source.also]
    found = [there[name] for name in names if name in there]
    if not found and source.reads_folders:
        return [path]
    if not found:
        raise DataError(f"{path} has none of {', '.join(names)}, and nothing was kept: {remedy}")
    return found[:1] if len(published) == 1 else found


def _converted(source: Source, files: Sequence[Path], remedy: str) -> Arrays:
    """The arrays that files hold, if they hold them all."""
    try:
        arrays = source.convert(files)
        words = flaw(source, arrays)
    except DataError as error:
        raise DataError(f"{error}; nothing was kept") from error
    except Exception as error:  # every format's reader has words of its own for a file that is broken or another's
        _require_room(error)
        words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise DataError(f"{_names(files)} cannot be read as {source.name} ({words}): {remedy}") from error
    if words:
        raise DataError(f"{_names(files)} cannot be read as {source.name} ({words}): {remedy}")
    return arrays


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _require_room(error: Exception) -> None:
    """Says so where the disk for what is unpacked and read was full."""
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        raise DataError(
            f"there is no room in {tempfile.gettempdir()} ({error.strerror}), where files are put until they are read: "
            "make room, or set TMPDIR to another place; nothing was kept"
        ) from error


def _names(files: Sequence[Path]) -> str:
    return ", ".join(path.name for path in files)


def _download(source: Source, file: File, into: Path, remedy: str) -> Path:
    """One file, whole and as published."""
    if not file.url:
        raise DataError(f"{file.name} of data set {source.name!r} has no direct download: {remedy}")
    path = into / file.name
    try:
        with urllib.request.urlopen(file.url, timeout=60) as answer, path.open("wb") as content:
            shutil.copyfileobj(answer, content, 1 << 20)
            length = answer.headers.get("Content-Length")
    except (OSError, http.client.HTTPException) as error:
        _require_room(error)
        raise DataError(
            f"data set {source.name!r} could not be downloaded from {file.url} ({error}): {remedy}"
        ) from error
    if length is not None and not length.strip().isdecimal():
        raise DataError(f"{file.url} answered with Content-Length={length!r}, which is no number of bytes: {remedy}")
    if length is not None and (size := path.stat().st_size) != int(length):
        raise DataError(
            f"the download of {file.url} ended after {size} of {length} bytes, and nothing of it was kept: try again, "
            f"or {remedy}"
        )
    if _is_page(path):
        raise DataError(f"{file.url} answered with a web page in place of {file.name}, and nothing was kept: {remedy}")
    if other := _other_digest(file, path):
        raise DataError(f"{file.url} has changed ({other}): it was not used; compare it with what its home states")
    return path


def _check_given(source: Source, path: Path, remedy: str) -> None:
    """Refuses a web page that was saved, and a file that has a published one's name and other content."""
    if path.is_file() and _is_page(path):
        raise DataError(f"{path} is a web page, not {source.name}, and nothing was kept: {remedy}")
    for file in source.files:
        if file.name == path.name and path.is_file() and (other := _other_digest(file, path)):
            raise DataError(
                f"{path} is not the published {file.name} ({other}), and nothing was kept: it is another version, was "
                f"changed or is not whole; {remedy}"
            )


def _is_page(path: Path) -> bool:
    """Whether a file is HTML, as servers send it that ask for something first."""
    with path.open("rb") as content:
        return content.read(512).lstrip().lower().startswith((b"<!doctype html", b"<html"))


def _other_digest(file: File, path: Path) -> str:
    """Found and expected digest, where one is stated and differs."""
    kind, _, expected = file.digest.partition(":")
    if not expected:
        return ""
    with path.open("rb") as content:
        found = hashlib.file_digest(content, kind).hexdigest()
    return "" if found == expected else f"{kind} {found[:12]}, expected {expected[:12]}"


def _keep(path: Path, arrays: Arrays) -> None:
    """Writes the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, npz(arrays), for_all=True)

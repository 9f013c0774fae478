"""Files of run directories, read: whole and of the right form, or one message that names the file and what to do."""

from __future__ import annotations

import json
import types
import typing
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, NotRequired

import numpy as np

from kinfolk.toml import shown

Json = Any
"""What JSON holds."""
Form = Any
"""A type made of `TypedDict`, lists, dicts, unions and plain types."""
REMEDY = "restore the file from a copy, or train again"


class RunError(RuntimeError):
    """A run directory that cannot be written or read."""


def damaged(path: Path, why: object) -> RunError:
    """The error about a file that is not as it was written.

    `path`: the file. `why`: what is wrong with it.
    """
    return RunError(f"{path} is damaged ({why}): {REMEDY}")


def read_text(path: Path) -> str:
    """A text file.

    `path`: the file.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RunError(f"{path} is not there: {REMEDY}") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise damaged(path, f"byte {error.start} is no UTF-8") from None


def read_json(path: Path, kind: Form, optional: Collection[str] = ()) -> Json:
    """A JSON file of this form.

    `path`: the file. `kind`: a `TypedDict`, or a list of such, that says what it holds. `optional`: keys that it may
    lack, besides those that are not required.
    """
    return _formed(path, read_text(path), kind, optional=optional)


def read_json_lines(path: Path, kind: Form, optional: Collection[str] = ()) -> list[Json]:
    """A file with one JSON record a line; none, where it is not there.

    `path`: the file. `kind`: a `TypedDict` that says what a record holds. `optional`: keys that it may lack.
    """
    if not path.exists():
        return []
    lines = enumerate(read_text(path).splitlines(), 1)
    return [_formed(path, line, kind, f"line {n}: ", optional) for n, line in lines]


def _formed(path: Path, text: str, kind: Form, where: str = "", optional: Collection[str] = ()) -> Json:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"{where}{error}") from None
    wrong = misfit(value, kind, optional=optional)
    if wrong:
        raise damaged(path, where + wrong)
    return value


def misfit(value: Json, kind: Form, name: str = "", optional: Collection[str] = ()) -> str:
    """What of a value is not as a type says, in words; empty where it fits.

    `value`: plain values, as JSON has them. `kind`: a type made of `TypedDict`, lists, dicts, unions and plain types.
    `name`: of the value, for messages. `optional`: keys that it may lack.

    >>> misfit({"a": [1, "b"]}, dict[str, list[int]])
    "a[1]='b' should be a int"
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind in (Any, object):
        return ""
    if origin is NotRequired:
        return misfit(value, inner[0], name)
    if origin in (typing.Union, types.UnionType):
        return min((misfit(value, one, name) for one in inner), key=len)
    if typing.is_typeddict(kind):
        if not isinstance(value, dict):
            return f"{name or 'it'} should be a record, and is {shown(value)}"
        hints = typing.get_type_hints(kind, include_extras=True)
        needed = [key for key in hints if typing.get_origin(hints[key]) is not NotRequired and key not in optional]
        lacking = [key for key in needed if key not in value]
        if lacking:
            return f"{_dotted(name, lacking[0])} is missing"
        found = (misfit(value[key], hints[key], _dotted(name, key)) for key in hints if key in value)
        return next(filter(None, found), "")
    if origin in (list, tuple):
        if not isinstance(value, list):
            return f"{name or 'it'} should be a list, and is {shown(value)}"
        return next(filter(None, (misfit(one, inner[0], f"{name}[{n}]") for n, one in enumerate(value))), "")
    if origin is dict:
        if not isinstance(value, dict):
            return f"{name or 'it'} should be a record, and is {shown(value)}"
        return next(filter(None, (misfit(one, inner[1], _dotted(name, key)) for key, one in value.items())), "")
    kinds = (int, float) if kind is float else (type(None),) if kind is type(None) else (kind,)
    if isinstance(value, kinds) and (kind is bool or not isinstance(value, bool)):
        return ""
    return f"{name}={shown(value)} should be a {getattr(kind, '__name__', kind)}"


def _dotted(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def read_arrays(path: Path, only: str | None = None) -> dict[str, np.ndarray]:
    """The arrays of an npz file.

    `path`: the file. `only`: the name of the one that is wanted; None: all of them.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files if only in (None, name)}
    except FileNotFoundError:
        raise RunError(f"{path} is not there: {REMEDY}") from None
    except (OSError, ValueError, EOFError, KeyError, AttributeError, NotImplementedError) as error:
        raise damaged(path, error or "it is empty") from None
    except (zipfile.BadZipFile, zlib.error) as error:
        raise damaged(path, error) from None

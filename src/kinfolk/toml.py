"""Dataclasses as TOML text and back: the dataclass is the only schema there is."""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
import types
import typing
from enum import StrEnum
from typing import Any, TypeVar

Kind = TypeVar("Kind")
LONGEST_TEXT = 2000
"""Characters of a word in a file of settings: longer ones are a mistake, and no message repeats them."""


class ConfigError(ValueError):
    """A configuration that cannot be used, with the nearest one that can."""


def from_toml(text: str, kind: type[Kind]) -> Kind:
    """The dataclass of this kind that a TOML text describes.

    An unknown key is an error that names the nearest valid one; a field that was renamed says in its metadata what it
    `was` called, which is still read.

    `text`: the TOML. `kind`: a dataclass.
    """
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not valid TOML: {error}") from None
    return _build(kind, values, "")


def _build(kind: type, value: object, where: str) -> Any:
    """`value` from TOML as the type `kind`."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (kind,) = (a for a in arguments if a is not type(None))
        return _build(kind, value, where)
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise ConfigError(f"{where} should be a table, but is {shown(value)}")
        hints = typing.get_type_hints(kind)
        known = dataclasses.fields(kind)
        renamed: dict[str, str] = {one.metadata["was"]: one.name for one in known if "was" in one.metadata}
        for before, now in renamed.items():
            if before in value and now in value:
                raise ConfigError(f"{_dotted(where, before)!r} is now {_dotted(where, now)!r}: give one of them")
        given: dict[str, Any] = {renamed.get(str(key), str(key)): item for key, item in value.items()}
        for key in given:
            if key not in hints:
                near = difflib.get_close_matches(key, hints, 1, 0.0)
                raise ConfigError(f"unknown key {_dotted(where, key)!r}; did you mean {_dotted(where, near[0])!r}?")
        needed = [
            field.name
            for field in dataclasses.fields(kind)
            if field.default is field.default_factory is dataclasses.MISSING and field.name not in given
        ]
        if needed:
            raise ConfigError(f"missing key {_dotted(where, needed[0])!r}: it has no default, so give it")
        nothing = {field.name: field.metadata.get("none") for field in dataclasses.fields(kind)}
        built = {
            key: None
            if nothing[key] is not None and (type(item), item) == (type(nothing[key]), nothing[key])
            else _build(hints[key], item, _dotted(where, key))
            for key, item in given.items()
        }
        try:
            return kind(**built)  # type: ignore[operator]
        except ValueError as error:
            raise ConfigError(f"{where}: {error}" if where else str(error)) from None
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{where}={shown(value)} should be a list")
        return tuple(_build(arguments[0], item, f"{where}[{n}]") for n, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise ConfigError(f"{where} should be a table, but is {shown(value)}")
        return {key: _build(arguments[1], item, _dotted(where, key)) for key, item in value.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(
                f"{where} is a number of {value.bit_length()} bits: write one that a float holds"
            ) from None
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        raise ConfigError(f"{where}={shown(value)} must have at most {LONGEST_TEXT} characters")
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return value  # the dataclass says which words there are
    if kind not in (object, Any) and type(value) is not kind:
        raise ConfigError(f"{where}={shown(value)} should be a {kind.__name__}")
    return value


def _dotted(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def to_toml(record: object) -> str:
    """A dataclass as TOML, every value written out except those that are None.

    `record`: the dataclass's instance. A field whose default is not None says in its metadata (`none`) what stands for
    None: to leave it out would mean the default.
    """
    return "\n".join(_tables(record, "")) + "\n"


def _tables(value: object, name: str) -> list[str]:
    """A dataclass or dict as TOML lines: plain values first, then one table per nested value."""
    items = _items(value)
    plain, nested = [], []
    for key, item in items.items():
        path = _dotted(name, _key(key))
        if item is None or (item == {} and _is_record(value)):  # what a mapping says is kept: a name may be all
            continue
        if _is_record(item) or isinstance(item, dict):
            nested += ["", f"[{path}]", *_tables(item, path)]
        elif isinstance(item, tuple) and item and _is_record(item[0]):
            for one in item:
                nested += ["", f"[[{path}]]", *_tables(one, path)]
        else:
            plain.append(f"{_key(key)} = {_scalar(item)}")
    return plain + nested


def _items(value: object) -> dict[str, object]:
    if isinstance(value, dict):
        return value
    assert dataclasses.is_dataclass(value)
    return {f.name: _written(value, f) for f in dataclasses.fields(value)}


def _written(record: object, field: dataclasses.Field[object]) -> object:
    found = getattr(record, field.name)
    return field.metadata.get("none") if found is None else found


def _is_record(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)


def _scalar(value: object) -> str:
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(value)  # TOML reads inf and nan too
    return json.dumps(value)


def shown(value: object) -> str:
    """A value as errors show it: not whole, if it is long.

    `value`: what a user wrote.
    """
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        return "(thousands of digits)"
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} characters)"

"""Which federation an experiment works on: a built-in set, one of one's own by name or reference, or tables."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from importlib import import_module
from typing import Any

from kinfolk.data.choice import DataChoice
from kinfolk.data.federation import DataError, Federation, pooled
from kinfolk.data.identity import label
from kinfolk.data.sets.catalogue import BUILT_IN
from kinfolk.data.tables.encode import load_tables
from kinfolk.toml import shown

Load = Callable[..., Federation]

OPTIONS = ("seed", "test_fraction", "scaling", "directory")
"""What a function that loads data may ask for, by the names of its parameters."""

_REGISTERED: dict[str, Load] = {}


def register_dataset(name: str, load: Load) -> None:
    """Gives data of one's own a name, by which experiments and the command line find them in this process.

    `name`: not one that is taken, and without a colon. `load`: returns the `Federation`; it is called with those of
    `seed`, `test_fraction`, `scaling` and `directory` that are among its parameters, and all others need defaults, of
    which `DataChoice.options` may be others.

    A run records a function that can be imported as `package.module:function`, so that `resume` finds it in another
    process; such a reference is itself a name for data, and needs no registration.
    """
    if not name or ":" in name:
        raise DataError(
            f"name={name!r} must be a word without a colon: 'package.module:function' needs no registration"
        )
    if name in BUILT_IN or name in _REGISTERED:
        kind = "built in" if name in BUILT_IN else "registered already"
        raise DataError(f"name={name!r} is {kind}: choose another, or give the federation itself, run(..., data=)")
    _wanted(name, load)
    _REGISTERED[name] = load


def load_data(choice: DataChoice, seed: int) -> Federation:
    """A built-in data set, one of the user's own, or tables; split by `seed`.

    `choice`: which, in the words of an experiment.
    """
    if choice.files and choice.options:
        raise DataError(
            f"data.options={choice.options!r} belong to a set's function, and tables have none: leave it out"
        )
    if choice.files:
        return load_tables(choice, seed)
    if choice.given:
        raise DataError(f"data={choice.name!r} was given as an object: give it again, as data= of run or resume")
    load = _function(choice.name)
    options = {"seed": seed, **{name: getattr(choice, name) for name in OPTIONS if name != "seed"}}
    wanted = _wanted(choice.name, load)
    for name in ("test_fraction", "scaling"):
        if name not in wanted and options[name] != getattr(DataChoice, name):
            raise DataError(f"{name}={options[name]!r} changes nothing in data={choice.name!r}: leave it out")
    federation = load(**{name: options[name] for name in wanted}, **_own_options(choice, load))
    if not isinstance(federation, Federation):
        raise DataError(
            f"data={choice.name!r} returned a {type(federation).__name__}: return a Federation, as from_rows makes one"
        )
    if not federation.grouping:
        federation = replace(federation, grouping=_grouping(choice))
    return pooled(federation) if choice.pooled else federation


def _grouping(choice: DataChoice) -> str:
    """What makes clients: other options may give a client of the same name other rows.

    Accounts compare groupings up to case and spaces, by which a function may well tell clients apart: then a digest
    tells them apart, too.
    """
    told = {name: json.dumps(value, sort_keys=True, default=repr) for name, value in sorted(choice.options.items())}
    said = f"data set {choice.name}" + "".join(f", {name}={value}" for name, value in told.items())
    if not choice.options and label(said) == said:
        return said
    return f"{said} ({hashlib.sha256(said.encode()).hexdigest()[:16]})"


def _own_options(choice: DataChoice, load: Load) -> dict[str, Any]:
    """What the choice tells the function beside `OPTIONS`, if the function takes it."""
    own = {name: one for name, one in inspect.signature(load).parameters.items() if name not in OPTIONS}
    for name, value in choice.options.items():
        words = f"data.options.{name}={shown(value)}"
        if name in OPTIONS:
            raise DataError(f"{words} has a place of its own: give {'seed' if name == 'seed' else f'data.{name}'}")
        if name not in own:
            near = difflib.get_close_matches(name, own, 1, 0.0)
            remedy = f"did you mean {near[0]!r}?" if near else "it has none: leave it out"
            raise DataError(f"{words}: data={choice.name!r} has no option of that name; {remedy}")
        default = own[name].default
        if default is not None and type(value) is not type(default) and (type(default), type(value)) != (float, int):
            raise DataError(f"{words} must be like its default, {default!r}: give a {type(default).__name__}")
    return choice.options


def recorded(choice: DataChoice) -> DataChoice:
    """The choice as a run writes it down: a registered function, if it can be imported, by its reference."""
    load = _REGISTERED.get(choice.name)
    module, function = getattr(load, "__module__", None), getattr(load, "__qualname__", "")
    if load is None or choice.files or not module or module == "__main__" or "<" in function:
        return choice
    reference = f"{module}:{function}"
    try:
        return replace(choice, name=reference) if _imported(reference) is load else choice
    except DataError:
        return choice


def _function(name: str) -> Load:
    """The function that loads the data of this name."""
    if ":" in name:
        return _imported(name)
    if name in BUILT_IN or name in _REGISTERED:
        return BUILT_IN[name].load if name in BUILT_IN else _REGISTERED[name]
    known = sorted({*BUILT_IN, *_REGISTERED})
    near = [f"did you mean {other!r}? Or " for other in difflib.get_close_matches(name, known, 1)]
    raise DataError(
        f"data={name!r} is not one of {known}: {''.join(near)}register_dataset it in this process, "
        "name a function as 'package.module:function', or give the federation itself, as data= of run or resume"
    )


def _imported(reference: str) -> Load:
    """The function that `package.module:function` names."""
    module, _, function = reference.partition(":")
    try:
        found = reduce(getattr, function.split("."), import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise DataError(
            f"data={reference!r} cannot be imported ({error}): install the module, or add its folder to PYTHONPATH"
        ) from error
    if not callable(found):
        raise DataError(f"data={reference!r} is a {type(found).__name__}: name a function that returns a Federation")
    return found


def _wanted(name: str, load: Load) -> list[str]:
    """The options that a function asks for; refused if it needs anything else."""
    found = inspect.signature(load).parameters.values()
    for parameter in found:
        many = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        by_name = parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        known = by_name and parameter.name in OPTIONS
        if many or not (known or parameter.default is not parameter.empty):
            raise DataError(
                f"data={name!r}: its function takes {str(parameter)!r}, and is given {', '.join(OPTIONS)} only: "
                "name it so, or give it a default"
            )
    return [parameter.name for parameter in found if parameter.name in OPTIONS]

"""What there is to do after training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from kinfolk import limits
from kinfolk.personalize.fine_tune import FineTuneAfterwards
from kinfolk.personalize.self_select import SelfSelect
from kinfolk.types import Afterwards

AFTERWARDS: dict[str, type] = {"fine_tune": FineTuneAfterwards, "self_select": SelfSelect}


def build(method: str, options: Mapping[str, object]) -> Afterwards:
    """The step of that name with these options."""
    if method not in AFTERWARDS:
        raise ValueError(f"afterwards={method!r} is not one of {', '.join(AFTERWARDS)}")
    known = [f.name for f in fields(AFTERWARDS[method])]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"{method} has no option {unknown[0]!r}; it has {', '.join(known)}")
    return AFTERWARDS[method](**check_numbers(method, options))


def check_numbers(method: str, options: Mapping[str, object]) -> dict[str, Any]:
    """The options of a step with their numbers checked; a step or an option that is not there is left to `build`.

    `method`: the step's name. `options`: as given.
    """
    defaults = {f.name: f.default for f in fields(AFTERWARDS[method])} if method in AFTERWARDS else {}

    def of(name: str, value: object) -> object:
        if limits.is_number(defaults.get(name)):
            return limits.checked(name, value, "afterwards")
        return limits.several(name, value) if isinstance(defaults.get(name), tuple) else value

    return {name: of(name, value) for name, value in options.items()}

"""What there is to do after training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

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
    return AFTERWARDS[method](**options)

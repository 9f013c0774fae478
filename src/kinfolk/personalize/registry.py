"""What there is to do after training."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from kinfolk.personalize.fine_tune import FineTuneAfterwards
from kinfolk.personalize.self_select import SelfSelect
from kinfolk.types import Afterwards

AFTERWARDS: dict[str, Any] = {"fine_tune": FineTuneAfterwards, "self_select": SelfSelect}


def build(method: str, options: dict[str, Any]) -> Afterwards:
    """The step of that name with these options."""
    if method not in AFTERWARDS:
        raise ValueError(f"afterwards={method!r} is not one of {', '.join(AFTERWARDS)}")
    known = [f.name for f in fields(AFTERWARDS[method])]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"{method} has no option {unknown[0]!r}; it has {', '.join(known)}")
    return AFTERWARDS[method](**options)

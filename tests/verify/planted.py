"""What files of planted leaks share: how a method is made of a class, and the flow check on a small problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kinfolk import models, trees
from kinfolk.privacy.levels import Level
from kinfolk.types import Model
from kinfolk.verify.registry_check import check_small
from kinfolk.verify.round_check import RoundCheck

FEATURES = 3


def checked(algorithm: Any, level: str, model: Model | None = None) -> RoundCheck:
    """The flow check of a method, by default with a linear model."""
    return check_small(algorithm, Level(level), model or models.linear(FEATURES), FEATURES)


def register(cls: Any) -> Any:
    """A class as a method: a frozen dataclass, and a tree of its numbers."""
    return trees.register(dataclass(frozen=True)(cls))

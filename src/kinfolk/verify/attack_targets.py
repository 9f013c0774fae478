"""Everything that is attacked by `kinfolk attack --all`, named in plain words; a name becomes a problem where it is
attacked, which may be on another machine."""

from __future__ import annotations

from typing import NamedTuple

from kinfolk.algorithms import REGISTRY
from kinfolk.verify.attack import Problem
from kinfolk.verify.attack_problems import MECHANISMS, training_problem


class Target(NamedTuple):
    """What `problem` makes a problem of, in plain words."""

    name: str
    """An algorithm of the registry, or a mechanism."""
    level: str | None = None
    """An algorithm's; None for mechanisms."""
    sampled: bool = False

    @property
    def label(self) -> str:
        """In words."""
        return ", ".join([self.name, *filter(None, [self.level]), *["sampled"] * self.sampled])


def all_targets() -> list[Target]:
    """What `kinfolk attack --all` attacks: every algorithm at every private level, and the sound mechanisms."""
    registry = [
        Target(name, level, sampled)
        for name, entry in REGISTRY.items()
        for level in entry.levels
        if level != "none"
        for sampled in (False, True)
    ]
    mechanisms = [Target(name) for name in MECHANISMS if not name.endswith("as_published")]
    return [*registry, *mechanisms, Target("gaussian_sum", sampled=True)]


def problem(target: Target) -> Problem:
    """A target made concrete, from the strongest view."""
    if target.level is None:
        return MECHANISMS[target.name](**({"sampled": True} if target.sampled else {}))
    algorithm = REGISTRY[target.name].build()
    return training_problem(algorithm, target.level, name=target.name, sampled=target.sampled)

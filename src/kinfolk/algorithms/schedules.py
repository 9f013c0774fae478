"""Numbers that change from round to round, in a way fixed beforehand.

>>> float(at(Schedule(0.1, factor=0.5, every=200), 450))
0.02500000037252903
>>> at(0.1, 450)
0.1
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass, replace

import jax.numpy as jnp

from kinfolk import trees
from kinfolk.types import Algorithm, Value


@trees.register
@dataclass(frozen=True)
class Schedule:
    """`start`, multiplied by `factor` after every `every` rounds."""

    start: Value
    factor: Value = 0.5
    every: Value = 100

    def __post_init__(self) -> None:
        if isinstance(self.every, int | float) and not self.every >= 1:
            raise ValueError(f"every={self.every} must be at least 1 round")


def before(number: Value, end: Value) -> Value:
    """Whether round `number` comes before round `end`; both are public."""
    return jnp.asarray(number, jnp.float32) < jnp.asarray(end, jnp.float32)


def at(value: Value, number: Value) -> Value:
    """The value in round `number`, of a schedule or of a plain number."""
    if not isinstance(value, Schedule):
        return value
    turns = jnp.floor(jnp.asarray(number, jnp.float32) / value.every)
    return value.start * jnp.power(jnp.asarray(value.factor, jnp.float32), turns)


def scaled(value: Value, factor: Value) -> Value:
    """The value, or every value of a schedule, times a factor; 0 times infinity is 0."""
    if isinstance(value, Schedule):
        return replace(value, start=scaled(value.start, factor))
    return jnp.where(jnp.asarray(factor) == 0, 0, jnp.asarray(value, jnp.float32) * factor)


def noise_factors(algorithms: Iterable[Algorithm], spans: Iterable[Sized]) -> tuple[float, ...]:
    """What the methods of a run's phases multiply noise by in each round; empty where none of them says anything.

    A method that wants more of the budget in some rounds than in others has `noise_factors(rounds)`. They are public,
    fixed beforehand, and part of what noise is calibrated to and charged for.

    `algorithms`: one per phase. `spans`: the rounds of each.
    """
    found: list[float] = []
    for algorithm, span in zip(algorithms, spans, strict=True):
        planned = getattr(algorithm, "noise_factors", None)
        found += planned(len(span)) if planned else [1.0] * len(span)
    return tuple(found) if any(factor != 1 for factor in found) else ()


def factors_of_parts(parts: Sequence[float], rounds: int) -> list[float]:
    """What noise is multiplied by in each round, so that it takes its part of the budget; 1 in rounds after these.

    `parts`: of the budget, one for each of the first rounds; together 1. `rounds`: of the run.

    >>> factors_of_parts([0.25, 0.75], 3)[0], factors_of_parts([0.25, 0.75], 3)[2]
    (1.414213562373095, 1.0)
    """
    factors = [1 / math.sqrt(part * len(parts)) for part in parts]
    return [factors[number] if number < len(factors) else 1.0 for number in range(rounds)]

"""What clients of `few_releases` show and keep, and what everybody is told; what is kept also by those of
`few_releases_binary`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from jax import Array

from kinfolk import trees
from kinfolk.algorithms.feature_shape import Moments, Shape
from kinfolk.algorithms.linear_posterior import Evidence, Prior
from kinfolk.algorithms.target_range import Habit, Whereabouts

Sent = TypeVar("Sent")


@trees.register
@dataclass(frozen=True)
class Shown:
    """All that a client has released, and public numbers: what it sends."""

    rows: Array
    """Its number of examples; 0 before its first round."""
    look: Array
    look_noise: Array
    moments: Moments
    evidence: Evidence
    error: Array
    """Variance of an entry of its curvature."""
    losses: Array
    """Mean square that its own model, the common one and a constant miss."""
    losses_noise: Array


@trees.register
@dataclass(frozen=True)
class Own(Generic[Sent]):
    """A client's personal state."""

    shown: Sent
    """All that it has released, as it sends it."""
    slot: Array
    """Its place among everybody's models."""


@trees.register
@dataclass(frozen=True)
class Current:
    """A client's model on the way; or all clients', along a leading axis."""

    weights: Array
    """Before its first gradient a constant, from the histogram."""
    spread: Array
    """The trace of their covariance."""
    missed: Array
    """How far they are expected to be off, as a standard deviation, in units."""


@trees.register
@dataclass(frozen=True)
class Common:
    """What is published about all clients."""

    habit: Habit
    unit: Array
    """Targets are counted in it: about as far as one client's scatter."""
    centre: Array
    """Of features."""
    radius: Array
    """Features farther from the centre are cut to it when moments are taken."""
    shape: Shape
    prior: Prior
    start: Whereabouts
    """Where everybody's targets lie, in units; from the client's histogram and all others."""
    current: Current
    """Everybody's model, of all that was released."""
    losses: Array
    """Of all clients, as `Shown` has a client's."""
    losses_noise: Array

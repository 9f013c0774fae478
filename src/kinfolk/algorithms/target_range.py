"""Where a client's targets lie, from a noisy soft histogram over all of the declared range.

A declared range may be far wider than what occurs. A mean over it would drown in noise; a histogram does not: its noise
does not grow with the range, and a client whose targets lie close together shows one tall bar. Targets of a client are
taken to be normal, with a centre of its own on a grid; centres are normal around a common one, and how far targets
scatter is one of several sizes, each with a chance that all clients together say.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.stats import norm

from kinfolk import trees

NODES = 33
"""Of the histogram, from -1 to 1."""
PLACES = 97
"""On which a client's centre is looked for."""
SIZES = 10
SMALLEST, LARGEST = 0.01, 0.8
"""How far one client's targets scatter, at least and at most, as a part of the range's half."""
SAMPLING, MISFIT = 0.2, 0.015
"""Variance of a bar beside noise, times rows; and how far it may be from what a normal distribution has there."""
TURNS = 12


@trees.register
@dataclass(frozen=True)
class Habit:
    """What is known of all clients' targets."""

    centre: Array
    spread: Array
    """Standard deviation of the clients' centres."""
    chances: Array
    """Of each size of scatter."""


@trees.register
@dataclass(frozen=True)
class Whereabouts:
    """What is known of one client's targets."""

    centre: Array
    error: Array
    """Variance of the centre's estimate."""
    variance: Array
    """Of the targets around it."""


def nothing_known() -> Habit:
    """Centres anywhere."""
    return Habit(jnp.float32(0), jnp.float32(0.5), jnp.full(SIZES, 1 / SIZES, jnp.float32))


def places() -> Array:
    """The grid of centres."""
    return jnp.linspace(-1, 1, PLACES, dtype=jnp.float32)


def sizes() -> Array:
    """The sizes of scatter."""
    return SMALLEST * (LARGEST / SMALLEST) ** (jnp.arange(SIZES, dtype=jnp.float32) / (SIZES - 1))


def bars() -> Array:
    """What a histogram shows for every centre and size: (places, sizes, nodes)."""
    nodes = jnp.linspace(-1, 1, NODES, dtype=jnp.float32)[None, None, :]
    centre, size = places()[:, None, None], sizes()[None, :, None]
    away = (centre - nodes) / size
    above = size * norm.pdf(away) + (centre - nodes) * norm.cdf(away)  # mean of what exceeds a node
    passed = (above[..., :-1] - above[..., 1:]) * ((NODES - 1) / 2)
    ends = jnp.ones_like(passed[..., :1]), jnp.zeros_like(passed[..., :1])
    found = jnp.concatenate([ends[0], passed], axis=-1) - jnp.concatenate([passed, ends[1]], axis=-1)
    return jnp.maximum(found, 0)


def likelihood(histogram: Array, noise: Array, count: Array) -> Array:
    """The logarithm of how likely a client's histogram is for every centre and size, up to a constant: (places, sizes).

    `noise`: of each bar. `count`: of the client's rows.
    """
    expected = bars()
    variance = jnp.square(noise) + SAMPLING / jnp.maximum(count, 1) + jnp.square(MISFIT)
    return (expected @ histogram - jnp.square(expected).sum(axis=-1) / 2) / variance


def _chances(found: Array, habit: Habit) -> Array:
    """Of every centre and size, for one client."""
    prior = -jnp.square((places() - habit.centre) / habit.spread) / 2
    return jax.nn.softmax((found + prior[:, None] + jnp.log(habit.chances + 1e-9)[None, :]).ravel()).reshape(
        found.shape
    )


def whereabouts(histogram: Array, noise: Array, count: Array, habit: Habit) -> Whereabouts:
    """One client's, from its histogram and what all clients have shown.

    `noise`: of each bar. `count`: of the client's rows.
    """
    chances = _chances(likelihood(histogram, noise, count), habit)
    place, size = chances.sum(axis=1), chances.sum(axis=0)
    centre = place @ places()
    step = 2 / (PLACES - 1)
    error = place @ jnp.square(places() - centre) + step**2 / 12
    return Whereabouts(centre, error, size @ jnp.square(sizes()))


def habit(histograms: Array, noise: Array, counts: Array) -> Habit:
    """What all clients show, by the most likely normal distribution of centres and chances of sizes.

    `noise`: of each client's bars. `counts`: their rows; a client without any says nothing.
    """
    found = jax.vmap(likelihood)(histograms, noise, counts)
    there = (counts > 0).astype(jnp.float32)
    total = jnp.maximum(there.sum(), 1)

    def turn(_: Array, habit: Habit) -> Habit:
        chances = there[:, None, None] * jax.vmap(_chances, in_axes=(0, None))(found, habit)
        place, size = chances.sum(axis=(0, 2)) / total, chances.sum(axis=(0, 1)) / total
        centre = place @ places()
        spread = jnp.sqrt(place @ jnp.square(places() - centre))
        return Habit(centre, jnp.maximum(spread, 1 / PLACES), (size + 0.1 / SIZES) / 1.1)

    return jax.lax.fori_loop(0, TURNS, turn, nothing_known())

"""Who takes part in a round."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk.privacy.correlated_noise import Turns
from kinfolk.privacy.mechanisms import Sampling


@dataclass(frozen=True)
class Cohort:
    """The clients of one round, secret like data: who took part, and how many, appears nowhere."""

    present: Array
    """For every client, or every place of a gathered cohort, whether it takes part."""
    index: Array | None
    """Which client sits in each place; an empty place has the number of clients. None: all clients, in order."""


def draw_cohort(sampling: Sampling | Turns, key: Array, number: Array, clients: int) -> Cohort:
    """One fresh coin per client and round, independent of data and of earlier rounds; or whose turn it is."""
    everyone = jnp.ones(clients, bool)
    if isinstance(sampling, Turns):
        return Cohort(sampling.present(number, everyone), None)
    if sampling.capacity is None:
        return Cohort(sampling.coins(jax.random.fold_in(key, number), everyone), None)
    places = jnp.arange(clients, dtype=jnp.int32)
    index, present = sampling.batch(jax.random.fold_in(key, number), places, everyone)
    return Cohort(present, jnp.where(present, index, clients))

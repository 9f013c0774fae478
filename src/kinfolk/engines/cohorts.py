"""Who takes part in a round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

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


def draw_cohort(sampling: Sampling | Turns, key: Array, number: Array, clients: int, homes: int = 1) -> Cohort:
    """One fresh coin per client and round, independent of data and of earlier rounds; or whose turn it is.

    `homes`: how many devices are home to a part of the clients each, who then sit in places of their own device.
    """
    everyone = jnp.ones(clients, bool)
    if isinstance(sampling, Turns):
        return Cohort(sampling.present(number, everyone), None)
    if sampling.capacity is None:
        return Cohort(sampling.coins(jax.random.fold_in(key, number), everyone), None)
    places = jnp.arange(clients, dtype=jnp.int32)
    index, present = sampling.batch(jax.random.fold_in(key, number), places, everyone)
    index = jnp.where(present, index, clients)
    return Cohort(present, index) if homes == 1 else _at_home(index, clients, homes)


def places_of(capacity: int, clients: int, homes: int) -> int:
    """Places for a cohort of at most `capacity` clients: on each of their homes as many as may be needed there."""
    return homes * min(capacity, -(-clients // homes))


def _at_home(index: Array, clients: int, homes: int) -> Cohort:
    """The clients of `index` in other places: an equal part of these for each device, in which only its own clients
    sit. Device k is home to the k-th of equal parts of the clients, the last of which may be smaller."""
    each, places = -(-clients // homes), places_of(index.shape[0], clients, homes)
    here = jnp.zeros(homes * each, bool).at[index].set(index < clients, mode="drop").reshape(homes, each)
    of_home = partial(jnp.nonzero, size=places // homes, fill_value=each)
    own = jax.vmap(lambda row: of_home(row)[0].astype(jnp.int32))(here)
    first = each * jnp.arange(homes, dtype=jnp.int32)[:, None]
    return Cohort((own < each).reshape(-1), jnp.where(own < each, first + own, clients).reshape(-1))

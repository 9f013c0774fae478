"""Iterative clustering (IFCA, Ghosh et al., 2020; HypCluster, Mansour et al., 2020): as many shared models as clusters.

At example level choosing a cluster looks at the data, and every choice is paid for; at client level it is free. With a
finite strength, choices in the first rounds warm-start mean-regularised training within the clusters.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.algorithms.pull import Pull, check_pull
from kinfolk.algorithms.schedules import at, before
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Params, Tree, Value

Personal = tuple[Tree, Array]


@trees.register
@dataclass(frozen=True)
class Ifca:
    """In the first `choosing_rounds` rounds a client picks the cluster whose model fits it best and trains from there.

    After that clusters are fixed, and every client keeps a model of its own, pulled to its cluster's mean: strength 0
    is training alone, infinite strength is averaging within clusters, and what a finite one minimises within a cluster
    depends on `pull` as in `mean_regularized`.
    """

    choosing_rounds: Value = 5
    strength: Value = jnp.inf
    alone_from: Value = jnp.inf
    """From this round on the strength is 0: fine-tuning after training within clusters."""
    step_size: Value = 0.1
    spread: Value = 0.1
    """Standard deviation of the clusters' (public) starting points."""
    count_scale: Value = 0.5
    """How much of a message tells the server which cluster it is for, beside an update of norm 1."""
    clusters: int = field(default=2, metadata={"static": True})
    pull: str = field(default="round", metadata={"static": True})
    """Pulled in every local `step`, or once a `round`, before its steps."""

    def __post_init__(self) -> None:
        check_pull(self.pull)

    def _pull(self, strength: Value) -> Pull:
        return Pull(self.pull, strength, self.step_size)

    def init(self, params: Params, clients: int) -> Params:
        def scattered(leaf: Array, key: Array) -> Array:
            noise = self.spread * jax.random.normal(key, (self.clusters, *leaf.shape), leaf.dtype)
            return leaf[None] + noise

        leaves, structure = jax.tree.flatten(params)
        keys = jax.random.split(jax.random.key(0), len(leaves))
        return jax.tree.unflatten(structure, [scattered(leaf, key) for leaf, key in zip(leaves, keys, strict=True)])

    def init_client(self, shared: Params, slot: Array) -> Personal:
        return self._pull(self.strength).begin(trees.row(shared, 0)), jnp.int32(0)

    def client(self, shared: Params, personal: Personal, gate: DataGate) -> tuple[Tree, Personal, DataGate]:
        own, cluster = personal
        choosing = before(gate.round, self.choosing_rounds)
        best, gate = gate.choose(shared, active=choosing)
        cluster = jnp.where(choosing, best, cluster)
        centre = trees.row(shared, cluster)
        own = trees.choose(choosing, self._pull(self.strength).begin(centre), own)
        strength = jnp.where(choosing | ~before(gate.round, self.alone_from), 0, at(self.strength, gate.round))
        model, own, gate = self._pull(strength).descend(own, centre, gate)
        place = jax.nn.one_hot(cluster, self.clusters, dtype=jnp.float32)
        move = trees.subtract(model, centre)
        moves = jax.tree.map(lambda leaf: place.reshape(-1, *(1,) * leaf.ndim) * leaf[None], move)
        return (moves, self.count_scale * place), (own, cluster), gate

    def server(self, shared: Params, inbox: Inbox) -> tuple[Params, Inbox]:
        (moves, counts), inbox = inbox.sum()
        least = inbox.expected.sum() / (4 * self.clusters)
        members = jnp.maximum(counts / self.count_scale, least)
        means = jax.tree.map(lambda leaf: leaf / members.reshape(-1, *(1,) * (leaf.ndim - 1)), moves)
        return trees.add(shared, means), inbox

    def model(self, shared: Params, personal: Personal) -> Params:
        own, cluster = personal
        return self._pull(self.strength).model(own, trees.row(shared, cluster))

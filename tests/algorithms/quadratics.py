"""Training with quadratic losses, for tests that know where it comes to rest; `losses`, `at_rest` and closed forms.

Clients have quadratic losses `1/2 (w - a_k)^T H_k (w - a_k)`; there are no batches and there is no noise. Numbers of
steps and strengths are axes of one small program.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk import trees
from kinfolk.algorithms import REGISTRY
from kinfolk.privacy.gates import Inbox
from kinfolk.privacy.mechanisms import ExactSum, Sampling
from kinfolk.privacy.release import new_meter
from kinfolk.training.build import as_array
from kinfolk.types import Algorithm

STEPS = (1, 5, 20, 100)
STRENGTHS = (0.0, 1.0, 3.0, 10.0, np.inf)
STEP = 0.5
WEIGHTS = 3


@trees.register
@dataclass(frozen=True)
class Quadratic:
    """What algorithms see of a data gate, before a loss of this curvature and minimum."""

    bend: Any
    minimum: Any
    steps: Any
    round: Any
    most_steps: int = field(metadata={"static": True})

    def gradient(self, params: Array, active: Any) -> tuple[Array, Quadratic]:
        return jnp.where(active, self.bend @ (params - self.minimum), 0), self

    def choose(self, candidates: Array, active: Any) -> tuple[Array, Quadratic]:
        away = candidates - self.minimum[None]
        return jnp.argmin(jnp.einsum("ci,ij,cj->c", away, self.bend, away)).astype(jnp.int32), self


@lru_cache
def losses(clients: int, apart: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Curvatures between 0.6 and 1.4, and minima, those of every other client moved so far away."""
    generator = np.random.default_rng(5)
    turned = np.linalg.qr(generator.normal(size=(clients, WEIGHTS, WEIGHTS)))[0]
    bends = np.einsum("kij,kj,klj->kil", turned, generator.uniform(0.6, 1.4, (clients, WEIGHTS)), turned)
    return bends, generator.normal(1, 1, (clients, WEIGHTS)) - apart * (np.arange(clients) % 2)[:, None]


@partial(jax.jit, static_argnames=("clients", "most_steps", "rounds", "rate", "apart"))
def trained(
    algorithm: Algorithm, steps: Array, *, clients: int, most_steps: int, rounds: int, rate: float, apart: float
) -> tuple[Array, Any]:
    """All clients' models after some rounds, and the shared state; each client takes part with probability `rate`."""
    bends, minima = (jnp.asarray(part, jnp.float32) for part in losses(clients, apart))
    slots, mechanism = jnp.arange(clients, dtype=jnp.int32), ExactSum(Sampling(jnp.float32(rate)), sampled_here=False)
    kinds, ones = ("update", "mixture"), jnp.ones(clients, jnp.float32)

    def one_round(number: Array, state: Any) -> Any:
        shared, personal = state

        def of_client(own: Any, bend: Array, minimum: Array) -> Any:
            return algorithm.client(shared, own, Quadratic(bend, minimum, steps, number, most_steps))[:2]  # type: ignore

        messages, after = jax.vmap(of_client)(personal, bends, minima)
        present = jax.random.uniform(jax.random.fold_in(jax.random.key(1), number), (clients,)) < rate
        meter = new_meter(jax.random.key(0), kinds)
        inbox = Inbox(messages, ones, slots, present, meter, mechanism, rate * ones, number, True)
        return algorithm.server(shared, inbox)[0], trees.choose_rows(present, after, personal)

    shared = algorithm.init(jnp.zeros(WEIGHTS), clients)
    personal = jax.vmap(lambda slot: algorithm.init_client(shared, slot))(slots)
    personal = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (clients, *leaf.shape[1:])), personal)
    shared, personal = jax.lax.fori_loop(0, rounds, one_round, (shared, personal))
    return jax.vmap(partial(algorithm.model, shared))(personal), shared


def at_rest(
    algorithm: Algorithm,
    strengths: tuple[float, ...] = STRENGTHS,
    steps: tuple[int, ...] = STEPS,
    clients: int = 4,
    rounds: int = 60,
    rate: float = 1.0,
    apart: float = 0.0,
) -> tuple[np.ndarray, Any]:
    """All clients' models (strengths x steps x clients x weights) after many rounds, and the shared state."""
    run = partial(trained, clients=clients, most_steps=max(steps), rounds=rounds, rate=rate, apart=apart)
    each = lambda strength, number: run(replace(as_array(algorithm), strength=strength), number)  # type: ignore  # noqa: E731
    over = jax.jit(jax.vmap(jax.vmap(each, (None, 0)), (0, None)))
    found, shared = over(jnp.array(strengths, jnp.float32), jnp.array(steps, jnp.int32))
    return np.asarray(found, float), shared


def build(name: str, **options: Any) -> Algorithm:
    return REGISTRY[name].build(step_size=STEP, **options)


def optimum(bends: np.ndarray, minima: np.ndarray, strength: float | np.ndarray) -> np.ndarray:
    """Minimises the sum over k of `1/2 (w_k - a_k)^T H_k (w_k - a_k) + strength/2 |w_k - mean|^2`."""
    clients, weights = minima.shape
    if strength > 1e12:
        mean = np.linalg.solve(bends.sum(axis=0), np.einsum("kij,kj->i", bends, minima))
        return np.tile(mean, (clients, 1))
    apart = np.kron(np.eye(clients) - 1 / clients, np.eye(weights)) * strength
    losses = np.zeros_like(apart)
    for k in range(clients):
        losses[k * weights : (k + 1) * weights, k * weights : (k + 1) * weights] = bends[k]
    return np.linalg.solve(losses + apart, losses @ minima.ravel()).reshape(clients, weights)


def left_after(bends: np.ndarray, steps: int) -> np.ndarray:
    """(1 - step H)^E: what plain steps leave of the distance to a minimum."""
    return np.array([np.linalg.matrix_power(np.eye(len(bend)) - STEP * bend, steps) for bend in bends])


def by_round(bends: np.ndarray, minima: np.ndarray, strength: float, steps: int) -> np.ndarray:
    """Where a pull before the steps rests: the formula of `algorithms/pull.py`, and the steps after it."""
    left = left_after(bends, steps)
    pulled = optimum(np.eye(len(bends[0])) - left, minima, (1 + STEP * strength) ** steps - 1)
    return minima + np.einsum("kij,kj->ki", left, pulled - minima)


def objective(bends: np.ndarray, minima: np.ndarray, strength: float, found: np.ndarray) -> float:
    away, apart = found - minima, found - found.mean(axis=0)
    return float(np.einsum("ki,kij,kj->", away, bends, away) / 2 + strength / 2 * (apart**2).sum())

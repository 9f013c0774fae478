"""Noise for a release: exact, from the operating system, drawn outside the program and handed to it on a tape."""

from __future__ import annotations

import os
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk import trees
from kinfolk.accounting.noise_for_budget import times
from kinfolk.engines.resident import State
from kinfolk.privacy import exact_noise
from kinfolk.privacy.choice import Chooser
from kinfolk.privacy.gates import CHOICE
from kinfolk.privacy.mechanisms import Mechanism
from kinfolk.privacy.release import Meter, Tape
from kinfolk.training.prepare import Job, check_job


def tape_bytes(job: Job) -> int:
    """What the noise for one round takes in memory."""
    shapes = (shape for tape in tape_shapes(job, 1) if tape for shape in tape.values.values())
    return sum(int(np.prod(shape.shape)) * 4 for shape in shapes)


def with_fresh_noise(job: Job, state: State, length: int, phase: int, first: int, rounds: tuple[int, int]) -> State:
    """Meters with new keys from the operating system, counters at zero, and exact noise for a chunk of rounds.

    `length`: rounds that the tape is made for; `first`: the phase's first round.
    """

    def keys(shape: tuple[int, ...]) -> jax.Array:
        words = np.frombuffer(os.urandom(8 * int(np.prod(shape))), np.uint32).reshape(*shape, 2)
        return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")

    def fresh(meter: Meter, shapes: Tape | None) -> Meter:
        values = {
            kind: jnp.asarray(draw(kind, shape.shape))[None, None]
            for kind, shape in (shapes.values if shapes else {}).items()
        }
        tape = Tape(values, "noise") if shapes else None
        return replace(
            meter,
            noise=keys(meter.noise.shape),
            coins=keys(meter.coins.shape),
            uses=trees.zeros_like(meter.uses),
            tape=tape,
        )

    def draw(kind: str, shape: tuple[int, ...]) -> np.ndarray:
        mechanism = mechanism_of(job, kind)
        noise = np.array([cost.noise_multiplier for cost in mechanism.costs()])
        counted = job.uses[phase][kind][rounds[0] - first : rounds[1] - first]
        scales = np.repeat(noise[:, None], shape[-2], axis=1)  # places that nobody uses get noise too
        for k, column in enumerate(counted.T if kind != CHOICE else ()):  # choices have no schedule
            factors = np.repeat(job.noise_factors(*rounds), column)
            scales[k, : len(factors)] = [times(noise[k], factor) for factor in factors]
        return exact_noise.integers(mechanism, scales.reshape(*shape[:-1], 1), shape)

    own, theirs = tape_shapes(job, length)
    return replace(state, meters=fresh(state.meters, own), server=fresh(state.server, theirs))


def tape_shapes(job: Job, rounds: int) -> tuple[Tape | None, Tape | None]:
    """The noise that a chunk of `rounds` needs: the clients' (clients, uses, scalars), the server's (uses, scalars)."""
    sizes: dict[str, int] = {}
    for check in job.checks:
        sizes |= {kind: max(size, sizes.get(kind, 0)) for kind, size in check.sizes.items()}
    most = {kind: max(1, *(int(part[kind].max(initial=0)) for part in job.uses)) for kind in sizes}

    def tape(kinds: tuple[str, ...], *lead: int) -> Tape | None:
        shapes = {
            kind: jax.ShapeDtypeStruct((*lead, most[kind] * rounds, exact_noise.width(kind, sizes[kind])), jnp.int32)
            for kind in kinds
            if kind in sizes
        }
        return Tape(shapes, "noise") if kinds else None  # type: ignore[arg-type]

    return tape(job.plan.level.data_kinds, len(job.ids)), tape(job.plan.level.inbox_kinds)


def checked_for_release(job: Job, rounds: int) -> Job:
    """The job with flow checks of the very programs a release runs."""
    own, theirs = tape_shapes(job, rounds)
    one = jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape.shape[1:], shape.dtype), own)
    checks = tuple(
        check_job(job.plan, algorithm, job.terms, job.clients, (one, theirs)) for algorithm in job.algorithms
    )
    for kind in {kind for uses in job.uses for kind, counts in uses.items() if counts.any()}:
        longest = len(job.ids) if job.plan.level.server_pays else int(job.federations[0].train.sizes.max())
        exact_noise.check_grid(mechanism_of(job, kind), longest)
    return replace(job, checks=checks)


def mechanism_of(job: Job, kind: str) -> Mechanism | Chooser:
    """What makes releases of this kind."""
    if kind == CHOICE:
        return job.terms.choice
    return job.terms.inbox if job.plan.level.server_pays else job.terms.data

"""The noise of a release run: how much of it a chunk of rounds needs, and states that carry it."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import jax
import numpy as np

from kinfolk.engines.resident import State
from kinfolk.engines.streaming import Streamed
from kinfolk.privacy import exact_noise, noise_tape
from kinfolk.privacy.release import Tape
from kinfolk.training.prepare import Job, check_job

AnyState = TypeVar("AnyState", State, Streamed)


def tape_bytes(job: Job) -> int:
    """What the noise for one round takes in memory."""
    return sum(map(noise_tape.tape_bytes, tape_shapes(job, 1)))


def with_fresh_noise(job: Job, state: AnyState, length: int, rounds: range) -> AnyState:
    """Meters with new keys from the operating system, counters at zero, and exact noise for a chunk of rounds.

    `length`: rounds that the tape is made for.
    """

    def draw(kind: str, shape: tuple[int, ...]) -> np.ndarray:
        scales = job.account.scales(kind, rounds, shape[-2])
        return exact_noise.integers(job.account.mechanism(kind), scales.reshape(*shape[:-1], 1), shape)

    own, theirs = tape_shapes(job, length)
    meters = noise_tape.with_fresh_noise(state.meters, own, draw)
    return replace(state, meters=meters, server=noise_tape.with_fresh_noise(state.server, theirs, draw))


def without_noise(state: AnyState) -> AnyState:
    """The state after a chunk: noise is not kept."""
    return replace(state, meters=replace(state.meters, tape=None), server=replace(state.server, tape=None))


def tape_shapes(job: Job, rounds: int) -> tuple[Tape | None, Tape | None]:
    """The noise that a chunk of `rounds` needs: the clients' (clients, uses, scalars), the server's (uses, scalars)."""
    sizes: dict[str, int] = {}
    for check in job.checks:
        sizes |= {kind: max(size, sizes.get(kind, 0)) for kind, size in check.sizes.items()}
    most = {kind: rounds * job.account.most(kind) for kind in sizes if kind in job.account.uses}
    level = job.plan.level
    own = noise_tape.tape_shapes(level.data_kinds, sizes, most, len(job.ids))
    return own, noise_tape.tape_shapes(level.inbox_kinds, sizes, most)


def checked_for_release(job: Job, rounds: int) -> Job:
    """The job with flow checks of the very programs a release runs, and a plan that compiles no other."""
    own, theirs = tape_shapes(job, rounds)
    one = jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape.shape[1:], shape.dtype), own)
    checks = tuple(
        check_job(job.plan, algorithm, job.terms, job.clients, (one, theirs)) for algorithm in job.algorithms
    )
    job.account.require_exact()
    programs = frozenset().union(*(check.programs for check in checks))
    return replace(job, checks=checks, plan=replace(job.plan, programs=programs))

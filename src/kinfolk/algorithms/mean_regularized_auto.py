"""Strength learned while training, at no cost in privacy: `strength = "auto"` of mean regularisation and of Ditto.

At example level a client's gradients are noisy before anybody sees them, so whatever is computed from them is free.
Each block of weights (a layer's weights, its bias) has one `log strength`, which moves down the slope
`sum over clients of <next noisy gradient, d model / d log strength>`: fresh noise keeps that product unbiased. The
derivative of the model is carried forward from step to step with a *public constant* in place of the loss's curvature;
differentiating through the gate would return raw data, and is refused.

What the known failures taught, each guard in its place below: a client's strength goes with the variance of its own
estimate (`variance`); training gradients cannot see that a client's few examples mislead it, so a declared, public
sampling scale adds that part of the slope (`Track.response`); a running average of the derivative, because an average
of the models is returned; a move is the smaller, the less its direction is settled (`moved`). All constants were fixed
on synthetic data and School: docs/results/strength.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.algorithms.local_steps import descend
from kinfolk.algorithms.pull import check_pull
from kinfolk.algorithms.schedules import at
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Params, Tree, Value

MEMORY = 0.9
"""Of the running average of the derivative, per round."""
SLOPE_MEMORY, SQUARE_MEMORY = 0.7, 0.95
"""Of the running averages of a slope and of its square: their ratio says how settled its direction is."""
CAUTION = 3
"""A move goes with the ratio (at most 1) to this power: chance, with ratios of about 0.4, hardly moves a strength."""
LARGEST = 7.0
"""Largest |log strength|: strengths between 1/1100 and 1100."""


class Track(NamedTuple):
    """What a client carries from step to step; the last three have one number for each block."""

    model: Params
    sensitivity: Params
    """d model / d log strength."""
    averaged: Params
    """Its running average."""
    response: Tree
    """How far a lasting unit error of the gradient has moved the model (against its sign)."""
    change: Tree
    """d response / d log strength."""
    averaged_change: Tree


class Guide(NamedTuple):
    """What the server learns about strength; but for the last two, one number for each block."""

    log_strength: Tree
    slope: Tree
    square: Tree
    log_variance: Array
    """Mean over clients: where a client's strength is neither raised nor lowered."""
    rounds: Array


class Kept(NamedTuple):
    """A client's personal state."""

    track: Track
    average: Params
    rounds: Array


def new_guide(params: Params, start: Value) -> Guide:
    begin = jnp.log(jnp.asarray(start, jnp.float32))
    zeros = jax.tree.map(lambda _: jnp.float32(0), params)
    return Guide(jax.tree.map(lambda _: begin, params), zeros, zeros, jnp.float32(0), jnp.float32(0))


def new_client(model: Params) -> Kept:
    zeros, nothing = trees.zeros_like(model), jax.tree.map(lambda _: jnp.float32(0), model)
    return Kept(Track(model, zeros, zeros, nothing, nothing, nothing), model, jnp.float32(0))


def variances(gate: DataGate, weights: int, step_size: Value, sampling: Value) -> tuple[Array, Array]:
    """Of one coordinate: of a client's estimate, and the part of it that is sampling. Both public.

    Noise that is fresh in every step leaves `step_size / 2` of its variance in a model of curvature 1; which examples a
    client happens to have stays. One example's gradient is declared to vary by `sampling * clip^2` in all.
    """
    drawn = sampling * gate.clip**2 / (weights * gate.size)
    return step_size / 2 * gate.noise**2 + drawn, drawn


def own_strengths(guide: Guide, variance: Array, scaling: Value) -> Tree:
    """A client's strengths, one per block: the learned ones times (its variance over the usual one)^scaling."""
    usual = jnp.where(guide.rounds > 0, guide.log_variance, _log(variance))
    factor = jnp.exp(scaling * (_log(variance) - usual))
    return jax.tree.map(lambda value: jnp.exp(value) * factor, guide.log_strength)


def _log(variance: Array) -> Array:
    return jnp.log(jnp.maximum(variance, 1e-30))


def follow(
    track: Track,
    gate: DataGate,
    centre: Params,
    strengths: Tree,
    step_size: Value,
    curvature: Value,
    drawn: Array,
    *,
    pull: str = "step",
) -> tuple[Track, Tree, DataGate]:
    """One round's local steps, as in `descend`, and the mean slope of each block's log strength on the way.

    Pulled in every step, or, for all of them, before the first (`pull`): the derivative follows either.
    """
    steps = gate.steps.astype(jnp.float32)
    # a step beyond one over the curvature overshoots: its sign says nothing, and it must not grow from step to step
    memory, left = MEMORY ** (1 / steps), jnp.clip(1 - step_size * curvature, 0, 1)

    def average(old: Tree, new: Tree) -> Tree:
        return jax.tree.map(lambda o, n: memory * o + (1 - memory) * n, old, new)

    def pulls(number: Array) -> Array:
        """How many pulls come before this step."""
        return jnp.float32(1) if pull == "step" else jnp.where(number == 0, steps, 0)

    def pulled_to_zero(value: Tree, change: Tree, times: Array) -> tuple[Tree, Tree]:
        """A value after so many pulls to zero, and its derivative with respect to log strength."""
        kept = jax.tree.map(lambda s: (1 + step_size * s) ** -times, strengths)
        turn = jax.tree.map(lambda s, k: times * step_size * s / (1 + step_size * s) * k, strengths, kept)
        after = jax.tree.map(lambda k, v: k * v, kept, value)
        return after, jax.tree.map(lambda k, c, t, v: k * c - t * v, kept, change, turn, value)

    def step(carry: tuple[Track, Tree, DataGate], number: Array) -> tuple[tuple[Track, Tree, DataGate], None]:
        track, slopes, gate = carry
        active = number < gate.steps
        times = pulls(number)
        away, sensitivity = pulled_to_zero(trees.subtract(track.model, centre), track.sensitivity, times)
        response, change = pulled_to_zero(track.response, track.change, times)
        pulled = trees.add(centre, away)
        averaged, averaged_change = average(track.averaged, sensitivity), average(track.averaged_change, change)
        gradient, gate = gate.gradient(pulled, active)
        slope = jax.tree.map(lambda g, s, c: jnp.sum(g * s) + drawn * g.size * c, gradient, averaged, averaged_change)
        after = Track(
            trees.subtract(pulled, trees.scale(step_size, gradient)),
            trees.scale(left, sensitivity),
            averaged,
            jax.tree.map(lambda r: left * r + step_size, response),
            trees.scale(left, change),
            averaged_change,
        )
        track, slopes = trees.choose(active, (after, trees.add(slopes, slope)), (track, slopes))
        return (track, slopes, gate), None

    zeros = jax.tree.map(lambda _: jnp.float32(0), strengths)
    (track, slopes, gate), _ = jax.lax.scan(step, (track, zeros, gate), jnp.arange(gate.most_steps, dtype=jnp.int32))
    return track, trees.scale(1 / steps, slopes), gate


def kept_after(kept: Kept, track: Track, power: Value) -> Kept:
    """The personal state after a round: the running average moves to the new model."""
    rounds = kept.rounds + 1
    share = (power + 1) / (rounds + power)
    average = jax.tree.map(lambda old, new: old + share * (new - old), kept.average, track.model)
    return Kept(track, average, rounds)


def moved(guide: Guide, slope: Tree, log_variance: Array, learning: Value) -> Guide:
    """The next strengths. `learning` is the largest move of a log strength in a round, made when all slopes agree."""
    rounds = guide.rounds + 1

    def running(old: Tree, new: Tree, memory: float) -> Tree:
        return jax.tree.map(lambda o, n: memory * o + (1 - memory) * n, old, new)

    slopes = running(guide.slope, slope, SLOPE_MEMORY)
    squares = running(guide.square, jax.tree.map(jnp.square, slope), SQUARE_MEMORY)

    def move(log_strength: Array, mean: Array, square: Array) -> Array:
        size = jnp.sqrt(square / (1 - SQUARE_MEMORY**rounds) + 1e-30)
        settled = jnp.clip(mean / size, -1, 1)  # the mean begins at zero: one slope alone settles nothing
        return jnp.clip(log_strength - learning * settled**CAUTION, -LARGEST, LARGEST)

    return Guide(jax.tree.map(move, guide.log_strength, slopes, squares), slopes, squares, log_variance, rounds)


def strengths_by_block(guide: Guide) -> dict[str, Array]:
    """The learned strength of each block, by its place in the model."""
    found = jax.tree_util.tree_leaves_with_path(guide.log_strength)
    return {jax.tree_util.keystr(where, simple=True, separator="."): jnp.exp(value) for where, value in found}


@trees.register
@dataclass(frozen=True)
class MeanRegularizedAuto:
    """Mean regularisation whose strengths, one per block and client, are learned from what is released anyway."""

    step_size: Value = 0.1
    start: Value = 1.0
    """The strength before the first round."""
    learning: Value = 0.5
    """The largest move of a log strength in a round; 0 keeps the start."""
    curvature: Value = 1.0
    """A public constant in place of the loss's curvature."""
    sampling: Value = 0.5
    """Declared, not measured: the variance of one example's gradient, as a share of clip^2."""
    scaling: Value = 1.0
    """1: a client's strength goes with the variance of its estimate; 0: one strength for all."""
    average: Value = 3.0
    """The returned model is the mean of all rounds' models, weighted by (round number)^average: a tail average."""
    apart: bool = field(default=False, metadata={"static": True})
    """The shared model is federated averaging's instead of the mean of the personal ones: Ditto, at twice the cost."""
    pull: str = field(default="step", metadata={"static": True})
    """Pulled in every local `step`, or once a `round`, before its steps; the slope is that of the one chosen."""

    def __post_init__(self) -> None:
        check_pull(self.pull)

    def init(self, params: Params, clients: int) -> dict[str, Tree]:
        return {"model": params, "guide": new_guide(params, self.start)}

    def init_client(self, shared: dict[str, Tree], slot: Array) -> Kept:
        return new_client(shared["model"])

    def client(self, shared: dict[str, Tree], personal: Kept, gate: DataGate) -> tuple[dict[str, Tree], Kept, DataGate]:
        centre, step_size = shared["model"], at(self.step_size, gate.round)
        variance, drawn = variances(gate, trees.size(centre), step_size, self.sampling)
        strengths = own_strengths(shared["guide"], variance, self.scaling)
        common, gate = descend(centre, gate, step_size) if self.apart else (None, gate)
        public = (step_size, self.curvature, drawn)
        track, slope, gate = follow(personal.track, gate, centre, strengths, *public, pull=self.pull)
        move = trees.subtract(track.model if common is None else common, centre)
        message = {"move": move, "slope": slope, "log_variance": _log(variance)}
        return message, kept_after(personal, track, self.average), gate

    def server(self, shared: dict[str, Tree], inbox: Inbox) -> tuple[dict[str, Tree], Inbox]:
        found, inbox = inbox.mean()
        guide = moved(shared["guide"], found["slope"], found["log_variance"], self.learning)
        return {"model": trees.add(shared["model"], found["move"]), "guide": guide}, inbox

    def model(self, shared: dict[str, Tree], personal: Kept) -> Params:
        return personal.average

    def describe(self, shared: dict[str, Tree]) -> dict[str, Array]:
        return strengths_by_block(shared["guide"])

"""Counters, noise and numbers of one kind of release used for another. The flow check must refuse each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from kinfolk import trees
from kinfolk.algorithms.fedavg import FedAvg

from .leaks import planted


def _with(gate: Any, **meter: Any) -> Any:
    return replace(gate, _meter=replace(gate._meter, **meter))


def choice_counter(self: Any, shared: Any, personal: Any, gate: Any) -> Any:
    """A second gradient takes the choices' counter: it has the first one's number, and so the first one's noise."""
    uses = gate._meter.uses
    first, before = gate.gradient(shared)
    second, after = _with(gate, uses={**uses, "gradient": uses["choice"]}).gradient(trees.add(shared, shared))
    spent = {"gradient": before._meter.uses["gradient"], "choice": after._meter.uses["gradient"]}
    return trees.subtract(first, second), personal, _with(gate, uses=spent)


def counters_exchanged(self: Any, shared: Any, personal: Any, gate: Any) -> Any:
    """The counters that come back have changed places: the next round's gradient has this round's noise."""
    gradient, gate = gate.gradient(shared)
    uses = gate._meter.uses
    return gradient, personal, _with(gate, uses={"gradient": uses["choice"], "choice": uses["gradient"]})


def counters_exchanged_by_a_loop(self: Any, shared: Any, personal: Any, gate: Any) -> Any:
    """The same, with a loop that hands each counter on in the other's place."""
    gradient, gate = gate.gradient(shared)
    uses = gate._meter.uses
    turned, _ = jax.lax.scan(lambda c, _: ((c[1], c[0]), None), (uses["gradient"], uses["choice"]), None, length=1)
    return gradient, personal, _with(gate, uses=dict(zip(("gradient", "choice"), turned, strict=True)))


def tape_of_the_sum(self: Any, shared: Any, inbox: Any) -> Any:
    """A mixture with the sum's exact noise: their difference has none."""
    tape = inbox._meter.tape
    one = replace(tape, values={**tape.values, "mixture": tape.values["update"]}) if tape else None
    total, inbox = _with(inbox, tape=one).sum()
    mixed, inbox = inbox.mix(jnp.ones((1, inbox.clients), jnp.float32))
    move = jax.tree.map(lambda a, b: a / inbox.clients - b[0], total, mixed)
    return trees.add(shared, move), _with(inbox, tape=tape)


def sum_and_mixture(self: Any, shared: Any, inbox: Any) -> Any:
    """The sound version: each with noise of its own."""
    total, inbox = inbox.sum()
    mixed, inbox = inbox.mix(jnp.ones((1, inbox.clients), jnp.float32))
    return trees.add(shared, jax.tree.map(lambda a, b: a / inbox.clients - b[0], total, mixed)), inbox


def numbers_moved_up(self: Any, shared: Any, personal: Any, gate: Any) -> Any:
    """The gradient's mechanism gets numbers in a row, from the third on: the choices' bound, 1, is the rate.

    With exact noise, whose scale was drawn beforehand, the first rows up to the capacity take part in every step.
    """
    own, chooser = gate._mechanism, gate._chooser
    sampling = replace(own.sampling, rate=chooser.bound)
    up = {"clip": own.sampling.rate, "noise_multiplier": own.overflow, "overflow": chooser.noise_multiplier}
    changed = replace(gate, _mechanism=replace(own, sampling=sampling, **up))
    message, personal, after = type(self).client(self, shared, personal, changed)
    return message, personal, replace(gate, _meter=after._meter)


BUGS = (
    planted(
        "a gradient on the choices' counter",
        "a second gradient is counted as a choice: it has the noise of the first, and costs what a choice costs",
        FedAvg(),
        "example",
        new_client=choice_counter,
    ),
    planted(
        "counters exchanged",
        "the counters of two kinds come back in each other's place, so that the next round has this round's noise",
        FedAvg(),
        "example",
        new_client=counters_exchanged,
    ),
    planted(
        "counters exchanged by a loop",
        "the same, hidden in what a loop hands on",
        FedAvg(),
        "example",
        new_client=counters_exchanged_by_a_loop,
    ),
    planted(
        "one tape for two kinds",
        "a sum and a mixture carry the same exact noise, and their difference none",
        FedAvg(),
        "client",
        exact=True,
        sound={"new_server": sum_and_mixture},
        new_server=tape_of_the_sum,
    ),
    planted(
        "a mechanism's numbers moved up",
        "the gradient's mechanism reads its numbers from two places further on: everybody is sampled",
        FedAvg(),
        "example",
        exact=True,
        new_client=numbers_moved_up,
    ),
)

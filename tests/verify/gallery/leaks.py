"""Algorithms that let data out beside the gates. The flow check must refuse each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk import trees
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.local import Local
from kinfolk.algorithms.local_steps import descend
from kinfolk.algorithms.mean_regularized import MeanRegularized

from .checking import Bug, found_by_flow


@trees.register
@dataclass(frozen=True)
class Changed:
    """A sound algorithm with one of its functions replaced."""

    inner: Any
    new_client: Any = field(default=None, metadata={"static": True})
    new_server: Any = field(default=None, metadata={"static": True})
    new_model: Any = field(default=None, metadata={"static": True})

    def init(self, params: Any, clients: int) -> Any:
        return self.inner.init(params, clients)

    def init_client(self, shared: Any, slot: Any) -> Any:
        return self.inner.init_client(shared, slot)

    def client(self, shared: Any, personal: Any, gate: Any) -> Any:
        return (self.new_client or type(self.inner).client)(self.inner, shared, personal, gate)

    def server(self, shared: Any, inbox: Any) -> Any:
        return (self.new_server or type(self.inner).server)(self.inner, shared, inbox)

    def model(self, shared: Any, personal: Any) -> Any:
        return (self.new_model or type(self.inner).model)(self.inner, shared, personal)


@trees.register
@dataclass(frozen=True)
class Talkative(Changed):
    """One that also says something about its shared state."""

    says: Any = field(default=None, metadata={"static": True})

    def describe(self, shared: Any) -> dict[str, Any]:
        return {"bias": self.says(shared)}


def actual_size_divisor(self: Any, shared: Any, inbox: Any) -> Any:
    total, inbox = inbox.sum()
    return trees.add(shared, trees.scale(1 / inbox._present.sum().astype(jnp.float32), total)), inbox


def centred_before_the_clip(self: Any, shared: Any, inbox: Any) -> Any:
    centred = jax.tree.map(lambda m: m - jnp.broadcast_to(m.mean(axis=0), m.shape), inbox._messages)
    move, inbox = replace(inbox, _messages=centred).mean()
    return trees.add(shared, move), inbox


def noise_on_a_weighted_mean(self: Any, shared: Any, inbox: Any) -> Any:
    """What a wrapper sees: one aggregate, already weighted, which it clips and noises as if it were one client."""
    share = inbox._weights / inbox._weights.sum()
    mean = jax.tree.map(lambda m: jnp.tensordot(share, m, 1)[None], inbox._messages)
    one = {"_weights": jnp.ones(1, jnp.float32), "_slots": inbox._slots[:1], "_present": jnp.ones(1, bool)}
    move, inbox = replace(inbox, _messages=mean, **one).mean()
    return trees.add(shared, move), inbox


def old_inbox_returned(self: Any, shared: Any, inbox: Any) -> Any:
    """Without the inbox that came back the counter stands still: the release is not charged, its noise comes again."""
    move, _ = inbox.mean()
    return trees.add(shared, move), inbox


def strength_from_raw_variance(self: Any, shared: Any, personal: Any, gate: Any) -> Any:
    strength = self.strength * jnp.var(gate._rows.y) / gate.size
    trained, gate = descend(personal, gate, self.step_size, towards=shared, strength=strength)
    return trees.subtract(trained, shared), trained, gate


def cached_statistics(self: Any, shared: Any, personal: Any, gate: Any) -> Any:
    """The bias starts from the client's raw mean label."""
    (layer,) = personal
    cached = ({**layer, "bias": jnp.broadcast_to(gate._rows.y.mean(), layer["bias"].shape)},)
    trained, gate = descend(cached, gate, self.step_size)
    return (), trained, gate


def running_state(self: Any, shared: Any, inbox: Any) -> Any:
    """The bias is normalised by a running mean of what the clients sent, next to the noisy update."""
    move, inbox = inbox.mean()
    (layer,), (message,) = trees.add(shared, move), inbox._messages
    return ({**layer, "bias": 0.9 * layer["bias"] + 0.1 * message["bias"].mean(axis=0)},), inbox


def raw_metric(self: Any, shared: Any, personal: Any, gate: Any) -> Any:
    message, personal, gate = type(self).client(self, shared, personal, gate)
    loss = jax.vmap(lambda x, y: gate._model.loss(shared, x, y))(gate._rows.x, gate._rows.y).mean()
    (layer,) = message
    return ({**layer, "bias": layer["bias"] + loss},), personal, gate


def frozen_in_the_model(self: Any, shared: Any, personal: Any) -> Any:
    """What clients predict with is published at this level: here with labels that Python kept."""
    return jax.tree.map(lambda leaf: leaf + jnp.asarray(FROZEN).mean(), type(self).model(self, shared, personal))


def printed_by_the_model(self: Any, shared: Any, personal: Any) -> Any:
    """At client level a client's model is its own; printing it is not."""
    jax.debug.callback(print, jax.tree.leaves(personal)[0])
    return type(self).model(self, shared, personal)


def planted(
    name: str, what: str, inner: Any, level: str, exact: bool = False, sound: dict[str, Any] | None = None, **bad: Any
) -> Bug:
    """A bug in one function of a sound algorithm; `sound`: what stands there without it, where this is not the
    algorithm's own."""
    return Bug(
        name,
        what,
        "flow",
        lambda: found_by_flow(Changed(inner, **bad), level, exact),
        lambda: found_by_flow(Changed(inner, **(sound or {})), level, exact),
    )


FROZEN = np.arange(4.0, dtype=np.float32)
"""Stands for labels that an algorithm saw before it was traced."""

BUGS = (
    planted(
        "frozen data in the model",
        "the model that a client predicts with, published at example level, holds raw labels that Python kept",
        MeanRegularized(),
        "example",
        new_model=frozen_in_the_model,
    ),
    planted(
        "a model that prints",
        "what a client predicts with is private at client level, and is printed",
        MeanRegularized(),
        "client",
        new_model=printed_by_the_model,
    ),
    Bug(
        "frozen data in what is said",
        "what an algorithm says about its shared state, which is published, holds raw labels that Python kept",
        "flow",
        lambda: found_by_flow(Talkative(FedAvg(), says=lambda shared: jnp.asarray(FROZEN).sum()), "client"),
        lambda: found_by_flow(Talkative(FedAvg(), says=lambda shared: shared[0]["bias"].sum()), "client"),
    ),
    planted(
        "actual-size divisor",
        "the mean is divided by how many clients took part, which gives that number away",
        FedAvg(),
        "client",
        new_server=actual_size_divisor,
    ),
    planted(
        "rows mixed before the clip",
        "messages are centred by their mean before each is clipped",
        FedAvg(),
        "client",
        new_server=centred_before_the_clip,
    ),
    planted(
        "noise after a weighted mean",
        "a wrapper clips and noises the aggregate instead of each client",
        FedAvg(),
        "client",
        new_server=noise_on_a_weighted_mean,
    ),
    planted(
        "a release not counted",
        "the inbox from before the release is returned, so that its use is never charged",
        FedAvg(),
        "client",
        new_server=old_inbox_returned,
    ),
    planted(
        "raw variance in a strength",
        "the strength is set from the raw variance of the client's labels",
        MeanRegularized(),
        "example",
        new_client=strength_from_raw_variance,
    ),
    planted(
        "cache of raw statistics",
        "the released model starts from the raw mean label",
        Local(),
        "example",
        new_client=cached_statistics,
    ),
    planted(
        "running state",
        "a running mean of raw messages, as in BatchNorm, is published beside the noisy update",
        FedAvg(),
        "client",
        new_server=running_state,
    ),
    planted(
        "raw metric published",
        "the message carries the training loss",
        FedAvg(),
        "example",
        new_client=raw_metric,
    ),
)

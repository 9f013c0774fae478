"""One-shot empirical Bayes: linear models share one release of their second moment, which becomes everybody's prior.

Each client fits ridge regression alone, the sum of the models' outer products is released once, and each client fits
again with the Gaussian prior that the release shows, on its own data, which under client-level privacy is free. It
checks, also for free, whether the prior helps it at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.algorithms import linear_gaussian
from kinfolk.algorithms.covariance_prior import ONLY_SHARED, Prior, group_sparse_prior, low_rank_prior
from kinfolk.algorithms.schedules import before
from kinfolk.models import Dense
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.types import Model, Params, Value

PATTERNS = ("low_rank", "group_sparse")


@trees.register
@dataclass(frozen=True)
class EmpiricalBayes:
    """The first round fits alone and releases; every later one (one is enough) fits with what was released.

    Models are sent at unit length: what is shared is their directions, so that clip=1 loses nothing, and each client
    finds the scale itself. `pattern`: `low_rank` releases the whole second moment; `group_sparse` its diagonal alone,
    for clients that use the same few features, and is the one for Laplace noise.
    """

    ridge: Value = 0.01
    """Noise variance over prior variance of a client's own fit; 1 / prior variance for logistic regression."""
    pattern: str = field(default="low_rank", metadata={"static": True})
    only_shared: bool = field(default=False, metadata={"static": True})
    """Say that models have nothing at all outside of what they share. A little better where that is so, and far worse
    where it is only nearly so."""

    def __post_init__(self) -> None:
        if self.pattern not in PATTERNS:
            raise ValueError(f"pattern={self.pattern!r} is not one of {PATTERNS}")

    def init(self, params: Params, clients: int) -> dict[str, Array]:
        layer = params[0]["weights"] if isinstance(params, tuple) else params["weights"]
        size, outputs = layer.shape[0] + 1, layer.shape[1]
        shape = (size, size) if self.pattern == "low_rank" else (size,)
        return {
            "moment": jnp.zeros(shape, jnp.float32),
            "deviation": jnp.float32(1),
            "laplace": jnp.float32(0),
            "models": jnp.float32(clients * outputs),
            "model": jnp.zeros((size, outputs), jnp.float32),
        }

    def init_client(self, shared: dict[str, Array], slot: Array) -> Array:
        return shared["model"]

    def client(self, shared: dict[str, Array], personal: Array, gate: DataGate) -> tuple[Array, Array, DataGate]:
        alone = fitted(gate, self.ridge)
        refit = fitted(gate, self.ridge, self.prior(shared))
        model = jnp.where(before(gate.round, 1), alone, refit)
        return alone / jnp.maximum(jnp.linalg.norm(alone), 1e-20), model, gate

    def prior(self, shared: dict[str, Array]) -> Prior:
        """What the release shows; nothing before it."""
        moment, deviation, models = shared["moment"], shared["deviation"], shared["models"]
        if self.pattern == "low_rank":
            found = low_rank_prior(moment, deviation, models)
        else:
            both = [group_sparse_prior(moment, deviation, models, laplace) for laplace in (True, False)]
            found = trees.choose(shared["laplace"] > 0, *both)
        return replace(found, shapes=ONLY_SHARED) if self.only_shared else found

    def server(self, shared: dict[str, Array], inbox: Inbox) -> tuple[dict[str, Array], Inbox]:
        first = before(inbox.round, 1)
        moment, inbox = inbox.second_moment(first) if self.pattern == "low_rank" else inbox.squares(first)
        outputs = shared["model"].shape[1]
        released = {
            **shared,
            "moment": moment,
            "deviation": inbox.deviation,
            "laplace": jnp.float32(inbox.laplace),
            "models": inbox.expected.sum() * outputs,
        }
        return trees.choose(first, released, shared), inbox

    def model(self, shared: dict[str, Array], personal: Array) -> Params:
        return as_params(personal)


FITTED = ("number", "binary", "classes")
"""Outcomes for which there is a fit in closed form."""


def has_fit(model: Model) -> bool:
    """Whether a model can be fitted in closed form: it is one dense layer, and its outcome is among `FITTED`."""
    return len(model.layers) == 1 and isinstance(model.layers[0], Dense) and model.outcome in FITTED


def fitted(gate: DataGate, ridge: Value, prior: Prior | None = None) -> Array:
    """This client's linear model in closed form, as a matrix (features and a constant) x outputs.

    Without a prior: ridge regression (logistic regression for binary outcomes, squared error of indicators for
    classes, multiplied to be logits). With one: averaged over its candidates by evidence, and checked against the
    former by leaving rows out.
    """
    layers, rows = gate.model.layers, gate.examples()
    if len(layers) != 1 or not isinstance(layers[0], Dense):
        raise ValueError("closed-form fits are for linear models: use model='linear', 'logistic' or 'softmax'")
    if gate.model.outcome not in FITTED:
        raise ValueError(f"outcome={gate.model.outcome!r} has no closed-form fit: one of {FITTED} has")
    ones = jnp.ones((*rows.mask.shape, 1), jnp.float32)
    x = jnp.concatenate([rows.x.reshape(*rows.mask.shape, -1).astype(jnp.float32), ones], axis=1)
    classes, binary = gate.model.outcome == "classes", gate.model.outcome == "binary"
    y = jax.nn.one_hot(rows.y, layers[0].outputs) if classes else rows.y.astype(jnp.float32)[:, None]
    if prior is None:
        fit = linear_gaussian.alone(x, y, rows.mask, ridge, binary)
    else:
        fit = linear_gaussian.solve(x, y, rows.mask, prior, ridge, binary)
    return linear_gaussian.as_logits(fit, y, rows.mask) if classes else fit.model


def as_params(matrix: Array) -> Params:
    """A linear model's parameters from a matrix whose last row is the constant."""
    return ({"weights": matrix[:-1], "bias": matrix[-1]},)

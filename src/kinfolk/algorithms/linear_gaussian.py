"""One client's linear model under Gaussian priors, in closed form: fits, leave-one-out residuals, evidence.

Rows are padded; masked ones count as zeros. All functions are for one client: batch axes are added outside.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.algorithms.covariance_prior import Prior, log_chances, spectra
from kinfolk.closed_form import eliminate
from kinfolk.types import Value

NEWTON_STEPS = 8
SCALES = tuple(2.0 ** (step / 2) for step in range(-2, 13))
"""By what outputs of least squares may be multiplied to be logits."""


@trees.register
@dataclass(frozen=True)
class Fits:
    """A client's fits under several priors, one per row."""

    models: Array
    """(priors, features, outputs)"""
    left_out: Array
    """(priors, rows, outputs): what each row's prediction misses when the row is left out of the fit."""
    evidence: Array
    """(priors,): logarithm of the probability of the data, up to a constant."""


@trees.register
@dataclass(frozen=True)
class Fit:
    """A client's model."""

    model: Array
    """(features, outputs)"""
    left_out: Array
    """(rows, outputs): as `Fits` has them."""


def solve(x: Array, y: Array, mask: Array, prior: Prior, ridge: Value, logistic: bool = False) -> Fit:
    """The client's model, averaged over the candidate priors by their evidence on its own data.

    The self-check: where leaving rows out says that the average predicts worse than the isotropic prior alone, the
    client keeps the latter, its single-task model.

    `ridge` is the noise variance divided by the prior variance (squared loss), or 1 / the prior variance (logistic).
    """
    found = fits(x, y, mask, prior, ridge, logistic)
    shares = jax.nn.softmax(found.evidence + log_chances(prior))
    average = jnp.einsum("c,cdo->do", shares, found.models)
    missed = jnp.einsum("c,cno->no", shares, found.left_out)
    better = prior.informative & (jnp.square(missed).sum() < jnp.square(found.left_out[0]).sum())
    return Fit(jnp.where(better, average, found.models[0]), jnp.where(better, missed, found.left_out[0]))


def alone(x: Array, y: Array, mask: Array, ridge: Value, logistic: bool = False) -> Fit:
    """The client's single-task model."""
    size = x.shape[1]
    plain = jnp.ones(1, jnp.float32), jnp.zeros((1, size), jnp.float32)
    found = _fits(x, y, mask, jnp.eye(size, dtype=jnp.float32), plain, ridge, logistic)
    return Fit(found.models[0], found.left_out[0])


def as_logits(fit: Fit, y: Array, mask: Array) -> Array:
    """A model of classes by least squares, multiplied so that its outputs are good logits.

    Outputs of least squares are about 0 and 1: as logits they would hardly tell classes apart. By how much to multiply
    them is what suits the client's own rows best, each left out of the fit; `y` are indicators, (rows, classes).
    """
    outputs = y - fit.left_out

    def loss(scale: Array) -> Array:
        return jnp.where(mask[:, None], -y * jax.nn.log_softmax(scale * outputs), 0).sum()

    scales = jnp.stack([jnp.float32(scale) for scale in SCALES])
    return scales[jnp.argmin(jax.vmap(loss)(scales))] * fit.model


def fits(x: Array, y: Array, mask: Array, prior: Prior, ridge: Value, logistic: bool = False) -> Fits:
    """The fits under all candidate priors; `y` is (rows, outputs)."""
    return _fits(x, y, mask, prior.basis, spectra(prior), ridge, logistic)


def _fits(
    x: Array, y: Array, mask: Array, basis: Array, candidates: tuple[Array, Array], ridge: Value, logistic: bool
) -> Fits:
    x, y = jnp.where(mask[:, None], x, 0), jnp.where(mask[:, None], y, 0)
    if logistic:
        return _logistic(x, y, mask, basis, candidates, ridge)
    return (_by_rows if x.shape[0] <= x.shape[1] else _by_features)(x, y, mask, basis, candidates, ridge)


def _by_rows(x: Array, y: Array, mask: Array, basis: Array, candidates: tuple[Array, Array], ridge: Value) -> Fits:
    """Few rows: with Gram matrices. A candidate costs one factorisation, however many features there are."""
    rotated, plain = x @ basis, x @ x.T
    count = mask.sum().astype(jnp.float32)

    def one(bulk: Array, spikes: Array) -> tuple[Array, Array, Array]:
        gram = bulk * plain + (rotated * spikes[None, :]) @ rotated.T + ridge * jnp.eye(x.shape[0], dtype=x.dtype)
        inverse, volume = eliminate(gram, jnp.eye(x.shape[0], dtype=x.dtype))
        dual = inverse @ y
        model = bulk * (x.T @ dual) + basis @ (spikes[:, None] * (rotated.T @ dual))
        volume = volume - (x.shape[0] - count) * jnp.log(ridge) / 2
        return model, dual / jnp.diag(inverse)[:, None], _evidence((y * dual).sum(axis=0), volume, count)

    return Fits(*jax.vmap(one)(*candidates))


def _by_features(x: Array, y: Array, mask: Array, basis: Array, candidates: tuple[Array, Array], ridge: Value) -> Fits:
    """Many rows: in the prior's own basis, scaled so that it is isotropic there."""
    size = x.shape[1]
    rotated, count = x @ basis, mask.sum().astype(jnp.float32)

    def one(bulk: Array, spikes: Array) -> tuple[Array, Array, Array]:
        root = jnp.sqrt(bulk + spikes)
        scaled = rotated * root[None, :]
        curvature = scaled.T @ scaled + ridge * jnp.eye(size, dtype=x.dtype)
        solved, volume = eliminate(curvature, jnp.concatenate([scaled.T @ y, scaled.T], axis=1))
        weights, inner = solved[:, : y.shape[1]], solved[:, y.shape[1] :]
        residual = y - scaled @ weights
        leverage = (scaled * inner.T).sum(axis=1)
        volume = volume + (count - size) * jnp.log(ridge) / 2
        fit = (y * residual).sum(axis=0) / ridge
        return basis @ (root[:, None] * weights), residual / _rest(leverage), _evidence(fit, volume, count)

    return Fits(*jax.vmap(one)(*candidates))


def _evidence(fit: Array, volume: Array, count: Array) -> Array:
    """Of Gaussian data whose noise variance is unknown (and put at its most likely value), summed over outputs."""
    return (-count / 2 * jnp.log(jnp.maximum(fit, 1e-20)) - volume).sum()


def _rest(leverage: Array) -> Array:
    return jnp.maximum(1 - leverage, 1e-4)[:, None]


def _logistic(x: Array, y: Array, mask: Array, basis: Array, candidates: tuple[Array, Array], ridge: Value) -> Fits:
    """Labels 0 and 1: Newton's method, evidence by Laplace's approximation, one Newton step back for each left-out row.

    What a left-out prediction misses is the label minus the probability, whose square is the Brier score.
    """
    size = x.shape[1]
    rotated = x @ basis

    def one(bulk: Array, spikes: Array) -> tuple[Array, Array, Array]:
        root = jnp.sqrt(bulk + spikes)
        scaled = rotated * root[None, :]

        def curvature(weights: Array) -> tuple[Array, Array, Array]:
            chance = jax.nn.sigmoid(scaled @ weights)
            spread = jnp.where(mask, jnp.maximum(chance * (1 - chance), 1e-6), 0)
            hessian = (scaled * spread[:, None]).T @ scaled + ridge * jnp.eye(size, dtype=x.dtype)
            return chance, spread, hessian

        def step(weights: Array, _: None) -> tuple[Array, None]:
            chance, hessian = curvature(weights)[::2]
            slope = scaled.T @ jnp.where(mask, chance - y[:, 0], 0) + ridge * weights
            move = eliminate(hessian, slope[:, None])[0][:, 0]
            return weights - move / jnp.maximum(1, jnp.linalg.norm(move) / 5), None

        weights, _ = jax.lax.scan(step, jnp.zeros(size, x.dtype), length=NEWTON_STEPS)
        chance, spread, hessian = curvature(weights)
        solved, volume = eliminate(hessian, scaled.T)
        logits = scaled @ weights
        loss = jnp.where(mask, jax.nn.softplus(logits) - y[:, 0] * logits, 0).sum()
        volume = volume - size * jnp.log(ridge) / 2
        evidence = -loss - ridge * jnp.square(weights).sum() / 2 - volume
        inner = (scaled * solved.T).sum(axis=1)
        without = logits + inner * (chance - y[:, 0]) / _rest(spread * inner)[:, 0]
        missed = jnp.where(mask, y[:, 0] - jax.nn.sigmoid(without), 0)
        return (basis @ (root * weights))[:, None], missed[:, None], evidence

    return Fits(*jax.vmap(one)(*candidates))

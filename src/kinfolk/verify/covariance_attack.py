"""An attack on covariance sharing that sees nothing but the other clients' output models.

The other clients know their own models before the proximal step and after it. The step is one symmetric matrix for
everybody, so a few clients that put their models together solve for that matrix, undo the shrinking of its eigenvalues,
and hold the noisy second moment, from which they subtract what is theirs.
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk.accounting import composition, noise_for_budget
from kinfolk.accounting.noise_for_budget import Case
from kinfolk.privacy.mechanisms import Cost, LaplaceSum
from kinfolk.privacy.moments import squares
from kinfolk.privacy.release import new_meter
from kinfolk.verify.attack import Problem, Rule
from kinfolk.verify.covariance_iterative import Iterative

AMOUNT = 0.5
"""Step size times strength: what is taken off every singular value. Public, like all hyper-parameters."""
ROOM = 2e-3
"""An eigenvalue below minus this cannot happen with the client: it leaves room for float32."""


def models() -> Array:
    """Four clients' models of norm at most 1; the first is the canary, of norm 1."""
    own = np.array([[1, 1, 1], [1, 0, 0], [0, 0.8, 0], [0.3, 0, 0.9]], np.float32)
    return jnp.asarray(own / np.maximum(np.linalg.norm(own, axis=1, keepdims=True), 1))


def recovered(before: Array, after: Array) -> Array:
    """The noisy second moment, from clients' models before and after the proximal step."""
    matrix = jnp.linalg.solve(before.T @ before, before.T @ after)
    factors, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    values = jnp.square(AMOUNT / jnp.maximum(1 - factors, 1e-6))
    return (vectors * values[None, :]) @ vectors.T


def output_models(noise: str, epsilon: float, delta: float) -> Problem:
    """One round of the iterative method, as its other clients see it by their output models.

    For `wishart_as_published` what is scored is whether the moment is impossible with the canary; for `gaussian` the
    moment itself, with the rejection set from pilot runs.
    """
    settings = Iterative(strength=AMOUNT, step_size=1.0, clip=1.0, shift=0.0, noise=noise)
    sound = noise == "gaussian"
    level = noise_for_budget.noise_multipliers([Case(epsilon, delta, 1)])[0] if sound else epsilon
    exact = models().T @ models()

    def observe(key: Array, present: Array, noise: Array) -> Array:
        everybody = models().at[0].multiply(present)
        own = level * noise if sound else level / jnp.square(noise)
        output = settings.shrunk(key, everybody, jnp.float32(own))
        if sound:
            moment = recovered(models()[1:], output[1:])
            return jnp.concatenate([moment[np.triu_indices(3)], output[1:].ravel()])
        return -jnp.linalg.eigvalsh(recovered(models()[1:], output[1:]) - exact)[:1]

    claim = composition.epsilon([(Cost("gaussian", level), 1)], delta) if sound else epsilon
    rule = None if sound else Rule(np.zeros(1), np.ones(1), ROOM, likely_present=False)
    name = "covariance sharing, output models" + ("" if sound else ", as published")
    return Problem(name, "client", "output_models", claim, delta, observe, rule, private=sound)


def covariance_outputs(epsilon: float = 2.0, delta: float = 0.01) -> Problem:
    """The sound iterative method, through the other clients' output models."""
    return replace(output_models("gaussian", epsilon, delta), name="covariance_outputs")


def covariance_outputs_as_published(epsilon: float = 0.1, delta: float = 1e-5) -> Problem:
    """The published iterative method, likewise."""
    return replace(output_models("wishart_as_published", epsilon, delta), name="covariance_outputs_as_published")


def laplace_squares(epsilon: float = 1.0, delta: float = 1e-6) -> Problem:
    """One release of squared models with Laplace noise: all of the canary's is in one feature."""
    mechanism = LaplaceSum(jnp.float32(2), jnp.float32(noise_for_budget.laplace_multiplier(epsilon, 1)))

    def observe(key: Array, present: Array, noise: Array) -> Array:
        changed = replace(mechanism, noise_multiplier=noise * mechanism.noise_multiplier)
        units = (100 * jnp.eye(4, 3, dtype=jnp.float32)[:, :, None], jnp.ones(4), jnp.arange(4))
        mask = jnp.ones(4, bool).at[0].set(present > 0)
        return changed("squares", new_meter(key, ("squares",)), squares(), (), units, mask)[0]

    claim = composition.epsilon([(cost, 1) for cost in mechanism.costs()], delta)
    return Problem("laplace_squares", "client", "published", claim, delta, observe)


def problems() -> list[Problem]:
    """The published algorithm at three claims, and the sound one."""
    published = [output_models("wishart_as_published", epsilon, 1e-5) for epsilon in (0.1, 0.5, 1.0)]
    return [*published, output_models("gaussian", 0.5, 0.01), output_models("gaussian", 2.0, 0.01)]

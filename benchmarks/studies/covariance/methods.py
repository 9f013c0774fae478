"""The methods that are compared, on repetitions stacked along a leading axis.

Settings are searched on repetitions of their own (other data, other noise): not private, and said so in the results.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.studies.covariance import baselines
from benchmarks.studies.covariance.one_shot import one_shot
from benchmarks.studies.covariance.schedules import noise_multipliers, published_per_round, shares
from benchmarks.studies.covariance.tasks_matrix import PUBLISHED, ByTasks
from kinfolk.accounting import group_privacy, noise_for_budget
from kinfolk.accounting.noise_for_budget import Case
from kinfolk.verify.covariance_iterative import Iterative


@dataclass(frozen=True)
class Repetitions:
    """Stacked repetitions: rows (repetitions, clients, rows, features), targets, masks, and the same for tests."""

    x: Array
    y: Array
    mask: Array
    test_x: Array
    test_y: Array
    test_mask: Array

    @property
    def clients(self) -> int:
        return self.x.shape[1]

    def keys(self, seed: int) -> Array:
        return jax.random.split(jax.random.key(seed), self.x.shape[0])

    def less(self, middle: float) -> Repetitions:
        """The same with this much taken from every target."""
        y, test_y = (jnp.where(mask, y - middle, 0) for y, mask in ((self.y, self.mask), (self.test_y, self.test_mask)))
        return replace(self, y=y, test_y=test_y)

    def judged_by(self, first: int) -> Repetitions:
        """The same, with test rows of the first so many clients only."""
        return replace(self, test_mask=self.test_mask & (jnp.arange(self.clients) < first)[None, :, None])

    def of_first(self, count: int) -> Repetitions:
        """The first few clients."""
        return Repetitions(*(getattr(self, name)[:, :count] for name in self.__dataclass_fields__))

    def only(self, count: int) -> Repetitions:
        """The first few repetitions."""
        return Repetitions(*(getattr(self, name)[:count] for name in self.__dataclass_fields__))


@jax.jit
def error(models: Array, x: Array, y: Array, mask: Array) -> Array:
    """Squared error of all clients together over the variance of their targets, for one repetition."""
    rows = mask.sum().astype(y.dtype)
    missed = jnp.where(mask, jnp.square(y - jnp.einsum("mnd,md->mn", x, models)), 0).sum() / rows
    mean = jnp.where(mask, y, 0).sum() / rows
    return missed / (jnp.where(mask, jnp.square(y - mean), 0).sum() / rows)


_iterative = jax.jit(Iterative.run)
_by_tasks = jax.jit(ByTasks.run)
_relationship = jax.jit(baselines.relationship, static_argnames="rounds")
_ridge, _lasso, _trace, _groups, _averaged = (
    jax.jit(function)
    for function in (
        baselines.ridge_alone,
        baselines.lasso_alone,
        baselines.trace_norm,
        baselines.group_lasso,
        baselines.averaged,
    )
)
"""Compiled once, whatever the settings."""

STRENGTHS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Of the iterative method, from which a search chooses."""
CLIPS = (0.03, 0.1, 0.3, 0.5, 1.0)
"""Likewise, in mean norms of the models that clients have alone."""
SHIFTS = (-0.4, 0.0, 0.5, 1.0, 1.3, 2.0, 4.0)
"""Likewise, of sound noise, in largest eigenvalues of it: well above 1 strong noise leaves what clients have alone."""

Fit = Callable[[Array, Array, Array, Array], Array]
"""`fit(key, x, y, mask)`: the models of all clients in one repetition."""


def errors(data: Repetitions, fit: Fit, seed: int = 0) -> np.ndarray:
    """Test error of each repetition; one repetition at a time, so that memory stays small."""
    parts = zip(data.keys(seed), data.x, data.y, data.mask, data.test_x, data.test_y, data.test_mask, strict=True)
    return np.array([float(error(fit(key, x, y, mask), *test)) for key, x, y, mask, *test in parts])


def whole_noise(epsilon: float, delta: float, uses: int = 1) -> float:
    return noise_for_budget.noise_multipliers([Case(epsilon, delta, uses)])[0]


def fit_one_shot(
    epsilon: float, delta: float, ridge: float, pattern: str, laplace: bool = False, only_shared: bool = False
) -> Fit:
    noise = noise_for_budget.laplace_multiplier(epsilon, 1) if laplace else whole_noise(epsilon, delta)

    def fit(key: Array, x: Array, y: Array, mask: Array) -> Array:
        return one_shot(key, (x, y, mask), ridge, noise, pattern, laplace=laplace, only_shared=only_shared)[1]

    return fit


def fit_alone(ridge: float) -> Fit:
    return lambda key, x, y, mask: _ridge(x, y, ridge)


def fit_known(used: int, ridge: float) -> Fit:
    """Ridge alone by somebody who knows that only the first `used` features matter: what no release can beat."""

    def fit(key: Array, x: Array, y: Array, mask: Array) -> Array:
        known = (jnp.arange(x.shape[2]) < used).astype(x.dtype)
        return _ridge(x * known[None, None, :], y, ridge * used / x.shape[2])

    return fit


def levels_for(epsilon: float, delta: float, rounds: int, noise: str, weights: np.ndarray | None) -> np.ndarray:
    """Each round's noise multiplier, or its epsilon by the published composition."""
    if noise == "gaussian":
        share = shares("equal", rounds) if weights is None else weights**2 / (weights**2).sum()
        return noise_multipliers(whole_noise(epsilon, delta), share)
    return published_per_round(epsilon, delta, np.ones(rounds) if weights is None else weights)


def fit_iterative(
    settings: Iterative,
    found: Mapping[str, float],
    epsilon: float,
    delta: float,
    ridge: float,
    weights: np.ndarray | None = None,
) -> Fit:
    """From every client's own ridge fit, which is free, with settings that a search has found."""
    own = {name: value for name, value in found.items() if name != "rounds"}
    settings = jax.tree.map(jnp.float32, replace(settings, **own))  # type: ignore[arg-type]
    levels = levels_for(epsilon, delta, int(found["rounds"]), settings.noise, weights)
    levels = jnp.asarray(levels, jnp.float32)

    def fit(key: Array, x: Array, y: Array, mask: Array) -> Array:
        return _iterative(settings, key, x, y, mask, levels, _ridge(x, y, ridge))

    return fit


@jax.jit
def _tried(
    base: Iterative, columns: Any, levels: Array, keys: Array, start: Array, rows: tuple[Array, Array, Array], test: Any
) -> Array:
    """The mean error of every setting, one after another."""

    def setting(one: tuple[Array, Array, Array]) -> Array:
        strength, clip, shift = one
        own = replace(base, strength=strength, clip=clip, shift=shift)
        models = jax.vmap(own.run, in_axes=(0, 0, 0, 0, None, 0))(keys, *rows, levels, start)
        return jax.vmap(error)(models, *test).mean()

    return jax.lax.map(setting, columns)


def search_iterative(
    data: Repetitions,
    base: Iterative,
    epsilon: float,
    delta: float,
    ridge: float,
    rounds: Sequence[int],
    weights: np.ndarray | None = None,
) -> dict[str, float]:
    """Strength, clip, shift and rounds with the smallest mean error on repetitions that are used for nothing else.

    `weights`: how the budget is divided over the rounds, of which there is one number then.
    """
    start = jax.vmap(lambda x, y: baselines.ridge_alone(x, y, ridge))(data.x, data.y)
    norm = float(jnp.linalg.norm(start, axis=-1).mean())
    shifts = SHIFTS if base.noise == "gaussian" else (0.0,)
    grid = list(itertools.product(STRENGTHS, norm * np.array(CLIPS), shifts))
    columns = [jnp.asarray(column, jnp.float32) for column in zip(*grid, strict=True)]

    best: tuple[float, dict[str, float]] = (np.inf, {})
    for turns in rounds:
        levels = jnp.asarray(levels_for(epsilon, delta, turns, base.noise, weights), jnp.float32)
        test, keys = (data.test_x, data.test_y, data.test_mask), data.keys(77)
        found = np.asarray(_tried(base, tuple(columns), levels, keys, start, (data.x, data.y, data.mask), test))
        index = int(np.nanargmin(found))
        strength, clip, shift = (float(value) for value in grid[index])
        setting = {"strength": strength, "clip": clip, "shift": shift, "rounds": turns}
        best = min(best, (float(found[index]), setting), key=lambda pair: pair[0])
    return best[1]


def search(data: Repetitions, make: Callable[[Any], Fit], grid: Sequence[Any]) -> Any:
    """The setting with the smallest mean error on repetitions that are used for nothing else."""
    found = [errors(data, make(value), 77).mean() for value in grid]
    return grid[int(np.nanargmin(found))]


def fit_by_tasks(settings: ByTasks, rounds: int, epsilon: float, delta: float, ridge: float) -> Fit:
    """The tasks' matrix in place of the features', from every client's own ridge fit."""
    levels = jnp.asarray(levels_for(epsilon, delta, rounds, settings.noise, None), jnp.float32)
    settings = jax.tree.map(jnp.float32, settings)
    return lambda key, x, y, mask: _by_tasks(settings, key, x, y, levels, _ridge(x, y, ridge))


def search_by_tasks(data: Repetitions, base: ByTasks, epsilon: float, delta: float, ridge: float) -> Fit:
    """The best of strength, clip, shift and rounds on repetitions that are used for nothing else."""
    norm = float(
        jnp.linalg.norm(jax.vmap(lambda x, y: baselines.ridge_alone(x, y, ridge))(data.x, data.y), axis=-1).mean()
    )
    strengths, shifts = (0.001, 0.01, 0.1, 1.0), (0.0, 1.0)
    if base.use == "noised":  # strong ones leave little of the noise, and of the models
        strengths = (*strengths, 10.0, 100.0)
    if base.use in ("noised", PUBLISHED):  # noise is in the models, or positive
        shifts = (0.0,)

    def make(setting: tuple[float, float, float, int]) -> Fit:
        strength, clip, shift, rounds = setting
        own = replace(base, strength=strength, clip=clip * norm, shift=shift)
        return fit_by_tasks(own, rounds, epsilon, delta, ridge)

    return make(search(data, make, list(itertools.product(strengths, (0.1, 1.0), shifts, (1, 3)))))


def fit_lasso(strength: float) -> Fit:
    return lambda key, x, y, mask: _lasso(x, y, strength)


def fit_trace(strength: float) -> Fit:
    return lambda key, x, y, mask: _trace(x, y, strength)


def fit_groups(strength: float) -> Fit:
    return lambda key, x, y, mask: _groups(x, y, strength)


def fit_relationship(strength: float, ridge: float = 1e-3, noise: float = 0.0, rounds: int = 3) -> Fit:
    return lambda key, x, y, mask: _relationship(key, x, y, strength, ridge, noise, rounds=rounds)


def fit_averaged(ridge: float, noise: float = 0.0) -> Fit:
    return lambda key, x, y, mask: _averaged(key, x, y, ridge, noise)


RIDGES = tuple(np.geomspace(0.1, 1e6, 15).tolist())
"""From which DP-MTRL and DP-AGGR choose: a strong one makes small models, and needs little noise."""
SHARES = (0.1, 1.0, 10.0)
"""Of the ridge, from which DP-MTRL chooses the strength of its relations."""


def shared_relationship(trial: Repetitions) -> Fit:
    """MTRL without privacy, with the best ridge and strength on other data."""
    grid = list(itertools.product((0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0), (0.001, 0.01, 0.1, 1.0)))
    ridge, strength = search(trial, lambda pair: fit_relationship(pair[1], pair[0]), grid)
    return fit_relationship(strength, ridge)


def private_relationship(trial: Repetitions, epsilon: float, delta: float, rows: int) -> Fit:
    """DP-MTRL that protects a whole client of at most `rows` examples, with the best of its settings on other data:
    ridge, strength of the relations, and alternations."""

    def make(setting: tuple[float, float, int]) -> Fit:
        ridge, strength, rounds = setting
        noise = group_privacy.noise_for_client(epsilon, delta, rounds, rows)
        return fit_relationship(strength, ridge, noise, rounds)

    once = [(ridge, 0.0, 1) for ridge in RIDGES]  # in the first alternation strength is ridge
    twice = [(ridge, share * ridge, 2) for ridge in RIDGES[::2] for share in SHARES]
    return make(search(trial, make, [*once, *twice]))


def private_averaged(trial: Repetitions, epsilon: float, delta: float, rows: int) -> Fit:
    """DP-AGGR that protects a whole client of at most `rows` examples, with the best ridge on other data."""
    noise = group_privacy.noise_for_client(epsilon, delta, 1, rows)
    return fit_averaged(search(trial, lambda ridge: fit_averaged(ridge, noise), RIDGES), noise)

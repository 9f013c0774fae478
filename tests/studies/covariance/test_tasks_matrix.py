"""`W^T W` in place of `W W^T`: the same operator, of which a client has a number only; noise as large as it must be."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.studies.covariance import baselines
from benchmarks.studies.covariance.tasks import synthetic_tasks
from benchmarks.studies.covariance.tasks_matrix import PUBLISHED, USES, ByTasks
from kinfolk.theory.covariance_noise import tasks_sensitivity
from kinfolk.verify.covariance_iterative import WARNING, Iterative

KEY = jax.random.key(0)
TASKS = synthetic_tasks("low_rank", 0, clients=60, rows=12, features=12, rank=2, test_rows=40)
ROWS = jnp.asarray(TASKS.x), jnp.asarray(TASKS.y)
ALONE = baselines.ridge_alone(*ROWS, 0.01)
BASE = ByTasks(strength=0.3, step_size=2.0, clip=1e3)


def test_with_everybodys_models_it_is_the_features_matrix() -> None:
    """Without noise: both operators are the trace norm's. That one is not private, and is called so."""
    handed = replace(BASE, use="handed out")
    found = handed.run(KEY, *ROWS, jnp.zeros(4), ALONE)
    features = Iterative(strength=0.3, step_size=2.0, clip=1e3, noise="none")
    expected = features.run(KEY, *ROWS, jnp.ones(ROWS[1].shape, bool), jnp.zeros(4), ALONE)
    np.testing.assert_allclose(found, expected, atol=2e-3)
    assert TASKS.error(np.asarray(found)) < 0.9 * TASKS.error(np.asarray(ALONE))
    assert [replace(BASE, use=use).label for use in USES] == ["", "", WARNING, WARNING]


def test_of_its_own_a_client_has_one_number() -> None:
    shrunk = np.asarray(BASE.shrunk(KEY, ALONE, 0.0))
    ratios = shrunk / np.asarray(ALONE)
    np.testing.assert_allclose(ratios, ratios[:, :1] * np.ones_like(ratios), rtol=1e-3)
    assert np.ptp(ratios[:, 0]) > 0.01


@pytest.mark.parametrize("use", USES)
def test_noise_is_that_of_the_sensitivity(use: str) -> None:
    """Whatever leaves differs from what it is without noise by multiplier times sensitivity."""
    settings, level, clients = replace(BASE, clip=0.5, use=use), 3.0, len(ALONE)
    if use == PUBLISHED:  # positive, of mean (m + 1) K^2 / (2 epsilon) on the diagonal
        noisy, shown, _ = settings.released(KEY, ALONE, level)
        exact, *_ = settings.released(KEY, ALONE, 1e12)
        assert np.linalg.eigvalsh(np.asarray(noisy - exact))[0] >= -1e-4
        assert float(jnp.diag(noisy - exact).mean()) == pytest.approx((clients + 1) * 0.25 / (2 * level), rel=0.1)
        assert bool((shown == ALONE).all())
        return
    (exact, models, _), (noisy, shown, _) = (settings.released(KEY, ALONE, z) for z in (0.0, level))
    if use == "noised":
        assert np.linalg.norm(models, axis=1).max() <= 0.5 + 1e-6
        assert float((shown - models).std()) == pytest.approx(level * 0.5, rel=0.1)
        np.testing.assert_allclose(noisy, shown @ shown.T, rtol=1e-4)
        return
    deviation = level * tasks_sensitivity(clients, 0.5)
    off = np.asarray(noisy - exact)[np.triu_indices(clients, 1)]
    assert float(off.std()) == pytest.approx(deviation / np.sqrt(2), rel=0.1)
    assert float(jnp.diag(noisy - exact).std()) == pytest.approx(deviation, rel=0.35)
    assert bool((shown == (0 if use == "own" else ALONE)).all())

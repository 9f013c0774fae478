"""What noise does to one proximal step of covariance sharing: lemmas 2 and 3 and proposition 1 of Liang et al.

Models C (features x clients) are to be shrunk by `min_W 1/2 |W - C|^2 + t g(W)`, g the trace norm (low-rank) or the sum
of the rows' norms (group-sparse), `t = step size * strength`. That needs `C C^T` only; the noisy step uses `C C^T + E`.
Both lemmas bound how much worse than the smallest value its result is (times the step size, here and below).

* **Lemma 3** (group-sparse): holds, row by row; loose, since it is of first order in the noise and the excess of
  second.
* **Lemma 2** (low-rank): holds wherever it was tried: never above a tenth of the bound where a direction is above the
  threshold, which it asks for, and never above a quarter where none is. But its condition `2 |E| <=
  sqrt(sigma_j) - sqrt(sigma_{j+1})` compares squared models with roots of models, and so does its term `2 k |E|`:
  measuring features in other units makes the condition empty or impossible. In the paper's own experiments it does not
  hold (`gap_needed`).
* **Proposition 1** (strong noise is training alone): holds in the limit, and only for noise that is positive: every
  factor is at least `1 - t / sqrt(smallest eigenvalue of E)`. Clipping to K stays (not in
  `covariance_regularized`, which clips what is released only). Sound noise has it from its shift.
"""

from __future__ import annotations

import math

import numpy as np

from kinfolk.theory.ranges import FINITE, NOT_NEGATIVE, POSITIVE, require, require_each


def shrunk_low_rank(models: np.ndarray, noise: np.ndarray, threshold: float) -> np.ndarray:
    """Algorithm 2's step: `U max(0, 1 - t / sqrt(L)) U^T C`, with U and L of `C C^T + E`; 0 where L is not above 0.

    `models`: C, features x clients. `noise`: E, symmetric. `threshold`: t.
    """
    models, noise = _arrays(models, noise)
    require(NOT_NEGATIVE, threshold=threshold)
    values, axes = np.linalg.eigh(models @ models.T + noise)
    return (axes * _kept(values, threshold)) @ axes.T @ models


def shrunk_group_sparse(models: np.ndarray, noise: np.ndarray, threshold: float) -> np.ndarray:
    """Algorithm 3's step: row j times `max(0, 1 - t / sqrt(|C_j|^2 + E_jj))`, with the sign of the sum put aside.

    `models`: C, features x clients. `noise`: the diagonal of E. `threshold`: t.
    """
    models, noise = _arrays(models, noise, diagonal=True)
    require(NOT_NEGATIVE, threshold=threshold)
    return _kept(np.abs((models**2).sum(axis=1) + noise), threshold)[:, None] * models


def low_rank_excess(models: np.ndarray, noise: np.ndarray, threshold: float) -> float:
    """How much above the smallest value algorithm 2's step ends.

    `models`: C. `noise`: E. `threshold`: t.
    """
    models, noise = _arrays(models, noise)
    found = shrunk_low_rank(models, noise, threshold)
    value = 0.5 * ((found - models) ** 2).sum() + threshold * np.linalg.svd(found, compute_uv=False).sum()
    return float(value) - _smallest(np.linalg.svd(models, compute_uv=False), threshold)


def group_sparse_excess(models: np.ndarray, noise: np.ndarray, threshold: float) -> float:
    """How much above the smallest value algorithm 3's step ends.

    `models`: C. `noise`: the diagonal of E. `threshold`: t.
    """
    models, noise = _arrays(models, noise, diagonal=True)
    found = shrunk_group_sparse(models, noise, threshold)
    value = 0.5 * ((found - models) ** 2).sum() + threshold * np.linalg.norm(found, axis=1).sum()
    return float(value) - _smallest(np.linalg.norm(models, axis=1), threshold)


def low_rank_bound(models: np.ndarray, noise: np.ndarray, threshold: float) -> float:
    """Lemma 2's right-hand side, times the step size.

    `models`: C. `noise`: E. `threshold`: t.
    """
    models, noise = _arrays(models, noise)
    require(POSITIVE, threshold=threshold)
    values, size = np.linalg.svd(models, compute_uv=False), np.linalg.norm(noise, 2)
    above, rank = int((values > threshold).sum()), int((values > 1e-12 * values[0]).sum())
    first = (above**2 / threshold + 2 * above) * size + max(0, rank - above) * np.sqrt(size)
    return float((values[0] ** 2 / threshold + values[0]) * first)


def group_sparse_bound(models: np.ndarray, noise: np.ndarray, threshold: float) -> float:
    """Lemma 3's right-hand side, times the step size.

    `models`: C. `noise`: the diagonal of E. `threshold`: t.
    """
    models, noise = _arrays(models, noise, diagonal=True)
    require(POSITIVE, threshold=threshold)
    norms, size = np.linalg.norm(models, axis=1), np.abs(noise).max()
    above, used = int((norms >= threshold).sum()), int((norms > 0).sum())
    first = above / (2 * threshold) * size + max(0, used - above) * np.sqrt(size)
    return float((used / threshold * norms.max() ** 2 + norms.max()) * first)


def gap_needed(models: np.ndarray, noise: np.ndarray, threshold: float) -> float:
    """Twice the noise over the smallest of the gaps in lemma 2's condition: it holds where this is at most 1.

    0 where nothing is above the threshold: there is no gap then, but the lemma is not about that case either.

    `models`: C. `noise`: E. `threshold`: t.
    """
    models, noise = _arrays(models, noise)
    require(NOT_NEGATIVE, threshold=threshold)
    values = np.append(np.linalg.svd(models, compute_uv=False), 0.0)
    above, twice = int((values > threshold).sum()), float(2 * np.linalg.norm(noise, 2))
    gap = float(np.min(np.sqrt(values[:above]) - np.sqrt(values[1 : above + 1]), initial=np.inf))
    return twice / gap if gap else math.inf if twice else 0.0


def _arrays(models: np.ndarray, noise: np.ndarray, *, diagonal: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Models and noise as arrays whose shapes go together."""
    require_each(FINITE, models=models, noise=noise)
    models, noise = np.asarray(models, float), np.asarray(noise, float)
    if models.ndim != 2 or noise.shape != models.shape[:1] * (1 if diagonal else 2):
        raise ValueError(
            f"models of shape {models.shape} and noise of shape {noise.shape}: models must be features x clients, and "
            f"noise {'its diagonal, one number for each feature' if diagonal else 'features x features'}"
        )
    return models, noise


def _kept(values: np.ndarray, threshold: float) -> np.ndarray:
    positive = np.maximum(values, 1e-300)
    return np.where(values > 0, np.maximum(0.0, 1 - threshold / np.sqrt(positive)), 0.0)


def _smallest(values: np.ndarray, threshold: float) -> float:
    return float(np.where(values > threshold, threshold * values - threshold**2 / 2, values**2 / 2).sum())

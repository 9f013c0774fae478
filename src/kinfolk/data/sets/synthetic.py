"""A synthetic federation of schools: linear tasks that differ from school to school, and schools of unequal size."""

from __future__ import annotations

import numpy as np

from kinfolk.data.federation import Federation, from_rows


def synthetic_schools(
    *,
    clients: int = 60,
    features: int = 8,
    least: int = 15,
    most: int = 250,
    spread: float = 0.25,
    noise: float = 0.3,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Federation:
    """`clients` schools with `least` to `most` pupils each.

    School k's true weights are a common vector plus `spread` times a standard normal one. Features lie in [-1, 1],
    so the scaling is public. The tasks are always the same; `seed` chooses the split into training and test rows.
    """
    generator = np.random.default_rng(20240501)
    sizes = np.round(np.geomspace(least, most, clients)).astype(int)
    centre = generator.normal(size=features + 1) * 0.5
    x, y, names = [], [], []
    for k, size in enumerate(sizes):
        weights = centre + spread * generator.normal(size=features + 1)
        rows = generator.uniform(-1, 1, size=(size, features))
        x.append(rows)
        y.append(rows @ weights[:-1] + weights[-1] + noise * generator.normal(size=size))
        names += [f"school-{k:02d}"] * size
    return from_rows(
        np.concatenate(x).astype(np.float32),
        np.concatenate(y).astype(np.float32),
        names,
        test_fraction=test_fraction,
        seed=seed,
        name="synthetic_schools",
        scaling="public bounds",
    )

"""Made federations of the shape of data sets that cannot be had: they exercise the code, and say nothing of a paper."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from scipy.sparse import csr_array

from benchmarks.studies.covariance.classes import Split
from kinfolk.data.federation import Federation, from_rows
from kinfolk.data.sparse import from_sparse


def like_stackoverflow(
    seed: int, *, users: int = 4, words: int = 10_000, tags: int = 500, rows: int = 25
) -> Federation:
    """Sparse bags of words with a tag each: a tag has words of its own, a user favourite tags."""
    generator = np.random.default_rng((seed, 3))
    total = users * rows
    client = np.repeat(np.arange(users), rows)
    favourite = generator.dirichlet(np.full(tags, 0.3), size=users)
    tag = np.array([generator.choice(tags, p=favourite[k]) for k in client])
    common = generator.integers(0, words, size=(total, 6))
    own = (tag[:, None] * (words // tags) + generator.integers(0, words // tags, size=(total, 4))) % words
    columns = np.concatenate([common, own], axis=1)
    matrix = csr_array(
        (np.full(columns.size, 0.1, np.float32), columns.ravel(), np.arange(0, columns.size + 1, 10)),
        shape=(total, words),
    )
    return from_sparse(
        matrix, tag, client, outcome="classes", classes=tags, seed=seed, name="like_stackoverflow", test_fraction=0.2
    )


def like_celeba(seed: int, *, celebrities: int = 40, side: int = 84, rows: int = 20) -> Federation:
    """Colour pictures with a stroke that curves up or down, in front of each client's own background."""
    generator = np.random.default_rng((seed, 5))
    total = celebrities * rows
    client = np.repeat(np.arange(celebrities), rows)
    smile = generator.integers(0, 2, size=total)
    pictures = (
        0.3 * generator.normal(size=(total, side, side, 3)) + generator.normal(size=(celebrities, 1, 1, 3))[client]
    )
    place = np.arange(side)
    curve = np.round(((place - side / 2) / (side / 2)) ** 2 * side / 4).astype(int)
    for n in range(total):
        height = side // 2 + (side // 4 - curve if smile[n] else curve - side // 4)
        pictures[n, np.clip(height, 0, side - 1), place] += 1.0
    return from_rows(
        np.clip(pictures / 4, -1, 1).astype(np.float32),
        smile.astype(np.int32),
        client,
        outcome="binary",
        seed=seed,
        name="like_celeba",
        test_fraction=0.2,
    )


def like_gleam(seed: int, *, silos: int = 38, features: int = 40, rows: int = 120) -> Federation:
    """Two classes by a linear rule of each silo's own, around a common one."""
    generator = np.random.default_rng((seed, 7))
    centre = generator.normal(size=features)
    x, y, client = [], [], []
    for k in range(silos):
        rule = centre + 0.7 * generator.normal(size=features)
        own = generator.normal(size=(rows, features)).astype(np.float32)
        x.append(own)
        y.append((own @ rule + generator.normal(size=rows) * np.sqrt(features) > 0).astype(np.int32))
        client += [k] * rows
    return from_rows(
        np.concatenate(x), np.concatenate(y), np.array(client), outcome="binary", seed=seed, name="like_gleam"
    )


def like_lsoa(seed: int, *, tasks: int = 41, features: int = 60, rows: int = 60) -> Split:
    """Yes or no by a linear rule of each task's own, a mixture of five, of answers that are yes or no themselves."""
    generator = np.random.default_rng((seed, 11))
    rules = generator.normal(size=(tasks, 5)) @ generator.normal(size=(5, features))

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        x = (generator.random((tasks, count, features)) < 0.3) - 0.3
        x /= np.linalg.norm(x, axis=2, keepdims=True)
        chance = 1 / (1 + np.exp(-2 * np.einsum("mnd,md->mn", x, rules)))
        return x.astype(np.float32), (generator.random(chance.shape) < chance).astype(np.float32)

    (x, y), (test_x, test_y) = draw(rows), draw(3 * rows)
    train = jnp.asarray(x), jnp.asarray(y), jnp.ones(y.shape, bool)
    return Split(train, list(zip(test_x, test_y, strict=True)))

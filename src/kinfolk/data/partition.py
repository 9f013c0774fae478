"""Clients for data that has none: who gets which rows, and what makes clients differ.

A partitioner returns the client's number of every row, for `from_rows`; rows of number -1 belong to nobody. What looks
at labels to divide rows does so before any client has them: it belongs to the study's design, not to an account.

>>> labels = np.arange(12) % 3
>>> np.bincount(classes_per_client(labels, clients=3, classes=1, seed=0)).tolist()
[4, 4, 4]
"""

from __future__ import annotations

import numpy as np

from kinfolk.data.federation import DataError

PATCH = 2
"""Pixels along the side of a patch that covers a part of an image."""


def dirichlet(labels: np.ndarray, *, clients: int, concentration: float, seed: int = 0, least: int = 1) -> np.ndarray:
    """Every client's mixture of labels is drawn from a Dirichlet distribution: the usual heterogeneous silos.

    `labels`: one per row. `clients`: how many. `concentration`: small (0.1) for clients with few labels each, large
    (100) for clients that are alike. `seed`: chooses the mixtures and the rows. `least`: rows that every client has at
    least; mixtures are drawn again until that is so.
    """
    _checked("clients", clients, len(labels))
    if not concentration > 0:
        raise DataError(
            f"concentration={concentration} must be above 0: 0.1 for few labels each, 100 for alike clients"
        )
    generator = np.random.default_rng(seed)
    for _ in range(1000):
        owner = np.full(len(labels), -1, np.int32)
        for value in np.unique(labels):
            rows = generator.permutation(np.flatnonzero(labels == value))
            shares = generator.dirichlet(np.full(clients, concentration))
            ends = np.round(np.cumsum(shares)[:-1] * len(rows)).astype(int)
            for client, own in enumerate(np.split(rows, ends)):
                owner[own] = client
        if np.bincount(owner, minlength=clients).min() >= least:
            return owner
    raise DataError(
        f"least={least} rows for each of clients={clients} were never reached with concentration={concentration}: "
        "raise concentration, or take fewer clients"
    )


def classes_per_client(labels: np.ndarray, *, clients: int, classes: int, seed: int = 0) -> np.ndarray:
    """Every client has rows of so many classes only, and shares each with others: in parts of random size.

    `labels`: one per row. `clients`: how many. `classes`: how many classes each client has. `seed`: chooses them.
    Classes are dealt in turn, so all are used about equally often; those that nobody was dealt are left out (-1).
    """
    values = np.unique(labels)
    _checked("classes", classes, len(values))
    _checked("clients", clients, len(labels))
    generator = np.random.default_rng(seed)
    dealt: dict[int, list[int]] = {int(value): [] for value in values}
    order: list[int] = []
    for client in range(clients):
        own: list[int] = []
        while len(own) < classes:
            if not set(order) - set(own):
                order = generator.permutation(values).tolist()
            own.append(next(value for value in order if value not in own))
            order.remove(own[-1])
        for value in own:
            dealt[value].append(client)
    owner = np.full(len(labels), -1, np.int32)
    for value, owners in dealt.items():
        rows = generator.permutation(np.flatnonzero(labels == value))
        shares = generator.uniform(0.4, 0.6, size=len(owners))
        ends = np.round(np.cumsum(shares / max(shares.sum(), 1e-9))[:-1] * len(rows)).astype(int)
        for client, own_rows in zip(owners, np.split(rows, ends), strict=False):
            owner[own_rows] = client
    return owner


def size_skew(rows: int, *, clients: int, spread: float = 1.0, least: int = 1, seed: int = 0) -> np.ndarray:
    """Clients of unequal size and otherwise alike: sizes are log-normal.

    `rows`: how many there are. `clients`: how many. `spread`: standard deviation of the logarithm; 0 for equal sizes.
    `least`: rows that every client has at least. `seed`: chooses sizes and rows.
    """
    if clients < 1 or clients * least > rows:
        raise DataError(f"clients={clients} with least={least} rows each need more than {rows} rows: take fewer")
    generator = np.random.default_rng(seed)
    weights = np.exp(spread * generator.normal(size=clients))
    sizes = least + np.floor(weights / weights.sum() * (rows - clients * least)).astype(int)
    sizes[np.argmax(sizes)] += rows - sizes.sum()
    owner = np.repeat(np.arange(clients, dtype=np.int32), sizes)
    return owner[generator.permutation(rows)]


def turned(images: np.ndarray, quarters: int) -> np.ndarray:
    """`images` (axes rows, height, width, ...) turned by so many `quarters` of a circle."""
    return np.rot90(images, quarters, axes=(1, 2))


def patches(shape: tuple[int, int], count: int, generator: np.random.Generator) -> np.ndarray:
    """Which pixels of an image of this `shape` are covered by `count` patches of 2x2, where `generator` puts them."""
    height, width = shape[0] // PATCH, shape[1] // PATCH
    tiles = np.zeros(height * width, bool)
    tiles[generator.permutation(height * width)[:count]] = True
    return np.kron(tiles.reshape(height, width), np.ones((PATCH, PATCH), bool))


def masked(images: np.ndarray, covered: np.ndarray, value: float = 1.0) -> np.ndarray:
    """`images` (axes rows, height, width) whose `covered` pixels are painted over with a `value`."""
    return np.where(covered, images.dtype.type(value), images)


def _checked(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise DataError(f"{name}={value} must be from 1 to {most}")

"""Clients for data that has none: who gets which rows, and what makes clients differ.

A partitioner returns the client's number of every row, for `from_rows`, which leaves out rows of number -1: they belong
to nobody. What looks at labels to divide rows does so before any client has them: it belongs to the study's design, not
to an account.

>>> labels = np.arange(12) % 3
>>> np.bincount(classes_per_client(labels, clients=3, classes=1, seed=0)).tolist()
[4, 4, 4]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from kinfolk import limits
from kinfolk.data.given_rows import NOBODY, DataError, check_number, drawing, whole_number

PATCH = 2
"""Pixels along the side of a patch that covers a part of an image."""
FEWER = "every client needs a row: take fewer clients"
CONCENTRATION = limits.above(0, 1e6, "0.1 for few labels each, 100 for alike clients")
SPREAD = limits.finite(0, 100, "1 for unequal sizes, 0 for equal ones")


def dirichlet(labels: ArrayLike, *, clients: int, concentration: float, seed: int = 0, least: int = 1) -> np.ndarray:
    """Every client's mixture of labels is drawn from a Dirichlet distribution: the usual heterogeneous silos.

    `labels`: one per row. `clients`: how many. `concentration`: small (0.1) for clients with few labels each, large
    (100) for clients that are alike. `seed`: chooses the mixtures and the rows. `least`: rows that every client has at
    least; mixtures are drawn again until that is so.
    """
    codes = _codes(labels)
    clients = whole_number("clients", clients, 1, len(codes), FEWER)
    least = whole_number("least", least, 1, len(codes), "a client without rows is none")
    check_number("concentration", concentration, CONCENTRATION)
    _require_rows(clients, least, len(codes))
    generator = drawing(seed)
    for _ in range(1000):
        owner = np.full(len(codes), NOBODY, np.int32)
        for value in range(codes.max() + 1):
            rows = generator.permutation(np.flatnonzero(codes == value))
            shares = generator.dirichlet(np.full(clients, concentration))
            ends = np.round(np.cumsum(shares)[:-1] * len(rows)).astype(int)
            owner[rows] = np.repeat(np.arange(clients), np.diff(ends, prepend=0, append=len(rows)))
        if np.bincount(owner, minlength=clients).min() >= least:
            return owner
    raise DataError(
        f"least={least} rows for each of clients={clients} were never reached with concentration={concentration}: "
        "raise concentration, or take fewer clients"
    )


def classes_per_client(labels: ArrayLike, *, clients: int, classes: int, seed: int = 0) -> np.ndarray:
    """Every client has rows of so many classes only, and shares each with others: in parts of random size.

    `labels`: one per row, numbers or words. `clients`: how many. `classes`: how many classes each client has. `seed`:
    chooses them. Classes are dealt in turn, so all are used about equally often; those that nobody was dealt are left
    out (-1).
    """
    codes = _codes(labels)
    values = np.arange(codes.max() + 1)
    classes = whole_number("classes", classes, 1, len(values), "labels have so many classes")
    clients = whole_number("clients", clients, 1, len(codes), FEWER)
    generator = drawing(seed)
    dealt: dict[int, list[int]] = {value: [] for value in values.tolist()}
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
    owner = np.full(len(codes), NOBODY, np.int32)
    for value, owners in dealt.items():
        rows = generator.permutation(np.flatnonzero(codes == value))
        shares = generator.uniform(0.4, 0.6, size=len(owners))
        ends = np.round(np.cumsum(shares / max(shares.sum(), 1e-9))[:-1] * len(rows)).astype(int)
        for client, own_rows in zip(owners, np.split(rows, ends), strict=False):
            owner[own_rows] = client
    had = np.unique(np.stack([owner, codes])[:, owner != NOBODY], axis=1)[0]
    if fewer := np.flatnonzero(np.bincount(had, minlength=clients) < classes).tolist():
        raise DataError(
            f"clients={clients} with classes={classes} each leave {len(fewer)} of them fewer classes, the first "
            f"of them {int((had == fewer[0]).sum())}, as rows are too few: take fewer clients, or fewer classes each"
        )
    return owner


def size_skew(rows: int, *, clients: int, spread: float = 1.0, least: int = 1, seed: int = 0) -> np.ndarray:
    """Clients of unequal size and otherwise alike: sizes are log-normal.

    `rows`: how many there are. `clients`: how many. `spread`: standard deviation of the logarithm; 0 for equal sizes.
    `least`: rows that every client has at least. `seed`: chooses sizes and rows.
    """
    rows = whole_number("rows", rows, 1, 2**31 - 1, "it says how many there are")
    clients = whole_number("clients", clients, 1, rows, FEWER)
    least = whole_number("least", least, 1, rows, "a client without rows is none")
    check_number("spread", spread, SPREAD)
    _require_rows(clients, least, rows)
    generator = drawing(seed)
    weights = np.exp(spread * generator.normal(size=clients))
    sizes = least + np.floor(weights / weights.sum() * (rows - clients * least)).astype(int)
    sizes[np.argmax(sizes)] += rows - sizes.sum()
    owner = np.repeat(np.arange(clients, dtype=np.int32), sizes)
    return owner[generator.permutation(rows)]


def turned(images: np.ndarray, quarters: int) -> np.ndarray:
    """Images turned to the left.

    `images`: axes (rows, height, width, ...). `quarters`: of a circle, 0 to 3; not degrees.
    """
    quarters = whole_number("quarters", quarters, 0, 3, "it counts quarters of a circle: 1 for 90 degrees")
    return np.rot90(_images(images), quarters, axes=(1, 2))


def patches(shape: tuple[int, int], count: int, generator: np.random.Generator) -> np.ndarray:
    """Which pixels of an image are covered by patches of 2x2.

    `shape`: height and width; the last pixels of an odd side are never covered. `count`: how many patches. `generator`:
    chooses where.
    """
    if len(shape) != 2 or not isinstance(generator, np.random.Generator):
        raise DataError(f"shape={shape} must be height and width, and generator numpy's: np.random.default_rng(0)")
    height, width = shape[0] // PATCH, shape[1] // PATCH
    count = whole_number("count", count, 0, height * width, f"{shape[0]}x{shape[1]} pixels have so many patches of 2x2")
    tiles = np.zeros(height * width, bool)
    tiles[generator.permutation(height * width)[:count]] = True
    covered = np.zeros(shape, bool)
    covered[: PATCH * height, : PATCH * width] = np.kron(tiles.reshape(height, width), np.ones((PATCH, PATCH), bool))
    return covered


def masked(images: np.ndarray, covered: np.ndarray, value: float = 1.0) -> np.ndarray:
    """Images whose covered pixels are painted over.

    `images`: floats, axes (rows, height, width) or (rows, height, width, colours). `covered`: truth values, axes
    (height, width). `value`: what is painted; 1 is white where pixels were divided by 255.
    """
    images, covered = _images(images), np.asarray(covered)
    if covered.dtype != bool or not np.isfinite(value):
        raise DataError(f"covered holds {covered.dtype} and value={value}: give truth values, and a finite number")
    if images.dtype.kind != "f":
        raise DataError(f"images hold {images.dtype}, where {value:g} may be no white: give images / 255 as float32")
    if images.shape[1:3] != covered.shape:
        raise DataError(f"images have {images.shape[1:3]} pixels and covered {covered.shape}: make it for such images")
    return np.where(covered.reshape(*covered.shape, *(1,) * (images.ndim - 3)), images.dtype.type(value), images)


def _require_rows(clients: int, least: int, rows: int) -> None:
    if clients * least > rows:
        raise DataError(f"clients={clients} with least={least} rows each need more than {rows} rows: take fewer")


def _images(images: np.ndarray) -> np.ndarray:
    found = np.asarray(images)
    if found.ndim not in (3, 4):
        raise DataError(
            f"images have shape {found.shape}: axes are rows, height, width (and colours); give image[None]"
        )
    return found


def _codes(labels: ArrayLike) -> np.ndarray:
    """The class of every row as a number from 0, in the order of the labels."""
    found = np.asarray(labels)
    if found.ndim != 1 or not len(found):
        raise DataError(f"labels have shape {found.shape}: give one per row")
    if found.dtype.kind == "O" and any(value is None or value != value for value in found.tolist()):
        raise DataError("labels hold None or NaN: leave such rows out")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise DataError("labels hold NaN or infinity: leave such rows out")
    return np.unique(found, return_inverse=True)[1]

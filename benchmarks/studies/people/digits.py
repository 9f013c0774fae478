"""Handwritten digits as 25 numbers, each image by itself: cut to the box of its ink, 5 x 5 means, in standard units."""

from __future__ import annotations

import numpy as np

SIDE, SAMPLES = 5, 3
INK = 0.2
"""From this darkness on a pixel is ink."""


def boxed(images: np.ndarray) -> np.ndarray:
    """Means over SIDE x SIDE parts of the box of each image's ink.

    `images`: squares of numbers from 0 (ink) to 255, one per row.
    """
    found = drawn(inked(images))
    return found.reshape(len(found), SIDE, SAMPLES, SIDE, SAMPLES).mean((2, 4)).reshape(len(found), -1)


def inked(images: np.ndarray) -> np.ndarray:
    """From 0 to 1 (ink).

    `images`: of numbers from 0 (ink) to 255.
    """
    return 1 - images.astype(np.float32) / 255


def drawn(ink: np.ndarray) -> np.ndarray:
    """The box of each image's ink, in SIDE * SAMPLES rows and columns.

    `ink`: squares of numbers from 0 to 1 (ink), one per row.
    """
    rows, columns = (_places(*_ends(ink.max(axis=axis) > INK), ink.shape[1]) for axis in (2, 1))
    return _between(ink, rows, columns)


def standardised(rows: np.ndarray) -> np.ndarray:
    """Every row with mean 0 and standard deviation 1 over its own numbers: no other row is looked at.

    `rows`: one per image.
    """
    centred = rows - rows.mean(1, keepdims=True)
    return (centred / np.maximum(centred.std(1, keepdims=True), 1e-6)).astype(np.float32)


def _ends(has_ink: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where ink begins and ends along an axis."""
    return has_ink.argmax(1), has_ink.shape[1] - has_ink[:, ::-1].argmax(1)


def _places(first: np.ndarray, end: np.ndarray, size: int) -> np.ndarray:
    """Evenly spread places between the ends, as fractions of pixels."""
    spread = (np.arange(SIDE * SAMPLES) + 0.5) / (SIDE * SAMPLES)
    return np.clip(first[:, None] - 0.5 + (end - first)[:, None] * spread, 0, size - 1)


def _between(ink: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The ink at places between pixels."""
    low_y, low_x = (np.minimum(places.astype(int), ink.shape[1] - 2) for places in (rows, columns))
    part_y, part_x = (rows - low_y)[:, :, None], (columns - low_x)[:, None, :]
    which = np.arange(len(ink))[:, None, None]

    def at(down: int, right: int) -> np.ndarray:
        return ink[which, (low_y + down)[:, :, None], (low_x + right)[:, None, :]]

    above = (1 - part_x) * at(0, 0) + part_x * at(0, 1)
    below = (1 - part_x) * at(1, 0) + part_x * at(1, 1)
    return (1 - part_y) * above + part_y * below

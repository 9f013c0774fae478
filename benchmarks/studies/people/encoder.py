"""A public encoder of digits: nine numbers for each image by itself, fitted to digits of other people.

Directions of strokes in 4 x 4 places of the box of ink, then linear discriminants of scikit-learn's `load_digits` (1797
digits of 43 people, bundled with it and public), each as it is and four times slanted, turned, stretched and drawn with
another pen. Nothing of it has seen a digit that is trained or tested on; those 43 people are covered by no account.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from benchmarks.studies.people.digits import drawn, inked

PLACES, DIRECTIONS = 4, 8
COPIES, SLANT, TURN, STRETCH, PEN = 4, 0.5, 0.2, 0.15, 0.4
"""How often every public digit is drawn again, and the standard deviations of what is changed."""
SHRINKAGE = 0.4
LENGTH = 3.0
"""How many standard deviations are 1."""
LARGER = 3
"""Public digits have 8 x 8 pixels: each becomes so many, squared."""


def encoded(images: np.ndarray) -> np.ndarray:
    """Nine numbers for each image.

    `images`: squares of numbers from 0 (ink) to 255, one per row.
    """
    encoder, scale = _encoder()
    return (encoder.transform(strokes(inked(images))) / scale).astype(np.float32)


@cache
def _encoder() -> tuple[LinearDiscriminantAnalysis, float]:
    """And what its numbers are divided by."""
    ink, labels = public_digits()
    found = strokes(ink)
    encoder = LinearDiscriminantAnalysis(solver="eigen", shrinkage=SHRINKAGE).fit(found, labels)
    return encoder, LENGTH * float(encoder.transform(found).std())


def strokes(ink: np.ndarray) -> np.ndarray:
    """How much of the outline of each image lies in which of 4 x 4 places and goes which of 8 ways; of length 1.

    `ink`: squares of numbers from 0 to 1 (ink), one per row.
    """
    box = _blurred(drawn(ink))
    down, right = (np.gradient(box, axis=axis) for axis in (1, 2))
    angle = np.arctan2(down, right)[..., None] * (DIRECTIONS / (2 * np.pi)) - np.arange(DIRECTIONS)
    angle = np.abs((angle + DIRECTIONS / 2) % DIRECTIONS - DIRECTIONS / 2)
    outline = np.hypot(down, right)[..., None] * np.maximum(0, 1 - angle)
    side = box.shape[1]
    places = (np.arange(side) + 0.5) * (PLACES / side) - 0.5
    near = np.maximum(0, 1 - np.abs(places[:, None] - np.arange(PLACES))).astype(np.float32)
    found = np.sqrt(np.einsum("nijd,ip,jq->npqd", outline, near, near, optimize=True)).reshape(len(ink), -1)
    return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-6)


def public_digits() -> tuple[np.ndarray, np.ndarray]:
    """Ink of other people's digits, with their copies, and labels."""
    images, labels = map(np.asarray, load_digits(return_X_y=True))
    ink, generator = _larger(images.reshape(-1, 8, 8).astype(np.float32) / 16), np.random.default_rng(0)
    copies = [_drawn_again(ink, generator) for _ in range(COPIES)]
    return np.concatenate([ink, *copies]), np.tile(labels, COPIES + 1)


def _drawn_again(ink: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Every image slanted, turned and stretched about its middle, by another pen."""
    many = len(ink)
    slant, turn = generator.normal(0, SLANT, many), generator.normal(0, TURN, many)
    tall, wide = np.exp(generator.normal(0, STRETCH, (2, many)))
    turned = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    drawn_so = np.array([[tall, 0 * tall], [slant, wide]])
    moved = np.einsum("ijn,jkn->nik", turned, drawn_so)
    pen = np.exp(generator.normal(0, PEN, many))[:, None, None]
    return np.clip(_at(ink, moved), 0, 1) ** pen


def _at(ink: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """Each image at the places that its matrix moves pixels to; white outside."""
    side = ink.shape[1]
    pixels = np.stack(np.meshgrid(*[np.arange(side) - (side - 1) / 2] * 2, indexing="ij"))
    rows, columns = np.clip(np.einsum("nij,jab->inab", moved, pixels) + (side - 1) / 2, -1, side)
    padded, which = np.pad(ink, ((0, 0), (1, 2), (1, 2))), np.arange(len(ink))[:, None, None]
    y, x = (np.floor(place).astype(int) for place in (rows, columns))
    down, right = rows - y, columns - x
    above, below = (
        (1 - right) * padded[which, y + row, x + 1] + right * padded[which, y + row, x + 2] for row in (1, 2)
    )
    return ((1 - down) * above + down * below).astype(np.float32)


def _larger(ink: np.ndarray) -> np.ndarray:
    """With a white margin, and more pixels between those that there are."""
    padded = np.pad(ink, ((0, 0), (1, 1), (1, 1)))
    side = padded.shape[1]
    places = (np.arange(side * LARGER) + 0.5) / LARGER - 0.5
    between = np.maximum(0, 1 - np.abs(places[:, None] - np.arange(side))).astype(np.float32)
    return np.einsum("nij,ai,bj->nab", padded, between, between, optimize=True)


def _blurred(box: np.ndarray) -> np.ndarray:
    """Means over 3 x 3 pixels."""
    padded = np.pad(box, ((0, 0), (1, 1), (1, 1)))
    rows = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    return (rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:]) / 9

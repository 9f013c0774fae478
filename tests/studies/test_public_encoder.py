"""The public encoder of digits looks at one image at a time, and at strokes."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.studies.people.encoder import DIRECTIONS, PLACES, strokes


def digits(many: int) -> np.ndarray:
    images, _ = load_digits(return_X_y=True)
    return np.asarray(images[:many]).reshape(-1, 8, 8).astype(np.float32) / 16


def test_an_image_is_encoded_by_itself() -> None:
    ink = digits(12)
    together = strokes(ink)
    alone = np.concatenate([strokes(one[None]) for one in ink])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)


def test_directions_of_strokes_are_told_apart() -> None:
    """An upright bar has outlines to the left and right, one that lies has them above and below."""
    bar = np.zeros((2, 20, 20), np.float32)
    bar[0, 2:18, 8:12] = bar[1, 8:12, 2:18] = 1
    bar[:, 0, 0] = bar[:, -1, -1] = 1  # the box of ink is the whole image
    upright, lying = strokes(bar).reshape(2, PLACES, PLACES, DIRECTIONS).sum((1, 2))
    assert {*np.argsort(upright)[-2:]} == {0, DIRECTIONS // 2}
    assert {*np.argsort(lying)[-2:]} == {DIRECTIONS // 4, 3 * DIRECTIONS // 4}


def test_nothing_is_made_of_no_ink() -> None:
    assert np.isfinite(strokes(np.zeros((1, 20, 20), np.float32))).all()

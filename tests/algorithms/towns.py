"""Four towns on a line or its opposite, and every way to say how they are related."""

from __future__ import annotations

import numpy as np

from kinfolk import Federation, from_rows

TOWNS = ("graz", "lyon", "oslo", "turku")
SLOPES = {"graz": 1.0, "lyon": -1.0, "oslo": 1.0, "turku": -1.0}
GROUPS = {"graz": "up", "lyon": "down", "oslo": "up", "turku": "down"}
GRAPH = {"graz": {"lyon": 0.5}, "lyon": {"oslo": 2.0}, "turku": {}}
WEIGHTS = [[0, 0.5, 0, 0], [0.5, 0, 2, 0], [0, 2, 0, 0], [0, 0, 0, 0]]
OMEGA = [[2.0, -1.0, 1.0, 0.0], [-1.0, 1.0, -1.0, 0.0], [1.0, -1.0, 2.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
MATRIX = [[0.0, 1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 0.0]]


def federation() -> Federation:
    x = np.random.default_rng(0).uniform(-1, 1, size=(4 * 25, 1)).astype(np.float32)
    who = np.repeat(TOWNS, 25)
    return from_rows(x, x[:, 0] * np.array([SLOPES[town] for town in who], np.float32), who, name="slopes")

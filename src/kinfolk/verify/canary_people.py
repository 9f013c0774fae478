"""People to attack: the rows of a canary federation become people with several rows each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kinfolk.data.client_data import ClientData
from kinfolk.data.federation import Federation
from kinfolk.units import Several

ROWS_OF_ONE = 3


def canary_people(federation: Federation) -> Federation:
    """Every row as a person with as many rows like it: a clip of each row alone would let it contribute that often.

    `federation`: rows, one of them the canary.
    """
    data = federation.train
    x, y = (np.repeat(np.asarray(part)[:, :, None], ROWS_OF_ONE, axis=2) for part in (data.x, data.y))
    shares = np.full(x.shape[:3], 1 / ROWS_OF_ONE, np.float32)
    return replace(federation, train=ClientData(Several(x, shares), y, data.sizes))

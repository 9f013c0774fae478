"""People as units: all rows of a person at a client become one unit, with room for a public number of rows.

>>> data = from_rows(np.ones((4, 2)), np.arange(4.0), ["a"] * 4, person_ids=[7, 7, 8, 7], test_fraction=0.0)
>>> by_person(data).train.sizes.tolist(), by_person(data).train.y[0].tolist()[0][:4]
([2], [0.0, 1.0, 3.0, 0.0])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
import numpy as np

from kinfolk.data.client_data import ClientData, Data, FunctionData, RaggedData, together
from kinfolk.data.federation import DataError, Federation, from_rows  # noqa: F401  for the example above
from kinfolk.data.identity import label
from kinfolk.types import Rows, Tree
from kinfolk.units import Several


def by_person(federation: Federation) -> Federation:
    """The same federation with people in place of training rows, where its rows have people; else as it is.

    Sizes count people then, and clients are ordered by them: how many rows anybody has shows nowhere. Test rows stay
    rows (`Federation.test_units` says whose each is): what is measured on them is for their owner.

    `federation`: rows, known by persons.
    """
    identity, train = federation.identity, federation.train
    if identity is None or identity.kind != "person" or federation.has_people:
        return federation
    if isinstance(train, FunctionData):
        raise DataError("rows that a function makes have no people: give arrays, with person_ids")
    x, y = flat(train)
    starts = np.cumsum(train.sizes) - train.sizes
    places, shares, counts = [], [], []
    for values, start, size in zip(identity.values, starts.tolist(), train.sizes.tolist(), strict=True):
        own, share = row_places(values[:size], identity.rows_per_person)
        places.append(own + start)
        shares.append(share)
        counts.append(len(own))
    firsts = np.cumsum([0, *counts])
    order = sorted(range(len(counts)), key=lambda k: (counts[k], federation.ids[k]))
    units = several(x, np.concatenate(places), np.concatenate(shares))
    people = together(
        units, y[np.concatenate(places)], [np.arange(firsts[k], firsts[k + 1]) for k in order], train.features
    )
    return replace(
        federation,
        ids=tuple(federation.ids[k] for k in order),
        train=people,
        test=_reordered(federation.test, order),
        identity=replace(identity, values=tuple(identity.values[k] for k in order)),
    )


def rows_by_person(rows: Rows, people: np.ndarray, most: int) -> Rows:
    """One client's rows as people: what a silo does with its own table.

    `rows`: without padding. `people`: what the person of each row is known by. `most`: how many rows of one count.
    """
    places, shares = row_places(people, most)
    return Rows(several(rows.x, places, shares), rows.y[places], np.ones(len(places), bool))


def several(x: Tree, places: np.ndarray, shares: np.ndarray) -> Several:
    """Units from rows: which rows are in whose places, and how much each place counts."""
    return Several(jax.tree.map(lambda part: part[places], x), shares)


def row_places(people: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """For each person which of its rows stands in each of `most` places, and how much the place counts.

    Of somebody with more rows some are left out, evenly over that person's own in the order of the table: nobody
    else's rows matter.
    """
    _, whose, counts = np.unique(list(map(label, people.tolist())), return_inverse=True, return_counts=True)
    own = np.argsort(whose, kind="stable")
    first, count, place = (np.cumsum(counts) - counts)[:, None], counts[:, None], np.arange(most)[None, :]
    filled = place < np.minimum(count, most)
    picked = np.where(count > most, place * count // most, np.where(filled, place, 0))
    return own[first + picked], (filled / np.minimum(count, most)).astype(np.float32)


def flat(data: ClientData | RaggedData) -> tuple[Tree, np.ndarray]:
    """The rows of all clients one after another, without padding."""
    if isinstance(data, RaggedData):
        return data.flat_x, data.flat_y
    keep = np.arange(data.y.shape[1])[None, :] < data.sizes[:, None]
    return jax.tree.map(lambda leaf: leaf[keep], data.x), data.y[keep]


def _reordered(data: Data, order: Sequence[int]) -> Data:
    assert not isinstance(data, FunctionData)
    x, y = flat(data)
    own = np.split(np.arange(int(data.sizes.sum())), np.cumsum(data.sizes)[:-1])
    return together(x, y, [own[k] for k in order], data.features)

"""People as units, done wrong: what everybody may know must be the same whatever number of rows somebody has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import numpy as np

from kinfolk.data.federation import Federation, from_rows
from kinfolk.data.people import by_person
from kinfolk.engines.layout import lay_out

from .checking import Bug

Grouped = Callable[[Federation], Federation]


def two_worlds() -> tuple[Federation, Federation]:
    """The same people at two clients, of whom one has two rows in the first and seven in the second."""

    def world(rows: int) -> Federation:
        people = np.array([*[0] * rows, 1, 1, 2, 3, 4, 5, 5])
        clients = np.array([*["a"] * rows, "a", "a", "a", "b", "b", "b", "b"])
        return from_rows(np.ones((len(people), 2)), people * 1.0, clients, person_ids=people, test_fraction=0.0)

    return world(2), world(7)


def public_numbers(federation: Federation, batch_size: int) -> list[object]:
    """All about data that is no secret: names in their order, sizes, steps, weights, shapes of what is computed."""
    clients, _, widths, steps = lay_out([federation], batch_size=batch_size, epochs=1, by_size=True)
    numbers = [np.asarray(values).tolist() for values in (clients.sizes, clients.steps, clients.weights)]
    return [federation.ids, *numbers, widths, steps, [leaf.shape for leaf in jax.tree.leaves(clients.blocks)]]


def found_by_row_counts(grouped: Grouped) -> list[str]:
    first, second = (public_numbers(grouped(data), 2) for data in two_worlds())
    return [f"{a} became {b} with a person's number of rows" for a, b in zip(first, second, strict=True) if a != b]


def room_for_the_most(federation: Federation) -> Federation:
    """As many places as the person with most rows needs."""
    assert federation.identity is not None
    most = max(int(np.unique(own, return_counts=True)[1].max()) for own in federation.identity.values)
    return by_person(replace(federation, identity=replace(federation.identity, rows_per_person=most)))


def sizes_of_rows(federation: Federation) -> Federation:
    """People are units, but a client's public size is still its number of rows."""
    people, rows = by_person(federation), dict(zip(federation.ids, federation.train.sizes.tolist(), strict=True))
    return replace(people, train=replace(people.train, sizes=np.array([rows[name] for name in people.ids])))


def _bug(name: str, what: str, broken: Grouped) -> Bug:
    return Bug(name, what, "release", lambda: found_by_row_counts(broken), lambda: found_by_row_counts(by_person))


BUGS = (
    _bug("row counts public", "sizes, batches and weights of clients count the rows of people", sizes_of_rows),
    _bug("room for the most rows", "shapes tell how many rows the person with most rows has", room_for_the_most),
)

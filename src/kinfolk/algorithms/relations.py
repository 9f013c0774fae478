"""A public relation between clients, as people have it: who is in which group, who is whose neighbour, or a matrix.

>>> relation_of({"groups": {"graz": "a", "lyon": "b", "oslo": "a"}}, ("graz", "lyon", "oslo")).tolist()
[[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

GROUPS, RELATION = "groups", "relation"


def with_relation(options: Mapping[str, Any], ids: Sequence[str] | None) -> dict[str, Any]:
    """Options in which `groups` or `relation`, if there is either, is a matrix; it cannot be one without `ids`."""
    rest = {name: value for name, value in options.items() if name not in (GROUPS, RELATION)}
    if len(rest) == len(options) or ids is None:
        return rest
    return {**rest, RELATION: relation_of(options, ids)}


def relation_of(options: Mapping[str, Any], ids: Sequence[str]) -> np.ndarray:
    """The matrix (groups x clients) that `relation` or `groups` stands for; its columns are the clients `ids`."""
    if GROUPS in options and RELATION in options:
        raise ValueError("groups and relation both say who is related to whom: give one of them")
    if GROUPS in options:
        return _of_groups(options[GROUPS], ids)
    return _checked(options[RELATION], ids)


def groups_of_edges(edges: Iterable[tuple[str, str, float]]) -> dict[str, dict[str, float]]:
    """Each client's groups in a graph: its own neighbourhood, with weight 1, and its neighbours', with the edge's.

    An edge joins both ways, so the order of its clients means nothing; from a client to itself it only names a client
    that has no neighbours.

    >>> groups_of_edges([("graz", "lyon", 0.5)])
    {'graz': {'graz': 1.0, 'lyon': 0.5}, 'lyon': {'lyon': 1.0, 'graz': 0.5}}
    """
    found: dict[str, dict[str, float]] = {}
    for one, other, weight in edges:
        for client, neighbour in ((one, other), (other, one)):
            own = found.setdefault(client, {client: 1.0})
            if client != neighbour and own.setdefault(neighbour, weight) != weight:
                raise ValueError(f"the edge between {one!r} and {other!r} has two weights: give it once")
    return found


def _of_groups(groups: Any, ids: Sequence[str]) -> np.ndarray:
    """One row per group, in the order of their names: a client's weight in it, which is 1 where none is given."""
    if not isinstance(groups, Mapping):
        raise ValueError(f"groups={groups!r} must name each client's group, as {{{ids[0]!r}: 'a', ...}}")
    own = {str(client): group for client, group in groups.items()}
    for client in ids:
        if client not in own:
            raise ValueError(f"groups has no group for client {client!r}: all {len(ids)} clients need one")
    unknown = [client for client in own if client not in set(ids)]
    if unknown:
        raise ValueError(f"groups names {unknown[0]!r}, which is none of the {len(ids)} clients: leave it out")
    several = [_weights(own[client]) for client in ids]
    names = sorted({name for found in several for name in found})
    return _checked([[found.get(name, 0.0) for found in several] for name in names], ids)


def _weights(groups: Any) -> dict[str, Any]:
    """A client's weight in each of its groups: one name, several, or names with weights."""
    if isinstance(groups, Mapping):
        return {str(name): weight for name, weight in groups.items()}
    several = groups if isinstance(groups, list | tuple) else [groups]
    return {str(name): 1.0 for name in several}


def _checked(relation: Any, ids: Sequence[str]) -> np.ndarray:
    """The matrix as float32, if every client and every group has a part in it."""
    try:
        matrix = np.asarray(relation, np.float32)
    except (TypeError, ValueError):
        raise ValueError(
            "relation is no matrix of numbers: give one row per group, all of them with one number per client"
        ) from None
    if matrix.ndim != 2 or matrix.shape[1] != len(ids) or not len(matrix):
        order = ", ".join(ids[:5]) + (", ..." if len(ids) > 5 else "")
        raise ValueError(
            f"relation has shape {matrix.shape}, and there are {len(ids)} clients: give one row per group with "
            f"{len(ids)} numbers each, in the order of the clients ({order}), or groups, a mapping from client to group"
        )
    if not np.isfinite(matrix).all():
        raise ValueError("relation holds numbers that are not finite: give weights; negative ones mean opposites")
    alone = np.flatnonzero(np.abs(matrix).sum(axis=0) == 0)
    if len(alone):
        raise ValueError(
            f"relation has only zeros for client {ids[alone[0]]!r}: give it a group, of its own if need be"
        )
    empty = np.flatnonzero(np.abs(matrix).sum(axis=1) == 0)
    if len(empty):
        raise ValueError(f"relation has only zeros in row {empty[0]}: leave out a group that nobody is in")
    return matrix

"""A public relation between clients, as people have it: who is in which group, who is whose neighbour, or a matrix.

What a method is given is one of two matrices: `relation` (groups x clients) or `omega` (clients x clients).

>>> relation_of({"groups": {"graz": "a", "lyon": "b", "oslo": "a"}}, ("graz", "lyon", "oslo")).tolist()
[[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
>>> graph_of({"graz": {"oslo": 0.5}, "lyon": {}}, ("graz", "lyon", "oslo")).tolist()
[[0.0, 0.0, 0.5], [0.0, 0.0, 0.0], [0.5, 0.0, 0.0]]
>>> laplacian(graph_of({"graz": {"oslo": -0.5}, "lyon": {}}, ("graz", "lyon", "oslo"))).tolist()
[[0.5, 0.0, 0.5], [0.0, 0.0, 0.0], [0.5, 0.0, 0.5]]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

GROUPS, RELATION, GRAPH, OMEGA = RELATED = ("groups", "relation", "graph", "omega")
"""The options that say who is related to whom."""
MOST = 1e6
"""Of a weight: squares of larger ones could be lost in a float32."""


def options_for(relation: Any) -> dict[str, Any]:
    """A method's options for a relation as users give it: clients' groups, a matrix, or one matrix of clients x clients
    by its name, `{"graph": ...}` or `{"omega": ...}`."""
    if not isinstance(relation, Mapping):
        return {RELATION: relation}
    if relation.keys() in ({GRAPH}, {OMEGA}):
        return dict(relation)
    return {GROUPS: {str(client): group for client, group in relation.items()}}


def with_relation(options: Mapping[str, Any], ids: Sequence[str] | None) -> dict[str, Any]:
    """Options in which what is said of a relation, if anything is, is a matrix; it cannot be without `ids`."""
    given = [name for name in RELATED if name in options]
    rest = {name: value for name, value in options.items() if name not in given}
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} both say who is related to whom: give one of them")
    if not given or ids is None:
        return rest
    if GRAPH in given:
        return {**rest, OMEGA: laplacian(graph_of(options[GRAPH], ids))}
    if OMEGA in given:
        return {**rest, OMEGA: omega_of(options[OMEGA], ids)}
    return {**rest, RELATION: relation_of(options, ids)}


def relation_of(options: Mapping[str, Any], ids: Sequence[str]) -> np.ndarray:
    """The matrix (groups x clients) that `relation` or `groups` stands for; its columns are the clients `ids`."""
    if GROUPS in options:
        return _of_groups(options[GROUPS], ids)
    matrix = _numbers(options[RELATION], RELATION, "group")
    if matrix.ndim == 2 and len(matrix) == len(ids) > 1 and np.array_equal(matrix, matrix.T):
        raise ValueError(
            "relation is symmetric, with a row for every client, so it may mean pairs of clients: give weights between "
            "them as graph, the papers' Omega as omega; as groups, leave out those that are the same, or give groups"
        )
    return _checked(matrix, ids)


def graph_of(graph: Any, ids: Sequence[str]) -> np.ndarray:
    """The weights between clients `ids`, as a symmetric matrix; `graph`: each client's neighbours, or that matrix."""
    matrix = _of_neighbours(graph, ids) if isinstance(graph, Mapping) else _numbers(graph, GRAPH, "client")
    _check_pairs(GRAPH, matrix, ids, f"or each client's neighbours, as {{{ids[0]!r}: {{{ids[-1]!r}: 1.0}}, ...}}")
    loops = np.flatnonzero(np.diag(matrix))
    if len(loops):
        raise ValueError(
            f"graph has client {ids[loops[0]]!r} as its own neighbour: its weight must be 0; a matrix that says more "
            "than who is whose neighbour is omega"
        )
    return matrix


def laplacian(graph: np.ndarray) -> np.ndarray:
    """A graph's Laplacian, in which opposites count as neighbours who are turned round."""
    exact = graph.astype(np.float64)
    return (np.diag(np.abs(exact).sum(axis=0)) - exact).astype(np.float32)


def omega_of(omega: Any, ids: Sequence[str]) -> np.ndarray:
    """Omega of the papers' first equation as a matrix, if there is a minimum with it, and it joins somebody."""
    matrix = _numbers(omega, OMEGA, "client")
    _check_pairs(OMEGA, matrix, ids, "or, for neighbours and their weights, graph")
    least, most = np.linalg.eigvalsh(matrix.astype(np.float64))[[0, -1]]
    if least < -1e-5 * max(most, 0):
        raise ValueError(
            f"omega has an eigenvalue below 0, {least:.3g}, so that models that grow without end would be best: give a "
            "Laplacian, the inverse of a covariance, or what else has none; for weights between clients, graph"
        )
    return matrix


def _check_pairs(what: str, matrix: np.ndarray, ids: Sequence[str], otherwise: str) -> None:
    """Refuses what says nothing about pairs of clients; `otherwise`: what else may be given."""
    if matrix.shape != (len(ids), len(ids)):
        raise ValueError(
            f"{what} has shape {matrix.shape}, and there are {len(ids)} clients: give one row and one column for each, "
            f"in their order ({_few(ids)}), {otherwise}"
        )
    odd = np.argwhere(matrix != matrix.T)
    if len(odd):
        one, other = (ids[k] for k in odd[0])
        raise ValueError(f"{what} has two weights for {one!r} and {other!r}: it must be the same both ways")
    if not (matrix - np.diag(np.diag(matrix))).any():
        raise ValueError(f"{what} joins nobody: give at least one pair of clients a weight that is not 0")


def neighbours_of(edges: Iterable[tuple[str, str, float]]) -> dict[str, dict[str, float]]:
    """Each client's neighbours and their weights.

    An edge joins both ways, so the order of its clients means nothing; from a client to itself it only names a client
    that has no neighbours.

    >>> neighbours_of([("graz", "lyon", 0.5), ("oslo", "oslo", 1)])
    {'graz': {'lyon': 0.5}, 'lyon': {'graz': 0.5}, 'oslo': {}}
    """
    found: dict[str, dict[str, float]] = {}
    for one, other, weight in edges:
        for client, neighbour in ((one, other), (other, one)):
            own = found.setdefault(client, {})
            before = own.setdefault(neighbour, weight) if client != neighbour else weight
            if before != weight and before == before:  # what is no number is refused with the matrix
                raise ValueError(f"the edge between {one!r} and {other!r} has two weights: give it once")
    return found


def _of_neighbours(graph: Mapping[Any, Any], ids: Sequence[str]) -> np.ndarray:
    """Weights from each client's neighbours: names, or names with weights; an edge may be said once or twice."""
    pairs = [(str(one), _weights(others)) for one, others in graph.items()]
    edges = [(one, other, weight) for one, others in pairs for other, weight in others.items()]
    own = neighbours_of([*edges, *((one, one, 0.0) for one, _ in pairs)])
    _same_clients(GRAPH, own, ids, "must be in it, without neighbours as {} or, in a file, as their own neighbour")
    return _numbers([[own[one].get(other, 0.0) for other in ids] for one in ids], GRAPH, "client")


def _same_clients(what: str, named: Mapping[str, Any], ids: Sequence[str], remedy: str) -> None:
    """Refuses clients that are not there, and clients that are not named."""
    for client in ids:
        if client not in named:
            raise ValueError(f"{what} does not name client {client!r}: all {len(ids)} clients {remedy}")
    unknown = [client for client in named if client not in set(ids)]
    if unknown:
        raise ValueError(f"{what} names {unknown[0]!r}, which is none of the {len(ids)} clients: leave it out")


def _of_groups(groups: Any, ids: Sequence[str]) -> np.ndarray:
    """One row per group, in the order of their names: a client's weight in it, which is 1 where none is given."""
    if not isinstance(groups, Mapping):
        raise ValueError(f"groups={groups!r} must name each client's group, as {{{ids[0]!r}: 'a', ...}}")
    own = {str(client): group for client, group in groups.items()}
    _same_clients("groups", own, ids, "need a group")
    several = [_weights(own[client]) for client in ids]
    names = sorted({name for found in several for name in found})
    return _checked(_numbers([[found.get(name, 0.0) for found in several] for name in names], GROUPS, "group"), ids)


def _weights(groups: Any) -> dict[str, Any]:
    """A client's weight in each of its groups, or of its neighbours: one name, several, or names with weights."""
    if isinstance(groups, Mapping):
        return {str(name): weight for name, weight in groups.items()}
    several = groups if isinstance(groups, list | tuple) else [groups]
    for name in several:
        if name is None or name != name or str(name) == "":
            raise ValueError(f"a name is missing, {name!r} stands for it: name a group, of a client's own if need be")
    return {str(name): 1.0 for name in several}


def _numbers(given: Any, what: str, row: str) -> np.ndarray:
    """A matrix as float32, if it is one and holds finite numbers."""
    try:
        matrix = np.asarray(given, np.float32)
    except (TypeError, ValueError):
        raise ValueError(
            f"{what} is no matrix of numbers: give one row per {row}, all of them with one number per client"
        ) from None
    if not np.isfinite(matrix).all():
        raise ValueError(f"{what} holds numbers that are not finite: give weights; negative ones mean opposites")
    if np.abs(matrix).max(initial=0) > MOST:
        raise ValueError(f"{what} holds {np.abs(matrix).max():g}: only proportions matter, so give at most {MOST:g}")
    return matrix


def _few(ids: Sequence[str]) -> str:
    return ", ".join(ids[:5]) + (", ..." if len(ids) > 5 else "")


def _checked(matrix: np.ndarray, ids: Sequence[str]) -> np.ndarray:
    """The matrix (groups x clients), if every client and every group has a part in it, and it relates somebody."""
    if matrix.ndim != 2 or matrix.shape[1] != len(ids) or not len(matrix):
        raise ValueError(
            f"relation has shape {matrix.shape}, and there are {len(ids)} clients: give one row per group with "
            f"{len(ids)} numbers each, in the order of the clients ({_few(ids)}), or groups, a mapping from client to "
            "group"
        )
    alone = np.flatnonzero(np.abs(matrix).sum(axis=0) == 0)
    if len(alone):
        raise ValueError(
            f"relation has only zeros for client {ids[alone[0]]!r}: give it a group, of its own if need be"
        )
    empty = np.flatnonzero(np.abs(matrix).sum(axis=1) == 0)
    if len(empty):
        raise ValueError(f"relation has only zeros in row {empty[0]}: leave out a group that nobody is in")
    if 1 < len(ids) == np.linalg.matrix_rank(matrix):
        raise ValueError(
            f"relation has as many independent groups as clients, {len(ids)}: with such groups every client's model "
            "can be its own, and nobody is pulled; give fewer groups, or, for weights between clients, graph"
        )
    return matrix

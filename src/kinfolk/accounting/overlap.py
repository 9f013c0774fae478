"""How a protected unit lies in a release: in which draws of noise, in how many units wholly, in how many partly.

The rule: inside one draw a unit U moves the sum once for every unit of the draw that lies wholly in U, and twice for
every one that it only shares rows with. `pairs.py` has what that costs. Here is the counting:

* rows with tokens of the same domain are compared one by one; a person is all rows with its token, wherever;
* without, a client is the client of the same name in the same data set and grouping, with all rows it ever had;
* otherwise everything may overlap: a row is one row of the dearest client, a client or a person meets as many units as
  sizes allow.

Units of a release are rows, people (with all rows at one client: a row is only a part of one) or clients.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from kinfolk.accounting.members import PERSON, Members
from kinfolk.privacy.levels import Level

ANY = -1
"""Instead of a client's number: whichever client's draws cost most."""
Met = tuple[tuple[int, int, int], ...]
"""Of one unit in one release: whose draw (a client's number, at client level 0), units wholly inside, partly inside."""


Codes = tuple[np.ndarray, list[Met]]
"""For each row a number, and what each number means."""


@dataclass(frozen=True)
class Names:
    """Data sets whose owner declared that nobody is in both, and what was worked out already."""

    apart: frozenset[frozenset[str]] = frozenset()
    known: dict[tuple[int, int], Codes] = field(default_factory=dict, compare=False)

    def disjoint(self, first: str, second: str) -> bool:
        """Whether nobody is in both."""
        return first != second and frozenset((first, second)) in self.apart

    def rows_in(self, mine: Members, release: Members) -> Codes:
        """For each of my rows how one with its token has lain in the release."""
        both = (id(mine), id(release))
        if both not in self.known:
            self.known[both] = _rows_by_tokens(mine, *_occurrences(release, mine.level == PERSON))
        return self.known[both]


def comparable(first: Members, second: Members) -> bool:
    """Whether tokens tell which rows are in both."""
    return bool(first.domain) and first.domain == second.domain


def meet(first: Members, second: Members, names: Names) -> bool:
    """Whether a row may be in both."""
    if comparable(first, second):
        return bool(np.isin(first.tokens, second.tokens).any())
    return not names.disjoint(first.data, second.data)


def same_grouping(first: Members, second: Members) -> bool:
    """Whether a client's name means the same in both: one that nobody named means nothing."""
    return first.data == second.data and same_clients(first, second)


def same_clients(first: Members, second: Members) -> bool:
    """Whether clients are made alike, be it of other rows: a hospital stays itself over the years.

    Where nobody named what makes them, only the very same names and sizes under the same data name are.
    """
    if first.grouping and first.grouping == second.grouping:
        return True
    return (first.data, first.clients, first.sizes) == (second.data, second.clients, second.sizes)


def may_be_same(first: Members, second: Members) -> bool:
    """Whether a client's name may mean the same, though nothing says so: in the same data, by other options of a
    function, say. Not by two columns of a table, which are two things."""
    columns = all(one.grouping.startswith("column ") for one in (first, second))
    return first.data == second.data and not columns


def of_rows(mine: Members, client: int, release: Members, names: Names) -> Codes:
    """For each row of one of my clients how it lies in the release: numbers into a list of what they mean."""
    count = mine.sizes[client]
    if comparable(mine, release):
        codes, meaning = names.rows_in(mine, release)
        return mine.part(codes, client), meaning
    if names.disjoint(mine.data, release.data):
        return np.zeros(count, np.int64), [()]
    if mine.level == PERSON:
        return np.zeros(count, np.int64), [_any_person(release)]
    where = ANY
    if same_grouping(mine, release):
        where = release.places.get(mine.clients[client], ANY)
    return np.zeros(count, np.int64), [_one_row(release, where)]


def _any_person(release: Members) -> Met:
    """Somebody whose rows nobody can find in the release: perhaps all of them."""
    if release.level == PERSON:
        return tuple((k, 1, 0) for k in range(len(release.clients)))
    if release.level == Level.EXAMPLE:
        return tuple((k, there, 0) for k, there in enumerate(release.sizes))
    return ((0, 0, len(release.clients)),)


def _one_row(release: Members, where: int) -> Met:
    if release.level == Level.EXAMPLE:
        return ((where, 1, 0),)
    if release.level == PERSON:
        return ((where, 0, 1),)
    alone = where != ANY and release.sizes[where] == 1
    return ((0, 1, 0),) if alone else ((0, 0, 1),)


def _rows_by_tokens(mine: Members, known: np.ndarray, meaning_of: Codes) -> Codes:
    codes = np.zeros(len(mine.tokens), np.int32)
    if len(known):
        sought = mine.tokens[mine.order]  # in order, which is quicker to find
        place = np.minimum(np.searchsorted(known, sought), len(known) - 1)
        codes[mine.order] = np.where(known[place] == sought, meaning_of[0][place] + 1, 0)
    return codes, [(), *meaning_of[1]]


def _occurrences(release: Members, of_people: bool) -> tuple[np.ndarray, Codes]:
    """The release's tokens, in order, each once, and how a row with each has lain in it; or a person, with all rows.

    A person's row is at most one of the person's rows: the dearest one's, if they are at several clients.
    """
    owners, tokens = release.owners[release.order], release.tokens[release.order]
    first = np.flatnonzero(np.diff(tokens, prepend=~tokens[:1]))
    known, counts = tokens[first], np.diff(first, append=len(tokens))
    everybody = range(len(release.clients))
    meanings = [_several(release, [k]) if of_people else _one_row(release, k) for k in everybody]
    meanings.append(_one_row(release, ANY))
    if not len(known):
        return known, (np.empty(0, np.int64), meanings)
    if not (release.is_row_identity or of_people):
        lowest, highest = np.minimum.reduceat(owners, first), np.maximum.reduceat(owners, first)
        return known, (np.where(lowest == highest, lowest, len(release.clients)), meanings)
    codes = owners[first].astype(np.int64)
    seen: dict[Met, int] = {}
    for n in np.flatnonzero(counts > 1).tolist():
        met = _several(release, owners[first[n] : first[n] + counts[n]].tolist())
        if met not in seen:
            seen[met] = len(meanings)
            meanings.append(met)
        codes[n] = seen[met]
    return known, (codes, meanings)


def _several(release: Members, whose: list[int]) -> Met:
    """A record that was put into the release several times, or a person with rows in it."""
    if release.at_data_gates:
        return tuple((k, whose.count(k), 0) for k in sorted(set(whose)))
    alone = sum(whose.count(k) == release.sizes[k] for k in set(whose))
    return ((0, alone, len(set(whose)) - alone),)


def of_clients(history: Iterable[Members], mine: Members, release: Members, names: Names) -> list[Met]:
    """For each of my clients how it lies in the release. `history`: all memberships, for rows a client had before."""
    history = list(history)
    if comparable(mine, release):
        return _clients_by_tokens(history, mine, release)
    apart = names.disjoint(mine.data, release.data)
    named = same_clients(mine, release) and (apart or mine.data == release.data)
    alike = [] if apart else [other for other in history if same_grouping(mine, other)]
    found: list[Met] = []
    for name, size in zip(mine.clients, mine.sizes, strict=True):
        if named and name in release.places:
            found.append(_by_name(release.places[name], release))
        else:
            met = () if apart else _by_size(_largest(alike, name, size), release)
            where = release.places.get(name, ANY) if not apart and may_be_same(mine, release) else ANY
            found.append(met if where == ANY else _with_namesake(met, where, release))
    return found


def _largest(history: Iterable[Members], name: str, size: int) -> int:
    """The most rows that a client ever had. `history`: memberships in which its name means the same."""
    return max([size, *(other.sizes[other.places[name]] for other in history if name in other.places)])


def _by_name(where: int, release: Members) -> Met:
    return ((where, release.sizes[where], 0),) if release.at_data_gates else ((0, 1, 0),)


def _by_size(size: int, release: Members) -> Met:
    if release.level == Level.EXAMPLE:
        return tuple((k, min(size, there), 0) for k, there in enumerate(release.sizes))
    if release.level == PERSON:
        return tuple((k, 0, min(size, there)) for k, there in enumerate(release.sizes))
    large = sum(there > 1 for there in release.sizes)
    partly = min(size, large)
    return ((0, min(size - partly, len(release.sizes) - large), partly),)


def _clients_by_tokens(history: Iterable[Members], mine: Members, release: Members) -> list[Met]:
    known, clients = _ever(history, mine)
    named = same_clients(mine, release)
    met: list[dict[int, int]] = [{} for _ in mine.clients]
    if len(known):
        first = np.searchsorted(known, release.tokens, "left")
        last = np.searchsorted(known, release.tokens, "right")
        for step in range(int((last - first).max(initial=0))):
            hit = first + step < last
            pairs = clients[(first + step)[hit]] * len(release.clients) + release.owners[hit]
            for pair, count in zip(*np.unique(pairs, return_counts=True), strict=True):
                own, theirs = divmod(int(pair), len(release.clients))
                met[own][theirs] = met[own].get(theirs, 0) + int(count)
    return [_counted(mine, k, found, release, named) for k, found in enumerate(met)]


def _ever(history: Iterable[Members], mine: Members) -> tuple[np.ndarray, np.ndarray]:
    """Tokens, sorted, and whose they are: of all rows that my clients ever had, each once for each of them.

    Rows that a client of the same name had where the name only may mean the same are not followed into a third release.
    """
    own, whose = [mine.tokens], [mine.owners]
    for other in history:
        if comparable(mine, other) and same_grouping(mine, other):
            place = {name: k for k, name in enumerate(mine.clients)}
            mapped = np.array([place.get(name, -1) for name in other.clients])[other.owners]
            own.append(other.tokens[mapped >= 0])
            whose.append(mapped[mapped >= 0])
    both = np.unique(np.stack([np.concatenate(own), np.concatenate(whose).astype(np.uint64)], axis=1), axis=0)
    return np.ascontiguousarray(both[:, 0]), both[:, 1].astype(np.int64)


def _counted(mine: Members, k: int, found: dict[int, int], release: Members, named: bool) -> Met:
    """How a client lies in a release, of which it has `found` rows at each client. `named`: names mean the same."""
    name = mine.clients[k]
    if release.level == Level.EXAMPLE:
        met = tuple((j, count, 0) for j, count in sorted(found.items()))
    elif release.level == PERSON:
        own = {j for j in found if named and release.clients[j] == name}
        met = tuple((j, count, 0) if j in own else (j, 0, count) for j, count in sorted(found.items()))
    else:
        whole = sum(
            (release.is_row_identity and count == release.sizes[j]) or (named and release.clients[j] == name)
            for j, count in found.items()
        )
        met = ((0, whole, len(found) - whole),) if found else ()
    where = release.places.get(name, ANY)
    if where == ANY or not (named or may_be_same(mine, release)):
        return met
    there = where in found if release.level == Level.CLIENT else named  # counted, with its rows
    return met if there else _with_namesake(met, where, release)


def _with_namesake(met: Met, where: int, release: Members) -> Met:
    """With the release's client of the same name, which may be the same one with other rows: all of it."""
    if release.at_data_gates:
        all_of_it = (
            (where, release.sizes[where], 0) if release.level == Level.EXAMPLE else (where, 0, release.sizes[where])
        )
        return tuple(sorted([*(one for one in met if one[0] != where), all_of_it]))
    ((_, whole, partly),) = met or ((0, 0, 0),)
    return ((0, max(whole, min(whole + 1, len(release.clients) - partly)), partly),)

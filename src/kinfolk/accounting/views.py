"""Whom a promise does not hold against: an aggregator that was sent messages of the same rows without noise.

At client level silos trust the aggregator of a study: it adds the noise. It is outside of every account of those rows
from then on, whatever they are promised before or later, so the silo's ledger notes it before the first message. Secure
sums hold against the aggregator together with some silos; with more of them it is outside too, which is noted likewise.
"""

from __future__ import annotations

from collections.abc import Callable

from kinfolk.accounting.ledger import Ledger
from kinfolk.accounting.members import Members, Source
from kinfolk.accounting.overlap import meet
from kinfolk.accounting.records import Content, LedgerError
from kinfolk.accounting.standing import Standing
from kinfolk.privacy.levels import Level

TRUSTED, SUMMED = "trusted", "summed"
"""The kinds of note."""


def trust(ledger: Ledger, source: Source, study: str, because: str | None, colluding: int | None = None) -> None:
    """Notes, once, that the aggregator of a study sees these rows' messages; on disk when this returns.

    Rows that were promised protection against everybody, the server among them, need their owner's reason.

    `colluding`: in secure sums it does not, unless more than so many silos work with it.
    """
    assert ledger.store is not None
    kind, helped = (TRUSTED, "") if colluding is None else (SUMMED, f" together with more than {colluding} silos")
    with ledger.turn():
        digest = ledger.store.of(source, Level.CLIENT)
        noted = [note.about for note in ledger.notes if note.note == kind]
        if any((about["study"], about["members"]) == (study, digest) for about in noted):
            return
        mine, standing = ledger.store.load(digest), Standing(ledger.lines, ledger.notes, ledger.store)
        for promise in standing.promises:
            if promise.members.at_data_gates and because is None and meet(mine, promise.members, standing.names):
                raise LedgerError(
                    f"rows of {source.data!r} were promised epsilon={max(promise.budgets.values())[0]:.4g} against "
                    f"everybody, servers too, by run {promise.run}; the aggregator of study {study!r}{helped} would "
                    "see their messages without noise. If you trust it with them, say why in the policy: "
                    'trust_because = "..."; later statements quote it'
                )
        ledger.store.save(digest)
        also = {} if colluding is None else {"colluding": colluding}
        ledger.note(kind, {"study": study, "members": digest, "because": because or "", **also})


def trusted(ledger: Ledger, members: Members) -> tuple[tuple[str, str], ...]:
    """Whom accounts of rows that may be among these do not hold against, in words, and why that is so."""
    assert ledger.store is not None
    store, standing = ledger.store, Standing((), ledger.notes, ledger.store)

    def of(digest: str) -> bool:
        return meet(store.load(digest), members, standing.names)

    seen = [
        (f"the aggregator of study {study}, which was sent messages of these rows without noise", because)
        for study, because in aggregators(ledger, of)
    ]
    summed = [note.about for note in ledger.notes if note.note == SUMMED and of(note.about["members"])]
    helped = [
        (f"the aggregator of study {x['study']} together with more than {x['colluding']} of its silos", x["because"])
        for x in summed
    ]
    return tuple(dict.fromkeys([*seen, *helped]))


def aggregators(ledger: Ledger | Content, of: Callable[[str], bool] = lambda _: True) -> tuple[tuple[str, str], ...]:
    """All studies whose aggregators were trusted, and why. `of`: whether those who were in one matter."""
    found = (note.about for note in ledger.notes if note.note == TRUSTED)
    return tuple(dict.fromkeys((x["study"], x["because"]) for x in found if of(x["members"])))

"""Whom a promise does not hold against: an aggregator that was sent messages of the same rows without noise.

At client level silos trust the aggregator of a study: it adds the noise. It is outside of every account of those rows
from then on, whatever they are promised before or later, so the silo's ledger notes it before the first message.
"""

from __future__ import annotations

from collections.abc import Callable

from kinfolk.accounting.ledger import Ledger
from kinfolk.accounting.members import Members, Source
from kinfolk.accounting.overlap import meet
from kinfolk.accounting.records import Content, LedgerError
from kinfolk.accounting.standing import Standing
from kinfolk.privacy.levels import Level

TRUSTED = "trusted"
"""The kind of note."""


def trust(ledger: Ledger, source: Source, study: str, because: str | None) -> None:
    """Notes, once, that the aggregator of a study sees these rows' messages; on disk when this returns.

    Rows that were promised protection against everybody, the server among them, need their owner's reason.
    """
    assert ledger.store is not None
    with ledger.turn():
        digest = ledger.store.of(source, Level.CLIENT)
        noted = [note.about for note in ledger.notes if note.note == TRUSTED]
        if any((about["study"], about["members"]) == (study, digest) for about in noted):
            return
        mine, standing = ledger.store.load(digest), Standing(ledger.lines, ledger.notes, ledger.store)
        for promise in standing.promises:
            if promise.members.at_data_gates and because is None and meet(mine, promise.members, standing.names):
                raise LedgerError(
                    f"rows of {source.data!r} were promised epsilon={max(promise.budgets.values())[0]:.4g} against "
                    f"everybody, servers too, by run {promise.run}; the aggregator of study {study!r} would see their "
                    'messages without noise. If you trust it with them, say why in the policy: trust_because = "..."; '
                    "later statements quote it"
                )
        ledger.store.save(digest)
        ledger.note(TRUSTED, {"study": study, "members": digest, "because": because or ""})


def trusted(ledger: Ledger, members: Members) -> tuple[tuple[str, str], ...]:
    """The studies whose aggregators were trusted with rows that may be among these, and why."""
    assert ledger.store is not None
    store, standing = ledger.store, Standing((), ledger.notes, ledger.store)
    return aggregators(ledger, lambda digest: meet(store.load(digest), members, standing.names))


def aggregators(ledger: Ledger | Content, of: Callable[[str], bool] = lambda _: True) -> tuple[tuple[str, str], ...]:
    """All studies whose aggregators were trusted, and why. `of`: whether those who were in one matter."""
    found = (note.about for note in ledger.notes if note.note == TRUSTED)
    return tuple(dict.fromkeys((x["study"], x["because"]) for x in found if of(x["members"])))

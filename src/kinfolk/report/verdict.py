"""What a comparison came to, in a sentence for each budget. Private numbers."""

from __future__ import annotations

from collections.abc import Sequence

from kinfolk.report.clients import alone
from kinfolk.report.content import Items, Part, Words, number
from kinfolk.report.curves import error_name
from kinfolk.report.reading import Record


def verdict(records: Sequence[Record]) -> tuple[Part, ...]:
    """For each budget at which several runs were measured: which has the smallest error, and who gains by it."""
    groups: dict[tuple[str, float | None], list[Record]] = {}
    for record in records:
        if record.measured is not None:
            privacy = record.experiment.privacy
            groups.setdefault((privacy.level.value, privacy.epsilon), []).append(record)
    found = [_sentence(group) for group in groups.values() if len({r.method for r in group}) > 1]
    return (Items(tuple(found)),) if found else ()


def _sentence(group: Sequence[Record]) -> Words:
    best = min(group, key=_error)
    at: Words = ("Without privacy: ",)
    if best.epsilon is not None:
        at = ("At epsilon ", number(best.epsilon, best.note), ": ")
    error = error_name(group)
    if best.method == "local":
        return (
            *at,
            f"training alone has the smallest mean {error}, ",
            number(_error(best)),
            "; sharing gains nothing.",
        )
    words: Words = (*at, f"{best.method} has the smallest mean {error}, ", number(_error(best)))
    base = alone(best, group)
    if base is None:
        return (*words, ".")
    own, other = best.errors or {}, base.errors or {}
    gain, lose = (sum(sign * (own[client] - other[client]) < 0 for client in own) for sign in (1, -1))
    who = f"; {gain} of {len(own)} clients gain by it and {lose} lose."
    return (*words, ", against ", number(_error(base)), " alone", who)


def _error(record: Record) -> float:
    score = record.measured
    return float("inf") if score is None else score["value"]

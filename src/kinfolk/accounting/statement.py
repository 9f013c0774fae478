"""The privacy statement a run is shipped with: what is promised to whom, in plain words and as JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict, cast

import numpy as np

from kinfolk.accounting import composition, joint, shown_text
from kinfolk.accounting.aggregator import (
    TRUSTED_AGGREGATOR,
    SharedNoise,
    against_the_aggregator,
    shared_noise_text,
)
from kinfolk.accounting.ledger import SIMULATED, Line
from kinfolk.privacy.levels import PrivacyLevel

VERSION = 1

VIEWS = {
    "example": "everybody else: all other clients together, the server, and whoever sees the network or the models",
    "client": "all other clients together, whatever they share with each other: everything they ever see",
    "none": "nobody",
}
METRICS = "metrics, if they are published"
METRICS_BESIDE = "metrics other than those that may be shown, if they are published"
SEVERAL = (
    "several rows of one person: no column says whose a row is, so the unit is a row, and the accounts of a person's "
    "rows, in one client or in several, add up"
)
SEVERAL_AT_CLIENTS = "a person with data at several clients: such accounts add up"
MORE_CLIENTS = "more clients with data of one person than declared"
ROWS_IN_ONE = f"{MORE_CLIENTS}, and several rows of a person in one client, as no column says whose a row is"
ELSEWHERE = "what other silos release about the same person: their accounts add to this one, and no silo knows them"
SIZES = "that a client takes part, its name, and its number of rows, which count as public"
PEOPLE = "that a client takes part, its name, and its number of people, which count as public"
NOT_COVERED = [
    "choices made by looking at results, such as hyper-parameters picked after several runs",
    METRICS,
    "preprocessing that looked at data: scaling, vocabularies, class lists, filled-in values",
    SEVERAL,
    SIZES,
]


class PartyAccount(TypedDict):
    """What one party has spent, and how many releases of each kind it made."""

    party: str
    epsilon: float
    delta: float
    releases: dict[str, int]


class PersonAccount(TypedDict):
    """The joint account of a person whose data is in several clients."""

    epsilon: float
    delta: float


class PromiseRecord(TypedDict):
    """Up to where in the owner's ledger the promise was checked, and what it rests on."""

    records: int
    head: str
    rows: str
    begun_anew: list[str]
    disjoint: list[dict[str, str]]


class Statement(TypedDict):
    """The statement as JSON."""

    version: int
    level: str
    unit: str
    relation: str
    view: str
    data: str
    noise: str
    simulated: bool
    parties: list[PartyAccount]
    epsilon: Any
    """The largest of all parties; None where there is no privacy, and at a server whose silos have their own."""
    delta: Any
    accountant: str
    program: list[str]
    not_covered: list[str]
    not_private: list[str]
    run: str
    """Added by whoever writes it into a run directory, as are the rounds."""
    rounds: int
    units: NotRequired[str]
    """`person`, where all rows of a person are one unit: what ledger lines call it."""
    rows_per_person: NotRequired[int]
    """How many of them count."""
    clients_per_person: NotRequired[int]
    """These and `person` only where people may be in several clients."""
    person: NotRequired[PersonAccount]
    strength_learned: NotRequired[bool]
    epsilon_if_participation_is_seen: NotRequired[float]
    ledger: NotRequired[str]
    clients: NotRequired[int]
    outcome: NotRequired[str]
    study: NotRequired[str]
    accounts: NotRequired[str]
    absent: NotRequired[dict[str, int]]
    """In how many rounds of a federation each silo was missing; those that never were are left out."""
    promise: NotRequired[PromiseRecord]
    may_be_shown: NotRequired[list[dict[str, Any]]]
    """Evaluations that were paid for (`training/shown.py`)."""
    prediction_sets: NotRequired[list[dict[str, Any]]]
    """Releases of how far predictions reach (`training/prediction_sets.py`)."""
    shared_noise: NotRequired[SharedNoise]
    """Only where clients add the noise in shares."""


@dataclass(frozen=True)
class Book:
    """An owner's ledger, as far as a public statement goes: what was promised, and up to where it was checked."""

    promised: Mapping[str, float]
    records: int
    head: str
    because: tuple[str, ...]
    """Why the account was begun anew, each time."""
    apart: tuple[tuple[str, str], ...]
    """Data sets declared disjoint from this one, and why."""
    identity: str
    """How rows are known; empty: clients and rows by name."""
    seen: float
    """Epsilon over several runs against somebody who sees who takes part; 0 where there is one run alone."""
    together: tuple[float, float] | None = None
    """Epsilon and delta promised to a person at several clients; None where rows are the units, or one client."""
    trusted: tuple[tuple[str, str], ...] = ()
    """Whom it does not hold against, in words, and why: aggregators that were sent messages of these rows without
    noise, and those of secure sums with more silos than these hold against."""


def statement(
    level: PrivacyLevel,
    lines: Sequence[Line],
    deltas: Mapping[str, float],
    *,
    data: str,
    noise: str,
    program: Sequence[str],
    scaling: str,
    scaling_is_private: bool,
    people: int = 0,
    other_accounts: bool = False,
    book: Book | None = None,
) -> Statement:
    """The statement for the given ledger lines, all on one data set, unit and relation; `deltas`: every party's delta.

    `people`: how many rows of a person count, where people are the units. `other_accounts`: the ledger also holds lines
    on this data set that protect another unit or relation. `book`: of an owner's ledger, which has checked every
    release that these units were in: the statement gives the promise then, and what else they were in stays with the
    owner.
    """
    other_runs = len({line.run for line in lines}) > 1  # each chosen, perhaps, after seeing the one before
    parties: list[PartyAccount] = []
    paid: list[list[composition.Charge]] = []
    cache: dict[Hashable, float] = {}
    kinds_made = list(dict.fromkeys(line.kind for line in lines))
    lines_of: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        lines_of[line.party].append(line)
    for party, delta in deltas.items():
        own = composition.by_run((line.run, line.cost, line.uses) for line in lines_of[party])
        if (key := (tuple(own), delta)) not in cache:
            cache[key] = composition.epsilon(own, delta, adaptive=other_runs)
        paid.append(own)
        kinds = {kind: sum(x.uses for x in lines_of[party] if x.kind == kind) for kind in kinds_made}
        parties.append({"party": party, "epsilon": cache[key], "delta": delta, "releases": kinds})
    facts = {
        "version": VERSION,
        "level": level.level,
        "unit": level.level.unit,
        "relation": level.relation,
        "view": VIEWS[level.level],
        "data": data,
        "noise": noise,
        "simulated": noise == SIMULATED,
        "parties": parties,
        "epsilon": max((p["epsilon"] for p in parties), default=0.0),
        "delta": max((p["delta"] for p in parties), default=0.0),
        "accountant": "Renyi odometer, over several runs" if other_runs else "privacy-loss distribution, pessimistic",
        "program": list(program),
        "not_covered": list(NOT_COVERED),
        "not_private": [] if scaling_is_private else [f"features were scaled with raw statistics ({scaling})"],
    }
    result = cast(Statement, facts | (_people(level, people, len(parties)) if level.level.private else {}))
    if level.level.clients_pay and "clients_per_person" in result:
        delta = result["delta"]
        together = joint.epsilon(paid, level.clients_per_person, delta, adaptive=other_runs)
        result["person"] = {"epsilon": together, "delta": delta}
    if level.level.server_pays:
        charges = composition.by_run((line.run, line.cost, line.uses) for line in lines)
        delta = next(iter(deltas.values()))
        result["epsilon_if_participation_is_seen"] = composition.epsilon_if_coins_are_seen(
            charges, delta, adaptive=other_runs
        )
        against = against_the_aggregator(level, charges, delta, adaptive=other_runs)
        result = cast(Statement, {**result, **against.facts})
        result["not_covered"] += [
            against.not_covered,
            "a client's personal model, and predictions made with it for others: they may depend on all of its data",
        ]
    if other_accounts:
        result["not_covered"].append("releases on this data set that protect another unit: they have their own account")
    if book is not None:
        _add_promise(result, book)
    if not level.level.private:
        result["not_private"].append("training adds no noise")
        result["epsilon"] = None
    return result


def _add_promise(result: Statement, book: Book) -> None:
    for party in result["parties"]:
        party["epsilon"] = book.promised.get(party["party"], party["epsilon"])
    result["epsilon"] = max((party["epsilon"] for party in result["parties"]), default=0.0)
    if "epsilon_if_participation_is_seen" in result:
        seen = max(result["epsilon_if_participation_is_seen"], result["epsilon"], book.seen)
        result["epsilon_if_participation_is_seen"] = seen
    if "person" in result and "clients_per_person" in result and book.promised:
        promised = [(party["epsilon"], party["delta"]) for party in result["parties"]]
        together, delta = book.together or _added(promised, result["clients_per_person"])
        made = result["person"]["epsilon"]  # more where nobody is known to be at several, and noise is not Gaussian
        result["person"] = {"epsilon": max(together, made), "delta": delta}
    result["not_covered"] += [f"{who} ({why})" if why else who for who, why in book.trusted]
    result["promise"] = {
        "records": book.records,
        "head": book.head,
        "rows": book.identity or "clients and their rows known by name",
        "begun_anew": list(book.because),
        "disjoint": [{"from": names, "because": why} for names, why in book.apart],
    }


def _added(promised: Sequence[tuple[float, float]], count: int) -> tuple[float, float]:
    """What promises to rows come to for somebody with a row at each of `count` parties, whichever they are.

    A promise to a row says nothing about the releases that will be made under it, so that epsilons and deltas add up.
    """
    epsilons, deltas = (sorted(column, reverse=True)[:count] for column in zip(*promised, strict=True))
    return float(sum(epsilons)), float(sum(deltas))


def _people(level: PrivacyLevel, rows: int, parties: int) -> dict[str, object]:
    """What is said about people: the unit, where they are it, and in how many clients somebody may be.

    At client level the noise was made for that, so it is the unit. At example level each client has its own account,
    and they compose. `rows`: how many rows of a person count, where people are the units. `parties`: how many there
    are.
    """
    count = level.clients_per_person
    elsewhere = MORE_CLIENTS if count > 1 else SEVERAL_AT_CLIENTS
    if level.level.server_pays:
        several = {"unit": f"one person, whose data are all of up to {count} clients", "clients_per_person": count}
        return {**(several if count > 1 else {}), "not_covered": _instead({SEVERAL: elsewhere})}
    words = {SEVERAL: elsewhere, SIZES: PEOPLE} if rows else {SEVERAL: ROWS_IN_ONE} if count > 1 else {}
    not_covered, unit = _instead(words), {}
    if rows:
        where = "one client" if count == 1 or count > parties else f"up to {count} clients"
        unit = {"unit": f"one person, with all rows, in {where}", "units": "person", "rows_per_person": rows}
    if count == 1 or count > parties:  # what the others have is not known here
        return {**unit, "not_covered": [*not_covered, *([ELSEWHERE] if count > 1 else [])]}
    return {**unit, "clients_per_person": count, "not_covered": not_covered}


def _instead(words: Mapping[str, str]) -> list[str]:
    """What is not covered, with some of it said in other words."""
    return [words.get(text, text) for text in NOT_COVERED]


def _counted(parties: Sequence[PartyAccount]) -> str:
    kinds = sorted({kind for party in parties for kind in party["releases"]})
    counts = {kind: [party["releases"].get(kind, 0) for party in parties] for kind in kinds}
    shown = {kind: f"{min(n)}" if min(n) == max(n) else f"{min(n)} to {max(n)}" for kind, n in counts.items()}
    return ", ".join(f"{number} of kind {kind}" for kind, number in shown.items()) or "none"


def _promise_text(promise: PromiseRecord) -> list[str]:
    lines = [
        f"This is a promise for life to every unit ({promise['rows']}): later releases from the same ledger are "
        f"refused if they would break it. Checked up to record {promise['records']} of the owner's ledger "
        f"({promise['head'][:16]})."
    ]
    lines += [f"The owner began this account anew: {why}." for why in promise["begun_anew"]]
    lines += [f"Declared disjoint from {x['from']}: {x['because']}." for x in promise["disjoint"]]
    return lines


def text(result: Statement) -> str:
    """The statement in plain words."""
    if result["level"] == "none":
        return "PRIVACY STATEMENT\n\nThis run is NOT PRIVATE: " + "; ".join(result["not_private"]) + ".\n"
    simulated = " (simulated)" if result["simulated"] else ""
    epsilons = np.array([p["epsilon"] for p in result["parties"]])
    low, high = (f"{value:.4g}" for value in (epsilons.min(), epsilons.max()))
    at_one = " at any one client" if "person" in result else ""
    lines = [
        "PRIVACY STATEMENT",
        "",
        f"What is protected: {result['unit']}, against {result['view']}.",
        f"How well: epsilon {low if low == high else f'{low} to {high}'}{simulated}{at_one}, delta at most "
        f"{result['delta']:.3g}, for neighbours by {result['relation'].replace('_', '-')}; parties: {len(epsilons)}.",
        f"Releases of one party: {_counted(result['parties'])}. Training, validation and test rows belong to a unit.",
        f"Data set: {result['data']}. Noise from: {result['noise']}; sampling coins from a threefry generator with a "
        f"key from there. Accountant: {result['accountant']}.",
    ]
    if "promise" in result:
        lines += _promise_text(result["promise"])
    if "rows_per_person" in result:
        lines.append(
            f"Up to {result['rows_per_person']} rows of a person count, as their mean; how many somebody has is "
            "protected like the rows."
        )
    if "person" in result:
        person, count = result["person"], result.get("clients_per_person", result.get("tasks_per_person"))
        whose = "with rows in" if "rows_per_person" in result else "with one example in each of"
        lines.append(
            f"A person {whose} up to {count} clients, whichever they are: epsilon {person['epsilon']:.4g}{simulated}, "
            f"delta {person['delta']:.3g}. That nobody is in more is an assumption."
        )
    if "shared_noise" in result:
        lines.append(shared_noise_text(result["shared_noise"], result["epsilon"], simulated))
    elif "epsilon_if_participation_is_seen" in result and TRUSTED_AGGREGATOR in result["not_covered"]:
        lines.append(
            f"Against somebody who sees who takes part in which round: epsilon "
            f"{result['epsilon_if_participation_is_seen']:.4g}{simulated}. Against the aggregator: no guarantee."
        )
    if result.get("strength_learned"):
        lines.append("Strengths were learned from what was released anyway: privacy spent on choosing the strength: 0.")
    lines += [line for one in result.get("may_be_shown", ()) for line in shown_text.in_words(one)]
    lines += [shown_text.sets_in_words(one) for one in result.get("prediction_sets", ())]
    if result["simulated"]:
        lines.append("This was a simulation: its noise can be repeated from the seed, so the result is for study only.")
    if result["not_private"]:
        lines.append("NOT PRIVATE: " + "; ".join(result["not_private"]) + ".")
    lines.append("Not covered: " + "; ".join(result["not_covered"]) + ".")
    lines.append(f"Flow check passed by program {', '.join(p[:16] for p in result['program'])}.")
    return "\n".join(lines) + "\n"

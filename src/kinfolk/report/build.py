"""Builds a report from the records of some runs: what was trained for whom, what is promised, what came out."""

from __future__ import annotations

from collections.abc import Sequence

from kinfolk.algorithms import REGISTRY
from kinfolk.report import checking, clients, curves, may_be_shown, words
from kinfolk.report.content import Code, Details, Facts, Items, Paragraph, Part, Report, Section, Table, Value, number
from kinfolk.report.reading import Record
from kinfolk.report.verdict import verdict
from kinfolk.training import scorecard
from kinfolk.training.scorecard import told

LONGEST = 200
"""Most rows of a table of parties; the statement has all of them."""
ON_PAPER = 3
"""Of more runs than this, exact promises and settings are not printed: a few pages are read, and each run has them."""


def build(records: Sequence[Record], with_private: bool) -> Report:
    """The report on some runs, the first of which is the one it is about."""
    first = records[0]
    promise = (
        Section("privacy", "Privacy", _privacy(records, with_private)),
        Section("shown", "May be shown", may_be_shown.section(records)),
    )
    results = (
        Section("utility", "Privacy against error", curves.utility(records, with_private)),
        Section("clients", "Client by client", clients.section(records)),
        Section("rounds", "Over the rounds", curves.over_rounds(records)),
    )
    compared = with_private and len(records) > 1
    sections = (
        Section("summary", "At a glance", _summary(records, with_private)),
        *(results + promise if compared else promise + results),
        Section("strengths", "How hard clients are pulled together", curves.strengths(records)),
        Section("checks", "Checks", checking.section(records)),
        Section("reproduce", "Do it again", _reproduce(records)),
    )
    data = ", ".join(dict.fromkeys(record.statement["data"] for record in records))
    title = _title(first) if len(records) == 1 else f"{len(records)} runs compared"
    return Report(f"{title}: {data}", _subtitle(records), _label(records), tuple(s for s in sections if s.parts))


def _title(record: Record) -> str:
    names = dict.fromkeys(phase.method for phase in record.experiment.phases)
    return ", then ".join(REGISTRY[name].title if name in REGISTRY else name for name in names)


def _subtitle(records: Sequence[Record]) -> str:
    if len(records) > 1:
        return "Methods: " + ", ".join(dict.fromkeys(record.method for record in records))
    record = records[0]
    clients = f"A model for each of {record.clients} clients. " if record.clients else "A model for each client. "
    return f"{clients}Run {record.run.name}"


def _label(records: Sequence[Record]) -> str:
    return ", ".join(dict.fromkeys(_kind(record) for record in records))


def _kind(record: Record) -> str:
    if record.statement["level"] == "none":
        return "not private"
    return "simulation" if record.statement["simulated"] else "release"


def _epsilon(record: Record) -> str | Value:
    return "no privacy" if record.epsilon is None else number(record.epsilon, record.note)


def _summary(records: Sequence[Record], with_private: bool) -> tuple[Part, ...]:
    first, parts = records[0], []
    if with_private:
        parts.append(
            Paragraph(
                (
                    "This page shows numbers from private/: test errors and losses, and each client's. The privacy "
                    "statement does not cover them. Keep the page among people who may see them; without "
                    "--with-private it shows public/ only.",
                ),
                "warn",
            )
        )
    if len(records) == 1:
        parts.append(Facts(_facts(first)))
        if first.experiment.why:
            parts.append(Paragraph((f"Chosen from public numbers: {first.experiment.why}.",)))
    parts += verdict(records)
    header = ["method", "level", "rounds", "epsilon", "delta"]
    rows = []
    for record in records:
        row: list[str | Value] = [
            record.method,
            record.statement["level"],
            number(record.statement["rounds"]),
            _epsilon(record),
            "" if record.epsilon is None else number(record.statement["delta"]),
        ]
        if with_private:
            row += curves.judged(record)
        rows.append(tuple(row))
    if with_private:
        header += curves.judged_by(records)
    if len(records) > 1 or with_private:
        parts.append(Table("The runs on this page", tuple(header), tuple(rows)))
    parts += [Paragraph((said,), "small") for record in records if (said := _others(record))]
    parts += [
        Paragraph((f"{record.method} ({record.run.name}) is {said}.",), "warn")
        for record in records
        if (said := scorecard.warning(record.card))
    ]
    if len(records) > 1:
        parts.append(Details("Names of the runs, in this order", (Items(tuple((r.run.name,) for r in records)),)))
    return tuple(parts)


def _others(record: Record) -> str:
    """Metrics beside the one that a run is judged by, each with its constant; empty where there are none."""
    scores = [] if record.card is None else record.card["scores"][1:]
    constants = ("not measured" if one["constant"] is None else f"{one['constant']:.3g}" for one in scores)
    said = [f"{told(one, one['value'])} (constant {other})" for one, other in zip(scores, constants, strict=True)]
    return f"{record.method} ({record.run.name}), mean client: {', '.join(said)}." if said else ""


def _facts(record: Record) -> tuple[tuple[str, str | Value], ...]:
    model, data = record.experiment.model.name, record.statement["data"]
    protects = {"example": "each row of each client", "client": "each client as a whole", "none": "nothing"}
    pairs: list[tuple[str, str | Value]] = [("Epsilon", _epsilon(record))]
    if record.epsilon is not None:
        pairs.append(("Delta", number(record.statement["delta"])))
    people = "each person of each client, with all rows" if "units" in record.statement else None
    pairs.append(("Protects", people or protects[record.statement["level"]]))
    if record.clients:
        pairs.append(("Clients", number(record.clients)))
    pairs += [("Method", record.method), ("Model", model), ("Data set", data)]
    pairs.append(("Rounds", number(record.statement["rounds"])))
    absent = record.statement.get("absent", {})
    if absent:
        pairs.append(("Absent", ", ".join(f"{name} in {count} rounds" for name, count in absent.items())))
    if record.experiment.seeds > 1:
        pairs.append(("Repetitions", number(record.experiment.seeds)))
    return tuple(pairs)


def _privacy(records: Sequence[Record], with_private: bool) -> tuple[Part, ...]:
    promises: dict[tuple[Part, ...], list[Record]] = {}
    for record in records:
        promises.setdefault(words.plain(record.statement), []).append(record)
    parts: list[Part] = []
    for place, (promise, group) in enumerate(promises.items()):
        names = ", ".join(f"{record.method} ({record.run.name})" for record in group)
        if len(records) == 1:
            parts += promise
        elif place == 0:
            parts += [Paragraph((f"For {names}:",), "small"), *promise]
        else:
            epsilon = _epsilon(group[0])
            parts.append(Details(f"In plain words at epsilon {epsilon}: {names}", promise))
    if with_private:
        shown = "test errors and losses over the rounds and of each client, read from private/"
        parts.append(Paragraph((f"Shown on this page and not covered either: {shown}.",), "warn"))
    exact = [(record, (_exact(record), *_parties(record), _whole(record))) for record in records]
    if len(records) == 1:
        return (*parts, *exact[0][1])
    paper = len(records) <= ON_PAPER
    every = tuple(Details(f"{record.method}: {record.run.name}", own, printed=paper) for record, own in exact)
    return (*parts, Details("The promises, exactly, run by run", every, printed=paper))


def _exact(record: Record) -> Table:
    rows = tuple((name, *value) for name, value in words.exact(record.statement))
    return Table("The promise, exactly", ("", ""), rows)


def _parties(record: Record) -> tuple[Part, ...]:
    parties = sorted(record.statement["parties"], key=lambda p: -p["epsilon"])
    if not parties:
        return ()
    kinds = sorted({kind for party in parties for kind in party["releases"]})
    rows = tuple(
        (
            party["party"],
            number(party["epsilon"], record.note),
            number(party["delta"]),
            *(number(party["releases"].get(kind, 0)) for kind in kinds),
        )
        for party in parties[:LONGEST]
    )
    header = ("party", "epsilon", "delta", *(f"releases of kind {kind}" for kind in kinds))
    more = len(parties) - len(rows)
    caption = "Every party's account" + (f"; {more} more, with no larger epsilon, in statement.json" if more else "")
    return (Details(f"The account of every party ({len(parties)})", (Table(caption, header, rows),)),)


def _whole(record: Record) -> Details:
    return Details("The statement as the run wrote it (public/statement.txt)", (Code(record.statement_text),))


def _reproduce(records: Sequence[Record]) -> tuple[Part, ...]:
    parts: list[Part] = []
    for record in records:
        packages = record.environment["packages"]
        if record.experiment.seed is None:
            says = (
                "This was a release: its noise came from the operating system and is gone, so it cannot be repeated. "
                "The same settings can be run again, and are charged to the ledger again."
            )
        else:
            says = "Save this as experiment.toml; the seed makes the result the same on the same versions and device."
        own: tuple[Part, ...] = (
            Paragraph((says,)),
            Code("kinfolk train experiment.toml"),
            Code((record.run.public / "experiment.toml").read_text()),
            Items(
                (
                    (f"Python {record.environment['python']} on {record.environment['device']}",),
                    (", ".join(f"{name} {version}" for name, version in packages.items()),),
                )
            ),
        )
        parts += own if len(records) == 1 else [Details(record.run.name, own, printed=len(records) <= ON_PAPER)]
    if len(records) > ON_PAPER:
        says = "Each run directory has its settings (public/experiment.toml), and kinfolk train takes that file."
        parts.insert(0, Paragraph((says,)))
    return tuple(parts)

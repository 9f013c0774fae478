"""`kinfolk ledger` (show, verify, open, export): the account of whoever owns the data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from kinfolk import limits
from kinfolk.cli.output import Json, console, emit

ledger_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="The account of an owner of data: what was promised, what was spent, and whether the record is whole.",
)
LedgerPath = Annotated[
    Path | None,
    typer.Argument(help="A ledger (.jsonl), or a run directory; default: the ledger of whoever uses this computer."),
]


def _found(path: Path | None) -> Path:
    from kinfolk.accounting.ledger import LedgerError
    from kinfolk.accounting.owner import default_ledger

    path = default_ledger() if path is None else path
    path = path / "public" / "ledger.jsonl" if path.is_dir() else path
    if not path.is_file():
        raise LedgerError(f"{path} is not a ledger: give a .jsonl file or a run directory; the first release makes one")
    return path


@ledger_app.command()
def show(
    path: LedgerPath = None,
    delta: Annotated[float | None, typer.Option(help="Default: 1e-5.")] = None,
    as_json: Json = False,
) -> None:
    """What every party has spent, by data set and protected unit, and what was promised to whom."""
    from kinfolk.accounting.ledger import SIMULATED, read_ledger
    from kinfolk.accounting.owner import reasons
    from kinfolk.accounting.spending import promises, spending
    from kinfolk.accounting.views import aggregators

    delta = limits.checked("delta", 1e-5 if delta is None else delta)
    path = _found(path)
    content = read_ledger(path)
    rows, stand = spending(path, delta), promises(content)
    if as_json:
        emit("ledger show", {"ledger": str(path), "parties": rows, "promises": stand, "trusted": aggregators(content)})
        return
    table = Table("party", "data set", "protects", "runs", "releases", "epsilon", "delta", title=f"Ledger {path.name}")
    for row in rows[:60]:
        mark = " (simulated)" if row["noise"] == SIMULATED else ""
        words = (row["party"], row["data"], f"one {row['unit']} ({row['relation']})", str(row["runs"]))
        table.add_row(*map(escape, words), str(row["releases"]), f"{row['epsilon']:.4g}{mark}", f"{row['delta']:.2g}")
    console.print(table)
    if len(rows) > 60:
        console.print(f"and {len(rows) - 60} more parties (all of them with --json)")
    for promise in stand[:60]:
        console.print(
            f"Promised by run {promise['run']}: epsilon {promise['epsilon']:.4g} at delta {promise['delta']:.2g} to "
            f"{promise['parties']} part{'y' if promise['parties'] == 1 else 'ies'}. Later releases must keep it.",
            highlight=False,
        )
    for study, why in aggregators(content):
        console.print(f"Its aggregator was trusted with messages without noise: study {study}. {why}", markup=False)
    for why in reasons(content):
        console.print(f"Begun anew: {why}", highlight=False, markup=False)


@ledger_app.command()
def verify(path: LedgerPath = None, as_json: Json = False) -> None:
    """Read every record: chain of hashes, numbers, and the memberships that an owner's ledger names."""
    from kinfolk.accounting.ledger import read_ledger
    from kinfolk.accounting.owner import default_ledger, open_owned

    path = _found(path)
    content = read_ledger(path)
    found: dict[str, Any] = {
        "ledger": str(path),
        "records": len(content.hashes),
        "head": content.head,
        "torn": bool(content.torn),
    }
    if any(note.note == "opened" for note in content.notes) or path == default_ledger():
        with open_owned(path) as ledger:
            digests = {line.members for line in ledger.lines if line.members}
            assert ledger.store is not None
            for digest in digests:
                ledger.store.load(digest)
            found |= {"memberships": len(digests), "records": len(ledger), "head": ledger.head}
    if as_json:
        emit("ledger verify", found)
        return
    kept = f", {found['memberships']} memberships" if "memberships" in found else ""
    console.print(f"{path}: whole. {found['records']} records{kept}; head {found['head'][:16]}", highlight=False)
    if content.torn:
        console.print("Its end was torn: that part paid for nothing, and is set aside at the next release.")


@ledger_app.command("open")
def begin(
    because: Annotated[str, typer.Option(help="What happened to the old one; every later statement quotes it.")],
    path: LedgerPath = None,
    new: Annotated[
        bool, typer.Option("--new", help="Begin the account anew: what was spent before is not in it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Begin an account anew, when a computer, a ledger or its key is lost and there is no copy.

    What was spent before is not in the new one, so promises made before may break: that is why the reason is quoted.
    """
    from kinfolk.accounting.ledger import LedgerError
    from kinfolk.accounting.owner import default_ledger, open_new

    if not new:
        raise LedgerError("open makes a new account, without what was spent before: add --new if that is meant")
    path = default_ledger() if path is None else path
    aside = open_new(path, because)
    if as_json:
        emit("ledger open", {"ledger": str(path), "old": None if aside is None else str(aside)})
        return
    moved = "" if aside is None else f" The old one is kept as {aside.name}."
    console.print(f"{path} is a new account.{moved}", highlight=False, markup=False)


@ledger_app.command()
def export(
    output: Annotated[Path, typer.Option(help="A Parquet or CSV file.")],
    path: LedgerPath = None,
    as_json: Json = False,
) -> None:
    """Write all charges as a table for an auditor, without what says whose rows they were."""
    from dataclasses import asdict

    from kinfolk.accounting.ledger import read_ledger
    from kinfolk.cli.predict import write_frame
    from kinfolk.data.tables.read import polars

    rows = []
    for line in read_ledger(_found(path)).lines:
        values = asdict(line)
        del values["members"]
        first, last = values.pop("rounds")
        rows.append({**values.pop("cost"), **values, "first_round": first, "end_round": last})
    write_frame(polars().DataFrame(rows), output)
    if as_json:
        emit("ledger export", {"output": str(output), "lines": len(rows)})
        return
    console.print(f"{output}: {len(rows)} charges", highlight=False)

"""Every table and figure of the three papers: run, compared, with a verdict.

    python -m benchmarks.studies.reproduce.run                           # lists them
    python -m benchmarks.studies.reproduce.run cross-silo/figure-3b [--quick]
    python -m benchmarks.studies.reproduce.run --all --quick
    python -m benchmarks.studies.reproduce.run --pages                   # from what was measured before

`kinfolk reproduce` is the same, on Ray if it is told so (--on). What is measured goes to results/ here, pages to
docs/results/papers. KINFOLK_DATA names the data's directory; what cannot be had runs on a stand-in, and says so.
"""

from __future__ import annotations

import argparse
import difflib
import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.studies.reproduce import cross_silo, model_protected, pmtl
from benchmarks.studies.reproduce.files import as_json, of_record
from benchmarks.studies.reproduce.page import index, page, picture, sentence
from benchmarks.studies.reproduce.records import PAPERS, ElsewhereError, Item, Size, verdict
from benchmarks.studies.reproduce.scores import machine
from kinfolk.data.given_rows import DataError
from kinfolk.toml import ConfigError
from kinfolk.training.pieces import Each, Result, each

Say = Callable[[str], None]
RESULTS = Path(__file__).parent / "results"
FULL_RUNS = "benchmarks.studies.reproduce.full_runs"
PAGES = Path(__file__).parents[3] / "docs" / "results" / "papers"


def items() -> dict[str, Item]:
    """All of them by name."""
    found = [*pmtl.items(), *model_protected.items(), *cross_silo.items()]
    return {item.name: item for item in found}


def measure(item: Item, size: Size) -> dict[str, Any]:
    """Runs one, and says what was found."""
    if item.measure is None:
        raise SystemExit(f"{item.name} has nothing to measure: {item.shows}")
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        measured = item.measure(size)
    about = {"item": item.name, "size": size, "seconds": round(time.process_time() - began, 1)}
    return {**about, "device": machine(), **asdict(measured)}


def stored() -> dict[str, dict[str, Any]]:
    """What was measured before, by item: in full where that was done, else quickly; and how long the quick run took."""
    quick, full = (
        {r["item"]: r for r in (json.loads(path.read_text()) for path in sorted((RESULTS / size).glob("*.json")))}
        for size in ("quick", "full")
    )
    spent = {name: record["seconds"] for name, record in quick.items()}
    return {name: {**record, "quick_seconds": spent.get(name)} for name, record in {**quick, **full}.items()}


def keep(record: dict[str, Any], say: Say = print) -> None:
    """Writes down what was measured, beside what other sizes gave; a stand-in never takes the place of data."""
    record = {**record, "size": "quick"} if record["stand_in"] else record  # whatever was asked for, it is no full run
    path = RESULTS / record["size"] / f"{record['item'].replace('/', '-')}.json"
    if record["stand_in"] and path.exists() and not json.loads(path.read_text())["stand_in"]:
        say(f"  kept what was measured before: {record['data']} is not the paper's data")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_json(record))


def write_pages(known: dict[str, Item]) -> None:
    """All pages, from what was measured before."""
    PAGES.mkdir(parents=True, exist_ok=True)
    records = stored()
    for paper in PAPERS:
        (PAGES / f"{paper}.md").write_text(page(paper, known.values(), records))
    for name, record in records.items():
        (PAGES / f"{name.replace('/', '-')}.svg").write_text(picture(known[name], of_record(record)))
    (PAGES / "index.md").write_text(index(list(known.values()), records))


def listing(known: dict[str, Item]) -> list[tuple[str, str, str]]:
    """Name, title and verdict of each."""
    records = stored()
    found = {name: of_record(record) for name, record in records.items()}
    return [(name, item.title, verdict(item, found.get(name))) for name, item in known.items()]


def measured(size: Size, name: str) -> Result:
    """The record of one item, or where else it is run.

    `size`: how much of it is run. `name`: as listed.
    """
    try:
        return Result(measure(items()[name], size))
    except ElsewhereError as study:
        return Result({"elsewhere": str(study)})


def main(arguments: list[str] | None = None, in_pieces: Each = each, say: Say = print) -> list[dict[str, Any]]:
    """Runs what the arguments ask for; what came of each item, as JSON holds it.

    `in_pieces`: does the items, one by one unless told. `say`: hears of each when it is done.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="as listed; a paper's name for all of its items")
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--missing", action="store_true", help="those that were not run yet")
    parser.add_argument("--quick", action="store_true", help="small settings: all of them in 9 minutes on two cores")
    parser.add_argument("--cell", action="store_true", help="seconds each: shows that it runs, and is not kept")
    parser.add_argument("--pages", action="store_true", help="write the pages from what was measured before")
    args = parser.parse_args(arguments)
    known = items()
    runs = asked(known, args.names, every=args.all)
    if args.missing:
        runs = [item for item in known.values() if item.measure and item.name not in stored()]
    if not runs and not args.pages:
        for name, title, found in listing(known):
            say(f"{name:28s} {found:20s} {title}")
    size: Size = "cell" if args.cell else "quick" if args.quick else "full"
    done: dict[str, dict[str, Any]] = {}

    def tell(name: str, outcome: Result | Exception) -> None:
        if isinstance(outcome, Exception):
            return
        record = outcome.values
        if "elsewhere" in record:
            how = f"python -m {FULL_RUNS} {record['elsewhere']} FOLDER"
            say(f"{name}: in full on an accelerator, by `{how}`; or --quick")
            done[name] = {"name": name, "verdict": None, "elsewhere": how}
            return
        found = of_record(record)
        judged = None if args.cell else verdict(known[name], found)
        words = "ran" if args.cell else sentence(known[name], found)
        spent = record["took"].removesuffix(".") or f"{record['seconds']:.0f} CPU s"
        say(f"{name} ({spent}): {f'{judged}. ' if judged else ''}{words}")
        done[name] = {"name": name, "verdict": judged, "says": words, "cpu_seconds": record["seconds"], "size": size}
        if not args.cell:
            keep(record, say)

    try:
        in_pieces(measured, size, {item.name: item.name for item in runs}, told=tell)
    finally:  # what was kept is on the pages, whatever came of the rest
        if args.pages or (runs and not args.cell):
            write_pages(known)
    return [done[item.name] for item in runs]


def asked(known: dict[str, Item], names: Sequence[str], *, every: bool = False) -> list[Item]:
    """The items to run, by their names or their papers'; a name that asks for none is refused."""
    if names and every:
        raise ConfigError(f"--all is everything, {names[0]} too: leave out --all, or the names")
    for name in names:
        found = [item for key, item in known.items() if chosen(key, [name])]
        if not found:
            near = difflib.get_close_matches(name, [*known, *PAPERS], 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ConfigError(f"no item {name}: {hint}`kinfolk reproduce` lists them")
        if not any(item.measure for item in found):
            raise ConfigError(f"{name} has nothing to measure ({found[0].shows.rstrip('.')}): name another item")
    return [item for name, item in known.items() if item.measure and (every or chosen(name, names))]


def chosen(name: str, names: Sequence[str]) -> bool:
    """Whether an item was asked for, by its name, that of all its panels, or its paper's.

    >>> chosen("pmtl/figure-3b", ["pmtl/figure-3"]), chosen("pmtl/figure-3b", ["pmtl"]), chosen("pmtl/table-1", ["p"])
    (True, True, False)
    """
    return bool({name, name.rstrip("abcd"), name.split("/")[0]} & set(names))


if __name__ == "__main__":
    try:
        main(say=partial(print, flush=True))
    except (ConfigError, DataError) as error:
        raise SystemExit(str(error)) from None

"""The full settings, for an accelerator: packed here, run there in sittings of some minutes, taken home.

    python -m benchmarks.studies.reproduce.full_runs mnist FOLDER   # school, cifar10, femnist, plain, noise

One command, given again and again; it does what comes next. Here it packs: noise is calibrated, the data's file is put
into FOLDER (at most 55 MB). On the accelerator, with FOLDER carried there, it runs what is open for `--seconds` (needs
jax and numpy only) and says what is left; `results.json` in FOLDER is what has to come back, and what a next sitting
begins from. Here again, with all results in FOLDER, it writes them down and builds the pages. `--try`: all of it on a
tiny setting, in this process, written nowhere else. `--here`: runs on this machine, whatever it is.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from benchmarks.studies.reproduce.full_data import Recipe
from benchmarks.studies.reproduce.records import Measured
from benchmarks.studies.reproduce.scores import followed, machine, scores
from kinfolk.data.given_rows import DataError
from kinfolk.devices import usable
from kinfolk.engines.layout import lay_out
from kinfolk.engines.loop import Sweep
from kinfolk.engines.resident import Plan
from kinfolk.privacy.levels import Level
from kinfolk.training import job_file
from kinfolk.training.build import build_model
from kinfolk.training.experiment import ModelChoice

if TYPE_CHECKING:  # what needs more than jax and numpy
    from benchmarks.studies.reproduce.comparison import Compared
    from benchmarks.studies.reproduce.full_settings import Full

FOLDER_LIMIT = 55_000_000
"""Bytes that travel together with the repository."""


def pack(study: str, folder: Path, *, small: bool = False) -> None:
    """Data, and a program's numbers for every item, budget, method and strength; those near strength 1 come first."""
    from benchmarks.studies.reproduce.cross_silo_measures import DITTO
    from benchmarks.studies.reproduce.full_settings import STUDIES, tiny

    folder.mkdir(parents=True, exist_ok=True)
    packed: dict[str, Any] = {"study": study, "small": small, "items": {}, "cells": []}
    for item, full in STUDIES[study].items():
        full = tiny(full) if small else full
        setting = full.setting
        full.recipe.pack(folder)
        about = {"model": asdict(setting.model), "recipe": asdict(full.recipe), "level": setting.level}
        numbers = {key: getattr(setting, key) for key in ("batch", "weights", "rounds", "seeds")}
        packed["items"][item] = (
            about | numbers | {"blocks": 1 if setting.cohort else 4}
        )  # cohorts are gathered from one
        for cell, own in programs(full, folder):
            file = f"cell{len(packed['cells'])}.npz"
            job_file.save(own, folder / file)
            packed["cells"].append({"item": item, **cell, "file": file})
    packed["cells"].sort(key=lambda cell: (cell["method"] == DITTO, far(cell["strength"])))  # the dearest come last
    size = sum(path.stat().st_size for path in folder.iterdir())
    if size > FOLDER_LIMIT:
        raise SystemExit(
            f"{folder} has {size} bytes, and {FOLDER_LIMIT} can travel: take fewer images in full_settings"
        )
    (folder / "packed.json").write_text(json.dumps(packed))


def programs(full: Full, folder: Path) -> Iterator[tuple[dict[str, Any], Any]]:
    """Every cell of an item, and the numbers of its program: algorithm and terms."""
    from benchmarks.studies.reproduce.comparison import ends, figures, noisy
    from benchmarks.studies.reproduce.full_settings import SAME

    setting = replace(full.setting, seeds=1)
    data = [full.recipe.load(0, folder)]
    if full.noises:
        for name, figure in noisy(setting, full.noises, data):
            cell = {"method": name, "epsilon": None, "strength": None, "ends": ends(setting)}
            yield cell, (figure.algorithms, figure.terms)
        return
    for epsilon in setting.epsilons:
        budget = None if math.isinf(epsilon) else epsilon
        for method, figure in figures(setting, setting.methods, epsilon, data):
            for n, strength in enumerate(setting.methods[method].strengths or (None,)):
                if SAME.get((method, strength)) in setting.methods:
                    continue
                own = jax.tree.map(lambda leaf, n=n: leaf[n : n + 1], (figure.algorithms, figure.terms))
                yield {"method": method, "epsilon": budget, "strength": strength, "ends": [setting.rounds]}, own


def far(strength: float | None) -> float:
    """How far a strength is from 1; methods without one come first, the ends last."""
    return 0.0 if strength is None else abs(math.log(strength)) if strength else math.inf


def still_open(packed: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cells that no row answers."""
    done = {row["file"] for row in rows}
    return [cell for cell in packed["cells"] if cell["file"] not in done]


def answered(folder: Path) -> dict[str, Any]:
    """What was measured so far."""
    path = folder / "results.json"
    return json.loads(path.read_text()) if path.exists() else {"device": machine(), "compile_seconds": 0.0, "rows": []}


@dataclass(frozen=True)
class Made:
    """An item, ready to be run."""

    outcome: str
    seeds: int
    plan: Plan
    clients: Any
    tests: Any

    def figure(self, folder: Path, cell: dict[str, Any]) -> Sweep:
        """The program of a cell."""
        algorithms, terms = job_file.load(folder / cell["file"])
        return Sweep(self.plan, algorithms, terms, self.clients, self.tests)


def work(folder: Path, seconds: float = math.inf) -> int:
    """Trains what is open until the time is up; how many cells are left then."""
    packed, results = json.loads((folder / "packed.json").read_text()), answered(folder)
    began, cells = time.perf_counter(), still_open(packed, results["rows"])
    with ThreadPoolExecutor() as pool:
        items = {cell["item"]: packed["items"][cell["item"]] for cell in cells}
        made = dict(zip(items, pool.map(partial(laid_out, folder), items.values()), strict=True))
        compiling = time.perf_counter()
        list(pool.map(lambda cell: compiled(made[cell["item"]], folder, cell), different(items, cells)))
    results["compile_seconds"] += time.perf_counter() - compiling
    for cell in cells:
        if time.perf_counter() - began > seconds:
            break
        own = made[cell["item"]]
        figure, started = own.figure(folder, cell), time.perf_counter()
        found = measured(figure, own, cell, over_rounds=len(cell["ends"]) > 1)
        about = {"outcome": own.outcome, "clients": own.clients.sizes.shape[-1]}
        row = {**cell, **about, **found, "run_seconds": time.perf_counter() - started}
        results["rows"].append(row)
        print(json.dumps(row), flush=True)
        (folder / "results.json").write_text(json.dumps(results))
    return len(still_open(packed, results["rows"]))


def measured(figure: Sweep, own: Made, cell: dict[str, Any], *, over_rounds: bool) -> dict[str, list[list[float]]]:
    """Scores of every seed at the end; `over_rounds`: along the way, and losses on the rows trained on."""
    if over_rounds:
        return followed(figure, own.seeds, cell["ends"], own.outcome)
    states = figure.rounds(figure.init(range(own.seeds)), 0, cell["ends"][-1])
    return {"scores": [scores(figure, states, own.outcome)[0].tolist()]}


def different(items: dict[str, Any], cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first of the cells that have the same program: numbers and rows are no part of it."""
    first: dict[str, dict[str, Any]] = {}
    for cell in cells:
        shape = {key: value for key, value in items[cell["item"]].items() if key != "recipe"}
        first.setdefault(json.dumps([shape, cell["method"], cell["epsilon"] is None]), cell)
    return list(first.values())


def compiled(own: Made, folder: Path, cell: dict[str, Any]) -> None:
    """Compiles a cell's program."""
    own.figure(folder, cell).compile(range(own.seeds))


def laid_out(folder: Path, about: dict[str, Any]) -> Made:
    """An item's rows, where they are computed, and what is fixed of its programs."""
    recipe = Recipe(**about["recipe"])
    data = [recipe.load(seed, folder) for seed in range(about["seeds"])]
    clients, tests, widths, steps = lay_out(
        data,
        batch_size=about["batch"],
        epochs=1,
        by_size=about["weights"] == "size",
        most_blocks=about["blocks"],
    )
    choice = ModelChoice(about["model"]["name"], tuple(about["model"]["hidden"]))
    model = build_model(choice, data[0].shape, data[0].outcome, data[0].classes)
    plan = Plan(model, Level(about["level"]), widths, steps, devices=usable())
    clients, tests = jax.device_put((clients, tests))
    return Made(data[0].outcome, about["seeds"], plan, clients, tests)


def records(folder: Path) -> list[dict[str, Any]]:
    """A results file's content for every item of which all methods were measured at all budgets, or with all noise."""
    from benchmarks.studies.reproduce.full_settings import STUDIES, tiny

    packed, results = json.loads((folder / "packed.json").read_text()), answered(folder)
    device, found = results["device"], []
    for item, full in STUDIES[packed["study"]].items():
        full = tiny(full) if packed["small"] else full
        rows = [row for row in results["rows"] if row["item"] == item]
        made = noise_curves(full, rows) if full.noises else budget_curves(full, rows)
        if made is None:
            continue
        run = sum(row["run_seconds"] for row in rows if row.get("device", device) == device)
        compiling = results["compile_seconds"]
        together = " (for all items of the study)" if len(packed["items"]) > 1 else ""
        took = f"The full run on {device}: {run:.0f} s of running, {compiling:.0f} s of compiling{together}."
        about = Measured(made.curves, full.words, full.setting.seeds, full.budget, strengths=made.strengths)
        notes = filter(None, (full.note, fewer(full, rows), elsewhere(device, rows)))
        about = replace(about, took=took, machine=device, note=" ".join(notes))
        found.append({"item": item, "size": "full", "seconds": round(run, 1), "device": device, **asdict(about)})
    return found


def budget_curves(full: Full, rows: list[dict[str, Any]]) -> Compared | None:
    """Curves over epsilon; None where a method is missing at a budget."""
    from benchmarks.studies.reproduce.comparison import gathered

    grid: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for row in sorted([*rows, *same_as_others(full, rows)], key=lambda row: row["strength"] or 0.0):
        grid.setdefault((row["method"], math.inf if row["epsilon"] is None else row["epsilon"]), []).append(row)
    wanted = [(method, epsilon) for epsilon in full.setting.epsilons for method in full.setting.methods]
    if any(pair not in grid for pair in wanted):
        return None
    own = {
        name: replace(m, strengths=strengths_of(grid[name, full.setting.epsilons[0]]))
        for name, m in full.setting.methods.items()
    }
    cells = ((name, e, np.array([row["scores"][-1] for row in grid[name, e]])) for name, e in wanted)
    return gathered(replace(full.setting, methods=own), rows[0]["outcome"], cells)


def same_as_others(full: Full, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What other methods' rows say of a method at an end of its grid."""
    from benchmarks.studies.reproduce.full_settings import SAME

    return [
        {**row, "method": method, "strength": strength}
        for (method, strength), other in SAME.items()
        if method in full.setting.methods
        for row in rows
        if row["method"] == other
    ]


def fewer(full: Full, rows: list[dict[str, Any]]) -> str:
    """Which strengths were run of methods that have more of them."""
    said = []
    for name, method in full.setting.methods.items():
        found = {row["strength"] for row in [*rows, *same_as_others(full, rows)] if row["method"] == name}
        if found < set(method.strengths):
            run = ", ".join("infinite" if math.isinf(s) else f"{s:g}" for s in sorted(found))
            said.append(f"{name} was run with strength{'s' * (len(found) > 1)} {run} only.")
    return " ".join(said)


def elsewhere(device: str, rows: list[dict[str, Any]]) -> str:
    """Which methods were run on another machine than the rest."""
    others = {row["method"]: row["device"] for row in rows if row.get("device", device) != device}
    return " ".join(f"{name} was run on {other}." for name, other in others.items())


def noise_curves(full: Full, rows: list[dict[str, Any]]) -> Compared | None:
    """Curves over rounds; None where a kind of noise is missing."""
    from benchmarks.studies.reproduce.comparison import Compared, traced

    assert full.noises is not None
    found = {row["method"]: row for row in rows}
    if found.keys() != full.noises.keys():
        return None
    clients = rows[0]["clients"]
    return Compared(traced(full.setting, full.noises, clients, ((name, found[name]) for name in full.noises)), {})


def strengths_of(rows: list[dict[str, Any]]) -> tuple[float, ...]:
    """Those that were measured, in order."""
    return tuple(row["strength"] for row in rows if row["strength"] is not None)


def merge(folder: Path) -> None:
    """Takes results home: written down, and the pages built."""
    from benchmarks.studies.reproduce import run

    for record in records(folder):
        run.keep(record)
        print(f"{record['item']}: {record['took']}")
    run.write_pages(run.items())


def tried(study: str, folder: Path) -> list[dict[str, Any]]:
    """Packed, run and gathered on a tiny setting, here."""
    pack(study, folder, small=True)
    work(folder)
    return records(folder)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=("school", "mnist", "cifar10", "femnist", "plain", "noise"))
    parser.add_argument("folder", type=Path, nargs="?", help="what is carried; needed but for --try")
    parser.add_argument("--seconds", type=float, default=540, help="begin nothing after this long (default 540)")
    parser.add_argument("--here", action="store_true", help="run on this machine, accelerator or not")
    parser.add_argument("--try", dest="tiny", action="store_true", help="all steps on a tiny setting, kept nowhere")
    args = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    folder: Path | None = args.folder
    if folder is None and not args.tiny:
        parser.error("name a FOLDER to carry, or --try")
    if args.study == "femnist":
        from benchmarks.studies.reproduce import full_femnist

        full_femnist.next_step(folder, args.seconds, here=args.here, small=args.tiny)
    elif folder is None or args.tiny:
        with tempfile.TemporaryDirectory() as temporary:
            for record in tried(args.study, Path(temporary)):
                print(json.dumps({key: record[key] for key in ("item", "curves", "took")}))
    else:
        next_step(args.study, folder, args.seconds, here=args.here)


def next_step(study: str, folder: Path, seconds: float, *, here: bool) -> None:
    """Packs, runs or merges, whichever comes next."""
    if not (folder / "packed.json").exists():
        pack(study, folder)
        print(f"{folder} is packed: carry it to the accelerator, and give the same command there")
    elif here or jax.default_backend() != "cpu":
        print(f"{work(folder, seconds)} cells are left; take {folder / 'results.json'} home")
    else:
        merge(folder)


if __name__ == "__main__":
    try:
        main()
    except DataError as error:
        raise SystemExit(str(error)) from None

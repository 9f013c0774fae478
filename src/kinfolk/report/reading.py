"""Reads run directories for a report: `public/` always, `private/` only when asked to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from kinfolk.accounting import composition
from kinfolk.accounting.ledger import LedgerError, Line, read_lines
from kinfolk.accounting.statement import Statement
from kinfolk.training import run_directory, run_files, scorecard
from kinfolk.training.experiment import Experiment
from kinfolk.training.run_directory import Environment, Metrics, Run, RunError
from kinfolk.training.scorecard import Score, Scorecard

POINTS = 20
"""Most points of an epsilon-over-rounds curve: each is an account of its own."""


@dataclass(frozen=True)
class Spending:
    """What one party had spent after some rounds, by the ledger."""

    party: str
    rounds: tuple[int, ...]
    epsilons: tuple[float, ...]


@dataclass(frozen=True)
class Record:
    """A finished run, as a report reads it. What follows its strengths is empty without `private/`."""

    run: Run
    experiment: Experiment
    statement: Statement
    statement_text: str
    environment: Environment
    spending: Spending | None
    strengths: tuple[Metrics, ...]
    metrics: tuple[Metrics, ...] = ()
    errors: dict[str, float] | None = None
    """Each client's test error at the end, its mean over repetitions: by the first metric of `card`."""
    constants: dict[str, float] | None = None
    """The same of each client's own constant."""
    card: Scorecard | None = None
    """What was measured, by name and in the target's own unit."""
    spread: float = 0.0
    """The standard deviation over repetitions of what the mean client is judged by; 0 where there was one."""

    @property
    def method(self) -> str:
        return " then ".join(dict.fromkeys(phase.method for phase in self.experiment.phases))

    @property
    def measured(self) -> Score | None:
        """What the run is judged by; of older runs their error, without a unit."""
        if self.card is not None:
            return self.card["scores"][0]
        if not self.metrics:
            return None
        number = self.statement.get("outcome") == "number"
        return {
            "metric": "squared error" if number else "share of wrong labels",
            "unit": "",
            "less_is_better": True,
            "value": float(self.metrics[-1]["error"]),
            "worst_tenth": float(self.metrics[-1]["worst_decile_error"]),
            "constant": None,
            "shared": None,
        }

    @property
    def note(self) -> str:
        return "simulated" if self.statement["simulated"] else ""

    @property
    def epsilon(self) -> float | None:
        return self.statement["epsilon"]

    @property
    def clients(self) -> int | None:
        """How many clients there are, where the run says it."""
        known = self.statement.get("clients")
        return known or (len(self.statement["parties"]) if self.statement["level"] == "example" else None)


def read(path: Path, with_private: bool) -> Record:
    """The finished run in a directory."""
    run = run_directory.open_run(path)
    if not run.done():
        raise RunError(f"{path} is not finished: go on with `kinfolk train --resume {path}`, then report")
    statement = run.statement()
    folders = (run.public, run.private) if with_private else (run.public,)
    strengths = [
        line for folder in folders for line in run_files.read_json_lines(folder / "strengths.jsonl", dict[str, Any])
    ]
    metrics = run.metrics() if with_private else []
    return Record(
        run=run,
        experiment=run.experiment(),
        statement=statement,
        statement_text=run_files.read_text(run.public / "statement.txt"),
        environment=run_files.read_json(run.public / "environment.json", Environment),
        spending=spending(run, statement),
        strengths=tuple(record for record in [*strengths, *metrics] if "strength" in record),
        metrics=tuple(line for line in metrics if "error" in line),
        errors=_of_clients(run, "value") if with_private else None,
        constants=_of_clients(run, "constant") if with_private else None,
        card=scorecard.read(run) if with_private else None,
        spread=error_spread(run) if with_private else 0.0,
    )


def _of_clients(run: Run, key: str) -> dict[str, float] | None:
    if not (run.private / "clients.json").exists():
        return None
    rows = run.clients()
    known = key if any(key in row for row in rows) else "error" if key == "value" else key
    return {row["client"]: float(np.mean(row[known])) for row in rows if known in row}


def error_spread(run: Run) -> float:
    """The standard deviation, over seeds, of what the mean client is judged by; 0 for one, or where nothing was."""
    if not (run.private / "clients.json").exists():
        return 0.0
    of_clients = (row.get("value", row["error"]) for row in run.clients())
    of_seeds = [fmean(values) for values in zip(*of_clients, strict=True)]
    return stdev(of_seeds) if len(of_seeds) > 1 else 0.0


def spending(run: Run, statement: Statement) -> Spending | None:
    """Epsilon after the rounds of a run, of the party that spent most in the end, from the ledger's lines.

    Other runs on the same data set count from where they stand in the ledger, so a curve may begin above zero. The
    ledger knows a run by the name it was given, whatever its directory is called now.
    """
    path, parties = run.public / "ledger.jsonl", statement["parties"]
    if not path.exists() or not parties:
        return None
    most = max(parties, key=lambda party: party["epsilon"])
    account = (most["party"], statement["data"], statement.get("units", statement["level"]), statement["relation"])
    try:
        written = read_lines(path)
    except LedgerError:
        return None  # the table of checks says so
    lines = [x for x in written if (x.party, x.data, x.unit, x.cost.relation) == account]
    adaptive = len({line.run for line in lines}) > 1
    ends = [(place, line.rounds[1]) for place, line in enumerate(lines, 1) if line.run == statement["run"]]
    last = {rounds: place for place, rounds in ends}
    rounds = _thinned(sorted(last))
    counts = [len(lines) if end == rounds[-1] else last[end] for end in rounds]
    before = ends[0][0] - 1 if ends else len(lines)
    epsilons = [_epsilon(lines[:count], most["delta"], adaptive) for count in (before, *counts)]
    return Spending(most["party"], (0, *rounds), tuple(epsilons))


def _epsilon(lines: list[Line], delta: float, adaptive: bool) -> float:
    return composition.epsilon(composition.by_run((x.run, x.cost, x.uses) for x in lines), delta, adaptive=adaptive)


def _thinned(rounds: list[int]) -> list[int]:
    """At most POINTS of them, evenly spaced, the last one included."""
    places = np.unique(np.linspace(0, len(rounds) - 1, POINTS).round().astype(int)) if rounds else []
    return [rounds[place] for place in places]

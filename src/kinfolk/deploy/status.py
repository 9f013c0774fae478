"""What a silo or a server has done so far: rounds, and what was spent, read from the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kinfolk.accounting.budgets import budget_of
from kinfolk.accounting.ledger import SIMULATED, Line, read_lines
from kinfolk.accounting.members import PERSON
from kinfolk.accounting.owner import open_owned
from kinfolk.accounting.standing import lost
from kinfolk.accounting.statement import statement
from kinfolk.data.identity import label
from kinfolk.deploy.coordinator import absences
from kinfolk.deploy.policy import Policy, has_leave, read_policy
from kinfolk.deploy.scaffold import POLICY_FILE
from kinfolk.deploy.server import last_run
from kinfolk.deploy.server_sums import GIVEN_UP
from kinfolk.deploy.silo import ledger_of, state_of
from kinfolk.deploy.silo_evaluation import EVALUATED
from kinfolk.deploy.silo_rows import divided
from kinfolk.deploy.silo_table import read_table
from kinfolk.deploy.study import Study, read_study
from kinfolk.privacy.levels import FEDERATION, PrivacyLevel
from kinfolk.training import run_directory


def status(folder: Path) -> dict[str, Any]:
    """Of the silo or the server in a folder."""
    return silo_status(folder) if (folder / POLICY_FILE).exists() else server_status(folder)


def silo_status(folder: Path) -> dict[str, Any]:
    """Rounds served, requests refused, and the silo's own account. For the silo's owner, not for others."""
    policy, study, state = read_policy(folder / POLICY_FILE), read_study(folder), state_of(folder)
    rows = divided(study, policy, *read_table(folder, policy.data, study.roster))
    _, delta = budget_of(policy.privacy, policy.client, study.clients if study.sums_are_secure else rows.size)
    unit = PERSON if rows.people else policy.privacy.level
    notes = [str(entry.get("what", "")) for entry in run_directory.read_json_lines(state / "log.jsonl")]
    runs = {path.name: len(list(path.glob("[0-9]*.npz"))) for path in sorted(state.glob("runs/*"))}
    return {
        "silo": policy.client,
        "level": policy.privacy.level,
        **_aggregator(study),
        "rounds": runs,
        "rounds_of_policy": min(policy.rounds, study.experiment.rounds),
        "refused": sum(note.startswith(("refused", "failed")) for note in notes),
        "evaluations": sum(path.exists() for path in state.glob(f"runs/*/{EVALUATED}")),
        "evaluate": policy.evaluate if has_leave(policy, study) else None,
        "budget": policy.privacy.epsilon,
        **_silo_account(ledger_of(folder), policy, unit, delta),
    }


def _silo_account(path: Path, policy: Policy, unit: str, delta: float) -> dict[str, Any]:
    """Of the silo's rows over everything that its owner's ledger holds, whatever studies call the silo.

    With a trusted aggregator the account is the server's: the silo has no epsilon of its own.
    """
    if policy.privacy.level.server_pays and policy.privacy.aggregator == "trusted":
        return {"epsilon": None, "delta": delta, "simulated": policy.test_keys, "releases": 0}
    if policy.test_keys or not path.exists():
        return _account(path, policy.privacy, (policy.client, unit), policy.data.name, delta)
    with open_owned(path) as ledger:
        worst, name = lost(ledger, policy.data.name, delta), label(policy.data.name)
        releases = sum(line.uses for line in ledger.lines if label(line.data) == name)
    return {"epsilon": worst.epsilon, "delta": worst.delta, "simulated": False, "releases": releases}


def server_status(folder: Path) -> dict[str, Any]:
    """Rounds done, and at client level the federation's account."""
    study, run = read_study(folder), last_run(folder)
    done = 0
    if run is not None and (run.private / "checkpoint.npz").exists():
        with np.load(run.private / "checkpoint.npz") as file:
            done = int(file["round"])
    level = study.experiment.privacy.settled(study.clients)
    found: dict[str, Any] = {
        "study": study.roster.name,
        "level": level.level,
        **_aggregator(study),
        "run": None if run is None else run.name,
        "rounds": done,
        "rounds_of_study": study.experiment.rounds,
        "quorum": study.roster.quorum,
        "absent": {} if run is None else absences(run),
        "ended": run is not None and run.done(),
    }
    if study.sums_are_secure:
        notes = [] if run is None else run_directory.read_json_lines(run.private / GIVEN_UP)
        found["attempts_given_up"] = len(notes)
    if level.level.server_pays:
        delta = budget_of(level, FEDERATION, study.clients)[1]
        found |= _account(folder / "runs" / "ledger.jsonl", level, (FEDERATION, level.level), study.roster.name, delta)
    return found


def _aggregator(study: Study) -> dict[str, Any]:
    """Who adds the noise at client level, and on what terms."""
    level = study.experiment.privacy.settled(study.clients)
    if not level.level.server_pays:
        return {}
    terms = {"survivors": level.survivors, "colluding": level.colluding} if study.sums_are_secure else {}
    return {"aggregator": level.aggregator, **terms}


def _account(path: Path, level: PrivacyLevel, whose: tuple[str, str], data: str, delta: float) -> dict[str, Any]:
    """Epsilon of one party, and of what its lines protect, composed from them."""
    party, unit = whose
    lines: list[Line] = read_lines(path) if path.exists() else []
    own = [x for x in lines if (x.data, x.unit, x.cost.relation) == (data, unit, level.relation)]
    simulated = any(line.noise == SIMULATED for line in own)
    result = statement(
        level,
        own,
        {party: delta} if level.level.private else {},
        data=data,
        noise=own[-1].noise if own else "none yet",
        program=[],
        scaling="declared bounds",
        scaling_is_private=True,
    )
    return {"epsilon": result["epsilon"], "delta": delta, "simulated": simulated, "releases": sum(x.uses for x in own)}

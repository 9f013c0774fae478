"""One account whatever things are called: for each ordinary way to use the same rows twice, what is stated.

Three accounts of the same two releases: by name, as ledgers did before they followed rows; by the ledger of today; and
a referee, which knows the rows themselves, counts distances by sets and composes plain Gaussians exactly.

python -m benchmarks.studies.identity.run [--page docs/results/account.md]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from dp_accounting import gaussian_mechanism

from kinfolk.accounting.account import Account
from kinfolk.accounting.calibrate import Population, calibrated
from kinfolk.accounting.composition import by_run, epsilon
from kinfolk.accounting.ledger import Ledger, LedgerError
from kinfolk.accounting.members import ALONE, Source
from kinfolk.accounting.owner import open_owned
from kinfolk.data.identity import Identity
from kinfolk.privacy.levels import PrivacyLevel

HERE = Path(__file__).parent
DELTA, USES, NOISE = 1e-5, 4, 10.0
ROWS = tuple(range(40))
WARDS = {row: f"ward {row // 2}" for row in ROWS}
HOSPITALS = {row: ("north", "south")[row // 20] for row in ROWS}


@dataclass(frozen=True)
class Released:
    """One release: four draws of noise, ten times the clip."""

    clients: tuple[tuple[str, tuple[int, ...]], ...]
    """Of every client its rows."""
    grouping: str = "column ward"
    name: str = "patients"
    level: str = "example"
    relation: str = "zero_out"
    people: int = 1
    """In how many clients one person may be."""
    party: str = ""
    """What a study calls the one client there is."""
    known: bool = True
    """Whether rows have an identity column."""
    files: str = "graz-lyon"
    """What its files are called: the data set's name, in the days when nobody was asked for one."""


def grouped(of: dict[int, str], rows: Sequence[int] = ROWS, **more: object) -> Released:
    """Rows of a table by one of its columns."""
    names = dict.fromkeys(of[row] for row in rows)
    clients = tuple((name, tuple(row for row in rows if of[row] == name)) for name in names)
    column = "column ward" if of is WARDS else "column hospital"
    return replace(Released(clients, column), **more)  # type: ignore[arg-type]


def silo(party: str) -> Released:
    """A silo's whole table, as a study calls it."""
    return Released(((ALONE, ROWS),), ALONE, party=party)


FIRST = grouped(WARDS)
CLIENT = grouped(WARDS, level="client")
CASES: dict[str, tuple[Released, Released]] = {
    "files in another order": (FIRST, grouped(WARDS, ROWS[::-1], files="lyon-graz")),
    "a subset": (FIRST, grouped(WARDS, ROWS[:30], files="graz")),
    "one more file": (grouped(WARDS, ROWS[:20], files="graz"), FIRST),
    "another client column": (FIRST, grouped(HOSPITALS)),
    "upper case, `0` and `0.0`": (
        FIRST,
        replace(FIRST, clients=tuple((f" {name.upper()}", rows) for name, rows in FIRST.clients)),
    ),
    "one column fewer, another target, a rescaled array (no identities)": (
        replace(FIRST, known=False, files="as it was"),
        replace(FIRST, known=False, files="rescaled"),
    ),
    "another data name": (FIRST, replace(FIRST, name="registry")),
    "rows copied into a second table": (FIRST, Released((("x", (3, 17)),), "file", "registry")),
    "two studies on one table, another silo name": (silo("hospital-c"), silo("c")),
    "another relation": (FIRST, replace(FIRST, relation="replace_one")),
    "another level": (FIRST, CLIENT),
    "wards, then hospitals (client level)": (CLIENT, grouped(HOSPITALS, level="client")),
    "hospitals, then wards (client level)": (grouped(HOSPITALS, level="client"), CLIENT),
    "`tasks_per_person` 1, then 3": (CLIENT, replace(CLIENT, people=3)),
    "the same rows at two clients": (Released((("a", ROWS[:20]), ("b", ROWS[:20])), "file"), FIRST),
}


def account(of: Released) -> Account:
    """The account of a release, whose budget is no obstacle: what it states is what is asked."""
    names, rows = tuple(name for name, _ in of.clients), [own for _, own in of.clients]
    values = tuple(np.array([f"visit {row}" for row in own]) for own in rows)
    identity = Identity("row", "visit", values) if of.known else None
    source = Source(of.name, of.grouping, names, tuple(map(len, rows)), identity)
    privacy = PrivacyLevel(
        of.level,  # type: ignore[arg-type]
        1000.0,
        DELTA,
        noise_multiplier=NOISE,
        relation=of.relation,
        clients_per_person=of.people,
        allow_large_delta=True,
    )
    sizes = np.array(source.sizes)
    parties, kinds = privacy.level.parties(names), privacy.level.kinds

    def count(_: object) -> dict[str, np.ndarray]:
        used = {kind: np.zeros((USES, len(parties)), int) for kind in kinds}
        used[kinds[0]][:] = 1
        return used

    terms, uses = calibrated(privacy, Population(names, sizes), count)
    parties = (of.party,) if of.party else parties
    who = (parties, tuple(privacy.level.units(sizes)))
    return Account(privacy, of.name, *who, terms, uses, released=True, source=source)


def referee(releases: Sequence[Released], promised: Released) -> float:
    """The worst unit of one release over all of them, from sets of rows and exact Gaussians alone."""
    units = [set(own) for _, own in promised.clients]
    if promised.level == "example":
        units = [{row} for row in sorted(set().union(*units))]
    return max(
        float(gaussian_mechanism.get_epsilon_gaussian(1 / _mu(unit, releases, promised), DELTA)) for unit in units
    )


def _mu(unit: set[int], releases: Sequence[Released], promised: Released) -> float:
    total = 0.0
    for release in releases:
        draws = [[set(own)] for _, own in release.clients]
        if release.level == "client":
            draws = [[set(own) for _, own in release.clients]]
        else:
            draws = [[{row} for row in sorted(rows)] for (rows,) in draws]
        people = promised.people if promised.level == "client" else 1
        for draw in draws:
            met = [part for part in draw if part & unit]
            whole = 2 if promised.relation == "replace_one" else 1
            distance = people * sum(whole if part <= unit else 2 for part in met)
            total += USES * (distance / NOISE) ** 2
    return max(total, 1e-12) ** 0.5


@contextmanager
def fresh_ledger() -> Iterator[Ledger]:
    """A ledger with a key of its own; nobody's account is touched."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KINFOLK_KEYS"] = f"{folder}/keys"
        with open_owned(Path(folder) / "ledger.jsonl") as ledger:
            yield ledger


def by_name(ledger: Ledger, files: dict[str, str]) -> float:
    """What was stated when lines were composed by party, data name, unit and relation alone; `files`: of each run."""
    groups: dict[tuple[str, str, str, str], list] = {}
    for line in ledger.lines:
        key = (line.party, line.data + files[line.run], line.unit, line.cost.relation)
        groups.setdefault(key, []).append((line.run, line.cost, line.uses))
    return max(epsilon(by_run(own), DELTA, adaptive=len({run for run, _, _ in own}) > 1) for own in groups.values())


def measured(case: tuple[Released, Released]) -> dict[str, float]:
    """The three accounts of the unit that has lost most, and whether budgets that fit each release alone refuse."""
    with fresh_ledger() as ledger:
        accounts = [account(release) for release in case]
        for run, own in zip(("first", "second"), accounts, strict=True):
            own.require(ledger, run, [range(USES)])
            own.charge(ledger, run, range(USES))
        now = max(
            found.epsilon
            for run, own in zip(("first", "second"), accounts, strict=True)
            for found in own.standing(ledger, run).values()
        )
        return {
            "before": by_name(ledger, {"first": case[0].files, "second": case[1].files}),
            "now": now,
            "referee": max(referee(case, release) for release in case),
            "refused": float(_refused(case)),
        }


def _refused(case: tuple[Released, Released]) -> bool:
    """Whether the second release is refused where each promises what it costs alone."""
    with fresh_ledger() as ledger:
        for run, release in zip(("first", "second"), case, strict=True):
            own = account(release)
            alone = max(referee([release], release), 0.01) * 1.001
            try:
                replace(own, privacy=replace(own.privacy, epsilon=alone)).require(ledger, run, [range(USES)])
            except LedgerError:
                return run == "second"
            own_budget = replace(own, privacy=replace(own.privacy, epsilon=alone))
            own_budget.charge(ledger, run, range(USES))
    return False


def page(found: dict[str, dict[str, float]]) -> str:
    """The page for the documentation."""
    rows = []
    for name, x in found.items():
        numbers = " | ".join(f"{x[key]:.2f}" for key in ("before", "now", "referee"))
        rows.append(f"| {name} | {numbers} | {'refused' if x['refused'] else 'allowed'} |")
    return (HERE / "page.md").read_text().format(rows="\n".join(rows))


def main() -> None:
    """Prints the table, keeps the numbers, and writes the page where it is asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    found = {name: measured(case) for name, case in CASES.items()}
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "cases.json").write_text(json.dumps(found, indent=2) + "\n")
    print(page(found))
    if given.page:
        given.page.write_text(page(found))


if __name__ == "__main__":
    main()

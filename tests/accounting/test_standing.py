"""The budget follows the unit: every ordinary way to call the same rows something else is added up or refused.

Stated values are compared with a second account, written out here from distances and Gaussians alone.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kinfolk.accounting.account import Account
from kinfolk.accounting.ledger import Ledger, LedgerError
from kinfolk.accounting.members import ALONE, Source
from kinfolk.accounting.noise_for_budget import largest
from kinfolk.accounting.owner import open_owned
from kinfolk.data.identity import Identity
from tests.accounting.wards import USES, Table, account, exact, noise_of, release, worst

SAME = {
    "files in another order": Table(rows=tuple(reversed(range(40)))),
    "a subset": Table(rows=tuple(range(30))),
    "another client column": Table(client="hospital"),
    "case and spaces of a name": Table(name=" Patients"),
    "identities declared later": Table(known_by="row"),
}


@pytest.mark.parametrize("case", SAME)
@pytest.mark.parametrize("known_by", [None, "row"])
def test_the_same_rows_again_are_added_up(ledger: Ledger, case: str, known_by: str | None) -> None:
    first = account(Table(known_by=known_by).source(), "example", epsilon=1.0)
    release(ledger, "first", first)
    again = SAME[case]
    if known_by and again.known_by is None:
        again = replace(again, known_by=known_by)
    with pytest.raises(LedgerError, match="Its rows are also in first"):
        release(ledger, "second", account(again.source(), "example", epsilon=1.0))
    larger = account(again.source(), "example", epsilon=4.0, noise=noise_of(first).noise_multiplier)
    with pytest.raises(LedgerError, match="was promised epsilon=1 by run first"):
        release(ledger, "second", larger)
    assert {line.run for line in ledger.lines} == {"first"}


def test_what_is_added_up_is_no_less_than_the_exact_sum(ledger: Ledger) -> None:
    wide = {"epsilon": 20.0, "noise": 2.0}
    first, second = (account(t.source(), "example", **wide) for t in (Table(), Table(client="hospital")))  # type: ignore[arg-type]
    release(ledger, "first", first)
    release(ledger, "second", second)
    truth = exact((1, noise_of(first)), (1, noise_of(second)))
    assert truth <= worst(ledger, "first", first) <= 1.6 * truth


def test_wards_then_hospitals(ledger: Ledger) -> None:
    """Ten wards of two rows lie in a hospital: it is ten times as far away."""
    wards = account(Table(known_by="row").source(), "client", epsilon=4.0, promise=20.0)
    release(ledger, "wards", wards)
    hospitals = account(Table(client="hospital", known_by="row").source(), "client", epsilon=4.0)
    with pytest.raises(LedgerError, match="would reach"):
        release(ledger, "hospitals", hospitals)
    generous = account(Table(client="hospital", known_by="row").source(), "client", epsilon=100.0, noise=20.0)
    release(ledger, "hospitals", generous)
    truth = exact((10, noise_of(wards)), (1, noise_of(generous)))
    assert truth > 20
    assert truth <= worst(ledger, "hospitals", generous) <= 1.5 * truth


def test_hospitals_then_wards_break_the_hospitals_promise(ledger: Ledger) -> None:
    release(ledger, "hospitals", account(Table(client="hospital", known_by="row").source(), "client", epsilon=1.0))
    with pytest.raises(LedgerError, match="was promised epsilon=1 by run hospitals"):
        release(ledger, "wards", account(Table(known_by="row").source(), "client", epsilon=50.0, promise=90.0))


def test_groupings_without_identities_overlap_as_far_as_sizes_allow(ledger: Ledger) -> None:
    wards = account(Table().source(), "client", epsilon=4.0)
    release(ledger, "wards", wards)
    with pytest.raises(LedgerError, match="would reach"):
        release(ledger, "hospitals", account(Table(client="hospital").source(), "client", epsilon=30.0))


def test_another_level(ledger: Ledger) -> None:
    example = account(Table().source(), "example", epsilon=1.0, noise=30.0)
    release(ledger, "rows", example)
    clients = account(Table().source(), "client", epsilon=4.0, noise=30.0, promise=50.0)
    with pytest.raises(LedgerError, match="was promised epsilon=1 by run rows"):
        release(
            ledger, "clients", replace(clients, privacy=replace(clients.privacy, noise_multiplier=2.0), **less(clients))
        )
    release(ledger, "clients", clients)
    truth = exact((2, noise_of(example)), (1, noise_of(clients)))  # both rows of a ward, then the ward
    assert truth <= worst(ledger, "clients", clients) <= 1.6 * truth


def less(of: Account) -> dict[str, object]:
    inbox = replace(of.terms.inbox, noise_multiplier=np.float32(2.0))  # type: ignore[type-var]
    return {"terms": replace(of.terms, inbox=inbox)}


def test_people_in_more_clients_than_declared_before(ledger: Ledger) -> None:
    one = account(Table().source(), "client", epsilon=10.0, noise=4.0)
    release(ledger, "one", one)
    three = account(Table().source(), "client", epsilon=30.0, noise=4.0, clients_per_person=3)
    release(ledger, "three", three)
    truth = exact((3, noise_of(one)), (3, noise_of(three)))
    assert truth <= worst(ledger, "three", three) <= 1.6 * truth
    assert worst(ledger, "one", one) < truth


def test_another_relation_is_computed_in_its_own_terms(ledger: Ledger) -> None:
    removed = account(Table().source(), "example", epsilon=20.0, noise=4.0)
    release(ledger, "removed", removed)
    replaced = account(Table().source(), "example", epsilon=20.0, noise=4.0, relation="replace_one")
    release(ledger, "replaced", replaced)
    truth = exact((2, noise_of(removed)), (2, noise_of(replaced)))
    assert truth <= worst(ledger, "replaced", replaced) <= 1.6 * truth
    less = exact((1, noise_of(removed)), (1, noise_of(replaced)))
    assert less <= worst(ledger, "removed", removed) < truth


def test_the_same_rows_at_two_clients(ledger: Ledger) -> None:
    values = tuple(np.array(["1", "2", "3"]) for _ in range(2))
    source = Source("patients", "column ward", ("a", "b"), (3, 3), Identity("row", "visit", values))
    with pytest.raises(LedgerError, match="would reach"):
        release(ledger, "twice", account(source, "client", epsilon=1.0))
    with pytest.raises(LedgerError, match="would reach"):
        release(ledger, "twice", account(source, "example", epsilon=1.0))


def test_rows_copied_into_a_second_table(ledger: Ledger) -> None:
    release(ledger, "first", account(Table(known_by="row").source(), "example"))
    copied = Table(name="registry", known_by="row", rows=(3,))
    with pytest.raises(LedgerError, match="Its rows are also in first"):
        release(ledger, "second", account(copied.source(), "example"))
    values = (np.array(["visit 100", "visit 101"]),)
    others = Source("registry", "file", ("ward 1",), (2,), Identity("row", "visit", values))
    release(ledger, "second", account(others, "example"))


def test_a_new_name_asks_once(ledger: Ledger) -> None:
    release(ledger, "first", account(Table().source(), "example"))
    other = Table(name="pupils")
    with pytest.raises(LedgerError, match=r"name='pupils' is new .* 'patients'.*--disjoint-because"):
        release(ledger, "second", account(other.source(), "example"))
    release(ledger, "second", account(other.source("a school, no hospital"), "example", epsilon=1.0, promise=3.0))
    release(ledger, "third", account(replace(other, name="PUPILS").source(), "example", epsilon=50.0, noise=500.0))
    apart = [note.about for note in ledger.notes if note.note == "disjoint"]
    assert apart == [{"data": "pupils", "from": ["patients"], "because": "a school, no hospital"}]


def test_a_silo_is_its_table_whatever_a_study_calls_it(ledger: Ledger) -> None:
    table = Source("patients", ALONE, (ALONE,), (40,))
    first = replace(account(table, "example"), parties=("hospital-c",))
    release(ledger, "study one", first)
    with pytest.raises(LedgerError, match="Its rows are also in study one"):
        release(ledger, "study two", replace(account(table, "example"), parties=("c",)))


def test_a_person_is_followed_through_rows(ledger: Ledger) -> None:
    def source(name: str, people: list[list[str]]) -> Source:
        values = tuple(np.array(rows) for rows in people)
        return Source(name, "file", ("a", "b"), tuple(map(len, people)), Identity("person", "patient", values))

    release(ledger, "first", account(source("one", [["x", "x", "y"], ["z", "z"]]), "example"))
    release(ledger, "second", account(source("two", [["u"], ["v", "w"]]), "example"))
    with pytest.raises(LedgerError, match="Its rows are also in first"):
        release(ledger, "third", account(source("three", [["Z "], ["t"]]), "example"))


def test_a_planned_run_is_counted_before_it_is_charged(ledger: Ledger, tmp_path: Path) -> None:
    first, second = (account(Table().source(), "example", epsilon=1.0) for _ in range(2))
    first.require(ledger, "first", [range(USES)])
    with open_owned(tmp_path / "ledger.jsonl") as other, pytest.raises(LedgerError, match="also in first"):
        second.require(other, "second", [range(USES)])
    first.charge(ledger, "first", range(USES))


def test_clients_that_differ_in_case_alone_are_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="both called 'graz'"):
        release(ledger, "r", account(Source("d", "file", ("Graz", "graz"), (5, 5)), "example"))


def test_a_client_keeps_rows_it_had_before(ledger: Ledger) -> None:
    def source(rows: list[str]) -> Source:
        values = (np.array(rows), np.array(["q"]))
        return Source("d", "file", ("a", "b"), (len(rows), 1), Identity("row", "id", values))

    first = account(source(["1", "2"]), "client", epsilon=20.0, noise=4.0)
    release(ledger, "first", first)
    second = account(source(["2", "3"]), "client", epsilon=20.0, noise=4.0)
    release(ledger, "second", second)
    truth = exact((1, noise_of(first)), (1, noise_of(second)))
    assert truth <= worst(ledger, "second", second) <= 1.6 * truth


def people(name: str, rows: dict[str, list[str]], kind: str = "person") -> Source:
    values = tuple(np.array(own) for own in rows.values())
    return Source(name, "column ward", tuple(rows), tuple(map(len, values)), Identity(kind, "id", values))


def test_a_person_at_two_clients_hides_nobody(ledger: Ledger) -> None:
    shared = {"a": ["x", "y"], "b": ["x", *(f"b{n}" for n in range(99))]}
    rows = account(people("d", shared), "example", epsilon=1.0, promise=500.0)
    release(ledger, "rows", rows)
    with pytest.raises(LedgerError, match="would reach"):
        release(ledger, "clients", account(people("d", shared), "client", epsilon=4.0, promise=10.0))


@pytest.mark.parametrize("limit", [1, 2, 19, 20, 100])
def test_the_largest_number_that_fits_was_tried(limit: int) -> None:
    for most in range(limit + 1):
        assert largest(lambda n, most=most: n <= most, limit) == most


def test_a_run_name_belongs_to_one_release(ledger: Ledger) -> None:
    release(ledger, "run1", account(Table().source(), "example", epsilon=1.0))
    for other in (
        account(Table().source(), "example", epsilon=20.0),
        account(Table(client="hospital").source(), "example", epsilon=1.0),
    ):
        with pytest.raises(LedgerError, match="'run1' is in ledger"):
            release(ledger, "run1", other)


def test_a_silo_that_is_called_the_federation(ledger: Ledger) -> None:
    table = Source("patients", ALONE, (ALONE,), (40,))
    release(ledger, "one", replace(account(table, "example", promise=1.2), parties=("c",)))
    with pytest.raises(LedgerError, match="also in one"):
        release(ledger, "two", replace(account(table, "example", promise=1.2), parties=("the federation",)))


@pytest.mark.parametrize("other", ["0", "00", "+0", "0.0", "zero"])
def test_a_client_of_another_name_may_have_the_same_rows(ledger: Ledger, other: str) -> None:
    release(ledger, "one", account(Source("d", "file", ("0", "x"), (5, 5)), "example"))
    with pytest.raises(LedgerError, match="also in one"):
        release(ledger, "two", account(Source("d", "file", (other, "y"), (5, 5)), "example"))


def test_arrays_whose_grouping_nobody_named_may_overlap(ledger: Ledger) -> None:
    release(ledger, "one", account(Source("d", "", ("1", "2"), (5, 5)), "client"))
    with pytest.raises(LedgerError, match="would reach"):
        release(ledger, "two", account(Source("d", "", ("1", "2"), (4, 6)), "client", epsilon=2.0))


def test_a_hospital_is_the_same_over_the_years(ledger: Ledger) -> None:
    years = [Source(f"y{n}", "column hospital", ("north", "south"), (9, 9), None, "other years") for n in (1, 2)]
    release(ledger, "one", account(years[0], "client"))
    with pytest.raises(LedgerError, match="also in one"):
        release(ledger, "two", account(years[1], "client"))


def test_lines_of_before_count_for_their_name_however_it_is_written(ledger: Ledger) -> None:
    old = account(Table(name="Patients").source(), "example", epsilon=20.0, noise=0.6)
    ledger.charge(old.lines("old", range(USES)))
    with pytest.raises(LedgerError, match="also in old"):
        release(ledger, "new", account(Table().source(), "example"))


def test_a_row_that_is_over_hides_no_other(ledger: Ledger) -> None:
    first = account(people("d", {"a": ["1", "2"], "b": ["3"]}, "row"), "example", epsilon=1.0)
    release(ledger, "first", first)
    over = account(people("e", {"a": ["1"], "b": ["9"]}, "row"), "example", epsilon=30.0, noise=0.5)
    ledger.charge(replace(x, members=over._digest(ledger)) for x in over.lines("over", range(USES)))
    other = account(people("f", {"a": ["2"], "b": ["8"]}, "row"), "example", epsilon=60.0, noise=0.6)
    with pytest.raises(LedgerError, match="was promised epsilon=1 by run first"):
        release(ledger, "other", other)


def test_identities_that_differ_in_form_alone_are_refused(ledger: Ledger) -> None:
    for pair in (["aB", "Ab"], ["7", "007"], ["1e1", "10"]):
        with pytest.raises(LedgerError, match="the same up to case"):
            release(ledger, "r", account(people("d", {"a": pair, "b": ["x"]}, "row"), "example"))


def test_what_is_seen_of_participation_is_added_up_too(ledger: Ledger) -> None:
    """Over several runs sampling saves nothing against whoever sees who takes part."""
    both = [account(Table().source(), "client", epsilon=20.0, noise=4.0, cohort=2.0, promise=20.0) for _ in range(2)]
    for run, one in zip(("first", "second"), both, strict=True):
        release(ledger, run, one)
    stated = both[1].statement(ledger, "second", program=[])
    truth = exact(*((1, noise_of(one)) for one in both))
    assert stated["epsilon"] == 20.0
    assert stated.get("epsilon_if_participation_is_seen", 0.0) >= max(truth, 20.0)
    assert both[1]._seen(ledger, "second") >= truth > worst(ledger, "second", both[1])
    assert sum(stated["parties"][0]["releases"].values()) == USES, "this run's alone"


@pytest.mark.parametrize("known_by", [None, "row", "person"])
@pytest.mark.parametrize("level", ["client", "example"])
def test_a_client_keeps_its_name_in_other_years_of_the_same_data(
    ledger: Ledger, level: str, known_by: str | None
) -> None:
    """Options of a data set's function make clients anew: with other rows, one of the same name may be the same."""

    def of(year: int, rows: int, towns: tuple[str, ...] = ("graz", "oslo")) -> Source:
        values = tuple(np.array([f"{town} {year} {row}" for row in range(rows)]) for town in towns)
        identity = Identity(known_by, "id", values) if known_by else None
        return Source("d", f"data set d, year={year}", towns, (rows, rows), identity)

    first = account(of(2023, 5), "client", promise=20.0)
    release(ledger, "one", first)
    later = account(of(2024, 60), level, epsilon=100.0, noise=5.0)
    truth = exact((1, noise_of(first)), (60 if level == "example" else 1, noise_of(later)))
    if truth > 20:
        with pytest.raises(LedgerError, match=r"also in one|was promised epsilon=20 by run one"):
            release(ledger, "two", later)
    else:
        release(ledger, "two", later)
        assert truth <= worst(ledger, "one", first)
    if known_by:
        release(ledger, "other towns", account(of(2024, 60, ("lyon", "turin")), level, epsilon=100.0, noise=5.0))


def test_two_columns_are_two_things_though_both_have_numbers(ledger: Ledger) -> None:
    def of(column: str, count: int) -> Source:
        values = tuple(np.array([str(row) for row in own]) for own in np.array_split(np.arange(40), count))
        names = tuple(str(n) for n in range(count))
        return Source("d", f"column {column}", names, (40 // count,) * count, Identity("row", "id", values))

    release(ledger, "wards", account(of("ward", 20), "client", epsilon=1.0, promise=8.0))
    release(ledger, "hospitals", account(of("hospital", 2), "example", epsilon=1.0, promise=8.0))

"""Accounts of people: a person is all rows with its identity, at every client and in every release of the ledger."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism

from kinfolk.accounting import joint
from kinfolk.accounting.ledger import Ledger, LedgerError
from kinfolk.accounting.members import Source, people_of
from kinfolk.accounting.statement import text
from kinfolk.data.identity import Identity
from kinfolk.privacy.levels import PrivacyLevel, client_level, example_level
from kinfolk.toml import ConfigError, from_toml
from tests.accounting.wards import DELTA, account, exact, noise_of, release, worst

ROWS = {"a": ["p", "p", "p", "q"], "b": ["r", "s", "s"]}


def source(
    rows: dict[str, list[str]] = ROWS, people: bool = True, kind: str = "person", name: str = "visits"
) -> Source:
    identity = Identity(kind, "patient", tuple(map(np.array, rows.values())))
    if people:
        identity = people_of(identity)
    return Source(name, "column ward", tuple(rows), identity.sizes, identity, people=10 if people else 0)


def test_a_person_is_one_unit_of_a_release(ledger: Ledger) -> None:
    own = account(source(), "example", epsilon=1.0)
    release(ledger, "first", own)
    assert {line.unit for line in ledger.lines} == {"person"}
    assert worst(ledger, "first", own) == pytest.approx(1.0, rel=1e-3)
    words = text(own.statement(ledger, "first", program=["0"]))
    assert "one person, with all rows, in one client" in words
    assert "its number of people" in words
    assert "number of rows, which" not in words


def test_somebody_at_more_clients_than_declared_is_refused(ledger: Ledger) -> None:
    both = source({"a": ["p", "p", "q"], "b": ["p", "s"]})
    with pytest.raises(LedgerError, match="clients_per_person=1, and somebody has rows at 2 clients"):
        release(ledger, "first", account(both, "example", epsilon=1.0))
    own = account(both, "example", epsilon=1.0, clients_per_person=2)
    release(ledger, "first", own)
    mu = np.sqrt(sum(line.uses / line.cost.noise_multiplier**2 for line in ledger.lines))
    truth = float(gaussian_mechanism.get_epsilon_gaussian(1 / mu, DELTA))
    assert worst(ledger, "first", own) == pytest.approx(truth)
    found = own.statement(ledger, "first", program=["0"])
    assert found.get("person") == {"epsilon": pytest.approx(truth * joint.ROOM, rel=1e-6), "delta": DELTA}
    assert "one person, with all rows, in up to 2 clients" in text(found)
    assert "with rows in up to 2 clients, whichever they are: epsilon 1.467, delta 1e-05. That nobody" in text(found)


def test_the_promise_to_somebody_at_several_clients_is_kept(ledger: Ledger) -> None:
    """Three more runs at the promise of one client would have been allowed by sums of epsilons."""
    both = source({"a": ["p", "p", "q"], "b": ["p", "s"]})
    own = account(both, "example", epsilon=1.0, promise=2.0, clients_per_person=2)
    release(ledger, "first", own)
    limit, delta = joint.budget([(2.0, DELTA)] * 2, 2)
    found = own.statement(ledger, "first", program=["0"])
    assert found.get("person") == {"epsilon": limit, "delta": delta}
    assert worst(ledger, "first", own) < limit < 4.0
    with pytest.raises(LedgerError, match=f"would reach .*{limit:.4g} at delta=1e-05"):
        release(ledger, "second", own)


def test_somebody_at_one_client_is_promised_what_the_client_is(ledger: Ledger) -> None:
    """The limit of people at several clients has room for both runs; that of people at one has not."""
    rows = source({"a": ["p", "q"], "b": ["r"], "c": ["s"]})
    own = account(rows, "example", epsilon=0.8, promise=1.0, clients_per_person=3)
    release(ledger, "first", own)
    assert exact((1, noise_of(own)), (1, noise_of(own))) > 1.1
    with pytest.raises(LedgerError, match=r"would reach 1\.\d+, beyond its budget of 1 at"):
        release(ledger, "second", own)
    more = account(rows, "example", epsilon=0.8, promise=4.0, clients_per_person=3)
    with pytest.raises(LedgerError, match=r"was promised epsilon=1 by run first and would reach"):
        release(ledger, "second", more)
    assert own.statement(ledger, "first", program=["0"])["epsilon"] == 1.0


def test_promises_to_rows_at_several_clients_add_up(ledger: Ledger) -> None:
    """What rows are promised says nothing about the releases to come: nothing is composed."""
    rows = account(source(people=False, kind="row"), "example", epsilon=1.0, noise=40.0, clients_per_person=2)
    release(ledger, "first", rows)
    assert rows.statement(ledger, "first", program=["0"]).get("person") == {"epsilon": 2.0, "delta": 2 * DELTA}


def test_rows_that_were_units_before_count_one_by_one_for_their_person(ledger: Ledger) -> None:
    """Three rows of one person in a release that protects rows lie three clips away."""
    rows = account(source(people=False), "example", epsilon=9.0, noise=4.0)
    release(ledger, "rows", rows)
    people = account(source(), "example", epsilon=90.0, noise=4.0)
    release(ledger, "people", people)
    truth = exact((3, noise_of(rows)), (1, noise_of(people)))
    assert truth <= worst(ledger, "people", people) <= 1.6 * truth
    with pytest.raises(LedgerError, match="would reach"):
        release(ledger, "again", account(source(), "example", epsilon=1.0))


def test_a_row_is_only_a_part_of_its_person(ledger: Ledger) -> None:
    """What a person contributes changes by up to two clips when one of its rows is left out."""
    people = account(source(), "example", epsilon=90.0, noise=4.0)
    release(ledger, "people", people)
    rows = account(source(people=False), "example", epsilon=90.0, noise=4.0)
    release(ledger, "rows", rows)
    truth = exact((2, noise_of(people)), (1, noise_of(rows)))
    assert truth <= worst(ledger, "rows", rows) <= 1.6 * truth


def test_a_person_in_a_client_level_release_is_a_part_of_the_client(ledger: Ledger) -> None:
    clients = account(source(people=False), "client", epsilon=50.0, noise=4.0)
    release(ledger, "clients", clients)
    people = account(source(), "example", epsilon=90.0, noise=4.0)
    release(ledger, "people", people)
    truth = exact((2, noise_of(clients)), (1, noise_of(people)))
    assert truth <= worst(ledger, "people", people) <= 1.6 * truth
    everybody = exact((1, noise_of(clients)), (2, noise_of(people)))  # ward a has two people
    assert worst(ledger, "clients", clients) >= everybody


def test_without_identities_a_person_may_be_everybody(ledger: Ledger) -> None:
    unknown = replace(source(people=False), identity=None)
    release(ledger, "rows", account(unknown, "example", epsilon=9.0, noise=4.0))
    people = account(source(), "example", epsilon=900.0, noise=4.0)
    release(ledger, "people", people)
    rows = noise_of(people)
    assert worst(ledger, "people", people) >= exact((4, rows), (3, rows), (1, rows))


def test_another_year_of_the_same_people_adds_up(ledger: Ledger) -> None:
    first = account(source(), "example", epsilon=2.0, promise=9.0, noise=4.0)
    release(ledger, "one", first)
    later = account(source({"c": ["P", "t"]}, name="later"), "example", epsilon=9.0, noise=4.0)
    release(ledger, "two", later)
    truth = exact((1, noise_of(first)), (1, noise_of(later)))
    assert truth <= worst(ledger, "one", first) <= 1.6 * truth


def test_the_old_word_is_still_read() -> None:
    text = 'level = "client"\nepsilon = 1.0\ntasks_per_person = 3\n'
    assert from_toml(text, PrivacyLevel).clients_per_person == 3
    assert client_level(1.0, tasks_per_person=2).clients_per_person == 2
    assert example_level(1.0, tasks_per_person=2).clients_per_person == 2
    with pytest.raises(ConfigError, match="is now 'clients_per_person'"):
        from_toml(text + "clients_per_person = 3\n", PrivacyLevel)

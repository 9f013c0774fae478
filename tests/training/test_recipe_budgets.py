"""Budgets of single clients: what is chosen follows every one of them, and nothing else when they are equal."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kinfolk import example_level, from_rows, recommend, run
from kinfolk.accounting.budgets import budget_of
from kinfolk.data.federation import Federation
from kinfolk.privacy.levels import Budget, PrivacyLevel
from kinfolk.training.public_numbers import LEAST_SIGNAL, budgets_of, signal_of

CLIENTS = 8


def federation(outcome: str, rows: int = 40, features: int = 4) -> Federation:
    """Clients of `rows`, `rows + 3`, ... rows."""
    sizes = [rows + 3 * k for k in range(CLIENTS)]
    x = np.zeros((sum(sizes), features), np.float32)
    y = np.arange(len(x)) % (3 if outcome == "classes" else 2)
    who = np.repeat([f"c{k}" for k in range(CLIENTS)], sizes)
    return from_rows(x, y, who, outcome=outcome, classes=3 if outcome == "classes" else 0)


def mixed(*epsilons: float, everybody: float = 3.0) -> PrivacyLevel:
    """Clients' epsilons in turns."""
    turns = itertools.cycle(epsilons)
    return example_level(everybody, budgets={f"c{k}": Budget(next(turns)) for k in range(CLIENTS)})


@pytest.mark.parametrize("outcome", ["number", "binary", "classes"])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 7.0])
@pytest.mark.parametrize("rows", [12, 150])
def test_budgets_that_are_everybodys_change_nothing(outcome: str, epsilon: float, rows: int) -> None:
    data = federation(outcome, rows)
    usual = recommend(data, example_level(epsilon))
    for level in (mixed(epsilon, everybody=epsilon), mixed(epsilon, everybody=0.07)):
        found = recommend(data, level)
        assert (found.phases, found.training, found.why) == (usual.phases, usual.training, usual.why)
    one = recommend(data, example_level(epsilon, budgets={"c3": Budget(epsilon)}))
    assert (one.phases, one.training, one.why) == (usual.phases, usual.training, usual.why)


def test_training_is_as_long_as_the_noise_of_all_clients_allows() -> None:
    data = federation("classes")

    def step(level: PrivacyLevel) -> float:
        return recommend(data, level).phases[0].options["step_size"]

    assert step(mixed(0.5)) < step(mixed(0.5, 8.0)) < step(mixed(8.0))
    assert step(mixed(0.5, 8.0)) == step(mixed(0.5, 8.0, everybody=1.0)), "nobody has everybody's epsilon"
    dearer = {f"c{k}": Budget(3.0, 1e-30) for k in range(CLIENTS)}
    assert step(example_level(3.0, budgets=dearer)) < step(example_level(3.0)), "deltas are clients' own, too"


@pytest.mark.parametrize(("outcome", "method"), [("number", "few_releases"), ("binary", "few_releases_binary")])
def test_few_releases_are_picked_for_the_budgets_that_clients_have(outcome: str, method: str) -> None:
    data = federation(outcome, 60)
    assert recommend(data, example_level(0.2)).phases[0].method != method
    assert recommend(data, mixed(0.5, 3.0, 8.0, 8.0, everybody=0.2)).phases[0].method == method
    assert recommend(data, mixed(0.1, 0.1, 0.1, 0.2)).phases[0].method != method, "everybody's 3 is nobody's"


def test_few_releases_for_numbers_need_a_mean_that_stands_out_of_all_noise() -> None:
    """Half of the clients without noise to speak of do not make up for those with much."""
    strict, wide, sizes = [0.2] * 8, [0.2, 50.0] * 4, [100] * 8
    assert signal_of(sizes, 25, strict) < LEAST_SIGNAL < signal_of(sizes, 25, wide)
    assert recommend(federation("number", 90), mixed(*wide)).phases[0].method == "mean_regularized"
    assert recommend(federation("number", 90), mixed(50.0, 8.0)).phases[0].method == "few_releases"


def test_where_budgets_differ_the_mean_of_gradient_steps_goes_by_precision(tmp_path: Path) -> None:
    data = federation("classes", 20)
    assert recommend(data, mixed(1.0, 1.9)).training.weights == "uniform", "hardly"
    assert recommend(data, mixed(1.0, 2.0), strength="auto").training.weights == "precision"
    bands = replace(mixed(1.0, 8.0), noise_bands=2)
    assert recommend(data, bands).training.weights == "uniform", "precision is of independent noise"
    assert recommend(data, mixed(1.0, 8.0), method="fedavg").training.weights == "uniform", "as asked for"
    found = recommend(data, mixed(1.0, 8.0), seed=0, rounds=2)
    assert "pulled to a mean in which less noise counts for more by as much" in found.why
    made = run(found, tmp_path, data=data)
    assert made.experiment().training.weights == "precision"
    assert {round(one["epsilon"]) for one in made.statement()["parties"]} == {1, 8}


@pytest.mark.parametrize("outcome", ["number", "classes"])
def test_the_reason_names_the_least_and_the_largest_budget(outcome: str) -> None:
    assert "and epsilon 0.5 to 8, theory expects" in recommend(federation(outcome), mixed(1.0, 0.5, 8.0)).why
    assert "and epsilon 2, theory expects" in recommend(federation(outcome), mixed(2.0)).why


def test_a_clients_budget_is_the_one_that_its_account_has() -> None:
    level = example_level(3.0, 1e-6, budgets={"a": Budget(0.5), "b": Budget(8.0, 1e-9)})
    assert [budget_of(level, name, 100) for name in "abc"] == [(0.5, 1e-6), (8.0, 1e-9), (3.0, 1e-6)]
    assert budgets_of(level, ("b", "c", "a")) == ([8.0, 3.0, 0.5], [1e-9, 1e-6, 1e-6])
    given = example_level(noise_multiplier=1.0, budgets={"a": Budget(0.5)})
    assert (given.budget("b"), budgets_of(given, ("a", "b"))) == (None, (None, None)), "the noise is given instead"


def test_the_signal_is_that_of_every_client() -> None:
    alone = [signal_of([100], 5, epsilon) for epsilon in (0.5, 8.0)]
    both = signal_of([100, 100], 5, [0.5, 8.0])
    assert both == pytest.approx(np.mean(alone) * np.sqrt(2))
    assert signal_of([100, 300], 5, [0.5, 8.0]) > signal_of([100, 300], 5, [8.0, 0.5]), "rows and budgets go together"

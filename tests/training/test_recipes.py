"""One place decides settings: the library, the command line and the estimators choose the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinfolk import PersonalizedClassifier, client_level, example_level, from_rows, none, recommend, run
from kinfolk.data.federation import Federation
from kinfolk.privacy.levels import PrivacyLevel
from kinfolk.toml import ConfigError, from_toml, to_toml
from kinfolk.training import recipes, run_directory
from kinfolk.training.experiment import Afterwards, Experiment, ModelChoice, Phase, Training
from kinfolk.training.public_numbers import few_releases

X = np.random.default_rng(0).uniform(-1, 1, size=(120, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
WHO = np.repeat(["graz", "lyon", "oslo"], 40)


def federation(outcome: str = "binary") -> Federation:
    return from_rows(X, Y if outcome == "binary" else X[:, 0], WHO, outcome=outcome, name="three")


def table(folder: Path) -> Path:
    path = folder / "three.csv"
    lines = [f"{who},{','.join(f'{v:.4f}' for v in row)},{label}" for who, row, label in zip(WHO, X, Y, strict=True)]
    path.write_text("\n".join(["town,a,b,c,sick", *lines]) + "\n")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("given", [{}, {"strength": 2.0}, {"method": "fedavg", "rounds": 3, "batch_size": 8}])
def test_the_library_decides_what_the_command_and_the_estimator_do(
    given: dict[str, Any], tmp_path: Path, command: Any
) -> None:
    words = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", value)]
    files = (table(tmp_path), "--client", "town", "--target", "sick", "--output", tmp_path / "runs")
    code, _, err = command("train", *files, "--level", "client", "--seed", 0, "--epsilon", 4, "--delta", 0.01, *words)
    assert code == 0, err
    found = run_directory.open_run(tmp_path / "runs" / "latest").experiment()
    level = client_level(4.0, 0.01, allow_large_delta=False)
    estimator = PersonalizedClassifier(privacy=level, random_state=0, **given).fit(X, Y, clients=WHO)
    mine = recommend(federation(), level, seed=0, **given)
    for other in (found, estimator.experiment_):
        assert (other.model, other.training, other.phases) == (mine.model, mine.training, mine.phases)
        assert other.afterwards == mine.afterwards
        assert bool(other.why) == bool(mine.why)


def test_a_strength_is_learned_at_example_level_and_chosen_by_each_client_at_client_level() -> None:
    number = recommend(federation("number"), example_level(1.0))
    assert (number.model, number.training) == (ModelChoice("linear"), Training(None))
    learned = {"strength": "auto", "start": 4.0, "curvature": 0.4}
    assert number.phases == (Phase("mean_regularized", 120, {"step_size": 0.043, **learned}),)
    binary = recommend(federation(), example_level(1.0)).phases[0]
    assert binary.options == {"step_size": 0.17, "strength": "auto", "start": 16.0, "curvature": 0.1}
    found = recommend(federation(), client_level(1.0))
    assert (found.model, found.training) == (ModelChoice("logistic"), Training(32))
    assert found.phases == (Phase("mean_regularized", 3, {"strength": 0.1, "solved": True}),)
    assert found.afterwards == Afterwards("self_select")
    by_hand = recommend(federation(), client_level(1.0), rounds=7)
    assert (by_hand.phases[0].rounds, by_hand.afterwards) == (7, None), "steps were asked for"
    privacy = example_level(3.0)
    built_in = recipes.for_choice(recipes.DataChoice("school"), 0, privacy, recipes.Given())
    assert built_in == recipes.Recipe(ModelChoice(), Training(32), Phase("mean_regularized", 60, {"step_size": 0.1}))


@pytest.mark.parametrize("privacy", [example_level(1.0), client_level(1.0, 0.1), none()], ids=lambda one: one.level)
def test_a_recipe_says_what_it_chose_why_and_what_to_expect(privacy: PrivacyLevel) -> None:
    mine = recommend(federation(), privacy)
    assert mine.why.startswith("method=mean_regularized with ")
    assert "with 3 clients of" in mine.why
    assert "theory expects sharing to remove" in mine.why
    assert from_toml(to_toml(mine), Experiment).why == mine.why
    assert recommend(federation(), privacy, method="fedavg").why == "", "the user chose"


def test_a_shared_model_is_always_there_for_newcomers() -> None:
    """Not even one client alone trains a model that nobody else could use."""
    one = from_rows(X, Y, ["graz"] * 120, outcome="binary")
    for data in (federation(), one):
        for privacy in (example_level(30.0), client_level(30.0, 0.1), none()):
            assert recommend(data, privacy).phases[0].method != "local"


def test_what_is_given_comes_first() -> None:
    found = recommend(federation(), none(), method="ditto", rounds=7, step_size=0.3, batch_size=0, hidden=[4], seed=1)
    assert found.phases[0].rounds == 7
    assert found.phases[0].options["step_size"] == 0.3
    assert (found.training.batch_size, found.model, found.seed) == (None, ModelChoice("mlp", (4,)), 1)
    assert recommend(federation(), none(), strength="auto").phases[0].method == "mean_regularized"
    related = recommend(federation(), none(), relation={"graz": "a", "lyon": "b", "oslo": "a"}).phases[0]
    assert (related.method, related.options["groups"]["oslo"]) == ("relation_regularized", "a")


def test_a_recommended_experiment_runs_on_the_federation_it_is_for(tmp_path: Path) -> None:
    mine = recommend(federation(), none(), seed=0, rounds=2)
    assert run(mine, tmp_path, data=federation()).done()
    with pytest.raises(ValueError, match="data='three' was given as an object"):
        run(mine, tmp_path)


@pytest.mark.slow
def test_an_estimator_learns_its_strength() -> None:
    level = example_level(8.0, 1e-3)
    found = PersonalizedClassifier(privacy=level, strength="auto", rounds=3, random_state=0).fit(X, Y, clients=WHO)
    assert found.experiment_.phases[0].options["strength"] == "auto"
    assert found.experiment_.phases[0].rounds == 3
    assert found.privacy_.get("strength_learned", False)
    assert found.predict(X, clients=WHO).shape == (120,)
    with pytest.raises(ConfigError, match="level='client'"):
        PersonalizedClassifier(privacy=client_level(4.0, 0.01), strength="auto", random_state=0).fit(X, Y, clients=WHO)


def test_a_method_that_is_compared_gets_only_what_it_has() -> None:
    given = recipes.Given(None, 5, 0.3, strength=2.0, relation={"a": "b"})
    assert given.only_for("fedavg") == replace(given, method="fedavg", strength=None, relation=None)
    assert given.only_for("relation_regularized") == replace(given, method="relation_regularized")


def test_linear_regression_at_example_level_gets_few_releases_where_public_numbers_say_so() -> None:
    def picked(clients: int, rows: int, features: int = 4, **given: Any) -> Phase:
        x = np.zeros((clients * rows, features), np.float32)
        data = from_rows(x, x[:, 0], np.repeat(np.arange(clients).astype(str), rows))
        return recommend(data, example_level(1.0), **given).phases[0]

    assert picked(10, 200) == Phase("few_releases", 7)
    assert picked(10, 200, rounds=60).method != "few_releases"
    assert picked(10, 200, step_size=0.1).method != "few_releases"
    assert picked(10, 200, hidden=[3]).method != "few_releases"
    assert picked(10, 200, method="fedavg").method == "fedavg"
    assert picked(10, 15).method != "few_releases", "too little signal"
    assert picked(4, 2000).method != "few_releases", "too few clients to learn from"
    assert picked(10, 200, features=101).method != "few_releases", "too many products"
    found = few_releases(example_level(1.0), [200] * 10, 4)
    assert found is not None
    assert "times above its noise: seven releases learn more" in found.why
    assert few_releases(none(), [200] * 10, 4) is None


def test_yes_or_no_at_example_level_gets_few_releases_where_public_numbers_say_so() -> None:
    def picked(clients: int, rows: int, features: int = 4, outcome: str = "binary", **given: Any) -> Phase:
        x = np.zeros((clients * rows, features), np.float32)
        y, classes = np.arange(len(x)) % 2, 3 if outcome == "classes" else 0
        data = from_rows(x, y, np.repeat(np.arange(clients).astype(str), rows), outcome=outcome, classes=classes)
        return recommend(data, example_level(1.0), **given).phases[0]

    assert picked(10, 100) == Phase("few_releases_binary", 14)
    assert picked(4, 200).method == "few_releases_binary"
    assert picked(10, 100, rounds=60).method == "mean_regularized"
    assert picked(10, 100, strength="auto").method == "mean_regularized"
    assert picked(10, 20).method == "mean_regularized", "too little signal"
    assert picked(3, 2000).method == "mean_regularized", "too few clients to learn from"
    assert picked(10, 1000, features=64).method == "mean_regularized", "too many weights"
    assert picked(10, 1000, outcome="classes").method == "mean_regularized", "two classes only"
    found = few_releases(example_level(1.0), [100] * 10, 4, "binary")
    assert found is not None
    assert "times above its noise: fourteen releases" in found.why
    assert few_releases(none(), [100] * 10, 4, "binary") is None


def test_words_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="privacy='client' is no privacy level"):
        recommend(federation(), "client")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="method='ditto' takes no relation: name relation_regularized"):
        recommend(federation(), none(), method="ditto", relation={"graz": "a", "lyon": "b", "oslo": "a"})

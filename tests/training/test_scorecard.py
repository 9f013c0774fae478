"""What is told at the keyboard: metrics by name and in the target's unit, beside the constant and the shared model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from kinfolk import models
from kinfolk.cli.output import headings, in_words, judged
from kinfolk.data.federation import Federation, from_rows
from kinfolk.data.people import by_person
from kinfolk.data.target import Target
from kinfolk.engines.results import errors_of
from kinfolk.privacy.levels import example_level, none
from kinfolk.training import loop, scorecard
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training
from kinfolk.training.scorecard import Scorecard
from kinfolk.types import Rows

POINTS = Target("score", "points", low=0, high=100, scaled_low=0, scaled_high=1)


def schools(test_fraction: float = 0.5, outcome: str = "number") -> Federation:
    """Two clients of 20 rows, whose targets differ; half of them are for testing."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (40, 2)).astype(np.float32)
    ids = np.repeat(["a", "b"], 20)
    y = (0.2 * x[:, 0] + np.where(ids == "a", 0.3, 0.6)).astype(np.float32)
    if outcome == "binary":
        y = (x[:, 0] + generator.normal(0, 0.3, 40) > 0.4).astype(np.int32)
    found = from_rows(x, y, ids, test_fraction=test_fraction, outcome=outcome, name="schools")
    return replace(found, target=POINTS if outcome == "number" else None)


def test_a_constant_is_the_clients_own_and_of_its_training_rows() -> None:
    data = schools()
    found = scorecard.constants("number", data)["mae"]
    for k in range(2):
        seen, known = data.test.y[k, : data.test.sizes[k]], data.train.y[k, : data.train.sizes[k]]
        assert found[k] == pytest.approx(np.abs(seen - known.mean()).mean(), rel=1e-5)
    labels = schools(outcome="binary")
    shares = scorecard.constants("binary", labels)
    for k in range(2):
        seen, known = labels.test.y[k, : labels.test.sizes[k]], labels.train.y[k, : labels.train.sizes[k]]
        assert shares["error"][k] == (seen != (known.mean() > 0.5)).mean()
    assert shares["auc"].tolist() == [0.5, 0.5]


def test_a_person_with_many_rows_counts_once_in_a_constant() -> None:
    y = np.array([0, 0, 0, 1, 5, 5], np.float32)
    rows = from_rows(
        np.ones((6, 1)), y, ["a"] * 6, person_ids=[1, 1, 1, 2, 3, 3], rows_per_person=4, test=[False] * 4 + [True] * 2
    )
    (found,) = scorecard.constants("number", by_person(rows))["mae"]
    assert found == pytest.approx(4.5)  # people's means are 0 and 1


def test_metrics_of_models_are_those_of_the_engine() -> None:
    data, model = schools(outcome="binary"), models.logistic(2)
    own = jax.vmap(model.init)(jax.random.split(jax.random.key(0), 2))
    own = jax.tree.map(lambda leaf: leaf + np.arange(2, dtype=np.float32).reshape(-1, *(1,) * (leaf.ndim - 1)), own)
    found = scorecard.of_models(model, own, data)
    rows = data.test.rows(slice(None), int(data.test.sizes.max()))
    for k in range(2):
        params = jax.tree.map(lambda leaf, k=k: leaf[k], own)
        theirs = errors_of(model, params, Rows(rows.x[k], rows.y[k], rows.mask[k]))
        assert found["error"][k] == pytest.approx(float(theirs["error"]))
    alike = scorecard.of_models(model, jax.tree.map(lambda leaf: leaf[1], own), data, one=True)
    assert alike["error"][1] == found["error"][1]
    assert alike["auc"][1] == found["auc"][1]


def test_the_area_under_a_curve_counts_pairs() -> None:
    scores, yes = np.array([0.1, 0.4, 0.35, 0.8, 0.4]), np.array([False, False, True, True, True])
    pairs = [(a > b) + (a == b) / 2 for a in scores[yes] for b in scores[~yes]]
    assert scorecard.auc(scores, yes) == pytest.approx(np.mean(pairs))
    assert np.isnan(scorecard.auc(scores, np.ones(5, bool)))


def card(value: float, constant: float) -> Scorecard:
    own, other = ({"mae": np.array([[each, each + 0.02]])} for each in (value, constant))
    found = scorecard.scorecard("number", POINTS, own, other)
    assert found is not None
    return found


def test_a_model_that_is_worse_than_a_constant_is_warned_of_in_words() -> None:
    assert scorecard.warning(card(0.05, 0.08)) == ""
    said = scorecard.warning(card(0.12, 0.08))
    assert "worse than a constant: MAE 13 points, and MAE 9 points for each client's own mean" in said
    assert "(2 of 2 clients" in said
    assert scorecard.warning(None) == ""


def test_tables_name_the_metric_its_unit_and_the_constant() -> None:
    found = card(0.05, 0.08)
    assert headings([found]) == ["MAE (points)"]
    assert judged(found) == ["6", "7", "9", "none"]
    assert in_words(found) == "MAE 6 points (own mean 9)"
    assert judged(None) == ["not measured"] * 4
    assert in_words(None) == "not measured"
    assert headings([found, {**found, "scores": [{**found["scores"][0], "unit": "mm"}]}]) == ["test error"]


@pytest.mark.slow
def test_a_run_is_judged_in_its_targets_unit_and_keeps_it_private(tmp_path: Path) -> None:
    settings = Experiment(
        seed=0,
        model=ModelChoice("linear"),
        training=Training(batch_size=None),
        privacy=none(),
        phases=(Phase("mean_regularized", 3),),
    )
    seen: list[dict[str, float]] = []
    run = loop.run(
        settings, tmp_path, data=schools(), progress=lambda done, rounds, numbers: seen.append(dict(numbers))
    )
    found = scorecard.read(run)
    assert found is not None
    (score,) = found["scores"]
    clients = json.loads((run.private / "clients.json").read_text())
    assert score["value"] == pytest.approx(np.mean([row["value"] for row in clients]), rel=1e-5)
    assert score["value"] == pytest.approx(seen[-1]["MAE (points)"], rel=1e-5)
    assert score["value"] == pytest.approx(100 * np.mean(np.sqrt([row["error"] for row in clients])), rel=0.5)
    assert score["shared"] is not None
    assert score["constant"] == pytest.approx(100 * scorecard.constants("number", schools())["mae"].mean())
    untested = replace(settings, privacy=example_level(epsilon=1.0, delta=1e-3))
    other = loop.run(untested, tmp_path, data=schools(test_fraction=0.0))
    assert scorecard.read(other) is None
    assert not (other.private / scorecard.FILE).exists()

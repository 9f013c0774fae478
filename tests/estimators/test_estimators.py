"""The estimators, as scikit-learn's users know them."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.multiclass import type_of_target

from kinfolk import PersonalizedClassifier, PersonalizedRegressor, client_level, example_level, none
from kinfolk.data.tables.schema import Column, Schema
from kinfolk.privacy.release import PrivacyError
from kinfolk.serving.trained import load

GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-1, 1, (300, 3))
CLIENTS = np.array(["a", "b", "c"])[np.arange(300) % 3]
SLOPES = {"a": 1.5, "b": 1.0, "c": 0.5}
Y = X[:, 0] * [SLOPES[k] for k in CLIENTS] + 0.3 * X[:, 1]
LABELS = np.where(Y > 0, "high", "low")


def classifier(**options: Any) -> PersonalizedClassifier:
    return PersonalizedClassifier(**{"random_state": 0, "rounds": 8, "privacy": example_level(epsilon=8), **options})


@pytest.fixture(scope="module")
def fitted() -> PersonalizedClassifier:
    return classifier(method="mean_regularized").fit(X, LABELS, clients=CLIENTS)


def test_fit_predict_score(fitted: PersonalizedClassifier) -> None:
    assert fitted.classes_.tolist() == ["high", "low"]
    assert set(fitted.clients_) == {"a", "b", "c"}
    chances = fitted.predict_proba(X, clients=CLIENTS)
    assert chances.shape == (300, 2)
    assert np.allclose(chances.sum(axis=1), 1, atol=1e-6)
    assert fitted.score(X, LABELS, clients=CLIENTS) > 0.8
    assert (fitted.predict(X, clients=CLIENTS) == fitted.classes_[chances.argmax(axis=1)]).all()


def test_a_seed_makes_a_simulation_and_says_so(fitted: PersonalizedClassifier) -> None:
    assert fitted.privacy_["simulated"] is True
    assert fitted.privacy_["epsilon"] <= 8
    assert "(simulated)" in fitted.statement()
    assert "NOT PRIVATE" in fitted.statement()
    again: Any = clone(fitted)
    again.fit(X, LABELS, clients=CLIENTS)
    assert (again.predict_proba(X, clients=CLIENTS) == fitted.predict_proba(X, clients=CLIENTS)).all()


@pytest.mark.slow
def test_without_a_seed_it_is_a_release_charged_to_the_ledger(tmp_path: Path) -> None:
    model = classifier(random_state=None, data="study", rounds=2)
    with pytest.raises(PrivacyError, match=r"bounds=\(low, high\) and target="):
        model.fit(X, LABELS, clients=CLIENTS)
    model.set_params(bounds=(-1, 1))
    with pytest.raises(PrivacyError, match="declared, not guessed"):
        model.fit(X, LABELS, clients=CLIENTS)
    model.set_params(target=["low", "high"]).fit(X, LABELS, clients=CLIENTS)
    assert model.privacy_["simulated"] is False
    assert model.privacy_["not_private"] == []
    assert model.classes_.tolist() == ["low", "high"]
    assert (tmp_path / "ledgers" / "ledger.jsonl").exists()
    with pytest.raises(PrivacyError, match="would reach"):
        model.fit(X, LABELS, clients=CLIENTS)


def test_clients_are_named_when_they_are_forgotten(fitted: PersonalizedClassifier) -> None:
    for call in (
        lambda: classifier().fit(X, LABELS),
        lambda: fitted.predict(X),
        lambda: fitted.score(X, LABELS),
        lambda: PersonalizedRegressor().fit(X, Y),
    ):
        with pytest.raises(ValueError, match=r"clients=None.*clients="):
            call()
    with pytest.raises(ValueError, match="one name per row"):
        classifier().fit(X, LABELS, clients=CLIENTS[:5])


BOTH = np.column_stack([Y > 0, X[:, 1] > 0.5])
"""Two labels of each row; some rows have none, some both."""


def test_several_labels_as_scikit_learn_has_them() -> None:
    model: Any = classifier(method="mean_regularized", privacy=none(), rounds=20).fit(X, BOTH, clients=CLIENTS)
    chances, found = (f(X, clients=CLIENTS) for f in (model.predict_proba, model.predict))
    alike: Any = MLPClassifier((), max_iter=5, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alike.fit(X, BOTH)
    assert chances.shape == alike.predict_proba(X).shape == (300, 2)
    assert found.dtype == alike.predict(X).dtype
    assert type_of_target(found) == "multilabel-indicator"
    assert model.classes_.tolist() == alike.classes_.tolist()
    assert (found == (chances > 0.5)).all()
    assert not np.allclose(chances.sum(axis=1), 1)
    assert model.score(X, BOTH, clients=CLIENTS) == (found == BOTH).all(axis=1).mean() > 0.6
    assert (found == BOTH).mean() > 0.85
    assert model.predict(X[:4], clients=["never seen"] * 4).shape == (4, 2)
    same: Any = clone(model)
    same.fit(X, pd.DataFrame({"ill": BOTH[:, 0], "old": BOTH[:, 1]}), clients=CLIENTS)
    assert np.array_equal(same.predict_proba(X, clients=CLIENTS), chances)
    assert same.models_.schema.labels == ("ill", "old")
    model.fit(X, LABELS, clients=CLIENTS)
    assert set(model.predict(X, clients=CLIENTS)) == {"high", "low"}


def test_labels_may_be_many_and_none_need_be_there() -> None:
    x, who = GENERATOR.uniform(-1, 1, (240, 4)), CLIENTS[:240]
    y = (GENERATOR.uniform(size=(240, 500)) < 0.1).astype(int)
    y[:, 7] = 0
    names = [f"topic {k}" for k in range(500)]
    model = classifier(method="fedavg", rounds=2, privacy=client_level(epsilon=8, delta=0.1, allow_large_delta=True))
    model.set_params(target=names).fit(x, y, clients=who)
    assert model.predict_proba(x, clients=who).shape == model.predict(x, clients=who).shape == (240, 500)
    assert model.models_.schema.labels == tuple(names)


@pytest.mark.parametrize("y", [BOTH, pd.DataFrame({"ill": BOTH[:, 0], "old": BOTH[:, 1]})], ids=["array", "frame"])
def test_a_release_guesses_no_labels(y: Any) -> None:
    """A column that a binarizer made because one row has that label would be known by its name."""
    release = classifier(random_state=None, bounds=(-1, 1), data="labels of somebody")
    with pytest.raises(PrivacyError, match=r"declared, not guessed .* \('labels of fit'\)"):
        release.fit(X, y, clients=CLIENTS)


@pytest.mark.parametrize(
    ("y", "options", "message"),
    [
        (BOTH * 2, {}, "y has 2 columns, and holds something else than 0 and 1"),
        (np.where(BOTH, 1.0, np.nan), {}, "something else than 0 and 1"),
        (BOTH.astype(str), {}, "something else than 0 and 1"),
        (BOTH[:-1], {}, "y has 299 rows and X has 300"),
        (BOTH, {"target": ["a", "b", "c"]}, "target names 3 labels, and y has 2 columns"),
        (BOTH, {"target": ["a", "a"]}, "declared twice"),
        (BOTH[:, :, None], {}, "Found array with dim 3"),
    ],
)
def test_labels_that_cannot_be_are_refused(y: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        classifier(**options).fit(X, y, clients=CLIENTS)


def test_newcomers_get_the_shared_model_where_there_is_one(fitted: PersonalizedClassifier) -> None:
    assert fitted.predict(X[:5], clients=["new"] * 5).shape == (5,)
    alone = classifier(method="local", rounds=2).fit(X, LABELS, clients=CLIENTS)
    with pytest.raises(ValueError, match="'new' was not there in training, and this method has no shared model"):
        alone.predict(X[:5], clients=["new"] * 5)


@pytest.mark.slow
def test_frames_with_text_by_a_schema() -> None:
    schema = Schema(
        Column("y", "category", values=("low", "high")),
        (Column("x", low=-1, high=1, missing="indicate"), Column("kind", "category", values=("u", "v"))),
    )
    kinds = np.where(X[:, 1] > 0, "u", "v")
    frame = pd.DataFrame({"kind": kinds, "x": np.where(np.arange(300) % 7 == 0, np.nan, X[:, 0])})
    model = classifier(schema=schema).fit(frame, LABELS, clients=pd.Series(CLIENTS))
    assert model.privacy_["not_private"] == []
    there = model.predict_proba(frame, clients=CLIENTS)
    swapped = pl.from_pandas(frame).select("x", "kind")
    assert np.allclose(model.predict_proba(swapped, clients=CLIENTS), there)
    guessing = classifier(rounds=1).fit(swapped, LABELS, clients=CLIENTS)
    assert [column.kind for column in guessing.models_.schema.columns] == ["number", "category"]
    assert guessing.predict(frame, clients=CLIENTS).shape == (300,)
    assert "NOT PRIVATE" in guessing.statement()
    with pytest.raises(PrivacyError, match="declared, not guessed"):
        guessing.set_params(random_state=None).fit(frame, LABELS, clients=CLIENTS)


@pytest.mark.slow
def test_a_schemas_identity_column_is_what_the_account_follows() -> None:
    """The same people under other client names and another data name: one account, without anybody being asked."""
    schema = Schema(
        Column("y", "category", values=("low", "high")),
        (Column("x", low=-1, high=1), Column("z", low=-1, high=1)),
        person="patient",
    )
    frame = pd.DataFrame({"x": X[:, 0], "z": X[:, 1], "patient": np.arange(300)})
    model = classifier(random_state=None, data="study", rounds=2, schema=schema, target=["low", "high"])
    model.fit(frame, LABELS, clients=CLIENTS)
    assert model.privacy_.get("promise", {}).get("rows") == "persons known by patient"
    renamed = np.char.add("other ", np.asarray(CLIENTS).astype(str))
    with pytest.raises(PrivacyError, match=r"would reach|was promised"):
        model.set_params(data="elsewhere").fit(frame[::-1], LABELS[::-1], clients=renamed[::-1])
    frame["patient"] += 1000
    model.fit(frame, LABELS, clients=renamed)
    with pytest.raises(ValueError, match="patient"):
        model.fit(frame.drop(columns="patient"), LABELS, clients=renamed)


@pytest.mark.slow
def test_pandas_and_missing_values_without_a_schema() -> None:
    frame = pd.DataFrame(X, columns=["p", "q", "r"])
    frame.iloc[3, 1] = np.nan
    model = classifier(rounds=2).fit(frame, LABELS, clients=CLIENTS)
    assert model.feature_names_in_.tolist() == ["p", "q", "r"]  # type: ignore[attr-defined]
    assert model.predict(frame, clients=CLIENTS).shape == (300,)


@pytest.mark.slow
def test_regression_in_its_own_units() -> None:
    model = PersonalizedRegressor("mean_regularized", none(), random_state=0, rounds=40, target=(0, 100))
    y = 50 + 20 * Y
    model.fit(X, y, clients=CLIENTS)
    assert model.score(X, y, clients=CLIENTS) > 0.9
    assert "NOT PRIVATE" in model.statement()
    guesses = model.predict(1e6 * X, clients=CLIENTS)
    assert guesses.min() >= 0
    assert guesses.max() <= 100


@pytest.mark.slow
def test_pipelines_and_cross_validation_pass_clients_on() -> None:
    model = classifier(rounds=2, method="fedavg")
    pipeline = make_pipeline(FunctionTransformer(), model)
    pipeline.fit(X, LABELS, personalizedclassifier__clients=CLIENTS)
    assert pipeline.predict(X, clients=CLIENTS).shape == (300,)
    with sklearn.config_context(enable_metadata_routing=True):
        routed: Any = classifier(rounds=2, method="fedavg")
        routed.set_fit_request(clients=True).set_score_request(clients=True)
        scores = cross_val_score(routed, X, LABELS, cv=2, params={"clients": CLIENTS})
    assert scores.shape == (2,)


@pytest.mark.slow
def test_a_report_needs_the_run_directory(fitted: PersonalizedClassifier, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give output="):
        fitted.report(tmp_path / "report.html")
    kept = classifier(output=tmp_path, method="local").fit(X, LABELS, clients=CLIENTS)
    page = kept.report(tmp_path / "report.html").read_text()
    assert "simulated" in page
    assert kept.report(tmp_path / "report.md").read_text().startswith("#")


def test_saved_models_come_back_and_predict_with_numpy_alone(fitted: PersonalizedClassifier, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    folder = fitted.save(tmp_path / "models")
    back = load(folder)
    assert (back.predict(X.astype(np.float32), CLIENTS)[0] == np.array(back.schema.target.classes)[0]).any()
    arrays = load_file(folder / "model.safetensors")
    assert arrays["layers.0.weights"].shape == (3, 3, 1)
    with pytest.raises(ValueError, match="is a simulation"):
        fitted.export(tmp_path / "b", "b")
    one = fitted.export(tmp_path / "b", "b", for_study=True)
    about = json.loads((one / "model.json").read_text())
    assert about["clients"] == ["b"]
    assert load_file(one / "model.safetensors")["layers.0.weights"].shape == (1, 3, 1)
    assert "SIMULATED" in about["notice"]
    table = tmp_path / "rows.csv"
    pd.DataFrame(X[:20], columns=["x0", "x1", "x2"]).to_csv(table, index=False)
    script = "import sys; sys.modules['jax'] = sys.modules['kinfolk'] = None; import runpy; sys.argv = sys.argv[1:]; "
    script += "runpy.run_path(sys.argv[0], run_name='__main__')"
    words = [sys.executable, "-c", script, str(one / "predict.py"), str(table)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    chances = np.array([line.split(",")[1] for line in done.stdout.splitlines()[1:]], float)
    assert np.allclose(chances, fitted.predict_proba(X[:20], clients=["b"] * 20)[:, 1], atol=1e-5)


@pytest.mark.slow
def test_at_client_level_a_personal_model_is_marked_as_its_clients(tmp_path: Path) -> None:
    model = classifier(privacy=client_level(epsilon=8), rounds=2).set_params(method="mean_regularized")
    model.fit(X, LABELS, clients=CLIENTS)
    about = json.loads((model.export(tmp_path / "a", "a", for_study=True) / "model.json").read_text())
    assert "FOR client 'a' ONLY" in about["notice"]
    about = json.loads((model.save(tmp_path / "all") / "model.json").read_text())
    assert "FOR the aggregator ONLY" in about["notice"]


FRAME = pd.DataFrame({"p": X[:, 0], "q": X[:, 1], "r": X[:, 2], "hospital": CLIENTS})


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_a_column_says_whose_row_it_is(fitted: PersonalizedClassifier, make: Any) -> None:
    frame = make({name: FRAME[name].to_numpy() for name in FRAME})
    named = classifier(method="mean_regularized", clients="hospital").fit(frame, LABELS)
    wanted = fitted.predict_proba(X, clients=CLIENTS)
    assert named.feature_names_in_.tolist() == ["p", "q", "r"]  # type: ignore[attr-defined]
    assert np.allclose(named.predict_proba(frame), wanted)
    rest = frame.drop(columns="hospital") if make is pd.DataFrame else frame.drop("hospital")
    assert np.allclose(named.predict_proba(rest, clients=CLIENTS), wanted)
    assert named.score(frame, LABELS) == fitted.score(X, LABELS, clients=CLIENTS)


@pytest.mark.parametrize(
    ("clients", "table", "message"),
    [
        ("hospitals", FRAME, "did you mean 'hospital'"),
        ("hospital", X, "give X as a pandas or polars frame"),
        (2, FRAME, "must be 1"),
        (["a", None] * 150, X, "clients holds NaN"),
        (["a"] * 3, X, "give one name per row"),
    ],
)
def test_clients_that_cannot_be_are_refused(clients: Any, table: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        classifier().fit(table, LABELS, clients=clients)


def test_its_text_is_short() -> None:
    assert repr(PersonalizedClassifier()) == "PersonalizedClassifier()"
    schema = Schema(Column("y", "yes_no"), (Column("x", low=-1, high=1),))
    model = PersonalizedClassifier("fedavg", example_level(epsilon=1), schema=schema, clients="hospital")
    shown = "method='fedavg', privacy=example_level(epsilon=1), schema=<schema of 1 columns>, clients='hospital'"
    assert repr(model) == f"PersonalizedClassifier({shown})"
    assert "none()" in repr(PersonalizedRegressor(privacy=none()))


@pytest.mark.slow
def test_folds_of_groups_and_clients_that_a_fold_has_not_seen() -> None:
    model = classifier(rounds=2, method="mean_regularized", clients="hospital")
    assert cross_val_score(model, FRAME, LABELS, cv=2).min() > 0.4
    scores = cross_val_score(model, FRAME, LABELS, cv=GroupKFold(3), groups=CLIENTS)
    assert scores.min() > 0.4, "every fold's clients are newcomers, for whom the shared model is"
    alone = classifier(rounds=2, method="local", clients="hospital")
    with pytest.raises(ValueError, match="was not there in training, and this method has no shared model"):
        cross_val_score(alone, FRAME, LABELS, cv=GroupKFold(3), groups=CLIENTS, error_score="raise")  # type: ignore[arg-type]
    search = GridSearchCV(model, {"method": ["fedavg", "mean_regularized"]}, cv=2).fit(FRAME, LABELS)
    assert search.best_score_ > 0.4
    pipeline = make_pipeline(FunctionTransformer(), model).set_output(transform="pandas")
    assert pipeline.fit(FRAME, LABELS).predict(FRAME).shape == (300,)


EXPECTED_FAILURES: dict[str, str] = {}
"""scikit-learn's checks that fail in the one-client mode, and why: none do."""
ONE_CLIENT = {"privacy": none(), "rounds": 30, "random_state": 0, "clients": 1}
"""scikit-learn's checks know no clients: all rows are one client's, and the checks apply as they are."""


@pytest.mark.slow
@parametrize_with_checks(
    [PersonalizedClassifier("fedavg", **ONE_CLIENT), PersonalizedRegressor("fedavg", **ONE_CLIENT)],  # type: ignore[arg-type]
    expected_failed_checks=lambda _: EXPECTED_FAILURES,
)
def test_scikit_learn_agrees(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
def test_people_are_units_by_a_column_or_beside_the_rows() -> None:
    generator = np.random.default_rng(0)
    x, people = generator.uniform(-1, 1, (90, 2)), np.repeat(np.arange(30), 3)
    y, clients = (x[:, 0] > 0).astype(int), np.repeat(["a", "b", "c"], 30)
    options: dict = {"method": "local", "rounds": 2, "random_state": 0, "bounds": (-1, 1), "target": [0, 1]}
    beside = PersonalizedClassifier(**options, rows_per_person=3).fit(x, y, clients=clients, people=people)
    frame = pd.DataFrame({"u": x[:, 0], "v": x[:, 1], "patient": people})
    named = PersonalizedClassifier(**options, person="patient", rows_per_person=3).fit(frame, y, clients=clients)
    assert beside.privacy_["unit"] == named.privacy_["unit"] == "one person, with all rows, in one client"
    assert beside.privacy_["rows_per_person"] == 3  # type: ignore[typeddict-item]
    assert (named.predict(frame, clients) == beside.predict(x, clients)).all()
    with pytest.raises(ValueError, match="person='nobody' is not a column of X"):
        PersonalizedClassifier(**options, person="nobody").fit(frame, y, clients=clients)

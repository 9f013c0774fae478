"""From words to models and algorithms, and what is said where there are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from kinfolk.data import registry
from kinfolk.data.choice import DataChoice
from kinfolk.data.federation import Federation, from_rows, pooled
from kinfolk.data.sets import stackoverflow
from kinfolk.data.sparse import from_sparse
from kinfolk.outcomes import OUTCOMES
from kinfolk.privacy.levels import PrivacyLevel, client_level, example_level, none
from kinfolk.toml import ConfigError
from kinfolk.training.build import build_algorithm, build_model, fitting
from kinfolk.training.experiment import Experiment, ModelChoice, Phase
from kinfolk.training.prepare import Job, prepare
from kinfolk.training.recipes import Given, for_choice

LEVELS = (example_level(noise_multiplier=1.0, delta=1e-3), client_level(noise_multiplier=1.0))


def some_rows(outcome: str, is_sparse: bool) -> Federation:
    """Twelve rows of two clients, with three classes, levels, intervals or labels."""
    generator = np.random.default_rng(0)
    x = generator.poisson(0.7, (12, 5)).astype(np.float32)
    y = generator.integers(0, 2, (12, 3)) if outcome == "labels" else generator.integers(0, 2, 12)
    y = y.astype(np.float32) if outcome == "number" else y
    make: Any = from_sparse if is_sparse else from_rows
    classes = 3 if outcome in ("classes", "ordinal", "survival", "labels") else 0
    rows = sparse.csr_array(x) if is_sparse else x
    return make(rows, y, ["a", "b"] * 6, outcome=outcome, classes=classes, name="some")


@pytest.mark.parametrize("outcome", list(OUTCOMES))
@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
def test_data_of_every_kind_train_with_the_model_that_a_name_gets(
    is_sparse: bool, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry._REGISTERED, "some", lambda: some_rows(outcome, is_sparse))
    level = LEVELS[is_sparse]
    recipe = for_choice(DataChoice("some"), 0, level, Given(rounds=1))
    experiment = Experiment(seed=0, data=DataChoice("some"), model=recipe.model, privacy=level, phases=(recipe.phase,))
    job = prepare(experiment)
    job.require_checked()
    assert job.experiment.model.name == ("sparse_linear" if is_sparse else "linear")


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.level)
def test_stackoverflow_trains_by_its_name(
    level: PrivacyLevel, tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stackoverflow, "WORDS", 6)
    monkeypatch.setattr(stackoverflow, "TAGS", 3)
    rows = 12
    np.savez(
        tmp_path / "stackoverflow.npz",
        x=np.full(2 * rows, 0.5, np.float32),
        indices=np.arange(2 * rows, dtype=np.int32) % 6,
        indptr=2 * np.arange(rows + 1),
        labels=np.arange(rows, dtype=np.int32) % 3,
        label_starts=np.arange(rows + 1),
        client=np.repeat([0, 1], rows // 2).astype(np.int32),
    )
    settings = ("--level", level.level, "--epsilon", 5, "--rounds", 1, "--seed", 0, "--output", tmp_path)
    code, _, err = command("train", "--data", "stackoverflow", "--data-dir", tmp_path, *settings)
    assert code == 0, err
    written = [path.read_text() for path in tmp_path.glob("*/public/experiment.toml")]
    assert written
    assert all('name = "sparse_linear"' in text for text in written)


def test_a_model_for_other_rows_is_refused() -> None:
    for is_sparse, name, words in ((True, "mlp", "are sparse, and it reads"), (False, "sparse_softmax", "are dense")):
        with pytest.raises(ConfigError, match=f"model='{name}': the rows of 'some' {words}.*use 'linear'"):
            fitting(ModelChoice(name), some_rows("classes", is_sparse))
    assert fitting(ModelChoice("linear"), pooled(some_rows("classes", True))).name == "sparse_linear"


@pytest.mark.parametrize("outcome", list(OUTCOMES))
def test_linear_fits_every_outcome(outcome: str) -> None:
    for prefix in ("", "sparse_"):
        named = build_model(ModelChoice(prefix + OUTCOMES[outcome].model), (4,), outcome, 3)
        assert build_model(ModelChoice(f"{prefix}linear"), (4,), outcome, 3).layers == named.layers


def test_a_model_of_another_outcome_is_refused() -> None:
    with pytest.raises(ConfigError, match="'logistic' predicts binary, but the data holds number: use 'linear'"):
        build_model(ModelChoice("logistic"), (4,), "number", 0)


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        (Phase("relation_regularized", 1, {"cluster": 1}), "no option 'cluster'; it has .*relation, omega.*, groups"),
        (
            Phase("mean_regularized", 1, {"strength": "auto", "groups": {}}),
            "^mean_regularized has no option 'groups': relation_regularized has it",
        ),
        (Phase("fedavg", 1, {"strength": 1.0}), "^fedavg has no option 'strength'; it has step_size"),
    ],
)
def test_an_option_that_a_method_does_not_have(phase: Phase, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_algorithm(phase, "none")


def test_releases_that_nobody_or_not_everybody_could_use_are_refused() -> None:
    """`empirical_bayes` uses what it releases in later rounds; `mean_regularized` uses it in a client's next one."""
    data = some_rows("number", is_sparse=False)

    def made(method: str, level: PrivacyLevel, rounds: int) -> Job:
        return prepare(Experiment(seed=0, privacy=level, phases=(Phase(method, rounds),)), [data])

    with pytest.raises(ConfigError, match=r"rounds=1: empirical_bayes uses .* at least 2"):
        made("empirical_bayes", LEVELS[1], 1)
    with pytest.raises(ConfigError, match="cohort=1: with empirical_bayes a client that is in no later round"):
        made("empirical_bayes", client_level(noise_multiplier=1.0, cohort=1), 2)
    made("empirical_bayes", none(), 1)
    made("empirical_bayes", LEVELS[1], 2)
    made("mean_regularized", client_level(noise_multiplier=1.0, cohort=1), 1)

"""What clients do alone after training: free at client level, refused at example level."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk import models, trees
from kinfolk.cli.output import result_row, show_results
from kinfolk.personalize import AFTERWARDS
from kinfolk.personalize.fine_tune import OBJECTIVES, FineTuneAfterwards
from kinfolk.personalize.registry import build
from kinfolk.personalize.self_select import RULES, BesideAlone, SelfSelect
from kinfolk.privacy.choice import ExactMin, NoisyMin
from kinfolk.privacy.gates import DataGate
from kinfolk.privacy.levels import client_level, example_level
from kinfolk.privacy.mechanisms import ExactSum, GaussianSum
from kinfolk.privacy.release import PrivacyError, new_meter
from kinfolk.toml import ConfigError
from kinfolk.training import loop
from kinfolk.training.experiment import Afterwards, Experiment, Phase
from kinfolk.types import Rows


def gate_for(model: models.Model, seed: int = 0, rows: int = 30, shift: float = 0.0) -> DataGate:
    """A client with examples of a linear task."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, 3)).astype(np.float32)
    score = x @ np.array([1.0, -1.0, 0.5], np.float32) + shift
    y = score.astype(np.float32) if model.outcome == "number" else (score > 0).astype(np.int32)
    own = Rows(jnp.asarray(x), jnp.asarray(y), jnp.arange(rows) < rows - 2)
    meter = new_meter(jax.random.key(0), ())
    numbers = (jnp.float32(rows), jnp.int32(1), jnp.int32(0))
    return DataGate(own, meter, ExactSum(), ExactMin(), *numbers, 1, model)


def loss(gate: DataGate, params: object) -> float:
    rows = gate.examples()
    return float(jax.vmap(lambda x, y: gate.model.loss(params, x, y))(rows.x, rows.y).mean())


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_fine_tuning_learns_and_strength_holds_it_back(objective: str) -> None:
    gate = gate_for(models.softmax(3, 2))
    common = jax.tree.map(lambda leaf: leaf + 0.1, gate.model.init(jax.random.key(0)))
    weak = FineTuneAfterwards(1e-4, 0.3, 100, objective)(common, common, gate)
    assert loss(gate, weak) < 0.6 * loss(gate, common)
    if objective != "vanilla":
        strong = FineTuneAfterwards(3.0, 0.1, 100, objective)(common, common, gate)
        assert loss(gate, weak) < loss(gate, strong) < loss(gate, common)


def test_probabilities_are_needed_for_divergences() -> None:
    gate = gate_for(models.linear(3))
    common = gate.model.init(jax.random.key(0))
    with pytest.raises(ValueError, match="needs a classification model"):
        FineTuneAfterwards(objective="symmetric_kl")(common, common, gate)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["aggregate", "cautious"])
def test_a_good_shared_model_is_used_and_a_bad_one_is_not(rule: str) -> None:
    """Few rows, many of them needed: a shared model that is right helps; one that is wrong is left alone."""
    gate, test = gate_for(models.linear(3), rows=14), gate_for(models.linear(3), seed=9, rows=200)
    right = ({"weights": jnp.array([[1.0], [-1.0], [0.5]]), "bias": jnp.zeros(1)},)
    wrong = trees.scale(-1, right)
    noisy = replace(gate, _rows=replace(gate._rows, y=gate._rows.y + jnp.array([1, -1] * 7, jnp.float32)))
    select, alone = SelfSelect(rule=rule), SelfSelect(rule="alone")
    start = gate.model.init(jax.random.key(0))
    losses = {
        name: loss(test, step(common, start, noisy))
        for name, step, common in (("good", select, right), ("bad", select, wrong), ("alone", alone, right))
    }
    assert losses["good"] < losses["alone"] if rule == "aggregate" else losses["good"] <= losses["alone"]
    assert losses["bad"] < 1.3 * losses["alone"] + 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_one_program_shows_what_is_chosen_and_what_a_client_has_alone(rule: str) -> None:
    gate = gate_for(models.linear(3), rows=14)
    common = ({"weights": jnp.array([[1.0], [-1.0], [0.5]]), "bias": jnp.zeros(1)},)
    both = BesideAlone(SelfSelect(rule=rule))(common, common, gate)
    for found, expected in zip(both, (rule, "alone"), strict=True):
        one = SelfSelect(rule=expected)(common, common, gate)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, one)


@pytest.mark.slow
def test_deep_models_select_by_folds() -> None:
    gate = gate_for(models.mlp(3, 2, (4,)), rows=40)
    common = gate.model.init(jax.random.key(1))
    chosen = SelfSelect(strengths=(0.01, 1.0), steps=60, step_size=0.5)(common, common, gate)
    assert loss(gate, chosen) < loss(gate, common)


@pytest.mark.slow
def test_linear_models_with_many_weights_select_by_folds() -> None:
    """A shared model that is right helps a client with few rows; one that is wrong hardly harms it."""
    generator, model = np.random.default_rng(2), models.softmax(42, 3)
    truth = generator.normal(size=(42, 3))

    def rows(count: int) -> Rows:
        x = generator.uniform(-1, 1, size=(count, 42))
        y = np.argmax(2 * x @ truth + generator.gumbel(size=(count, 3)), axis=1)
        return Rows(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.int32), jnp.ones(count, bool))

    own, unseen = rows(40), rows(400)
    shared = ({"weights": jnp.asarray(2 * truth, jnp.float32), "bias": jnp.zeros(3)},)
    step = SelfSelect(strengths=(0.01, 0.1, 1.0))
    assert trees.size(shared) > 128

    def missed(params: object) -> float:
        return float(jax.vmap(lambda x, y: model.loss(params, x, y))(unseen.x, unseen.y).mean())

    alone = missed(replace(step, rule="alone").choose(model, own, shared))
    assert missed(step.choose(model, own, shared)) < 0.6 * alone
    assert missed(step.choose(model, own, trees.scale(-1, shared))) < 1.1 * alone


def test_raw_examples_are_refused_at_example_level() -> None:
    gate = gate_for(models.linear(3))
    private = replace(gate, _mechanism=GaussianSum(jnp.float32(1), jnp.float32(1)), _chooser=NoisyMin(1.0, 1.0))
    params = gate.model.init(jax.random.key(0))
    for call in (private.examples, lambda: private.solve(params, jnp.float32(1))):
        with pytest.raises(PrivacyError, match="show raw data"):
            call()
    assert float(private.noise) == pytest.approx(1 / 30)
    assert float(gate.noise) == 0


def small(**changes: object) -> Experiment:
    base = Experiment(seed=0, privacy=client_level(epsilon=8, delta=1e-3), phases=(Phase("mean_regularized", 3),))
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("method", AFTERWARDS)
def test_a_run_ends_with_it(method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = loop.run(small(), tmp_path)
    after = loop.run(small(afterwards=Afterwards(method)), tmp_path)
    assert after.statement()["epsilon"] == plain.statement()["epsilon"], "what a client does alone is free"
    assert after.metrics()[-1]["error"] != after.metrics()[-2]["error"]
    assert (after.public / "shared.npz").read_bytes() == (plain.public / "shared.npz").read_bytes()
    assert not (after.public / "models.npz").exists()
    if method == "self_select":
        found = json.loads((after.private / "self_selection.json").read_text())
        assert found["clients"] == 60
        assert found["gained"] + found["lost"] <= 60
        assert found["error"] == pytest.approx(after.metrics()[-1]["error"], rel=1e-6)
        show_results("train", [result_row(after)], as_json=False)
        assert f"{found['gained']:g} of 60 clients gained" in capsys.readouterr().out


def test_it_is_refused_where_models_are_published(tmp_path: Path) -> None:
    experiment = small(afterwards=Afterwards("fine_tune"), privacy=example_level(epsilon=1))
    with pytest.raises(ConfigError, match="refused at level='example'"):
        loop.run(experiment, tmp_path)
    with pytest.raises(ConfigError, match="not one of fine_tune, self_select"):
        loop.run(small(afterwards=Afterwards("magic")), tmp_path)
    with pytest.raises(ValueError, match="has no option 'speed'"):
        build("fine_tune", {"speed": 1})

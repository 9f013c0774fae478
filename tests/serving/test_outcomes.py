"""Predictions of times, counts, levels and labels: NumPy, ONNX and the models themselves agree."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk import models
from kinfolk.data.tables.schema import Schema
from kinfolk.outcomes import level_loss, remaining
from kinfolk.serving import predict_numpy, trained
from kinfolk.serving.to_onnx import as_onnx
from kinfolk.serving.trained import Fitted, dense_layers
from tests.data.tables.test_outcomes import SCHEMAS
from tests.serving.test_predict_numpy import PRIVACY


def made(schema: Schema) -> Fitted:
    """A model nobody trained, of one feature."""
    model = models.generalized_linear(1, schema.task, len(schema.classes))
    params = jax.tree.map(lambda leaf: leaf + 0.4, model.init(jax.random.key(0)))
    layers = dense_layers(model, params)
    return Fitted(schema, ("lyon",), tuple((w[None], b[None]) for w, b in layers), layers, PRIVACY)


@pytest.mark.parametrize("outcome", list(SCHEMAS))
def test_the_script_and_onnx_agree(outcome: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    fitted = made(SCHEMAS[outcome])
    assert as_onnx(fitted, None), "it has checked itself"
    folder = trained.save(fitted, tmp_path / "m")
    assert trained.load(folder).schema == fitted.schema
    (tmp_path / "t.csv").write_text("age\n20\n90\n")
    predict_numpy.main([str(tmp_path / "t.csv")], folder)
    names, first, *_ = capsys.readouterr().out.splitlines()
    assert names.split(",")[0] == "prediction"
    assert len(first.split(",")) == len(names.split(","))


def test_the_risk_at_a_horizon_is_that_of_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fitted = made(SCHEMAS["survival"])
    (weights, bias), edges = fitted.shared[0], list(SCHEMAS["survival"].edges)  # type: ignore[index]
    logits = np.array([[0.3]]) @ weights + bias
    _, risks = predict_numpy.outcome("survival", trained.target_facts(fitted.schema), logits)
    assert risks is not None
    np.testing.assert_allclose(risks[0], 1 - np.exp(np.asarray(remaining(jnp.asarray(logits[0])))), rtol=1e-5)
    at = [float(predict_numpy.risk_at(risks, edges, time)[0]) for time in (1.0, 100.0, 150.0, 200.0, 400.0)]
    assert at == sorted(at)
    assert at[1] == pytest.approx(risks[0, 0])
    assert 1 - at[2] == pytest.approx(np.sqrt((1 - risks[0, 0]) * (1 - risks[0, 1])))
    folder = trained.save(fitted, tmp_path / "m")
    (tmp_path / "t.csv").write_text("age\n20\n")
    predict_numpy.main([str(tmp_path / "t.csv"), "--horizon", "150"], folder)
    assert capsys.readouterr().out.splitlines()[0] == "prediction,risk_150"
    with pytest.raises(SystemExit, match="at most 400"):
        predict_numpy.main([str(tmp_path / "t.csv"), "--horizon", "500"], folder)


def test_levels_and_labels_have_the_chances_of_the_model() -> None:
    output = np.array([[-0.4, 0.9]])
    guess, chances = predict_numpy.outcome("ordinal", {"classes": ["a", "b", "c"]}, output)
    assert chances is not None
    wanted = [np.exp(-float(level_loss(jnp.asarray(output[0], jnp.float32), jnp.int32(k)))) for k in range(3)]
    np.testing.assert_allclose(chances[0], wanted, rtol=1e-5)
    assert guess.tolist() == ["b"]
    names, chances = predict_numpy.outcome("labels", {"classes": ["a", "b"]}, np.array([[3.0, 1.0], [-1.0, -2.0]]))
    assert names.tolist() == ["a; b", ""]
    counts, _ = predict_numpy.outcome("count", {"high": 16.0}, np.array([[0.0], [900.0]]))
    assert counts.tolist() == [4.0, 16.0]

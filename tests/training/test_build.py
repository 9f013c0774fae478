"""From words to models and algorithms, and what is said where there are none."""

from __future__ import annotations

import pytest

from kinfolk.outcomes import OUTCOMES
from kinfolk.toml import ConfigError
from kinfolk.training.build import build_algorithm, build_model
from kinfolk.training.experiment import ModelChoice, Phase


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

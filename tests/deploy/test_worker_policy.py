"""What a silo's policy decides, and what a study cannot change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinfolk.accounting import composition
from kinfolk.accounting.ledger import read_lines
from kinfolk.deploy.message_relay import REFUSAL
from kinfolk.deploy.silo_program import prepare_silo
from kinfolk.privacy.release import PrivacyError
from kinfolk.toml import ConfigError
from kinfolk.training.experiment import Afterwards, Phase
from tests.deploy.asking import STUDY, request
from tests.deploy.federations import TRAINING, federation_of, policy_of, rows_of, study_of, worker_of


def test_the_policy_and_not_the_study_sets_clip_noise_batches_and_rounds() -> None:
    policy = policy_of(STUDY, "c")
    own = replace(
        policy,
        privacy=replace(policy.privacy, clip=0.25, epsilon=1.0),
        training=replace(policy.training, batch_size=2),
        rounds=2,
    )
    rows = rows_of(federation_of(), 2)
    theirs, ours = prepare_silo(STUDY, policy, rows), prepare_silo(STUDY, own, rows)
    assert float(ours.terms.data.clip) == 0.25  # type: ignore[union-attr]
    assert ours.rounds == 2
    assert ours.steps == 4
    assert float(ours.terms.data.sampling.rate) < float(theirs.terms.data.sampling.rate)
    assert ours.account.budgets()["c"].epsilon == 1.0


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"methods": ("fedavg",)}, "not among the policy's methods"),
        ({"test_keys": True}, "test_keys"),
        ({"privacy": replace(STUDY.experiment.privacy, level="client")}, "level"),
        ({"privacy": replace(STUDY.experiment.privacy, epsilon=None, noise_multiplier=1.0)}, "budget"),
    ],
)
def test_a_study_beyond_the_policy_does_not_start(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(PrivacyError, match=text):
        prepare_silo(STUDY, policy_of(STUDY, "c", **changes), rows_of(federation_of(), 2))


def test_no_privacy_needs_test_keys() -> None:
    study = study_of("fedavg", "none", seed=None)
    with pytest.raises(PrivacyError, match="protects nobody"):
        prepare_silo(study, policy_of(study, "a"), rows_of(federation_of(), 0))


SCHEDULE: dict[str, Any] = {"seed": None, "epsilon": 2.0, "noise_multiplier": None, "noise_power": 0.5}


def test_the_noise_of_a_round_is_the_policys_whatever_rounds_are_asked_for(tmp_path: Path) -> None:
    """A schedule: each round has its own price, all together the budget; a server can skip rounds, not cheapen them."""
    study = study_of(**SCHEDULE)
    with worker_of(study, federation_of(), 2, tmp_path) as worker:
        account = worker.program.account
        planned = [next(x.cost for x in account.lines("", range(n, n + 1)) if x.uses) for n in range(3)]
        assert planned[0].noise_multiplier > planned[1].noise_multiplier > planned[2].noise_multiplier
        assert worker.answer(request(study, 2)) != REFUSAL
        assert worker.answer(request(study, 0)) == worker.answer(request(study, 1)) == REFUSAL
        (line,) = read_lines(worker.folder / "ledger.jsonl")
        assert line.cost == planned[2]
        steps, delta = worker.program.steps, account.deltas()[account.parties[0]]
    whole = composition.epsilon([(cost, steps) for cost in planned], delta)
    assert 1.95 < whole <= 2.0
    policy = replace(study.experiment.privacy, noise_multiplier=1.0)
    with pytest.raises(PrivacyError, match="budget as a whole"):
        worker_of(study, federation_of(), 2, tmp_path, privacy=policy)


def test_the_noise_that_is_drawn_is_the_noise_that_is_paid_for(tmp_path: Path) -> None:
    with worker_of(study_of(**SCHEDULE), federation_of(), 2, tmp_path) as worker:
        account = worker.program.account
        for number in range(3):
            this = range(number, number + 1)
            (paid,) = [line for line in account.lines("", this) if line.uses]
            drawn = account.scales(paid.kind, this, paid.uses)
            np.testing.assert_array_equal(drawn, np.full((1, paid.uses), paid.cost.noise_multiplier))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"noise_bands": 4}, "simulations so far"),
        ({"training": replace(TRAINING, weights="precision")}, "use 'uniform' or 'size'"),
        ({"training": replace(TRAINING, weights="size")}, "public sizes"),
        (
            {"training": replace(TRAINING, tail=1.0), "phases": (Phase("fedavg", 1), Phase("mean_regularized", 2))},
            "smaller tail",
        ),
        ({"afterwards": Afterwards()}, "free at level='client'"),
    ],
)
def test_what_a_federation_cannot_do_is_said_before_it_begins(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        study_of(**options)

"""A malicious server against an honest silo: nothing it can send makes the silo give more than its policy says."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from kinfolk.deploy.message_relay import REFUSAL
from kinfolk.deploy.study import Study
from kinfolk.deploy.worker import Worker
from kinfolk.training.experiment import Phase
from tests.deploy.asking import STUDY, charges, request
from tests.deploy.federations import log_of


def bad_trees() -> dict[str, Any]:
    first = STUDY.first()

    def spoilt(value: float) -> Any:
        leaves, structure = jax.tree.flatten(first)
        leaves = [np.asarray(leaf).copy() for leaf in leaves]
        leaves[0].flat[0] = value
        return jax.tree.unflatten(structure, leaves)

    return {
        "nan": spoilt(np.nan),
        "infinite": spoilt(np.inf),
        "huge": spoilt(1e30),
        "too long": (first, first),
        "too short": jax.tree.leaves(first)[:1],
        "empty": (),
    }


@pytest.mark.parametrize("name", bad_trees())
@pytest.mark.fast
def test_bad_shared_states_are_refused(silo: Worker, name: str) -> None:
    assert silo.answer(request(tree=bad_trees()[name])) == REFUSAL
    assert charges(silo) == 0
    assert "malformed" in log_of(silo)


BAD_HEADERS: dict[str, dict[str, Any]] = {
    "beyond the rounds": {"round": 3},
    "negative": {"round": -1},
    "text": {"round": "0"},
    "truth": {"round": True},
    "fraction": {"round": 0.5},
    "nothing": {"round": None},
    "other study": {"study": "0" * 64},
    "other kind": {"kind": "evaluate"},
    "metrics please": {"metrics": True},
    "more noise off": {"noise_multiplier": 0.0},
    "clip": {"clip": 1e9},
    "seed": {"seed": 0},
    "rows": {"rows": [0]},
    "weight": {"weight": 100.0},
    "climbing out": {"run": "../../c"},
    "hidden": {"run": ".hidden"},
    "list": {"run": ["a"]},
    "long": {"run": "a" * 101},
    "version": {"version": 2},
    "unhashable": {"kind": {}},
}


@pytest.mark.parametrize("name", BAD_HEADERS)
@pytest.mark.fast
def test_bad_headers_are_refused(silo: Worker, name: str) -> None:
    assert silo.answer(request(**BAD_HEADERS[name])) == REFUSAL
    assert charges(silo) == 0
    assert list(silo.folder.glob("runs/*")) == []
    assert "refused" in log_of(silo)


@pytest.mark.parametrize(
    "raw", [b"", b"\n", b"{}", b"[]\n", b"{" * 5000 + b"\n", b'{"a":' * 300 + b"\n", b"\xff\n", b"x" * 10**6]
)
def test_noise_on_the_line_is_refused(silo: Worker, raw: bytes) -> None:
    assert silo.answer(raw) == REFUSAL
    assert charges(silo) == 0


def test_every_refusal_looks_the_same_and_the_reason_stays_at_home(silo: Worker) -> None:
    assert {silo.answer(request(**bad)) for bad in BAD_HEADERS.values()} == {REFUSAL}
    assert len(json.loads(REFUSAL)) == 1
    assert len(set(log_of(silo).splitlines())) > 3


def test_other_methods_and_numbers_are_another_study(silo: Worker) -> None:
    """Whatever a server would like to change changes the digest."""
    experiment = STUDY.experiment
    others = [
        replace(experiment, phases=(Phase("fedavg", 3),)),
        replace(experiment, phases=(Phase("mean_regularized", 3, {"step_size": 1e5}),)),
        replace(experiment, phases=(Phase("mean_regularized", 4),)),
        replace(experiment, training=replace(experiment.training, epochs=50)),
        replace(experiment, privacy=replace(experiment.privacy, clip=100.0)),
    ]
    for other in others:
        study = Study(STUDY.roster, other)
        assert study.digest != STUDY.digest
        assert silo.answer(request(study)) == REFUSAL
    assert charges(silo) == 0

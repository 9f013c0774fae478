"""Every algorithm at example level, with people as units: flow, counts and replay, on the engine itself."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from kinfolk.engines.release_counts import count_uses
from kinfolk.training.prepare import check_job
from tests.conformance.worlds import CLOSELY, ROUNDS, replay_problems, with_changed_person, world

NAMES = [name for name, level in CLOSELY if level == "example"]
LONG = (pytest.mark.slow, pytest.mark.long)
flows = pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in NAMES])
replays = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "mean_regularized" else LONG) for name in NAMES]
)


@flows
def test_the_flow_check_passes_and_bounds_what_is_counted(name: str) -> None:
    w = world(name, "example", people=True)
    check = check_job(w.plan, w.algorithm, w.terms, jax.tree.map(lambda leaf: leaf[None], w.clients)).require()
    counted = count_uses(w.plan, w.algorithm, w.terms, w.clients, range(ROUNDS))
    for kind, uses in counted.items():
        assert uses.max() <= {**check.client_releases, **check.server_releases}.get(kind, 0)


@replays
def test_replay_with_another_person_changes_nothing_else(name: str) -> None:
    """Neither the values nor how many rows somebody has show anywhere but through a release."""
    w = world(name, "example", people=True)
    assert replay_problems(w, with_changed_person(w.clients, 1, 0, 2)) == []


@pytest.mark.slow
def test_replay_of_a_release_with_another_person_changes_nothing_else() -> None:
    w = world("mean_regularized", "example", people=True)
    assert replay_problems(w, with_changed_person(w.clients, 1, 0, 2), exact=True) == []


def test_clients_are_in_the_order_of_their_people() -> None:
    sizes = np.asarray(world("mean_regularized", "example", people=True).clients.sizes)
    assert (np.diff(sizes) >= 0).all()

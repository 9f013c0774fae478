"""What is compiled is what was checked: a method that is traced to something else later is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from kinfolk import trees
from kinfolk.algorithms.mean_regularized import MeanRegularized
from kinfolk.engines import resident
from kinfolk.privacy.release import PrivacyError
from kinfolk.training.prepare import check_job
from tests.conformance.worlds import World, world

LEAKS: list[str] = []
"""What the method below does differently from now on: Python's memory, which no trace shows."""


@trees.register
@dataclass(frozen=True)
class TwoFaced(MeanRegularized):
    """Is checked as mean regularisation, and compiled as something else."""

    def client(self, shared: Any, personal: Any, gate: Any) -> Any:
        message, personal, gate = super().client(shared, personal, gate)
        return (trees.scale(gate._rows.y[0], message) if "client" in LEAKS else message), personal, gate

    def server(self, shared: Any, inbox: Any) -> Any:
        after, inbox = super().server(shared, inbox)
        return (trees.scale(2.0, after) if "server" in LEAKS else after), inbox


@pytest.fixture
def forgetful() -> Iterator[None]:
    yield
    LEAKS.clear()


def checked(level: str) -> World:
    """A world whose plan compiles only what was checked."""
    own = world("mean_regularized", level)
    algorithm = jax.tree.map(jnp.float32, TwoFaced())
    found = check_job(own.plan, algorithm, own.terms, jax.tree.map(lambda leaf: leaf[None], own.clients)).require()
    return replace(own, algorithm=algorithm, plan=replace(own.plan, programs=found.programs))


def trace(w: World) -> Any:
    """The engine's own trace of a round."""

    def one_round(key: Any) -> Any:
        state = resident.start(w.plan, w.algorithm, key)
        return resident.one_round(w.plan, w.algorithm, w.terms, w.clients, state, jnp.int32(0))

    return jax.eval_shape(one_round, jax.random.key(0))


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("level", [pytest.param("example", marks=pytest.mark.slow), "client"])
def test_a_method_that_changes_after_the_check_is_refused(level: str) -> None:
    w = checked(level)
    trace(w)
    for part in ("client", "server"):
        LEAKS[:] = [part]
        with pytest.raises(PrivacyError, match="not the one that the flow check saw"):
            trace(w)


@pytest.mark.slow
def test_the_checked_program_computes_the_same() -> None:
    w = checked("example")
    plain = replace(w, plan=replace(w.plan, programs=None))
    for a, b in zip(jax.tree.leaves(w.run().personal), jax.tree.leaves(plain.run().personal), strict=True):
        assert jnp.array_equal(a, b)

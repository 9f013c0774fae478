"""Planted leaks: each must be found, and for the right reason. The sound versions pass in the conformance suite."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk import models, trees
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.local_steps import descend
from kinfolk.algorithms.mean_regularized import MeanRegularized
from kinfolk.privacy.release import PrivacyError
from kinfolk.verify.flow import check
from kinfolk.verify.labels import CLEAN, MARKED, ROWS
from tests.verify.planted import FEATURES, checked, register

FROZEN = np.arange(4.0, dtype=np.float32)


@register
class RawMessage(FedAvg):
    """Sends a mean of raw features instead of an update."""

    def client(self, shared, personal, gate):
        message, personal, gate = FedAvg.client(self, shared, personal, gate)
        raw = gate._rows.x.mean()
        return jax.tree.map(lambda leaf: leaf + raw, message), personal, gate


@register
class RawSharedState(FedAvg):
    """Averages raw messages at the server."""

    def server(self, shared, inbox):
        return jax.tree.map(lambda s, m: s + m.mean(axis=0), shared, inbox._messages), inbox


@register
class RawPersonalState(MeanRegularized):
    """Takes one more, exact, gradient step at home."""

    def client(self, shared, personal, gate):
        message, personal, gate = MeanRegularized.client(self, shared, personal, gate)
        rows = gate._rows

        def loss(params):
            return jax.vmap(lambda x, y: gate._model.loss(params, x, y))(rows.x, rows.y).sum()

        return message, trees.subtract(personal, jax.grad(loss)(personal)), gate


@register
class FrozenData(FedAvg):
    """Closes over an array that was data when the program was traced."""

    def client(self, shared, personal, gate):
        message, personal, gate = FedAvg.client(self, shared, personal, gate)
        return jax.tree.map(lambda leaf: leaf + FROZEN.mean() * jnp.asarray(FROZEN)[0], message), personal, gate


@register
class ReleaseInWhile(FedAvg):
    """Descends until the gradient is small: nobody can say how often."""

    def client(self, shared, personal, gate):
        def going_on(carry):
            return trees.squared_norm(carry[0]) < 1

        def step(carry):
            params, gate = carry
            gradient, gate = gate.gradient(params)
            return trees.subtract(params, gradient), gate

        params, gate = jax.lax.while_loop(going_on, step, (shared, gate))
        return trees.subtract(params, shared), (), gate


@register
class MixedRows(FedAvg):
    """Centres the messages before they are clipped: one client then moves every row."""

    def server(self, shared, inbox):
        centred = jax.tree.map(lambda leaf: leaf - leaf.mean(axis=0, keepdims=True), inbox._messages)
        move, inbox = replace(inbox, _messages=centred).mean()
        return trees.add(shared, move), inbox


@register
class MixedExamples(FedAvg):
    """Standardises a client's features with their own raw mean before the gate."""

    def client(self, shared, personal, gate):
        rows = gate._rows
        x = rows.x - jnp.broadcast_to(rows.x.mean(axis=0, keepdims=True), rows.x.shape)
        return FedAvg.client(self, shared, personal, replace(gate, _rows=replace(rows, x=x)))


@register
class Derivative(FedAvg):
    """Differentiates through the gate."""

    def client(self, shared, personal, gate):
        def after_a_step(params):
            gradient, _ = gate.gradient(params)
            return trees.squared_norm(gradient)

        return jax.grad(after_a_step)(shared), (), gate


@register
class DataDependentActive(FedAvg):
    """Releases only when the raw data say so."""

    def client(self, shared, personal, gate):
        gradient, gate = gate.gradient(shared, active=gate._rows.y.sum() > 0)
        return gradient, (), gate


@register
class DataDependentBranch(FedAvg):
    """Chooses between two releases by looking at the data."""

    def client(self, shared, personal, gate):
        def branch(params):
            return lambda: gate.gradient(params)

        gradient, gate = jax.lax.cond(gate._rows.y[0] > 0, branch(shared), branch(trees.scale(2.0, shared)))
        return gradient, (), gate


@register
class OwnNoise(FedAvg):
    """Adds noise of its own to raw data: noise is not a release."""

    def client(self, shared, personal, gate):
        noise = jax.random.normal(gate._meter.noise, ())
        raw = gate._rows.x.mean()
        return jax.tree.map(lambda leaf: leaf + raw + noise, shared), (), gate


@register
class LeaksTheKey(FedAvg):
    """Sends the noise along with the noisy gradient."""

    def client(self, shared, personal, gate):
        message, personal, gate = FedAvg.client(self, shared, personal, gate)
        noise = jax.random.normal(gate._meter.noise, ())
        return jax.tree.map(lambda leaf: leaf + noise, message), personal, gate


@register
class Printing(FedAvg):
    """Prints raw data while debugging."""

    def client(self, shared, personal, gate):
        jax.debug.print("{x}", x=gate._rows.x[0, 0])
        return FedAvg.client(self, shared, personal, gate)


@register
class BatchSize(FedAvg):
    """Divides by the realised number of rows, as told by the raw mask."""

    def client(self, shared, personal, gate):
        message, personal, gate = FedAvg.client(self, shared, personal, gate)
        return trees.scale(1 / gate._rows.mask.sum().astype(jnp.float32), message), personal, gate


LEAKS = [
    (RawMessage, "example", "the message depends on data"),
    (RawSharedState, "client", "the shared state depends on data"),
    (RawPersonalState, "example", "the personal state depends on data"),
    (FrozenData, "example", "the message depends on data"),
    (ReleaseInWhile, "example", "while loop"),
    (MixedRows, "client", "mixed before they reached a release"),
    (MixedExamples, "example", "mixed before they reached a release"),
    (Derivative, "example", "derivative"),
    (DataDependentActive, "example", "besides its rows"),
    (DataDependentBranch, "example", "data decides"),
    (OwnNoise, "example", "the message depends on data"),
    (LeaksTheKey, "example", "the message depends on data"),
    (Printing, "example", "shows a value"),
    (BatchSize, "example", "the message depends on data"),
]


@pytest.mark.parametrize(("algorithm", "level", "why"), LEAKS, ids=[leak[0].__name__ for leak in LEAKS])
def test_a_planted_leak_is_found(algorithm: Any, level: str, why: str) -> None:
    found = checked(algorithm(), level)
    assert any(why in text for text in found.violations), found.violations
    with pytest.raises(PrivacyError, match="leaks"):
        found.require()


def test_a_closed_over_data_array_is_found_inside_a_loss() -> None:
    """A model whose loss holds data as a constant cannot use a gate."""
    private_means = np.arange(5.0, dtype=np.float32)
    plain = models.linear(FEATURES)
    leaky = models.from_functions(
        plain.init, lambda p, x: plain.predict(p, x) + jnp.asarray(private_means).sum(), "number"
    )
    found = checked(FedAvg(), "example", leaky)
    assert any("besides its rows" in text or "constant" in text for text in found.violations), found.violations


def test_statistics_of_a_batch_inside_a_model_are_found() -> None:
    """BatchNorm that only shows when examples are vectorised: one row would move the sum by many clips."""
    plain = models.linear(FEATURES)

    @jax.custom_batching.custom_vmap
    def centred(x):
        return x

    @centred.def_vmap
    def rule(size, batched, x):
        return x - jnp.broadcast_to(x.mean(axis=0, keepdims=True), x.shape), True

    model = models.from_functions(plain.init, lambda p, x: plain.predict(p, centred(x)), "number")
    assert any("cannot see" in text for text in checked(FedAvg(), "example", model).violations)


def test_a_personal_model_may_use_raw_data_at_client_level() -> None:
    assert checked(RawPersonalState(), "client").violations == ()


def test_stack_is_refused_at_client_level() -> None:
    @register
    class Stacking(FedAvg):
        def server(self, shared, inbox):
            return jax.tree.map(lambda leaf: leaf.mean(axis=0), inbox.stack()), inbox

    assert any("stack()" in text for text in checked(Stacking(), "client").violations)
    assert checked(Stacking(), "example").violations == ()


def test_loops_multiply_and_branches_take_the_dearest() -> None:
    @register
    class Counting(FedAvg):
        def client(self, shared, personal, gate):
            def two(carry):
                params, gate = carry
                for _ in range(2):
                    params, gate = descend(params, gate, 0.1)
                return params, gate

            params, gate = jax.lax.cond(gate.round > 0, two, lambda carry: carry, (shared, gate))
            return trees.subtract(params, shared), (), gate

    found = checked(Counting(), "example")
    assert found.violations == ()
    assert found.client_releases == {"gradient": 4}


def test_marks_pass_through_indices_selects_and_loops() -> None:
    def outputs(data, public):
        picked = public[data.astype(jnp.int32)[0] % 2]
        selected = jnp.where(data[0] > 0, public[0], public[1])
        looped = jax.lax.fori_loop(0, 3, lambda i, c: c + data[0], public[0])
        decided = jax.lax.while_loop(lambda c: c < data[0], lambda c: c + 1, public[0])
        return picked, selected, looped, decided, public.sum(), data

    vector = jax.ShapeDtypeStruct((3,), jnp.float32)
    labels = check(outputs, (vector, vector), (ROWS, CLEAN)).labels
    assert labels == (MARKED, MARKED, MARKED, MARKED, CLEAN, ROWS)


def test_a_scan_carries_a_mark_from_one_turn_to_the_next() -> None:
    def shifted(data):
        def turn(carry, _):
            return (carry[1], carry[1]), None

        (first, _), _ = jax.lax.scan(turn, (jnp.float32(0), data.sum()), None, length=2)
        return first

    assert check(shifted, (jax.ShapeDtypeStruct((3,), jnp.float32),), (ROWS,)).labels == MARKED


def test_the_program_has_a_hash_that_follows_it() -> None:
    first, again = checked(FedAvg(), "example"), checked(FedAvg(), "example")
    assert first.program == again.program
    assert first.program != checked(MeanRegularized(), "example").program
    assert first.program != checked(FedAvg(), "client").program


def on_one_device(function: Any, *rows: Any) -> Any:
    mesh, part = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",)), jax.sharding.PartitionSpec("d")
    return jax.shard_map(function, mesh=mesh, in_specs=part, out_specs=part)(*rows)


def test_what_devices_compute_together_is_followed() -> None:
    def summed(x: Any, y: Any) -> Any:
        return on_one_device(lambda x, y: (x + jax.lax.psum(x, "d"), 2 * y), x, y)

    arguments = (jnp.ones(4), jnp.ones(4))
    report = check(summed, arguments, (MARKED, CLEAN))
    assert report.labels == (MARKED, CLEAN)
    assert report.violations == []
    untouched = check(lambda x: on_one_device(lambda own: own, x), arguments[:1], (ROWS,))
    assert untouched.places == MARKED  # several devices could repeat rows: they are no longer one unit each

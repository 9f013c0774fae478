"""Planted leaks by reusing or forging gates: noise used twice, mechanisms changed, releases of one's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk import trees
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.privacy import clipping
from kinfolk.privacy.mechanisms import ExactSum, Sampling
from kinfolk.privacy.release import PrivacyError, release
from tests.verify.planted import checked, register

FROZEN = np.arange(4.0, dtype=np.float32)


@register
class SameGateTwice(FedAvg):
    """Asks the same gate twice: both answers carry the same noise, and their difference none."""

    def client(self, shared, personal, gate):
        first, _ = gate.gradient(shared)
        second, gate = gate.gradient(trees.add(shared, shared))
        return trees.subtract(first, second), (), gate


@register
class StaleGate(FedAvg):
    """Hands back the gate from before the query, so that the next round uses the same noise."""

    def client(self, shared, personal, gate):
        gradient, _ = gate.gradient(shared)
        return gradient, (), gate


@register
class StaleGateInALoop(FedAvg):
    """Forgets to carry the gate through a loop: every step has the same noise."""

    def client(self, shared, personal, gate):
        def step(params, _):
            gradient, _ = gate.gradient(params)
            return trees.subtract(params, gradient), None

        params, _ = jax.lax.scan(step, shared, None, length=3)
        return trees.subtract(params, shared), (), gate


@register
class StaleCarry(FedAvg):
    """Carries the gate through a loop, but the old one."""

    def client(self, shared, personal, gate):
        def step(carry, _):
            params, gate = carry
            gradient, _ = gate.gradient(params)
            return (trees.subtract(params, gradient), gate), None

        (params, gate), _ = jax.lax.scan(step, (shared, gate), None, length=3)
        return trees.subtract(params, shared), (), gate


@register
class TurnedBackCounter(FedAvg):
    """Counts down again after a query."""

    def client(self, shared, personal, gate):
        message, personal, gate = FedAvg.client(self, shared, personal, gate)
        uses = {kind: count - 1 for kind, count in gate._meter.uses.items()}
        return message, personal, replace(gate, _meter=replace(gate._meter, uses=uses))


@register
class QuieterNoise(FedAvg):
    """Turns the noise down before a query."""

    def client(self, shared, personal, gate):
        mechanism: Any = gate._mechanism
        quiet = replace(mechanism, noise_multiplier=mechanism.noise_multiplier * 0.1)
        return FedAvg.client(self, shared, personal, replace(gate, _mechanism=quiet))


@register
class NoSampling(FedAvg):
    """Skips the coins that the account relies on."""

    def client(self, shared, personal, gate):
        all_rows = replace(gate._mechanism, sampled_here=False)
        return FedAvg.client(self, shared, personal, replace(gate, _mechanism=all_rows))


@register
class OwnKey(FedAvg):
    """Brings its own, known, noise key."""

    def client(self, shared, personal, gate):
        known = replace(gate._meter, noise=jax.random.key(0))
        return FedAvg.client(self, shared, personal, replace(gate, _meter=known))


@register
class ExactMechanism(FedAvg):
    """Swaps the mechanism at the gate for one without noise."""

    def client(self, shared, personal, gate):
        return FedAvg.client(self, shared, personal, replace(gate, _mechanism=ExactSum(Sampling(jnp.float32(1)))))


@register
class LastOne(FedAvg):
    """Reads a raw value through a reduction that keeps only one of its arguments."""

    def client(self, shared, personal, gate):
        raw = jax.lax.reduce(gate._rows.x, jnp.float32(0), lambda a, b: b, (0, 1))
        return jax.tree.map(lambda leaf: leaf + raw, shared), (), gate


@register
class OtherWhenVectorised(FedAvg):
    """Is harmless for one client, and something else when clients are vectorised."""

    def client(self, shared, personal, gate):
        @jax.custom_batching.custom_vmap
        def harmless(x, p):
            return p

        @harmless.def_vmap
        def rule(size, batched, x, p):
            return p + x.mean(), True

        return jax.tree.map(lambda leaf: harmless(gate._rows.x, leaf), shared), (), gate


@register
class Reference(FedAvg):
    """Passes raw data through a mutable array."""

    def client(self, shared, personal, gate):
        cell = jax.new_ref(jnp.float32(0))
        cell[...] = gate._rows.x.mean()
        return jax.tree.map(lambda leaf: leaf + cell[...], shared), (), gate


@register
class SwappedTerms(FedAvg):
    """Takes another of the mechanism's numbers for its noise."""

    def client(self, shared, personal, gate):
        mechanism: Any = gate._mechanism
        swapped = replace(mechanism, noise_multiplier=mechanism.overflow)
        return FedAvg.client(self, shared, personal, replace(gate, _mechanism=swapped))


@register
class SwappedKeys(FedAvg):
    """Draws noise from the key of the coins."""

    def client(self, shared, personal, gate):
        swapped = replace(gate._meter, noise=gate._meter.coins)
        return FedAvg.client(self, shared, personal, replace(gate, _meter=swapped))


def with_uses(gate, uses):
    return replace(gate, _meter=replace(gate._meter, uses={"gradient": uses}))


@register
class CounterCopiedByALoop(FedAvg):
    """Gets two counters out of one by sending it through a loop twice."""

    def client(self, shared, personal, gate):
        uses = gate._meter.uses["gradient"]
        (a, b), _ = jax.lax.scan(lambda c, _: ((c[1], c[0]), None), (uses, uses), None, length=2)
        first, _ = with_uses(gate, a).gradient(shared)
        second, gate = with_uses(gate, b).gradient(trees.add(shared, shared))
        return trees.subtract(first, second), (), gate


@register
class CounterCopiedByABranch(FedAvg):
    """Gets two counters out of one by sending it through a branch."""

    def client(self, shared, personal, gate):
        uses = gate._meter.uses["gradient"]
        a = jax.lax.cond(gate.round > 0, lambda u, w: u, lambda u, w: w, uses, uses)
        first, _ = with_uses(gate, a).gradient(shared)
        second, gate = gate.gradient(trees.add(shared, shared))
        return trees.subtract(first, second), (), gate


@register
class EverybodyPresent(FedAvg):
    """Lets clients contribute that were not sampled."""

    def server(self, shared, inbox):
        return FedAvg.server(self, shared, replace(inbox, _present=jnp.ones_like(inbox._present)))


@register
class OwnBody(FedAvg):
    """Makes a release of its own, with the gate's mechanism and no noise."""

    def client(self, shared, personal, gate):
        def body(secret, units, terms, public):
            return jax.tree.map(lambda leaf: leaf + units[0][0].mean(), public)

        rows = gate._rows
        out, meter = release("gradient", body, gate._meter, ((rows.x, rows.y), rows.mask), gate._mechanism, shared)
        return out, (), replace(gate, _meter=meter)


@register
class OwnSum(FedAvg):
    """Hands the mechanism a sum that does not clip."""

    def client(self, shared, personal, gate):
        what = clipping.gradients(gate._model)
        loose = replace(what, clipped=lambda params, units, weights, clip: what.exact(params, units, weights))
        rows = gate._rows
        out, meter = gate._mechanism("gradient", gate._meter, loose, shared, (rows.x, rows.y), rows.mask, True)
        return out, (), replace(gate, _meter=meter)


@register
class InitLeak(FedAvg):
    """Starts from weights that were fitted to data beforehand."""

    def init(self, params, clients):
        return jax.tree.map(lambda leaf: leaf + jnp.asarray(FROZEN).sum(), params)


LEAKS = [
    (LastOne, "example", "the message depends on data"),
    (OtherWhenVectorised, "example", "may do what the check cannot see"),
    (Reference, "example", "may do what the check cannot see"),
    (SwappedTerms, "example", "mechanism was changed"),
    (SwappedKeys, "example", "keys"),
    (CounterCopiedByALoop, "example", "share noise"),
    (CounterCopiedByABranch, "example", "share noise"),
    (EverybodyPresent, "client", "rows were changed"),
    (OwnBody, "example", "not the one that its gate makes"),
    (OwnSum, "example", "not the one that its gate makes"),
    (InitLeak, "example", "the initial state depends on data"),
    (SameGateTwice, "example", "share noise"),
    (StaleGate, "example", "not the latest"),
    (StaleGateInALoop, "example", "share noise"),
    (StaleCarry, "example", "share noise"),
    (TurnedBackCounter, "example", "not the latest"),
    (QuieterNoise, "example", "mechanism was changed"),
    (NoSampling, "example", "not the one that its gate makes"),
    (OwnKey, "example", "keys"),
    (ExactMechanism, "example", "the message depends on data"),
]


@pytest.mark.parametrize(("algorithm", "level", "why"), LEAKS, ids=[leak[0].__name__ for leak in LEAKS])
def test_a_planted_leak_is_found(algorithm: Any, level: str, why: str) -> None:
    found = checked(algorithm(), level)
    assert any(why in text for text in found.violations), found.violations
    with pytest.raises(PrivacyError, match="leaks"):
        found.require()


@register
class HiddenInTheMeter(FedAvg):
    """Puts a raw label where the meter remembers its clip, and sends it in the next round as if it were public."""

    def client(self, shared, personal, gate):
        message = jax.tree.map(lambda leaf: jnp.broadcast_to(gate._meter.memory, leaf.shape), shared)
        return message, (), replace(gate, _meter=replace(gate._meter, memory=gate._rows.y[0]))


@register
class HiddenInTheDraws(FedAvg):
    """Likewise, in the number of batches drawn."""

    def client(self, shared, personal, gate):
        _, gate = gate.gradient(shared)
        return shared, (), replace(gate, _meter=replace(gate._meter, draws=gate._rows.y[0].astype(jnp.int32)))


@register
class OtherKeysNextRound(FedAvg):
    """The next round's noise comes from the key of the coins."""

    def client(self, shared, personal, gate):
        gradient, gate = gate.gradient(shared)
        return gradient, (), replace(gate, _meter=replace(gate._meter, noise=gate._meter.coins))


@register
class HiddenAtTheServer(FedAvg):
    """Raw messages in the number of the server's draws."""

    def server(self, shared, inbox):
        move, inbox = inbox.mean()
        raw = jax.tree.leaves(inbox._messages)[0].sum().astype(jnp.int32)
        return trees.add(shared, move), replace(inbox, _meter=replace(inbox._meter, draws=raw))


@pytest.mark.parametrize(
    ("algorithm", "level", "message"),
    [
        (HiddenInTheMeter, "example", "put into the meter"),
        (HiddenInTheDraws, "example", "put into the meter"),
        (OtherKeysNextRound, "example", "keys or the noise of the next round"),
        (HiddenAtTheServer, "client", "put into the meter"),
    ],
)
def test_what_a_meter_hands_on_to_the_next_round_is_checked(algorithm: Any, level: str, message: str) -> None:
    found = checked(algorithm(), level)
    assert any(message in text for text in found.violations), found.violations

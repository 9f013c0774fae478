"""What secure sums give is what a trusted aggregator would, but for who adds the noise: the same integers, its law."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk.accounting import planning
from kinfolk.deploy.coordinator import run_server
from kinfolk.deploy.sums import Sums, sums_of
from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.release import Meter, PrivacyError
from kinfolk.rounds import Mail, RoundSpec
from kinfolk.secure.contribution import bounded
from kinfolk.secure.messages import Attempt
from kinfolk.secure.one_process import rehearse
from kinfolk.secure.silo import Silo
from kinfolk.training.experiment import Phase
from tests.deploy.secure_federations import NAMES, key_of, secure_study
from tests.secure.worlds import pins_of
from tests.verify.gallery.leaks import Changed, centred_before_the_clip, running_state

METHODS = {
    "means": ("update", secure_study()),
    "adaptive clip": ("update", secure_study(clip_quantile=0.5)),
    "mixtures": ("mixture", secure_study("relation_regularized")),
    "second moments": ("second_moment", secure_study("covariance_regularized")),
    "squares": (
        "squares",
        secure_study(phases=(Phase("covariance_regularized", 2, {"pattern": "group_sparse"}),)),
    ),
}


def server_of(sums: Sums, shared: Any, messages: Any, meter: Meter, present: bool) -> tuple[Any, Meter]:
    study, inbox = sums.study, sums.account.terms.at(0).inbox
    weights, places = jnp.asarray(study.weights()), jnp.arange(len(NAMES), dtype=jnp.int32)
    mail = Mail(messages, weights, places, jnp.full(len(NAMES), present), meter, inbox, inbox.sampling.rate * weights)
    spec = RoundSpec(study.model, study.level, 1, study.clients)
    return run_server(spec, study.algorithms[0], shared, mail, jnp.int32(0))


@pytest.mark.parametrize("what", METHODS)
def test_the_sum_of_parts_is_what_a_trusted_aggregator_sums(what: str) -> None:
    """Bit for bit: each silo clips and rounds its own part by the very rule of the aggregator."""
    kind, study = METHODS[what]
    sums, generator = sums_of(study), np.random.default_rng(3)
    assert sums.kind(0) == kind
    messages = jax.tree.map(
        lambda leaf: jnp.asarray(generator.normal(size=(len(NAMES), *leaf.shape)), leaf.dtype), study.message_shapes[0]
    )
    shared = study.first()
    parts = [
        sums.contribution(0, shared, jax.tree.map(lambda leaf, k=k: leaf[k], messages), k, 1.0)
        for k in range(len(NAMES))
    ]
    assert all((bounded(part) == part).all() and part.any() for part in parts), "already within the clip"
    total, nothing = np.sum(parts, axis=0), np.zeros(sums.length(0), np.int64)
    memory = jnp.float32(1)
    trusted, their_meter = server_of(sums, shared, messages, sums.meter(0, nothing, memory), True)
    empty = jax.tree.map(jnp.zeros_like, messages)
    secure, our_meter = server_of(sums, shared, empty, sums.meter(0, total, memory), False)
    for ours, theirs in zip(jax.tree.leaves(secure), jax.tree.leaves(trusted), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert float(our_meter.memory) == float(their_meter.memory)
    assert (float(our_meter.memory) != 1) == (what == "adaptive clip"), "the count rides along"


@pytest.mark.parametrize("leak", [running_state, centred_before_the_clip])
def test_a_method_that_lets_messages_past_the_release_gets_no_sums(leak: Any) -> None:
    """Planted bugs of the gallery, in the program that secure sums are made with: no silo begins with it."""
    study = secure_study()
    study.__dict__["algorithms"] = tuple(Changed(inner, new_server=leak) for inner in study.algorithms)
    with pytest.raises(PrivacyError, match="the flow check found leaks"):
        sums_of(study)


def test_noise_of_a_sum_is_what_the_plan_states() -> None:
    """Within 2 %, of shares as silos draw them; the study's noise is the plan's, and simulation's is the same."""
    study = secure_study(noise_multiplier=None, epsilon=4.0, rounds=2)
    sums = sums_of(study)
    plan = planning.plan("client", units=4, uses=2, epsilon=4.0, delta=1e-3, survivors=3, colluding=1)
    terms = sums.agreement(0)
    assert terms.deviation / GRID_STEPS == pytest.approx(plan.noise_multiplier, rel=1e-4)
    inbox, stated = sums.account.terms.inbox, plan.noise_multiplier_of_the_sum
    assert stated == pytest.approx(float(inbox.noise_multiplier) * math.sqrt(inbox.excess), rel=1e-4)
    wide = replace(terms, length=20_000)
    silos = [Silo(wide, name, key_of(name), pins_of(wide), lambda _: None) for name in NAMES]
    total = rehearse(silos, Attempt("run", 0), {name: np.zeros(20_000) for name in NAMES}).total
    found = total.astype(np.uint32).view(np.int32).std() / GRID_STEPS
    assert found == pytest.approx(stated, rel=0.02)
    assert found > 1.05 * plan.noise_multiplier

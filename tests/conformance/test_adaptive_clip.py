"""Adaptive clipping through the engine: what a mechanism remembers comes from releases only."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kinfolk.accounting.calibrate import Population, terms_for
from kinfolk.engines.release_counts import count_uses
from kinfolk.privacy.levels import Level, client_level
from kinfolk.verify.replay import replay
from tests.conformance.worlds import tiny_federation, with_changed_client, world


@pytest.mark.slow
def test_replay_with_adaptive_clipping() -> None:
    """What a mechanism remembers comes from releases only."""
    w = world("mean_regularized", "client")
    level = replace(client_level(delta=1e-3, noise_multiplier=1.5), clip_quantile=0.5)
    data = tiny_federation()
    once = {kind: np.full((3, 1), int(kind == "update")) for kind in Level.CLIENT.inbox_kinds}
    terms = terms_for(level, Population(data.ids, data.train.sizes, 4), once)
    terms = jax.tree.map(jnp.asarray, terms)
    counted = count_uses(w.plan, w.algorithm, terms, w.clients, range(3))
    assert counted["update"].sum() == 3
    problems = replay(
        w.plan,
        w.algorithm,
        terms,
        w.clients,
        with_changed_client(w.clients, 1, 0),
        target=w.plan.widths[0],
        rounds=3,
        sizes={"update": 5},
        uses={kind: int(part.sum()) for kind, part in once.items()},
        key=jax.random.key(5),
    )
    assert problems == []

"""What stands at the server's inbox: calibrated to the releases that its program makes, counted without messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk.accounting.calibrate import terms_for
from kinfolk.deploy.silo_program import message_shape
from kinfolk.deploy.study import Study
from kinfolk.privacy.levels import Level, PrivacyLevel, Terms
from kinfolk.privacy.mechanisms import Mechanism
from kinfolk.privacy.release import Tape, new_meter
from kinfolk.rounds import Mail, RoundSpec, server_round
from kinfolk.training.build import as_array
from kinfolk.types import Algorithm, Tree


def server_terms(study: Study) -> Terms:
    """The mechanism at the inbox, calibrated to the uses counted on the program; open data gates beside it."""
    level, clients = study.experiment.privacy, study.clients
    sizes = np.ones(clients, int)
    if level.level.server_pays:
        draft = replace(level, epsilon=None, noise_multiplier=1.0, allow_large_delta=True)
        nothing = {kind: np.zeros(1, int) for kind in Level.CLIENT.inbox_kinds}
        counts = count_server_uses(study, _one(terms_for(draft, study.roster.clients, sizes, None, nothing)))
        uses = {kind: counts[kind][:, None] for kind in counts}
        return _one(terms_for(level, study.roster.clients, sizes, None, uses))
    return _one(terms_for(PrivacyLevel(Level.NONE, cohort=level.cohort), study.roster.clients, sizes, None, {}))


def _one(terms: Terms) -> Terms:
    """Everybody's place is computed, so that no cohort can overflow; what was charged for it stays charged."""
    data, choice = jax.tree.map(lambda leaf: jnp.asarray(leaf[0], jnp.float32), terms.own)
    inbox = replace(terms.inbox, sampling=replace(terms.inbox.sampling, capacity=None))
    return Terms(data, choice, *as_array((inbox, terms.noise_factors, terms.clip_factors)))


def count_server_uses(study: Study, terms: Terms) -> dict[str, np.ndarray]:
    """Releases of every kind in every round at the inbox: read off the program, without any messages."""
    kinds, clients = study.level.inbox_kinds, study.clients

    @partial(jax.jit, static_argnums=0)
    def count(phase: int, algorithm: Algorithm, inbox: Mechanism, number: Array) -> dict[str, Array]:
        zeros: Callable[[Tree], Tree] = partial(jax.tree.map, lambda leaf: jnp.zeros(leaf.shape, leaf.dtype))
        messages = jax.tree.map(lambda leaf: jnp.zeros((clients, *leaf.shape), leaf.dtype), message_shape(study, phase))
        meter = replace(new_meter(jax.random.key(0), kinds), tape=Tape({}, "count"))
        places = jnp.arange(clients, dtype=jnp.int32)
        everybody = jnp.ones(clients, jnp.float32)
        shared = zeros(study.shapes[phase])
        mail = Mail(messages, everybody, places, everybody > 0, meter, inbox, everybody)
        spec = RoundSpec(study.model, study.level, 1, clients)
        return server_round(spec, algorithm, shared, mail, number)[1].uses

    phases = [study.phase(number) for number in range(study.experiment.rounds)] if kinds else []
    found = [count(p, study.algorithms[p], terms.inbox, jnp.int32(number)) for number, p in enumerate(phases)]
    return {kind: np.array([int(counts[kind]) for counts in found]) for kind in kinds}

"""The server's account: what stands at its inbox, calibrated to the releases that its program makes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk.accounting.account import Account
from kinfolk.accounting.calibrate import Population, Uses, calibrated
from kinfolk.algorithms.schedules import noise_factors
from kinfolk.deploy.study import Study
from kinfolk.engines.release_counts import by_round
from kinfolk.privacy.levels import Level, PrivacyLevel, Terms
from kinfolk.privacy.mechanisms import Mechanism
from kinfolk.privacy.release import Tape, new_meter
from kinfolk.rounds import Mail, RoundSpec, server_round
from kinfolk.training.build import as_array
from kinfolk.types import Algorithm, Tree


def server_account(study: Study, released: bool) -> Account:
    """The federation's account with the mechanism at the inbox; at other levels the server pays for nothing."""
    asked, names = study.experiment.privacy, study.roster.clients
    privacy = asked if asked.level.server_pays else PrivacyLevel(Level.NONE, cohort=asked.cohort)
    planned = noise_factors(study.algorithms, study.experiment.spans)
    who = Population(names, np.ones(len(names), int), noise_factors=planned)
    terms, uses = calibrated(privacy, who, lambda draft: count_server_uses(study, _one(draft)))
    pays = privacy.level.server_pays
    parties, units = (privacy.level.parties(names), tuple(privacy.level.units(who.sizes))) if pays else ((), ())
    return Account(asked.settled(len(names)), study.roster.name, parties, units, _one(terms), uses, released)


def _one(terms: Terms) -> Terms:
    """Everybody's place is computed, so that no cohort can overflow; what was charged for it stays charged."""
    data, choice = jax.tree.map(lambda leaf: jnp.asarray(leaf[0], jnp.float32), terms.own)
    inbox = replace(terms.inbox, sampling=replace(terms.inbox.sampling, capacity=None))
    return Terms(data, choice, *as_array((inbox, terms.noise_factors, terms.clip_factors)))


def count_server_uses(study: Study, terms: Terms) -> Uses:
    """Releases of every kind in every round at the inbox: read off the program, without any messages."""
    kinds, clients = study.level.inbox_kinds, study.clients
    spec = RoundSpec(study.model, study.level, 1, clients)

    def zeros(shapes: Tree) -> Tree:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    @partial(jax.jit, static_argnums=0)
    def count(phase: int, algorithm: Algorithm, inbox: Mechanism, number: Array) -> dict[str, Array]:
        messages = jax.tree.map(lambda leaf: jnp.zeros((clients, *leaf.shape), leaf.dtype), study.message_shapes[phase])
        meter = replace(new_meter(jax.random.key(0), kinds), tape=Tape({}, "count"))
        places, everybody = jnp.arange(clients, dtype=jnp.int32), jnp.ones(clients, jnp.float32)
        mail = Mail(messages, everybody, places, everybody > 0, meter, inbox, everybody)
        return server_round(spec, algorithm, zeros(study.shapes[phase]), mail, number)[1].uses

    def counters(number: Array) -> dict[str, Array]:
        phase = study.phase(int(number))
        return count(phase, study.algorithms[phase], terms.inbox, number)

    return by_round(counters, range(study.experiment.rounds), kinds)

"""The flow check over the whole registry: what `kinfolk check` runs and the conformance tests repeat."""

from __future__ import annotations

from typing import TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk import models
from kinfolk.algorithms import REGISTRY
from kinfolk.privacy.choice import ExactMin, NoisyMin
from kinfolk.privacy.levels import Level, Terms
from kinfolk.privacy.mechanisms import ExactSum, GaussianSum, Sampling
from kinfolk.privacy.noise_tape import tape_shapes
from kinfolk.rounds import RoundSpec
from kinfolk.types import Algorithm, Model, Rows
from kinfolk.verify.round_check import RoundCheck, check_round


def small_terms(level: Level) -> Terms:
    """Mechanisms of one client, for tracing.

    `level`: a privacy level's name.
    """
    half, all_of_them = Sampling(np.float32(0.5)), Sampling(np.float32(1))
    private = GaussianSum(np.float32(1), np.float32(1), half, np.float32(0))
    if level.clients_pay:
        chooser = NoisyMin(np.float32(1), np.float32(10))
        return Terms(private, chooser, ExactSum(all_of_them, sampled_here=False))
    exact = ExactMin(np.float32(1))
    if level.server_pays:
        noisy = GaussianSum(np.float32(1), np.float32(1), half, np.float32(0), sampled_here=False)
        return Terms(ExactSum(half), exact, noisy)
    return Terms(ExactSum(half), exact, ExactSum(all_of_them, sampled_here=False))


def small_rows(features: int, length: int = 5) -> Rows:
    """Shapes of one client's examples.

    `features`: how many. `length`: how many rows.
    """
    shape = jax.ShapeDtypeStruct
    return Rows(shape((length, features), jnp.float32), shape((length,), jnp.float32), shape((length,), bool))


def check_small(
    algorithm: Algorithm, level: Level, model: Model, features: int, steps: int = 2, exact: bool = False
) -> RoundCheck:
    """The flow check of an algorithm on three small clients.

    `algorithm`: the method. `level`: the privacy level. `model`: the model. `features`: how many numbers an example
    has. `steps`: local steps in a round. `exact`: with exact noise on a tape, as in a release.
    """
    program = RoundSpec(model, level, steps, clients=3), algorithm, small_terms(level), small_rows(features)
    found = check_round(*program)
    if not (exact and level.private):
        return found
    sizes, uses = (dict.fromkeys(level.kinds, 1) | known for known in (found.sizes, found.releases))
    tapes = [tape_shapes(kinds, sizes, uses) for kinds in (level.data_kinds, level.inbox_kinds)]
    return check_round(*program, tapes=(tapes[0], tapes[1]))


class RegistryRow(TypedDict):
    """What the flow check found about one algorithm at one level."""

    method: str
    """The algorithm's name."""
    level: str
    """The privacy level's name."""
    releases: dict[str, int]
    """Most releases of each kind in a round."""
    violations: list[str]
    """What is wrong, in words."""
    program: str
    """Hash of the traced functions of a round."""


def check_registry(features: int = 3, steps: int = 4) -> list[RegistryRow]:
    """One row per algorithm and level, with what it releases and what is wrong.

    `features`: of the linear model that is traced. `steps`: local steps in a round.
    """
    rows: list[RegistryRow] = []
    for name, entry in REGISTRY.items():
        model = models.generalized_linear(features, entry.outcome)
        for level in entry.levels:
            found = check_small(entry.build(), Level(level), model, features, steps)
            rows.append(
                {
                    "method": name,
                    "level": level,
                    "releases": {**found.client_releases, **found.server_releases},
                    "violations": list(found.violations),
                    "program": found.program,
                }
            )
    return rows

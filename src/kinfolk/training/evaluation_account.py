"""Who pays for an evaluation and what, and how much room it needs in a promise: in a run, at a silo, at a server."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from kinfolk.accounting import composition, joint
from kinfolk.accounting.account import Account
from kinfolk.accounting.noise_for_budget import Case, noise_multipliers
from kinfolk.accounting.noise_schedules import check_share
from kinfolk.privacy.choice import ExactMin
from kinfolk.privacy.gates import EVALUATION
from kinfolk.privacy.levels import PrivacyLevel, Terms
from kinfolk.privacy.mechanisms import GaussianSum, LaplaceSum, NoisySum, Sampling
from kinfolk.privacy.noise_shares import LAW
from kinfolk.privacy.release import Cost, PrivacyError

ONCE = range(1)
"""An evaluation is one round of its own."""


def paid_by(training: Account, epsilon: float, there: np.ndarray) -> tuple[Account, NoisySum]:
    """Who pays for an evaluation and what, and the mechanism that makes it.

    All that a unit may lose, here and in training, is the promise.

    `training`: the account that it shares units, rows and promise with. `epsilon`: what it costs each unit. `there`:
    for each party whether it has anything to count.
    """
    level, allowed = training.level, training.privacy
    if not level.private:
        raise PrivacyError(
            "level='none' has no account, so nothing of this run may be published: its errors are in private/"
        )
    mechanism = _laplace(training, epsilon) if allowed.aggregator == "trusted" else _in_shares(training, epsilon)
    total = allowed.promise or allowed.epsilon
    privacy = allowed if total is None else replace(allowed, epsilon=total, promise=None)
    terms = Terms(mechanism, ExactMin(np.float32(1)), mechanism)
    counted = {EVALUATION: np.asarray(there).astype(int)[None]}
    return replace(training, privacy=privacy, terms=terms, uses=counted), mechanism


def _laplace(training: Account, epsilon: float) -> LaplaceSum:
    """Whoever pays adds the noise: a unit's absolute values sum to at most 1."""
    allowed = training.privacy
    noise = np.float32(laplace_scale(allowed, epsilon))
    ones = np.ones(() if training.level.server_pays else (len(training.parties),), np.float32)
    return LaplaceSum(ones, noise * ones, Sampling(ones), allowed.relation, _group(allowed))


def _in_shares(training: Account, epsilon: float) -> GaussianSum:
    """Clients add the noise in shares (or each all of it, for comparison): such noise is Gaussian, and a unit's vector
    is at most 1 long, as its absolute values sum to no more."""
    allowed, (clients,) = training.privacy, training.units
    (delta,) = training.deltas().values()
    shares, one = allowed.shares(clients), np.float32(1)
    law = "gaussian" if shares is None else LAW
    case = Case(epsilon, delta, 1, relation=allowed.relation, group=_group(allowed), mechanism=law)
    (noise,) = noise_multipliers([case])
    if shares is not None:
        check_share(shares, noise)
    excess = float(clients) if shares is None else shares.excess
    return GaussianSum(
        one,
        np.float32(noise),
        Sampling(one),
        sampled_here=False,
        relation=allowed.relation,
        group=_group(allowed),
        excess=excess,
        charged_as=law,
    )


def laplace_scale(privacy: PrivacyLevel, epsilon: float) -> float:
    """The scale of Laplace noise: how far a protected unit moves a table, over epsilon, rounded up to a float32."""
    reach = (2.0 if privacy.relation == "replace_one" else 1.0) * _group(privacy)
    return float(np.nextafter(np.float32(reach / epsilon), np.float32(np.inf)))


def _group(privacy: PrivacyLevel) -> int:
    """In how many units of a table one protected person may be."""
    return privacy.clients_per_person if privacy.level.server_pays else 1


def with_room(training: Account, epsilon: float, there: np.ndarray, rounds: int) -> Account:
    """The account of training with a promise that has room for an evaluation: one that was given is never raised.

    `epsilon`, `there`: as for `paid_by`. `rounds`: of training.
    """
    allowed, evaluation = training.privacy, paid_by(training, epsilon, there)[0]
    if allowed.epsilon is None:
        return training
    needed = _together(training, evaluation, rounds)
    if allowed.promise is not None and allowed.promise < needed:
        raise PrivacyError(
            f"evaluate={epsilon:g} beside training with epsilon={allowed.epsilon:g} needs {needed:g}, and "
            f"promise={allowed.promise:g} does not cover it: promise at least {needed:g}, spend less on training, or "
            "leave evaluate out"
        )
    promise = max(allowed.promise or 0.0, allowed.epsilon, needed)
    return replace(training, privacy=replace(allowed, promise=promise))


def _together(training: Account, evaluation: Account, rounds: int) -> float:
    """The epsilon that training and evaluation reach as one run, of the dearest party, rounded up to 4 digits; and no
    less than it takes to cover somebody at several parties."""
    charges: dict[str, list[tuple[Cost, int]]] = {party: [] for party in training.parties}
    for line in (*training.lines("run", range(rounds)), *evaluation.lines("run", ONCE)):
        if line.uses:
            charges[line.party].append((line.cost, line.uses))
    deltas, count = training.deltas(), training.privacy.clients_per_person
    needed = max(composition.epsilon(*own) for own in {(tuple(charges[x]), delta) for x, delta in deltas.items()})
    if training.at_several:
        delta = max(deltas.values())
        both = joint.epsilon(list(charges.values()), count, delta)
        needed = max(needed, joint.budget_each(both, delta, count, min(deltas.values())))
    return math.ceil(needed * 1e4 + 0.1) / 1e4

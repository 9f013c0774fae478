"""Checks of secure sums: what they find in sound silos, and what a server sees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kinfolk.accounting import composition
from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.noise_shares import LAW
from kinfolk.privacy.release import Cost
from kinfolk.secure.messages import Attempt
from kinfolk.secure.one_process import rehearse
from kinfolk.secure.silo import Silo
from kinfolk.verify.attack import lower_bound
from kinfolk.verify.secure_check import NAMES, readable, replayed_differences, silo_violations, small_world
from tests.verify.gallery.secure import NoiseForEverybody


def test_a_sound_silo_passes() -> None:
    assert silo_violations(Silo) == ()
    assert replayed_differences(Silo) == set()


def test_a_message_that_steers_its_keys_is_found_by_replay() -> None:
    class Chained(Silo):
        def _contribution(self, message: np.ndarray) -> np.ndarray:
            self._source(4 * int(np.abs(message).max() > 1))  # how much is drawn tells
            made = super()._contribution(message)
            assert self._secrets is not None
            self._secrets.shares = {
                n: (k, bytes([int(np.abs(message).max() > 1)]) + s[1:]) for n, (k, s) in self._secrets.shares.items()
            }
            return made

    assert "openings" in replayed_differences(Chained)


def test_a_server_with_colluders_reads_nobody_and_with_opened_secrets_everybody() -> None:
    silos, _ = small_world(Silo)
    view = rehearse(silos, Attempt("run", 0), {name: np.zeros(16) for name in NAMES}).view
    assert readable(view, silos[:1]) == set()
    for name, opening in view.openings.items():
        view.openings[name] = replace(opening, mask_keys=opening.seeds)
    assert readable(view) == set(NAMES)


THRESHOLDS = (0.9, 2.0)


def bound_on_epsilon(kind: type[Silo], delta: float, games: int = 150_000) -> float:
    """An attack with the server's view: the survivors' sum, less all that a colluder and the other messages add.

    Each coordinate of one sum is a game; the events, thresholds on the canary's coordinate, are fixed beforehand.
    """
    silos, _ = small_world(kind, games)
    honest = silos[1 : silos[0].agreement.survivors]
    noise = sum(
        silo._contribution(np.zeros(games)).astype(np.uint32).view(np.int32).astype(np.int64) for silo in honest
    )
    scores = np.asarray(noise) / GRID_STEPS
    hits = [(int((scores + 1 > at).sum()), int((scores > at).sum())) for at in THRESHOLDS]
    confidence = 1 - 1e-4 / len(THRESHOLDS)
    return max(float(lower_bound(*pair, games, delta, confidence)) for pair in hits)


def test_an_attack_with_the_servers_view_stays_below_the_claim_and_finds_noise_sized_for_all() -> None:
    delta = 0.02
    claim = composition.epsilon([(Cost(LAW, 1.0), 1)], delta)
    sound, planted = (bound_on_epsilon(kind, delta) for kind in (Silo, NoiseForEverybody))
    assert 0.5 < sound < claim
    assert planted > claim

"""Planted bugs of a silo in secure sums."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from scipy import stats

from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.secure import contribution
from kinfolk.secure.masks import RING
from kinfolk.secure.messages import Attempt, KeyCard, Opening, signed
from kinfolk.secure.silo import Silo
from kinfolk.verify.secure_check import silo_violations

from .checking import Bug, Check


class NoiseForEverybody(Silo):
    """Noise sized for all silos, not for the fewest honest survivors."""

    def _contribution(self, message: np.ndarray) -> np.ndarray:
        honest = self.agreement.survivors - self.agreement.colluding
        less = self.agreement.deviation * math.sqrt(honest / self.agreement.silos)
        return contribution.noisy(message, replace(self.agreement, deviation=less), self._source)


class RoundsAfterNoise(Silo):
    """Noise in floats, rounded together with the message."""

    def _contribution(self, message: np.ndarray) -> np.ndarray:
        values = np.nan_to_num(np.asarray(message, float))
        values = values * (GRID_STEPS / max(1.0, float(np.linalg.norm(values))))
        bytes_drawn = np.frombuffer(self._source(8 * values.size), "<u8")
        noise = self.agreement.share * stats.norm.ppf((bytes_drawn + 0.5) * 2.0**-64)
        return np.rint(values + noise).astype(np.int64).astype(np.uint32).astype(RING)


class ClipsAtTheServer(Silo):
    """Messages as they are: the server, which sees sums alone, was to clip them."""

    def _contribution(self, message: np.ndarray) -> np.ndarray:
        steps = np.rint(np.nan_to_num(message) * GRID_STEPS).astype(np.int64)
        noise = contribution.discrete_gaussian(self.agreement.share, message.size, self._source)
        return (steps + noise).astype(np.uint32).astype(RING)


class OpensBoth(Silo):
    """Both secrets of every silo."""

    def open(self, attempt: Attempt, tags: Mapping[str, bytes]) -> Opening:
        own, made = self._current(attempt), super().open(attempt, tags)
        keys = {name: shares[0] for name, shares in own.shares.items()}
        return signed(replace(made, mask_keys=keys), own.bound, self._key)


class UnsignedList(Silo):
    """Opens whatever list the server shows."""

    def open(self, attempt: Attempt, tags: Mapping[str, bytes]) -> Opening:
        own = self._current(attempt)
        assert own.listed is not None
        seeds = {name: own.shares[name][1] for name in own.listed.heard}
        keys = {name: own.shares[name][0] for name in own.shares if name not in seeds}
        return signed(Opening(self.name, own.view, seeds, keys), own.bound, self._key)


class KeyReused(Silo):
    """The keys of the first round in all rounds."""

    def begin(self, attempt: Attempt) -> KeyCard:
        before, card = getattr(self, "_first", None), super().begin(attempt)
        assert self._secrets is not None
        if before is not None:
            self._secrets.masking, self._secrets.seed = before
            kept = replace(card, mask_key=before[0].public_key().public_bytes_raw())
            self._secrets.card = card = signed(kept, self._secrets.bound, self._key)
        self._first = (self._secrets.masking, self._secrets.seed)
        return card


def _found(kind: type[Silo], word: str) -> Check:
    """Violations that name this bug: another one's would not do."""
    return lambda: [text for text in silo_violations(kind) if word in text]


BUGS: tuple[Bug, ...] = tuple(
    Bug(name, what, "secure", _found(kind, word), lambda: list(silo_violations(Silo)))
    for name, what, kind, word in (
        (
            "noise shared by all silos",
            "a silo's share of noise is sized for all silos, not for the fewest honest survivors",
            NoiseForEverybody,
            "whole noise",
        ),
        (
            "rounding after noise",
            "a silo adds float noise to its message and rounds both",
            RoundsAfterNoise,
            "fractions of a step",
        ),
        (
            "clip at the server only",
            "a silo sends its message as it is, and the server, which sees sums alone, was to clip it",
            ClipsAtTheServer,
            "a huge one",
        ),
        ("both secrets opened", "a silo opens its shares of both secrets of another", OpensBoth, "both secrets"),
        (
            "unsigned list",
            "a silo opens its shares for any list that the server shows",
            UnsignedList,
            "without tags",
        ),
        ("keys reused over rounds", "a silo masks two rounds with the same keys", KeyReused, "more than one attempt"),
    )
)

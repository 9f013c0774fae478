"""Secure sums as deployed, by what the server is sent: replay with one silo changed, planted bugs, an attack."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import stats

from kinfolk import trees
from kinfolk.accounting import composition
from kinfolk.accounting.ledger import read_lines
from kinfolk.deploy import coordinator, silo_program
from kinfolk.deploy.server_sums import LIST, VECTOR
from kinfolk.deploy.sum_messages import MASK, unpacked
from kinfolk.deploy.sums import Sums
from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.exact_samplers import discrete_gaussian
from kinfolk.secure.masks import RING
from kinfolk.secure.messages import Attempt, KeyCard
from kinfolk.secure.silo import Silo
from kinfolk.training.experiment import ModelChoice
from kinfolk.types import Rows
from kinfolk.verify.attack import lower_bound
from tests.deploy.federations import rows_of
from tests.deploy.secure_federations import NAMES, SURVIVORS, prepared, secure_study, tables
from tests.deploy.secure_views import LOST, View, seen, violations
from tests.verify.gallery import secure as planted

STUDY = secure_study()


@pytest.fixture(autouse=True)
def _prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (coordinator, silo_program):
        monkeypatch.setattr(module, "sums_of", prepared)


def changed_rows() -> Rows:
    """Other values in every cell of the first silo's table: the silo as a whole is the unit."""
    rows = rows_of(tables(), 0)
    return Rows(-rows.x, 1 - rows.y, rows.mask)


def differences(one: View, two: View, folders: tuple[Path, Path]) -> set[str]:
    """What differs in all that the server was sent, other than the numbers of the first silo's masked vectors."""
    found = set()
    if [(e, slot, len(a)) for e, slot, a in one.answers] != [(e, slot, len(a)) for e, slot, a in two.answers]:
        found.add("who answers, when, or how long answers are")
    for (exchange, slot, first), (_, _, second) in zip(one.answers, two.answers, strict=False):
        if slot == 0 and exchange == VECTOR:
            parts = [unpacked(answer, len(NAMES)) for answer in (first, second)]
            for _, steps, _ in parts:
                steps[MASK].pop("signature")  # of the vector
            first, second = (repr(part[:2]).encode() for part in parts)
        if first != second:
            found.add(f"{exchange} of {NAMES[slot]}")
    for name in NAMES:
        ledgers = [[(line.rounds, line.cost) for line in read_lines(f / name / "ledger.jsonl")] for f in folders]
        if ledgers[0] != ledgers[1]:
            found.add(f"what {name} paid")
    return found


class Steered(Silo):
    """How much it draws depends on its message: so do its next keys."""

    def _contribution(self, message: np.ndarray) -> np.ndarray:
        made = super()._contribution(message)
        self._source(int(np.abs(message).sum()) % 251)
        return made


def replayed(kind: type[Silo], folder: Path) -> set[str]:
    """A run, and the same with the first silo's rows changed and every release held: what else is not the same."""
    folders = folder / "one", folder / "two"
    one = seen(STUDY, folders[0], kind)
    two = seen(STUDY, folders[1], kind, rows=changed_rows(), released=one.totals)
    assert len(one.totals) == STUDY.experiment.rounds
    assert (one.parts[0, 0] != two.parts[0, 0]).any(), "the rows count"
    return differences(one, two, folders)


def test_one_silos_rows_change_nothing_that_a_server_is_sent_but_its_masked_vectors(tmp_path: Path) -> None:
    assert replayed(Silo, tmp_path) == set()


def test_a_silo_whose_keys_depend_on_its_rows_is_found_by_replay(tmp_path: Path) -> None:
    assert f"{LIST} of a" in replayed(Steered, tmp_path)


class KeyReused(planted.KeyReused):
    """As planted, over the silos that a worker makes for its attempts."""

    kept: ClassVar[dict[str, Any]] = {}

    def begin(self, attempt: Attempt) -> KeyCard:
        if self.name in self.kept:
            self._first = self.kept[self.name]
        card = super().begin(attempt)
        self.kept[self.name] = self._first
        return card


class Unbounded(Silo):
    """Adds whatever steps it is given: the server was to clip."""

    def _contribution(self, message: np.ndarray) -> np.ndarray:
        noise = discrete_gaussian(self.agreement.share, message.size, self._source)
        return (message + noise).astype(np.uint32).astype(RING)


class RoundsAfterNoise(Silo):
    """Noise in floats, rounded together with the message."""

    def _contribution(self, message: np.ndarray) -> np.ndarray:
        words = np.frombuffer(self._source(8 * message.size), "<u8")
        noise = self.agreement.share * stats.norm.ppf((words + 0.5) * 2.0**-64)
        return np.rint(message + noise).astype(np.int64).astype(np.uint32).astype(RING)


def unclipped(sums: Sums, number: int, shared: Any, message: Any, *_: Any) -> np.ndarray:
    """A message in grid steps as it is."""
    return np.rint(np.asarray(trees.flatten(message)[0]) * 5 * GRID_STEPS).astype(np.int64)[: sums.length(number)]


PLANTS: dict[str, tuple[type[Silo], Any, str]] = {
    "noise shared by all silos": (planted.NoiseForEverybody, None, "exactly the noise"),
    "rounding after noise": (RoundsAfterNoise, None, "exactly the noise"),
    "clip at the server only": (Unbounded, unclipped, "the bounded parts"),
    "both secrets opened": (planted.OpensBoth, None, "both secrets"),
    "unsigned list": (planted.UnsignedList, None, "nobody else vouches"),
    "keys reused over rounds": (KeyReused, None, "more than one attempt"),
}


def test_a_sound_deployment_has_no_violations(tmp_path: Path) -> None:
    view = seen(STUDY, tmp_path)
    assert violations(view) == set()
    assert [LOST in map(NAMES.index, heard) for heard in view.heard] == [False, True]


@pytest.mark.parametrize("name", [bug.name for bug in planted.BUGS])
def test_every_planted_bug_of_secure_sums_is_found_as_deployed_too(name: str, tmp_path: Path) -> None:
    kind, part, word = PLANTS[name]
    assert [text for text in violations(seen(STUDY, tmp_path, kind, part=part)) if word in text]


WIDE = secure_study(rounds=1, model=ModelChoice("mlp", (250, 250)))
THRESHOLDS = (1.2, 2.2)


def bounds_on_epsilon(view: View, delta: float) -> tuple[float, float]:
    """From below, at confidence 1 - 1e-4, by a server that works with silo c, and knows b's and a's messages but for
    one number, a whole clip or nothing: from the survivors' sum, and from a's masked vector.

    Each number of the vector is a game; the events, thresholds on it, were fixed beforehand.
    """
    assert view.heard[0] == ("a", "b", "c")
    assert len(view.heard[0]) == SURVIVORS
    known = (view.parts[0, 0] + view.parts[0, 1]).astype(np.uint32) + view.put_in[0, 2]
    left = (view.totals[0] - known).view(np.int32) / GRID_STEPS
    (masked,) = (np.frombuffer(unpacked(a, 4)[2], "<u4") for e, slot, a in view.answers if (e, slot) == (VECTOR, 0))
    alone = (masked - view.parts[0, 0].astype(np.uint32)).view(np.int32) / GRID_STEPS
    return bound(left, delta), bound(alone, delta)


def bound(scores: np.ndarray, delta: float) -> float:
    hits = [(int((scores + 1 > at).sum()), int((scores > at).sum())) for at in THRESHOLDS]
    confidence = 1 - 1e-4 / (2 * len(THRESHOLDS))
    return max(float(lower_bound(*pair, scores.size, delta, confidence)) for pair in hits)


@pytest.mark.slow
def test_an_attack_with_all_that_a_deployed_server_sees_stays_below_the_claim(tmp_path: Path) -> None:
    """One colluder, and as few survivors as may be; with noise sized for all silos it is above."""
    delta = 0.02
    claim = composition.epsilon([(prepared(WIDE).account.costs()["update"][0], 1)], delta)
    by_sum, by_vector = bounds_on_epsilon(seen(WIDE, tmp_path / "sound"), delta)
    assert 0.4 * claim < by_sum < claim
    assert by_vector == 0
    planted_sum, _ = bounds_on_epsilon(seen(WIDE, tmp_path / "planted", planted.NoiseForEverybody), delta)
    assert planted_sum > claim

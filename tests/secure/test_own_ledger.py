"""A silo's own ledger: paid before anything is masked, whatever is killed, and again for every attempt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kinfolk.accounting import composition
from kinfolk.accounting.ledger import Allowance, Ledger, read_lines
from kinfolk.privacy.noise_shares import LAW, SecureError
from kinfolk.secure.messages import Attempt
from kinfolk.secure.own_ledger import OwnLedger
from kinfolk.secure.server import Gathering
from kinfolk.secure.silo import Silo
from tests.secure.worlds import agreement_of, keys_of, pins_of, world_of

BUDGET = Allowance(20.0, 1e-5)
STEPS = ("begin", "share", "noise", "mask", "sign", "open")


class Killed(BaseException):
    """The process is gone."""


class Dying:
    """Random bytes until the process is killed while it draws noise."""

    def __init__(self, at: int | None) -> None:
        self.left, self.generator = at, np.random.default_rng(1)

    def __call__(self, count: int) -> bytes:
        if self.left is not None and count >= self.left:
            raise Killed
        return self.generator.bytes(count)


def killed_after(step: str, path: Path, attempt: Attempt) -> list[str]:
    """A silo that is killed after a step (or while it draws its noise): what its ledger holds then."""
    agreement = agreement_of(length=50)
    world = world_of(agreement)
    with Ledger(path) as ledger:
        pay = OwnLedger(ledger, "silo0", "rows", agreement, BUDGET)
        source = Dying(8 * 50 if step == "noise" else None)
        world.silos[0] = Silo(agreement, "silo0", keys_of(5)["silo0"], pins_of(agreement), pay, source)
        view = Gathering(agreement, attempt)
        try:
            for silo in world.silos:
                view.take(silo.begin(attempt))
            _stop(step == "begin")
            for silo in world.silos:
                view.take(silo.share(attempt, view.all_cards()))
            _stop(step == "share")
            for silo in world.silos:
                view.take(silo.mask(attempt, view.packets_for(silo.name), world.messages[silo.name]))
            _stop(step == "mask")
            heard = view.heard()
            for silo in world.silos:
                view.take(silo.sign(attempt, heard))
            _stop(step == "sign")
            world.silos[0].open(attempt, view.all_signatures())
            _stop(True)
        except Killed:
            pass
    return [line.cost.mechanism for line in read_lines(path)]


def _stop(now: bool) -> None:
    if now:
        raise Killed


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_in_any_exchange_leaves_the_ledger_right(step: str, tmp_path: Path) -> None:
    """Nothing is owed before the vector, and from the moment noise is drawn everything is paid; a new attempt again."""
    path = tmp_path / "ledger.jsonl"
    once = [] if step in ("begin", "share") else [LAW]
    assert killed_after(step, path, Attempt("run", 0)) == once
    assert killed_after("open", path, Attempt("run", 0, 1)) == [*once, LAW]
    (last,) = read_lines(path)[-1:]
    assert (last.party, last.unit, last.rounds, last.noise) == ("silo0", "client", (0, 1), "operating system")


def test_a_silo_without_budget_sends_nothing(tmp_path: Path) -> None:
    agreement = agreement_of()
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        one = composition.epsilon([(OwnLedger(ledger, "silo0", "rows", agreement, BUDGET).cost, 1)], 1e-5)
        pay = OwnLedger(ledger, "silo0", "rows", agreement, Allowance(1.2 * one, 1e-5))
        pay(Attempt("run", 0))
        with pytest.raises(SecureError, match="not paid"):
            pay(Attempt("run", 1))
        assert len(ledger.lines) == 1

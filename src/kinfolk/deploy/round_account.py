"""What silo and server share of a round's account: the check of the very program that runs, and its noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from kinfolk.accounting.account import Account
from kinfolk.privacy import exact_noise, noise_tape
from kinfolk.privacy.levels import Terms
from kinfolk.privacy.release import Meter, Tape
from kinfolk.rounds import RoundSpec
from kinfolk.types import Algorithm, Rows
from kinfolk.verify.round_check import RoundCheck, check_round

NOTHING_TO_CHECK = RoundCheck((), {}, {}, {}, "")
"""Of a party that sees nothing private and releases nothing."""


def checked_phase(program: tuple[RoundSpec, Algorithm, Terms, Rows], account: Account, span: range) -> RoundCheck:
    """The flow check of a phase's round, with exact noise where it is for real; more releases than counted are refused.

    `program`: the arguments of `check_round`. `span`: the phase's rounds.
    """
    uses = {kind: counts[span.start : span.stop] for kind, counts in account.uses.items()}
    check = check_round(*program).require(uses)
    if not account.released:
        return check
    account.require_exact()
    tape = round_tape(account, check.sizes)
    tapes = (tape, None) if account.level.clients_pay else (None, tape)
    return check_round(*program, tapes=tapes).require(uses)


def as_compiled(spec: RoundSpec, account: Account, check: RoundCheck) -> RoundSpec:
    """The round as it is compiled: in a release that is paid for here, nothing but what was checked."""
    return replace(spec, programs=check.programs) if account.released and check.programs else spec


def round_tape(account: Account, sizes: Mapping[str, int]) -> Tape | None:
    """The noise that one round may need."""
    return noise_tape.tape_shapes(account.level.kinds, sizes, {kind: account.most(kind) for kind in account.uses})


def round_meter(account: Account, meter: Meter, sizes: Mapping[str, int], number: int) -> Meter:
    """A meter with fresh keys and exact noise for one round; `sizes`: scalars in a release of each kind."""

    def draw(kind: str, shape: tuple[int, ...]) -> np.ndarray:
        (scales,) = account.scales(kind, range(number, number + 1), shape[-2])
        return exact_noise.integers(account.mechanism(kind), scales[:, None], shape)

    return noise_tape.with_fresh_noise(meter, round_tape(account, sizes), draw)

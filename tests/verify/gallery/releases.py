"""Releases that are not charged, sampled or drawn as they say. Found by looking at releases, not at simulations."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk import trees
from kinfolk.accounting import composition
from kinfolk.accounting.account import Account
from kinfolk.accounting.calibrate import Population, terms_for
from kinfolk.accounting.ledger import Ledger
from kinfolk.privacy import clipping, mechanisms, noise_tape
from kinfolk.privacy.levels import PrivacyLevel, example_level
from kinfolk.privacy.mechanisms import GaussianSum, Sampling
from kinfolk.privacy.release import Meter, Tape, new_meter
from kinfolk.training import charges, run_directory
from kinfolk.training.charges import Chunk

from .checking import Bug

IDS, SIZES, BATCH = ("a", "b"), np.array([400, 500]), 8


def account_of(privacy: PrivacyLevel, gradients: list[list[int]]) -> Account:
    """A release of two silos; `gradients`: how many each makes in each round."""
    counts = np.array(gradients)
    uses = {"gradient": counts, "choice": 0 * counts}
    terms = terms_for(privacy, Population(IDS, SIZES, BATCH), uses)
    return Account(privacy, "wards", IDS, tuple(SIZES.tolist()), terms, uses, released=True)


def uncharged_overflow() -> list[str]:
    """Parties whose batches may overflow with a probability that their ledger lines do not have."""
    account = account_of(example_level(8.0, 1e-4), [[3, 3], [3, 3]])
    sampling = account.terms.data.sampling
    assert sampling.capacity is not None, "batches that cannot overflow would show nothing"
    problems = []
    for line, size, rate in zip(account.lines("run", range(2))[:2], SIZES, np.asarray(sampling.rate), strict=True):
        real = composition.overflow_probability(int(size), float(rate), sampling.capacity)
        if not 0 < real <= line.cost.delta:
            problems.append(
                f"{line.party}: a batch overflows with probability {real:.2g}, {line.cost.delta:.2g} charged"
            )
    return problems


def _costs_without_overflow(own: Any) -> Any:
    return [replace(cost, delta=0.0) for cost in COSTS(own)]


COSTS = mechanisms._gaussian_costs


def chunk_charged_once() -> list[str]:
    """A chunk that was charged, crashed, and is computed again with fresh noise: both are releases."""
    account, chunk = account_of(example_level(8.0, 1e-4, noise_multiplier=2.0), [[3, 3], [3, 3]]), Chunk(0, 0, 2)
    job: Any = SimpleNamespace(account=account)
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "ledger.jsonl") as ledger:
        for _ in range(2):
            charges.charge(job, "run", ledger, chunk)
        uses = sum(line.uses for line in ledger.lines if line.party == "a")
    return [] if uses == 12 else [f"12 gradients in two attempts, {uses} charged"]


def _as_in_a_simulation(job: Any, run: str, ledger: Any, chunk: Chunk) -> None:
    if not charges._already_charged(ledger, run, chunk):
        job.account.charge(ledger, run, chunk.rounds)


@trees.register
@dataclass(frozen=True)
class NoCoins(GaussianSum):
    """Everybody takes part where noise comes from a tape."""

    def __call__(self, kind: str, meter: Meter, *rest: Any) -> Any:
        own = self if meter.tape is None else replace(self, sampling=replace(self.sampling, rate=jnp.float32(1)))
        return GaussianSum.__call__(own, kind, meter, *rest)


def coins_ignored(make: Callable[..., GaussianSum], capacity: int | None = None) -> list[str]:
    """Whether units are left out of exact sums as often as the rate says, other ones every time.

    Each of 32 units is a coordinate; the noise on the tape is zero, so that a sum shows who took part.
    """
    units, uses, rate = 32, 64, 0.25
    mechanism = make(jnp.float32(1), jnp.float32(1), Sampling(jnp.float32(rate), capacity))
    tape = Tape({"sum": jnp.zeros((uses, units), jnp.int32)}, "noise")
    meter = replace(new_meter(jax.random.key(5), ("sum",)), tape=tape)
    what = clipping.rows(lambda _, unit: unit)

    def one(meter: Meter, _: None) -> tuple[Meter, jax.Array]:
        total, meter = mechanism("sum", meter, what, (), jnp.eye(units, dtype=jnp.float32), jnp.ones(units, bool))
        return meter, total > 0.5

    taken = np.asarray(jax.lax.scan(one, meter, None, length=uses)[1])
    problems = []
    if not abs(taken.mean() - rate) < 6 * np.sqrt(rate * (1 - rate) / taken.size):
        problems.append(f"a share of {taken.mean():.2g} took part, and the rate is {rate}")
    if len(np.unique(taken, axis=0)) < uses / 2:
        problems.append("the same units take part again and again")
    return problems


def narrow_keys(draw: Callable[[Any, Any, Any], Meter] = noise_tape.with_fresh_noise) -> list[str]:
    """Keys of noise or coins that are not two full words from the operating system, other ones for every party."""
    before = jax.vmap(lambda key: new_meter(key, ("gradient",)))(jax.random.split(jax.random.key(0), 64))
    after = draw(before, None, lambda kind, shape: np.zeros(shape, np.int32))
    problems = []
    for name in ("noise", "coins"):
        words = np.asarray(jax.random.key_data(getattr(after, name)))
        old = np.asarray(jax.random.key_data(getattr(before, name)))
        if any(len(np.unique(words[:, k])) < 60 for k in range(2)) or (words == old).any():
            problems.append(f"keys of {name} have fewer than 64 bits from the operating system")
    both = np.concatenate([np.asarray(jax.random.key_data(key)) for key in (after.noise, after.coins)])
    return problems + (["noise and coins have one key"] if len(np.unique(both, axis=0)) < 128 else [])


def _coins_from_seeds(meter: Meter, shapes: Tape | None, draw: Any) -> Meter:
    seeds = np.random.default_rng().integers(0, 2**32, meter.coins.shape).astype(np.uint32)
    return replace(noise_tape.with_fresh_noise(meter, shapes, draw), coins=jax.vmap(jax.random.key)(seeds))


def unlisted_files(*names: str) -> list[str]:
    """What a release with these files in its public folder should not have there."""
    with tempfile.TemporaryDirectory() as folder:
        public = Path(folder) / "public"
        (public / "shared").mkdir(parents=True)
        for name in ("experiment.toml", "statement.json", "shared/000001.npz", *names):
            (public / name).write_text("")
        return run_directory.unlisted(public)


def wrong_scales() -> list[str]:
    """Noise inside a chunk of several rounds that is not its round's, where the schedule is not even."""
    account = account_of(
        example_level(8.0, 1e-4, noise_multiplier=2.0, noise_factor=0.5), [[2, 1], [1, 3], [3, 0], [1, 1]]
    )
    found, noise = account.scales("gradient", range(1, 4), 6), 2.0
    problems = []
    for k, column in enumerate(np.array(account.uses["gradient"])[1:4].T):
        wanted = noise * np.repeat([0.5, 0.25, 0.125], column)
        if not np.allclose(found[k, : len(wanted)], wanted, rtol=1e-6):
            problems.append(f"{IDS[k]}: noise multipliers {found[k].tolist()}, and {wanted.tolist()} are charged")
    return problems


def _first_rounds(account: Account, rounds: range) -> np.ndarray:
    return np.repeat(FACTORS(account, rounds)[:1], len(rounds))


FACTORS = Account.factors


def _planted(patch: Any, check: Callable[[], list[str]]) -> Callable[[], list[str]]:
    def broken() -> list[str]:
        with patch():
            return check()

    return broken


BUGS = (
    Bug(
        "overflow not charged",
        "what does not fit into a batch is left out, and the probability of that is not taken from delta",
        "release",
        _planted(lambda: mock.patch.object(mechanisms, "_gaussian_costs", _costs_without_overflow), uncharged_overflow),
        uncharged_overflow,
    ),
    Bug(
        "a crashed chunk charged once",
        "rounds that were charged, crashed and are drawn again with fresh noise are not charged again",
        "release",
        _planted(lambda: mock.patch.object(charges, "charge", _as_in_a_simulation), chunk_charged_once),
        chunk_charged_once,
    ),
    Bug(
        "coins ignored with exact noise",
        "where noise comes from a tape every unit takes part, and the account believes in sampling",
        "release",
        lambda: coins_ignored(NoCoins),
        lambda: coins_ignored(GaussianSum, capacity=24),
    ),
    Bug(
        "coins from a 32-bit key",
        "the key of the coins comes from a seed of 32 bits, which can be tried out",
        "release",
        lambda: narrow_keys(_coins_from_seeds),
        narrow_keys,
    ),
    Bug(
        "metrics in public",
        "test errors are written into the folder that everybody may have",
        "release",
        lambda: unlisted_files("metrics.jsonl"),
        unlisted_files,
    ),
    Bug(
        "one round's noise for a whole chunk",
        "the first round's noise is drawn for all rounds of a chunk, though a schedule changes it",
        "release",
        _planted(lambda: mock.patch.object(Account, "factors", _first_rounds), wrong_scales),
        wrong_scales,
    ),
)

"""What numbers may be: one table, and the checks that every record of settings makes with it, before anything is done.

>>> checked("rounds", 0)
Traceback (most recent call last):
    ...
kinfolk.toml.ConfigError: rounds=0 must be at least 1 and at most 100000: choose a number in between
>>> checked("epsilon", 3)
3.0
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from kinfolk.toml import ConfigError, shown

LARGEST_NOISE_MULTIPLIER = 2500.0
"""Above it noise does not fit the integers of exact noise, and a release would be noise alone."""
SMALLEST_CLIP, LARGEST_CLIP = 1e-6, 1e6
"""Where float32 norms are exact enough, in every round."""
MOST_STEPS, MOST_RELEASES = 10**6, 10**9
"""Local steps of one client in a round, and in a whole run: far below what 32 bits can count."""
MOST_WEIGHTS = 10**9
"""Weights of one model."""
HUGE = 1e30
"""A number that has no limit of its own: float32 still holds it."""


@dataclass(frozen=True)
class Limit:
    """What a number may be, and what to do about one that is not."""

    least: float
    """The smallest that is allowed."""
    most: float = HUGE
    """The largest that is allowed."""
    remedy: str = "choose a number in between"
    """What to do instead, in words."""
    is_whole: bool = False
    """Whether it counts something: 3, and neither 3.5 nor 3.0."""
    above: bool = False
    """Whether `least` itself is not allowed."""
    below: bool = False
    """Whether `most` itself is not allowed."""
    infinite: bool = False
    """Whether infinity is allowed too."""

    @property
    def words(self) -> str:
        """The range in words."""
        lower = f"{'above' if self.above else 'at least'} {_text(self.least)}"
        upper = "" if self.most == HUGE else f" and {'below' if self.below else 'at most'} {_text(self.most)}"
        return lower + upper + (" (or infinite)" if self.infinite else "" if upper else " and finite")

    def holds(self, value: float) -> bool:
        """Whether a number is in range; one that is none never is.

        `value`: the number.
        """
        if self.infinite and value == math.inf:
            return True
        return (value > self.least if self.above else value >= self.least) and (
            value < self.most if self.below else value <= self.most
        )


def whole(least: int, most: int, remedy: str = Limit.remedy) -> Limit:
    """A whole number in a range.

    `least`, `most`: its ends. `remedy`: what to do about one outside.
    """
    return Limit(least, most, remedy, is_whole=True)


def above(least: float, most: float = HUGE, remedy: str = Limit.remedy) -> Limit:
    """A number above `least`.

    `least`: not allowed itself. `most`: the largest. `remedy`: what to do about one outside.
    """
    return Limit(least, most, remedy, above=True)


def finite(least: float = -HUGE, most: float = HUGE, remedy: str = Limit.remedy) -> Limit:
    """A finite number in a range.

    `least`, `most`: its ends. `remedy`: what to do about one outside.
    """
    return Limit(least, most, remedy)


def share(remedy: str = Limit.remedy, *, with_all: bool = True, with_none: bool = True) -> Limit:
    """A part of a whole, between 0 and 1.

    `remedy`: what to do about one outside. `with_all`, `with_none`: whether 1 and 0 are allowed.
    """
    return Limit(0, 1, remedy, above=not with_none, below=not with_all)


COUNT = whole(1, 10**9)
ROUNDS = whole(1, 100_000)
SECONDS = above(0, 86_400 * 7, "give seconds, a week of them at most")
OR_INFINITE = Limit(0, infinite=True, remedy="0 is training alone, infinity is averaging")

ALLOWED: dict[str, Limit] = {
    # an experiment
    "seed": whole(0, 2**32 - 1, "any number that 32 bits hold will do"),
    "devices": whole(1, 100_000, "leave it out to use all that JAX sees"),
    "seeds": whole(1, 1000, "repetitions are computed together; run more one after another, with other seeds"),
    "rounds": ROUNDS,
    "batch_size": whole(1, 10**9, "leave it out, or give 0, for full batches"),
    "Given.batch_size": whole(0, 10**9, "0 means full batches"),
    "epochs": whole(1, 10_000),
    "tail": share("it is a share of the rounds"),
    "hidden": whole(1, 100_000, "give the widths of the hidden layers"),
    "coverage": share(
        "it is the chance with which a prediction set is to hold what comes out", with_all=False, with_none=False
    ),
    "test_fraction": share("it is the part of every client's rows that is kept for testing", with_all=False),
    # a privacy level
    "epsilon": above(0, 1000, "for no privacy at all use level='none'"),
    "evaluate": above(0, 1000, "a usual value is 0.5; leave it out to publish no metrics"),
    "promise": above(0, 1000, "leave it out to promise epsilon and nothing more"),
    "delta": Limit(1e-30, 1, "leave it out for min(1e-5, n^-1.1), n the number of protected units", below=True),
    "noise_multiplier": above(0, LARGEST_NOISE_MULTIPLIER, "for no noise use level='none'"),
    "clip": finite(SMALLEST_CLIP, LARGEST_CLIP, "float32 norms are exact enough there; a usual value is 1"),
    "clip_quantile": share("a usual value is 0.5", with_all=False, with_none=False),
    "cohort": above(0, 1e9, "it is the expected number of clients in a round"),
    "choice_epsilon": above(0, 1000, "a usual value is 0.1"),
    "choice_bound": above(0, 1e6, "it is the largest loss of one example that a choice takes into account"),
    "noise_bands": whole(1, 10_000, "1 means independent noise"),
    "noise_power": finite(-10, 10, "0 means no change"),
    "noise_factor": Limit(0, 10, "1 means no change", above=True, below=True),
    "clip_factor": Limit(0, 10, "1 means no change", above=True, below=True),
    "clients_per_person": whole(1, 10_000, "it says in how many clients one person's data may be"),
    "rows_per_person": whole(1, 10_000, "it says how many rows of one person count"),
    "colluding": whole(0, 254, "it counts clients that may work with the aggregator"),
    "survivors": whole(2, 256, "it counts clients that must be left of a round"),
    # options of methods, and of what comes after training
    "step_size": above(0, 1e6, "a usual value is 0.1"),
    "strength": OR_INFINITE,
    "covariance_regularized.strength": finite(0, 1e6, "0 is training alone"),
    "covariance_regularized.ridge": finite(0, 1e9, "0 means none"),
    "condition": share("it is strong convexity over smoothness; 0 means convex only"),
    "outliers": Limit(0, infinite=True, remedy="infinity means no part of a client's own"),
    "mocha.strength": finite(0, 1e6, "0 is training alone"),
    "afterwards.strength": finite(0, 1e6, "0 holds nothing"),
    "strengths": finite(0, 1e6, "0 holds nothing"),
    "start": above(0, 1e6, "a usual value is 1"),
    "learning": finite(0, 1e3, "0 keeps the first strength; a usual value is 0.5"),
    "curvature": above(0, 1e6, "a usual value is 1"),
    "average": finite(0, 1e6, "a usual value is 3; larger keeps the last rounds only"),
    "sampling": finite(0, 1e6, "a usual value is 0.5"),
    "scaling": above(0, 1e6, "1 is what theory says"),
    "shared_rounds": Limit(0, infinite=True, remedy="from this round on nothing is shared"),
    "choosing_rounds": Limit(0, infinite=True, remedy="from this round on clusters are fixed"),
    "alone_from": Limit(0, infinite=True, remedy="from this round on every client trains alone"),
    "own_rate": finite(0, 1e3, "0 is federated averaging"),
    "layers": whole(0, 1000, "the first so many layers are shared"),
    "clusters": whole(1, 1000),
    "spread": finite(0, 1e6, "a usual value is 0.1"),
    "count_scale": above(0, 1e6, "a usual value is 0.5"),
    "ridge": above(0, 1e9),
    "target_bound": above(0, 1e6, "it is how far from 0 a target can be; a schema scales to 1"),
    "gradients": whole(1, 100, "usual values are 4 and 12"),
    "shift": finite(-1e6, 1e6, "a usual value is 1"),
    "steps": whole(0, MOST_STEPS),
    "reach": finite(0, 1e6, "a usual value is 2"),
    "margin": finite(0, 1e6, "a usual value is 2"),
    "factor": finite(0, 1e6, "1 means no change"),
    "every": finite(1, HUGE, "it is a number of rounds"),
    # tuning, planning and attacks
    "trials": above(1, 10_000, "it is the mean number of trials"),
    "bound": above(0, 1e6, "it is the largest loss of one example that a score takes into account"),
    "validation": share("it is the part of every client's rows kept for scores", with_all=False, with_none=False),
    "rows": COUNT,
    "clients": COUNT,
    "examples": COUNT,
    "features": whole(1, 1000),
    "batch": above(0, 1e9, "it is the expected batch"),
    "Plan.steps": whole(1, 10**7, "plan for fewer steps"),
    "Plan.rounds": whole(1, 10**7, "plan for fewer rounds"),
    "sigma": finite(0, 1e9),
    "tau": finite(0, 1e9, "0 means that clients do not differ"),
    "noise": finite(0, 1e12),
    "runs": COUNT,
    "quorum": COUNT,
    "confidence": share("a usual value is 0.99", with_all=False, with_none=False),
    # tables and federations
    "low": finite(-1e100, 1e100, "give the bounds that are known without looking at the data"),
    "high": finite(-1e100, 1e100, "give the bounds that are known without looking at the data"),
    "classes": whole(0, 10**6),
    "horizon": above(0, 1e9, "it is a time, in the unit of the target"),
    "edges": above(0, 1e9, "intervals end there, in the unit of the time"),
    "most": finite(1, 1e9, "it is the most that counts; larger counts are moved there"),
    "sizes": COUNT,
    "tests": whole(0, 10**9, "it counts rows that a client keeps from training; 0 for none"),
    "target_range": finite(-1e100, 1e100, "give what is known without looking at the data"),
    "largest_value": above(0),
    "answer_every": finite(0, 86_400, "it is in seconds"),
    "port": whole(1, 65_535),
    "round_seconds": SECONDS,
    "wait_seconds": SECONDS,
}
"""What is allowed, by the name of a field or option; where one record or method has its own limit, by both names."""


def checked(name: str, value: object, of: str = "") -> float:
    """The number as a plain `int` or `float`, if it is one and in range; a ConfigError otherwise.

    `name`: the field's. `value`: what was given; numpy's numbers are numbers, truth values and text are none. `of`: the
    record's or method's name, where that may have a limit of its own.
    """
    limit = ALLOWED.get(f"{of}.{name}") or ALLOWED[name]
    plain = _plain(value)
    kinds = int if limit.is_whole else (int, float)
    kind = "a whole number" if limit.is_whole else "a number"
    if isinstance(plain, bool) or not isinstance(plain, kinds):
        raise ConfigError(f"{name}={shown(value)} must be {kind}, {limit.words}: {limit.remedy}")
    if not limit.holds(plain):
        raise ConfigError(f"{name}={shown(value)} must be {limit.words}: {limit.remedy}")
    return plain if limit.is_whole else float(plain)


def is_number(value: object) -> bool:
    """Whether a default says that an option is a number.

    `value`: the default.
    """
    return isinstance(_plain(value), int | float) and not isinstance(_plain(value), bool)


def settle(record: object) -> None:
    """Checks every number and truth value of a frozen dataclass, and keeps them as plain ones.

    `record`: the dataclass's instance; the types of its fields, as they are written, say what they hold.
    """
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        kind, _, optional = str(field.type).partition(" | ")
        value = getattr(record, field.name)
        if value is None and optional == "None":
            continue
        if kind == "bool":
            found: object = _truth(field.name, value)
        elif kind in ("int", "float") and optional in ("", "None"):
            found = checked(field.name, value, type(record).__name__)
        elif kind in ("tuple[int, ...]", "tuple[float, ...]"):
            found = several(field.name, value, type(record).__name__)
        else:
            continue
        object.__setattr__(record, field.name, found)


def several(name: str, values: object, of: str = "") -> tuple[float, ...]:
    """Several numbers, each as by `checked`.

    `name`: the field's. `values`: what was given. `of`: the record's or method's name.
    """
    plain = _plain(values)
    if not isinstance(plain, tuple | list):
        raise ConfigError(f"{name}={shown(values)} must be a list of numbers: write it in brackets")
    return tuple(checked(name, value, of) for value in plain)


def require_feasible(rounds: int, steps: int) -> None:
    """Refuses work that would never end.

    `rounds`: of the whole run. `steps`: local steps of the client that takes most, in a round.
    """
    if steps > MOST_STEPS or rounds * steps > MOST_RELEASES:
        raise ConfigError(
            f"rounds={rounds} of {steps} local steps each: at most {MOST_STEPS} in a round and {MOST_RELEASES:g} in "
            "all, which would take days already: use fewer epochs or rounds, or larger batches"
        )


def _truth(name: str, value: object) -> bool:
    plain = _plain(value)
    if not isinstance(plain, bool):
        raise ConfigError(f"{name}={shown(value)} must be true or false")
    return plain


def _plain(value: object) -> object:
    """Numbers and arrays of numpy and jax as Python's own."""
    plain = getattr(value, "tolist", None)
    return value if plain is None or isinstance(value, type) else plain()


def _text(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"

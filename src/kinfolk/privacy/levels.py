"""Privacy levels: where the noise sits, what it protects, and what must come out clean.

>>> example_level(epsilon=1, delta=1e-5).level.clean
('message', 'personal', 'shared')
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum

import jax.numpy as jnp
import numpy as np

from kinfolk import limits, trees
from kinfolk.privacy.choice import Chooser
from kinfolk.privacy.gates import CHOICE, GRADIENT, MIXTURE, SECOND_MOMENT, SQUARES, STATISTIC, UPDATE
from kinfolk.privacy.mechanisms import RELATIONS, Mechanism
from kinfolk.privacy.noise_shares import NoiseShares, usual
from kinfolk.types import Value

FEDERATION = "the federation"
"""The party that pays at client level."""
NOISES = ("gaussian", "laplace")
SCORES = ("loss", "error")
AGGREGATORS = ("trusted", "secure", "local")


class Level(StrEnum):
    """What one unit of privacy is, and with it who pays, at which gate the noise stands, and what must come out clean.

    Its text form (`example`, `client`, `none`) is what stands in experiments, ledgers and statements.
    """

    EXAMPLE = "example"
    """Each client is private on its own, nobody else is trusted."""
    CLIENT = "client"
    """Joint privacy of whole clients, with a trusted aggregator."""
    NONE = "none"
    """No privacy, for comparison."""

    def __repr__(self) -> str:
        return repr(self.value)

    @classmethod
    def _missing_(cls, value: object) -> Level:
        raise ValueError(f"level={value!r} is not one of {', '.join(cls)}")

    @property
    def private(self) -> bool:
        """Whether anything is protected at all."""
        return self is not Level.NONE

    @property
    def clients_pay(self) -> bool:
        """Noise stands at the data gates, and every client has an account of its own."""
        return self is Level.EXAMPLE

    @property
    def server_pays(self) -> bool:
        """Noise stands at the inbox, and the federation has one account."""
        return self is Level.CLIENT

    @property
    def messages_are_clean(self) -> bool:
        """Whether the aggregator may look at single messages."""
        return not self.server_pays

    @property
    def unit(self) -> str:
        """What is protected, in words."""
        return {"example": "one example of a client", "client": "one whole client", "none": "nothing"}[self]

    @property
    def clean(self) -> tuple[str, ...]:
        """Which outputs of a round must not depend on data except through a release."""
        return ("message", "personal", "shared") if self.clients_pay else ("shared",) if self.server_pays else ()

    @property
    def data_kinds(self) -> tuple[str, ...]:
        """Kinds of release at a client's data gate."""
        return (GRADIENT, STATISTIC, CHOICE) if self.clients_pay else ()

    @property
    def inbox_kinds(self) -> tuple[str, ...]:
        """Kinds of release at the aggregator's inbox."""
        return (UPDATE, MIXTURE, SECOND_MOMENT, SQUARES) if self.server_pays else ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """All kinds of release that are paid for."""
        return (*self.data_kinds, *self.inbox_kinds)

    def parties(self, ids: Sequence[str]) -> tuple[str, ...]:
        """Who pays: every client for itself, or the federation.

        `ids`: the clients' names.
        """
        return (FEDERATION,) if self.server_pays else tuple(ids)

    def units(self, sizes: Sequence[int] | np.ndarray) -> list[int]:
        """How many units each party's account protects: a client's examples, or all clients.

        `sizes`: each client's number of examples.
        """
        return [len(sizes)] if self.server_pays else [int(size) for size in sizes]


LEVELS = tuple(level.value for level in Level)


@dataclass(frozen=True)
class Budget:
    """One client's own budget, where it differs from everybody's."""

    epsilon: float
    """The most it may reach."""
    delta: float | None = None
    """The delta at which; None: everybody's."""

    def __post_init__(self) -> None:
        limits.settle(self)


@dataclass(frozen=True)
class PrivacyLevel:
    """A privacy level and its budget.

    Give `epsilon`, and the noise is calibrated to it; or `noise_multiplier` (simulations only), and epsilon is read off
    the ledger; or both, and epsilon is a limit.
    """

    level: Level = Level.NONE
    """`example`: each client is private on its own, nobody else is trusted. `client`: joint privacy, trusted
    aggregator. `none`: no privacy, for comparison."""
    epsilon: float | None = None
    delta: float | None = None
    """Default: min(1e-5, n^-1.1), n the number of protected units."""
    promise: float | None = None
    """The most that all releases of the same units may ever reach together, for data that will be released again;
    default epsilon. The statement gives this number, and later releases are refused that would break it."""
    noise_multiplier: float | None = None
    """Noise standard deviation divided by the clip norm."""
    clip: float = 1.0
    """Largest norm of one unit's contribution."""
    clip_quantile: float | None = None
    """The clip norm follows this quantile of the clients' norms, from `clip` on, inside the same releases (client
    level); a usual value is 0.5. None: it stays."""
    relation: str = "zero_out"
    """Which data sets are neighbours: `zero_out`, a unit against nothing in its place, or `replace_one`."""
    cohort: float | None = None
    """Expected number of clients in a round; default all."""
    allow_large_delta: bool = False
    """Accept a delta that is not below one over the number of units."""
    choice_epsilon: float = 0.1
    """Cost of one private choice between models (example level, methods that cluster)."""
    choice_bound: float = 1.0
    """Largest loss of one example that a choice takes into account."""
    choice_score: str = "loss"
    """What a choice looks at: each example's `loss`, or (classification) its `error`, 0 or 1."""
    noise_bands: int = 1
    """Above 1: noise is correlated over this many steps, examples (or clients) take part in turns instead of by secret
    coins, and the whole run is one release. Simulations only so far."""
    noise_power: float = 0.0
    """Noise in round t = 1, 2, ... is proportional to t^-noise_power: above 0, later rounds get more of the budget."""
    noise_factor: float = 1.0
    """Noise is also multiplied by this from round to round."""
    clip_factor: float = 1.0
    """The clip norm is multiplied by this from round to round, and the noise with it."""
    budgets: dict[str, Budget] = field(default_factory=dict)
    """Budgets of single clients, by id (example level)."""
    noise: str = "gaussian"
    """`laplace` (client level, everybody in every round): pure epsilon, for methods whose only release allows it."""
    clients_per_person: int = field(default=1, metadata={"was": "tasks_per_person"})
    """In how many clients one person's data may be; an assumption. At client level the noise protects a person in
    that many clients at once; at example level the statement gives what any so many accounts come to together."""
    aggregator: str = "trusted"
    """Who adds the noise at client level. `trusted`: the aggregator, which sees every message. `secure`: the clients,
    in shares and under masks, so that the aggregator sees sums alone: over Flower, and in simulations of the same law.
    `local`: each client all of it, for comparison in simulations."""
    colluding: int | None = None
    """Secure: against the aggregator together with so many clients; default a fifth of them."""
    survivors: int | None = None
    """Secure: the fewest clients of a round that must be left; default four fifths, or more where that is too few."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", Level(self.level))
        limits.settle(self)
        if self.promise is not None and not (self.epsilon or 0) <= self.promise:
            raise ValueError(
                f"promise={self.promise:g} is below epsilon={self.epsilon}: promise at least what is spent"
            )
        if self.relation not in RELATIONS:
            raise ValueError(f"relation={self.relation!r} is not one of {RELATIONS}")
        if not self.level.private:
            if self.epsilon is not None or self.noise_multiplier is not None:
                raise ValueError("level='none' has no budget: choose level='example' or 'client', or leave epsilon out")
        elif self.epsilon is None and self.noise_multiplier is None:
            raise ValueError(f"level={self.level!r} needs epsilon, or noise_multiplier, or both")
        if self.cohort is not None and self.level.clients_pay:
            raise ValueError(
                "cohort belongs to level='client': at example level every client takes part in every round"
            )
        uneven = self.noise_power != 0 or self.noise_factor != 1 or self.clip_factor != 1 or self.clip_quantile
        if self.noise_bands > 1 and uneven:
            raise ValueError("noise_bands above 1 needs the same noise and clip in all rounds: leave the schedules out")
        if self.clip_quantile is not None and not self.level.server_pays:
            raise ValueError("clip_quantile belongs to level='client': at example level choose a clip norm")
        if self.choice_score not in SCORES:
            raise ValueError(f"choice_score={self.choice_score!r} is not one of {SCORES}")
        if self.choice_score == "error" and self.choice_bound != 1:
            raise ValueError(f"choice_bound={self.choice_bound}: an error is 0 or 1, so its bound is 1; leave it out")
        if self.noise not in NOISES:
            raise ValueError(f"noise={self.noise!r} is not one of {NOISES}")
        if self.noise == "laplace" and (not self.level.server_pays or self.cohort is not None):
            raise ValueError("noise='laplace' is for level='client' without a cohort: use noise='gaussian'")
        if (self.noise == "laplace" or self.clients_per_person > 1) and (self.noise_bands > 1 or self.clip_quantile):
            raise ValueError(
                "noise_bands and clip_quantile go with noise='gaussian' and clients_per_person=1 only: leave them out"
            )
        if self.noise == "laplace" and uneven:
            raise ValueError("noise='laplace' needs the same noise and clip in all rounds: leave the schedules out")
        if self.clients_per_person > 1 and self.cohort is not None:
            raise ValueError(
                f"clients_per_person={self.clients_per_person} has no account with cohort={self.cohort:g}, as coins of "
                "several clients would protect one person: leave the cohort out"
            )
        self._require_aggregator()
        if self.budgets and not self.level.clients_pay:
            raise ValueError("budgets of single clients exist at level='example' only")
        for client, own in self.budgets.items():
            if not isinstance(own, Budget):
                raise ValueError(
                    f"budgets[{client!r}]={own!r} is no Budget: give Budget(epsilon=0.5), from kinfolk.privacy.levels"
                )

    def _require_aggregator(self) -> None:
        if self.aggregator not in AGGREGATORS:
            raise ValueError(f"aggregator={self.aggregator!r} is not one of {AGGREGATORS}")
        if self.aggregator != "secure" and (self.colluding is not None or self.survivors is not None):
            raise ValueError("colluding and survivors belong to aggregator='secure': leave them out")
        if self.aggregator == "trusted":
            return
        if not self.level.server_pays or self.cohort is not None:
            raise ValueError(
                f"aggregator={self.aggregator!r} is for level='client' without a cohort: the aggregator sees who takes "
                "part, and everybody's share of the noise is needed"
            )
        if self.noise != "gaussian" or self.noise_bands > 1:
            raise ValueError(f"aggregator={self.aggregator!r} goes with independent Gaussian noise: leave the rest out")

    def budget(self, client: str) -> Budget | None:
        """A client's budget, its own or everybody's; None where the noise is given instead.

        `client`: its name.
        """
        own = self.budgets.get(client)
        if own is None:
            return Budget(self.epsilon, self.delta) if self.epsilon else None
        return own if own.delta is not None else replace(own, delta=self.delta)

    def shares(self, clients: int) -> NoiseShares | None:
        """Among whom the noise is shared; None where it is not.

        `clients`: how many there are.
        """
        return usual(clients, self.survivors, self.colluding) if self.aggregator == "secure" else None

    def settled(self, clients: int) -> PrivacyLevel:
        """The same with numbers in place of what is usual, as a statement gives them.

        `clients`: how many there are.
        """
        found = self.shares(clients)
        return self if found is None else replace(self, survivors=found.survivors, colluding=found.colluding)


@trees.register
@dataclass(frozen=True)
class Terms:
    """A level made concrete for one federation: the mechanism at each gate, with every client's own noise."""

    data: Mechanism
    """At the data gates; its leaves have a leading client axis."""
    choice: Chooser
    """At the data gates, for choices; likewise."""
    inbox: Mechanism
    """At the aggregator. Its sampling says who takes part in a round, at every level."""

    noise_factors: Value = field(default_factory=lambda: np.ones(1, np.float32))
    """What the noise multipliers are multiplied by in each round; the last one goes on. Public, and accounted."""
    clip_factors: Value = field(default_factory=lambda: np.ones(1, np.float32))
    """Likewise for the clip norms; the noise moves along, so this costs nothing."""

    @property
    def own(self) -> tuple[Mechanism, Chooser]:
        """What stands at a client's data gate."""
        return self.data, self.choice

    def at(self, number: Value) -> Terms:
        """The terms of one round. Engines ask for them before the round; algorithms cannot.

        `number`: of the round, from 0.
        """

        def scheduled(mechanism: Mechanism) -> Mechanism:
            if mechanism.open:
                return mechanism
            noise, clip = (
                jnp.asarray(factors).at[number].get(mode="clip") for factors in (self.noise_factors, self.clip_factors)
            )
            return replace(mechanism, noise_multiplier=mechanism.noise_multiplier * noise, clip=mechanism.clip * clip)

        return replace(self, data=scheduled(self.data), inbox=scheduled(self.inbox))


def example_level(
    epsilon: float | None = None, delta: float | None = None, *, clip: float = 1.0, **options: object
) -> PrivacyLevel:
    """Every client's messages and model protect each of its examples; the server is not trusted.

    Where the data say which person each row belongs to, a person with all rows is the example.

    `epsilon`: the budget; the noise is calibrated to it. `delta`: default min(1e-5, n^-1.1). `clip`: largest norm of
    one unit's contribution. `options`: other fields of `PrivacyLevel`.
    """
    return PrivacyLevel(Level.EXAMPLE, epsilon, delta, clip=clip, **_renamed(options))  # type: ignore[arg-type]


def client_level(
    epsilon: float | None = None, delta: float | None = None, *, clip: float = 1.0, **options: object
) -> PrivacyLevel:
    """Everything that the other clients ever see protects each client's whole data set; the aggregator is trusted.

    `epsilon`: the budget; the noise is calibrated to it. `delta`: default min(1e-5, n^-1.1). `clip`: largest norm of
    one unit's contribution. `options`: other fields of `PrivacyLevel`.
    """
    return PrivacyLevel(Level.CLIENT, epsilon, delta, clip=clip, **_renamed(options))  # type: ignore[arg-type]


def _renamed(options: dict[str, object]) -> dict[str, object]:
    """The options by their names of today."""
    now = {one.metadata["was"]: one.name for one in fields(PrivacyLevel) if "was" in one.metadata}
    return {now.get(name, name): value for name, value in options.items()}


def none() -> PrivacyLevel:
    """No privacy."""
    return PrivacyLevel(Level.NONE)

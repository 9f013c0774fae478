"""A silo's own rules, written by its owner and enforced at the silo, whatever a server asks for.

What a message can choose is the moment, and the shared state that it carries. Everything else is here or in the study:
budget, clip, noise, batches, local steps, rounds, methods, and which columns of which file are read with which bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kinfolk import limits
from kinfolk.deploy.keys import signing_bytes
from kinfolk.deploy.study import Study, read_record, require_separate_rounds
from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.levels import PrivacyLevel
from kinfolk.privacy.release import PrivacyError
from kinfolk.secure.agreement import Pins
from kinfolk.toml import ConfigError
from kinfolk.training.experiment import Training


@dataclass(frozen=True)
class Columns:
    """Which table, and what is known of it beforehand."""

    path: str
    """A CSV, Parquet or Arrow file, relative to the policy file."""
    name: str
    """The data set's name in the ledger, given by its owner: all uses of the same data add up under it."""
    target: str = ""
    """The column to predict, where there is no schema. Of several labels, which are the study's columns, what they are
    called together."""
    bounds: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """Likewise: lowest and highest value of every feature (and of a number to predict), public, not read off the
    data."""
    event: str | None = None
    """Likewise, where the target is a time until an event: the column that says whether it came (yes), or whether
    nothing is known from then on (no)."""
    schema: str | None = None
    """A schema as for `kinfolk train`, relative to the policy file: for categories, yes or no, and gaps."""
    row: str | None = None
    """The column that a record is known by in every table and year, where the account is to follow it."""
    person: str | None = None
    """Or the column that a person is known by: a person, with all rows, is then the unit at example level."""
    rows_per_person: int | None = None
    """How many rows of a person count; public. None: 10."""
    disjoint_because: str | None = None
    """Why nobody in this table is in any other data of the ledger; asked for once, where the name is new in it."""

    def __post_init__(self) -> None:
        if (self.schema is None) == (not self.target):
            raise ConfigError("give either target and bounds, where all columns are numbers, or schema")
        if self.schema is not None and self.event is not None:
            raise ConfigError(f"event={self.event!r}: the schema names it; leave it out")

    def limits(self, column: str) -> tuple[float, float]:
        """The declared bounds of a column."""
        found = self.bounds.get(column, ())
        if len(found) != 2 or not found[0] < found[1]:
            raise ConfigError(f"bounds.{column}={list(found)}: give its lowest and its highest value")
        low, high = (limits.checked(name, value) for name, value in zip(("low", "high"), found, strict=True))
        return low, high


@dataclass(frozen=True)
class Policy:
    """What one silo does, and not more."""

    client: str
    """This silo's name in the study."""
    data: Columns
    privacy: PrivacyLevel
    """Level, budget, clip and noise. At example level this is the silo's own guarantee."""
    training: Training
    """Batch size and epochs: they decide sampling rate and local steps."""
    methods: tuple[str, ...]
    """Methods the silo takes part in."""
    rounds: int
    """The most rounds of a run that are served; noise is calibrated to them."""
    runs: int = 1
    """The most runs that are served; each is charged to the same budget."""
    state: str = "state"
    """Where personal states and what was sent are kept, relative to the policy file."""
    ledger: str | None = None
    """The ledger of the silo's owner, relative to the policy file: one for all studies and all tables. None: that of
    whoever uses this computer (`kinfolk ledger show`)."""
    trust_because: str | None = None
    """Client level: why this study's aggregator may see messages without noise, though rows of the table were promised
    protection against everybody. Asked for once; statements quote it."""
    silos: dict[str, str] = field(default_factory=dict)
    """Secure sums (`aggregator = "secure"`): the silos that this one takes part with, each with its public key as in
    its `signing.pub`, compared with its owner. A server cannot add to this list; `survivors` and `colluding` under
    privacy are the least that a study may have."""
    signing: str = "signing"
    """Likewise: the silo's own key, relative to the policy file."""
    evaluate: float | None = None
    """Leave to answer the study's one evaluation of a run on rows that are kept from training, and the most epsilon
    that it may cost, beside training's. None: no leave; all rows are trained on."""
    largest_value: float = 1e6
    """A shared state with a larger value is refused."""
    answer_every: float = 1.0
    """Seconds: every answer is held back to a multiple of it, so that its time says nothing."""
    test_keys: bool = False
    """INSECURE: keys from the study's seed, for tests. Nothing is private then."""

    def __post_init__(self) -> None:
        limits.settle(self)
        require_separate_rounds(self.privacy)


def read_policy(path: Path) -> Policy:
    """The policy in a TOML file."""
    return read_record(Policy, path)


def pins_of(policy: Policy) -> Pins:
    """What a silo insists on in secure sums, whatever the server's study says: whose keys, how many, how much noise."""
    if policy.client not in policy.silos:
        raise ConfigError(
            f"silos: the policy of {policy.client!r} lists the silos that it takes part with, itself among them, each "
            'with its key: [silos] NAME = "ssh-ed25519 ..."'
        )
    shares = policy.privacy.shares(len(policy.silos))
    assert shares is not None
    return Pins(
        {name: signing_bytes(key) for name, key in policy.silos.items()},
        shares.survivors,
        len(policy.silos),
        shares.colluding,
        (policy.privacy.noise_multiplier or 0.0) * GRID_STEPS,
    )


def require_compatible(policy: Policy, study: Study) -> None:
    """Refuses a study that the policy does not allow, before the silo answers anybody."""
    if policy.client not in study.roster.clients:
        raise ConfigError(f"client={policy.client!r} is not one of the study's: {', '.join(study.roster.clients)}")
    if policy.privacy.level != study.level:
        raise PrivacyError(
            f"the policy is at level={policy.privacy.level!r} and the study at level={study.level!r}: a message that "
            "one of them protects would be sent unprotected under the other. Agree on one"
        )
    if policy.privacy.aggregator != study.experiment.privacy.aggregator:
        raise PrivacyError(
            f"the policy has aggregator={policy.privacy.aggregator!r} and the study "
            f"{study.experiment.privacy.aggregator!r}: under one of them the server sees this silo's messages. Agree"
        )
    if study.sums_are_secure:
        pins_of(policy)
    _require_same_evaluation(policy, study)
    for phase in study.experiment.phases:
        if phase.method not in policy.methods:
            raise PrivacyError(f"method={phase.method!r} is not among the policy's methods={list(policy.methods)}")
    if policy.test_keys != (study.experiment.seed is not None):
        raise PrivacyError(
            f"test_keys={policy.test_keys} but the experiment's seed={study.experiment.seed}: a seed is for tests and "
            "needs test_keys = true; a real federation has neither"
        )
    if policy.test_keys:
        return
    if not policy.privacy.level.private:
        raise PrivacyError("level='none' protects nobody: it runs only with test keys")
    level = policy.privacy
    pays = level.level.clients_pay or study.sums_are_secure
    if pays and level.epsilon is None:
        raise PrivacyError("the policy needs a budget: give epsilon (besides noise_multiplier)")
    if pays and level.noise_multiplier and (level.noise_power != 0 or level.noise_factor != 1):
        raise PrivacyError(  # or a server could choose, from what it sees, which of unequal rounds the budget is for
            "noise that changes from round to round is calibrated to the budget as a whole: leave noise_multiplier out"
        )


def has_leave(policy: Policy, study: Study) -> bool:
    """Whether the silo answers the study's evaluation, which it may refuse and take part in the training alone."""
    place = study.roster.clients.index(policy.client)
    return study.experiment.evaluate is not None and policy.evaluate is not None and study.roster.tests[place] > 0


def _require_same_evaluation(policy: Policy, study: Study) -> None:
    """Refuses an evaluation that is dearer than the policy's, or whose noise the server would take for another."""
    if not has_leave(policy, study):
        return
    asked, allowed = study.experiment.evaluate or 0.0, policy.evaluate or 0.0
    if asked > allowed:
        raise PrivacyError(
            f"the study's evaluate={asked:g} is more than the policy's evaluate={allowed:g}: agree on one, or leave it "
            "out of the policy, to take part in the training alone"
        )
    for name in ("relation", "clients_per_person"):
        own, theirs = getattr(policy.privacy, name), getattr(study.experiment.privacy, name)
        if own != theirs:
            raise PrivacyError(
                f"the policy has {name}={own!r} and the study {theirs!r}, so the server would take the noise of this "
                "silo's evaluation for another: agree on one, or leave evaluate out of the policy"
            )

"""What there is. A new algorithm needs its file and an entry here: tests, docs, command line and config read this."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from kinfolk import limits
from kinfolk.algorithms.covariance_regularized import CovarianceRegularized
from kinfolk.algorithms.ditto import Ditto
from kinfolk.algorithms.empirical_bayes import EmpiricalBayes
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.fedprox import FedProx
from kinfolk.algorithms.few_releases import FewReleases
from kinfolk.algorithms.few_releases_binary import FewReleasesBinary
from kinfolk.algorithms.fine_tune import FineTune
from kinfolk.algorithms.ifca import Ifca
from kinfolk.algorithms.joint import Joint
from kinfolk.algorithms.local import Local
from kinfolk.algorithms.mean_regularized import MeanRegularized
from kinfolk.algorithms.mean_regularized_auto import MeanRegularizedAuto
from kinfolk.algorithms.mocha import Mocha
from kinfolk.algorithms.relation_regularized import RelationRegularized
from kinfolk.algorithms.schedules import Schedule
from kinfolk.algorithms.shared_and_own import SharedAndOwn
from kinfolk.algorithms.shared_layers import SharedLayers
from kinfolk.privacy.levels import LEVELS
from kinfolk.toml import ConfigError
from kinfolk.types import Algorithm


@dataclass(frozen=True)
class Entry:
    """One algorithm: how to make it, where it may be used, and where it comes from."""

    name: str
    """The name by which experiments call it."""
    make: type
    """The dataclass, an `Algorithm`."""
    title: str
    """What it is, in a few words."""
    paper: str
    """Where it comes from."""
    levels: tuple[str, ...] = LEVELS
    """Privacy levels at which it is offered, and so tested."""
    outcome: str = "number"
    """An outcome that it is for: checks have a linear model of it."""
    fewest_rounds: int = 1
    """How many rounds it needs to use what it releases."""
    in_cohorts: bool = True
    """Whether clients may take part in some rounds only."""

    def options(self) -> dict[str, object]:
        """Hyper-parameters and their defaults."""
        return {f.name: f.default for f in fields(self.make)}

    def build(self, **options: object) -> Algorithm:
        """The algorithm; a number given as a table {start, factor, every} is a schedule over rounds.

        `options`: hyper-parameters by name, where they differ from the defaults.
        """
        known = self.options()
        for name, value in sorted(options.items()):
            if name not in known:
                raise ValueError(f"{self.name} has no option {name!r}; it has {', '.join(known)}")
            if isinstance(known[name], bool) and not isinstance(value, bool):
                raise ValueError(f"{name}={value!r} of {self.name} must be true or false")
        numbers = check_numbers(self.name, options)
        return self.make(**{key: Schedule(**v) if isinstance(v, dict) else v for key, v in numbers.items()})


REGISTRY: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("local", Local, "Training alone", "the baseline of every paper"),
        Entry("fedavg", FedAvg, "Federated averaging", "McMahan et al., 2017; with noise, McMahan et al., 2018"),
        Entry(
            "mean_regularized",
            MeanRegularized,
            "Mean-regularised multi-task learning",
            "Hu, Wu, Smith, 2021 (client level, PMTL); Liu, Hu, Wu, Smith, 2022 (example level, MR-MTL)",
        ),
        Entry(
            "mean_regularized_auto",
            MeanRegularizedAuto,
            "Mean-regularised, strength learned for free",
            "our answer to an open question of Liu, Hu, Wu, Smith, 2022 (section 7)",
            ("example", "none"),
        ),
        Entry("fine_tune", FineTune, "Averaging, then fine-tuning alone", "Liu, Hu, Wu, Smith, 2022"),
        Entry("fedprox", FedProx, "FedProx", "Li et al., 2020"),
        Entry("shared_and_own", SharedAndOwn, "PP-SGD: shared plus own weights", "Bietti et al., 2022"),
        Entry(
            "shared_layers",
            SharedLayers,
            "A shared representation with a personal head",
            "Arivazhagan et al., 2019; Collins et al., 2021",
        ),
        Entry(
            "joint",
            Joint,
            "Plain privacy for all personal models at once",
            "figure 1 of Hu, Wu, Smith, 2023; for comparison",
            ("client", "none"),
        ),
        Entry("ditto", Ditto, "Ditto", "Li, Hu, Beirami, Smith, 2021"),
        Entry(
            "relation_regularized",
            RelationRegularized,
            "Regularisation by a public relation",
            "the general relation of Hu, Wu, Smith, 2021, made private",
        ),
        Entry(
            "mocha", Mocha, "Mocha: learned relations", "Smith, Chiang, Sanjabi, Talwalkar, 2017", ("example", "none")
        ),
        Entry(
            "ifca",
            Ifca,
            "Iterative clustering",
            "Ghosh et al., 2020; Mansour et al., 2020; private choice and warm start as in Liu, Hu, Wu, Smith, 2022",
        ),
        Entry(
            "empirical_bayes",
            EmpiricalBayes,
            "One-shot empirical Bayes for linear models",
            "kinfolk; what is shared is the task covariance, as in Liang et al., 2020",
            ("client", "none"),
            fewest_rounds=2,
            in_cohorts=False,
        ),
        Entry(
            "few_releases",
            FewReleases,
            "Seven releases instead of many gradients, for linear regression",
            "kinfolk; personal weights by empirical Bayes from noisy moments and gradients",
            ("example", "none"),
        ),
        Entry(
            "few_releases_binary",
            FewReleasesBinary,
            "Fourteen releases instead of many gradients, for yes or no",
            "kinfolk; personal weights by empirical Bayes from noisy, clipped gradients",
            ("example", "none"),
            "binary",
        ),
        Entry(
            "covariance_regularized",
            CovarianceRegularized,
            "Model-protected multi-task learning, with sound noise",
            "Liang, Liu, Zhou, Jiang, Zhang, Wang, 2020",
            ("client", "none"),
        ),
    )
}
"""All methods, by name."""

LEARNED: dict[str, dict[str, object]] = {"mean_regularized": {}, "ditto": {"apart": True}}
"""Methods whose strength may be "auto", and what that adds to the options of `mean_regularized_auto`."""


def resolve(name: str, options: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    """A method and its options as given, with `strength = "auto"` resolved to the method that learns it.

    `name`: the method. `options`: its options.
    """
    if options.get("strength") != "auto":
        return name, dict(options)
    if name not in LEARNED:
        raise ValueError(f"strength='auto' exists for {' and '.join(LEARNED)}, not for {name}: give a number")
    return "mean_regularized_auto", {**{key: v for key, v in options.items() if key != "strength"}, **LEARNED[name]}


def check_numbers(method: str, options: Mapping[str, object]) -> dict[str, Any]:
    """The options of a method with their numbers checked, those in a schedule too.

    `method`: its name; one that does not exist is reported where it is built, and so are options that it does not have.
    `options`: as given; "auto" is left to `resolve`.
    """
    entry = REGISTRY.get(method)
    numeric = {name for name, value in entry.options().items() if limits.is_number(value)} if entry else set()
    return {
        name: _checked(method, name, value) if name in numeric and value != "auto" else value
        for name, value in options.items()
    }


def _checked(method: str, name: str, value: object) -> object:
    if isinstance(value, Schedule):
        value = vars(value)
    if not isinstance(value, dict):
        return limits.checked(name, value, method)
    unknown = sorted(set(value) - {"start", "factor", "every"})
    if unknown or "start" not in value:
        raise ConfigError(f"{name}={value} is a schedule, and needs start, and may have factor and every; nothing else")
    start = limits.checked(name, value["start"], method)
    rest = {key: limits.checked(key, number) for key, number in value.items() if key != "start"}
    return {"start": start, **rest}


def outcome_of(algorithm: Algorithm) -> str:
    """An outcome that an algorithm is for; numbers, where it is not listed.

    `algorithm`: one that was built.
    """
    return next((entry.outcome for entry in REGISTRY.values() if entry.make is type(algorithm)), "number")


def rounds_of(method: str) -> int | None:
    """How many rounds a method takes where it says so itself; None: as many as one likes.

    `method`: its name.
    """
    return getattr(REGISTRY[method].build(), "rounds", None) if method in REGISTRY else None


def takes_steps(method: str) -> bool:
    """Whether a method has local steps; one that does not exist is reported where it is built.

    `method`: its name.
    """
    return method not in REGISTRY or "step_size" in REGISTRY[method].options()

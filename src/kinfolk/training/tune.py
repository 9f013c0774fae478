"""Tuning by repetition with its true cost: a random, hidden number of trials, private scores, only the winner leaves.

Every trial trains at example level and then releases one score per client: the sum of its validation losses, each cut
to [0, bound], with Gaussian noise. One trial's cost is training and score together; what keeping the best of a random
number of trials costs is Papernot and Steinke's theorem, through `accounting/composition.py`. The noise of a trial is
solved for so that all of that meets every client's budget.

Simulations only. A release would have to draw fresh exact noise for every trial and to charge the whole selection to
the ledgers before the first; that is not built, so a run without a seed is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk import limits, trees
from kinfolk.accounting import composition, noise_for_budget
from kinfolk.accounting.budgets import budget_of
from kinfolk.data.federation import DataError, Federation, from_rows
from kinfolk.data.registry import load_data
from kinfolk.engines import resident
from kinfolk.engines.loop import Sweep
from kinfolk.limits import LARGEST_NOISE_MULTIPLIER
from kinfolk.privacy import clipping
from kinfolk.privacy.gates import CHOICE, GRADIENT, STATISTIC
from kinfolk.privacy.mechanisms import Cost, GaussianSum, Sampling
from kinfolk.privacy.release import PrivacyError, new_meter
from kinfolk.roots import root
from kinfolk.theory import tuning as theory
from kinfolk.theory.mean_estimation import Problem
from kinfolk.toml import ConfigError
from kinfolk.training import pieces
from kinfolk.training.build import as_sweep, build_algorithm
from kinfolk.training.charges import uses_of
from kinfolk.training.evaluate import at_the_end, summary
from kinfolk.training.experiment import Experiment, Phase
from kinfolk.training.pieces import Each, Result
from kinfolk.training.prepare import Job, prepare
from kinfolk.training.scorecard import Scorecard
from kinfolk.types import Algorithm, Model, Params, Rows, Tree

SCORE = "score"
SHAPES = {"logarithmic": 0.0, "geometric": 1.0, "poisson": theory.POISSON}
SCORE_SHARE = 0.2
"""A score alone would cost this share of the budget."""


@dataclass(frozen=True)
class Tuning:
    """How to tune. `choices` has the values of each option; a trial draws one combination, all equally likely."""

    choices: Mapping[str, Sequence[float]]
    trials: float = 10.0
    """Mean number of trials."""
    distribution: str = "logarithmic"
    bound: float = 1.0
    """Largest loss of one example that a score takes into account."""
    validation: float = 0.2
    """Share of each client's training rows kept for scores."""

    def __post_init__(self) -> None:
        if self.distribution not in SHAPES:
            raise ConfigError(f"distribution={self.distribution!r} is not one of {tuple(SHAPES)}")
        if not self.choices or not all(self.choices.values()):
            raise ConfigError("nothing to choose from: give at least one option with its values")
        limits.settle(self)

    @property
    def shape(self) -> float:
        return SHAPES[self.distribution]

    def combinations(self) -> list[dict[str, float]]:
        return [dict(zip(self.choices, values, strict=True)) for values in product(*self.choices.values())]


@dataclass(frozen=True)
class Winner:
    """What leaves: the winner's options and models, and what it all cost. How many trials there were stays hidden."""

    options: dict[str, float] | None
    """None when no trial was drawn (Poisson): then nothing was trained or released."""
    models: Params | None
    epsilons: dict[str, float]
    """Per client, for the whole selection."""
    delta: float
    error: float | None
    """Mean client's test error, as the model sees it: for study, in a simulation."""
    measured: Scorecard | None
    """The same by name and in the target's own unit, beside the constant and the shared model."""
    warning: str | None


@dataclass(frozen=True)
class Trials:
    """What all trials have in common."""

    job: Job
    scorer: GaussianSum
    validation: Rows

    @cached_property
    def score_of(self) -> Callable[[GaussianSum, Params, Rows, Array], Array]:
        """Compiled once for all trials of a process."""
        return scoring(self.job.plan.model)


class Trial(NamedTuple):
    """One training, with options that were drawn for it."""

    number: int
    options: dict[str, float]


def tune(
    experiment: Experiment, tuning: Tuning, data: Federation | None = None, *, in_pieces: Each = pieces.each
) -> Winner:
    """The best of a random number of trials, in a simulation. `in_pieces` does the trials, one by one unless told."""
    _refuse(experiment)
    assert experiment.seed is not None
    (phase,) = experiment.phases
    data = load_data(experiment.data, experiment.seed) if data is None else data
    training, validation = split(data, tuning.validation, experiment.seed)
    for name, values in tuning.choices.items():
        for value in values:
            replace(phase, options={**phase.options, name: value})  # refused here, and not in the trial that draws it
    combinations = tuning.combinations()
    first = replace(phase, options={**phase.options, **combinations[0]})
    job = prepare(replace(experiment, seeds=1, phases=(first,)), [training])
    job.require_checked()
    if job.account.uses[CHOICE].any():
        raise ConfigError(f"{phase.method} makes private choices, which tune does not pay for yet: use another method")
    if job.account.uses[STATISTIC].any():
        raise ConfigError(f"{phase.method} has nothing to tune: use it as it is, or tune another method")
    job, scorer, epsilons = calibrated(job, tuning)
    generator = np.random.default_rng([experiment.seed, 1])
    count = theory.draw_trials(generator, mean=tuning.trials, shape=tuning.shape)
    drawn = [Trial(number, combinations[int(generator.integers(len(combinations)))]) for number in range(count)]
    # never cut short: the number alone decides
    found = in_pieces(tried, Trials(job, scorer, validation), {f"trial {one.number + 1}": one for one in drawn})
    delta = max(job.account.deltas().values())
    warning = expectation(job, tuning)
    if not found:
        return Winner(None, None, dict.fromkeys(epsilons, 0.0), delta, None, None, warning)
    trial, best = min(zip(drawn, found.values(), strict=True), key=lambda pair: pair[1].values["score"])
    models = jax.tree.unflatten(
        jax.tree.structure(jax.eval_shape(job.plan.model.init, jax.random.key(0))),
        [jnp.asarray(best.arrays[name]) for name in sorted(best.arrays)],
    )
    return Winner(trial.options, models, epsilons, delta, best.values["error"], best.values["card"], warning)


def tried(trials: Trials, trial: Trial) -> Result:
    """A trial's score, what it is worth on test rows, and its models.

    `trials`: what all have in common. `trial`: this one.
    """
    job, seed = trials.job, trials.job.experiment.seed
    assert seed is not None
    (phase,) = job.experiment.phases
    options = {**phase.options, **trial.options}
    algorithm = build_algorithm(Phase(phase.method, phase.rounds, options), "example", job.ids)
    key = jax.random.fold_in(jax.random.key(seed), 1000 + trial.number)
    models, card, error = trained(job, algorithm, key)
    score = trials.score_of(trials.scorer, models, trials.validation, jax.random.fold_in(key, 1))
    weights = {f"{place:06d}": np.asarray(leaf) for place, leaf in enumerate(jax.tree.leaves(models))}
    return Result({"score": float(score), "error": error, "card": card}, weights)


def _refuse(experiment: Experiment) -> None:
    level = experiment.privacy
    if experiment.seed is None:
        raise PrivacyError("tune is a simulation for now: give a seed. A release of the winner is not built yet")
    if not level.level.clients_pay or level.epsilon is None:
        raise ConfigError(f"tune works at level='example' with an epsilon; level={level.level!r}: choose that")
    if level.noise_power != 0 or level.noise_factor != 1:
        raise ConfigError(
            f"noise_power={level.noise_power:g}, noise_factor={level.noise_factor:g}: tune has one noise for all "
            "rounds; leave the schedule out"
        )
    if len(experiment.phases) != 1:
        raise ConfigError(f"tune takes one phase, and there are {len(experiment.phases)}")


def split(data: Federation, share: float, seed: int) -> tuple[Federation, Rows]:
    """The federation with part of each client's training rows taken out, and those rows."""
    sizes = data.train.sizes
    if min(sizes) < 2:
        raise DataError(f"a client has {min(sizes)} training row(s): tuning needs 2, one of them for its score")
    if data.identity is not None and data.identity.kind == "person":
        raise DataError(
            f"person={data.identity.column!r}: tune counts rows, and its scores would not protect people; give data "
            "without people, or choose settings beforehand"
        )
    names = np.repeat(np.array(data.ids), sizes)
    x, y = (np.concatenate([part[k, :n] for k, n in enumerate(sizes)]) for part in (data.train.x, data.train.y))
    share = max(share, 1 / min(sizes))
    parts = from_rows(
        x, y, names, test_fraction=share, seed=seed, name=data.name, outcome=data.outcome, classes=data.classes
    )
    places = [data.ids.index(name) for name in parts.ids]
    tests = replace(data.test, x=data.test.x[places], y=data.test.y[places], sizes=data.test.sizes[places])
    longest = int(parts.test.sizes.max())
    validation = parts.test.rows(slice(0, len(parts.ids)), longest)
    private = data.scaling_is_private
    kept = replace(parts, test=tests, target=data.target, scaling=data.scaling, scaling_is_private=private)
    return kept, validation


def calibrated(job: Job, tuning: Tuning) -> tuple[Job, GaussianSum, dict[str, float]]:
    """The job with a trial's noise, the mechanism of scores, and what the selection costs each client."""
    assert isinstance(job.terms.data, GaussianSum)
    counts = np.asarray(job.account.uses[GRADIENT]).sum(axis=0).tolist()
    sizes = job.federations[0].train.sizes.tolist()
    noise, score_noise, epsilons = [], [], {}
    solved: dict[object, float] = {}
    for name, cost, count, n in zip(job.ids, job.terms.data.costs(), counts, sizes, strict=True):
        epsilon, delta = budget_of(job.experiment.privacy, name, n)
        assert epsilon is not None
        (z,) = noise_for_budget.noise_multipliers(
            [noise_for_budget.Case(SCORE_SHARE * epsilon, delta, 1, relation=cost.relation)]
        )
        score = Cost("gaussian", z, 1.0, cost.relation)
        case = (cost, count, epsilon, delta)
        if case not in solved:
            solved[case] = noise_of_a_trial(*case, tuning, ((score, 1),))
        noise.append(solved[case])
        score_noise.append(z)
        charges = [(replace(cost, noise_multiplier=noise[-1]), count), (score, 1)]
        epsilons[name] = composition.epsilon_of_the_best(charges, delta, mean=tuning.trials, shape=tuning.shape)
    mechanism = replace(job.terms.data, noise_multiplier=np.array(noise, np.float32))
    bound = np.full(len(noise), tuning.bound, np.float32)
    everybody = Sampling(np.ones_like(bound))
    scorer = GaussianSum(
        bound, np.array(score_noise, np.float32), everybody, np.zeros_like(bound), relation=mechanism.relation
    )
    return job.with_terms(replace(job.terms, data=mechanism)), scorer, epsilons


def noise_of_a_trial(
    cost: Cost,
    uses: int,
    epsilon: float,
    delta: float,
    tuning: Tuning,
    also: Sequence[composition.Charge] = (),
) -> float:
    """The least noise multiplier of training, rounded up, with which the best of all trials meets the budget."""

    def excess(log_z: float) -> float:
        charges = [(replace(cost, noise_multiplier=math.exp(log_z)), uses), *also]
        spent = composition.epsilon_of_the_best(charges, delta, mean=tuning.trials, shape=tuning.shape)
        return math.log(spent / epsilon)

    low, high = math.log(cost.noise_multiplier), math.log(LARGEST_NOISE_MULTIPLIER)
    if excess(high) > 0:
        raise composition.BudgetError(
            f"epsilon={epsilon:g} is too small for {tuning.trials:g} trials: the scores and the selection alone cost "
            "more. Use fewer trials, a larger epsilon, or do not tune"
        )
    found = math.exp(root(excess, low, high, 1e-4) + 2e-4)
    return float(np.nextafter(np.float32(found), np.float32(np.inf)))


def trained(job: Job, algorithm: Algorithm, key: Array) -> tuple[Tree, Scorecard | None, float]:
    """One trial's personal models, and what they are worth on test rows."""
    plan = replace(job.plan, little_work=False)  # many trials have one program
    trial = Sweep(plan, as_sweep(algorithm), as_sweep(job.terms), job.clients, job.tests)
    states = resident.start_all(plan, trial.algorithms, key[None])
    before, rounds = uses_of(states), job.experiment.rounds
    states = trial.rounds(states, 0, rounds)
    job.account.require_metered(before, uses_of(states), range(rounds))
    numbers = {name: np.asarray(values)[0] for name, values in trial.errors(states).items()}
    card, _ = at_the_end(replace(job, algorithms=(algorithm,)), 0, states, numbers)
    state = resident.one_run(states)
    models = jax.vmap(lambda personal: algorithm.model(state.shared, personal))(state.personal)
    return models, card, summary(numbers).get("error", math.nan)


def scoring(model: Model) -> Callable[[GaussianSum, Params, Rows, Array], Array]:
    """The mean over clients of their released scores: noisy sums of cut losses, divided by public numbers of rows.

    A loss that is not a number counts as the bound: a trial that went astray must not win by it.
    """

    def of_client(mechanism: GaussianSum, params: Params, rows: Rows, key: Array) -> Array:
        def cut(params: Params, unit: Tree) -> Array:
            value = model.loss(params, *unit)
            return jnp.where(jnp.isnan(value), mechanism.clip, jnp.clip(value, 0, mechanism.clip))

        meter, units = new_meter(key, (SCORE,)), (rows.x, rows.y)
        total, _ = mechanism(SCORE, meter, clipping.rows(cut), params, units, rows.mask)
        return total / rows.mask.sum().astype(total.dtype)

    def of_all(scorer: GaussianSum, models: Params, rows: Rows, key: Array) -> Array:
        return jax.vmap(of_client)(scorer, models, rows, jax.random.split(key, rows.mask.shape[0])).mean()

    return jax.jit(of_all)


def expectation(job: Job, tuning: Tuning) -> str | None:
    """A warning where not tuning is expected to be better, by mean estimation with as many clients and examples.

    How much clients differ is not known: tuning is compared with the better of training alone and averaging at the
    spread that favours tuning most. Gradients are taken to vary by half of clip^2 over all weights, as in learned
    strengths.
    """
    sizes = job.federations[0].train.sizes
    epsilon, delta = budget_of(job.experiment.privacy, job.ids[len(sizes) // 2], int(np.median(sizes)))
    assert epsilon is not None
    (plain,) = noise_for_budget.noise_multipliers([noise_for_budget.Case(epsilon, delta, 1)])
    tuned = theory.noise_for(epsilon, delta, mean=tuning.trials, shape=tuning.shape)
    weights = trees.size(jax.eval_shape(job.plan.model.init, jax.random.key(0)))
    base = Problem(len(sizes), int(np.median(sizes)), math.sqrt(0.5 / weights), 0.0, plain)
    gains = []
    for factor in np.geomspace(0.1, 10, 41):
        world = replace(base, tau=float(factor) * math.sqrt(base.variance))
        gains.append(replace(world, noise=tuned).best_error / min(world.error(0.0), world.error(math.inf)))
    if set(tuning.choices) == {"strength"}:
        return (
            'only strengths are tuned: strength = "auto" learns them during one training at no cost, and tuning is '
            f"expected to give {min(gains):.2f} times the error of the better of training alone and averaging at best"
        )
    if min(gains) >= 1:
        return (
            f"not tuning is expected to be better: {tuning.trials:g} trials need {tuned / plain:.2f} times the noise, "
            f"and the error is at best {min(gains):.2f} times that of the better of training alone and averaging"
        )
    return None

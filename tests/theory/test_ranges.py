"""Every function of the theory refuses numbers for which it says nothing: by name, with the limit and a remedy."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kinfolk import theory
from kinfolk.theory import (
    client_level,
    convergence,
    covariance_noise,
    covariance_rates,
    increments,
    mean_estimation,
    proximal,
    ranges,
    tuning,
)

COHORTS = {"rate": 0.1, "rounds": 10, "epsilon": 1.0, "delta": 1e-5, "noise_multiplier": 1.0}
DESCENT = {"strength": 3.0, "smoothness": 2.0, "dimensions": 4, "noise": 0.1, "convexity": 0.5}
PRINTED = {"strength": 1.5, "smoothness": 10.0, "rate": 1.0, "convexity": 0.5, "dimensions": 3, "noise": 0.1}
BOUND = {"gap": 1.0, "rounds": 3, "constant": 2.3, "clients": 4, "largest": 2.0}
PROBLEM = {"clients": 3, "examples": 10, "sigma": 0.4, "tau": 0.1, "noise": 1.0}
CURVE = tuning.gaussian_curve(2.0)
STEP = {"models": np.ones((2, 3)), "noise": np.eye(2), "threshold": 0.5}
ROW = STEP | {"noise": np.ones(2)}
SILOS = {"estimates": [1.0, 2.0, 3.0], "variances": [0.1, 0.2, 0.3]}

VALID: dict[Callable[..., Any], dict[str, Any]] = {
    client_level.noise_on_mean: {"epsilon": 1.0, "delta": 1e-5, "clip": 1.0, "rounds": 3, "clients": 9},
    client_level.published_multiplier: {"epsilon": 1.0, "delta": 1e-5, "rounds": 3},
    client_level.gaussian_delta: {"shift": 1.0, "epsilon": 1.0},
    client_level.largest_epsilon: {"delta": 1e-5},
    client_level.Cohorts: COHORTS,
    client_level.noise_with_cohorts: {"epsilon": 1.0, "delta": 1e-5, "rate": 0.1, "rounds": 3, "second": 1.0},
    client_level.counterexample: {"first": 1.0, "second": 1.0, "rate": 0.1, "delta": 1e-5},
    client_level.joint_counterexample: {"first": 1.0, "second": 1.0, "delta": 1e-5},
    convergence.Descent: DESCENT,
    convergence.Descent(**DESCENT).mean_squared_gradient: {"gap": 1.0, "rounds": 3},
    convergence.Descent(**DESCENT).gap_after: {"gap": 1.0, "rounds": 3},
    covariance_noise.gaussian_spectral_norm: {"features": 3, "deviation": 1.0},
    covariance_noise.wishart_spectral_norm: {"features": 3, "scale": 1.0},
    covariance_noise.published_scale: {"clip": 1.0, "epsilon": 1.0},
    covariance_noise.published_delta: {"epsilons": 0.1, "printed_clip": 2.0},
    covariance_noise.published_epsilon: {"epsilons": [0.1, 0.2], "delta": 1e-5},
    covariance_noise.group_delta: {"size": 3, "epsilon": 1.0, "delta": 1e-5},
    covariance_noise.tasks_change: {"models": [[1.0], [2.0]], "client": 1},
    covariance_noise.tasks_sensitivity: {"clients": 3, "clip": 1.0},
    covariance_noise.subspace_error: {"features": 3, "clients": 9, "rank": 1, "noise_multiplier": 1.0},
    covariance_noise.smallest_epsilon: {"features": 3, "clients": 9, "rank": 1, "delta": 1e-5},
    covariance_rates.power_exponent: {"power": 0.4, "accelerated": True},
    covariance_rates.power_factor: {"power": 0.4, "accelerated": True},
    covariance_rates.best_power: {"accelerated": True},
    covariance_rates.best_power_up_to: {"accelerated": True},
    covariance_rates.kept_per_round: {"condition": 0.1, "accelerated": True},
    covariance_rates.ratio_exponent: {"ratio": 0.9, "condition": 0.1, "accelerated": True},
    covariance_rates.ratio_factor: {"ratio": 0.9, "condition": 0.1, "accelerated": True},
    covariance_rates.best_ratio: {"condition": 0.1, "accelerated": True},
    covariance_rates.best_ratio_up_to: {"condition": 0.1, "accelerated": True},
    covariance_rates.inexact: {"errors": [0.1, 0.2], "accelerated": True, "condition": 0.1},
    covariance_rates.low_rank_error: {"features": 9, "clients": 9, "epsilon": 1.0, "above": 1, "gaussian": 3.0},
    covariance_rates.group_sparse_error: {"features": 9, "clients": 9, "epsilon": 1.0, "above": 1},
    covariance_rates.spread: {"epsilon": 1.0, "delta": 1e-5},
    covariance_rates.low_rank_tasks_needed: {"features": 9, "epsilon": 1.0, "delta": 1e-5, "constant": 1.0},
    covariance_rates.low_rank_largest_budget: {"features": 9, "clients": 9, "above": 1, "clip": 1.0},
    covariance_rates.group_sparse_rounds: {"features": 9, "above": 1, "constant": 1.0, "rounds_constant": 1.0},
    covariance_rates.group_sparse_logarithm: {
        "features": 9,
        "above": 1,
        "ratio": 0.9,
        "condition": 0.1,
        "accelerated": True,
    },
    increments.Increments: DESCENT,
    increments.Increments(**DESCENT).mean_squared_gradient: {"gap": 1.0, "rounds": 3},
    increments.Increments(**DESCENT).gap_after: {"gap": 1.0, "rounds": 3},
    increments.Printed: PRINTED,
    increments.Printed(**PRINTED).first_step: {},
    increments.Printed(**PRINTED).mean_squared_gradient: {"gap": 1.0, "largest": [1.0, 2.0], "factor": 2.0},
    increments.Printed(**PRINTED).journal_mean_squared_gradient: {
        "gap": 1.0,
        "largest": [1.0, 2.0],
        "steps": 2,
        "clients": 9,
        "factor": 2.0,
    },
    increments.Printed(**PRINTED).journal_informal_squared_gradient: {
        "rounds": 4,
        "steps": 2,
        "largest": 2.0,
        "factor": 2.0,
    },
    increments.Printed(**PRINTED).second_step: {"constant": 2.3},
    increments.Printed(**PRINTED).allowed: {"constant": 2.3},
    increments.Printed(**PRINTED).stable: {"step": 0.1},
    increments.Printed(**PRINTED).gap_after: BOUND,
    increments.Printed.journal_gap_after: {"gap": 1.0, "rounds": 4, "steps": 2, "largest": 2.0},
    increments.Printed(**PRINTED).journal_noisy_gap_after: {
        "gap": 1.0,
        "rounds": 4,
        "steps": 2,
        "largest": 2.0,
        "factor": 1.0,
    },
    increments.any_gradients: {"smoothness": 1.0, "strength": 1.0, "gap": 1.0, "largest": [1.0]},
    increments.settles: {"curvature": 1.0, "strength": 1.0, "rate": 0.1},
    mean_estimation.Problem: PROBLEM,
    mean_estimation.Problem(**PROBLEM).error: {"strength": 1.0},
    mean_estimation.Problem(**PROBLEM).error_given: {"estimates": [1.0, 2.0, 3.0], "strength": 1.0},
    mean_estimation.Problem(**PROBLEM).cost_of_privacy: {"strength": 1.0},
    mean_estimation.Problem(**PROBLEM).posterior: {"estimates": [1.0, 2.0, 3.0]},
    mean_estimation.printed_noise: {"clip": 1.0, "epsilon": 0.5, "delta": 1e-5},
    mean_estimation.own_share: {"strength": 1.0, "clients": 3},
    mean_estimation.regularised: {"estimates": [1.0, 2.0, 3.0], "strengths": 1.0, "weights": [1.0, 1.0, 0.0]},
    mean_estimation.silo_strengths: {"variances": [0.1, 0.2], "between": 1.0},
    mean_estimation.precision_weights: {"variances": [0.1, 0.2], "between": 1.0},
    mean_estimation.shrunk: {**SILOS, "between": 1.0},
    mean_estimation.shrunk_error: {"variances": [0.1, 0.2], "between": 1.0},
    mean_estimation.der_simonian_laird: SILOS,
    mean_estimation.paule_mandel: SILOS,
    proximal.shrunk_low_rank: STEP,
    proximal.shrunk_group_sparse: ROW,
    proximal.low_rank_excess: STEP,
    proximal.group_sparse_excess: ROW,
    proximal.low_rank_bound: STEP,
    proximal.group_sparse_bound: ROW,
    proximal.gap_needed: STEP,
    tuning.gaussian_curve: {"noise_multiplier": 2.0, "uses": 3},
    tuning.mean_trials: {"gamma": 0.1, "shape": 1.0},
    tuning.gamma_for: {"mean": 3.0, "shape": 1.0},
    tuning.selected: {"curve": CURVE, "mean": 3.0, "shape": 1.0},
    tuning.epsilon: {"curve": CURVE, "delta": 1e-5},
    tuning.printed_epsilon: {"curve": CURVE, "delta": 1e-5},
    tuning.delta: {"curve": CURVE, "epsilon": 1.0},
    tuning.noise_for: {"budget": 1.0, "at_delta": 1e-5, "mean": 3.0, "shape": 1.0},
    tuning.draw_trials: {"generator": np.random.default_rng(0), "mean": 3.0, "shape": 1.0},
}
"""A call that is right, of every public function and method. One that is new belongs here."""

SIGNED = {"power", "constant", "step", "estimates", "models"}
"""What may be negative."""


def called(function: Callable[..., Any]) -> str:
    return f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"


def public() -> Iterator[str]:
    """Functions and methods, and classes for what makes them."""
    for found in pkgutil.iter_modules(theory.__path__):
        module = importlib.import_module(f"kinfolk.theory.{found.name}")
        for name, what in vars(module).items():
            if name.startswith("_") or module is ranges or getattr(what, "__module__", "") != module.__name__:
                continue
            if inspect.isclass(what):
                yield called(what)
                methods = (getattr(what, own) for own in vars(what) if not own.startswith("_"))
                yield from (called(one) for one in methods if inspect.isfunction(one))
            elif callable(what):
                yield called(what)


NUMERIC = [
    (function, name)
    for function, given in VALID.items()
    for name, value in given.items()
    if isinstance(value, float | int | list | np.ndarray) and not isinstance(value, bool)
]


def test_every_function_is_listed_and_can_be_called() -> None:
    takes_numbers = {name for name in public() if not name.endswith(("delta_at_least", "known_cohort_delta"))}
    assert {called(function) for function in VALID} == takes_numbers
    for function, given in VALID.items():
        function(**given)


@pytest.mark.parametrize(("function", "name"), NUMERIC, ids=lambda value: value if isinstance(value, str) else "")
def test_every_number_is_checked(function: Callable[..., Any], name: str) -> None:
    """Also where it is one of several: then that one is put in its place."""
    given = VALID[function]
    signed = name in SIGNED or (name == "noise" and "threshold" in given)
    for wrong in (math.nan, -math.inf, "3", *(() if signed else (-1, -1.0))):
        value = given[name]
        if isinstance(value, list | np.ndarray):
            value = np.array(value, object if isinstance(wrong, str) else float)
            value.flat[0] = wrong
        else:
            value = wrong
        with pytest.raises(ValueError, match=rf"^(?s:{re.escape(name)}=.+ must be .+: .+)"):
            function(**given | {name: value})


def wrong(function: Callable[..., Any], **own: Any) -> Callable[[], Any]:
    return lambda: function(**VALID[function] | own)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (wrong(client_level.gaussian_delta, shift=-1), "shift=-1 must be at least 0"),
        (wrong(client_level.counterexample, first=-1), "first=-1 must be above 0"),
        (wrong(client_level.noise_with_cohorts, rate=2), "rate=2 must be above 0 and at most 1"),
        (wrong(client_level.noise_on_mean, delta=0), "delta=0 must be above 0 and below 1"),
        (wrong(client_level.noise_on_mean, clients=0), "clients=0 must be at least 1"),
        (wrong(client_level.noise_on_mean, rounds=-1), "rounds=-1 must be at least 1"),
        *((wrong(client_level.largest_epsilon, delta=d), f"delta={d} must be above 0 and below 1") for d in (0, 1, 2)),
        (wrong(covariance_noise.published_delta, epsilons=-1.0), "epsilons=-1.0 must be at least 0"),
        (wrong(covariance_noise.group_delta, size=0), "size=0 must be at least 1"),
        (wrong(covariance_noise.tasks_change, client=2), "client=2 must be at least 0 and at most 1"),
        (wrong(covariance_rates.low_rank_error, epsilon=-1.0), "epsilon=-1.0 must be above 0"),
        (wrong(covariance_rates.group_sparse_rounds, above=10), "above=10 must be at least 1 and at most 9"),
        *(
            (wrong(covariance_rates.best_ratio, condition=c), f"condition={c} must be above 0 and below")
            for c in (0, 2)
        ),
        (wrong(increments.settles, rate=2), "rate=2 must be above 0 and at most 1"),
        (wrong(increments.Increments, convexity=3.0), "convexity=3.0 must be at least 0 and at most 2"),
        (wrong(increments.Printed, rate=0.0), "rate=0.0 must be above 0"),
        (wrong(tuning.gaussian_curve, noise_multiplier=-1.0), "noise_multiplier=-1.0 must be above 0"),
        (wrong(tuning.epsilon, delta=0), "delta=0 must be above 0 and below 1"),
        (wrong(tuning.noise_for, budget=1e6), "budget=1000000.0 at at_delta=1e-05: no noise multiplier"),
        (wrong(mean_estimation.own_share, clients=2.5), "clients=2.5 must be a whole number"),
        (wrong(mean_estimation.shrunk_error, variances=[0.0], between=0.0), "between=0.0 and a variance of 0"),
        (wrong(mean_estimation.der_simonian_laird, variances=[1.0]), "give one of each for every client"),
        (wrong(mean_estimation.regularised, weights=[0.0, 0.0, 0.0]), "all_weights=.* must be above 0"),
        (wrong(proximal.low_rank_bound, noise=np.ones(2)), "noise of shape .* features x features"),
        (wrong(proximal.low_rank_bound, threshold=0), "threshold=0 must be above 0"),
        (lambda: increments.Printed(1.0, 3.0, 0.5).first_step(), "divides by 0 to name a step here: choose"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_gave_nonsense_or_a_bare_error(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^(?s:.*){said}"):
        call()


def test_limits_where_there_is_one() -> None:
    """Numbers that look wrong and are not."""
    assert mean_estimation.own_share(math.inf, 3) == pytest.approx(1 / 3)
    np.testing.assert_allclose(mean_estimation.regularised([1.0, 2, 3], 1.0), [1.5, 2.0, 2.5])
    np.testing.assert_allclose(mean_estimation.regularised([1, 2, 3], [0.0, math.inf, 1.0]), [1.0, 2.0, 2.5])
    assert covariance_noise.group_delta(3, 1.0, 0.0) == 0
    assert covariance_noise.group_delta(1, 2000.0, 1e-5) == pytest.approx(1e-5)
    assert proximal.gap_needed(np.eye(2), np.eye(2), 0.5) == math.inf
    assert convergence.Descent(**DESCENT).gap_after(1.0, 0) == 1
    with pytest.raises(ValueError, match="convexity=0"):
        _ = replace(convergence.Descent(**DESCENT), convexity=0.0).floor


def test_one_number_where_one_is_meant() -> None:
    ranges.require(ranges.COUNT, rounds=np.int64(3), clients=10**9)
    ranges.require(ranges.POSITIVE, clip=np.float32(0.5), scale=1e300)
    for value in (True, [1], None, 3.0, 10**400):
        with pytest.raises(ValueError, match=r"^rounds=.+ must be (a|one) (whole )?number"):
            ranges.require(ranges.COUNT, rounds=value)
    with pytest.raises(ValueError, match=r"^errors=\[\] must be numbers"):
        ranges.require_each(ranges.POSITIVE, errors=[])

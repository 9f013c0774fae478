"""Strength for free against every single strength in hindsight, and against tuning by repetition.

    python -m benchmarks.studies.strength.run [--json FILE] [--page docs/results/strength.md] [--only school sweep ...]

School at epsilon 1, 3 and 6 with both scalings; a sweep of 108 synthetic settings; mixed budgets; mean estimation
(figure 7 of Liu et al. with the free estimator). Every setting is written to the page, also those where it loses.
Seeds here (FINAL) were never used in the design, whose seeds were 100 to 102 (School) and 1000 to 1011 (sweep), nor
for the first table, on seeds 0 to 4, after which one step was corrected (see the page).
KINFOLK_DATA names the directory with School.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.studies.strength import data as sweep_data
from benchmarks.studies.strength import page
from benchmarks.studies.strength.means import mean_estimation
from kinfolk import trees
from kinfolk.accounting import composition
from kinfolk.accounting.calibrate import Population, terms_for
from kinfolk.algorithms.mean_regularized import MeanRegularized
from kinfolk.algorithms.mean_regularized_auto import MeanRegularizedAuto
from kinfolk.data.federation import Federation
from kinfolk.data.sets.school import school
from kinfolk.engines.layout import lay_out, local_steps
from kinfolk.engines.loop import Sweep, points
from kinfolk.engines.resident import Plan
from kinfolk.models import linear
from kinfolk.privacy.gates import CHOICE, GRADIENT
from kinfolk.privacy.levels import Budget, Level, Terms, example_level
from kinfolk.privacy.mechanisms import GaussianSum
from kinfolk.theory.tuning import draw_trials
from kinfolk.types import Model

RESULTS = Path(__file__).parent / "results" / "strength.json"
GRID = (0.001, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0, 1e6)
"""Single strengths to choose from in hindsight; the ends are training alone and averaging after every step."""
FINAL = range(10, 15)
TRIALS, SHAPE = 10, 0.0
"""Tuning by repetition: so many trials on average, logarithmic (the cheapest distribution that dp_accounting has)."""


def run(
    model: Model, algorithms: Sequence[Any], terms: Sequence[Terms], laid: Any, seeds: Sequence[int], rounds: int
) -> np.ndarray:
    """Losses and errors of shape (2, points, seeds, clients)."""
    clients, tests, widths, most = laid
    plan = Plan(model, Level.EXAMPLE, widths, most)
    figure = Sweep(plan, points(algorithms), points(terms), clients, tests)
    found = figure.errors(figure.rounds(figure.init(seeds), 0, rounds))
    return np.stack([np.asarray(found["loss"]), np.asarray(found["error"])])


def compare(
    model: Model,
    federations: Sequence[Federation],
    seeds: Sequence[int],
    levels: Sequence[Any],
    *,
    rounds: int,
    step_size: float,
    batch: int | None = None,
    weights: str = "uniform",
    tuned: bool = False,
    last: bool = False,
) -> dict[str, np.ndarray]:
    """For every level: losses and errors, of shape (levels, [strengths,] 2, federations, clients).

    `last`: single strengths as the plain method returns them. `averaged`: single strengths with the same average over
    rounds that the learned one has. `tuned`: the latter with the noise that tuning by repetition needs.
    """
    sizes = federations[0].train.sizes
    laid = lay_out(federations, batch_size=batch, epochs=1, by_size=weights == "size")
    uses = {GRADIENT: local_steps(sizes, batch, 1) * rounds, CHOICE: np.zeros(len(sizes), int)}
    weights_count = trees.size(jax.eval_shape(model.init, jax.random.key(0)))
    who = Population(federations[0].ids, sizes, batch, weights_count)
    all_terms = [terms_for(level, who, uses) for level in levels]
    fixed = [MeanRegularizedAuto(step_size, start=s, learning=0.0, scaling=0.0) for s in GRID]
    algorithms, terms = [], []
    for level, one in zip(levels, all_terms, strict=True):
        algorithms += [MeanRegularizedAuto(step_size), *fixed]
        terms += [one] * (1 + len(GRID))
        if tuned:
            algorithms += fixed
            terms += [tuned_terms(one, level, federations[0].ids, sizes, uses[GRADIENT])] * len(GRID)
    found = run(model, algorithms, terms, laid, seeds, rounds)
    found = found.reshape(2, len(levels), -1, *found.shape[2:]).transpose(1, 2, 0, 3, 4)
    parts = {"auto": found[:, 0], "averaged": found[:, 1 : 1 + len(GRID)]}
    if tuned:
        parts["tuned"] = found[:, 1 + len(GRID) :]
    if last:
        plain = [MeanRegularized(s, step_size) for _ in levels for s in GRID]
        ended = run(model, plain, [one for one in all_terms for _ in GRID], laid, seeds, rounds)
        parts["last"] = ended.reshape(2, len(levels), len(GRID), *ended.shape[2:]).transpose(1, 2, 0, 3, 4)
    return parts


def tuned_terms(terms: Terms, level: Any, ids: Sequence[str], sizes: np.ndarray, uses: np.ndarray) -> Terms:
    """The same mechanisms with so much noise that the best of TRIALS trials keeps every client's budget.

    Generous to tuning: scores are free.
    """
    assert isinstance(terms.data, GaussianSum)
    solved: dict[Any, float] = {}
    noise = []
    for cost, count, name, n in zip(terms.data.costs(), uses.tolist(), ids, sizes.tolist(), strict=True):
        own = level.budgets.get(name, Budget(level.epsilon, level.delta))
        case = (cost, count, own.epsilon, own.delta or composition.default_delta(int(n)))
        if case not in solved:
            solved[case] = _tuned_noise(*case)
        noise.append(solved[case])
    return replace(terms, data=replace(terms.data, noise_multiplier=np.array(noise, np.float32)))


def _tuned_noise(cost: Any, uses: int, epsilon: float, delta: float) -> float:
    """Secant steps on a log-log scale to within half a percent below the budget."""

    def spent(log_z: float) -> float:
        charge = replace(cost, noise_multiplier=float(np.exp(log_z)), delta=0.0)
        return float(
            np.log(composition.epsilon_of_the_best([(charge, uses)], delta, mean=TRIALS, shape=SHAPE) / epsilon)
        )

    before = np.log(cost.noise_multiplier * 1.6)
    now = before + 0.2
    values = spent(before), spent(now)
    for _ in range(12):
        if -0.005 <= values[1] <= 0:
            break
        slope = min((values[1] - values[0]) / (now - before), -0.2)
        before, now = now, now - (values[1] + 0.002) / slope
        values = values[1], spent(now)
    return float(np.exp(now))


def record(
    parts: dict[str, np.ndarray], level: int, columns: np.ndarray, kind: int, share: Any = None
) -> dict[str, Any]:
    """Numbers of one setting: means over seeds (`columns` of federations); `share` weighs clients, default equally."""

    def mean(values: np.ndarray) -> np.ndarray:
        own = values[..., kind, columns, :].astype(float)
        return own.mean(axis=-1) if share is None else (own * share).sum(axis=-1)

    result: dict[str, Any] = {"auto_by_seed": mean(parts["auto"][level]).tolist()}
    result["auto"] = float(np.mean(result["auto_by_seed"]))
    for name in ("averaged", "last"):
        if name not in parts:
            continue
        by_strength = mean(parts[name][level]).mean(axis=-1)
        best = int(by_strength.argmin())
        ratio = float(result["auto"] / by_strength[best])
        result |= {name: by_strength.tolist(), f"best_{name}": GRID[best], f"ratio_{name}": ratio}
    alone, together = result["averaged"][0], result["averaged"][-1]
    result["ratio_endpoint"] = result["auto"] / min(alone, together)
    if "tuned" in parts:
        tuned = mean(parts["tuned"][level]).mean(axis=-1)
        result |= {"tuned": _expected_tuned(tuned), "tuned_with_luck": float(tuned.min())}
        result |= {f"ratio_{name}": result["auto"] / result[name] for name in ("tuned", "tuned_with_luck")}
    return result


def _expected_tuned(by_strength: np.ndarray) -> float:
    """Mean error of the best of a random number of strengths drawn from the grid, with perfect and free scores.

    `tuned_with_luck`, beside it, is the best of the whole grid with tuning's noise: no tuning does better.
    """
    generator = np.random.default_rng(0)
    drawn = [draw_trials(generator, mean=TRIALS, shape=SHAPE) for _ in range(2000)]
    return float(np.mean([by_strength[generator.integers(0, len(by_strength), count)].min() for count in drawn]))


def on_school() -> list[dict[str, Any]]:
    """Full batches, 60 rounds, step 0.2, clip 1, delta 1e-3; pooled test MSE."""
    results = []
    for scaling in ("as_published", "bounds"):
        data = [school(scaling=scaling, seed=seed) for seed in FINAL]
        levels = [example_level(e, 1e-3, allow_large_delta=True) for e in (1.0, 3.0, 6.0)]
        parts = compare(linear(27), data, FINAL, levels, rounds=60, step_size=0.2, tuned=True, last=True)
        rows = np.stack([one.test.sizes for one in data]).astype(float)
        share = rows / rows.sum(axis=1, keepdims=True)
        for number, level in enumerate(levels):
            found = record(parts, number, np.arange(len(data)), 1, share)
            results.append({"scaling": scaling, "epsilon": level.epsilon, **found})
    return results


def on_sweep() -> list[dict[str, Any]]:
    """All full-batch settings, and mini-batches with one kind of sizes per model: mean over clients of test loss."""
    results, taus, epsilons = [], (0.05, 0.2, 0.6), (1.0, 3.0, 10.0)
    whole = [(model, sizes, None) for model in sweep_data.MODELS for sizes in sweep_data.SIZES]
    batches = [(model, sizes, 16) for model, sizes in zip(sweep_data.MODELS, reversed(sweep_data.SIZES), strict=True)]
    for model, sizes, batch in whole + batches:
        seeds = [seed for _ in taus for seed in FINAL]
        data = [sweep_data.federation(model, sizes, tau, seed) for tau in taus for seed in FINAL]
        levels = [example_level(e) for e in epsilons]
        parts = compare(
            sweep_data.MODELS[model],
            data,
            seeds,
            levels,
            rounds=60 if batch is None else 25,
            step_size=0.3,
            batch=batch,
            tuned=True,
        )
        for i, j in np.ndindex(len(epsilons), len(taus)):
            columns = np.arange(len(FINAL)) + j * len(FINAL)
            setting = {"model": model, "sizes": sizes, "batch": batch, "tau": taus[j], "epsilon": epsilons[i]}
            results.append({**setting, **record(parts, i, columns, 0)})
    return results


def on_mixed() -> list[dict[str, Any]]:
    """Budgets e/3, e and 3e, in turn, whatever a client's size."""
    results, taus = [], (0.05, 0.2, 0.6)
    for sizes in ("equal", "unequal"):
        data = [sweep_data.federation("linear", sizes, tau, seed) for tau in taus for seed in FINAL]
        levels = []
        for e in (1.0, 3.0):
            budgets = {name: Budget(e * 3.0 ** (k % 3 - 1)) for k, name in enumerate(sorted(data[0].ids))}
            levels.append(example_level(e, budgets=budgets))
        seeds = [seed for _ in taus for seed in FINAL]
        parts = compare(sweep_data.MODELS["linear"], data, seeds, levels, rounds=60, step_size=0.3)
        for i, j in np.ndindex(len(levels), len(taus)):
            columns = np.arange(len(FINAL)) + j * len(FINAL)
            setting = {"sizes": sizes, "tau": taus[j], "epsilon": levels[i].epsilon}
            results.append({**setting, **record(parts, i, columns, 0)})
    return results


PARTS = {"school": on_school, "sweep": on_sweep, "mixed": on_mixed, "means": mean_estimation}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=RESULTS, help="read what is there, write what was measured")
    parser.add_argument("--page", type=Path, help="write the page, with its picture in ../pictures")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), help="none: only write the page")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    results = json.loads(args.json.read_text()) if args.json.exists() else {}
    for name in args.only:
        began = time.process_time()
        results[name] = PARTS[name]()
        results.setdefault("cpu_seconds", {})[name] = round(time.process_time() - began, 1)
        print(name, "measured in", results["cpu_seconds"][name], "CPU seconds", flush=True)
        args.json.write_text(json.dumps(results) + "\n")
    print(page.summary(results))
    if args.page:
        page.write(results, args.page)


if __name__ == "__main__":
    main()

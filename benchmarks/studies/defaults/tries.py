"""What else was tried on the design half, at example level, beside what is picked: a line for each.

    KINFOLK_DATA=... python -m benchmarks.studies.defaults.tries [--only heart ...] [--what guard ...]

Every line is a ratio of mean test losses over seeds 100 to 102, smaller is better: a geometric mean over cells (epsilon
and, for made-up data, how far clients differ), the least and the largest. Where that is simpler a try is flattered, by
what it should have paid or by numbers chosen in hindsight; the words say so.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.studies.defaults.plan import Piece, level_of, stacked, terms_of
from benchmarks.studies.defaults.settings import DESIGN, DESIGN_SEEDS, EPSILONS, TAUS, Setting
from kinfolk import recommend, trees
from kinfolk.accounting.calibrate import Population, terms_for
from kinfolk.data.federation import Federation
from kinfolk.engines import resident, results
from kinfolk.engines.layout import lay_out, local_steps
from kinfolk.privacy.gates import GRADIENT
from kinfolk.privacy.levels import Level
from kinfolk.training.build import build_algorithm, build_model
from kinfolk.training.public_numbers import FEWER_ROUNDS, ROUNDS
from kinfolk.training.recipes import MODELS, ModelChoice

EPS = EPSILONS["example"]
STOPS = 8
"""Times at which training might have stopped."""
CAUTION = 4.24
"""Standard errors that another candidate must be better by, as few releases have it."""
GUARD, MOMENTS = 0.03, 0.15
"""Parts of the budget."""
PULLS = (0.0, 0.1, 0.3, 0.6, 1.0)
"""How much of what clients differ by is kept, for models that clients make alone."""
RIDGES = (1.0, 3.0, 10.0, 30.0, 100.0)
BATCH = 32
SCALES, DECLARED = (0.05, 0.15, 0.5, 1.0), 0.5
"""Of a gradient's variance, as a share of clip^2."""


@dataclass(frozen=True)
class Case:
    """Federations of one setting, and what was trained on them by default."""

    data: tuple[Federation, ...]
    """For every difference between clients and seed."""
    cells: int
    """How many differences there are."""
    models: Any
    """What clients ended with: axes (epsilon, federation, client, ...)."""
    shared: Any
    losses: np.ndarray
    """Of the default after each possible stop: (stop, epsilon, federation)."""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="what names of settings begin with; default: all")
    parser.add_argument("--what", nargs="*", choices=list(TRIES), default=list(TRIES))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for setting in DESIGN:
        if given.only is None or any(setting.name.startswith(name) for name in given.only):
            case = by_default(setting)
            cells = _cells(case.losses[-1], case.cells)
            print(json.dumps({"setting": setting.name, "default": np.round(cells, 4).tolist()}), flush=True)
            for name in set(given.what) & {"stopping", "sampling"} if case.data[0].outcome == "number" else given.what:
                for words, losses in TRIES[name](case).items():
                    ratios = _cells(losses, case.cells) / cells
                    mean = math.exp(np.log(ratios).mean())
                    print(f"  {words}: {mean:.3f} ({ratios.min():.3f} to {ratios.max():.3f})", flush=True)


def _cells(losses: np.ndarray, cells: int) -> np.ndarray:
    """Means over seeds: (epsilon, difference)."""
    return losses.reshape(len(EPS), cells, -1).mean(axis=2)


def by_default(setting: Setting, seeds: Sequence[int] = DESIGN_SEEDS) -> Case:
    """The default at all budgets; for numbers gradient descent, which is not picked there."""
    taus = TAUS if setting.made_up else (0.0,)
    data = tuple(setting.make(seed, tau) for tau in taus for seed in seeds)
    states, losses = _trained(data)
    return Case(data, len(taus), states[0], states[1], losses)


def _chosen(data: Federation, epsilon: float) -> Any:
    """Gradient descent as it is picked for several classes, and would be for numbers and for yes or no."""
    (phase,) = recommend(data, level_of("example", epsilon), seed=0, strength="auto").phases
    return build_algorithm(phase, "example")


def _trained(data: Sequence[Federation], noise: float = 1.0, epsilons: Sequence[float] = EPS) -> Any:
    """Final and shared models of the default, and losses at every stop; with so many times the noise."""
    first = data[0]
    algorithms = tuple(_chosen(first, epsilon) for epsilon in epsilons)
    piece = Piece(algorithms, tuple(epsilons), ("",) * len(epsilons), ROUNDS)
    plan, clients, tests = laid_out(data, None)
    terms = terms_of(piece, "example", first, model_of(first)[1])
    terms = replace(terms, noise_factors=noise * terms.noise_factors)
    return _followed(plan, stacked(algorithms), terms, clients, tests, ROUNDS)


def laid_out(data: Sequence[Federation], batch: int | None) -> tuple[resident.Plan, Any, Any]:
    clients, tests, widths, most = lay_out(data, batch_size=batch, epochs=1, most_blocks=2)
    return replace(model_of(data[0])[0], widths=widths, most_steps=most), clients, tests


def model_of(data: Federation) -> tuple[resident.Plan, int]:
    model = build_model(ModelChoice(MODELS[data.outcome]), data.shape, data.outcome, data.classes)
    return resident.Plan(model, Level.EXAMPLE, (), ()), trees.size(jax.eval_shape(model.init, jax.random.key(0)))


def _followed(plan: resident.Plan, algorithms: Any, terms: Any, clients: Any, tests: Any, rounds: int) -> Any:
    federations = clients.sizes.shape[0]
    keys = jax.vmap(jax.random.key)(jnp.arange(federations, dtype=jnp.uint32) + DESIGN_SEEDS[0])
    states, losses = resident.start_all(plan, algorithms, keys), []
    for stop in range(STOPS):
        ends = [jnp.int32(rounds * place // STOPS) for place in (stop, stop + 1)]
        states = resident.run_rounds(plan, algorithms, terms, clients, states, *ends)
        found = results.errors(plan, algorithms, tests, states)["loss"]
        losses.append(np.nanmean(np.asarray(found, np.float64), axis=-1))
    models = jax.tree.map(np.asarray, results.all_models(algorithms, states))
    return (models, jax.tree.map(np.asarray, states.shared["model"])), np.stack(losses)


def stopping(case: Case) -> dict[str, np.ndarray]:
    """The best of eight stops, in hindsight: no rule that stops by what was released can do better."""
    means = case.losses.reshape(STOPS, len(EPS), case.cells, -1).mean(axis=3)
    best = np.take_along_axis(
        case.losses.reshape(STOPS, len(EPS), case.cells, -1), means.argmin(axis=0)[None, :, :, None], axis=0
    )[0]
    return {"stopped at the best of eight times, in hindsight": best.reshape(len(EPS), -1)}


def guard(case: Case) -> dict[str, np.ndarray]:
    """Losses of three candidates released on top of the budget (so nothing is paid for it): own, shared, constant."""
    guarded, oracle = [np.zeros((len(EPS), len(case.data))) for _ in range(2)]
    for (e, epsilon), (k, data) in ((a, b) for a in enumerate(EPS) for b in enumerate(case.data)):
        generator, classes = np.random.default_rng([k, e]), max(2, data.classes)
        own, shared = trees.row(case.models, (e, k)), trees.row(case.shared, (e, k))
        noise = noise_of(data, epsilon) / math.sqrt(GUARD)
        cap, found, tests = 2 * math.log(classes), [], []
        for client, size in enumerate(data.train.sizes):
            chances = _chances(data, client, epsilon, generator)
            models = (trees.row(own, client), shared, chances)
            each = [_row_losses(model, *_rows(data.train, client), classes) for model in models]
            tests.append([_row_losses(model, *_rows(data.test, client), classes).mean() for model in models])
            mean = np.minimum(each, cap).mean(axis=1)
            found.append(mean + cap / 2 * math.sqrt(3) * noise[client] / size * generator.normal(size=3))
        found, tests, deviation = np.array(found), np.array(tests), cap / 2 * math.sqrt(3) * noise / data.train.sizes
        pooled = math.sqrt(np.square(deviation).sum()) / len(deviation)
        everybody = np.argmin(found.mean(axis=0) + CAUTION * pooled * np.array([0, 1, 1]))
        each = np.argmin(found + CAUTION * deviation[:, None] * np.array([0, 1, 1]), axis=1)
        taken = each if everybody == 0 else np.full(len(each), everybody)
        guarded[e, k] = np.nanmean(tests[np.arange(len(taken)), taken])
        oracle[e, k] = np.nanmean(tests, axis=0).min()
    words = "a guard of 3 % that is not paid for"
    return {words: guarded, "own, shared or constant, whichever is best on test rows": oracle}


def shrunk(case: Case) -> dict[str, np.ndarray]:
    """Slopes of the shared model shortened as James and Stein do, by what pure noise would have made of them."""
    blank = tuple(replace(one, train=replace(one.train, x=np.zeros_like(one.train.x))) for one in case.data[:3])
    (_, nothing), _ = _trained(blank)
    length = np.square(nothing[0]["weights"]).sum(axis=(2, 3)).mean(axis=1)
    losses = np.zeros((len(EPS), len(case.data)))
    for (e, _), (k, data) in ((a, b) for a in enumerate(EPS) for b in enumerate(case.data)):
        own, shared = trees.row(case.models, (e, k)), trees.row(case.shared, (e, k))
        weights = shared[0]["weights"]
        kept = max(0.0, 1 - length[e] / np.square(weights).sum())
        moved = ({**own[0], "weights": own[0]["weights"] - (1 - kept) * weights},)
        losses[e, k] = mean_loss(data, moved)
    return {"slopes shortened by what noise alone makes of them": losses}


def preconditioned(case: Case) -> dict[str, np.ndarray]:
    """Features turned by the pooled second moment, for 15 % of the budget; rows keep their expected length."""
    losses = np.zeros((len(EPS), len(case.data)))
    for e, epsilon in enumerate(EPS):
        turned = [_turned(data, epsilon, np.random.default_rng([k, e, 1])) for k, data in enumerate(case.data)]
        losses[e] = _trained(turned, 1 / math.sqrt(1 - MOMENTS), [epsilon])[1][-1][0]
    return {"features turned by the pooled second moment (15 %)": losses}


def alone(case: Case) -> dict[str, np.ndarray]:
    """Two classes: one release of each client's whole model. Pull to the mean and ridge are chosen in hindsight."""
    if case.data[0].classes > 2:
        return {}
    found: dict[str, list[np.ndarray]] = {"objective": [], "output": []}
    for kind, many in found.items():
        for ridge in RIDGES:
            losses = np.zeros((len(PULLS), len(EPS), len(case.data)))
            for (e, epsilon), (k, data) in ((a, b) for a in enumerate(EPS) for b in enumerate(case.data)):
                models = _alone(data, epsilon, ridge, kind, np.random.default_rng([k, e, 2]))
                mean = models.mean(axis=0)
                for p, pull in enumerate(PULLS):
                    layer = mean + pull * (models - mean)
                    moved = ({"weights": layer[:, :-1, None], "bias": layer[:, -1:]},)
                    losses[p, e, k] = mean_loss(data, moved)
            many.append(losses)
    best = {}
    for kind, many in found.items():
        every = np.concatenate(many).reshape(len(RIDGES) * len(PULLS), len(EPS), case.cells, -1)
        place = every.mean(axis=3).argmin(axis=0)
        chosen = np.take_along_axis(every, place[None, :, :, None], axis=0)[0]
        best[f"{kind} perturbation, ridge and pull in hindsight"] = chosen.reshape(len(EPS), -1)
    return best


def _alone(data: Federation, epsilon: float, ridge: float, kind: str, generator: np.random.Generator) -> np.ndarray:
    """Logistic regressions of clients alone on rows of length at most 1, by one release at the whole budget.

    The objective's curvature term is not charged, which flatters it.
    """
    noise, reach = noise_of(data, epsilon), math.sqrt(1 + data.shape[0] / 3)
    models = []
    for client, _ in enumerate(data.train.sizes):
        x, y = _rows(data.train, client)
        x = np.concatenate([x, np.ones((len(x), 1))], axis=1) / reach
        x = x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
        tilt = noise[client] * generator.normal(size=x.shape[1])
        theta = np.zeros(x.shape[1])
        for _ in range(12):
            p = 1 / (1 + np.exp(-np.clip(x @ theta, -30, 30)))
            slope = x.T @ (p - y) + ridge * theta + (tilt if kind == "objective" else 0)
            step = np.linalg.solve((x.T * (p * (1 - p))) @ x + ridge * np.eye(x.shape[1]), slope)
            theta = theta - step * min(1, 5 / max(np.linalg.norm(step), 1e-9))
        models.append((theta + (tilt / ridge if kind == "output" else 0)) / reach)
    return np.stack(models)


def sampling(case: Case) -> dict[str, np.ndarray]:
    """Other sampling scales than the declared 0.5, the best of them in hindsight: what an estimate could gain at most.

    With full batches as by default, and with Poisson batches of 32, where successive gradients would show it.
    """
    first, found = case.data[0], {}
    for words, batch, rounds in (("full batches", None, ROUNDS), (f"batches of {BATCH}", BATCH, FEWER_ROUNDS)):
        chosen = [_chosen(first, epsilon) for epsilon in EPS for _ in SCALES]
        algorithms = tuple(replace(one, sampling=SCALES[k % len(SCALES)]) for k, one in enumerate(chosen))
        steps = local_steps(first.train.sizes, batch, 1)
        calibrated = [_terms(first, epsilon, batch, rounds, steps) for epsilon in EPS for _ in SCALES]
        plan, clients, tests = laid_out(case.data, batch)
        _, losses = _followed(plan, stacked(algorithms), stacked(calibrated), clients, tests, rounds)
        every = losses[-1].reshape(len(EPS), len(SCALES), case.cells, -1)
        place = every.mean(axis=3).argmin(axis=1)
        best = np.take_along_axis(every, place[:, None, :, None], axis=1)[:, 0].reshape(len(EPS), -1)
        declared = every[:, SCALES.index(DECLARED)].reshape(len(EPS), -1)
        default = case.losses[-1]
        found[f"{words}, the best sampling scale in hindsight, over the declared one"] = default * (
            best.reshape(len(EPS), case.cells, -1).mean(axis=2, keepdims=True)
            / declared.reshape(len(EPS), case.cells, -1).mean(axis=2, keepdims=True)
        ).repeat(best.shape[1] // case.cells, axis=2).reshape(best.shape)
    return found


def _terms(data: Federation, epsilon: float, batch: int | None, rounds: int, steps: np.ndarray) -> Any:
    level, weights = level_of("example", epsilon), model_of(data)[1]
    uses = {kind: np.tile(steps * (kind == GRADIENT), (rounds, 1)) for kind in level.level.kinds}
    return terms_for(level, Population(data.ids, data.train.sizes, batch, weights), uses)


def noise_of(data: Federation, epsilon: float) -> np.ndarray:
    """Deviation of the noise on one sum of contributions of length 1, at each client's whole budget."""
    level = level_of("example", epsilon)
    once = {kind: np.full((1, len(data.ids)), int(kind == GRADIENT)) for kind in level.level.kinds}
    terms = terms_for(level, Population(data.ids, data.train.sizes, None, 1), once)
    return np.broadcast_to(np.asarray(terms.data.noise_multiplier, float), (len(data.ids),))


def _rows(part: Any, client: int) -> tuple[np.ndarray, np.ndarray]:
    size = int(part.sizes[client])
    return np.asarray(part.x[client, :size], float), np.asarray(part.y[client, :size])


def _row_losses(model: Any, x: np.ndarray, y: np.ndarray, classes: int) -> np.ndarray:
    """Log losses of a linear model, or of chances of classes."""
    if isinstance(model, np.ndarray):
        return -np.log(model)[y]
    outputs = x @ model[0]["weights"] + model[0]["bias"]
    outputs = np.concatenate([np.zeros_like(outputs), outputs], axis=1) if classes == 2 else outputs
    return np.logaddexp.reduce(outputs, axis=1) - outputs[np.arange(len(y)), y]


def mean_loss(data: Federation, models: Any) -> float:
    """The mean client's test loss."""
    each = [
        _row_losses(trees.row(models, k), *_rows(data.test, k), max(2, data.classes)).mean()
        for k, size in enumerate(data.test.sizes)
        if size
    ]
    return float(np.mean(each))


def _chances(data: Federation, client: int, epsilon: float, generator: np.random.Generator) -> np.ndarray:
    """A client's own class shares, from counts at 5 % of its budget."""
    _, y = _rows(data.train, client)
    noise = noise_of(data, epsilon)[client] / math.sqrt(0.05)
    counts = np.bincount(y, minlength=max(2, data.classes)) + noise * generator.normal(size=max(2, data.classes))
    smooth = np.maximum(counts, 0) + 1 + noise / 2
    return smooth / smooth.sum()


def _turned(data: Federation, epsilon: float, generator: np.random.Generator) -> Federation:
    size = data.shape[0]
    reach, noise = math.sqrt(size / 2), noise_of(data, epsilon) / math.sqrt(MOMENTS)
    total, rows = np.zeros((size, size)), float(data.train.sizes.sum())
    for client, _ in enumerate(data.train.sizes):
        x, _ = _rows(data.train, client)
        x = x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True) / reach)
        total += x.T @ x
    spread = generator.normal(size=(size, size)) * reach**2 * math.sqrt(np.square(noise).sum())
    values, vectors = np.linalg.eigh((total + (spread + spread.T) / 2) / rows)
    edge = reach**2 * math.sqrt(np.square(noise).sum()) / rows * math.sqrt(2 * size)
    values = np.maximum(values, max(edge / 4, 1e-3))
    turn = vectors * (values + 0.1 * values.mean()) ** -0.25
    length = (values * np.square(np.linalg.norm(turn, axis=0))).sum()
    turn = turn * math.sqrt(values.sum() / length)
    train, test = (replace(part, x=(part.x @ turn).astype(np.float32)) for part in (data.train, data.test))
    return replace(data, train=train, test=test)


TRIES: dict[str, Callable[[Case], dict[str, np.ndarray]]] = {
    "stopping": stopping,
    "guard": guard,
    "shrunk": shrunk,
    "preconditioned": preconditioned,
    "alone": alone,
    "sampling": sampling,
}

if __name__ == "__main__":
    main()

"""Few releases for classes on the design settings of the study of defaults, beside gradient descent as picked there.

    KINFOLK_DATA=... python -m benchmarks.studies.few_releases.classes [--only heart ...] [--variant library ...]

Example level, seeds 100 to 102; `--confirm`: the other half of the settings, seeds 3 to 7. Every cell is a ratio of the
mean client's test loss to that of mean regularisation with a learned strength: means over seeds, a row for every
epsilon, a column for how far made-up clients differ. `four` and `twelve` are simulated here (`class_releases.py`),
`library` is the method `few_releases_binary`, through the gates.
"""

from __future__ import annotations

import argparse
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.studies.defaults import tries
from benchmarks.studies.defaults.plan import Piece, stacked, terms_of
from benchmarks.studies.defaults.settings import CONFIRMATION, DESIGN, DESIGN_SEEDS, SCORE_SEEDS
from benchmarks.studies.few_releases.class_releases import FOUR, TWELVE, Variant, fitted
from kinfolk.algorithms.few_releases_binary import FewReleasesBinary
from kinfolk.data.federation import Federation
from kinfolk.engines import resident, results

VARIANTS = {"four": FOUR, "twelve": TWELVE}
MOST_WEIGHTS = 128
"""Settings with more are left out: a turn of EM takes their number to the third."""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="what names of settings begin with; default: all")
    parser.add_argument("--variant", nargs="*", choices=[*VARIANTS, "library"], default=["library"])
    parser.add_argument("--confirm", action="store_true", help="settings that nothing was chosen on")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    every: dict[str, list[np.ndarray]] = {name: [] for name in given.variant}
    settings, seeds = (CONFIRMATION, SCORE_SEEDS) if given.confirm else (DESIGN, DESIGN_SEEDS)
    for setting in settings:
        if given.only is not None and not any(setting.name.startswith(name) for name in given.only):
            continue
        data = setting.make(100, 0.05)
        if data.outcome == "number" or (data.shape[0] + 1) * max(1, data.classes) > MOST_WEIGHTS:
            continue
        case = tries.by_default(setting, seeds)
        picked = _cells(case.losses[-1], case.cells)
        for name in given.variant:
            if name == "library" and data.outcome != "binary":
                continue
            found = of_library(case) if name == "library" else simulated(case, VARIANTS[name])
            ratios = _cells(found, case.cells) / picked
            every[name].append(ratios)
            print(f"{setting.name}, {name}: {_words(ratios)} {np.round(ratios, 3).tolist()}", flush=True)
    for name, found in every.items():
        if found:
            print(f"all, {name}: {_words(np.concatenate([ratios.ravel() for ratios in found]))}")


def simulated(case: tries.Case, variant: Variant) -> np.ndarray:
    """The mean client's test loss: (epsilon, federation)."""
    found = np.zeros((len(tries.EPS), len(case.data)))
    for e, epsilon in enumerate(tries.EPS):
        for k, data in enumerate(case.data):
            weights = fitted(data, tries.noise_of(data, epsilon), variant, np.random.default_rng([k, e, 7]))
            found[e, k] = _loss(data, weights)
    return found


def of_library(case: tries.Case) -> np.ndarray:
    """The same of the method of the registry."""
    method, first = FewReleasesBinary(), case.data[0]
    piece = Piece((method,) * len(tries.EPS), tries.EPS, ("",) * len(tries.EPS), method.rounds)
    plan, clients, tests = tries.laid_out(case.data, None)
    algorithms, terms = stacked(piece.algorithms), terms_of(piece, "example", first, tries.model_of(first)[1])
    keys = jax.vmap(jax.random.key)(jnp.arange(len(case.data), dtype=jnp.uint32) + DESIGN_SEEDS[0])
    states = resident.start_all(plan, algorithms, keys)
    states = resident.run_rounds(plan, algorithms, terms, clients, states, jnp.int32(0), jnp.int32(method.rounds))
    losses = results.errors(plan, algorithms, tests, states)["loss"]
    return np.nanmean(np.asarray(losses, np.float64), axis=-1)


def _loss(data: Federation, weights: np.ndarray) -> float:
    return tries.mean_loss(data, ({"weights": weights[:, 1:], "bias": weights[:, 0]},))


def _cells(found: np.ndarray, cells: int) -> np.ndarray:
    return found.reshape(len(tries.EPS), cells, -1).mean(axis=2)


def _words(ratios: np.ndarray) -> str:
    below = int((ratios < 1).sum())
    mean = math.exp(np.log(ratios).mean())
    return f"{mean:.3f} ({ratios.min():.3f} to {ratios.max():.3f}), {below} of {ratios.size} below 1"


if __name__ == "__main__":
    main()

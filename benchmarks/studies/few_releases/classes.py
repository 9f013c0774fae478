"""Few releases for classes on the design settings of the study of defaults, beside what is picked there.

    KINFOLK_DATA=... python -m benchmarks.studies.few_releases.classes [--only heart ...] [--variant twelve ...]

Seeds 100 to 102, example level. Every cell is a ratio of the mean client's test loss to that of what is picked: means
over seeds, and over `--draws` draws of noise for each; a row for every epsilon, a column for how far made-up clients
differ.
"""

from __future__ import annotations

import argparse
import math
import warnings

import numpy as np

from benchmarks.studies.defaults import tries
from benchmarks.studies.defaults.settings import DESIGN
from benchmarks.studies.few_releases.class_releases import FOUR, TWELVE, Variant, fitted
from kinfolk.data.federation import Federation

VARIANTS = {"four": FOUR, "twelve": TWELVE}
MOST_WEIGHTS = 128
"""Settings with more are left out: a turn of EM takes their number to the third."""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="what names of settings begin with; default: all")
    parser.add_argument("--variant", nargs="*", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--draws", type=int, default=1, help="of noise, for every seed")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    every: dict[str, list[np.ndarray]] = {name: [] for name in given.variant}
    for setting in DESIGN:
        if given.only is not None and not any(setting.name.startswith(name) for name in given.only):
            continue
        data = setting.make(100, 0.05)
        if data.outcome == "number" or (data.shape[0] + 1) * max(1, data.classes) > MOST_WEIGHTS:
            continue
        case = tries.by_default(setting)
        picked = _cells(case.losses[-1], case.cells)
        for name in given.variant:
            ratios = _cells(losses(case, VARIANTS[name], given.draws), case.cells) / picked
            every[name].append(ratios)
            print(f"{setting.name}, {name}: {_words(ratios)} {np.round(ratios, 3).tolist()}", flush=True)
    for name, found in every.items():
        if found:
            print(f"all, {name}: {_words(np.concatenate([ratios.ravel() for ratios in found]))}")


def losses(case: tries.Case, variant: Variant, draws: int) -> np.ndarray:
    """The mean client's test loss: (epsilon, federation)."""
    found = np.zeros((len(tries.EPS), len(case.data)))
    for e, epsilon in enumerate(tries.EPS):
        for k, data in enumerate(case.data):
            noise = tries.noise_of(data, epsilon)
            each = [
                _loss(data, fitted(data, noise, variant, np.random.default_rng([k, e, 7 + d]))) for d in range(draws)
            ]
            found[e, k] = np.mean(each)
    return found


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

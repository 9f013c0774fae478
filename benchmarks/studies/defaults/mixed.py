"""What was tried for budgets that differ, on design data: longer and shorter descent, another mean, few releases.

    KINFOLK_DATA=... python -m benchmarks.studies.defaults.mixed [--only wisdm ...]
    python -m benchmarks.studies.defaults.mixed --few

Mean test losses over seeds 100 to 102, smaller is better; three numbers are for three differences between made-up
clients. First ratios to gradient descent as it is recommended, but with the plain mean of clients; then, on made-up
data of several sizes, those of few releases to gradient descent whose mean goes by precision where budgets differ.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.studies.defaults.compute import losses_of
from benchmarks.studies.defaults.plan import Piece, level_of, stacked, terms_of
from benchmarks.studies.defaults.settings import (
    DESIGN_SEEDS,
    DIFFER,
    MIXED_DESIGN,
    TAUS,
    Epsilon,
    MadeUp,
    Setting,
    in_words,
)
from benchmarks.studies.defaults.tries import laid_out, model_of
from kinfolk import recommend, trees
from kinfolk.data.federation import Federation
from kinfolk.engines import resident
from kinfolk.training.build import build_algorithm
from kinfolk.training.prepare import precision_weights
from kinfolk.training.public_numbers import FEW, FEW_BINARY

LENGTHS = (1.0, 0.25, 0.5, 2.0, 4.0)
"""Times the recommended step."""
SIZES = {
    0: ((6, 40, 6), (6, 160, 6), (8, 40, 10), (8, 120, 10), (12, 40, 6), (12, 80, 10), (24, 40, 10), (24, 40, 20)),
    2: ((6, 60, 8), (12, 30, 8), (24, 30, 12)),
}
"""Clients, rows of each and features, of regressions and of two classes."""
BUDGETS: tuple[Epsilon, ...] = (DIFFER, 1.0, 2.0, 3.0)
WIDTHS = (1.0, 3.0)
"""Times the declared range of numbers; as it is, it is about ten times their standard deviation."""


def chosen(data: Federation, epsilon: Epsilon, **given: Any) -> Any:
    """The recommended phase."""
    (phase,) = recommend(data, level_of("example", epsilon, data.ids), seed=0, **given).phases
    return phase


def trained(data: Sequence[Federation], piece: Piece, by_precision: bool = False) -> np.ndarray:
    """Mean test losses: (point, difference between clients)."""
    first = data[0]
    plan, clients, tests = laid_out(data, None)
    terms = terms_of(piece, "example", first, model_of(first)[1])
    if by_precision:
        weights = precision_weights(trees.row(terms, 0), first.train.sizes, clients)
        clients = replace(clients, weights=jnp.tile(jnp.asarray(weights), (len(data), 1)))
    algorithms, end = stacked(piece.algorithms), jnp.int32(piece.rounds)
    keys = jax.vmap(jax.random.key)(jnp.asarray([DESIGN_SEEDS[k % 3] for k in range(len(data))], jnp.uint32))
    states = resident.start_all(plan, algorithms, keys)
    states = resident.run_rounds(plan, algorithms, terms, clients, states, jnp.int32(0), end)
    return np.array(losses_of(plan, algorithms, tests, states)).reshape(len(piece.names), -1, 3).mean(axis=2)


def lengths(setting: Setting) -> None:
    """Prints what the recommended step and others give, with the plain mean of clients and with one by precision."""
    taus = TAUS if setting.made_up else (0.0,)
    data = [setting.make(seed, tau) for tau in taus for seed in DESIGN_SEEDS]
    phase = chosen(data[0], DIFFER, strength="auto")
    usual: Any = build_algorithm(phase, "example")
    several = tuple(replace(usual, step_size=times * phase.options["step_size"]) for times in LENGTHS)
    piece = Piece(several, (DIFFER,) * len(several), tuple(f"step x{times:g}" for times in LENGTHS), phase.rounds)
    plain = trained(data, piece)
    print(setting.name, plain[0].round(4).tolist(), flush=True)
    for words, losses in (("plain mean", plain), ("mean by precision", trained(data, piece, True))):
        for name, ratios in zip(piece.names, losses / plain[0], strict=True):
            print(f"  {words}, {name}: {_several(ratios)}", flush=True)


def few(classes: int, clients: int, rows: int, features: int, width: float = 1.0) -> None:
    """Prints few releases over gradient descent, for budgets that differ and for equal ones."""
    made, method = MadeUp((rows,) * clients, features, classes), FEW_BINARY if classes else FEW
    data = [in_range(made(seed, tau), width) for tau in TAUS for seed in DESIGN_SEEDS]
    phase = chosen(data[0], 3.0, method=method)
    names = tuple(map(in_words, BUDGETS))
    algorithms = (build_algorithm(phase, "example"),) * len(BUDGETS)
    losses = trained(data, Piece(algorithms, BUDGETS, names, phase.rounds))
    print(f"{data[0].outcome}, {clients} x {rows}, {features} features, range x{width:g}", flush=True)
    for place, epsilon in enumerate(BUDGETS):
        phase = chosen(data[0], epsilon, strength="auto")
        piece = Piece((build_algorithm(phase, "example"),), (epsilon,), (names[place],), phase.rounds)
        (descent,) = trained(data, piece, epsilon == DIFFER)
        picked = chosen(data[0], epsilon).method == method
        print(f"  epsilon {names[place]}, {'picked' if picked else 'not picked'}: {_several(losses[place] / descent)}")


def in_range(data: Federation, width: float) -> Federation:
    """The same numbers, in units in which the declared range is so many times as wide."""
    if width == 1:
        return data
    train, test = (replace(part, y=part.y / width) for part in (data.train, data.test))
    return replace(data, train=train, test=test)


def _several(ratios: np.ndarray) -> str:
    return " ".join(f"{ratio:.3f}" for ratio in ratios)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="what names hold; default: all")
    parser.add_argument("--few", action="store_true", help="few releases or gradient descent")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.few:
        for classes, sizes in SIZES.items():
            for size in sizes:
                for width in WIDTHS[: 1 if classes else None]:
                    few(classes, *size, width=width)
        return
    for setting in MIXED_DESIGN:
        if given.only is None or any(name in setting.name for name in given.only):
            lengths(setting)


if __name__ == "__main__":
    main()

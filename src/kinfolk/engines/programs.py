"""Programs of the resident engine, compiled with as much effort as they are worth.

A run on a small table computes for a tenth of a second, and XLA spends seconds on making that a hundredth. So where all
rounds of a run are little work, its programs are compiled without optimisation: the same traced program, whose results
differ by rounding alone, and which takes about ten times as long to run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np
from jax.core import Tracer

QUICKLY = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
"""What XLA is told where compiling should be quick."""
LITTLE = 2e7
"""Multiplications of a run, as `work` counts them, for which it is: at most half a CPU second without optimisation."""
EQUATIONS = 10
"""What a round of few releases takes for a client, whose equations are solved in turns of EM, in cubes of its weights;
other methods take less."""


class Planned(Protocol):
    """What is fixed when a program is compiled, as far as its effort goes."""

    @property
    def little_work(self) -> bool: ...


def work(sizes: np.ndarray, steps: np.ndarray, weights: int, runs: int) -> float:
    """About how many multiplications a run of any method takes: for gradients, and for equations of all weights.

    `sizes`, `steps`: every client's rows, and its steps in a round. `weights`: of the model. `runs`: rounds times
    seeds.
    """
    return float(runs) * (float(steps @ sizes) * weights + EQUATIONS * len(sizes) * float(weights) ** 3)


@functools.cache
def can_be_quick() -> bool:
    """Whether programs run on a CPU, whose compiler knows these options."""
    if jax.default_backend() != "cpu":
        return False
    try:
        jax.jit(lambda: np.float32(0), compiler_options=QUICKLY).lower().compile()
    except jax.errors.JaxRuntimeError:  # another release of XLA may not know one of them
        return False
    return True


class Program:
    """A function as a compiled program, by `jax.jit`; its first argument is fixed, and says how much there is to do."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        functools.update_wrapper(self, function)
        self._thorough = jax.jit(function, static_argnums=0, **options)
        self._quick = jax.jit(function, static_argnums=0, compiler_options=QUICKLY, **options)
        self.lower = self._thorough.lower

    def __call__(self, plan: Planned, *arguments: Any) -> Any:
        return self._as_worth(plan, arguments)(plan, *arguments)

    def compile(self, plan: Planned, *arguments: Any) -> None:
        """Compiles what a call with such arguments runs, and runs nothing; arrays may be shapes and types alone."""
        self._as_worth(plan, arguments).lower(plan, *arguments).compile()

    def _as_worth(self, plan: Planned, arguments: Any) -> Any:
        inside = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(arguments))
        quick = plan.little_work and not inside and can_be_quick()  # inside of another program, that one decides
        return self._quick if quick else self._thorough


def program(**options: Any) -> Callable[[Callable[..., Any]], Program]:
    """A decorator for functions whose first argument is the plan; `options` are those of `jax.jit`."""
    return lambda function: Program(function, **options)

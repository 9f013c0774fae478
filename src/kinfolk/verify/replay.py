"""The replay check: with all releases held at their recorded values, changing one unit changes nothing else.

It runs the engine itself, so it covers what tracing cannot see: gather and scatter, the order of clients, Python.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kinfolk.engines import resident
from kinfolk.engines.resident import Clients, Plan, State
from kinfolk.privacy.exact_noise import width
from kinfolk.privacy.levels import Terms
from kinfolk.privacy.release import Tape
from kinfolk.types import Algorithm, Tree

Exact = Callable[[str, tuple[int, ...]], Array]
"""Exact noise for the releases of a kind, (..., uses, integers of one)."""
Step = Callable[[Plan, Algorithm, Terms, Clients, State, Array], State]


def replay(
    plan: Plan,
    algorithm: Algorithm,
    terms: Terms,
    clients: Clients,
    changed: Clients,
    target: int,
    *,
    rounds: int,
    sizes: dict[str, int],
    uses: dict[str, int],
    key: Array,
    step: Step = resident.one_round,
    exact: Exact | None = None,
) -> list[str]:
    """What differs, and should not, when client `target` has the rows in `changed` instead of those in `clients`.

    `sizes`: scalars in a release of each kind; `uses`: most uses of each kind over all rounds. `step` is the engine's
    round, or another to be checked. `exact`: what draws exact noise, to record a release instead of a simulation.
    """

    def run(clients: Clients, state: State) -> State:
        for number in range(rounds):
            state = step(plan, algorithm, terms, clients, state, jnp.int32(number))
        return state

    compiled = jax.jit(run)
    fresh = resident.start(plan, algorithm, key)

    def blank(kinds: tuple[str, ...], *lead: int) -> Tape:
        shapes = {kind: (*lead, max(1, uses[kind]), sizes.get(kind, 1)) for kind in kinds}
        noise = exact and {kind: exact(kind, (*shape[:-1], width(kind, shape[-1]))) for kind, shape in shapes.items()}
        return Tape({kind: jnp.zeros(shape, jnp.float32) for kind, shape in shapes.items()}, "record", noise)

    tapes = [blank(plan.level.data_kinds, plan.clients), blank(plan.level.inbox_kinds)]
    recorded = compiled(clients, _with_tapes(fresh, tapes))
    found = [Tape(tape.values, "replay") for tape in (recorded.meters.tape, recorded.server.tape) if tape is not None]
    before, after = (compiled(rows, _with_tapes(fresh, found)) for rows in (clients, changed))
    return _differences(plan, target, before, after) + _unlike_recording(plan, recorded, before)


def _with_tapes(state: State, tapes: list[Tape]) -> State:
    own, theirs = tapes
    return replace(state, meters=replace(state.meters, tape=own), server=replace(state.server, tape=theirs))


def _differences(plan: Plan, target: int, before: State, after: State) -> list[str]:
    clean, problems = plan.level.clean, []
    if "shared" in clean and not _same(before.shared, after.shared):
        problems.append("the shared state changed")
    if not _same((before.meters.uses, before.server.uses), (after.meters.uses, after.server.uses)):
        problems.append("the number of releases changed")
    others = np.arange(plan.clients) != target
    if not _same(_rows(before.personal, others), _rows(after.personal, others)):
        problems.append("another client's personal state changed")
    if "personal" in clean and not _same(before.personal, after.personal):
        problems.append("the client's own personal state changed other than through a release")
    return problems


def _unlike_recording(plan: Plan, recorded: State, replayed: State) -> list[str]:
    """A replay that does not follow its recording, in what must be clean, would prove nothing."""
    runs = [(s.shared, s.personal if "personal" in plan.level.clean else ()) for s in (recorded, replayed)]
    pairs = zip(*(jax.tree.leaves(run) for run in runs), strict=True)
    close = all(np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True) for a, b in pairs)
    return [] if close else ["the replay does not follow the recording"]


def _rows(tree: Tree, which: np.ndarray) -> Tree:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[which], tree)


def _same(a: Tree, b: Tree) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y, equal_nan=True) for x, y in pairs)

"""What is made of a run's states: the clients' models, their work after training, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from kinfolk import trees
from kinfolk.batching import over
from kinfolk.engines.programs import program
from kinfolk.engines.resident import Clients, Plan, State, latest_models, without_examples
from kinfolk.models import error
from kinfolk.outcomes import rate
from kinfolk.privacy.levels import Terms
from kinfolk.privacy.release import PrivacyError
from kinfolk.rounds import Client, data_gate
from kinfolk.types import Afterwards, Algorithm, Model, Params, Personal, Rows, Shared, Tree


def final_models(algorithm: Algorithm, state: State) -> Params:
    """The models that clients predict with, one row per client."""
    return state.models if jax.tree.leaves(state.models) else latest_models(algorithm, state)


@jax.jit
def all_models(algorithms: Algorithm, states: State) -> Params:
    """`final_models` for every sweep point and seed."""
    return jax.vmap(jax.vmap(final_models, in_axes=(None, 0)))(algorithms, states)


def personalised(
    plan: Plan, afterwards: Afterwards, algorithm: Algorithm, shared: Shared, client: Client, model: Params = ()
) -> Params:
    """What one client makes of its model alone; `model`: where that is not what the algorithm says.

    Nobody else sees it, so it costs nothing at client level; at example level models are published, and it is refused.
    """
    if plan.level.clients_pay:
        raise PrivacyError("work after training looks at raw data: it is free at level='client', refused at 'example'")
    model = model if jax.tree.leaves(model) else algorithm.model(shared, client.personal)
    common = algorithm.model(shared, algorithm.init_client(shared, jnp.int32(0)))
    return afterwards(common, model, data_gate(plan.spec(), client, jnp.int32(0)))


@program()
def personalise(
    plan: Plan, afterwards: Afterwards, algorithms: Algorithm, terms: Terms, clients: Clients, states: State
) -> State:
    """What clients make of their models alone, after the last round, for every sweep point and seed."""

    def of_client(algorithm: Algorithm, shared: Shared, own: tuple[Params, Client], rows: Rows) -> Params:
        model, client = own
        return personalised(plan, afterwards, algorithm, shared, replace(client, rows=rows), model)

    def of_run(algorithm: Algorithm, terms: Terms, clients: Clients, state: State) -> State:
        own = (state.models, without_examples(terms, clients, state))
        run = partial(of_client, algorithm, state.shared)
        return replace(state, models=_by_block(plan, run, own, clients.blocks))

    seeds = over(plan.model, of_run, (None, None, 0, 0))
    return over(plan.model, seeds, (0, 0, None, 0))(algorithms, terms, clients, states)


@program()
def errors(plan: Plan, algorithms: Algorithm, tests: Sequence[Rows], states: State) -> dict[str, Array]:
    """Per sweep point, seed and client: mean loss, and mean error (squared error, or share of wrong labels).

    Of numbers also `mae`, the mean absolute error.
    """

    def of_client(algorithm: Algorithm, shared: Shared, own: tuple[Personal, Params], rows: Rows) -> dict[str, Array]:
        personal, params = own
        params = params if jax.tree.leaves(params) else algorithm.model(shared, personal)
        return errors_of(plan.model, params, rows)

    def of_run(algorithm: Algorithm, tests: Sequence[Rows], state: State) -> dict[str, Array]:
        return _by_block(plan, partial(of_client, algorithm, state.shared), (state.personal, state.models), tests)

    seeds = over(plan.model, of_run, (None, 0, 0))
    return over(plan.model, seeds, (0, None, 0))(algorithms, tests, states)


def errors_of(model: Model, params: Params, rows: Rows) -> dict[str, Array]:
    """One client's mean loss and mean error on these rows; NaN where there are none: nothing was measured."""
    losses = jax.vmap(lambda x, y: model.loss(params, x, y))(rows.x, rows.y)
    outputs = jax.vmap(lambda x: model.predict(params, x))(rows.x)
    wrong = jax.vmap(lambda output, y: error(model, output, y))(outputs, rows.y)
    count = jnp.where(rows.mask.any(), rows.mask.sum().astype(jnp.float32), jnp.nan)
    each = {"loss": losses, "error": wrong}
    if model.outcome == "number":
        each["mae"] = jnp.sqrt(wrong)
    if model.outcome == "count":
        each["mae"] = jnp.abs(rate(outputs) - rows.y)
    return {name: jnp.where(rows.mask, values, 0).sum() / count for name, values in each.items()}


def _by_block(plan: Plan, of_client: Callable[[Tree, Rows], Tree], own: Tree, blocks: Sequence[Rows]) -> Tree:
    """A function of every client's own row and its examples, which lie in blocks."""
    run = over(plan.model, of_client, (0, 0))
    return trees.concatenate([run(*pair) for pair in zip(plan.in_blocks(own), blocks, strict=True)])

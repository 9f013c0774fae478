"""What trained models are worth to writers: as they are, fine-tuned, or self-selected. Needs jax and numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk import trees
from kinfolk.batching import over
from kinfolk.engines.resident import Clients, Plan
from kinfolk.models import error
from kinfolk.personalize.fine_tune import FineTuneAfterwards
from kinfolk.personalize.self_select import SelfSelect


@partial(jax.jit, static_argnums=(0, 1, 2))
def tuned(
    plan: Plan, steps: int, objective: str, clients: Clients, tests: Sequence[Any], common: Any, models: Any
) -> Any:
    """Clients' errors after fine-tuning one run's models (leading axis: clients) with an objective."""
    ((rows,), (test,)) = (trees.row(tuple(part), 0) for part in (clients.blocks, tests))

    def of_client(model: Any, rows: Any, test: Any) -> Any:
        tune = FineTuneAfterwards(0.1, 0.2, steps, objective, "personal")
        return wrong(plan, tune.fit(plan.model, rows, common, model), test)

    return over(plan.model, of_client, (0, 0, 0))(models, rows, test)


def wrong(plan: Plan, params: Any, test: Any) -> Any:
    """A client's share of wrong labels; not a number where it has no test images."""
    found = jax.vmap(lambda x, y: error(plan.model, plan.model.predict(params, x), y))(test.x, test.y)
    return jnp.where(test.mask, found, 0).sum() / test.mask.sum().astype(jnp.float32)


@partial(jax.jit, static_argnums=0)
def accuracy_errors(plan: Plan, tests: Sequence[Any], models: Any) -> Any:
    """Shares of wrong labels, of shape (seeds, clients)."""
    (test,) = trees.row(tuple(tests), 0)
    return jax.vmap(lambda own: over(plan.model, partial(wrong, plan), (0, 0))(own, test))(models)


def summary(errors: Any) -> dict[str, float]:
    """Mean accuracy over clients, and over the worst tenth of them."""
    each = np.sort(1 - np.asarray(errors, np.float64))
    each = each[np.isfinite(each)]
    return {"mean": float(each.mean()), "worst_tenth": float(each[: max(1, len(each) // 10)].mean())}


@partial(jax.jit, static_argnums=(0, 1))
def selected(plan: Plan, step: SelfSelect, clients: Clients, tests: Sequence[Any], shared: Any) -> Any:
    """Clients' errors after self-selection around each of several global models: clients x models."""
    ((rows,), (test,)) = (trees.row(tuple(part), 0) for part in (clients.blocks, tests))

    def of_client(rows: Any, test: Any) -> Any:  # what does not depend on the shared model is fitted once
        return jax.vmap(lambda common: wrong(plan, step.choose(plan.model, rows, common), test))(shared)

    return over(plan.model, of_client, (0, 0))(rows, test)

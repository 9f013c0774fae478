"""What per-example clipping costs: one private step against the same step without privacy.

    python -m benchmarks.speed.clipping [--silos 2] [--batch 64] [--json]

A step is the gradient of a batch for every silo, each with its own weights. `plain` is what anybody would write;
`rows` clips every example's own gradient; `book-keeping` is what kinfolk picks for models made of layers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from kinfolk import models, trees
from kinfolk.privacy import clipping

MODELS = {
    "linear 28": (models.linear(28), (28,)),
    "softmax 784x62": (models.softmax(784, 62), (784,)),
    "mlp 784-256-10": (models.mlp(784, 10, (256,)), (784,)),
    "cnn 3x3 32/64": (models.cnn(28, 10, (32, 64)), (28, 28, 1)),
}


def seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """Median over repetitions of about half a second in all, after compilation."""
    compiled = jax.jit(function)
    jax.block_until_ready(compiled(*arguments))
    times: list[float] = []
    while len(times) < 3 or (sum(times) < 0.5 and len(times) < 200):
        began = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measure(silos: int, batch: int) -> list[dict[str, Any]]:
    rows = []
    for name, (model, shape) in MODELS.items():
        keys = jax.random.split(jax.random.key(0), silos)
        params = jax.vmap(model.init)(keys)
        x = jax.random.uniform(jax.random.key(1), (silos, batch, *shape))
        y = jnp.zeros((silos, batch), jnp.float32 if model.outcome == "number" else jnp.int32)
        naive = clipping.rows(lambda p, example, model=model: jax.grad(model.loss)(p, *example))
        ours = clipping.gradients(model)

        def plain(params: Any, x: Any, y: Any, model: Any = model) -> Any:
            def loss(p: Any, x: Any, y: Any) -> Any:
                return jax.vmap(lambda a, b: model.loss(p, a, b))(x, y).sum()

            return jax.vmap(jax.grad(loss))(params, x, y)

        def clipped(params: Any, x: Any, y: Any, how: Any) -> Any:
            return jax.vmap(lambda p, a, b: how.clipped(p, (a, b), jnp.ones(a.shape[0]), jnp.float32(1)))(params, x, y)

        times = {
            "plain": seconds(plain, params, x, y),
            "rows": seconds(lambda p, a, b, how=naive: clipped(p, a, b, how), params, x, y),
            "book-keeping": seconds(lambda p, a, b, how=ours: clipped(p, a, b, how), params, x, y),
        }
        rows.append(
            {
                "model": name,
                "weights": trees.size(params) // silos,
                **{f"{key}_ms": 1000 * value for key, value in times.items()},
                "rows_ratio": times["rows"] / times["plain"],
                "book-keeping_ratio": times["book-keeping"] / times["plain"],
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--silos", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = measure(args.silos, args.batch)
    if args.json:
        print(
            json.dumps({"device": jax.devices()[0].device_kind, "silos": args.silos, "batch": args.batch, "rows": rows})
        )
        return
    for row in rows:
        print(
            f"{row['model']:16s} plain {row['plain_ms']:8.2f} ms   rows {row['rows_ratio']:5.2f}x   "
            f"book-keeping {row['book-keeping_ratio']:5.2f}x"
        )


if __name__ == "__main__":
    main()

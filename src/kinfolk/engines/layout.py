"""Clients laid out for the engine: blocks of similar size, so that little is computed on padding."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk import limits
from kinfolk.data.federation import Federation
from kinfolk.engines.resident import Clients
from kinfolk.toml import ConfigError
from kinfolk.types import Rows


def local_steps(sizes: np.ndarray, batch_size: int | None, epochs: int) -> np.ndarray:
    """Local steps of each client in a round: whole batches per epoch, at least one. Public, like the sizes."""
    per_epoch = np.maximum(1, sizes // batch_size) if batch_size else np.ones_like(sizes)
    limits.require_feasible(1, epochs * int(per_epoch.max()))
    return (epochs * per_epoch).astype(np.int32)


def block_widths(steps: np.ndarray, sizes: np.ndarray, most_blocks: int) -> tuple[int, ...]:
    """Widths of at most `most_blocks` runs of clients (sorted by size) with the least work on padding.

    The work of a block is clients x most steps x most rows; an exact dynamic programme over the distinct cuts: where
    the number of steps changes, or, if it never does and more than half would be padding, where sizes do.
    """
    mostly_padding = len(sizes) * sizes[-1] > 2 * sizes.sum()
    by_size = mostly_padding and steps[0] == steps[-1]
    changes = np.flatnonzero(np.diff(sizes if by_size else steps)) + 1
    thin = -(-len(changes) // 64) if by_size else 1
    cuts = [0, *changes[::thin].tolist(), len(steps)]
    work = {(a, b): (b - a) * int(steps[b - 1]) * int(sizes[b - 1]) for i, a in enumerate(cuts) for b in cuts[i + 1 :]}
    best: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {(0, 0): (0, ())}
    for used in range(1, most_blocks + 1):
        for b in cuts[1:]:
            options = [
                (cost + work[a, b], (*widths, b - a))
                for (count, a), (cost, widths) in best.items()
                if count == used - 1 and a < b
            ]
            if options:
                best[used, b] = min(options)
    return min(value for (_, end), value in best.items() if end == len(steps))[1]


def lay_out(
    federations: Sequence[Federation],
    *,
    batch_size: int | None,
    epochs: int,
    by_size: bool = False,
    most_blocks: int = 4,
) -> tuple[Clients, tuple[Rows, ...], tuple[int, ...], tuple[int, ...]]:
    """One federation per seed, as the engine's arrays with a leading seed axis; clients have the same sizes in all.

    Returns the clients, their test rows, and each block's width and largest number of steps. Use one block when
    cohorts are gathered.
    """
    sizes = federations[0].train.sizes
    for other in federations[1:]:
        if other.ids != federations[0].ids:
            raise ConfigError(
                f"the clients of {other.name!r} have other names, or another order, with another seed, and a client is "
                "known by its place: run one seed at a time (seeds=1), or name clients alike, in one order"
            )
        if not np.array_equal(other.train.sizes, sizes):
            raise ConfigError(
                f"the clients of {other.name!r} have other sizes with another seed, and steps and noise are chosen by "
                "sizes: run one seed at a time (seeds=1), or divide the rows among clients by a seed of their own"
            )
    steps = local_steps(sizes, batch_size, epochs)
    widths = block_widths(steps, sizes, most_blocks)
    edges = np.cumsum([0, *widths])
    spans = [slice(int(a), int(b)) for a, b in itertools.pairwise(edges.tolist())]

    def stacked(part: str, span: slice) -> Rows:
        longest = max(1, *(int(getattr(f, part).sizes[span].max()) for f in federations))
        blocks = [getattr(f, part).rows(span, longest) for f in federations]
        return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *blocks)

    blocks = tuple(stacked("train", span) for span in spans)
    clients = Clients(blocks, *_public(sizes, steps, by_size, len(federations)))
    most = tuple(int(steps[span].max()) for span in spans)
    return clients, tuple(stacked("test", span) for span in spans), widths, most


def lay_out_streamed(
    federation: Federation, *, batch_size: int | None, epochs: int, by_size: bool = False, most_blocks: int = 1
) -> tuple[Clients, tuple[Rows, ...], tuple[int, ...], tuple[int, ...]]:
    """The same for the streaming engine: in every block the first client's rows only, to show their shapes."""
    sizes = federation.train.sizes
    steps = local_steps(sizes, batch_size, epochs)
    widths = block_widths(steps, sizes, most_blocks)
    ends = np.cumsum(widths).tolist()
    blocks = tuple(
        jax.tree.map(
            lambda leaf: jnp.asarray(leaf)[None],
            federation.train.rows(slice(end - width, end - width + 1), max(1, int(sizes[end - 1]))),
        )
        for width, end in zip(widths, ends, strict=True)
    )
    most = tuple(int(steps[end - width : end].max()) for width, end in zip(widths, ends, strict=True))
    return Clients(blocks, *_public(sizes, steps, by_size, 1)), (), widths, most


def _public(sizes: np.ndarray, steps: np.ndarray, by_size: bool, seeds: int) -> tuple[jax.Array, ...]:
    """Every seed's public numbers of clients: sizes, steps and weights."""
    weights = sizes / sizes.mean() if by_size else np.ones(len(sizes))
    numbers = (sizes.astype(np.float32), steps, weights.astype(np.float32))
    return tuple(jnp.asarray(np.tile(values, (seeds, 1))) for values in numbers)

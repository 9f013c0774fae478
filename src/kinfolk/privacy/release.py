"""A release is one primitive in the traced program: the only operation that turns private values into public ones.

It holds the whole computation from raw units to the noisy result, so nothing can come between the clip and the noise,
and `flow.py` can find it, count it and look at what went in. It has no derivative.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from kinfolk import trees
from kinfolk.types import Tree, Value


class PrivacyError(Exception):
    """Something private would have left without a release, or beyond its budget."""


@dataclass(frozen=True)
class Cost:
    """What one use of a mechanism costs, as plain values: `accounting.py` alone turns it into a privacy event."""

    mechanism: str
    """`gaussian`, `laplace` or another that the accounting knows."""
    noise_multiplier: float
    """Noise standard deviation divided by the clip norm."""
    rate: float = 1.0
    """Probability with which a unit is sampled."""
    relation: str = "zero_out"
    """Which data sets are neighbours, `zero_out` or `replace_one`."""
    delta: float = 0.0
    """Probability per use that a sample overflows its capacity; it comes out of delta."""
    covers: int = 1
    """How many uses in one run are paid for together: with correlated noise, all of them, by the first."""
    group: int = 1
    """How many units of the draw lie wholly inside the one that is protected: its own, a person's several."""
    parts: int = 0
    """How many of them it covers only in part: their contributions do not vanish with it, they become others."""


@trees.register
@dataclass(frozen=True)
class Tape:
    """Values indexed by use, one array of shape (uses, size) per kind of release.

    `noise`: integers drawn outside the program from the operating system's entropy (a release run).
    `record` and `replay`: released values, written or read back (the replay check).
    `count`: no values at all; releases are counted and not made.
    """

    values: dict[str, Array]
    mode: str = field(metadata={"static": True})
    drawn: dict[str, Array] | None = None
    """While recording a release: its exact noise."""

    @property
    def noise(self) -> dict[str, Array] | None:
        """Exact noise, where there is any."""
        return self.values if self.mode == "noise" else self.drawn


@trees.register
@dataclass(frozen=True)
class Meter:
    """One private party's noise stream and how often it was used, per kind of release.

    The noise of a release comes from `fold_in(noise, uses)` and every release returns a meter with one more use, so
    fresh noise cannot be drawn without being counted. Under `vmap` this is a stream and a counter for each client.
    """

    noise: Array
    """The key of its noise."""
    coins: Array
    """The key of its sampling."""
    uses: dict[str, Array]
    """Releases so far, by kind."""
    draws: Array
    """How many batches were drawn without a release; it numbers their coins."""
    memory: Array
    """What a mechanism remembers of its own releases, and so public: adaptive clipping keeps the clip here, as a
    multiple of the one it began with."""
    tape: Tape | None = None
    """Noise drawn beforehand, or recorded releases."""


def new_meter(key: Array, kinds: tuple[str, ...]) -> Meter:
    """A meter with its own named streams for noise and for sampling coins.

    `key`: a JAX random key. `kinds`: the kinds of release that it may make.
    """
    uses = {kind: jnp.int32(0) for kind in kinds}
    return Meter(jax.random.fold_in(key, 0), jax.random.fold_in(key, 1), uses, jnp.int32(0), jnp.float32(1))


@trees.register
@dataclass(frozen=True)
class Secret:
    """The randomness of one release: keys for noise and coins, or exact integer noise from a tape."""

    noise: Array
    coins: Array
    stream: Array
    """The key from which every release of this kind gets its noise key, by its number."""
    number: Array
    integers: Array | None = None


Body = Callable[[Secret, Tree, Tree, Tree], Tree]
"""`body(secret, units, terms, public)`: what is released. The leading axis of `units` is the privacy unit, `terms` are
the numbers of the mechanism (clip, noise, rate), `public` is whatever else it reads.
"""


def release(
    kind: str, body: Body, meter: Meter, units: Tree, terms: Tree, public: Tree, active: Value = True
) -> tuple[Tree, Meter]:
    """The value of `body`, and the meter with one more use.

    Everything `body` closes over is treated as `public`, and `flow.py` refuses a program in which it is not. An
    inactive release gives zeros and costs nothing; `active` must itself be public.

    `kind`: under which it is counted. `meter`: whose noise, and who pays. `units`: private; the leading axis is the
    privacy unit. `terms`: the mechanism's numbers; public.
    """
    if kind not in meter.uses:
        raise PrivacyError(f"this gate makes no release of kind={kind!r}; it has {sorted(meter.uses)}")
    uses, tape = meter.uses[kind], meter.tape
    active = jnp.asarray(active)
    if tape and tape.mode in ("count", "replay"):
        shapes = jax.eval_shape(body, Secret(meter.noise, meter.coins, meter.noise, uses), units, terms, public)
        flat = tape.values[kind].at[uses].get(mode="clip") if tape.mode == "replay" else jnp.float32(0)
        released = _unflatten(jnp.where(active, flat, 0), shapes)
        after = uses + active.astype(jnp.int32)
    else:
        after, released = _bind(kind, body, meter, units, terms, public, active)
    if tape and tape.mode == "record":
        index = jnp.where(active, uses, tape.values[kind].shape[0])
        flat = trees.flatten(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), released))[0]
        written = tape.values[kind].at[index, : flat.size].set(flat, mode="drop")
        meter = replace(meter, tape=replace(tape, values={**tape.values, kind: written}))
    return released, replace(meter, uses={**meter.uses, kind: after})


def _void(value: Array) -> Array:
    """What is not a number, and no candidate's number either."""
    return jnp.full_like(value, jnp.nan if jnp.issubdtype(value.dtype, jnp.floating) else -1)


def _kind_number(kind: str) -> int:
    """A public number per kind, so that two kinds of one meter never share a stream."""
    return zlib.crc32(kind.encode())


def _unflatten(flat: Array, shapes: Tree) -> Tree:
    empty = jax.tree.map(lambda s: jnp.zeros(s.shape, jnp.float32), shapes)
    size = trees.size(empty)
    filled = trees.flatten(empty)[1](jnp.broadcast_to(flat, (size,)) if flat.ndim == 0 else flat[:size])
    return jax.tree.map(lambda leaf, s: leaf.astype(s.dtype), filled, shapes)


release_p = core.Primitive("release")
release_p.multiple_results = True


def _bind(
    kind: str, body: Body, meter: Meter, units: Tree, terms: Tree, public: Tree, active: Array
) -> tuple[Array, Tree]:
    """One equation in the program. Its inputs, in order: keys and noise tape, the counter, units, terms, public
    values, what the body closes over, the active flag. Its outputs: the counter, and what is released.
    """
    drawn = meter.tape.noise if meter.tape else None
    numbers = None if drawn is None else drawn.get(kind)
    if drawn is not None and numbers is None:
        raise PrivacyError(f"releases of kind={kind!r} have no exact noise yet: give a seed to simulate")
    keys = (meter.noise, meter.coins, numbers)

    def whole(active: Array, keys: Tree, uses: Array, units: Tree, terms: Tree, public: Tree) -> tuple[Array, Tree]:
        noise, coins, numbers = keys
        stream, flips = (jax.random.fold_in(key, _kind_number(kind)) for key in (noise, coins))
        noise, coins = (jax.random.fold_in(key, uses) for key in (stream, flips))
        integers = None if numbers is None else numbers.at[uses].get(mode="clip")
        released = body(Secret(noise, coins, stream, uses, integers), units, terms, public)
        if numbers is not None:  # running past the tape would reuse noise: nothing comes out instead
            released = trees.choose(uses < numbers.shape[0], released, jax.tree.map(_void, released))
        return uses + active.astype(jnp.int32), trees.choose(active, released, trees.zeros_like(released))

    parts = (keys, meter.uses[kind], units, terms, public)
    closed, shapes = jax.make_jaxpr(whole, return_shape=True)(active, *parts)
    hidden = tuple(closed.consts)  # what the body closes over, made an explicit public input
    inputs = [*jax.tree.leaves(parts), *hidden, active]

    def ordered(*args: Array) -> list[Array]:
        *rest, flag = args
        private, consts = rest[: len(rest) - len(hidden)], rest[len(rest) - len(hidden) :]
        return core.jaxpr_as_fun(core.ClosedJaxpr(closed.jaxpr, list(consts)))(flag, *private)

    program = jax.make_jaxpr(ordered)(*inputs)
    sizes = tuple(len(jax.tree.leaves(part)) for part in parts)
    form = jax.tree.structure(public)
    out = release_p.bind(*inputs, program=program, kind=kind, sizes=sizes, form=form)
    return jax.tree.unflatten(jax.tree.structure(shapes), out)


def _evaluate(*args: Array, program: core.ClosedJaxpr, **_: object) -> list[Array]:
    return core.jaxpr_as_fun(program)(*args)


def _batch(
    args: Sequence[Array], dims: Sequence[int | object], *, program: core.ClosedJaxpr, **_: object
) -> tuple[list[Array], list[int]]:
    axes = [d if isinstance(d, int) else None for d in dims]
    out = jax.vmap(core.jaxpr_as_fun(program), in_axes=axes)(*args)
    return out, [0] * len(out)


def _no_derivative(*_: object, **__: object) -> NoReturn:
    raise PrivacyError(
        "a derivative was taken through a release: it would return a raw derivative of the data. "
        "Treat the released value as a constant (jax.lax.stop_gradient on what goes into the gate)."
    )


release_p.def_impl(_evaluate)
release_p.def_abstract_eval(lambda *_, program, **__: list(program.out_avals))
mlir.register_lowering(release_p, mlir.lower_fun(_evaluate, multiple_results=True))
batching.primitive_batchers[release_p] = _batch
ad.primitive_jvps[release_p] = _no_derivative

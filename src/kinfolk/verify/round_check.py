"""The flow check of a whole round: one client's part, then the aggregator's, at a privacy level."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from kinfolk.privacy.gates import CHOICE, MIXTURE, SECOND_MOMENT, SQUARES, DataGate, Inbox
from kinfolk.privacy.levels import CLEAN as MUST_BE_CLEAN
from kinfolk.privacy.levels import DATA_KINDS, INBOX_KINDS, Terms
from kinfolk.privacy.mechanisms import AdaptiveSum
from kinfolk.privacy.release import Meter, PrivacyError, Tape, new_meter
from kinfolk.rounds import client_round, server_round
from kinfolk.types import Algorithm, Model
from kinfolk.verify.flow import (
    CLEAN,
    COUNTER,
    KEY,
    MARKED,
    ROWS,
    TERMS,
    Report,
    check,
    must_be_clean,
    must_be_counters,
    must_be_handed_on,
    private,
)


@dataclass(frozen=True)
class RoundCheck:
    """The flow check's verdict on one algorithm at one level."""

    violations: tuple[str, ...]
    """What is wrong, in words; empty: nothing."""
    client_releases: dict[str, int]
    """Most releases of each kind one client can make in a round."""
    server_releases: dict[str, int]
    """Most releases of each kind the aggregator can make in a round."""
    sizes: dict[str, int]
    """Most scalars in one release of each kind."""
    program: str
    """Hash of the traced functions of a round."""

    def require(self) -> RoundCheck:
        """Itself, or an error that lists what is wrong."""
        if self.violations:
            raise PrivacyError("the flow check found leaks:\n- " + "\n- ".join(self.violations))
        return self


def check_round(
    model: Model,
    level: str,
    algorithm: Algorithm,
    terms: Terms,
    rows: Any,
    most_steps: int,
    clients: int = 3,
    places: int | None = None,
    tapes: tuple[Tape | None, Tape | None] = (None, None),
) -> RoundCheck:
    """Traces the functions of a round (no data needed: `rows` may be shapes) and follows what is private.

    `terms` and `rows` are those of one client; `places` is how many messages the inbox holds (default: all clients').
    `tapes`: exact noise for a client and for the server, as in a release run, so that the checked program is the one
    that runs.

    `model`: the model. `level`: a privacy level's name. `algorithm`: the method. `most_steps`: local steps of the
    client that takes most. `clients`: how many there are.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    number, real = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), jnp.float32)
    clean = MUST_BE_CLEAN[level]
    reports = [_check_start(model, algorithm, clients, key, number), _check_loss(model, key, rows)]
    shared = jax.eval_shape(lambda k: algorithm.init(model.init(k), clients), key)
    personal = jax.eval_shape(algorithm.init_client, shared, number)

    def meter(kinds: tuple[str, ...], tape: Tape | None) -> tuple[Meter, Meter]:
        shapes = jax.eval_shape(lambda k: new_meter(k, kinds), key)
        counters = dict.fromkeys(kinds, COUNTER)
        marks: Any = Meter(KEY, KEY, counters, CLEAN, CLEAN, jax.tree.map(lambda _: KEY, tape))  # type: ignore[arg-type]
        return replace(shapes, tape=tape), marks

    own, own_marks = meter(DATA_KINDS[level], tapes[0])
    kept = CLEAN if "personal" in clean else MARKED
    arguments = (algorithm, shared, personal, rows, own, terms.own, real, number, number)
    labels = (CLEAN, CLEAN, kept, ROWS, own_marks, TERMS, CLEAN, CLEAN, CLEAN)

    def round_of_client(*args: Any) -> Any:
        return client_round(model, most_steps, *args)

    def usual(kind: str, public: Any, *rest: Any) -> Any:
        rows, meter, (data, choice), size, steps, number = rest
        gate = DataGate(rows, meter, data, choice, size, steps, number, most_steps, model)
        return gate.choose(public)[0] if kind == CHOICE else gate.gradient(public)[0]

    client = check(round_of_client, arguments, labels)
    reports.append(client)
    if client.labels is not None:
        message_marks, personal_marks, meter_marks = client.labels
        if "message" in clean:
            must_be_clean(client, "the message", message_marks)
        if "personal" in clean:
            must_be_clean(client, "the personal state", personal_marks)
        if level != "none":
            must_be_counters(client, meter_marks.uses)
            _check_meter(client, client.places[2])
            must_be_as_usual(client, usual, arguments[3:], labels[3:])
        reports.append(
            _check_server(
                level,
                algorithm,
                shared,
                _message(round_of_client, arguments),
                terms,
                (clients, places or clients),
                meter(INBOX_KINDS[level], tapes[1]),
            )
        )
    violations = tuple(dict.fromkeys(text for report in reports for text in report.violations))
    program = hashlib.sha256("".join(report.program for report in reports).encode()).hexdigest()
    return RoundCheck(
        violations if level != "none" else (),
        client.releases,
        reports[-1].releases if client.labels is not None else {},
        {kind: size for report in reports for kind, size in report.sizes.items()},
        program,
    )


def _check_meter(report: Report, meter: Meter) -> None:
    tape = jax.tree.leaves(meter.tape)
    must_be_handed_on(report, [meter.noise, meter.coins, *tape], (meter.draws, meter.memory))


def _check_start(model: Model, algorithm: Algorithm, clients: int, key: Any, slot: Any) -> Report:
    """Initial states know nothing of the data: whatever they close over counts as data."""

    def begin(algorithm: Algorithm, key: Any, slot: Any) -> Any:
        shared = algorithm.init(model.init(key), clients)
        return shared, algorithm.init_client(shared, slot)

    report = check(begin, (algorithm, key, slot), (CLEAN, CLEAN, CLEAN))
    must_be_clean(report, "the initial state", report.labels)
    return report


def _check_loss(model: Model, key: Any, rows: Any) -> Report:
    """The loss, for one example: only the gate may add the axis of examples. What it closes over counts as data."""
    example = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), (rows.x, rows.y))
    arguments = (jax.eval_shape(model.init, key), *example)
    report = check(model.loss, arguments, (CLEAN, MARKED, MARKED))
    alone = check(model.loss, arguments, (CLEAN, CLEAN, CLEAN))
    if any(private(mark) for mark in jax.tree.leaves(alone.labels)):
        report.violations.append(
            "the loss reads an array besides its arguments, which counts as data: make it a parameter of the model"
        )
    return report


def _message(round_of_client: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return jax.eval_shape(lambda *args: round_of_client(*args)[0], *arguments)


def _check_server(
    level: str,
    algorithm: Algorithm,
    shared: Any,
    message: Any,
    terms: Terms,
    numbers: tuple[int, int],
    meter: tuple[Meter, Meter],
) -> Report:
    clean, (clients, places), (theirs, marks) = MUST_BE_CLEAN[level], numbers, meter
    seen = ROWS if level == "client" else CLEAN if "message" in clean else MARKED
    arguments = (
        algorithm,
        shared,
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((places, *leaf.shape), leaf.dtype), message),
        jax.ShapeDtypeStruct((places,), jnp.float32),
        jax.ShapeDtypeStruct((places,), jnp.int32),
        jax.ShapeDtypeStruct((places,), bool),
        theirs,
        terms.inbox,
        jax.ShapeDtypeStruct((clients,), jnp.float32),
        jax.ShapeDtypeStruct((), jnp.int32),
    )
    labels = (CLEAN, CLEAN, seen, seen, seen, seen, marks, TERMS, CLEAN, CLEAN)
    server = check(lambda *args: server_round(level, *args), arguments, labels)
    if server.labels is not None and "shared" in clean:
        must_be_clean(server, "the shared state", server.labels[0])
        must_be_counters(server, server.labels[1].uses)
        _check_meter(server, server.places[1])

    def usual(kind: str, public: Any, *rest: Any) -> Any:
        inbox = Inbox(*rest, level != "client")  # type: ignore[call-arg]
        public = public[0] if isinstance(terms.inbox, AdaptiveSum) else public
        if kind == MIXTURE:
            return inbox.mix(public)[0]
        if kind in (SECOND_MOMENT, SQUARES):
            return (inbox.second_moment() if kind == SECOND_MOMENT else inbox.squares())[0]
        return inbox.sum()[0]

    if level == "client":
        must_be_as_usual(server, usual, arguments[2:], labels[2:])
    return server


def must_be_as_usual(
    report: Report, usual: Callable[..., Any], arguments: Sequence[Any], labels: Sequence[Any]
) -> None:
    """Adds a violation if a release computes something else than the gate's own query with such arguments does."""
    for kind, text, public in report.bodies:
        canonical = check(partial(usual, kind), (public, *arguments), (CLEAN, *labels))
        if text not in [body for other, body, _ in canonical.bodies if other == kind]:
            report.violations.append(f"a release of kind {kind!r} is not the one that its gate makes")

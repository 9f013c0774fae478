"""The flow check of a whole round: one client's part, then the aggregator's, at a privacy level."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from kinfolk.privacy.flow import (
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
)
from kinfolk.privacy.levels import CLEAN as MUST_BE_CLEAN
from kinfolk.privacy.levels import DATA_KINDS, INBOX_KINDS, Terms
from kinfolk.privacy.mechanisms import Mechanism
from kinfolk.privacy.release import Meter, PrivacyError, Tape, new_meter
from kinfolk.simulation.rounds import client_round, server_round
from kinfolk.types import Algorithm, Model


@dataclass(frozen=True)
class RoundCheck:
    """The flow check's verdict on one algorithm at one level."""

    violations: tuple[str, ...]
    client_releases: dict[str, int]
    """Most releases of each kind one client can make in a round."""
    server_releases: dict[str, int]
    sizes: dict[str, int]
    """Most scalars in one release of each kind."""
    program: str
    """Hash of the traced programs."""

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
    tapes: tuple[Tape | None, Tape | None] = (None, None),
) -> RoundCheck:
    """Traces both functions of a round (no data needed: `rows` may be shapes) and follows what is private.

    `terms` and `rows` are those of one client. `tapes`: exact noise for a client and for the server, as in a release
    run, so that the checked program is the one that runs.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    shared = jax.eval_shape(lambda k: algorithm.init(model.init(k)), key)
    slot = jax.ShapeDtypeStruct((), jnp.int32)
    personal = jax.eval_shape(algorithm.init_client, shared, slot)
    number, real = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), jnp.float32)
    clean = MUST_BE_CLEAN[level]

    def meter(kinds: tuple[str, ...], tape: Tape | None) -> tuple[Meter, Meter]:
        shapes = jax.eval_shape(lambda k: new_meter(k, kinds), key)
        shapes = Meter(shapes.noise, shapes.coins, shapes.uses, shapes.draws, tape)
        counters = dict.fromkeys(kinds, COUNTER)
        return shapes, Meter(KEY, KEY, counters, CLEAN, jax.tree.map(lambda _: KEY, tape))  # type: ignore[arg-type]

    own, own_marks = meter(DATA_KINDS[level], tapes[0])
    kept = CLEAN if "personal" in clean else MARKED
    client = check(
        lambda *args: client_round(model, most_steps, *args),
        (algorithm, shared, personal, rows, own, terms.data, real, slot, number),
        (CLEAN, CLEAN, kept, ROWS, own_marks, TERMS, CLEAN, CLEAN, CLEAN),
    )
    reports = [client]
    server_releases: dict[str, int] = {}
    if client.labels is not None:
        message_marks, personal_marks, meter_marks = client.labels
        if "message" in clean:
            must_be_clean(client, "the message", message_marks)
        if "personal" in clean:
            must_be_clean(client, "the personal state", personal_marks)
        if level != "none":
            must_be_counters(client, meter_marks.uses)
            must_be_same_form(client, terms.data)
        message = jax.eval_shape(
            lambda *args: client_round(model, most_steps, *args)[0],
            *(algorithm, shared, personal, rows, own, terms.data, real, slot, number),
        )
        messages = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((clients, *leaf.shape), leaf.dtype), message)
        seen = ROWS if level == "client" else CLEAN if "message" in clean else MARKED
        theirs, their_marks = meter(INBOX_KINDS[level], tapes[1])
        server = check(
            lambda *args: server_round(level, *args),
            (
                algorithm,
                shared,
                messages,
                jax.ShapeDtypeStruct((clients,), jnp.float32),
                jax.ShapeDtypeStruct((clients,), bool),
                theirs,
                terms.inbox,
                real,
                number,
            ),
            (CLEAN, CLEAN, seen, seen, seen, their_marks, TERMS, CLEAN, CLEAN),
        )
        reports.append(server)
        if server.labels is not None and "shared" in clean:
            must_be_clean(server, "the shared state", server.labels[0])
            must_be_counters(server, server.labels[1].uses)
            must_be_same_form(server, terms.inbox)
        server_releases = server.releases
    violations = tuple(dict.fromkeys(text for report in reports for text in report.violations))
    if level == "none":
        violations = ()
    program = hashlib.sha256("".join(report.program for report in reports).encode()).hexdigest()
    sizes = {kind: size for report in reports for kind, size in report.sizes.items()}
    return RoundCheck(violations, client.releases, server_releases, sizes, program)


def must_be_same_form(report: Report, mechanism: Mechanism) -> None:
    """Adds a violation if a release was made by a mechanism of another kind, relation or capacity than the gate's."""
    if any(form != str(jax.tree.structure(mechanism)) for forms in report.forms.values() for form in forms):
        report.violations.append("a release was made by another mechanism than the one at the gate")

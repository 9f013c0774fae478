"""The flow check of a whole round: one client's part, then the aggregator's, at a privacy level."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from kinfolk import trees
from kinfolk.privacy.gates import CHOICE, GRADIENT, MIXTURE, SECOND_MOMENT, SQUARES, STATISTIC
from kinfolk.privacy.levels import Terms
from kinfolk.privacy.mechanisms import AdaptiveSum
from kinfolk.privacy.release import Meter, PrivacyError, Tape, new_meter
from kinfolk.rounds import Client, Mail, RoundSpec, client_round, data_gate, inbox, server_round
from kinfolk.types import Algorithm, Model, Tree
from kinfolk.units import over_rows
from kinfolk.verify.flow import Report, check, must_be_clean, must_be_counters, must_be_handed_on
from kinfolk.verify.labels import CLEAN, COUNTER, KEY, MARKED, ROWS, TERMS, For, private


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
    programs: frozenset[str] = frozenset()
    """Fingerprints of the client's and the aggregator's part."""
    certain: dict[str, int] = field(default_factory=dict)
    """Fewest releases of each kind in a round by one party: those that are always active."""

    @property
    def releases(self) -> dict[str, int]:
        """Most releases of each kind in a round by one party."""
        return {**self.client_releases, **self.server_releases}

    def require(self, uses: Mapping[str, np.ndarray] | None = None) -> RoundCheck:
        """Itself, or an error that lists what is wrong.

        `uses`: how often each kind was counted, in every round; the traced program must bear it out.
        """
        if self.violations:
            raise PrivacyError("the flow check found leaks:\n- " + "\n- ".join(self.violations))
        for kind, counts in (uses or {}).items():
            most = int(counts.max(initial=0))
            if most > self.releases.get(kind, 0):
                raise PrivacyError(
                    f"{kind}: {most} uses in a round, but the traced program makes {self.releases.get(kind, 0)}"
                )
        for kind, certain in (self.certain if uses is not None else {}).items():
            counts = np.asarray((uses or {}).get(kind, 0))
            if counts.size and int(counts.min()) < certain:
                raise PrivacyError(
                    f"{kind}: {int(counts.min())} uses counted in a round, but the traced program makes {certain} that "
                    "are never inactive: a method must do the same when its releases are only counted"
                )
        return self


def check_round(
    spec: RoundSpec,
    algorithm: Algorithm,
    terms: Terms,
    rows: Tree,
    places: int | None = None,
    tapes: tuple[Tape | None, Tape | None] = (None, None),
) -> RoundCheck:
    """Traces the functions of a round (no data needed: `rows` may be shapes) and follows what is private.

    `terms` and `rows` are those of one client; `places` is how many messages the inbox holds (default: all clients').
    `tapes`: exact noise for a client and for the server, as in a release run, so that the checked program is the one
    that runs.

    `spec`: what is fixed when a round is compiled. `algorithm`: the method.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    number, real = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), jnp.float32)
    level, model, clean = spec.level, spec.model, spec.level.clean
    reports = [_check_start(spec, algorithm, key, number), _check_loss(model, key, rows)]
    shared = jax.eval_shape(lambda k: algorithm.init(model.init(k), spec.clients), key)
    personal = jax.eval_shape(algorithm.init_client, shared, number)

    def meter(kinds: tuple[str, ...], tape: Tape | None) -> tuple[Meter, Meter]:
        shapes = jax.eval_shape(lambda k: new_meter(k, kinds), key)
        counters, noise = ({kind: For(label, (kind,)) for kind in kinds} for label in (COUNTER, KEY))
        drawn: Tree = replace(tape, values={kind: noise[kind] for kind in tape.values}) if tape else None
        marks = trees.filled(Meter, KEY, KEY, counters, CLEAN, CLEAN, drawn)
        return replace(shapes, tape=tape), marks

    own, own_marks = meter(level.data_kinds, tapes[0])
    kept = CLEAN if "personal" in clean else MARKED
    shapes = trees.filled(Client, personal, rows, own, terms.own, real, number)
    arguments = (algorithm, shared, shapes, number)
    at_gate = (For(TERMS, (GRADIENT, STATISTIC)), For(TERMS, (CHOICE,)))
    marks = trees.filled(Client, kept, ROWS, own_marks, at_gate, CLEAN, CLEAN)
    labels = (CLEAN, CLEAN, marks, CLEAN)
    round_of_client = partial(client_round, spec)

    def usual(kind: str, public: Tree, client: Client, number: Tree) -> Tree:
        gate = data_gate(spec, client, number)
        asked = {CHOICE: gate.choose, STATISTIC: gate.statistic}.get(kind, gate.gradient)
        return asked(public)[0]

    reports += _check_outcome(spec, algorithm, (shared, personal), kept)
    client = check(round_of_client, arguments, labels)
    if client.divides:
        client.violations.append(
            "a client's part divides work among devices: where engines divide clients, it would meet others there"
        )
    reports.append(client)
    if client.labels is not None:
        message_marks, personal_marks, _ = client.labels
        if "message" in clean:
            must_be_clean(client, "the message", message_marks)
        if "personal" in clean:
            must_be_clean(client, "the personal state", personal_marks)
        if level.private:
            _check_meter(client, client.places[2])
            must_be_as_usual(client, usual, arguments[2:], labels[2:])
        theirs = meter(level.inbox_kinds, tapes[1])
        mail, mail_marks = _mail(spec, terms, _message(round_of_client, arguments), places or spec.clients, theirs)
        reports.append(_check_server(spec, algorithm, shared, mail, mail_marks))
    violations = tuple(dict.fromkeys(text for report in reports for text in report.violations))
    program = hashlib.sha256("".join(report.program for report in reports).encode()).hexdigest()
    return RoundCheck(
        violations if level.private else (),
        client.releases,
        reports[-1].releases if client.labels is not None else {},
        {kind: size for report in reports for kind, size in report.sizes.items()},
        program,
        frozenset((client.program, reports[-1].program)),
        {**client.certain, **(reports[-1].certain if client.labels is not None else {})},
    )


def _check_meter(report: Report, meter: Meter) -> None:
    must_be_counters(report, meter.uses)
    tape = meter.tape.values if meter.tape else {}
    must_be_handed_on(report, [meter.noise, meter.coins], tape, (meter.draws, meter.memory))


def _check_start(spec: RoundSpec, algorithm: Algorithm, key: Tree, slot: Tree) -> Report:
    """Initial states know nothing of the data: whatever they close over counts as data."""

    def begin(algorithm: Algorithm, key: Tree, slot: Tree) -> Tree:
        shared = algorithm.init(spec.model.init(key), spec.clients)
        return shared, algorithm.init_client(shared, slot)

    report = check(begin, (algorithm, key, slot), (CLEAN, CLEAN, CLEAN))
    must_be_clean(report, "the initial state", report.labels)
    return report


def _check_outcome(spec: RoundSpec, algorithm: Algorithm, states: tuple[Tree, Tree], kept: str) -> list[Report]:
    """What is made of the states after a round: a client's model, and what the algorithm says about the shared state.

    `kept`: whether personal states are clean.
    """
    shared, _ = states
    model = check(lambda own, *states: own.model(*states), (algorithm, *states), (CLEAN, CLEAN, kept))
    if "personal" in spec.level.clean:
        must_be_clean(model, "the model that a client predicts with", model.labels)
    if not hasattr(algorithm, "describe"):
        return [model]
    said: Report = check(lambda own, shared: own.describe(shared), (algorithm, shared), (CLEAN, CLEAN))
    must_be_clean(said, "what the algorithm says about its shared state", said.labels)
    return [model, said]


def _check_loss(model: Model, key: Tree, rows: Tree) -> Report:
    """The loss, for one example or person: only the gate may add the axis of examples. What it closes over is data."""
    example = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), (rows.x, rows.y))
    arguments = (jax.eval_shape(model.init, key), *example)
    loss = over_rows(model.loss)
    report = check(loss, arguments, (CLEAN, MARKED, MARKED))
    alone = check(loss, arguments, (CLEAN, CLEAN, CLEAN))
    if any(private(mark) for mark in jax.tree.leaves(alone.labels)):
        report.violations.append(
            "the loss reads an array besides its arguments, which counts as data: make it a parameter of the model"
        )
    return report


def _message(round_of_client: Callable[..., Tree], arguments: tuple[Tree, ...]) -> Tree:
    return jax.eval_shape(lambda *args: round_of_client(*args)[0], *arguments)


def _mail(spec: RoundSpec, terms: Terms, message: Tree, places: int, meter: tuple[Meter, Meter]) -> tuple[Mail, Mail]:
    """Shapes of what an aggregator has, and how they are marked: messages and who sent them are private or clean."""
    seen = ROWS if spec.level.server_pays else CLEAN if "message" in spec.level.clean else MARKED
    real, number, flag = (jax.ShapeDtypeStruct((places,), dtype) for dtype in (jnp.float32, jnp.int32, bool))
    messages = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((places, *leaf.shape), leaf.dtype), message)
    expected: Tree = jax.ShapeDtypeStruct((spec.clients,), jnp.float32)
    shapes: Tree = (messages, real, number, flag, meter[0], terms.inbox, expected)
    marks: Tree = (seen, seen, seen, seen, meter[1], For(TERMS, spec.level.inbox_kinds), CLEAN)
    return Mail(*shapes), Mail(*marks)


def _check_server(spec: RoundSpec, algorithm: Algorithm, shared: Tree, mail: Mail, marks: Mail) -> Report:
    number = jax.ShapeDtypeStruct((), jnp.int32)
    arguments, labels = (algorithm, shared, mail, number), (CLEAN, CLEAN, marks, CLEAN)
    server = check(partial(server_round, spec), arguments, labels)
    if server.labels is not None and "shared" in spec.level.clean:
        must_be_clean(server, "the shared state", server.labels[0])
        _check_meter(server, server.places[1])

    def usual(kind: str, public: Tree, mail: Mail, number: Tree) -> Tree:
        gate = inbox(spec, mail, number)
        public = public[0] if isinstance(mail.mechanism, AdaptiveSum) else public
        if kind == MIXTURE:
            return gate.mix(public)[0]
        if kind in (SECOND_MOMENT, SQUARES):
            return (gate.second_moment() if kind == SECOND_MOMENT else gate.squares())[0]
        return gate.sum()[0]

    if spec.level.server_pays:
        must_be_as_usual(server, usual, arguments[2:], labels[2:])
    return server


def must_be_as_usual(
    report: Report, usual: Callable[..., Tree], arguments: Sequence[Tree], labels: Sequence[Tree]
) -> None:
    """Adds a violation if a release computes something else than the gate's own query with such arguments does."""
    for kind, text, public in report.bodies:
        canonical = check(partial(usual, kind), (public, *arguments), (CLEAN, *labels))
        if text not in [body for other, body, _ in canonical.bodies if other == kind]:
            report.violations.append(f"a release of kind {kind!r} is not the one that its gate makes")

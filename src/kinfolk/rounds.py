"""One round, as the two pure functions that every engine, the flow check and a real federation call."""

from __future__ import annotations

from dataclasses import dataclass

from jax import Array

from kinfolk import trees
from kinfolk.privacy.choice import Chooser
from kinfolk.privacy.fingerprint import as_checked
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.privacy.levels import Level
from kinfolk.privacy.mechanisms import Mechanism
from kinfolk.privacy.release import Meter
from kinfolk.types import Algorithm, Message, Model, Personal, Rows, Shared


@dataclass(frozen=True)
class RoundSpec:
    """What is fixed when a round is compiled."""

    model: Model
    """The model."""
    level: Level
    """The privacy level."""
    most_steps: int
    """The largest number of local steps of any client computed together: the length of the loop."""
    clients: int
    """How many clients there are, present or not."""
    programs: frozenset[str] | None = None
    """Fingerprints of the programs that the flow check saw, in a release: nothing else is compiled. None: anything."""
    devices: int = 1
    """Among how many devices messages are divided."""


@trees.register
@dataclass(frozen=True)
class Client:
    """One client's side of a round; engines add a leading axis for many."""

    personal: Personal
    """Its own state."""
    rows: Rows
    """Its examples."""
    meter: Meter
    """Its noise stream, and what it has used."""
    terms: tuple[Mechanism, Chooser]
    """What stands at its data gate: for gradients, and for choices."""
    size: Array
    """Its number of training examples; public."""
    steps: Array
    """How many local steps it takes in a round; public."""


@trees.register
@dataclass(frozen=True)
class Mail:
    """The aggregator's side of a round: what arrived, and what stands at the inbox."""

    messages: Message
    """One row per place, like the next three."""
    weights: Array
    """Each client's public weight."""
    slots: Array
    """Which client sits in each place."""
    present: Array
    """Which slots take part."""
    meter: Meter
    """The aggregator's noise stream, and what it has used."""
    mechanism: Mechanism
    """What stands at the inbox."""
    expected: Array
    """For every client, the expected weight with which it takes part; public."""


def data_gate(spec: RoundSpec, client: Client, number: Array) -> DataGate:
    """The gate before a client's examples in round `number`.

    `spec`: what is fixed when a round is compiled. `client`: the client's side of a round.
    """
    public = (client.size, client.steps, number)
    return DataGate(client.rows, client.meter, *client.terms, *public, spec.most_steps, spec.model)


def inbox(spec: RoundSpec, mail: Mail, number: Array) -> Inbox:
    """The gate before the clients' messages in round `number`.

    `spec`: what is fixed when a round is compiled. `mail`: the aggregator's side of a round.
    """
    arrived = (mail.messages, mail.weights, mail.slots, mail.present)
    return Inbox(
        *arrived, mail.meter, mail.mechanism, mail.expected, number, spec.level.messages_are_clean, spec.devices
    )


def client_round(
    spec: RoundSpec, algorithm: Algorithm, shared: Shared, client: Client, number: Array
) -> tuple[Message, Personal, Meter]:
    """One client's part of round `number`: what it sends, what it keeps, and what it has spent.

    `spec`: what is fixed when a round is compiled. `algorithm`: the method. `shared`: the published state. `client`:
    the client's side of a round.
    """

    def part(algorithm: Algorithm, shared: Shared, client: Client, number: Array) -> tuple[Message, Personal, Meter]:
        message, personal, gate = algorithm.client(shared, client.personal, data_gate(spec, client, number))
        return message, personal, gate._meter

    return as_checked(spec.programs, part, algorithm, shared, client, number)


def server_round(
    spec: RoundSpec, algorithm: Algorithm, shared: Shared, mail: Mail, number: Array
) -> tuple[Shared, Meter]:
    """The aggregator's part of round `number`: what is published, and what that has cost.

    `spec`: what is fixed when a round is compiled. `algorithm`: the method. `shared`: the published state. `mail`: the
    aggregator's side of a round.
    """

    def part(algorithm: Algorithm, shared: Shared, mail: Mail, number: Array) -> tuple[Shared, Meter]:
        shared, after = algorithm.server(shared, inbox(spec, mail, number))
        return shared, after._meter

    return as_checked(spec.programs, part, algorithm, shared, mail, number)

"""One round, as the two pure functions that every engine, the flow check and a real federation call."""

from __future__ import annotations

from typing import Any

from jax import Array

from kinfolk.privacy.choice import Chooser
from kinfolk.privacy.gates import DataGate, Inbox
from kinfolk.privacy.mechanisms import Mechanism
from kinfolk.privacy.release import Meter
from kinfolk.types import Algorithm, Message, Model, Personal, Rows, Shared


def client_round(
    model: Model,
    most_steps: int,
    algorithm: Algorithm,
    shared: Shared,
    personal: Personal,
    rows: Rows,
    meter: Meter,
    mechanisms: tuple[Mechanism, Chooser],
    size: Array,
    steps: Array,
    number: Array,
) -> tuple[Message, Personal, Meter]:
    """One client's part of round `number`: what it sends, what it keeps, and what it has spent."""
    gate = DataGate(rows, meter, *mechanisms, size, steps, number, most_steps, model)
    message, personal, gate = algorithm.client(shared, personal, gate)
    return message, personal, gate._meter


def server_round(
    level: str,
    algorithm: Algorithm,
    shared: Shared,
    messages: Message,
    weights: Array,
    slots: Array,
    present: Array,
    meter: Meter,
    mechanism: Mechanism,
    expected: Array,
    number: Array,
) -> tuple[Shared, Meter]:
    """The aggregator's part of round `number`: what is published, and what that has cost."""
    clean = level != "client"
    inbox: Any = Inbox(messages, weights, slots, present, meter, mechanism, expected, number, clean)
    shared, inbox = algorithm.server(shared, inbox)
    return shared, inbox._meter

"""What a privacy statement means, in plain words."""

from __future__ import annotations

import math

from kinfolk.accounting.aggregator import TRUSTED_AGGREGATOR
from kinfolk.accounting.statement import Statement
from kinfolk.report.content import Items, Paragraph, Part, Value, Words, number

PROTECTED = {
    "example": (
        "Every row of every client is protected on its own. Whatever anybody else gets to see (a client's messages, "
        "the shared model, a client's own model) would have come out almost the same without that row."
    ),
    "client": (
        "All the data of a client are protected at once. Whatever the other clients get to see, even if they put "
        "everything together, would have come out almost the same had the client contributed nothing. The aggregator, "
        "which adds the noise, is trusted: it sees each round's messages before."
    ),
}
UNIT = {"example": "one particular row was used", "client": "one particular client contributed"}
RELATION = {
    "zero_out": "zero-out: a unit's contribution is replaced by nothing; sizes and names are public",
    "replace_one": "replace-one: a unit is replaced by any other",
}


def best_guess(epsilon: float, delta: float) -> float:
    """How often the best possible guess is right, of whether a unit was used, when both are equally likely beforehand.

    No test has errors a, b with a + b below 2 (1 - delta) / (1 + e^epsilon): the definition of (epsilon, delta).

    >>> round(best_guess(3, 1e-5), 3), best_guess(0, 0)
    (0.953, 0.5)
    """
    return 1 - (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))


def share(value: float) -> Value:
    """A share as a percentage, rounded up: a bound must not look better than it is.

    >>> share(0.7311).text, share(0.99966).text
    ('73.2 %', '99.97 %')
    """
    digits = 1 if value < 0.99 else 2
    return Value(f"{math.ceil(value * 100 * 10**digits) / 10**digits:.{digits}f} %", value)


def plain(statement: Statement) -> tuple[Part, ...]:
    """The promise of one statement, for a reader who does not know the words."""
    level = statement["level"]
    if level == "none":
        reasons = "; ".join(statement["not_private"])
        return (
            Paragraph(
                (f"This run is not private: {reasons}. Nothing of it may leave the people it is about.",), "warn"
            ),
        )
    note = "simulated" if statement["simulated"] else ""
    epsilon, delta = statement["epsilon"], statement["delta"]
    parts: list[Part] = [Paragraph((PROTECTED[level],), "lead")]
    if epsilon:
        parts.append(
            Paragraph(
                (
                    f"How well: somebody who wants to find out whether {UNIT[level]}, and begins with even odds, can "
                    "be right in at most ",
                    share(best_guess(epsilon, delta)),
                    " of cases, whatever else they know and however they compute. A coin is right in 50 %. This is "
                    "what epsilon ",
                    number(epsilon, note),
                    " with delta ",
                    number(delta),
                    " means; the smaller, the better.",
                )
            )
        )
    else:
        parts.append(Paragraph(("Nothing about this unit was published at all: epsilon ", number(0.0, note), ".")))
    if statement["simulated"]:
        parts.append(
            Paragraph(
                (
                    "This was a simulation. Its noise can be repeated from the seed, so nothing here is protected: the "
                    "numbers say what a release with these settings would promise.",
                ),
                "warn",
            )
        )
    if statement["not_private"]:
        parts.append(Paragraph(("Not private: " + "; ".join(statement["not_private"]) + ".",), "warn"))
    parts.append(Paragraph(("The promise does not cover:",)))
    parts.append(Items(tuple((item,) for item in statement["not_covered"])))
    return tuple(parts)


def exact(statement: Statement) -> tuple[tuple[str, Words], ...]:
    """The same promise, exactly: names and values."""
    note = "simulated" if statement["simulated"] else ""
    rows: list[tuple[str, Words]] = [
        ("Unit", (statement["unit"],)),
        ("Neighbours", (RELATION[statement["relation"]],)),
        ("Against", (statement["view"],)),
    ]
    if statement["epsilon"] is not None:
        rows += [
            ("Epsilon, largest of all parties", (number(statement["epsilon"], note),)),
            ("Delta, largest of all parties", (number(statement["delta"]),)),
            ("Parties with an account", (number(len(statement["parties"])),)),
        ]
    if "shared_noise" in statement:
        shared = statement["shared_noise"]
        against = f"Epsilon against the aggregator with up to {shared['colluding']} clients"
        rows.append((against, (number(statement["epsilon"] or 0.0, note),)))
        observers = number(shared["epsilon_of_observers"], note)
        rows.append(("Epsilon against those who see only what is published", (observers,)))
    elif "epsilon_if_participation_is_seen" in statement and TRUSTED_AGGREGATOR in statement["not_covered"]:
        seen = number(statement["epsilon_if_participation_is_seen"], note)
        rows.append(("Epsilon against somebody who sees who takes part", (seen,)))
        rows.append(("Epsilon against the aggregator", ("none: no guarantee",)))
    rows += [
        ("Data set", (statement["data"],)),
        ("Noise from", (statement["noise"],)),
        ("Accountant", (statement["accountant"],)),
    ]
    return tuple(rows)

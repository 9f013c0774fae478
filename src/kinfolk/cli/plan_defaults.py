"""`kinfolk plan defaults`: what would be chosen from public numbers, why, and what it is expected to gain."""

from __future__ import annotations

from typing import Annotated

import typer

from kinfolk import limits
from kinfolk.toml import ConfigError


def defaults(
    *,
    clients: Annotated[int, typer.Option(help="How many clients there are.")],
    rows: Annotated[int, typer.Option(help="Training rows of each client.")],
    features: Annotated[int, typer.Option(help="How many features.")],
    outcome: Annotated[str, typer.Option(help="number, binary or classes.")] = "number",
    classes: Annotated[int, typer.Option(help="How many classes, for --outcome classes.")] = 0,
    level: Annotated[str, typer.Option(help="example, client or none.")] = "example",
    epsilon: Annotated[float, typer.Option(help="Privacy budget.")] = 3.0,
    delta: Annotated[float | None, typer.Option(help="Default: min(1e-5, n^-1.1).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """What `kinfolk train` would choose for data of this size, before there are any: one sentence, and the settings.

    `kinfolk plan defaults --clients 20 --rows 100 --features 10 --outcome binary --epsilon 1`
    """
    from kinfolk.cli.data import privacy_level
    from kinfolk.cli.output import console, emit
    from kinfolk.training import recipes

    if outcome not in recipes.MODELS:
        raise ConfigError(f"outcome={outcome!r} is not one of {', '.join(recipes.MODELS)}")
    if (outcome == "classes") != (classes > 2):
        raise ConfigError(
            f"classes={classes} does not go with outcome={outcome!r}: give --outcome classes and 3 or more"
        )
    for name, value in (("clients", clients), ("rows", rows), ("features", features), ("epsilon", epsilon)):
        limits.checked(name, value)
    privacy = privacy_level(level, epsilon if level != "none" else None, delta, 1.0, None)
    public = recipes.Numbers(outcome, classes, (rows,) * clients, features, inputs=1 + features / 3)
    found = recipes.for_numbers(public, privacy, recipes.Given())
    options = ", ".join(f"{name} {value}" for name, value in found.phase.options.items())
    values = {"model": found.model.name, "method": found.phase.method, "rounds": found.phase.rounds, "options": options}
    values["afterwards"] = found.afterwards.method if found.afterwards else "nothing"
    if as_json:
        emit("plan defaults", {**values, "options": dict(found.phase.options), "why": found.why})
        return
    console.print(found.why, highlight=False, soft_wrap=True)
    for name, value in values.items():
        console.print(f"{name}: {value}", highlight=False, soft_wrap=True)

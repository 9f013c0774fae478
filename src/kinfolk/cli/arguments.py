"""What positional arguments are, in `--help`: typer 0.20 says it to click, and click 8.5 forgets it."""

from __future__ import annotations

import inspect
import typing
from typing import Any

from typer.models import ArgumentInfo


def with_argument_help(command: Any) -> Any:
    """The same command, whose positional arguments and those of its subcommands have the help they were given.

    `command`: as typer makes it.
    """
    for one in getattr(command, "commands", {}).values():
        with_argument_help(one)
    hints = typing.get_type_hints(inspect.unwrap(command.callback), include_extras=True) if command.callback else {}
    for parameter in command.params:
        said = [one.help for one in getattr(hints.get(parameter.name), "__metadata__", ()) if _is_argument(one)]
        if said and not parameter.help:
            parameter.help = said[0]
    return command


def _is_argument(metadata: object) -> bool:
    return isinstance(metadata, ArgumentInfo)

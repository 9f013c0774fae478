"""What stands on the command line without a name is explained in `--help`."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import typer

from kinfolk.cli.arguments import with_argument_help


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train",), "Tables (CSV, Parquet, Arrow)"),
        (("reproduce",), "cross-silo for all of it"),
        (("data", "get"), "A data set of"),
    ],
)
def test_positional_arguments_are_explained(
    words: tuple[str, ...], said: str, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = command(*words, "--help")
    assert code == 0
    assert said in " ".join(out.split())


def test_help_that_is_there_is_kept() -> None:
    app = typer.Typer()

    @app.command()
    def one(name: Annotated[str, typer.Argument(help="of the code")]) -> None:
        """Nothing."""

    made = typer.main.get_command(app)
    made.params[0].help = "of typer"  # type: ignore[attr-defined]
    assert with_argument_help(made).params[0].help == "of typer"
    made.params[0].help = None  # type: ignore[attr-defined]
    assert with_argument_help(made).params[0].help == "of the code"

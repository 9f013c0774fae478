"""What the README shows, works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kinfolk.cli import main

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.mark.parametrize("small", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "block", [pytest.param(BLOCKS[0], id="run"), pytest.param(BLOCKS[1], id="loop", marks=pytest.mark.slow)]
)
def test_the_python_examples_run(
    block: str,
    small: bool,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    if small:
        request.getfixturevalue("small_schools")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})
    assert 2.9 < float(capsys.readouterr().out) <= 3


def test_its_numbers_are_those_of_a_page_that_is_run() -> None:
    page = (Path(__file__).parents[2] / "docs" / "start" / "five-minutes.md").read_text()
    for method in ("local", "fedavg", "mean_regularized"):
        (shown,) = re.findall(rf"^\| {method} \([^|]*\) \|(.*)\|$", README, re.M)
        (run,) = re.findall(rf"^│ {method} +│(.*)│$", page, re.M)
        assert [cell.strip() for cell in shown.split("|")] == [cell.strip() for cell in run.split("│")]


def test_every_command_exists() -> None:
    shown = set(re.findall(r"^    kinfolk (\w+)", README, re.M))
    commands = {command.callback.__name__ for command in main.app.registered_commands if command.callback}
    assert shown == commands | {str(group.name) for group in main.app.registered_groups}

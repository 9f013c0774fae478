"""Benchmarks are too long for tests; that they fit the package of today is not."""

from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOUND = sorted([*(ROOT / "benchmarks" / "studies").glob("*/run.py"), *(ROOT / "benchmarks" / "speed").glob("*.py")])
SCRIPTS = [path.relative_to(ROOT) for path in [*FOUND, ROOT / "benchmarks/peers/run.py"] if path.stem != "warm_silo"]


@pytest.mark.parametrize("path", SCRIPTS, ids=str)
def test_a_benchmark_starts_and_is_listed(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = import_module(".".join(path.with_suffix("").parts))
    monkeypatch.setattr("sys.argv", [str(path), "--help"])
    with pytest.raises(SystemExit, match=r"^0$"):
        module.main()
    command = f"python -m {module.__name__}"
    assert command in capsys.readouterr().out
    assert command in str(module.__doc__)
    name = path.parent.name if path.stem == "run" else path.stem
    assert name in (ROOT / "benchmarks" / "README.md").read_text()

"""The package: one version, every import declared, a lock with hashes, and a wheel that works on its own."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import kinfolk
from kinfolk.cli import main

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "kinfolk"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMES_WITH = {"click": "typer"}
"""Imported only where a version of the other package is installed that brings it along."""


def imported(text: str) -> set[str]:
    """The packages that a module imports, at its top or later, and by name.

    >>> sorted(imported("import a.b\\nfrom c import d\\nfrom . import e\\nimport_module('f.g')"))
    ['a', 'c', 'f']
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module":
            names |= {arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
    return {name.partition(".")[0] for name in names}


def plain(requirement: str) -> str:
    """The name of a requirement, as package indices compare it.

    >>> plain("dp_accounting>=0.6,<0.7"), plain("pyright[nodejs]>=1.1")
    ('dp-accounting', 'pyright')
    """
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", requirement)[0]).lower()


def test_every_imported_package_is_declared() -> None:
    extras = PROJECT["optional-dependencies"]
    users = [name for extra, names in extras.items() if extra not in ("dev", "docs") for name in names]
    declared = {plain(requirement) for requirement in [*PROJECT["dependencies"], *users]}
    found = set().union(*(imported(path.read_text()) for path in SOURCE.rglob("*.py")))
    outside = found - set(sys.stdlib_module_names) - {"kinfolk"}
    assert {"jax", "mpmath", "httpx"} <= outside  # the search finds imports at the top and in functions
    homes = packages_distributions()
    missing = {
        name
        for name in outside
        if not {plain(home) for home in homes.get(COMES_WITH.get(name, name), [name])} & declared
    }
    assert not missing, f"imported in src and not in pyproject.toml: {', '.join(sorted(missing))}"


def test_the_version_is_written_once_and_the_command_says_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert "version" not in PROJECT
    monkeypatch.setattr(sys, "argv", ["kinfolk", "--version"])
    with pytest.raises(SystemExit) as stop:
        main.main()
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"kinfolk {kinfolk.__version__}\n"
    cited = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {kinfolk.__version__}\n" in cited
    assert f"## [{kinfolk.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def locked(name: str) -> dict[str, str]:
    """The packages of a lock with their versions; all of them have hashes."""
    text = (ROOT / name).read_text()
    assert "://" not in text  # no index, no mirror: whoever installs decides where from
    found = re.findall(r"^(\S+)==(\S+).*?((?:\\\n\s+--hash=\S+\s*)*)$", text, re.M)
    assert [package for package, _, hashes in found if "--hash=sha256:" not in hashes] == []
    return {plain(package): version for package, version, _ in found}


def test_every_dependency_is_locked_and_ray_in_a_lock_of_its_own() -> None:
    usual, heavy = locked("requirements.lock"), locked("requirements-ray.lock")
    assert len(usual) > 50
    extras = dict(PROJECT["optional-dependencies"])
    assert {plain(requirement) for requirement in extras.pop("ray")} <= heavy.keys() - usual.keys()
    wanted = [*PROJECT["dependencies"], *(name for names in extras.values() for name in names)]
    assert {plain(requirement) for requirement in wanted} <= usual.keys()
    assert {name: heavy[name] for name in heavy.keys() & usual.keys()} == {
        name: usual[name] for name in heavy.keys() & usual.keys()
    }, "both are installed together"


@pytest.mark.slow
def test_whatever_locked_packages_need_is_locked() -> None:
    """They are installed without anything beside them."""
    found = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_the_changelog_says_where_modules_are_now() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    homes = re.findall(r"^\| `[\w.]+` \| `([\w.]+)` \|$", text, re.M)
    assert len(homes) > 50

    def known(name: str) -> bool:
        path = SOURCE / name.replace(".", "/")
        return path.is_dir() or path.with_suffix(".py").exists()

    assert [name for name in homes if not known(name) and not known(name.rpartition(".")[0])] == []


@pytest.mark.slow
def test_a_built_wheel_works_in_an_empty_environment(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert {"kinfolk/py.typed", "kinfolk/report/page.css", "kinfolk/report/page.js"} <= inside
    assert {name.split("/")[0] for name in inside} == {"kinfolk", f"kinfolk-{kinfolk.__version__}.dist-info"}
    assert {name for name in inside if name.endswith(".py")} == {
        f"kinfolk/{path.relative_to(SOURCE)}" for path in SOURCE.rglob("*.py")
    }

    venv.create(tmp_path / "empty", with_pip=False)
    (python,) = (tmp_path / "empty").glob("bin/python")
    install = ["-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet", str(wheel)]
    subprocess.run([sys.executable, *install], check=True, capture_output=True)
    (home,) = (tmp_path / "empty").glob("lib/python*/site-packages")
    (home / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # what the lock installed, as it is

    def call(*words: str) -> str:
        environment = {"PATH": "", "HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = call(
        str(python), "-c", "import kinfolk; print(kinfolk.__file__, *(getattr(kinfolk, n) for n in kinfolk.__all__))"
    )
    assert where.startswith(str(home))  # not the checkout
    command = str(python.with_name("kinfolk"))
    assert call(command, "--version") == f"kinfolk {kinfolk.__version__}\n"
    assert "epsilon" in call(command, "train", "--seed", "0", "--rounds", "2", "--epsilon", "3", "--json")
    assert (tmp_path / "runs" / "latest" / "public" / "statement.json").exists()

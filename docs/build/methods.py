"""Writes one page per method from the registry, while the site is built: a new method appears by itself.

Used by mkdocs as a hook. What a method is, its paper, levels, options and their defaults come from the registry and the
docstrings of its file; what a round releases is counted on the traced program, by the same check as `kinfolk check`.
"""

from __future__ import annotations

import ast
import inspect
import sys
import tomllib
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from kinfolk.algorithms.registry import REGISTRY, Entry, rounds_of
from kinfolk.algorithms.relations import GRAPH, GROUPS, RELATION
from kinfolk.data.choice import DataChoice
from kinfolk.privacy.levels import Level, PrivacyLevel
from kinfolk.toml import to_toml
from kinfolk.training.experiment import Experiment, ModelChoice, Phase
from kinfolk.training.recipes import MODELS
from kinfolk.verify.registry_check import check_registry

WHEN = Path(__file__).with_name("when.toml")
PROMISES = {
    "example": "each row of each client, against everybody else; each client pays from its own budget",
    "client": "each client as a whole, against all other clients together; the aggregator is trusted, and pays",
    "none": "nothing; for comparison",
}

ABOUT = """# Methods

Every method here is in the registry, and is therefore tested, at every level it is listed for, by the flow check, the
replay check and attacks. A release is what is paid for: the same budget, spread over more releases, means more noise in
each."""
COMPARE = """To see how methods do on data, compare them in a simulation: `kinfolk compare --method A --method B`. To
choose by such a comparison on the data that are to be protected is not covered by any privacy statement."""


def pages() -> dict[str, str]:
    """All pages, by their path under docs/."""
    released = {(row["method"], row["level"]): row["releases"] for row in check_registry(steps=1)}
    when: dict[str, str] = tomllib.loads(WHEN.read_text())
    unknown = sorted(set(when) - set(REGISTRY))
    if unknown:
        raise ValueError(f"{WHEN.name} names {', '.join(unknown)}, which the registry does not have: remove it")
    made = {f"methods/{name}.md": page(entry, released, when.get(name, "")) for name, entry in REGISTRY.items()}
    return {"methods/index.md": overview(released), **made}


def overview(released: dict[tuple[str, str], dict[str, int]]) -> str:
    """The table of all methods."""
    rows = []
    for name, entry in REGISTRY.items():
        private = [level for level in entry.levels if level != "none"]
        costs = "; ".join(f"{level}: {_counted(released[name, level])}" for level in private)
        rows.append(f"| [`{name}`]({name}.md) | {entry.title} | {', '.join(private)} | {costs} |")
    table = "\n".join(
        ["| method | what | levels | releases in a round of one local step |", "|---|---|---|---|", *rows]
    )
    return "\n\n".join([ABOUT, table, COMPARE]) + "\n"


def page(entry: Entry, released: dict[tuple[str, str], dict[str, int]], when: str) -> str:
    """The page of one method."""
    about = inspect.getdoc(sys.modules[entry.make.__module__]) or ""
    parts = [f"# {entry.title}", f"`{entry.name}`. From: {entry.paper}.", about]
    if when:
        parts += ["## When to use it", when.strip()]
    parts += ["## What it does", inspect.getdoc(entry.make) or ""]
    rows = [f"| `{level}` | {PROMISES[level]} | {_counted(released[entry.name, level])} |" for level in entry.levels]
    head = ["| level | what is protected | releases in a round of one local step |", "|---|---|---|"]
    parts += ["## Guarantee and cost", "\n".join([*head, *rows])]
    if "example" in entry.levels:
        parts.append("At example level a round of several local steps releases a gradient for each of them.")
    parts += ["## Options", _options(entry), "## An experiment", f"```toml\n{_experiment(entry)}```"]
    return "\n\n".join(parts) + "\n"


def _counted(releases: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in releases.items() if count) or "none"


def _options(entry: Entry) -> str:
    notes = _notes(entry.make)
    rows = [
        f"| `{field.name}` | {_shown(field.default)} | {notes.get(field.name, '')} |" for field in fields(entry.make)
    ]
    if RELATION in notes:  # what people give in its place (`relations.py`)
        rows += [f"| `{name}` | none | {note} |" for name, note in GIVEN.items()]
    return "\n".join(["| option | default | |", "|---|---|---|", *rows])


def _shown(value: Any) -> str:
    return "none" if value is None else f"`{value}`"


def _notes(kind: type) -> dict[str, str]:
    """What is written below each field of a dataclass."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(kind)).body if isinstance(node, ast.ClassDef))
    notes = {}
    for node, after in pairwise(body):
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(text, str):
            notes[node.target.id] = " ".join(text.split())
    return {"strength": "How hard a personal model is pulled towards the shared one.", "step_size": STEP, **notes}


GIVEN = {
    GROUPS: "In place of `relation`: each client's group by name, or groups, with weights if need be.",
    GRAPH: "In place of `omega`: each client's neighbours and their weights, negative for opposites, or their matrix.",
}
STEP = "Step size of local training; also a table `{start, factor, every}`, which falls over the rounds."


def _experiment(entry: Entry) -> str:
    level = PrivacyLevel(Level(entry.levels[0]), None if entry.levels[0] == "none" else 3.0)
    plain: dict[str, Any] = {f.name: f.default for f in fields(entry.make) if isinstance(f.default, str | int | float)}
    related = RELATION in entry.options()
    if related:
        plain[GROUPS] = {"north": "coast", "south": "coast", "west": "hills"}
    phases = (Phase(entry.name, rounds_of(entry.name) or 60, plain),)
    model, built_in = ModelChoice(MODELS[entry.outcome]), entry.outcome == "number" and not related
    data = DataChoice() if built_in else DataChoice("study", files=("study.csv",), client="hospital", target="outcome")
    return to_toml(Experiment(name=entry.name, seed=0, data=data, model=model, privacy=level, phases=phases))


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages to the site."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_config(config: Any) -> Any:
    """Puts the pages where the navigation says `methods`."""
    listed = [{"All methods": "methods/index.md"}, *({name: f"methods/{name}.md"} for name in REGISTRY)]
    config["nav"] = [{"Methods": listed} if entry == {"Methods": "methods"} else entry for entry in config["nav"]]
    return config

"""Writes the API reference from signatures and docstrings, while the site is built.

Used by mkdocs as a hook. Every public name of the modules listed here is shown with its signature, its parameters and
what they mean; `unexplained` lists what has no docstring, or a parameter that no docstring explains, and a test wants
that empty.

A parameter is explained in the docstring of its function (a paragraph of items, `name`: words; or `name` in a
sentence), or, for a field of a dataclass, by the string below it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from itertools import pairwise
from types import ModuleType
from typing import Any, ForwardRef, is_typeddict

import kinfolk

GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "Experiments": {
        "training.experiment": (),
        "training.loop": ("run", "resume"),
        "training.published": ("evaluate",),
        "training.prediction_sets": ("prediction_sets",),
        "training.shown": ("Shown", "Group", "Metric", "Pair"),
        "training.sets_format": ("Sets", "Reach"),
        "training.recipes": ("recommend",),
        "training.simulate": (),
        "training.sweep": ("sweep",),
        "engines.loop": ("Sweep",),
        "training.run_directory": ("Run", "open_run"),
        "estimators.classifier": (),
        "estimators.regressor": (),
        "estimators.survival": (),
        "toml": (),
    },
    "Data and models": {
        "data.federation": ("Federation", "from_rows", "pooled"),
        "data.client_data": ("ClientData",),
        "data.given_rows": ("DataError",),
        "data.lazy": (),
        "data.target": (),
        "data.sparse": ("from_sparse",),
        "data.registry": ("register_dataset", "load_data"),
        "data.partition": (),
        "data.choice": (),
        "models": (),
        "outcomes": (),
    },
    "Methods": {
        "types": (),
        "rounds": (),
        "algorithms.registry": (),
        "algorithms.local_steps": (),
    },
    "Privacy": {
        "privacy.levels": (),
        "privacy.gates": (),
        "privacy.mechanisms": (),
        "privacy.release": ("Cost", "Meter", "PrivacyError", "new_meter", "release"),
    },
    "Accounting": {
        "accounting.ledger": (),
        "accounting.records": ("LedgerError", "Line", "Note"),
        "accounting.owner": ("default_ledger", "open_new", "open_owned"),
        "accounting.composition": ("default_delta", "epsilon"),
        "accounting.pairs": ("BudgetError", "distance"),
        "accounting.planning": ("Answer", "plan"),
    },
    "Checks": {
        "verify.round_check": ("RoundCheck", "check_round"),
        "verify.registry_check": (),
    },
    "Theory": {
        "theory.mean_estimation": ("Problem",),
        "theory.client_level": (),
        "theory.increments": (),
        "theory.convergence": (),
        "theory.proximal": (),
        "theory.covariance_rates": (),
        "theory.covariance_noise": (),
    },
}
"""The modules a researcher uses, by what for; of some only these names, as the others serve the program itself."""

ITEM = re.compile(r"((?:`\w+`(?:, | and )?)+): ")
"""The beginning of an explanation in a docstring: one name in backticks or several, and a colon."""


def pages() -> dict[str, str]:
    """All pages, by their path under docs/."""
    made = {f"reference/{name}.md": _module_page(name) for name in modules()}
    return {"reference/index.md": _overview(), **made}


def modules() -> list[str]:
    """The names of the modules in the reference, without the package's."""
    return [name for group in GROUPS.values() for name in group]


def public(name: str) -> dict[str, Any]:
    """The public names of a module and what they stand for, in the order of the file; not what it imports."""
    module = import_module(f"kinfolk.{name}")
    wanted = next(group[name] for group in GROUPS.values() if name in group)
    found = {
        node_name: getattr(module, node_name)
        for node_name in _defined(module)
        if not node_name.startswith("_") and node_name in (wanted or (node_name,))
    }
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise ValueError(f"kinfolk.{name} has no {', '.join(missing)}: correct the list in docs/build/reference.py")
    return found


def unexplained(what: Any, name: str) -> list[str]:
    """What of a public name lacks an explanation: the name itself, parameters, and methods of a class likewise."""
    if not _is_code(what, name):
        return []
    if not _docstring(what):
        return [name]
    given, text = _explained(what), _docstring(what)
    missing = [f"{name}({word})" for word in _parameters(what) if word not in given and f"`{word}" not in text]
    for method_name, method in _methods(what):
        missing += unexplained(method, f"{name}.{method_name}")
    return missing


def _is_code(what: Any, name: str) -> bool:
    """Whether it is a class or function of that name; not an alias of one, or any other value."""
    return (inspect.isclass(what) or inspect.isfunction(what)) and what.__name__ == name.rpartition(".")[2]


def _overview() -> str:
    lines = ["# Reference", "", "What `import kinfolk` gives. The names of the modules below it are public too.", ""]
    lines += ["| name | what |", "|---|---|"]
    homes = {name: module for module in modules() for name in public(module)}
    for name in kinfolk.__all__:
        home, what = homes.get(name), getattr(kinfolk, name)
        shown = f"[`{name}`]({home}.md#{_anchor(name)})" if home else f"`{name}`"
        lines.append(f"| {shown} | {_cell(_first_sentence(_about(what, name, home)))} |")
    for title, group in GROUPS.items():
        lines += ["", f"## {title}", "", "| module | what |", "|---|---|"]
        for name in group:
            about = _first_sentence(inspect.getdoc(import_module(f"kinfolk.{name}")) or "")
            lines.append(f"| [`kinfolk.{name}`]({name}.md) | {_cell(about)} |")
    return "\n".join(lines) + "\n"


def _module_page(name: str) -> str:
    module = import_module(f"kinfolk.{name}")
    parts = [f"# `kinfolk.{name}`", _prose(inspect.getdoc(module) or "")]
    constants = _notes(ast.parse(inspect.getsource(module)).body)
    for word, what in public(name).items():
        parts.append(f"## {word} {{ #{_anchor(word)} }}")
        if _is_code(what, word):
            parts += _section(what, word)
        else:
            parts.append(_prose(constants.get(word, "")))
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(what: Any, name: str, level: int = 3) -> list[str]:
    parts = [f"```python\n{_signature(what, name)}\n```", _prose(_without_items(_docstring(what))), _table(what)]
    for method_name, method in _methods(what):
        parts.append(f"{'#' * level} {name}.{method_name}")
        parts += _section(method, method_name, level + 1)
    return parts


def _table(what: Any) -> str:
    parameters, given = _parameters(what), _explained(what)
    if not parameters:
        return ""
    rows = [
        f"| `{name}` | {_code(_type(parameter))} | {_code(_default(parameter))} | {_cell(given.get(name, ''))} |"
        for name, parameter in parameters.items()
    ]
    return "\n".join(["| parameter | type | default | |", "|---|---|---|---|", *rows])


def _signature(what: Any, name: str) -> str:
    names = [f"{'*' * _stars(p)}{word}" for word, p in _parameters(what).items()]
    line = f"{'class ' if inspect.isclass(what) else ''}{name}({', '.join(names)})"
    if len(line) <= 90:
        return line
    return f"{line[: line.index('(') + 1]}\n    " + ",\n    ".join(names) + ",\n)"


def _stars(parameter: inspect.Parameter) -> int:
    return {inspect.Parameter.VAR_POSITIONAL: 1, inspect.Parameter.VAR_KEYWORD: 2}.get(parameter.kind, 0)


def _parameters(what: Any) -> dict[str, inspect.Parameter]:
    """What a caller gives, by name, but for private fields. Protocols, errors and enumerations are not called."""
    if inspect.isclass(what) and (issubclass(what, Exception | Enum) or getattr(what, "_is_protocol", False)):
        return {}
    if is_typeddict(what):
        kind = inspect.Parameter.KEYWORD_ONLY
        return {name: inspect.Parameter(name, kind, annotation=given) for name, given in what.__annotations__.items()}
    found = inspect.signature(what).parameters
    return {name: p for name, p in found.items() if name not in ("self", "cls") and not name.startswith("_")}


def _type(parameter: inspect.Parameter) -> str:
    given: Any = parameter.annotation
    if given is parameter.empty:
        return ""
    if isinstance(given, str):
        return given
    return given.__forward_arg__ if isinstance(given, ForwardRef) else getattr(given, "__name__", str(given))


def _default(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if value is parameter.empty:
        return ""
    return value.__name__ if inspect.isclass(value) or inspect.isfunction(value) else _short(repr(value))


def _short(text: str) -> str:
    return text if len(text) <= 40 and " at 0x" not in text and "<" not in text else "..."


def _methods(what: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods that a class itself defines; a property counts as one without parameters."""
    if not inspect.isclass(what):
        return
    for name, value in vars(what).items():
        method = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if not name.startswith("_") and inspect.isfunction(method):
            yield name, method


def _explained(what: Any) -> dict[str, str]:
    """What is said about each parameter: in items of the docstring, or below the fields of a dataclass."""
    notes: dict[str, str] = {}
    if inspect.isclass(what):
        for kind in reversed(what.__mro__[:-1]):
            if dataclasses.is_dataclass(kind) or kind is what:
                (body,) = (node.body for node in ast.parse(_source(kind)).body if isinstance(node, ast.ClassDef))
                notes |= _notes(body)
    for paragraph in _docstring(what).split("\n\n"):
        notes |= _items(" ".join(paragraph.split()))
    return notes


def _items(paragraph: str) -> dict[str, str]:
    """The items of a paragraph that consists of them.

    >>> _items("`x` and `y`: arrays, one row each. `seed`: any integer.")
    {'x': 'arrays, one row each.', 'y': 'arrays, one row each.', 'seed': 'any integer.'}
    """
    if not ITEM.match(paragraph):
        return {}
    pieces = ITEM.split(paragraph)[1:]
    return {name: text.strip() for names, text in zip(*[iter(pieces)] * 2, strict=True) for name in _names(names)}


def _names(text: str) -> list[str]:
    return re.findall(r"`(\w+)`", text)


def _notes(body: list[ast.stmt]) -> dict[str, str]:
    """What is written below each assignment."""
    notes = {}
    for node, after in pairwise(body):
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
        target = (
            node.target if isinstance(node, ast.AnnAssign) else node.targets[0] if isinstance(node, ast.Assign) else 0
        )
        if isinstance(target, ast.Name) and isinstance(text, str):
            notes[target.id] = " ".join(text.split())
    return notes


def _defined(module: ModuleType) -> Iterator[str]:
    """What a module defines itself, in its order: classes and functions, and constants that are explained."""
    body = ast.parse(inspect.getsource(module)).body
    constants = _notes(body)
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id in constants:
                yield target.id


def _docstring(what: Any) -> str:
    """The docstring that is written there: dataclasses make one up from their fields, which counts as none."""
    text = inspect.cleandoc(what.__doc__ or "")
    return "" if dataclasses.is_dataclass(what) and text.startswith(f"{getattr(what, '__name__', '')}(") else text


def _source(kind: type) -> str:
    return inspect.cleandoc("\n" + inspect.getsource(kind))


def _about(what: Any, name: str, home: str | None) -> str:
    if _is_code(what, name):
        return _docstring(what)
    module = import_module(f"kinfolk.{home}") if home else None
    return _notes(ast.parse(inspect.getsource(module)).body).get(name, "") if module else ""


def _without_items(text: str) -> str:
    return "\n\n".join(part for part in text.split("\n\n") if not ITEM.match(" ".join(part.split())))


def _prose(text: str) -> str:
    """A docstring as Markdown: examples become blocks, and what looks like a tag does not become one."""
    parts = []
    for part in text.split("\n\n"):
        before, mark, example = part.partition(">>>")
        if before.strip():
            parts.append(before.rstrip().replace("<", "&lt;") if not before.startswith("    ") else before.rstrip())
        if mark:
            parts.append(f"```python\n>>>{inspect.cleandoc(example)}\n```")
    return "\n\n".join(parts)


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.:])\s", " ".join(text.split("\n\n")[0].split()))[0].rstrip(":")


def _anchor(name: str) -> str:
    return name.lower()


def _code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|')}`" if text else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages to the site."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_config(config: Any) -> Any:
    """Puts the pages where the navigation says `reference`."""
    listed = [{"Overview": "reference/index.md"}, *({name: f"reference/{name}.md"} for name in modules())]
    config["nav"] = [{"Reference": listed} if entry == {"Reference": "reference"} else entry for entry in config["nav"]]
    return config

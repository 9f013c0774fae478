"""The page about defaults, written from what was computed: docs/results/defaults.md.

    python -m benchmarks.studies.defaults.page [FOLDER]

A folder that `plan.py` and `compute.py` filled is read first, and its cells are kept in `results/defaults.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies.defaults.settings import (
    CHOICE_SEEDS,
    DIFFER,
    EPSILONS,
    HALVES,
    ROUNDS,
    STRENGTHS,
    Epsilon,
    in_words,
)

TEXT = Path(__file__).with_name("page.md")
"""The words of the page, with the places where tables go in double braces."""
RESULTS = Path(__file__).parent / "results" / "defaults.json"
PAGE = Path(__file__).parents[3] / "docs" / "results" / "defaults.md"


def cells(path: Path) -> list[dict[str, Any]]:
    """All cells of one computed file: every epsilon, or budgets that differ, and differences of made-up clients."""
    about = json.loads(path.with_name(path.name.replace(".losses", "")).read_text())
    done, shape = json.loads(path.read_text()), (len(about["taus"]), len(about["seeds"]))
    level, design = about["level"], about["half"] == "design"
    chosen_on = slice(0, len(CHOICE_SEEDS))
    scored_on = chosen_on if design else slice(len(CHOICE_SEEDS), None)
    losses: dict[Epsilon, dict[str, np.ndarray]] = {}
    for piece, found in zip(about["pieces"], done, strict=True):
        for place, (epsilon, name) in enumerate(zip(piece["epsilons"], piece["names"], strict=True)):
            here = losses.setdefault(epsilon, {})
            here[name] = np.array(found["averaged"][place]).reshape(shape)
            if "last" in found and not name.startswith("default"):
                here[f"{name}, averaged"] = here[name]
                here[name] = np.array(found["last"][place]).reshape(shape)
    own = next((one.pop("a model of one's own") for one in losses.values() if "a model of one's own" in one), None)
    rows = []
    for epsilon, found in losses.items():
        (default,) = (name for name in found if name.startswith("default"))
        others = {name: values for name, values in found.items() if name != default}
        if own is not None:
            others["a model of one's own"] = own
        elif "few_releases" in default:
            others["few releases"] = found[default]
        constant = np.array(about["constants"][in_words(epsilon)]).reshape(shape)
        plain = {"local": f"strength {STRENGTHS[0]:g}, step x1, {ROUNDS[level][1]} rounds"}
        plain["fedavg"] = plain["local"].replace(f"{STRENGTHS[0]:g}", f"{STRENGTHS[-1]:g}")
        for place, tau in enumerate(about["taus"]):
            means = {name: float(values[place, chosen_on].mean()) for name, values in others.items()}
            best = min((name for name, mean in means.items() if np.isfinite(mean)), key=means.__getitem__)
            row = {"setting": about["setting"], "level": level, "half": about["half"], "epsilon": epsilon}
            row |= {"tau": tau if about["made_up"] else None, "what": default.removeprefix("default: ")}
            row |= {"hindsight_is": best}
            scored = {"default": found[default], "hindsight": others[best], "constant": constant}
            scored |= {name: others[key] for name, key in plain.items()} | ({"own": own} if own is not None else {})
            rows.append(row | {name: float(f"{v[place, scored_on].mean():.6g}") for name, v in scored.items()})
    return rows


def main() -> None:
    """The command."""
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    for folder in sys.argv[1:]:
        for path in sorted(Path(folder).glob("*.losses.json")):
            new = cells(path)
            same = {(row["setting"], row["level"]) for row in new}
            rows = [row for row in rows if (row["setting"], row["level"]) not in same] + new
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    write(rows, PAGE)


def write(results: list[dict[str, Any]], path: Path) -> None:
    """The page."""
    text = TEXT.read_text()
    for half in HALVES:
        every = [row for row in results if row["half"] == half]
        rows, mixed = [[row for row in every if (row["epsilon"] == DIFFER) == differ] for differ in (False, True)]
        for words, found in (("", _table), ("summary ", summary), ("missed ", missed)):
            text = text.replace("{{" + f"{words}mixed {half}" + "}}", found(mixed) if mixed else "Not run.")
        for level in ("example", "client"):
            own = [row for row in rows if row["level"] == level]
            text = text.replace("{{" + f"{half} {level}" + "}}", _table(own) if own else "Not run.")
            text = text.replace("{{" + f"summary {half} {level}" + "}}", summary(own) if own else "not run")
        text = text.replace("{{" + f"missed {half}" + "}}", missed(rows))
    text = text.replace("{{open}}", still_open(results))
    path.write_text(text)


def still_open(results: list[dict[str, Any]]) -> str:
    """Which settings were planned and are not computed, so that nobody takes a part for the whole."""
    done = {(row["setting"], row["level"]) for row in results}
    parts = []
    for half, (equal, mixed) in HALVES.items():
        for level in EPSILONS:
            settings = equal + mixed if level == "example" else equal
            lacking = [one.name for one in settings if (one.name, level) not in done]
            parts += [f"{half}, {level} level: {'; '.join(lacking)}"] if lacking else []
    return f"**Not computed yet** ({'. '.join(parts)})." if parts else "All of it was computed."


def summary(rows: list[dict[str, Any]]) -> str:
    """Headline numbers of some cells."""
    ratios = np.array([row["default"] / row["hindsight"] for row in rows])
    constant = np.array([row["default"] / row["constant"] for row in rows])
    plain = np.array([row["default"] / min(row["local"], row["fedavg"]) for row in rows])
    text = (
        f"{len(rows)} cells; default / best in hindsight: geometric mean {np.exp(np.log(ratios).mean()):.3f}, worst "
        f"{ratios.max():.2f}, above 1.3 in {(ratios > 1.3).sum()}; more than 3 % above a constant in "
        f"{(constant > 1.03).sum()} (worst {constant.max():.2f}), more than 5 % above the better of local and FedAvg "
        f"in {(plain > 1.05).sum()} (worst {plain.max():.2f})"
    )
    if "own" in rows[0]:
        own = np.array([row["default"] / row["own"] for row in rows])
        text += f"; against models of clients' own: worst {own.max():.3f}, more than 1 % above in {(own > 1.01).sum()}"
    return text


def missed(rows: list[dict[str, Any]]) -> str:
    """The cells that miss one of the aims, as a list."""
    lines = []
    for row in rows:
        wrong = [
            f"{row['default'] / bound:.2f} of {name}"
            for name, bound, most in (
                ("the best in hindsight", row["hindsight"], 1.3),
                ("a constant", row["constant"], 1.03),
                ("the better of local and FedAvg", min(row["local"], row["fedavg"]), 1.05),
                ("models of clients' own", row.get("own", np.inf), 1.01),
            )
            if row["default"] > most * bound
        ]
        if wrong:
            differ = "" if row["tau"] is None else f", differing by {row['tau']:g}"
            where = f"{row['setting']}{differ}, {row['level']} level, epsilon {in_words(row['epsilon'])}"
            lines.append(f"* {where}: {', '.join(wrong)}")
    return "\n".join(lines) if lines else "None." if rows else "Not computed."


def _table(rows: list[dict[str, Any]]) -> str:
    head = [
        "data",
        "differ by",
        "epsilon",
        "default",
        "loss",
        "best in hindsight",
        "ratio",
        "constant",
        "local",
        "FedAvg",
    ]
    more = ["own"] if "own" in rows[0] else []
    lines = [head + more, ["---"] * len(head + more)]
    for row in rows:
        ratio = row["default"] / row["hindsight"]
        lines.append(
            [
                row["setting"],
                "" if row["tau"] is None else f"{row['tau']:g}",
                in_words(row["epsilon"]),
                row["what"],
                f"{row['default']:.4g}",
                f"{row['hindsight']:.4g} ({row['hindsight_is']})",
                f"**{ratio:.3f}**" if ratio > 1.08 else f"{ratio:.3f}",
                *(f"{row[name]:.4g}" for name in ("constant", "local", "fedavg", *more)),
            ]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    main()

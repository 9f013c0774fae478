"""Predictions from an exported model with NumPy alone. This file is copied beside every exported model.

    python predict.py patients.csv --output risks.csv      # in the folder with model.json and model.safetensors

It reads no pickles: model.safetensors is a JSON header and raw numbers, model.json says what the columns are.
"""

import argparse
import csv
import hashlib
import io
import json
import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

NO, YES = {"0", "no", "n", "false", "f"}, {"1", "yes", "y", "true", "t"}
GAPS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?")


def read_safetensors(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays in a safetensors file: 8 bytes with the length of a JSON header, the header, then the numbers."""
    content = Path(path).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            if entry["dtype"] != "F32":
                raise ValueError(f"{path}: {name} is {entry['dtype']}, not F32")
            begin, end = entry["data_offsets"]
            values = np.frombuffer(content[start + begin : start + end], "<f4")
            found[name] = values.reshape(entry["shape"])
    return found


def digest(about: Mapping[str, Any], weights: bytes) -> str:
    """What a model is known by: everything in model.json but this, and the content of model.safetensors."""
    rest = {key: value for key, value in about.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode() + weights).hexdigest()


def check(folder: Path, about: Mapping[str, Any]) -> None:
    """Refuses a model that is not as it was written: its numbers would be wrong without a word."""
    if digest(about, (folder / "model.safetensors").read_bytes()) != about["digest"]:
        raise ValueError(f"{folder}: model.json or model.safetensors was changed since the export: export it again")


def number(name: str, text: str) -> float:
    """A cell as a number."""
    try:
        found = float(text)
    except ValueError:
        found = math.inf
    if not math.isfinite(found):
        raise ValueError(f"column {name!r} holds numbers, but {text[:40]!r} is none: correct the table")
    return found


def place_of(column: dict[str, Any], text: str) -> int | None:
    """The place of a cell's text among a column's values, in any case of letters; None: it is none of them."""
    head, dot, tail = text.partition(".")
    text = head if dot and not tail.strip("0") and head.lstrip("-").isdigit() else text
    values, low = list(column["values"]), text.casefold()
    if text in values:
        return values.index(text)
    folded = {value.casefold(): place for place, value in enumerate(values)}
    if low in folded or column["kind"] != "yes_no":
        return folded.get(low)
    return 1 if low in YES else 0 if low in NO else None


def features(columns: list[dict[str, Any]], row: Mapping[str, object]) -> list[float]:
    """One row (a dictionary of texts or numbers) as the numbers a model takes."""
    found = []
    for column in columns:
        text = str(row.get(column["name"], "") if row.get(column["name"]) is not None else "").strip()
        missing = text in GAPS
        if column["kind"] == "number":
            middle, half = (column["low"] + column["high"]) / 2, (column["high"] - column["low"]) / 2
            found.append(0.0 if missing else min(1.0, max(-1.0, (number(column["name"], text) - middle) / half)))
        elif column["kind"] == "yes_no":
            place = place_of(column, text)
            if not missing and place is None:
                raise ValueError(f"column {column['name']!r} is yes or no, not {text!r}")
            found.append(0.0 if missing else 1.0 if place else -1.0)
        else:
            place = None if missing else place_of(column, text)
            found += [float(place == k) for k in range(len(column["values"]))]
        if column["missing"] == "indicate":
            found.append(float(missing))
    return found


def forward(layers: Iterable[tuple[np.ndarray, np.ndarray]], x: np.ndarray) -> np.ndarray:
    """The output of layers of (weights, bias), with max(0, .) between them."""
    for number, (weights, bias) in enumerate(layers):
        x = (np.maximum(x, 0) if number else x) @ weights + bias
    return x


def outcome(task: str, target: dict[str, Any], output: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Predictions and probabilities (none for a number or a count), from the output of the last layer.

    Of a time until an event: the risk that it comes by the last edge, and by each of them. Of an ordered scale: the
    level that is as likely to be exceeded as not. Of several labels: the names of those that are more likely than not.
    """
    if task == "number":
        middle, half = (target["low"] + target["high"]) / 2, (target["high"] - target["low"]) / 2
        return np.clip(middle + half * output[:, 0], target["low"], target["high"]), None
    if task == "count":
        return np.minimum(np.exp(np.minimum(output[:, 0], 80)) * math.sqrt(target["high"]), target["high"]), None
    if task == "survival":
        risks = 1 - remaining(output)
        return risks[:, -1], risks
    names = np.array(target["classes"])
    if task == "ordinal":
        left = remaining(output)
        ends = np.zeros((len(left), 1))
        chances = np.concatenate([ends + 1, left], axis=1) - np.concatenate([left, ends], axis=1)
        return names[(left > 0.5).sum(axis=1)], chances
    if task == "labels":
        chances = np.exp(-np.logaddexp(0, -output))
        return np.array(["; ".join(names[row > 0.5]) for row in chances], dtype=str), chances
    if task == "binary":
        output = np.concatenate([np.zeros_like(output), output], axis=1)
    output = np.exp(output - output.max(axis=1, keepdims=True))
    chances = output / output.sum(axis=1, keepdims=True)
    return names[chances.argmax(axis=1)], chances


def remaining(output: np.ndarray) -> np.ndarray:
    """The chance that the event has not come by the end of each interval, from the intervals' logits."""
    return np.exp(-np.cumsum(np.logaddexp(0, output), axis=1))


def risk_at(risks: np.ndarray, edges: list[float], horizon: float) -> np.ndarray:
    """The risk that the event comes by a time: between edges, as if it were evenly frequent among those still there."""
    if not 0 < horizon <= edges[-1]:
        raise ValueError(f"horizon={horizon:g} must be above 0 and at most {edges[-1]:g}, where the last interval ends")
    left = np.log(np.maximum(1 - np.concatenate([np.zeros((len(risks), 1)), risks], axis=1), 1e-300))
    return 1 - np.exp(np.array([np.interp(horizon, [0.0, *edges], row) for row in left]))


def layers_of(arrays: dict[str, np.ndarray], client: int | None) -> list[tuple[np.ndarray, np.ndarray]]:
    """The layers of one client's model, or of the shared one (client None)."""
    names = sorted({int(name.split(".")[1]) for name in arrays if name.startswith("layers.")})
    lead, place = ("shared.", ...) if client is None else ("layers.", client)
    return [(arrays[f"{lead}{n}.weights"][place], arrays[f"{lead}{n}.bias"][place]) for n in names]


def predict(
    folder: str | Path, rows: Iterable[Mapping[str, object]], client: str | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Predictions and probabilities for rows (dictionaries), by a client's model: the only one there is, or a name."""
    folder = Path(folder)
    about = json.loads((folder / "model.json").read_text())
    check(folder, about)
    arrays = read_safetensors(folder / "model.safetensors")
    if client is None and len(about["clients"]) == 1:
        client = about["clients"][0]
    place = about["clients"].index(client) if client in about["clients"] else None
    if place is None and not about["has_shared_model"]:
        raise ValueError(f"client={client!r} has no model here, and there is no shared model: {about['clients']}")
    x = np.array([features(about["columns"], row) for row in rows], np.float32)
    return outcome(about["task"], about["target"], forward(layers_of(arrays, place), x))


SEPARATORS = (",", ";", "\t", "|")


def read_rows(path: str | Path) -> tuple[list[str], list[dict[str, str]]]:
    """Names and rows of a CSV file in UTF-8, with a byte order mark or without; separated as its first line is."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is no UTF-8: save the file as UTF-8") from None
    first = text.split("\n", 1)[0]
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=max(SEPARATORS, key=first.count))
    names = [name.strip() for name in next(lines, [])]
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"{path} must begin with a line of names, each of them once, and it has {names[:8]}")
    rows = []
    for cells in lines:
        if cells and len(cells) != len(names):
            raise ValueError(
                f"{path}: line {lines.line_num} has {len(cells)} cells, and the line of names {len(names)}"
            )
        if cells:
            rows.append(dict(zip(names, cells)))  # noqa: B905
    if not rows:
        raise ValueError(f"{path} has no rows below its line of names")
    return names, rows


def absent(columns: list[dict[str, Any]], names: Iterable[str], allowed: bool = False) -> list[str]:
    """Columns that a table lacks: an error, unless they may be missing by declaration, or by `allowed`."""
    known = set(names)
    lacking = [column for column in columns if column["name"] not in known]
    needed = [column["name"] for column in lacking if column["missing"] != "indicate"]
    if columns and len(lacking) == len(columns):
        raise ValueError(f"the table has none of the columns that the model reads: {needed or known}; name them so")
    if needed and not allowed:
        raise ValueError(
            f"the table lacks {', '.join(map(repr, needed[:8]))}, which the model reads: add the columns, or say "
            "--allow-missing, and they count as missing in every row"
        )
    return [column["name"] for column in lacking]


def added(
    task: str, target: dict[str, Any], answer: tuple[np.ndarray, np.ndarray | None], horizons: Iterable[float] = ()
) -> dict[str, np.ndarray]:
    """What predictions add to a table: the answer, and of labels the probability (of the second, if there are two).

    Of a time until an event the risks by its edges, or by other times, the last of which is then the answer.
    """
    guesses, chances = answer
    found = {"prediction": guesses}
    if chances is None:
        return found
    if task == "binary":
        return {**found, "probability": chances[:, 1]}
    if task == "survival":
        times = sorted(horizons) or target["edges"]
        risks = {f"risk_{time:g}": risk_at(chances, target["edges"], time) for time in times}
        return {"prediction": risks[f"risk_{times[-1]:g}"], **risks}
    return found | {f"probability_{name}": chances[:, k] for k, name in enumerate(target["classes"])}


def main(words: list[str], folder: Path) -> None:
    """Predicts for a table, as the command line says."""
    parser = argparse.ArgumentParser(description="Predictions for the rows of a CSV file, one line each.")
    parser.add_argument("table", help="a CSV file with a line of names")
    parser.add_argument("--client", help="whose model to use; default: the only one here, or else the shared one")
    parser.add_argument("--output", help="the file to write; default: the screen")
    parser.add_argument("--allow-missing", action="store_true", help="columns that the table lacks count as missing")
    parser.add_argument("--horizon", type=float, action="append", help="the risk that the event comes by this time")
    asked = parser.parse_args(words)
    try:
        if asked.output and Path(asked.output).exists() and Path(asked.output).samefile(asked.table):
            raise ValueError(f"--output {asked.output} is the table itself: give another file")
        about = json.loads((folder / "model.json").read_text())
        names, rows = read_rows(asked.table)
        absent(about["columns"], names, asked.allow_missing)
        if asked.horizon and about["task"] != "survival":
            raise ValueError(f"--horizon is for times until an event, and this model predicts a {about['task']}")
        found = added(about["task"], about["target"], predict(folder, rows, asked.client), asked.horizon or ())
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(found)
        for line in zip(*found.values()):  # noqa: B905
            writer.writerow([f"{value:.6g}" if isinstance(value, float | np.floating) else value for value in line])
        if asked.client is not None and asked.client not in about["clients"]:
            print(f"Note: client {asked.client!r} has no model here: the shared one was used", file=sys.stderr)
        if asked.output is None:
            sys.stdout.write(text.getvalue())
        else:
            Path(asked.output).write_text(text.getvalue(), encoding="utf-8")
    except (ValueError, OSError) as error:
        sys.exit(f"Error: {error}")
    except (KeyError, TypeError, AttributeError) as error:
        sys.exit(f"Error: {folder / 'model.json'} is damaged ({error!r}): export it again")


if __name__ == "__main__":
    main(sys.argv[1:], Path(__file__).parent)

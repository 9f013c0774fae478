"""Predictions from an exported model with NumPy alone. This file is copied beside every exported model.

    python predict.py patients.csv            # in the folder with model.json and model.safetensors

It reads no pickles: model.safetensors is a JSON header and raw numbers, model.json says what the columns are.
"""

import csv
import json
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
            found.append(0.0 if missing else min(1.0, max(-1.0, (float(text) - middle) / half)))
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
    """Predictions and probabilities (none for a number), from the output of the last layer."""
    if task == "number":
        middle, half = (target["low"] + target["high"]) / 2, (target["high"] - target["low"]) / 2
        return np.clip(middle + half * output[:, 0], target["low"], target["high"]), None
    if task == "binary":
        output = np.concatenate([np.zeros_like(output), output], axis=1)
    output = np.exp(output - output.max(axis=1, keepdims=True))
    chances = output / output.sum(axis=1, keepdims=True)
    return np.array(target["classes"])[chances.argmax(axis=1)], chances


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
    arrays = read_safetensors(folder / "model.safetensors")
    if client is None and len(about["clients"]) == 1:
        client = about["clients"][0]
    place = about["clients"].index(client) if client in about["clients"] else None
    if place is None and not about["has_shared_model"]:
        raise ValueError(f"client={client!r} has no model here, and there is no shared model: {about['clients']}")
    x = np.array([features(about["columns"], row) for row in rows], np.float32)
    return outcome(about["task"], about["target"], forward(layers_of(arrays, place), x))


if __name__ == "__main__":
    with open(sys.argv[1], newline="") as file:
        table = list(csv.DictReader(file))
    guesses, chances = predict(Path(__file__).parent, table, *sys.argv[2:3])
    for number, guess in enumerate(guesses):
        print(guess, *([] if chances is None else [f"{chance:.6g}" for chance in chances[number]]), sep=",")

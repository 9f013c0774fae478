"""FEMNIST at client level: a CNN for every writer (the figure and Table 1 of Hu, Wu and Smith, 2021, made private).

    python -m benchmarks.studies.femnist.run --quick                   # 2 cores: 60 writers x 20 images x 20 rounds
    python -m benchmarks.studies.femnist.run --pack FOLDER             # calibrates the full setting, packs the data
    python -m benchmarks.studies.femnist.run --run FOLDER [--seconds S]  # on an accelerator: needs jax and numpy only
    python -m benchmarks.studies.femnist.run --report FOLDER           # tables, and the figure as FOLDER/femnist.svg

Fixed before any test image was looked at: `cnn_paper` (`--quick`: a smaller one), one local epoch of batches of 10 a
round, step 0.1, clip 0.5, FedProx's strength 0.1, delta 1e-3. Fine-tuning: full-batch steps of 0.2, strength 0.1, alone
and free. Chosen for every epsilon, on a fifth of the training images and with a seed of its own: the number of rounds
(by FedAvg; by the method itself for the small shared part), then the personal models' strength, weak ones with the most
rounds. KINFOLK_DATA names the data's directory.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom

from benchmarks.studies.femnist.study import BATCH, CLIP, DELTA, NO_PRIVACY, SAID, Say, Setting, Study
from kinfolk.data.federation import Federation
from kinfolk.data.sets.femnist import femnist
from kinfolk.privacy.levels import Terms, client_level
from kinfolk.report import line_chart
from kinfolk.training import job_file
from kinfolk.training.experiment import Experiment, ModelChoice, Phase, Training

FULL = Setting()
QUICK = Setting(
    writers=60,
    most_images=20,
    cohort=30,
    places=54,
    epsilons=(0.8, 2.0, 8.0),
    rounds=(20,),
    local_rounds=20,
    seeds=1,
    tuning_steps=25,
    selecting_steps=25,
    model=ModelChoice("cnn", (8, 16)),
    speed=False,
)


def split(data: Federation) -> Federation:
    """Training images only: four fifths to train with, every fifth to measure with."""
    train = data.train
    held, longest = train.sizes // 5, train.y.shape[1]
    kept = replace(train, sizes=train.sizes - held)
    index = np.minimum((train.sizes - held)[:, None] + np.arange(longest // 5), longest - 1)
    pick = np.take_along_axis
    seen = replace(train, x=pick(train.x, index[..., None, None, None], 1), y=pick(train.y, index, 1), sizes=held)
    return replace(data, train=kept, test=seen)


def pack(folder: Path, setting: Setting) -> None:
    """Data laid out, and calibrated terms for every budget and number of rounds, all for one compiled program."""
    from kinfolk.training.offload import parcel
    from kinfolk.training.prepare import prepare

    def job(data: Federation, epsilon: float, rounds: int) -> Any:
        spare = rounds * overflow(setting, data)
        level = client_level(epsilon, DELTA - spare, clip=CLIP, cohort=setting.cohort)
        phases, training = (Phase("fedavg", rounds),), Training(batch_size=BATCH, batches="shuffled")
        found = prepare(
            Experiment(seed=0, model=setting.model, training=training, privacy=level, phases=phases), [data]
        )
        return found.with_terms(gathered(found.terms, setting, data))

    folder.mkdir(parents=True, exist_ok=True)
    data = femnist(writers=setting.writers, most_images=setting.most_images)
    terms = {f"{e:g} {rounds}": job(data, e, rounds).terms for e in setting.epsilons for rounds in setting.rounds}
    (folder / "terms.json").write_text(json.dumps(list(terms)))
    job_file.save(tuple(terms.values()), folder / "terms.npz")
    first = setting.epsilons[0], setting.rounds[0]
    job_file.save(parcel(job(data, *first)), folder / "data.npz")
    job_file.save(parcel(job(split(data), *first)), folder / "choosing.npz")
    if setting.speed:
        few = femnist(writers=205, most_images=25)
        job_file.save(parcel(job(few, 8.0, 1000)), folder / "speed.npz")


def overflow(setting: Setting, data: Federation) -> float:
    """The chance that a round's cohort does not fit into the program's places: taken from delta for every round."""
    clients = len(data.ids)
    return float(binom.sf(setting.places, clients, setting.cohort / clients))


def gathered(terms: Terms, setting: Setting, data: Federation) -> Terms:
    """The terms with the program's number of places, and without schedules, which nobody asked for."""
    inbox: Any = terms.inbox
    if (inbox.sampling.capacity or 0) > setting.places:
        raise ValueError(f"places={setting.places} are too few for some rounds: {inbox.sampling.capacity} are needed")
    sampling = replace(inbox.sampling, capacity=setting.places)
    charged = replace(inbox, sampling=sampling, overflow=np.float32(overflow(setting, data)))
    return Terms(terms.data, terms.choice, charged)


def table(rows: list[dict[str, Any]], title: str, of: Any) -> list[str]:
    """A Markdown table with a column per epsilon: accuracy, mean over seeds and clients (worst tenth of clients)."""
    budgets = sorted({row["epsilon"] for row in rows}, key=lambda b: float("inf") if b == NO_PRIVACY else float(b))
    lines = [f"| {title} | " + " | ".join(f"epsilon {b}" if b != NO_PRIVACY else "no privacy" for b in budgets) + " |"]
    lines.append("|---|" + "---:|" * len(budgets))
    for name in dict.fromkeys(of(row) for row in rows):
        cells = []
        for budget in budgets:
            seeds = [s for r in rows if of(r) == name and r["epsilon"] == budget for s in r.get("by_seed", [r])]
            means = [float(np.mean([s[key] for s in seeds])) for key in ("mean", "worst_tenth")] if seeds else None
            cells.append(f"{100 * means[0]:.1f} ({100 * means[1]:.1f})" if means else "")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def report(found: dict[str, Any]) -> str:
    parts = {name: [r for r in found["rows"] if r["part"] == name] for name in ("speed", "figure", "tune", "select")}
    lines = [f"{r['what']}: {r['ms_per_round']:.2f} ms per round, {r['tflops']:.1f} TFLOP/s" for r in parts["speed"]]
    for row in parts["figure"]:
        signal = row["most_signal_to_noise"]
        shown = "no noise" if signal is None else f"signal to noise at most {signal:.3f} a round"
        strength = "" if row["strength"] is None else f", strength {float(row['strength']):g}"
        lines.append(f"{row['method']}, epsilon {row['epsilon']}: {row['rounds']} rounds{strength}, {shown}")
    lines += ["", *table(parts["figure"], "as trained", lambda row: row["method"])]
    if parts["tune"]:
        lines += ["", *table(parts["tune"], "fine-tuned", lambda row: f"{row['start']}, {row['objective']}")]
    if parts["select"]:
        lines += ["", *table(parts["select"], "self-selected", lambda row: "self-selected")]
    return "\n".join(lines)


SHOWN = {
    "global": ("figure", {"method": "global"}),
    "personal": ("figure", {"method": "personal"}),
    "one shared convolution (832 weights)": ("figure", {"method": "small shared part"}),
    "global, fine-tuned": ("tune", {"start": "global", "objective": "symmetric_kl"}),
    "self-selected": ("select", {}),
}


def picture(found: dict[str, Any]) -> str:
    """Mean accuracy against epsilon for the main methods, and training alone for comparison."""

    def accuracy(part: str, **wanted: Any) -> float:
        rows = [r for r in found["rows"] if r["part"] == part and wanted.items() <= r.items()]
        return 100 * float(np.mean([seed["mean"] for row in rows for seed in row.get("by_seed", [row])]))

    budgets = [float(b) for b in found["setting"]["epsilons"]]
    series = {
        name: [(budget, accuracy(part, epsilon=f"{budget:g}", **own)) for budget in budgets]
        for name, (part, own) in SHOWN.items()
    }
    alone = accuracy("figure", method="local")
    series["trained alone"] = [(budget, alone) for budget in budgets]
    title = "FEMNIST, a CNN for each of 294 writers"
    return line_chart.lines(title, series, "epsilon (delta 1e-3)", "mean test accuracy, %", log_across=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--pack", type=Path)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start nothing new after this long")
    parser.add_argument("--results", type=Path, help="default: results.json in the folder")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    setting = QUICK if args.quick else FULL
    if args.pack:
        pack(args.pack, setting)
    if args.run:
        Study(args.run, setting, args.seconds, args.results or args.run / "results.json").run()
    if args.quick and not args.run:
        with tempfile.TemporaryDirectory() as folder:
            print(report(quick(Path(folder))))
    if args.report:
        found = json.loads((args.report / "results.json").read_text())
        print(report(found))
        (args.report / "femnist.svg").write_text(picture(found))


def quick(folder: Path, *, select: bool = True, say: Say = SAID) -> dict[str, Any]:
    """The quick version from start to end; `select`: with the clients that choose between models."""
    pack(folder, QUICK)
    return Study(folder, QUICK, float("inf"), folder / "results.json", select=select, say=say).run()


if __name__ == "__main__":
    main()

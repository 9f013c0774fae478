"""`kinfolk tune`: the best of a random number of trials, with what that really costs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from kinfolk.cli.kept_programs import keep_programs
from kinfolk.cli.output import DataName, RelationFile
from kinfolk.cli.pieces import InPieces, On, Resume


def tune(
    *,
    option: Annotated[list[str], typer.Option(help="Values to choose from, as strength=0.3,1,3; repeat for several.")],
    method: Annotated[str, typer.Option(help="One of those that `kinfolk check` lists.")] = "mean_regularized",
    data: DataName = "synthetic_schools",
    epsilon: Annotated[float, typer.Option(help="Each client's budget for everything together.")] = 3.0,
    delta: Annotated[float | None, typer.Option(help="Default: min(1e-5, n^-1.1).")] = None,
    clip: Annotated[float, typer.Option(help="Largest norm of one example's gradient.")] = 1.0,
    rounds: Annotated[int, typer.Option(help="Rounds of each trial.")] = 60,
    step_size: Annotated[float, typer.Option(help="Step size of local training.")] = 0.1,
    batch_size: Annotated[int, typer.Option(help="Expected batch size; 0 for full batches.")] = 32,
    relation: RelationFile = None,
    trials: Annotated[float, typer.Option(help="Mean number of trials.")] = 10.0,
    distribution: Annotated[str, typer.Option(help="logarithmic, geometric or poisson.")] = "logarithmic",
    bound: Annotated[float, typer.Option(help="Largest loss of one example in a score.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Needed: tuning is a simulation for now.")] = None,
    on: On = None,
    resume: Resume = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Choose options by repetition, honestly: a hidden number of trials, private scores, and the whole cost.

    `kinfolk tune --option strength=0.3,1,3,10 --option step_size=0.1,0.3 --epsilon 3 --seed 0`
    """
    from kinfolk.algorithms.relations import options_for
    from kinfolk.cli.output import console, emit, in_words, warn
    from kinfolk.data.choice import DataChoice
    from kinfolk.privacy.levels import example_level
    from kinfolk.toml import to_toml
    from kinfolk.training.experiment import Experiment, Phase, Training
    from kinfolk.training.relation_files import read_relation
    from kinfolk.training.tune import Tuning
    from kinfolk.training.tune import tune as run

    keep_programs()
    fixed: dict[str, Any] = {} if relation is None else options_for(read_relation(relation))
    settings = Tuning(dict(map(_values, option)), trials, distribution, bound)
    if "step_size" not in settings.choices:
        fixed["step_size"] = step_size
    experiment = Experiment(
        name="tune",
        seed=seed,
        data=DataChoice(data),
        training=Training(batch_size or None),
        privacy=example_level(epsilon, delta, clip=clip),
        phases=(Phase(method, rounds, fixed),),
    )
    about = [to_toml(experiment), asdict(settings)]
    winner = run(experiment, settings, in_pieces=InPieces("tune", about, on, resume, as_json))
    values = {
        "options": winner.options,
        "error": winner.error,
        "measured": winner.measured,
        "epsilon": max(winner.epsilons.values()),
        "delta": winner.delta,
        "simulated": True,
        "trials": {"distribution": distribution, "mean": trials},
        "warning": winner.warning,
    }
    if as_json:
        emit("tune", values)
        return
    if winner.warning:
        console.print(f"[yellow]Warning:[/yellow] {winner.warning}", highlight=False)
    if winner.options is None:
        console.print("No trial was drawn, which Poisson allows: nothing was trained, released or spent.")
        return
    table = Table("", "", title="The winner", show_header=False)
    for key, value in winner.options.items():
        table.add_row(key.replace("_", " "), f"{value:g}")
    table.add_row("mean client's test rows", in_words(winner.measured))
    table.add_row("epsilon, tuning included", f"{values['epsilon']:.4g} (simulated)")
    table.add_row("delta", f"{winner.delta:.3g}")
    console.print(table)
    warn([{"method": method, "measured": winner.measured}])


def _values(text: str) -> tuple[str, list[float]]:
    """The name and numbers of `name=1,2,3`."""
    name, _, numbers = text.partition("=")
    try:
        return name.strip().replace("-", "_"), [float(number) for number in numbers.split(",")]
    except ValueError:
        raise typer.BadParameter(f"option {text!r} should look like strength=0.3,1,3") from None

"""`kinfolk attack`: lower bounds on epsilon, for one algorithm or mechanism, or for everything there is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.table import Table

from kinfolk import limits
from kinfolk.cli.kept_programs import keep_programs
from kinfolk.cli.output import refuse_unused
from kinfolk.cli.pieces import InPieces, On, Resume

if TYPE_CHECKING:
    from kinfolk.training.pieces import Result
    from kinfolk.verify.attack_targets import Target

ERROR = 1e-4
"""With --all: the probability that any sound claim at all is refuted by chance."""
ONE_RUN = "one_run"


def attack(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            help="An algorithm, or a mechanism: gaussian_sum, private_choice, symmetric_gaussian, wishart_as_published."
        ),
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="The whole registry, from the strongest views.")] = False,
    level: Annotated[str | None, typer.Option(help="example or client; default: the algorithm's first.")] = None,
    view: Annotated[
        str | None,
        typer.Option(
            help="published, one_client, all_others or released_model (example level); gaussian_sum also has one_run. "
            "Default: the strongest."
        ),
    ] = None,
    sampled: Annotated[bool, typer.Option(help="Units take part by chance, and the claim counts on it.")] = False,
    epsilon: Annotated[float | None, typer.Option(help="The claim to calibrate the noise to.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs in each of the two worlds.")] = 100_000,
    confidence: Annotated[float, typer.Option(help="Of the lower bound; with --all it is 1 - 1e-4 over all.")] = 0.99,
    seed: Annotated[int, typer.Option(help="Attacks can be repeated.")] = 0,
    on: On = None,
    resume: Resume = False,
    picture: Annotated[Path | None, typer.Option(help="Write an SVG picture here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Attack what is claimed to be private, and exit with 1 if it leaks more than it claims.

    `wishart_as_published` is known not to be private: showing that is no failure.

    `kinfolk attack mean_regularized --level client --picture attack.svg`; `kinfolk attack --all`
    """
    from kinfolk.cli.output import emit
    from kinfolk.verify import attack_charts

    for option, value in {"epsilon": epsilon, "runs": runs, "confidence": confidence, "seed": seed}.items():
        if value is not None:
            limits.checked(option, value)
    if everything == (name is not None):
        raise typer.BadParameter("give the name of one algorithm or mechanism, or --all")
    if not everything:
        refuse_unused(context, ("on", "resume"), "belongs to --all, which is many attacks", only=True)
    keep_programs()
    if everything:
        begin = time.monotonic()
        rows = _attack_all(runs, seed, on, resume, as_json)
        svg = attack_charts.claims_and_bounds(rows)
        passed = not any(row["exceeded"] for row in rows)
        found = {"passed": passed, "confidence": 1 - ERROR, "seconds": round(time.monotonic() - begin, 1)}
        if as_json:
            emit("attack", {**found, "results": rows})
        else:
            _show(rows)
    else:
        row, svg = _attack_one(
            str(name),
            level=level,
            view=view,
            sampled=sampled,
            epsilon=epsilon,
            runs=runs,
            confidence=confidence,
            seed=seed,
        )
        passed = not (row["exceeded"] and row.get("private", True))
        if as_json:
            emit("attack", row)
        else:
            _show([row])
    if picture is not None:
        picture.write_text(svg)
    if not passed:
        raise typer.Exit(1)


def _attack_one(
    name: str,
    *,
    level: str | None,
    view: str | None,
    sampled: bool,
    epsilon: float | None,
    runs: int,
    confidence: float,
    seed: int,
) -> tuple[dict[str, Any], str]:
    """The finding as plain values, and its picture."""
    from dataclasses import asdict

    from kinfolk.algorithms import REGISTRY
    from kinfolk.verify import attack as attacks
    from kinfolk.verify import attack_charts, attack_problems, one_run_audit

    options: dict[str, Any] = {"epsilon": epsilon} if epsilon is not None else {}
    if name == "gaussian_sum" and view == ONE_RUN:
        row = asdict(one_run_audit.gaussian_sum_in_one_run(confidence=confidence, seed=seed, **options))
        return row, attack_charts.claims_and_bounds([row])
    if name in REGISTRY:
        entry = REGISTRY[name]
        level = level or next(known for known in entry.levels if known != "none")
        known = (*entry.levels, *(("person",) if "example" in entry.levels else ()))
        if level not in known:
            raise ValueError(f"{name} cannot run at level={level!r}; it can at {', '.join(known)}")
        problem = attack_problems.training_problem(
            entry.build(), level, name=name, view=view, sampled=sampled, **options
        )
    elif name in attack_problems.MECHANISMS:
        if level is not None or view not in (None, "published"):
            raise ValueError(f"{name} is a mechanism: leave out --level and --view")
        if sampled:
            options["sampled"] = True
        if sampled and name != "gaussian_sum":
            raise ValueError(f"{name} does not sample: leave out --sampled")
        problem = attack_problems.MECHANISMS[name](**options)
    else:
        raise ValueError(f"name={name!r} is not one of {', '.join([*REGISTRY, *attack_problems.MECHANISMS])}")
    finding = attacks.attack(problem, runs=runs, confidence=confidence, seed=seed)
    return finding.record(), attack_charts.two_worlds(finding)


class Game(NamedTuple):
    """How everything is attacked."""

    runs: int
    confidence: float
    seed: int


def _attack_all(runs: int, seed: int, on: str | None, resume: bool, silent: bool) -> list[dict[str, Any]]:
    """Findings for everything; the permitted error is divided by their number. One-run auditing has no power then."""
    from kinfolk.verify import attack_targets

    targets = {target.label: target for target in attack_targets.all_targets()}
    game = Game(runs, 1 - ERROR / len(targets), seed)
    in_pieces = InPieces("attack", [game, *targets], on, resume, silent)
    return [result.values for result in in_pieces(attacked, game, targets).values()]


def attacked(game: Game, target: Target) -> Result:
    """The finding about one target.

    `game`: how it is attacked. `target`: what.
    """
    from kinfolk.training.pieces import Result
    from kinfolk.verify import attack, attack_targets

    problem = attack_targets.problem(target)
    return Result(attack.attack(problem, runs=game.runs, confidence=game.confidence, seed=game.seed).record())


def _show(rows: list[dict[str, Any]]) -> None:
    from kinfolk.cli.output import console

    table = Table("name", "level", "view", "claim", "lower bound", "power", "verdict", title="Attacks on epsilon")
    for row in rows:
        power = "nothing released" if row["power"] is None else f"{row['power']:.2f}"
        verdict = "[red]leaks more[/red]" if row["exceeded"] else "not refuted"
        view = row["view"] + (", sampled" if row.get("sampled") else "")
        table.add_row(
            row["name"], row["level"], view, f"{row['claim']:.3g}", f"{row['lower_bound']:.3g}", power, verdict
        )
    console.print(table)
    first = rows[0]
    console.print(
        f"{first['runs']} runs in each world; each bound holds with confidence {first['confidence']:.6g} at "
        f"delta={first['delta']:g}. Power: the chance that the same test would have refuted the claim with half the "
        "noise; without power a small bound proves nothing.",
        highlight=False,
    )

"""`kinfolk predict` adds predictions to a table, `kinfolk export` hands models out."""

from __future__ import annotations

import io
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kinfolk import limits
from kinfolk.cli.output import Json, console, emit, tell
from kinfolk.toml import ConfigError

if TYPE_CHECKING:
    from kinfolk.serving.trained import Fitted
    from kinfolk.training.run_directory import Run

Models = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="A run directory, a folder with exported models, or a silo's of a federation."),
]


def models_in(path: Path) -> tuple[Fitted, Run | None]:
    """The models in a run directory, in a folder of exported ones, or at a silo; and the run, where it is one."""
    from kinfolk.deploy.scaffold import POLICY_FILE
    from kinfolk.serving import trained
    from kinfolk.training import run_directory

    if (path / POLICY_FILE).exists():
        from kinfolk.deploy.silo_models import from_silo

        return from_silo(path), None
    if (path / trained.ABOUT).exists():
        return trained.load(path), None
    run = run_directory.open_run(path)
    return trained.from_run(run), run


def predict(
    models: Models,
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="Rows to predict for: CSV, Parquet or Arrow.")],
    output: Annotated[Path, typer.Option(help="Where the table with predictions goes: .csv, .parquet or .arrow.")],
    client: Annotated[
        str | None,
        typer.Option(help="Whose rows these are; default: the schema's client column, or the name of the file."),
    ] = None,
    allow_missing: Annotated[
        bool, typer.Option(help="Columns that the table lacks count as missing in every row.")
    ] = False,
    horizon: Annotated[
        list[float] | None,
        typer.Option(help="Of a time until an event: the risk that it comes by this time. May be given several times."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Add predictions to a table: each row by its client's model, a newcomer's by the shared one.

    Labels get `prediction` and a `probability` (of yes, or of the second label), or one for every label; a time until
    an event the risks that it comes by each edge, or by `--horizon`.
    """
    import numpy as np

    from kinfolk.data.tables.encode import differences, encode
    from kinfolk.data.tables.read import as_written, client_ids, polars, read
    from kinfolk.serving.predict_numpy import absent
    from kinfolk.serving.predict_numpy import added as columns_of
    from kinfolk.serving.trained import target_facts
    from kinfolk.training import sets_format

    horizon = [limits.checked("horizon", time) for time in horizon or ()]
    pl = polars()
    fitted, run = models_in(models)
    if horizon and fitted.schema.task != "survival":
        raise ConfigError(f"horizon={horizon} is for times until an event; this model predicts a {fitted.schema.task}")
    file = read(table)
    if output.exists() and output.samefile(table):
        raise ConfigError(f"output={output} is the table itself: give another file")
    writer_of(output)
    absent([asdict(column) for column in fitted.schema.columns], file.frame.columns, allow_missing)
    x, notes = encode(fitted.schema, file)
    notes = [
        *(note for note in differences([file], fitted.schema) if not any(name in note for name in fitted.schema.asked)),
        *notes,
    ]
    if client is not None:
        ids = np.full(file.frame.height, client)
    elif fitted.schema.client is None and len(fitted.ids) == 1 and table.stem not in fitted.ids:
        ids = np.full(file.frame.height, fitted.ids[0])
    else:
        column = fitted.schema.client if fitted.schema.client in file.frame.columns else None
        if fitted.schema.client is not None and column is None:
            raise ConfigError(
                f"{table.name} has no column {fitted.schema.client!r}: say whose rows these are (--client)"
            )
        ids = client_ids(file, column, False).to_numpy().astype(str)
    newcomers = sorted(set(ids.tolist()) - set(fitted.ids))
    if newcomers:
        notes.append(f"not there in training, predicted by the shared model: {', '.join(newcomers[:5])}")
    found, chances = fitted.predict(x, ids)
    beside = columns_of(fitted.schema.task, target_facts(fitted.schema), (found, chances), horizon)
    sets = None if run is None else sets_format.read(run)
    if sets is not None:
        beside |= sets_format.columns(sets, ids, found, chances, fitted.schema.target)
        added_by_sets = "plausible" if "plausible" in beside else "lowest and highest"
        notes.append(f"{added_by_sets}: prediction sets that hold in {sets['coverage']:.0%} of cases")
    added = {name: pl.Series(column) for name, column in beside.items()}
    taken = [name for name in added if name in file.frame.columns]
    if taken:
        raise ConfigError(f"{table.name} has a column {taken[0]!r} already: rename it")
    frame = as_written(file) if output.suffix.lower() == ".csv" else file.frame
    write_frame(frame.with_columns(**added), output)
    if fitted.privacy["level"] == "client":
        notes.append("at client level predictions with a personal model are for its client only")
    if as_json:
        emit(
            "predict", {"output": str(output), "rows": len(x), "columns": list(added), "notes": notes, **_about(fitted)}
        )
        return
    tell(notes, False)
    console.print(f"{len(x)} rows with {', '.join(added)}: {output}", highlight=False, soft_wrap=True)


def export(
    models: Models,
    output: Annotated[Path, typer.Option(help="A new folder for the files.")],
    client: Annotated[str | None, typer.Option(help="For this client: its own model and the shared one.")] = None,
    shared_only: Annotated[bool, typer.Option(help="The shared model only.")] = False,
    onnx: Annotated[bool, typer.Option(help="Also as ONNX, checked with onnxruntime.")] = False,
    for_study: Annotated[bool, typer.Option(help="Also from a simulation; the files say so.")] = False,
    as_json: Json = False,
) -> None:
    """Hand out models: safetensors and JSON (no pickles), a script that predicts with NumPy alone, and ONNX."""
    from kinfolk.serving.export import export as write
    from kinfolk.serving.trained import notice, open_models

    fitted, _ = models_in(models)
    folder = write(fitted, output, client=client, shared_only=shared_only, onnx=onnx, for_study=for_study)
    files = sorted(path.name for path in folder.iterdir())
    said = notice(open_models(folder))
    if as_json:
        emit("export", {"output": str(folder), "files": files, "notice": said, **_about(fitted)})
        return
    console.print(f"{folder}: {', '.join(files)}", highlight=False, soft_wrap=True)
    if said:
        console.print(f"[yellow]{said}[/yellow]", highlight=False)


WRITERS = {".csv": "write_csv", ".parquet": "write_parquet", ".arrow": "write_ipc", ".feather": "write_ipc"}


def writer_of(path: Path) -> str:
    """How a table is written to a file of this name, by its ending."""
    if path.suffix.lower() not in WRITERS:
        raise ConfigError(f"output={path}: the endings that can be written are {', '.join(WRITERS)}")
    return WRITERS[path.suffix.lower()]


def write_frame(frame: Any, path: Path) -> None:
    """A table as a file, whole or not at all; its ending says how."""
    from kinfolk.training import run_directory

    content = io.BytesIO()
    getattr(frame, writer_of(path))(content)
    run_directory.write_bytes(path, content.getvalue())


def _about(fitted: Fitted) -> dict[str, Any]:
    return {key: fitted.privacy[key] for key in ("level", "epsilon", "delta", "simulated")}

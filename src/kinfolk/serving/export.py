"""Who may have which models: a release's models as files, for one client, for everybody, or shared only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kinfolk.serving import trained
from kinfolk.serving.to_onnx import as_onnx
from kinfolk.serving.trained import ExportError, Fitted
from kinfolk.training import run_directory


def export(
    fitted: Fitted,
    folder: Path,
    *,
    client: str | None = None,
    shared_only: bool = False,
    onnx: bool = False,
    for_study: bool = False,
) -> Path:
    """Writes models into a new folder: a client's own and the shared one, the shared one only, or all of them.

    Refused: models of a simulation or without privacy, unless they are for study; and at client level all personal
    models together, because each of them may go to its own client only.
    """
    about = fitted.privacy
    if (about["simulated"] or about["not_private"]) and not for_study:
        reason = "is a simulation" if about["simulated"] else "is not private"
        raise ExportError(
            f"this run {reason}, and only a private release may be exported: train without a seed and with declared "
            "columns, or say --for-study (for_study=True), and the files will be marked"
        )
    if client is None and not shared_only and about["level"] == "client":
        raise ExportError(
            "at client level a personal model may go to its own client only: give --client NAME, or --shared-only for "
            "a model that may go to anybody"
        )
    if client is not None and shared_only:
        raise ExportError("--client and --shared-only exclude each other: a client's export holds the shared model too")
    if shared_only and fitted.shared is None:
        raise ExportError("this method has no shared model: give --client NAME")
    if client is not None:
        fitted = trained.for_client(fitted, client)
    if shared_only:
        layers = tuple((weights[:0], bias[:0]) for weights, bias in fitted.layers)
        fitted = replace(fitted, ids=(), layers=layers)
    if folder.exists():
        raise ExportError(f"output={folder} is there already: give another --output, or remove it")
    files = {}
    if onnx:
        for place, name in enumerate(fitted.ids):
            files["model.onnx" if len(fitted.ids) == 1 else f"model-{place}.onnx"] = as_onnx(fitted, name)
        if fitted.shared is not None:
            files["shared.onnx"] = as_onnx(fitted, None)
    trained.save(fitted, folder)
    for name, content in files.items():
        run_directory.write_bytes(folder / name, content)
    return folder

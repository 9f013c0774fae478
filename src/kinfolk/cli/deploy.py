"""`kinfolk deploy`: a real federation over Flower. Silos keep their data, their ledger and their rules."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kinfolk import limits
from kinfolk.toml import ConfigError

deploy = typer.Typer(
    no_args_is_help=True,
    help="A real federation: silos that trust nobody, and a server, over Flower. Needs `kinfolk[flower]`.",
)
console = Console(stderr=False)

Folder = Annotated[Path, typer.Argument(help="The folder that `kinfolk deploy init` wrote for this party.")]
Explain = Annotated[bool, typer.Option("--explain", help="Show the commands instead of running them.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@deploy.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder: server/ and silos/NAME/ go there.")],
    study: Annotated[Path | None, typer.Option(help="Who takes part and what the columns are, as TOML.")] = None,
    experiment: Annotated[Path | None, typer.Option(help="The experiment, as for `kinfolk train`.")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Three made-up hospitals instead.")] = False,
    host: Annotated[list[str] | None, typer.Option(help="A name or address of the server; repeat for several.")] = None,
) -> None:
    """Write a test federation: the Flower app, certificates, node keys, and a policy for every silo.

    For a real one every silo makes its own node key (`ssh-keygen -t ecdsa -b 384 -N "" -f node`) and sends only
    `node.pub` to the server, and the certificates come from your own authority. With secure sums each also makes a
    signing key (`ssh-keygen -t ed25519 -N "" -f signing`), and all silos compare the public ones.
    """
    from kinfolk.deploy.scaffold import policy_for, require_flower, write_demo, write_federation
    from kinfolk.deploy.study import Roster, Study, read_record
    from kinfolk.training.experiment import load

    require_flower()
    hosts = ["localhost", "127.0.0.1", *(host or [])]
    if demo:
        write_demo(folder, hosts)
    elif study is None or experiment is None:
        raise ConfigError("give --study and --experiment, or --demo")
    else:
        agreed = Study(read_record(Roster, study), load(experiment))
        write_federation(folder, agreed, [policy_for(agreed, name) for name in agreed.roster.clients], hosts)
        _say("Fill in the data table of every policy.toml: file, target, and public bounds of every column.")
    _say(f"Written: {folder}/server and {folder}/silos/*. Next: `kinfolk deploy server {folder}/server`.")


@deploy.command()
def silo(
    folder: Folder,
    superlink: Annotated[str, typer.Option(help="The server's address.")] = "127.0.0.1:9092",
    worker_only: Annotated[
        bool, typer.Option("--worker-only", help="Start only the worker, which sees the data.")
    ] = False,
    network_only: Annotated[
        bool, typer.Option("--network-only", help="Start only the line to the server, as another user, say.")
    ] = False,
    door: Annotated[Path | None, typer.Option(help="The socket between the two; default: in the silo's state.")] = None,
    supernode: Annotated[
        bool, typer.Option("--supernode", help="Use Flower's own SuperNode and a relay: three processes, slower.")
    ] = False,
    *,
    port: Annotated[int, typer.Option(help="With --supernode: a free local port for Flower's own use.")] = 9094,
    explain: Explain = False,
) -> None:
    """Start a silo: its worker, which alone sees the data, and its line to the server."""
    from kinfolk.deploy import silo as silos
    from kinfolk.deploy.flower_processes import carrier, secret_command
    from kinfolk.deploy.flower_processes import supernode as supernode_command
    from kinfolk.deploy.local_socket import door_of
    from kinfolk.deploy.scaffold import require_flower

    limits.checked("port", port)
    if worker_only + network_only + supernode > 1:
        raise ConfigError("give one of --worker-only, --network-only and --supernode")
    folder = folder.absolute()
    place = door or door_of(folder / "state" if network_only else silos.state_of(folder))
    if explain:
        door_words = f"--door {place}"
        if supernode:
            print(secret_command(folder))
        print(f"kinfolk deploy silo {folder} --worker-only {door_words} &")
        if supernode:
            print(supernode_command(folder, superlink, port).shown() + " &")
            print(carrier(folder, port, place).shown())
        else:
            print(f"kinfolk deploy silo {folder} --network-only {door_words} --superlink {superlink}")
        return
    _end_tidily()
    if worker_only:
        silos.run_worker(folder, place)
    elif network_only:
        silos.run_network(folder, superlink, place)
    elif supernode:
        require_flower()
        silos.run_supernode(folder, superlink, port, place)
    else:
        silos.run_silo(folder, superlink)


def _say(words: str) -> None:
    """Prints whole lines, whoever reads them."""
    console.print(words, highlight=False, markup=False, soft_wrap=True)


def _end_tidily() -> None:
    """A signal to stop ends the programs that were started too."""
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, lambda *_: sys.exit(0))


@deploy.command()
def server(
    folder: Folder,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; silos need no other.")] = 9092,
    local_port: Annotated[int, typer.Option(help="Port for this machine only; 0: any that is free.")] = 0,
    round_seconds: Annotated[float, typer.Option(help="Who has not answered by then is a zero message.")] = 600.0,
    wait_seconds: Annotated[float, typer.Option(help="How long to wait for all silos at the start.")] = 600.0,
    explain: Explain = False,
) -> None:
    """Start the server: SuperLink, the silos' keys, and the run; goes on with an unfinished one."""
    from kinfolk.deploy.scaffold import require_flower
    from kinfolk.deploy.server import connection_command, places_of, run_server, server_commands

    for option, value in {"port": port, "round_seconds": round_seconds, "wait_seconds": wait_seconds}.items():
        limits.checked(option, value)
    limits.checked("port", local_port or port)
    require_flower()
    folder = folder.absolute()
    with places_of(folder, host, port, local_port) as places:
        if explain:
            print(connection_command(folder, places))
            commands = server_commands(folder, places, round_seconds, wait_seconds)
            print("\n".join(command.shown() for command in commands))
            return
        _end_tidily()
        run = run_server(folder, places, round_seconds, wait_seconds)
    _say((run.public / "statement.txt").read_text())
    _say(f"Run: {run.path}")


@deploy.command()
def status(folder: Folder, as_json: Json = False) -> None:
    """Show how far a silo or a server is, and what its ledger says was spent."""
    from kinfolk.cli.output import emit
    from kinfolk.deploy.status import status as found_in

    found: dict[str, Any] = found_in(folder)
    if as_json:
        emit("deploy status", found)
        return
    table = Table("", "", title=f"{folder}", show_header=False)
    for key, value in found.items():
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        table.add_row(key.replace("_", " "), text + (" (simulated)" if key == "epsilon" and found["simulated"] else ""))
    console.print(table)

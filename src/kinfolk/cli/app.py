"""`kinfolk app`: the commands as pages in a browser on this machine."""

from __future__ import annotations

import socket
import webbrowser
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from kinfolk import limits
from kinfolk.cli.output import console
from kinfolk.toml import ConfigError


def app(
    folder: Annotated[Path, typer.Argument(help="Where your tables are; schema and runs go there too.")] = Path(),
    port: Annotated[int, typer.Option(help="Port on this machine; 0: any that is free.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Pages in a browser for those who do not type: choose tables, confirm the schema, compare, release, read.

    They run the commands and show them. Nothing leaves this machine, and nobody else gets in: the address has a secret.
    """
    from kinfolk.app.site import HOST, Site, serve

    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise ConfigError("the pages need two more packages: pip install 'kinfolk[app]'")
    if not folder.is_dir():
        raise ConfigError(f"folder={folder} is no folder: give the one where your tables are")
    if port:
        limits.checked("port", port)
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ConfigError(f"port={port} cannot be used: {error.strerror}; give another, or 0") from None
        port = int(probe.getsockname()[1])
    site = Site(folder.absolute(), port)

    def ready() -> None:
        console.print(f"Open {site.address} (on this machine; stop with Ctrl-C)", highlight=False, soft_wrap=True)
        if browser:
            webbrowser.open(site.address)

    serve(site, port, ready)

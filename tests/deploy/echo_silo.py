"""A silo that has a line and no data: it answers with what it is asked. `python -m tests.deploy.echo_silo FOLDER NAME
ADDRESS`, with the folder of certificate and key, and the key's name."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from kinfolk.deploy.keys import require_valid
from kinfolk.deploy.silo_line import Line, serve, signs_of_life


def main(folder: str, name: str, address: str) -> None:
    certificate, key = Path(folder) / "ca.crt", Path(folder) / name
    require_valid(certificate)
    line, second = (Line(address, certificate, key, 1000) for _ in range(2))
    with signs_of_life(second) as heard:
        serve(line, heard(lambda request: b"echo of " + request), partial(print, flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])

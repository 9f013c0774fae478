"""Follows docs/guides/five-users.md line by line: a server and four hospitals as five users of this machine.

    python -m benchmarks.trials.five_users [--installed] [--keep]

Needs root and makes users, whom it removes at the end (not with `--keep`). `--installed`: /opt/kinfolk is there, and
the lines that install it are left out. Refuses where one of the users, or /srv/trial, is there already.
"""

from __future__ import annotations

import argparse
import os
import pwd
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "five-users.md"
USERS = ("coordinator", "north", "south", "west", "east")
SHARED = Path("/srv/trial")


def commands(page: str, installed: bool) -> str:
    """The lines of a page that are set in as code, as a script. `installed`: without those that install."""
    lines = [line[4:] for line in page.splitlines() if line.startswith("    ")]
    if installed:
        lines = [line for line in lines if not re.match(r"python3 -m venv|/opt/kinfolk/bin/pip", line)]
    return "\n".join(lines) + "\n"


def known(name: str) -> bool:
    """Whether there is such a user."""
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--installed", action="store_true", help="/opt/kinfolk is there")
    parser.add_argument("--keep", action="store_true", help="leave users and folders there")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("only root can make users")
    if SHARED.exists() or any(map(known, USERS)):
        sys.exit(f"one of {', '.join(USERS)}, or {SHARED}, is there already")
    began = time.monotonic()
    try:
        script = commands(PAGE.read_text(), arguments.installed)
        words = ["bash", "-eu", "-o", "pipefail"]
        done = subprocess.run(words, input=script, text=True, check=False, stdout=subprocess.PIPE)
        failed = done.returncode != 0 or "NOT REFUSED" in done.stdout
        print(f"{done.stdout}\ncode={done.returncode} after {time.monotonic() - began:.0f} s")
    finally:
        if not arguments.keep:
            for name in filter(known, USERS):
                subprocess.run(["userdel", "--force", "--remove", name], check=False, stderr=subprocess.DEVNULL)
            shutil.rmtree(SHARED, ignore_errors=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()

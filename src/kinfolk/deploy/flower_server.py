"""The server's Flower app: carries the coordinator's questions to the silos, and their answers back.

Which node is which silo is decided by the node's key, which Flower has checked, and not by what a node says.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kinfolk.deploy.coordinator import Coordinator
from kinfolk.deploy.flower_processes import end_with
from kinfolk.deploy.keys import node_key
from kinfolk.deploy.message_relay import ANSWER, RECORD, REQUEST
from kinfolk.deploy.study import Study, read_study
from kinfolk.training import run_directory

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.serverapp import Grid, ServerApp

POLL = 0.5
"""Seconds between two looks for an answer."""
MOST_LOOKS = 15
"""Looks in a second, at all answers together."""


def server_app() -> ServerApp:
    """The server's app."""
    from flwr.serverapp import ServerApp

    app = ServerApp()
    app.main()(main)
    return app


def main(grid: Grid, context: Context) -> None:
    """Runs the study in the folder that the run's configuration names, from where it was left."""
    config = context.run_config
    end_with(int(config.get("ends-with", 0)))
    folder = Path(str(config["folder"]))
    conduct(
        grid,
        folder,
        round_seconds=float(config.get("round-seconds", 600)),
        wait_seconds=float(config.get("wait-seconds", 600)),
        test_keys=bool(config.get("insecure-test-keys", False)),
    )


def conduct(grid: Grid, folder: Path, *, round_seconds: float, wait_seconds: float, test_keys: bool = False) -> None:
    """All rounds that are left, then the last words and the statement."""
    study = read_study(folder)
    keys = node_keys(study, folder / "keys")
    with Coordinator(study, folder / "runs", test_keys=test_keys) as server:
        _wait(grid, keys, wait_seconds)
        while not server.finished() and server.affordable():
            ask = server.ask()
            began = time.monotonic()
            nodes = nodes_of(grid, keys)
            asked = {slot: nodes[slot] for slot in ask.cohort if slot in nodes}
            answers = exchange(grid, asked, ask.request, str(ask.number), round_seconds)
            nodes_of(grid, keys)  # fails where Flower is gone: then nobody was asked, and no round was lost
            server.take(ask, answers)
            if not study.level.server_pays:  # times and sizes of cohorts are secret
                run_directory.append_json(
                    server.run.private / "times.jsonl", {"seconds": round(time.monotonic() - began, 3)}
                )
        exchange(grid, nodes_of(grid, keys), server.last_words(), "end", round_seconds)
        server.finish()


def node_keys(study: Study, folder: Path) -> dict[bytes, int]:
    """For the public key of every silo's node, the silo's place in the roster."""
    found = {}
    for slot, client in enumerate(study.roster.clients):
        found[node_key(folder / f"{client}.pub")] = slot
    if len(found) < study.clients:
        raise ValueError("two silos have the same key: give each its own")
    return found


def nodes_of(grid: Grid, keys: Mapping[bytes, int]) -> dict[int, int]:
    """The nodes that are there now, by place. A node with another key is nobody."""
    return {keys[node.public_key]: node.node_id for node in grid.get_nodes() if node.public_key in keys}


def _wait(grid: Grid, keys: Mapping[bytes, int], seconds: float) -> None:
    """Waits for all silos, but not for ever: who is not there is a zero message."""
    until = time.monotonic() + seconds
    while len(nodes_of(grid, keys)) < len(keys) and time.monotonic() < until:
        time.sleep(POLL)


def exchange(grid: Grid, nodes: Mapping[int, int], request: bytes, group: str, seconds: float) -> dict[int, bytes]:
    """Asks nodes, by place, and collects what they answer in time. The first answer of a node counts.

    Every answer is fetched by a thread of its own: a node that announces an answer and does not send it keeps Flower
    waiting for minutes, and nobody else shall wait with it.
    """
    from flwr.app import ConfigRecord, Message, RecordDict

    slots: list[int] = list(nodes)
    answers: dict[int, bytes] = {}
    until, pause = time.monotonic() + seconds, max(POLL, len(slots) / MOST_LOOKS)

    def collect(name: str, slot: int) -> None:
        with suppress(Exception):  # whatever is wrong with one answer is wrong with that answer only
            while time.monotonic() < until:
                for reply in grid.pull_messages([name]):
                    if (answer := _answer(reply)) is not None:
                        answers.setdefault(slot, answer)
                    return
                time.sleep(pause)

    record = ConfigRecord({REQUEST: request})
    messages = [Message(RecordDict({RECORD: record}), nodes[s], "train", ttl=seconds, group_id=group) for s in slots]
    names = grid.push_messages(messages) if messages else []
    pairs = [(name, slot) for name, slot in zip(names, slots, strict=True) if name]
    threads = [threading.Thread(target=collect, args=pair, daemon=True) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return dict(answers)


def _answer(reply: Message) -> bytes | None:
    """The bytes in a reply, or nothing where it has another form."""
    try:
        answer = None if reply.has_error() else reply.content[RECORD][ANSWER]
    except Exception:
        return None
    return answer if isinstance(answer, bytes) else None

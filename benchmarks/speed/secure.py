"""What it takes that nobody has to trust the aggregator: a round with secure sums beside a plain one.

    python -m benchmarks.speed.secure [--silos 100] [--hidden 310] [--rounds 2] [--drop 0.1] [--flower] [--json]

In one process, with bytes between a coordinator and its workers, at client level: first with a trusted aggregator, then
with secure sums, where a tenth of the silos is lost before it has sent its vector. With `--flower`, the same two over
Flower as deployed, in separate processes, all of them there. Times are CPU seconds of a round, all parties together,
medians over `--rounds`; not counted are the first round, which compiles, and the last, after which no keys are made for
another. "With new sealing keys" is a round before which every silo's are made and checked anew, as in a run's first.
Over Flower times are medians of the seconds between what the server publishes.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.speed.federation import cpu, over_flower, study_of
from kinfolk import trees
from kinfolk.data.federation import Federation
from kinfolk.deploy import silo_program
from kinfolk.deploy.coordinator import Coordinator
from kinfolk.deploy.keys import signing_key, write_signing_key
from kinfolk.deploy.scaffold import policy_for
from kinfolk.deploy.server_sums import LIST, VECTOR, ServerSums
from kinfolk.deploy.silo_program import prepare_silo
from kinfolk.deploy.study import Study
from kinfolk.deploy.sums import Sums, sums_of
from kinfolk.deploy.worker import Worker
from kinfolk.privacy.clipping import GRID_STEPS
from kinfolk.privacy.levels import Level, PrivacyLevel
from kinfolk.privacy.noise_shares import usual
from kinfolk.types import Rows

TRUSTED = PrivacyLevel(Level.CLIENT, noise_multiplier=8.0, epsilon=100.0, delta=1e-3)


def client_level(study: Study, keys: dict[str, str] | None) -> Study:
    """The benchmark's study with whole clients as units; with keys, under secure sums."""
    privacy = TRUSTED if keys is None else replace(TRUSTED, aggregator="secure")
    experiment = replace(study.experiment, seed=None, privacy=privacy)
    return Study(replace(study.roster, keys=tuple((keys or {}).values())), experiment)


@contextmanager
def parties(
    study: Study, federation: Federation, folder: Path, keys: dict[str, Ed25519PrivateKey], public: dict[str, str]
) -> Iterator[tuple[Coordinator, list[Worker]]]:
    """A server and its silos; what is the same for all silos is prepared once."""
    known = cache(lambda _: sums_of(study))

    def once(_: Study) -> Sums:
        return known(study.digest)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(silo_program, "sums_of", once))
        server = stack.enter_context(Coordinator(study, folder / "server"))
        workers = []
        for slot, name in enumerate(study.roster.clients):
            policy = policy_for(study, name, silos=public, privacy=replace(study.experiment.privacy, epsilon=1000.0))
            size = int(federation.train.sizes[slot])
            rows = Rows(federation.train.x[slot, :size], federation.train.y[slot, :size], np.ones(size, bool))
            program = prepare_silo(study, policy, rows, key=keys.get(name))
            workers.append(stack.enter_context(Worker(program, folder / name)))
        yield server, workers


def plain_round(server: Coordinator, workers: list[Worker]) -> None:
    ask = server.ask()
    server.take(ask, {slot: workers[slot].answer(ask.request) for slot in ask.cohort})


def secure_rounds(server: Coordinator, workers: list[Worker], lost: int, anew: int) -> Iterator[dict[str, float]]:
    """CPU seconds of the exchanges of each round; `lost` silos, others every time, do not send their vector.

    `anew`: the round in which silos make new sealing keys for the next one's sum.
    """
    sums, spent = ServerSums(server), dict[str, float]()
    while not sums.finished:
        used, exchange, done = cpu(), sums.exchange, server.done
        first = 7 * done
        gone = {(first + k) % len(workers) for k in range(lost)} if exchange == VECTOR else set()
        if (exchange, done) == (LIST, anew):
            for worker in workers:
                assert worker._sums is not None
                worker._sums._session = None
        questions = sums.questions()
        sums.take({slot: workers[slot].answer(q) for slot, q in questions.items() if slot not in gone})
        spent[exchange] = spent.get(exchange, 0.0) + cpu() - used
        if server.done > done:
            yield spent
            spent = {}


def in_one_process(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    base, federation = study_of(arguments.silos, arguments.rounds + 3, arguments.hidden)
    names, lost = base.roster.clients, round(arguments.drop * arguments.silos)
    public = {name: write_signing_key(folder, f"key-{name}") for name in names}
    keys = {name: signing_key(folder / f"key-{name}") for name in names}
    found: dict[str, Any] = {}
    with parties(client_level(base, None), federation, folder / "trusted", {}, {}) as (server, workers):
        plain_round(server, workers)  # compiles
        times = []
        for _ in range(arguments.rounds):
            began = cpu()
            plain_round(server, workers)
            times.append(cpu() - began)
        found["weights"] = trees.size(server.study.model_shape)
        found["trusted, serialised"] = round(float(np.median(times)), 3)
    with parties(client_level(base, public), federation, folder / "secure", keys, public) as (server, workers):
        _, *rounds, first, _ = list(secure_rounds(server, workers, lost, arguments.rounds + 1))
        found["secure"] = round(float(np.median([sum(one.values()) for one in rounds])), 3)
        found["by exchange"] = {name: round(float(np.median([r[name] for r in rounds])), 3) for name in rounds[-1]}
        found["secure, with new sealing keys"] = round(sum(first.values()), 3)
        shares = usual(arguments.silos, None, None)
        found["terms"] = {"survivors": shares.survivors, "colluding": shares.colluding, "lost": lost}
        assert server.sums is not None
        found["noise of one share, grid steps"] = round(server.sums.agreement(0).share)
        found["grid steps of a clip"] = GRID_STEPS
    found["times as much"] = round(found["secure"] / found["trusted, serialised"], 2)
    return found


def over_network(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    base, federation = study_of(arguments.silos, arguments.rounds, arguments.hidden)
    found = {}
    for name, study in (("plain", client_level(base, None)), ("secure", client_level(base, {}))):
        (folder / name).mkdir()
        found[name] = over_flower(study, federation, folder / name)[1]
    ratio = found["secure"]["seconds_per_round"] / found["plain"]["seconds_per_round"]
    return {**found, "times as long": round(ratio, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--silos", type=int, default=100)
    parser.add_argument("--hidden", type=int, default=310, help="width of two hidden layers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--drop", type=float, default=0.1, help="the part of silos that is lost in every round")
    parser.add_argument("--flower", action="store_true", help="over Flower instead")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kf") as name:
        os.environ |= {"KINFOLK_KEYS": f"{name}/keys", "KINFOLK_LEDGERS": f"{name}/ledgers"}  # nobody's real ones
        found = (over_network if arguments.flower else in_one_process)(arguments, Path(name))
    if arguments.json:
        print(json.dumps({"silos": arguments.silos, **found}))
        return
    print(f"{arguments.silos} silos, {time.monotonic() - began:.0f} s in all")
    for key, value in found.items():
        print(f"{key}: {value}")


if __name__ == "__main__":
    main()

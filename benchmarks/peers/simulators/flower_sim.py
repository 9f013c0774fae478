"""Flower: its simulation runtime on Ray, with its server-side clipping and noise."""

from __future__ import annotations

from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers.simulators.flower_client import client_app
from benchmarks.peers.simulators.torch_model import build, common
from benchmarks.peers.simulators.turns import Task, Turn, serve


def main(task: Task, turn: Turn) -> list[tuple[Any, Any]]:
    server_app, model = ServerApp(), build(task)

    @server_app.main()
    def server(grid: Grid, context: Context) -> None:
        clients = len(task.sizes)
        plain = FedAvg(task.cohort / clients, 0.0, task.cohort, 0, clients)
        strategy = DifferentialPrivacyServerSideFixedClipping(plain, task.noise, task.clip, task.cohort)
        result = strategy.start(
            grid,
            ArrayRecord(model.state_dict()),
            task.rounds,
            evaluate_fn=lambda number, arrays: turn(),
        )
        model.load_state_dict(result.arrays.to_torch_state_dict())

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, len(task.sizes), backend_config=resources)
    return common(model)


if __name__ == "__main__":
    serve(main)

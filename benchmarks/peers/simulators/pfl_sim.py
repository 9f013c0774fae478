"""pfl: its simulated backend with central Gaussian noise, in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from torch.nn import functional

from benchmarks.peers.simulators.torch_model import build, common
from benchmarks.peers.simulators.turns import Task, Turn, serve


def main(task: Task, turn: Turn) -> list[tuple[Any, Any]]:
    np.random.seed(task.seed)
    torch.manual_seed(task.seed)
    network: Any = build(task)

    def loss(x: Any, y: Any, eval: bool = False) -> Any:
        network.eval() if eval else network.train()
        return functional.cross_entropy(network(x), y)

    network.loss = loss
    network.metrics = lambda x, y, eval=False: {}

    def rows(client: int) -> Dataset:
        x, y = task.rows(client)
        order = np.random.permutation(len(y))
        data = [torch.tensor(x[order])[:, None], torch.tensor(y[order]).long()]
        return Dataset(raw_data=data, user_id=str(client))

    clients = list(range(len(task.sizes)))
    data = FederatedDataset(rows, get_user_sampler("random", clients))
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(task.clip, task.noise))
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[noise])
    model = PyTorchModel(
        network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )

    class Turns(TrainingProcessCallback):
        def on_train_begin(self, *, model: Any) -> Any:
            turn()
            return super().on_train_begin(model=model)

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            turn()
            return super().after_central_iteration(aggregate_metrics, model, central_iteration=central_iteration)

    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(task.rounds, 10**9, task.cohort, None),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=task.step_size, local_batch_size=task.batch_size
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Turns()],
        send_metrics_to_platform=False,
    )
    return common(network)


if __name__ == "__main__":
    serve(main)

"""Flower's client, in a module of its own so that Ray's workers can import it."""

from __future__ import annotations

import os
from functools import lru_cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn import functional

from benchmarks.peers.simulators.torch_model import build
from benchmarks.peers.simulators.turns import Task, read

client_app = ClientApp()


@lru_cache
def task_here() -> Task:
    """The task, read once in every process."""
    return read(os.environ["PEER_TASK"])


@client_app.train()
def train(message: Message, context: Context) -> Message:
    task = task_here()
    torch.set_num_threads(1)
    model = build(task)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = task.rows(int(context.node_config["partition-id"]))
    images, labels = torch.tensor(x)[:, None], torch.tensor(y).long()
    optimizer = torch.optim.SGD(model.parameters(), lr=task.step_size)
    for batch in torch.randperm(len(y)).split(task.batch_size):
        optimizer.zero_grad()
        functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content=content, reply_to=message)

"""A client's model as ONNX, for prediction elsewhere: from encoded features to the target's units or probabilities."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from kinfolk.data.tables.schema import Schema
from kinfolk.serving.trained import ExportError, Fitted, Layers, notice

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

OPSET = 17
CLOSE = 1e-4
"""How far ONNX and NumPy may differ."""


def as_onnx(fitted: Fitted, client: str | None) -> bytes:
    """The model of a client (the shared one: None) as a file's content; onnxruntime has agreed with NumPy about it."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise ExportError("ONNX needs two more packages: pip install 'kinfolk[export]'") from error

    if client is None and fitted.shared is None:
        raise ExportError("this method has no shared model: export a client's own")
    place = None if client is None else fitted.ids.index(client)
    layers = fitted.model_of(place, "the shared model")
    model = _graph(onnx, fitted, layers)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).uniform(-1, 1, (64, layers[0][0].shape[0])).astype(np.float32)
    found = np.asarray(session.run(None, {"features": x})[0])
    wanted = _expected(fitted, layers, x)
    if not np.allclose(found, wanted, rtol=CLOSE, atol=CLOSE * max(1.0, float(np.abs(wanted).max()))):
        raise ExportError("onnxruntime and NumPy disagree about this model: please report this")
    return model.SerializeToString()


def _expected(fitted: Fitted, layers: Layers, x: np.ndarray) -> np.ndarray:
    from kinfolk.serving.predict_numpy import forward, outcome
    from kinfolk.serving.trained import target_facts

    numbers, chances = outcome(fitted.schema.task, target_facts(fitted.schema), forward(layers, x))
    return numbers[:, None] if chances is None else chances


def _graph(onnx: ModuleType, fitted: Fitted, layers: Layers) -> ModelProto:
    """Gemm and Relu nodes, then what turns the last output into the answer."""
    make, numpy_helper, kind = onnx.helper, onnx.numpy_helper, onnx.TensorProto.FLOAT
    nodes, constants, last = [], [], "features"

    def constant(name: str, values: ArrayLike) -> str:
        constants.append(numpy_helper.from_array(np.asarray(values, np.float32), name))
        return name

    for number, (weights, bias) in enumerate(layers):
        if number:
            nodes.append(make.make_node("Relu", [last], [f"positive{number}"]))
            last = f"positive{number}"
        names = [last, constant(f"weights{number}", weights), constant(f"bias{number}", bias)]
        nodes.append(make.make_node("Gemm", names, [f"output{number}"]))
        last = f"output{number}"
    width = _answer(make, nodes, constant, fitted.schema, last)
    inputs = make.make_tensor_value_info("features", kind, [None, layers[0][0].shape[0]])
    outputs = make.make_tensor_value_info("answer", kind, [None, width])
    graph = make.make_graph(nodes, "kinfolk", [inputs], [outputs], constants)
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", OPSET)], ir_version=8, producer_name="kinfolk")
    make.set_model_props(model, {name: json.dumps(value) for name, value in carried(fitted).items()})
    return model


def _answer(
    make: ModuleType, nodes: list[NodeProto], constant: Callable[[str, ArrayLike], str], schema: Schema, last: str
) -> int:
    """Adds the nodes that turn the last layer's output into the answer; returns how many numbers that has."""
    target, task, width = schema.target, schema.task, max(1, len(schema.classes))

    def add(kind: str, given: list[str], to: str, **options: int) -> str:
        nodes.append(make.make_node(kind, given, [to], **options))
        return to

    if task in ("number", "count"):
        assert target.low is not None
        assert target.high is not None
        if task == "number":
            moved = add("Mul", [last, constant("half", (target.high - target.low) / 2)], "moved")
            units = add("Add", [moved, constant("middle", (target.high + target.low) / 2)], "units")
        else:
            units = add("Mul", [add("Exp", [last], "rate"), constant("unit", target.high**0.5)], "units")
        add("Clip", [units, constant("low", target.low), constant("high", target.high)], "answer")
        return 1
    if task == "labels":
        add("Sigmoid", [last], "answer")
    elif task in ("survival", "ordinal"):
        steps = width - (task == "ordinal")
        soft, sums = add("Softplus", [last], "soft"), constant("sums", -np.triu(np.ones((steps, steps))))
        left = add("Exp", [add("MatMul", [soft, sums], "logarithm")], "left")  # without the event, by each end
        if task == "survival":
            add("Sub", [constant("one", 1.0), left], "answer")
        else:
            turned = np.eye(steps, width, 1) - np.eye(steps, width)
            add("Gemm", [left, constant("turned", turned), constant("first", np.eye(1, width)[0])], "answer")
    else:
        if task == "binary":
            last = add("Concat", [add("Sub", [last, last], "zero"), last], "both", axis=1)
        add("Softmax", [last], "answer", axis=1)
    return width


def carried(fitted: Fitted) -> dict[str, object]:
    """What a file says beside the numbers, each as JSON: names of inputs and answers, how columns are encoded."""
    schema = fitted.schema
    return {
        "target": schema.target.name,
        "task": schema.task,
        "answers": list(schema.classes) or [schema.target.name],
        **({"edges": list(schema.edges)} if schema.edges else {}),
        "features": list(schema.feature_names()),
        "columns": [asdict(column) for column in schema.columns],
        "notice": notice(fitted),
    }

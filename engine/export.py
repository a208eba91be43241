"""A checkpoint as an ONNX file, so that the net runs wherever there is an ONNX runtime.

Source: https://github.com/onnx/onnx/blob/main/docs/Operators.md
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..kernels.source import replace_file
from . import checkpoint
from .checkpoint import Checkpoint
from .errors import UsageError
from .layers import Conv2D, Dense, Dropout, MaxPool2D, NetSpec, Placed, ReLU, Shape, Sigmoid
from .nets import build

SUFFIX = ".onnx"
OPSET, IR_VERSION = 13, 7  # of 2020: old enough for every runtime, and Softmax is over one axis since 13
LIMIT_BYTES = 2**31 - 2**20  # protobuf files end at 2 GiB; the rest is for names
PATHS = ("data_dir", "out", "resume")  # options that mean nothing on another machine


def export_checkpoint(place: str, out: Path | None = None) -> dict[str, Any]:
    """Write the checkpoint `place`, or the latest of that run folder, to `out`, whole or not at all.

    Without `out` the file is NET.onnx in the run folder, or beside the checkpoint under its name. Returns what was
    written. Raises UsageError for no checkpoint or another suffix; ValueError when the checkpoint is damaged or too
    large; RuntimeError without onnx; OSError naming the file that cannot be written.
    """
    path = checkpoint.find(place)
    if out is not None and out.suffix != SUFFIX:
        raise UsageError(f"output: expected a file name that ends in {SUFFIX}, got {out}")
    onnx = _onnx()
    saved = checkpoint.load_finite(path)
    config = saved.config
    spec = build(config.net, config.image_size, config.width, len(saved.class_names))
    model = onnx_model(spec, saved.weights, saved.mean, saved.std, _properties(path, saved, spec))
    content = model.SerializeToString(deterministic=True)
    onnx.checker.check_model(content, full_check=True)
    target = out or (Path(place) / f"{spec.name}{SUFFIX}" if Path(place).is_dir() else path.with_suffix(SUFFIX))
    try:
        replace_file(target, content)
    except OSError as error:
        raise OSError(f"export: expected to write {target}, got: {(error.strerror or str(error)).lower()}") from error
    return {"file": str(target), "bytes": len(content), "net": spec.name, "step": saved.step,
            "in_shape": spec.in_shape, "classes": spec.classes}


def _onnx() -> Any:
    """The module onnx. Raises RuntimeError that says how to get it."""
    try:
        import onnx
    except ImportError:
        raise RuntimeError("export: expected onnx, got none (pip install 'sprint-cnn[export]')") from None
    return onnx


def _properties(path: Path, saved: Checkpoint, spec: NetSpec) -> dict[str, str]:
    """What the file says about itself; values that are no text are JSON."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    options = {name: value for name, value in saved.config.to_json().items() if name not in PATHS}
    provenance = {"checkpoint": path.name, "sha256": digest, "step": saved.step, "epoch": saved.epoch,
                  "options": options}
    return {"sprint_version": __version__, "net": spec.name, "note": spec.note,
            "class_names": json.dumps(saved.class_names, ensure_ascii=False), "provenance": json.dumps(provenance)}


def onnx_model(spec: NetSpec, weights: dict[str, np.ndarray], mean: list[float], std: list[float],
               properties: dict[str, str]) -> Any:
    """The net as an onnx.ModelProto, inference form.

    Its input is images (N,C,H,W) float32, pixels / 255, any N; its outputs are probabilities and logits, (N,K)
    float32. weights: by name, float32, of the net's shapes; mean, std: per channel. Raises ValueError when the weights
    are not the net's, or more than one file can hold; RuntimeError without onnx.
    """
    _check_weights(spec, weights)
    onnx = _onnx()
    graph = _Graph(onnx)
    x = graph.add("Sub", "centred", "images", graph.constant("mean", _per_channel(mean)))
    x = graph.add("Div", "normalised", x, graph.constant("std", _per_channel(std)))
    for placed in spec.placed[:-1]:
        keys = [graph.constant(name, weights[name]) for name in placed.parameter_shapes]
        x = _layer(graph, placed, x, keys)
    graph.flatten("logits", x)
    logits = graph.rename_last("logits")
    graph.add("Softmax", "probabilities", logits, axis=1)
    model = onnx.helper.make_model(
        graph.proto(spec), opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=IR_VERSION,
        producer_name="sprint", producer_version=__version__)
    onnx.helper.set_model_props(model, properties)
    return model


def _check_weights(spec: NetSpec, weights: dict[str, np.ndarray]) -> None:
    wanted, found = spec.parameter_shapes, {name: array.shape for name, array in weights.items()}
    for name in wanted | found:
        if wanted.get(name) != found.get(name):
            want, got = (shapes.get(name, "none") for shapes in (wanted, found))
            raise ValueError(f"export: expected {name} of shape {want} in {spec.name}, got {got}")
    size = sum(array.nbytes for array in weights.values())
    if size > LIMIT_BYTES:
        raise ValueError(f"export: expected weights of at most {LIMIT_BYTES:,} bytes, which one ONNX file holds, "
                         f"got {size:,}")


def _per_channel(values: list[float]) -> np.ndarray:
    """(C,1,1) float32."""
    return np.array(values, np.float32)[:, None, None]


def _layer(graph: _Graph, placed: Placed, x: str, keys: list[str]) -> str:
    """Add one layer behind the value `x`; keys: its weights. Returns the value of its output."""
    layer, name = placed.layer, placed.name
    match layer:
        case Conv2D():
            return graph.add("Conv", name, graph.spatial(name, x, placed.in_shape), *keys,
                             kernel_shape=layer.window, strides=layer.stride, pads=layer.pad * 2)
        case MaxPool2D():
            return graph.add("MaxPool", name, graph.spatial(name, x, placed.in_shape),
                             kernel_shape=layer.window, strides=layer.stride, pads=layer.pad * 2)
        case Dense():
            return graph.add("Gemm", name, graph.flatten(name, x), *keys, transB=1)
        case ReLU():
            return graph.add("Relu", name, x)
        case Sigmoid():
            return graph.add("Sigmoid", name, x)
    assert isinstance(layer, Dropout)  # acts in training only
    return x


class _Graph:
    """Nodes in the order of computation, each with one output that has the node's name.

    is_flat: whether the last value is (N,D), and not (N,C,H,W).
    """

    def __init__(self, onnx: Any) -> None:
        self.onnx, self.is_flat = onnx, False
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._names: set[str] = set()

    def add(self, op: str, name: str, *inputs: str, **attributes: Any) -> str:
        """A node; two layers of one name (two pools behind one convolution) get different ones."""
        if name in self._names:
            name += f".{len(self.nodes)}"
        self._names.add(name)
        self.nodes.append(self.onnx.helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, name: str, array: np.ndarray) -> str:
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def flatten(self, name: str, x: str) -> str:
        """x as (N, C*H*W) for the layer `name`."""
        if self.is_flat:
            return x
        self.is_flat = True
        return self.add("Flatten", f"{name}.flat", x, axis=1)

    def spatial(self, name: str, x: str, shape: Shape) -> str:
        """x as (N,C,H,W) for the layer `name`."""
        if not self.is_flat:
            return x
        self.is_flat = False
        return self.add("Reshape", f"{name}.shaped", x, self.constant(f"{name}.shape", np.array([0, *shape])))

    def rename_last(self, name: str) -> str:
        self.nodes[-1].output[0] = name
        return name

    def proto(self, spec: NetSpec) -> Any:
        """The onnx.GraphProto, with a batch of any size."""
        def value(name: str, shape: tuple[int, ...], text: str) -> Any:
            kind = self.onnx.TensorProto.FLOAT
            return self.onnx.helper.make_tensor_value_info(name, kind, ["N", *shape], doc_string=text)

        images = value("images", spec.in_shape, "pixels / 255, so 0..1; a grey image has its values in every channel")
        outputs = [value("probabilities", (spec.classes,), "softmax of the logits, in the order of class_names"),
                   value("logits", (spec.classes,), "before the softmax")]
        return self.onnx.helper.make_graph(self.nodes, spec.name, [images], outputs, self.constants)

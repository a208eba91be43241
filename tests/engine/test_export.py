"""Exported nets, run by onnx's own NumPy evaluator, against the network that was trained; and mistakes in one line."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import onnx
import pytest
import sprint
from onnx.reference import ReferenceEvaluator
from sprint.__main__ import run
from sprint.engine import checkpoint, nets
from sprint.engine.checkpoint import Checkpoint
from sprint.engine.config import TrainConfig
from sprint.engine.data import Loader
from sprint.engine.export import LIMIT_BYTES, export_checkpoint, onnx_model
from sprint.engine.layers import Conv2D, Dense, Dropout, MaxPool2D, NetSpec, ReLU, Sigmoid, SoftmaxCrossEntropy
from sprint.engine.network import Network
from sprint.engine.session import open_session

NETS = {
    "cnn-a": nets.build("cnn-a", 28, width=0.1, classes=7),
    "lenet": nets.build("lenet", 17, width=0.2),
    "mlp": nets.build("mlp", 3, width=0.002, classes=5),
    "odd": NetSpec("odd", (2, 9, 12), (
        Conv2D(5, (3, 2), (2, 1), (0, 1)), ReLU(), MaxPool2D((2, 3), (1, 2), (1, 0)), Conv2D(7, (2, 3), (1, 1), (1, 0)),
        Sigmoid(), Dropout(0.4), MaxPool2D((3, 2), (2, 1), (2, 1)), MaxPool2D((2, 3), (1, 2), (0, 2)), Dense(6), ReLU(),
        Dropout(0.9), Dense(4), SoftmaxCrossEntropy())),
    "no dense": NetSpec("no dense", (1, 5, 4), (
        Dropout(), Conv2D(3, (5, 2)), MaxPool2D((1, 3)), SoftmaxCrossEntropy())),
    "dense first": NetSpec("dense first", (2, 2, 3), (
        Dense(5), Sigmoid(), Conv2D(4, (2, 1), (1, 1), (1, 0)), Dense(3), ReLU(), SoftmaxCrossEntropy())),
}
CLASS_NAMES = ["zebra", "ant", 'a"b', "ü", "0"]


def trained(spec, device, rng):
    """A network whose weights all matter: the initial ones have zero biases and a faint last layer."""
    net = Network(spec, device, 3, conv_algo="explicit")
    net.weights.upload({name: rng.normal(0.1, 0.5, shape).astype(np.float32)
                        for name, shape in spec.parameter_shapes.items()})
    return net


def forward(net, images, mean, std):
    """Logits (N,K) of images (N,C,H,W) in 0..1 by the network itself."""
    x = (images.transpose(1, 0, 2, 3) - np.reshape(mean, (-1, 1, 1, 1))) / np.reshape(std, (-1, 1, 1, 1))
    return net.forward(np.ascontiguousarray(x, np.float32)).T.copy()


def softmax(logits):
    e = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def close(found, expected):
    """Float32 sums in another order: 1e-4 of the greatest."""
    assert found.dtype == np.float32 and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("samples", [1, 3])
def test_onnx_computes_what_the_network_computes(name, samples, fast, rng):
    spec = NETS[name]
    net = trained(spec, fast, rng)
    mean, std = np.linspace(0.2, 0.6, spec.in_shape[0]).tolist(), np.linspace(0.3, 0.1, spec.in_shape[0]).tolist()
    model = onnx_model(spec, net.weights.download(), mean, std, {})
    onnx.checker.check_model(model, full_check=True)
    images = rng.random((samples, *spec.in_shape), np.float32)
    probabilities, logits = ReferenceEvaluator(model).run(["probabilities", "logits"], {"images": images})
    expected = forward(net, images, mean, std)
    assert np.ptp(expected, axis=1).min() > 1e-3  # no class is like the others
    close(logits, expected)
    close(probabilities, softmax(expected))


def test_the_graph_is_plain_and_old_enough_for_every_runtime(fast, rng):
    spec = NETS["odd"]
    model = onnx_model(spec, trained(spec, fast, rng).weights.download(), [0.5, 0.5], [1.0, 1.0], {})
    assert [node.op_type for node in model.graph.node] == [
        "Sub", "Div", "Conv", "Relu", "MaxPool", "Conv", "Sigmoid", "MaxPool", "MaxPool", "Flatten", "Gemm", "Relu",
        "Gemm", "Softmax"]
    assert [entry.version for entry in model.opset_import] == [13] and model.ir_version == 7
    assert {entry.name for entry in model.graph.initializer} == {"mean", "std", *spec.parameter_shapes}
    dims = {value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in (*model.graph.input, *model.graph.output)}
    assert dims == {"images": ["N", 2, 9, 12], "probabilities": ["N", 4], "logits": ["N", 4]}


def test_weights_that_are_not_the_nets_are_named(fast, rng):
    spec = NETS["mlp"]
    weights = trained(spec, fast, rng).weights.download()
    for odd, message in ((weights | {"fc1.w": weights["fc1.w"].T}, r"fc1\.w of shape \(8, 27\) in mlp, got \(27, 8\)"),
                         (weights | {"fc9.w": weights["fc1.w"]}, r"fc9\.w of shape none in mlp, got \(8, 27\)"),
                         ({"fc1.w": weights["fc1.w"]}, r"fc1\.b of shape \(8,\) in mlp, got none")):
        with pytest.raises(ValueError, match=f"^export: expected {message}$"):
            onnx_model(spec, odd, [0.0] * 3, [1.0] * 3, {})


def test_more_than_one_file_can_hold_is_refused():
    spec = NetSpec("vast", (1, 1, 2**15), (Dense(2**14), SoftmaxCrossEntropy()))
    weights = {name: np.broadcast_to(np.float32(0), shape) for name, shape in spec.parameter_shapes.items()}
    with pytest.raises(ValueError, match=f"at most {LIMIT_BYTES:,} bytes, which .* holds, got 2,147,549,184$"):
        onnx_model(spec, weights, [0.0], [1.0], {})


# ---- files ------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, fast, rng):
    """A run folder with two checkpoints of a small cnn-a on synthetic images; its latest is of step 9."""
    config = TrainConfig("cnn-a", data="synthetic", image_size=12, width=0.1, limit=7, subbatch=3,
                         device="host", device_threads=1, conv_algo="explicit", data_dir="/somewhere/secret")
    net = trained(nets.build("cnn-a", 12, 0.1, 5), fast, rng)
    home = tmp_path / "run" / "checkpoints"
    home.mkdir(parents=True)
    for step in (4, 9):
        weights = {name: array * np.float32(step / 9) for name, array in net.weights.download().items()}
        checkpoint.add(home, Checkpoint(
            config=config, step=step, epoch=1.5, weights=weights, optimizer={}, worker={}, choices={},
            class_names=CLASS_NAMES, image_shape=(3, 12, 12), mean=[0.3, 0.4, 0.6], std=[0.5, 0.2, 0.3]))
    return tmp_path / "run"


def call(capsys, *arguments):
    """Run sprint export in this process: (exit code, standard output, standard error)."""
    code = run(["export", *map(str, arguments)])
    return code, *capsys.readouterr()


def one_line(result, code):
    """The message of a failure."""
    found, out, err = result
    assert (found, out) == (code, "") and err.startswith("sprint: ") and err.count("\n") == 1, result
    return err


def test_the_file_scores_images_as_the_run_does(folder, capsys):
    code, out, err = call(capsys, folder)
    path = folder / "cnn-a.onnx"
    size = path.stat().st_size
    assert (code, err) == (0, "")
    assert out == f"wrote {path}: cnn-a, step 9, images (3, 12, 12) -> 5 probabilities, {size:,} bytes\n"
    onnx.checker.check_model(str(path), full_check=True)
    saved = checkpoint.load(checkpoint.find(folder))
    session = open_session(saved.config, saved)
    feeder = session.feeder()
    with Loader(session.dataset.test, 3, shuffle=False, epochs=1) as loader:
        for batch in loader:  # of 3, 3 and 1
            x, _, _ = feeder.put(batch)
            images = (batch.images / 255).astype(np.float32).transpose(0, 3, 1, 2)
            found, = ReferenceEvaluator(str(path)).run(["logits"], {"images": images})
            close(found, session.network.forward(x).T)


def test_the_file_says_what_it_is(folder):
    export_checkpoint(str(folder))
    model = onnx.load(folder / "cnn-a.onnx")
    said = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(said["class_names"]) == CLASS_NAMES
    assert said["sprint_version"] == model.producer_version == sprint.__version__ and said["net"] == "cnn-a"
    assert "reconstruction" in said["note"]
    origin = json.loads(said["provenance"])
    assert origin["checkpoint"] == "step-000000009.safetensors" and len(origin["sha256"]) == 64
    assert (origin["step"], origin["epoch"], origin["options"]["data"]) == (9, 1.5, "synthetic")
    assert str(folder) not in str(said) and "secret" not in str(said)


def test_one_checkpoint_makes_equal_bytes_wherever_they_go(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = folder / "checkpoints" / "step-000000004.safetensors"
    for arguments in ((one, "-o", "a.onnx"), (one,), (folder, "--output", "b.onnx")):
        assert call(capsys, *arguments)[0] == 0
    content = (tmp_path / "a.onnx").read_bytes()
    assert content == one.with_suffix(".onnx").read_bytes() != (tmp_path / "b.onnx").read_bytes()
    assert not (folder / "cnn-a.onnx").exists()


def test_without_onnx_one_line_says_how_to_get_it(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    message = one_line(call(capsys, folder), 1)
    assert message == "sprint: export: expected onnx, got none (pip install 'sprint-cnn[export]')\n"


def test_requests_that_cannot_be_served_are_one_line_and_exit_code_2(folder, tmp_path, capsys):
    one = folder / "checkpoints" / "step-000000004.safetensors"
    before = one.read_bytes()
    (tmp_path / "folder.onnx").mkdir()
    assert "expected a checkpoint or a run folder" in one_line(call(capsys, tmp_path), 2)
    assert "ends in .onnx, got" in one_line(call(capsys, one, "-o", one), 2)
    for out in ("folder.onnx", "nowhere/c.onnx"):
        assert str(tmp_path / out) in one_line(call(capsys, folder, "-o", tmp_path / out), 2)
    assert "/proc/c.onnx" in one_line(call(capsys, folder, "-o", "/proc/c.onnx"), 2)
    assert "sprint export --help" in one_line(call(capsys), 2)
    assert one.read_bytes() == before and not list(tmp_path.rglob("*.onnx/*"))


def test_a_damaged_checkpoint_is_one_line_and_writes_nothing(folder, capsys):
    latest = folder / "checkpoints" / "step-000000009.safetensors"
    latest.write_bytes(latest.read_bytes()[:-5])
    message = one_line(call(capsys, folder), 1)
    assert message.startswith("sprint: checkpoint: expected ") and message.endswith(f"{latest}\n")
    assert [path.name for path in folder.iterdir()] == ["checkpoints"]


def test_a_full_disk_leaves_the_old_file(folder, capsys, monkeypatch):
    path = folder / "cnn-a.onnx"
    path.write_bytes(b"old")

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    message = one_line(call(capsys, folder), 1)
    assert message == f"sprint: export: expected to write {path}, got: no space left on device\n"
    assert path.read_bytes() == b"old" and {p.name for p in folder.iterdir()} == {"checkpoints", "cnn-a.onnx"}


def test_the_command_is_listed(capsys):
    assert run([]) == 0 and " export " in capsys.readouterr().out

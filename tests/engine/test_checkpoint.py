from __future__ import annotations

import hashlib
import json
import os
from dataclasses import fields, replace

import numpy as np
import pytest
from sprint.engine import checkpoint
from sprint.engine.checkpoint import Checkpoint
from sprint.engine.config import TrainConfig
from sprint.engine.errors import UsageError
from sprint.engine.evaluate import evaluate_checkpoint
from sprint.engine.export import export_checkpoint

RNG = np.random.default_rng(5)
STATE = Checkpoint(
    config=TrainConfig("cnn-a", image_size=28, lr=0.1), step=17, epoch=1.25,
    weights={"conv1.w": RNG.standard_normal((5, 3, 2, 3), np.float32), "conv1.b": np.zeros(5, np.float32)},
    optimizer={"momentum": RNG.standard_normal(192, np.float32)},
    worker={"epoch": 1, "position": 9, "samples": 36, "seed": 2**62}, choices={"host:x conv": "explicit"},
    class_names=["a", 'b"c', "ü"], image_shape=(3, 28, 28), mean=[0.1, 0.2, 0.3], std=[1.0, 2.0, 1 / 3])


def assert_equal(a, b):
    for field in fields(Checkpoint):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if field.name in ("weights", "optimizer"):
            assert list(left) and set(left) == set(right)
            for name in left:
                assert left[name].dtype == right[name].dtype and left[name].shape == right[name].shape
                assert left[name].tobytes() == right[name].tobytes()
        else:
            assert left == right, field.name


def test_what_is_saved_comes_back_bit_for_bit(tmp_path):
    odd = np.array([np.nan, -0.0, np.inf, 1e-45, 3.4e38], np.float32)
    state = replace(STATE, weights={**STATE.weights, "odd.b": odd, "none.w": np.empty((0, 4), np.float32)})
    checkpoint.save(tmp_path / "c.safetensors", state)
    assert_equal(checkpoint.load(tmp_path / "c.safetensors"), state)


def test_an_optimizer_without_state_is_fine(tmp_path):
    checkpoint.save(tmp_path / "c.safetensors", replace(STATE, optimizer={}))
    assert checkpoint.load(tmp_path / "c.safetensors").optimizer == {}


def test_others_can_read_the_weights(tmp_path):
    from safetensors.numpy import load_file

    checkpoint.save(tmp_path / "c.safetensors", STATE)
    arrays = load_file(tmp_path / "c.safetensors")
    np.testing.assert_array_equal(arrays["weights.conv1.w"], STATE.weights["conv1.w"])


def damaged(path):
    with pytest.raises(ValueError) as error:
        checkpoint.load(path)
    message = str(error.value)
    assert message.startswith("checkpoint: expected ") and message.endswith(f": {path}") and "\n" not in message
    return message


def test_a_cut_checkpoint_is_named_wherever_it_was_cut(tmp_path):
    path = tmp_path / "c.safetensors"
    checkpoint.save(path, STATE)
    whole = path.read_bytes()
    for length in (0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 769, len(whole) - 4, len(whole) - 1):
        path.write_bytes(whole[:length])
        damaged(path)
    path.write_bytes(whole + b"\0")
    damaged(path)


def test_a_changed_byte_is_found_wherever_it_is(tmp_path):
    path = tmp_path / "c.safetensors"
    checkpoint.save(path, STATE)
    whole = bytearray(path.read_bytes())
    for place in [*range(8, len(whole), 41), len(whole) - 1]:
        broken = bytearray(whole)
        broken[place] ^= 1
        path.write_bytes(broken)
        try:
            found = checkpoint.load(path)
        except ValueError as error:
            assert str(path) in str(error) and "\n" not in str(error)
        else:
            assert_equal(found, STATE)  # white space of the header is nobody's contents


def test_a_file_of_another_kind_or_format_is_named(tmp_path):
    from safetensors.numpy import save_file

    path = tmp_path / "c.safetensors"
    path.write_text("not a checkpoint at all, but long enough to look like one")
    damaged(path)
    save_file({"w": np.ones(3, np.float32)}, path)
    assert "got 'none'" in damaged(path)
    save_file({"w": np.ones(3, np.float32)}, path, {"format": "sprint 99"})
    assert "got 'sprint 99'" in damaged(path)


def write(path, facts, arrays=STATE.weights):
    """A checkpoint with these facts (or this text) whose checksum holds."""
    from safetensors.numpy import save_file

    text = facts if isinstance(facts, str) else json.dumps(facts)
    arrays = {f"weights.{name}": array for name, array in arrays.items()}
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(f"{name}<f4{arrays[name].shape}".encode() + arrays[name].tobytes())
    save_file(arrays, path, {"format": "sprint 1", "sprint": text, "sha256": digest.hexdigest()})


FACTS = {field.name: getattr(STATE, field.name) for field in fields(Checkpoint)
         if field.name not in ("weights", "optimizer")} | {"config": STATE.config.to_json()}


@pytest.mark.parametrize("name, value", [
    ("config", None), ("config", []), ("config", {}), ("config", {"net": "cnn-a", "devices": 10**12}),
    ("config", {"net": "cnn-a", "colour": 1}), ("step", "17"), ("step", 1.5), ("step", True), ("step", -1),
    ("epoch", "1"), ("epoch", -1), ("epoch", float("nan")), ("worker", None), ("worker", [1]), ("choices", {"a": 1}),
    ("class_names", "ab"), ("class_names", [1]), ("image_shape", [3, 28]), ("image_shape", [3, 0, 28]),
    ("image_shape", [3, -28, 28]), ("image_shape", [3, 28.0, 28]), ("image_shape", [4, 28, 28]), ("image_shape", 3),
    ("mean", [0.1]), ("mean", [0.1, 0.2, float("nan")]), ("mean", [0.1, 0.2, 10**400]), ("std", [1.0] * 4),
    ("std", [1.0, 0.0, 1.0]), ("std", ["1"] * 3), ("worker", "x" * 1000), ("colour", 1),
])
def test_a_fact_that_cannot_be_is_named_though_the_checksum_holds(tmp_path, name, value):
    path = tmp_path / "c.safetensors"
    write(path, FACTS)
    assert checkpoint.load(path).step == 17
    write(path, FACTS | {name: value})
    message = damaged(path)
    assert name in message or "channels" in message
    assert len(message) < 400 + len(str(path))


@pytest.mark.parametrize("name", list(FACTS))
def test_a_fact_that_is_missing_is_named(tmp_path, name):
    write(tmp_path / "c.safetensors", {key: value for key, value in FACTS.items() if key != name})
    assert f"as {name}, got none" in damaged(tmp_path / "c.safetensors")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", "[" * 100_000])
def test_facts_that_are_no_json_object_are_one_line(tmp_path, text):
    write(tmp_path / "c.safetensors", text)
    damaged(tmp_path / "c.safetensors")


@pytest.mark.parametrize("use", [lambda path: evaluate_checkpoint(path, {}), export_checkpoint])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_neither_scored_nor_exported(tmp_path, use, value):
    path = tmp_path / "c.safetensors"
    checkpoint.save(path, replace(STATE, weights=STATE.weights | {"conv1.b": np.array([0, value], np.float32)}))
    with pytest.raises(ValueError, match=rf"^checkpoint: expected finite weights, got others in conv1.b: {path}$"):
        use(str(path))


def test_saving_never_leaves_half_a_file(tmp_path, monkeypatch):
    path = tmp_path / "c.safetensors"
    checkpoint.save(path, STATE)

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    for function in ("replace", "fdopen"):
        monkeypatch.setattr(os, function, full)
        with pytest.raises(OSError, match=f"expected to write {path}, got: no space left on device"):
            checkpoint.save(path, replace(STATE, step=18))
        monkeypatch.undo()
        assert [p.name for p in tmp_path.iterdir()] == [path.name]
        assert checkpoint.load(path).step == 17


def test_a_run_keeps_its_newest_checkpoints_and_points_at_the_last(tmp_path):
    for step in (9, 10, 11, 999, 1000):
        last = checkpoint.add(tmp_path, replace(STATE, step=step))
    assert [checkpoint.load(path).step for path in checkpoint.newest_first(tmp_path)] == [1000, 999, 11]
    assert checkpoint.find(tmp_path) == last == checkpoint.find(str(last))


def test_find_takes_a_run_folder_and_names_a_place_without_any(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    path = checkpoint.add(tmp_path / "run" / "checkpoints", STATE)
    assert checkpoint.find(tmp_path / "run") == path
    for place in ("empty", "nowhere"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(UsageError, match=f"got {tmp_path / place}$"):
            checkpoint.find(tmp_path / place)


def test_the_newest_good_one_is_found_behind_damaged_ones(tmp_path):
    folders = [tmp_path / "new", tmp_path / "old"]
    for folder in folders:
        (folder / "checkpoints").mkdir(parents=True)
        paths = [checkpoint.add(folder / "checkpoints", replace(STATE, step=step)) for step in (1, 2, 3)]
        paths[2].write_bytes(paths[2].read_bytes()[:-9])
        paths[1].write_bytes(b"")
    tried = list(checkpoint.newest_good(iter(folders)))
    assert [path.name for path, _ in tried] == [f"step-{step:09d}.safetensors" for step in (3, 2, 1)]
    assert [isinstance(found, ValueError) for _, found in tried] == [True, True, False]
    assert tried[-1][1].step == 1 and tried[-1][0].parent.parent == folders[0]
    tried[-1][0].unlink()
    assert [found.step for _, found in checkpoint.newest_good(iter(folders)) if isinstance(found,
    Checkpoint)] == [1]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\0", b"../step-000000017.safetensors", b"/etc/passwd",
                                     b"step-000000009.safetensors\n", b"step-000000099.safetensors", b"x" * 5000])
def test_a_damaged_pointer_to_the_latest_is_one_line_with_a_cure(tmp_path, content):
    folder = tmp_path / "run" / "checkpoints"
    (folder / "step-000000099.safetensors").mkdir(parents=True)
    checkpoint.add(folder, STATE)
    checkpoint.add(tmp_path / "run", STATE)
    (folder / "latest").write_bytes(content)
    with pytest.raises(ValueError) as error:
        checkpoint.find(tmp_path / "run" / "checkpoints")
    message = str(error.value)
    assert message.startswith("checkpoint: ") and f"{folder / 'latest'}: name a checkpoint" in message
    assert "\n" not in message and len(message) < 400


def test_a_folder_named_like_a_checkpoint_is_none(tmp_path):
    folder, odd = tmp_path / "checkpoints", "step-000000099.safetensors"
    (folder / odd).mkdir(parents=True)
    for step in (1, 2, 3, 4):
        checkpoint.add(folder, replace(STATE, step=step))
    assert checkpoint.find(folder).name == "step-000000004.safetensors"
    assert [found.step for _, found in checkpoint.newest_good(iter([tmp_path]))] == [4]
    with pytest.raises(OSError, match=f"checkpoint: expected a file to read, got: .*: {folder / odd}: name"):
        checkpoint.load(folder / odd)
    checkpoint.put_aside(folder, 4)
    assert (folder / "step-000000099.old").is_dir()


def test_a_checkpoint_that_cannot_be_read_is_passed_over(tmp_path, monkeypatch):
    (tmp_path / "checkpoints").mkdir()
    for step in (1, 2):
        checkpoint.add(tmp_path / "checkpoints", replace(STATE, step=step))
    whole = checkpoint.load

    def load(path):
        if "2" in path.name:
            raise OSError(5, "Input/output error", str(path))
        return whole(path)

    monkeypatch.setattr(checkpoint, "load", load)
    assert [isinstance(found, Checkpoint) for _, found in checkpoint.newest_good(iter([tmp_path]))] == [False, True]


def test_later_checkpoints_are_put_aside_not_deleted(tmp_path):
    for step in (5, 6, 7):
        checkpoint.add(tmp_path, replace(STATE, step=step))
    checkpoint.put_aside(tmp_path, 5)
    assert [path.name for path in checkpoint.newest_first(tmp_path)] == ["step-000000005.safetensors"]
    assert checkpoint.load(tmp_path / "step-000000007.old").step == 7


def test_the_facts_are_json_in_the_header(tmp_path):
    from safetensors import safe_open

    checkpoint.save(tmp_path / "c.safetensors", STATE)
    with safe_open(tmp_path / "c.safetensors", framework="np") as file:
        facts = json.loads(file.metadata()["sprint"])
    assert facts["config"]["net"] == "cnn-a" and facts["step"] == 17 and facts["class_names"] == STATE.class_names

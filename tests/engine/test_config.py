from __future__ import annotations

import dataclasses
import json
import math

import pytest
from sprint.engine.config import TrainConfig, flag
from sprint.engine.errors import UsageError


def test_it_survives_json():
    config = TrainConfig("cnn-a", data="mnist", image_size=28, width=0.5, steps=7, schedule="warmup:3+cosine")
    assert TrainConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_options_missing_from_json_take_their_default():
    assert TrainConfig.from_json({"net": "mlp", "lr": 0.5}) == TrainConfig("mlp", lr=0.5)


@pytest.mark.parametrize("data, named", [({"net": "mlp", "lrate": 1}, "'lrate'"), ({"lr": 0.1}, "'net'")])
def test_json_with_a_stranger_or_without_a_net_is_refused(data, named):
    with pytest.raises(UsageError, match=named):
        TrainConfig.from_json(data)


@pytest.mark.parametrize("option, value", [
    ("subbatch", 0), ("subbatch", -1), ("subbatch", 2.5), ("subbatch", True), ("subbatch", "4"), ("subbatch",
    None),
    ("epochs", 0), ("steps", 0), ("lr", 0), ("lr", -0.1), ("lr", math.nan), ("lr", math.inf), ("lr", "0.1"),
    ("lr", True),
    ("momentum", 1), ("momentum", -0.1), ("momentum", math.nan), ("weight_decay", -1e-9), ("weight_decay",
    math.inf),
    ("width", 0), ("width", -1), ("image_size", 0), ("seed", -1), ("seed", 2**63), ("workspace", 0),
    ("workspace", 0.5),
    ("device_threads", 0), ("device_threads", 1025), ("device_threads", 2**31), ("subbatch", 2**31),
    ("subbatch", 2**63),
    ("lr", 1e39), ("weight_decay", 1e39), ("device", "host:99999999999"), ("device", "cuda:10000"),
    ("log_every", 0), ("classes", 1), ("classes", 1_000_001), ("devices", 0), ("devices", 257), ("devices", 10**12),
    ("limit", 0), ("on_bad_image", "hide"),
    ("optimizer", "adam"), ("conv_algo", "winograd"), ("math",
    "fp16"),
    ("device", "gpu"), ("device", "host:"), ("device", "host:-1"), ("device", "cuda:x"), ("device", "auto:0"),
    ("schedule", "linear"), ("out", ""), ("augment", 1), ("data", 3), ("net", None),
])
def test_a_value_that_does_not_fit_is_refused_in_one_line_with_the_options_name(option, value):
    with pytest.raises(UsageError) as error:
        TrainConfig(**{"net": "cnn-a", option: value})
    message = str(error.value)
    assert message.startswith(flag(option)[2:] + ": expected ") and "got " in message and "\n" not in message


def test_the_limits_themselves_are_allowed():
    TrainConfig("cnn-a", subbatch=1, epochs=1, steps=1, momentum=0, weight_decay=0, seed=2**63 - 1,
    workspace=1,
                image_size=1, lr=1, width=1e-3, device="cuda:12", device_threads=1, log_every=1, classes=1_000_000)
    TrainConfig("cnn-a", algorithm="sprint", devices=256)


OTHER = {
    "net": "mlp", "data": "mnist", "data_dir": "/d", "augment": True, "image_size": 28, "width": 0.5,
    "epochs": 9, "steps": 9,
    "subbatch": 9, "lr": 0.9, "schedule": "constant", "optimizer": "sgd", "momentum": 0.1,
    "weight_decay": 0.1, "seed": 9,
    "device": "host:3", "device_threads": 9, "conv_algo": "implicit", "math": "tf32", "workspace": 9,
    "out": "o",
    "resume": "auto", "log_every": 9, "profile": 4, "classes": 9, "limit": 9, "on_bad_image": "skip",
    "algorithm": "sync", "devices": 2, "gradient_form": "sum", "max_staleness": 0, "staleness_lr": True,
    "warmup_sync": 9, "min_gradients": 0, "check_every": 9, "save_every": 9, "diverged_at": 9.0, "stall": 9.0,
    "deterministic": True, "cuda_aware": True, "nccl": True, "inject": "x", "machine": "m.json",
}
LOCAL = {"data_dir", "subbatch", "device", "device_threads", "conv_algo", "math", "workspace", "out",
"log_every", "profile", "devices", "inject", "machine"}
ESSENTIAL = {"net", "data", "classes", "limit", "image_size", "width", "subbatch", "optimizer", "seed", "algorithm"}


def knowing(option):
    """A configuration whose algorithm knows `option`."""
    only = TrainConfig.__dataclass_fields__[option].metadata.get("only", ("local",))
    return TrainConfig("cnn-a", algorithm=only[-1], conv_algo="explicit")


def test_every_option_is_covered_below():
    assert set(OTHER) == {option.name for option in dataclasses.fields(TrainConfig)}


@pytest.mark.parametrize("option", sorted(OTHER))
def test_hash_sees_what_ranks_must_agree_on_and_nothing_else(option):
    plain = knowing(option)
    changed = dataclasses.replace(plain, **{option: OTHER[option]})
    assert (plain.hash() == changed.hash()) == (option in LOCAL)


def test_hash_does_not_depend_on_the_process():
    assert TrainConfig("cnn-a").hash() == TrainConfig.from_json(TrainConfig("cnn-a").to_json()).hash()
    assert len(TrainConfig("cnn-a").hash()) == 16


@pytest.mark.parametrize("option", sorted(OTHER))
def test_changes_tell_essential_options_from_the_others(option):
    saved = knowing(option)
    now = dataclasses.replace(saved, **{option: OTHER[option]})
    expected = [(flag(option), getattr(saved, option), OTHER[option])]
    assert list(now.changes(saved, essential=option in ESSENTIAL)) == expected
    assert list(now.changes(saved, essential=option not in ESSENTIAL)) == []


@pytest.mark.parametrize("algorithm, option, expected", [
    ("local", "devices", "sync or sprint"), ("local", "deterministic", "sync or sprint"), ("local", "inject", "sync"),
    ("local", "stall", "sync or sprint"), ("sync", "max_staleness", "sprint"), ("sync", "staleness_lr", "sprint"),
    ("sync", "warmup_sync", "sprint"), ("sync", "min_gradients", "sprint")])
def test_an_option_that_the_algorithm_does_not_know_is_refused(algorithm, option, expected):
    with pytest.raises(UsageError) as error:
        TrainConfig("cnn-a", algorithm=algorithm, conv_algo="explicit", **{option: OTHER[option]})
    assert str(error.value).startswith(f"{flag(option)[2:]}: expected --algorithm {expected}")
    assert str(error.value).endswith(f", got {algorithm}")


def test_what_cannot_be_repeated_or_summed_is_refused():
    with pytest.raises(UsageError, match="conv-algo: expected explicit or implicit with --deterministic"):
        TrainConfig("cnn-a", algorithm="sprint", deterministic=True)
    with pytest.raises(UsageError, match="optimizer: expected momentum or sgd with --algorithm sync, got adagrad"):
        TrainConfig("cnn-a", algorithm="sync", optimizer="adagrad")

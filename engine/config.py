"""Everything that `sprint train` can be told: one field an option, with its default, limits and help."""

from __future__ import annotations

import hashlib
import json
import math
import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from ..kernels import limits
from . import schedule
from .errors import UsageError

FLOAT = 3.4e38  # what every float of a kernel holds
DATA, MODEL, UPDATES, DEVICES, JOB, RUN = "Data", "Network", "Updates", "Device", "Ranks", "Run"  # panels of the help
BOTH, ASYNC = ("sync", "sprint"), ("sprint",)  # algorithms that know an option


def _option(default: Any, panel: str, text: str, **rules: Any) -> Any:
    """A field with its panel and help. Rules: least, above, most, below (numbers); choices; only (the algorithms that
    know it); local (ranks may differ in it); essential (a resumed run must keep it)."""
    return field(default=default, metadata={"panel": panel, "help": text, **rules})


@dataclass(frozen=True)
class TrainConfig:
    """The options of one training run; checked when made. Raises UsageError naming the option."""

    net: str = field(metadata={"essential": True})

    data: str = _option("digits", DATA, "digits, mnist, idx, cifar10, cifar100, folder, list, synthetic",
                        essential=True)
    data_dir: str | None = _option(None, DATA, "Folder of the data set", local=True)
    classes: int | None = _option(None, DATA, "Classes of synthetic or list (default: 1000, or as found)",
                                  least=2, most=1_000_000, essential=True)
    limit: int | None = _option(None, DATA, "Use no more images of each part", least=1, essential=True)
    on_bad_image: str = _option("error", DATA, "error, skip: what to do with an image that cannot be read",
                                choices=("error", "skip"))
    augment: bool = _option(False, DATA, "Deform the training images on the device (shift, turn, scale)")

    image_size: int | None = _option(None, MODEL, "Pixels a side (default: the net's own)",
                                     least=1, essential=True)
    width: float = _option(1.0, MODEL, "Factor on all channel counts", above=0, essential=True)

    epochs: int = _option(5, UPDATES, "Passes over the training images", least=1)
    steps: int | None = _option(None, UPDATES, "Updates to make; beats --epochs", least=1)
    subbatch: int = _option(32, UPDATES, "Images in one gradient", least=1, most=2**31 - 1, local=True, essential=True)
    lr: float = _option(0.01, UPDATES, "Learning rate", above=0, most=FLOAT)
    schedule: str = _option("cosine", UPDATES, f"Of the learning rate: {schedule.FORMS}")
    optimizer: str = _option("momentum", UPDATES, "sgd, momentum, adagrad",
                             choices=("sgd", "momentum", "adagrad"), essential=True)
    momentum: float = _option(0.9, UPDATES, "Share of the last update in the next", least=0, below=1)
    weight_decay: float = _option(5e-4, UPDATES, "L2 penalty on the weights", least=0, most=FLOAT)
    seed: int = _option(0, UPDATES, "Of initial weights, shuffling, deforming, dropout",
                        least=0, below=2**63, essential=True)

    device: str = _option("auto", DEVICES, "auto, host, host:I, cuda, cuda:I", local=True)
    device_threads: int | None = _option(None, DEVICES, "Of a host device (default: all cores)",
                                         least=1, most=limits.THREADS, local=True)
    conv_algo: str = _option("auto", DEVICES, "explicit (im2col + sgemm), implicit (fused), auto (measured)",
                             choices=("auto", "explicit", "implicit"), local=True)
    math: str = _option("fp32", DEVICES, "fp32, tf32 (cuda only)", choices=("fp32", "tf32"), local=True)
    workspace: int | None = _option(None, DEVICES, "Most MB of column buffer; beyond it sub-batches are cut",
                                    least=1, local=True)

    algorithm: str = _option("local", JOB, "local, sync, sprint (asynchronous); for N nodes: mpirun -n N sprint train",
                             choices=("local", *BOTH), essential=True)
    devices: int = _option(1, JOB, "Of each rank, one worker each", least=1, most=256, local=True, only=BOTH)
    gradient_form: str = _option("mean", JOB, "sum, mean: of the gradients of all samples of a mini-batch",
                                 choices=("sum", "mean"), only=BOTH)
    max_staleness: int | None = _option(None, JOB, "Updates that a gradient may be late; workers wait", least=0,
                                        only=ASYNC)
    staleness_lr: bool = _option(False, JOB, "Divide the rate by the staleness of the gradient", only=ASYNC)
    warmup_sync: int = _option(0, JOB, "Updates at the start that are synchronous", least=0, only=ASYNC)
    min_gradients: int = _option(1, JOB, "Of a rank that its update waits for; 0: the paper's free loop", least=0,
                                 only=ASYNC)
    check_every: int = _option(100, JOB, "Updates between comparisons of the weights of all ranks; 0: none", least=0,
                               only=BOTH)
    save_every: int = _option(0, JOB, "Updates between checkpoints; 0: every epoch", least=0, only=BOTH)
    diverged_at: float = _option(10.0, JOB, "Times the first loss at which to stop; 0: only when not finite", least=0,
                                 only=BOTH)
    stall: float = _option(120.0, JOB, "Seconds without progress that end the run; 0: none", least=0, only=BOTH)
    deterministic: bool = _option(False, JOB, "Sum in rank order and keep the record that sprint replay repeats",
                                  only=BOTH)
    cuda_aware: bool = _option(False, JOB, "Sum in device memory by MPI, tried out in a child process first", only=BOTH)
    nccl: bool = _option(False, JOB, "Sum in device memory by NCCL", only=BOTH)
    inject: str | None = _option(None, JOB, "Drill: kill-rank, delay-rank, nan-grad or raise-worker=RANK@update=U",
                                 local=True, only=BOTH)
    machine: str | None = _option(None, JOB, "Machine file: score its prediction against the run at the end",
                                  local=True, only=ASYNC)

    out: str | None = _option(None, RUN, "Run folder (default: runs/NET-TIME)", local=True)
    resume: str | None = _option(None, RUN, "Checkpoint or run folder to resume; auto: the newest, if any")
    profile: int | None = _option(None, RUN, "Observe so many steps (gradients, of each worker) and write their "
                                  "profile into the run folder", least=1, local=True)
    log_every: int = _option(20, RUN, "Steps between two lines of the log", least=1, local=True)

    def __post_init__(self) -> None:
        for option in fields(self):
            _check(option, getattr(self, option.name))
        if not re.fullmatch(limits.DEVICE, self.device):
            raise UsageError(f"device: expected {limits.DEVICES}, got '{self.device}'")
        if self.out == "":
            raise UsageError("out: expected a folder, got ''")
        schedule.parse(self.schedule)
        for option in fields(self):
            self._check_use(option)
        if self.algorithm != "local" and self.optimizer == "adagrad":
            raise UsageError(f"optimizer: expected momentum or sgd with --algorithm {self.algorithm}, got adagrad")
        if self.deterministic and self.conv_algo == "auto":
            raise UsageError("conv-algo: expected explicit or implicit with --deterministic, got auto (a measurement)")
        self._check_transport()

    def _check_transport(self) -> None:
        """Raise UsageError unless the ranks' sums can go the way that is asked for."""
        if self.cuda_aware and self.nccl:
            raise UsageError("nccl: expected one way of the sums, got --cuda-aware too")
        if self.deterministic and self.transport != "host":
            raise UsageError(f"{self.transport}: expected no --deterministic, whose sums in rank order are the host's, "
                             "got both")

    @property
    def transport(self) -> str:
        """Where the ranks' sums are made: host, or in device memory by cuda-aware or nccl."""
        return "cuda-aware" if self.cuda_aware else "nccl" if self.nccl else "host"

    def _check_use(self, option: Field[Any]) -> None:
        """Raise UsageError for an option that the algorithm does not know."""
        only, value = option.metadata.get("only", ()), getattr(self, option.name)
        if only and self.algorithm not in only and value != option.default:
            raise UsageError(f"{flag(option.name)[2:]}: expected --algorithm {' or '.join(only)}, got {self.algorithm}")

    def to_json(self) -> dict[str, Any]:
        """All options as a JSON object."""
        return {option.name: getattr(self, option.name) for option in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TrainConfig:
        """The configuration that to_json() wrote; options it lacks take their default. Raises UsageError."""
        known = {option.name for option in fields(cls)}
        for name in data:
            if name not in known:
                raise UsageError(f"configuration: expected options of sprint train, got '{name}'")
        if "net" not in data:
            raise UsageError("configuration: expected the option 'net', got none")
        return cls(**data)

    def hash(self) -> str:
        """16 hexadecimal digits over all options in which the ranks of a run must agree."""
        shared = {o.name: getattr(self, o.name) for o in fields(self) if not o.metadata.get("local")}
        return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:16]

    def changes(self, saved: TrainConfig, *, essential: bool) -> Iterator[tuple[str, Any, Any]]:
        """(flag, value in `saved`, value here) of what differs among the essential options, or the others."""
        for option in fields(self):
            before, now = getattr(saved, option.name), getattr(self, option.name)
            if before != now and bool(option.metadata.get("essential")) == essential:
                yield flag(option.name), before, now


def flag(name: str) -> str:
    """How a field is written at the command line: conv_algo -> --conv-algo."""
    return "--" + name.replace("_", "-")


_KINDS: dict[str, tuple[type, str]] = {
    "str": (str, "a text"), "int": (int, "a whole number"),
    "float": (float, "a number"), "bool": (bool, "true or false"),
}
_LIMITS = {"least": (">=", operator.ge), "above": (">", operator.gt),
           "most": ("<=", operator.le), "below": ("<", operator.lt)}


def _check(option: Field[Any], value: Any) -> None:
    """Raise UsageError unless `value` has the option's type and lies within its limits."""
    name, rules = flag(option.name)[2:], option.metadata
    kind, words = _KINDS[str(option.type).removesuffix(" | None")]
    if value is None and str(option.type).endswith("None"):
        return
    if rules.get("choices") and value not in rules["choices"]:
        raise UsageError(f"{name}: expected one of {', '.join(rules['choices'])}, got {value!r}")
    limits = [(sign, holds, rules[key]) for key, (sign, holds) in _LIMITS.items() if key in rules]
    if not _is(kind, value) or not all(holds(value, limit) for _, holds, limit in limits):
        expected = words + " and".join(f" {sign} {limit}" for sign, _, limit in limits)
        raise UsageError(f"{name}: expected {expected}, got {value!r}")


def _is(kind: type, value: Any) -> bool:
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))

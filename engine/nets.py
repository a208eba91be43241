"""The networks by name: CNN-A/B/C of the SPRINT paper (reconstructed), LeNet, and a multi-layer perceptron."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import UsageError
from .layers import Conv2D, Dense, Layer, MaxPool2D, NetSpec, ReLU, SoftmaxCrossEntropy

RECONSTRUCTION = (
    "reconstruction: the paper's table of CNN-A/B/C (Oyama et al. 2016) is lost; these are chosen so that sizes divide "
    "exactly and the printed buffer sizes of the paper come out"
)


@dataclass(frozen=True)
class _Table:
    """One row of the reconstruction: input size, filters m_l of the 3x3 convolutions, the l that are pooled by 2."""

    image_size: int
    filters: tuple[int, ...]
    pooled: tuple[int, ...]


_CNN = {
    "cnn-a": _Table(396, (32, 64, 128, 128, 256, 256, 256, 256, 256, 384, 384, 512, 512), (2, 4, 6, 9, 11)),
    "cnn-b": _Table(572, (32, 64, 128, 128, 256, 256, 256, 256, 384, 384, 512, 512), (2, 4, 6, 8, 10, 12)),
    "cnn-c": _Table(636, (32, 64, 128, 128, 256, 256, 384, 384, 384, 384, 512, 512), (2, 4, 6, 8, 10, 12)),
}
_HIDDEN = 1024
WIDEST = 1024  # factor on the channel counts
_DEFAULT_CLASSES = {"cnn-a": 1000, "cnn-b": 1000, "cnn-c": 1000, "lenet": 10, "mlp": 10}
NAMES = tuple(_DEFAULT_CLASSES)


def build(name: str, image_size: int | None = None, width: float = 1.0, classes: int | None = None) -> NetSpec:
    """The net `name` for square images of `image_size` pixels (default: its own), channel counts times `width`.

    Raises UsageError for an unknown name or a size that no layer fits.
    """
    if name not in NAMES:
        raise UsageError(f"net: expected one of {', '.join(NAMES)}, got '{name}'")
    if not 0 < width <= WIDEST:
        raise UsageError(f"width: expected a factor above 0, at most {WIDEST}, got {width:g}")
    if image_size is not None and not 1 <= image_size <= 65536:
        raise UsageError(f"image-size: expected 1 to 65536 pixels, got {image_size}")
    if classes is None:
        classes = _DEFAULT_CLASSES[name]
    if classes < 1:
        raise UsageError(f"classes: expected at least 1, got {classes}")
    builder = {"lenet": _lenet, "mlp": _mlp}.get(name, _cnn)
    return builder(name, image_size, width, classes)


def scaled(channels: int, width: float) -> int:
    """A channel count times `width`, rounded to a multiple of 8, at least 8; unchanged at width 1."""
    return channels if width == 1 else max(8, round(channels * width / 8) * 8)


def _cnn(name: str, image_size: int | None, width: float, classes: int) -> NetSpec:
    table = _CNN[name]
    size = image_size or table.image_size
    layers: list[Layer] = []
    x = size
    for number, filters in enumerate(table.filters, start=1):
        pool = 2 if number in table.pooled else 1
        x = (x - 2) // pool
        if x < 1:
            break
        layers += [Conv2D(scaled(filters, width)), ReLU()]
        layers += [MaxPool2D()] if pool > 1 else []
    if not layers:
        raise UsageError(f"image-size: expected at least 3 pixels for {name}, got {size}")
    layers += [Dense(scaled(_HIDDEN, width)), ReLU(), Dense(classes), SoftmaxCrossEntropy()]
    return NetSpec(name, (3, size, size), tuple(layers), RECONSTRUCTION)


def _lenet(name: str, image_size: int | None, width: float, classes: int) -> NetSpec:
    size = image_size or 28
    if size < 16:
        raise UsageError(f"image-size: expected at least 16 pixels for {name}, got {size}")
    layers = (Conv2D(scaled(20, width), (5, 5)), MaxPool2D(), Conv2D(scaled(50, width), (5, 5)), MaxPool2D(),
              Dense(scaled(500, width)), ReLU(), Dense(classes), SoftmaxCrossEntropy())
    return NetSpec(name, (1, size, size), layers, "LeNet as in LeCun et al. 1998, in Caffe's form (ReLU, max-pooling)")


def _mlp(name: str, image_size: int | None, width: float, classes: int) -> NetSpec:
    size, units = image_size or 32, scaled(5000, width)
    half: list[Layer] = [Dense(units), ReLU(), Dense(units), ReLU()]
    layers: list[Layer] = [*half, Dense(units), ReLU(), *half, Dense(classes), SoftmaxCrossEntropy()]
    note = "SMLPs of a public Chainer tutorial: two perceptrons of three layers"
    return NetSpec(name, (3, size, size), tuple(layers), note)

"""The nets are the tables of the reconstruction, and scale as documented."""

from __future__ import annotations

import pytest
from sprint.engine import nets, shapes
from sprint.engine.errors import UsageError
from sprint.engine.layers import Conv2D, Dense, Dropout, MaxPool2D, NetSpec, ReLU, SoftmaxCrossEntropy

A = [394, 196, 194, 96, 94, 46, 44, 42, 20, 18, 8, 6, 4, 1, 1]
B = [570, 284, 282, 140, 138, 68, 66, 32, 30, 14, 12, 5, 1, 1]
C = [634, 316, 314, 156, 154, 76, 74, 36, 34, 16, 14, 6, 1, 1]
# million parameters (the float of the rounded table), GMAC forward, GFLOP of a training sample
PUBLISHED = {"cnn-a": (A, 18.65, 22.64, 135.6), "cnn-b": (B, 22.78, 47.50, 284.5), "cnn-c": (C, 30.02, 65.28, 391.0)}


@pytest.mark.parametrize("name", PUBLISHED)
def test_cnn_tables(name):
    extents, parameters, gmac, gflop = PUBLISHED[name]
    spec = nets.build(name)
    assert [row.extent for row in shapes.table(spec)] == [(x, x) for x in extents]
    assert spec.parameter_count / 1e6 == pytest.approx(parameters, abs=0.005)
    assert shapes.forward_macs(spec) / 1e9 == pytest.approx(gmac, abs=0.005)
    assert shapes.training_flops(spec) / 1e9 == pytest.approx(gflop, abs=0.05)
    assert "reconstruction" in spec.note


def test_largest_column_buffer_of_cnn_a_is_the_printed_one():
    rows = shapes.table(nets.build("cnn-a"), subbatch=6)
    assert round(max(row.column_bytes for row in rows) / 2**20) == 1013
    assert 4 * 6 * rows[-1].filters / 1024 == pytest.approx(23.4, abs=0.05)  # softmax, KiB


def test_a_small_image_keeps_the_longest_prefix_of_layers_that_fits():
    spec = nets.build("cnn-a", 28, classes=10)
    rows = shapes.table(spec)
    assert [row.extent[0] for row in rows] == [26, 12, 10, 4, 2, 1, 1]
    assert [row.filters for row in rows] == [32, 64, 128, 128, 256, 1024, 10]
    assert [row.pool[0] for row in rows] == [1, 2, 1, 2, 1, 1, 1]


@pytest.mark.parametrize(("channels", "width", "expected"), [(32, 1, 32), (32, 0.5, 16), (32, 0.1, 8), (20, 1, 20),
                                                            (128, 0.3, 40), (64, 2, 128)])
def test_width_scales_to_multiples_of_eight(channels, width, expected):
    assert nets.scaled(channels, width) == expected


def test_mlp_is_two_three_layer_perceptrons():
    spec = nets.build("mlp")
    assert [p.layer.units for p in spec.placed if isinstance(p.layer, Dense)] == [5000, 5000, 5000, 5000, 5000, 10]
    assert sum(isinstance(layer, ReLU) for layer in spec.layers) == 5
    assert spec.in_shape == (3, 32, 32)


@pytest.mark.parametrize(("arguments", "words"), [
    ({"name": "cnn-d"}, "cnn-d"), ({"name": "cnn-a", "image_size": 2}, "image-size"),
    ({"name": "cnn-a", "image_size": 0}, "image-size"), ({"name": "lenet", "image_size": 15}, "image-size"),
    ({"name": "cnn-a", "width": 0}, "width"), ({"name": "cnn-a", "width": float("nan")}, "width"),
    ({"name": "mlp", "classes": 0}, "classes")])
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(UsageError, match=words):
        nets.build(**arguments)


@pytest.mark.parametrize("layers", [
    (Dense(3),), (SoftmaxCrossEntropy(), Dense(3), SoftmaxCrossEntropy()), (Conv2D(2), SoftmaxCrossEntropy()),
    (Conv2D(0), Dense(2), SoftmaxCrossEntropy()), (Conv2D(2, (9, 1)), Dense(2), SoftmaxCrossEntropy()),
    (MaxPool2D((2, 2), (0, 2)), Dense(2), SoftmaxCrossEntropy()), (Dense(0), SoftmaxCrossEntropy()),
    (Dropout(1.0), Dense(2), SoftmaxCrossEntropy())])
def test_layers_that_do_not_fit_are_refused(layers):
    with pytest.raises(ValueError, match="expected"):
        NetSpec("bad", (1, 5, 6), layers)

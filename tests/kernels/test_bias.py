from __future__ import annotations

import numpy as np
import pytest
from sprint.kernels import bias

F = np.float32
SHAPES = [(1, 1), (3, 7), (5, 2, 3, 1), (2, 1, 1, 33), (7, 40)]


@pytest.mark.parametrize("shape", SHAPES)
def test_add_bias_adds_one_number_a_row(device, rng, shape):
    y, b = rng.standard_normal(shape).astype(F), rng.standard_normal(shape[0]).astype(F)
    expected = np.stack([row + number for row, number in zip(y, b, strict=True)])
    bias.add_bias(device, y, b)
    np.testing.assert_array_equal(y, expected)  # one float32 addition each


@pytest.mark.parametrize("shape", SHAPES)
def test_bias_relu_is_bias_then_relu(device, rng, shape):
    y, b = rng.standard_normal(shape).astype(F), rng.standard_normal(shape[0]).astype(F)
    expected = np.stack([np.maximum(row + number, 0) for row, number in zip(y, b, strict=True)])
    bias.bias_relu(device, y, b)
    np.testing.assert_array_equal(y, expected)


def test_bias_relu_keeps_nan_in_body_and_tail(device):
    for count in range(1, 40):
        y = np.full((2, count), -1, F)
        y[1, count - 1] = np.nan
        bias.bias_relu(device, y, np.array([3, 4], F))
        assert np.isnan(y[1, count - 1])
        assert (y[0] == 2).all() and (y[1, :-1] == 3).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_bias_gradient_is_the_sum_of_each_row(device, rng, poison, shape):
    dy, db = rng.standard_normal(shape).astype(F), poison(shape[0])
    bias.bias_gradient(device, dy, db)
    reference = [sum(float(v) for v in row.ravel()) for row in dy]
    np.testing.assert_allclose(db, reference, rtol=1e-6, atol=1e-6)


def test_no_samples(device, forbid_launch, poison):
    db = poison(3)
    bias.bias_gradient(device, np.empty((3, 0, 4, 5), F), db)
    assert (db == 0).all()  # the gradient of nothing is zero
    forbid_launch()
    bias.add_bias(device, np.empty((3, 0, 4, 5), F), np.ones(3, F))
    bias.bias_relu(device, np.empty((3, 0), F), np.ones(3, F))
    bias.bias_gradient(device, np.empty((0, 4), F), np.empty(0, F))


@pytest.mark.parametrize("op", [bias.add_bias, bias.bias_relu, bias.bias_gradient])
def test_wrong_arguments_are_refused(fast, op):
    with pytest.raises(ValueError, match=rf"{op.__name__}: expected b\(3,\), got \(4,\)"):
        op(fast, np.ones((3, 4), F), np.ones(4, F))
    with pytest.raises(ValueError, match=rf"{op.__name__}: expected at least 1 dimension"):
        op(fast, np.array(1, F), np.ones(1, F))
    with pytest.raises(TypeError, match="float32, got float64"):
        op(fast, np.ones((3, 4)), np.ones(3, F))
    with pytest.raises(ValueError, match="contiguous"):
        op(fast, np.ones((3, 8), F)[:, ::2], np.ones(3, F))

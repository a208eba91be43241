"""A machine with round numbers, so that every expected time can be worked out by hand."""

from __future__ import annotations

import copy

import pytest
from sprint.bench.machine_file import read_machine

KERNELS = ("im2col", "col2im", "add_bias", "bias_relu", "row_sum", "relu", "relu_backward", "max_pool",
           "max_pool_backward", "softmax_cross_entropy")
STEPS = ("load_image", "deform_image", "fetch_weights", "compute_update_val", "update_gradient", "sum_gradient",
         "update_old_weights", "add_momentum", "update_momentum", "update_weights")
TOY = {
    "schema": 2, "name": "toy", "description": "round numbers", "date": "2026-01-01", "threads": 2,
    "device": {"kind": "cuda", "name": "toy device", "per_node": 3, "memory_bytes": 10**9},
    "conv": "explicit",
    "kernels": {name: {"alpha": 1e-9, "beta": 1e-6} for name in KERNELS},
    "gemm": {"sgemm": {"peak_flops": 1e12, "efficiency": 0.5, "bandwidth": 1e11}},
    "steps": {name: {"alpha": 1e-9} for name in STEPS},
    "allreduce": {"alpha": 1e-9, "beta": 2e-9},
}


@pytest.fixture
def toy_data():
    """The toy machine as parsed JSON, to be spoilt."""
    return copy.deepcopy(TOY)


@pytest.fixture
def toy(toy_data):
    return read_machine(toy_data, "toy.json")

"""Trilinear interpolation is exact where eq. (6) is, and says where it is not used."""

from __future__ import annotations

import numpy as np
import pytest
from sprint.bench.gemm_time import GemmEstimate, GemmTable

M, N, K = np.array([4.0, 8, 32]), np.array([1.0, 2]), np.array([16.0, 64, 128, 256])


def paper(m, n, k):
    """Eq. (6) of one cell; any eight coefficients."""
    return 3e-9 * m * n * k + 5e-9 * m * n + 7e-9 * m * k + 2e-8 * n * k + 1e-7 * m + 3e-7 * n + 4e-8 * k + 1e-5


def table(function=paper, **holes):
    seconds = function(*np.meshgrid(M, N, K, indexing="ij"))
    for at in holes.get("at", []):
        seconds[at] = np.nan
    return GemmTable(M, N, K, seconds, 0.0)


def test_grid_points_are_returned_as_measured():
    seconds = np.random.default_rng(5).uniform(1, 2, (3, 2, 4))
    times, outside = GemmTable(M, N, K, seconds).time(M[:, None, None], N[:, None], K)
    np.testing.assert_allclose(times, seconds, rtol=1e-14)
    assert not outside.any()


def test_eight_coefficients_are_reproduced_inside_every_cell():
    rng = np.random.default_rng(6)
    m, n, k = rng.uniform(4, 32, 50), rng.uniform(1, 2, 50), rng.uniform(16, 256, 50)
    times, outside = table().time(m, n, k)
    np.testing.assert_allclose(times, paper(m, n, k), rtol=1e-12)
    assert not outside.any()


def test_cells_have_their_own_coefficients():
    """A kink at a grid line stays at the grid line."""
    def kinked(m, n, k):
        return 1e-6 * np.where(m < 8, m, 8 + 5 * (m - 8)) + 0 * n * k

    times, _ = table(kinked).time([6.0, 8.0, 20.0], 1.5, 100.0)
    np.testing.assert_allclose(times, [6e-6, 8e-6, 68e-6], rtol=1e-12)


def test_above_the_grid_time_grows_with_the_flops_and_is_reported():
    times, outside = table().time([64.0, 64.0, 32.0], [2.0, 2.0, 2.0], [256.0, 512.0, 256.0])
    np.testing.assert_allclose(times, paper(32, 2, 256) * np.array([2, 4, 1]), rtol=1e-12)
    assert outside.tolist() == [True, True, False]


def test_below_the_grid_the_edge_is_kept_and_reported():
    times, outside = table().time([1.0, 4.0], 1.0, [64.0, 8.0])
    np.testing.assert_allclose(times, [paper(4, 1, 64), paper(4, 1, 16)], rtol=1e-12)
    assert outside.tolist() == [True, True]


def test_a_single_grid_line_needs_no_neighbour():
    alone = GemmTable(np.array([8.0]), N, K, paper(8.0, N[None, :, None], K))
    times, outside = alone.time(8.0, 1.5, 100.0)
    np.testing.assert_allclose(times, paper(8, 1.5, 100), rtol=1e-12)
    assert not outside


def test_missing_corner_follows_the_nearest_by_flops_and_is_reported():
    holed = table(at=[(2, 1, 3)])
    times, outside = holed.time([32.0, 6.0], 2.0, [256.0, 100.0])
    np.testing.assert_allclose(times[0], 2 * paper(32, 1, 256), rtol=1e-12)
    np.testing.assert_allclose(times[1], paper(6, 2, 100), rtol=1e-12)
    assert outside.tolist() == [True, False]


def test_estimate_is_bound_by_arithmetic_or_by_memory():
    plain = GemmEstimate(1e12, 0.5, 1e11, overhead=1e-5)
    times, outside = plain.time([1000.0, 1e6], [1000.0, 1.0], [1000.0, 1.0])
    np.testing.assert_allclose(times, [1e-5 + 2e9 / 5e11, 1e-5 + 4 * (2e6 + 1) / 1e11], rtol=1e-12)
    assert not outside.any()


@pytest.mark.parametrize(("m", "n", "waves"),
                         [(64, 64, 1), (32, 64, 1), (64, 64 * 14, 1), (64, 64 * 15, 2), (65, 64, 1)])
def test_estimate_counts_whole_tiles_and_waves(m, n, waves):
    tiled = GemmEstimate(1.4e12, 1.0, 1e15, tile=(64, 64), units=14)
    times, _ = tiled.time(float(m), float(n), 100.0)
    np.testing.assert_allclose(times, waves * 2 * 64 * 64 * 100 / 1e11, rtol=1e-12)

from __future__ import annotations

import math

import numpy as np
import pytest
from sprint.kernels import dropout as ops
from sprint.kernels import source
from sprint.kernels.device import elements
from sprint.kernels.host import HostDevice
from sprint.kernels.simt import SimtDevice

F = np.float32
U = np.uint32
MASK = 2**32 - 1
# Random123's published vectors of philox4x32 with 10 rounds (kat_vectors): counter, key, result
KNOWN = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([MASK] * 4, [MASK] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0],
     [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
]
PROBE = """
extern "C" __global__ void probe(const unsigned* __restrict__ counter, const unsigned* __restrict__ key,
                                 unsigned* __restrict__ out, i64 n) {
  GRID_STRIDE_LOOP(i, n) {
    const unsigned* c = counter + 4 * i;
    const Random4 random = philox<10>({{c[0], c[1], c[2], c[3]}}, key[2 * i], key[2 * i + 1]);
    for (int k = 0; k < 4; ++k) out[4 * i + k] = random.word[k];
  }
}
"""


def philox(counter, key):
    """Philox4x32-10 in Python's own integers."""
    c, (k0, k1) = list(counter), key
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k0, b & MASK, a >> 32 ^ c[3] ^ k1, a & MASK]
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c


def words(count, seed, offset):
    groups = [philox([g & MASK, g >> 32, offset & MASK, offset >> 32], [seed & MASK, seed >> 32])
              for g in range(-(-count // 4))]
    return [w for group in groups for w in group][:count]


def test_generator_gives_the_published_numbers():
    text = source.read("dropout.cu") + PROBE
    counter, key, result = (np.array([row[i] for row in KNOWN], U) for i in range(3))
    for block, order in ((32, "forward"), (128, "shuffle")):
        out = np.zeros((3, 4), U)
        SimtDevice(block=block, order=order, text=text).launch("dropout", "probe", elements(3), counter, key, out, 3)
        np.testing.assert_array_equal(out, result)
    assert [philox(c, k) for c, k, _ in KNOWN] == [r for _, _, r in KNOWN]  # the reference below too


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 31, 130])
@pytest.mark.parametrize("seed, offset", [(0, 0), (7, 1), (2**63 - 1, 2**40 + 3)])
def test_every_element_is_kept_or_dropped_by_its_own_word(device, poison, count, seed, offset):
    x, y = np.linspace(1, 2, count, dtype=F), poison(count)
    ops.dropout(device, x, y, seed, offset, 0.25)
    kept = np.array(words(count, seed, offset)) >= 2**30
    np.testing.assert_allclose(y, np.where(kept, x.astype(float) / 0.75, 0), rtol=2e-7)


def test_a_word_equal_to_the_threshold_is_kept(device, poison):
    drawn, y = words(70, 3, 9), poison(70)
    rate = drawn[13] / 2**32
    ops.dropout(device, np.ones(70, F), y, 3, 9, rate)
    assert ((y > 0) == (np.array(drawn) >= drawn[13])).all()


@pytest.mark.parametrize("shape", [(3, 2, 5, 1), (7, 9), (130,)])
def test_gradient_takes_the_same_mask(device, rng, poison, shape):
    x, dy = np.ones(shape, F), rng.standard_normal(shape).astype(F)
    y, dx = poison(shape), poison(shape)
    ops.dropout(device, x, y, 5, 6, 0.5)
    ops.dropout_backward(device, dy, dx, 5, 6, 0.5)
    np.testing.assert_array_equal(dx, dy * y)  # the factor 2 is exact
    assert 0 < (y == 0).mean() < 1


def test_in_place_and_dropped_nan(device, poison):
    x = np.full(131, np.nan, F)
    x[::2] = 1
    y, same = poison(131), x.copy()
    ops.dropout(device, x, y, 1, 2, 0.5)
    ops.dropout(device, same, same, 1, 2, 0.5)
    assert same.tobytes() == y.tobytes()
    kept = np.array(words(131, 1, 2)) >= 2**31
    assert np.isnan(y).tolist() == (np.isnan(x) & kept).tolist()


def test_rate_zero_keeps_everything_as_it_is(device, rng, poison):
    x, y = rng.standard_normal(70).astype(F), poison(70)
    ops.dropout(device, x, y, 3, 4, 0.0)
    assert x.tobytes() == y.tobytes()


def test_rate_near_one_keeps_little_and_stays_finite(device, poison):
    for rate in (1 - 2**-10, 1 - 2**-32, math.nextafter(1, 0)):
        y = poison(130)
        ops.dropout(device, np.ones(130, F), y, 0, 0, rate)
        kept = np.array(words(130, 0, 0)) >= min(round(rate * 2**32), MASK)
        assert ((y > 0) == kept).all() and np.isfinite(y).all()


def test_masks_of_other_seeds_and_offsets_are_independent(fast, poison):
    count, masks = 100_003, []
    for seed, offset in ((1, 0), (1, 1), (2, 0), (1, 2**32), (2**32, 0), (1, count)):
        y = poison(count)
        ops.dropout(fast, np.ones(count, F), y, seed, offset, 0.5)
        masks.append(y > 0)
        assert abs(masks[-1].mean() - 0.5) < 4 * 0.5 / math.sqrt(count)  # 4 standard deviations
    for i, first in enumerate(masks):
        for second in masks[:i]:
            assert abs((first == second).mean() - 0.5) < 4 * 0.5 / math.sqrt(count)


def test_expectation_is_kept(fast, poison):
    y = poison(200_001)
    ops.dropout(fast, np.ones(200_001, F), y, 11, 0, 0.3)
    assert abs(y.mean(dtype=float) - 1) < 4 * math.sqrt(0.3 / 0.7 / 200_001)


def test_mask_does_not_depend_on_threads(poison):
    found = set()
    for threads in (1, 2, 3):
        y = poison(100_001)
        ops.dropout(HostDevice(threads=threads), np.ones(100_001, F), y, 1, 2, 0.4)
        found.add(y.tobytes())
    assert len(found) == 1


def test_no_elements_no_launch(device, forbid_launch):
    forbid_launch()
    empty = np.empty((4, 0), F)
    ops.dropout(device, empty, empty, 0, 0, 0.5)
    ops.dropout_backward(device, empty, empty, 0, 0, 0.5)


@pytest.mark.parametrize("seed, offset, rate, name", [(0, 0, 1.0, "rate"), (0, 0, -0.1, "rate"), (-1, 0, 0.5, "seed"),
                                                      (0, 0, math.nan, "rate"), (2**63, 0, 0.5, "seed"),
                                                      (0, -1, 0.5, "offset"), (0, 2**63, 0.5, "offset")])
def test_wrong_numbers_are_refused(fast, seed, offset, rate, name):
    for op in (ops.dropout, ops.dropout_backward):
        with pytest.raises(ValueError, match=f"dropout: expected {name} from 0"):
            op(fast, np.ones(4, F), np.ones(4, F), seed, offset, rate)


def test_wrong_arrays_are_refused(fast):
    with pytest.raises(ValueError, match=r"dropout: expected y\(4,\), got \(5,\)"):
        ops.dropout(fast, np.ones(4, F), np.ones(5, F), 0, 0, 0.5)
    with pytest.raises(ValueError, match=r"dropout_backward: expected dx\(4,\), got \(5,\)"):
        ops.dropout_backward(fast, np.ones(4, F), np.ones(5, F), 0, 0, 0.5)
    with pytest.raises(TypeError, match="float32, got float64"):
        ops.dropout(fast, np.ones(4), np.ones(4, F), 0, 0, 0.5)
    with pytest.raises(ValueError, match="contiguous"):
        ops.dropout(fast, np.ones(8, F)[::2], np.ones(4, F), 0, 0, 0.5)

"""Convolution: both algorithms and their choice, against sums in float64 straight from the definition."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sprint.kernels import conv_explicit
from sprint.kernels.conv import DIRECTIONS, Conv
from sprint.kernels.conv_shape import ConvShape
from sprint.kernels.host import HostDevice
from sprint.kernels.simt import ORDERS, SimtDevice

# C, N, H, W, K, R, S, stride, pad: nothing square, primes, one of everything, strides beyond the filter, pads
SHAPES = {
    "plain": ConvShape(3, 2, 7, 9, 5, 3, 3),
    "rectangular": ConvShape(2, 3, 5, 9, 4, 3, 2, (2, 1), (0, 1)),
    "one of all": ConvShape(1, 1, 1, 1, 1, 1, 1),
    "one filter": ConvShape(2, 3, 4, 5, 1, 2, 3),
    "one pixel padded": ConvShape(3, 2, 1, 1, 2, 3, 3, (1, 1), (1, 1)),
    "primes": ConvShape(7, 3, 13, 11, 13, 5, 3, (1, 2), (2, 0)),
    "filter as image": ConvShape(3, 5, 6, 4, 7, 6, 4),
    "gaps": ConvShape(2, 2, 11, 13, 3, 2, 1, (3, 4), (1, 2)),
    "rest": ConvShape(1, 2, 10, 9, 2, 3, 4, (2, 3), (0, 1)),
    "pad beyond filter": ConvShape(2, 1, 3, 4, 3, 2, 2, (2, 2), (3, 2)),
    "many filters": ConvShape(5, 1, 6, 7, 70, 3, 3),
    "many channels": ConvShape(67, 1, 4, 5, 3, 2, 2),
    "no image": ConvShape(2, 0, 5, 6, 3, 3, 2),
}


RUNNERS = [("fast", "explicit"), ("fast", "implicit"), *((f"simt-256-{order}", "implicit") for order in ORDERS),
           ("simt-256-shuffle", "explicit")]


@pytest.fixture(params=RUNNERS, ids=["-".join(pair) for pair in RUNNERS])
def runner(request):
    """(device, algorithm): the host's fast mode with both, tiles in each thread order, columns in simt mode."""
    mode, algo = request.param
    if mode == "fast":
        return HostDevice(threads=2), algo
    sanitize = request.config.getoption("--sanitize")
    return SimtDevice(order=mode.removeprefix("simt-256-"), seed=11, sanitize=sanitize), algo


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def shape(request):
    return request.param


def arrays(rng, shape):
    """x, w, b, dy."""
    sizes = (shape.x, shape.w, (shape.K,), shape.y)
    return tuple(rng.standard_normal(size).astype(np.float32) for size in sizes)


def places(s):
    """Every output position with the part of the padded image that it sees."""
    for p in range(s.P):
        for q in range(s.Q):
            h, w = p * s.stride[0], q * s.stride[1]
            yield p, q, slice(h, h + s.R), slice(w, w + s.S)


def padded(x, s):
    (ph, pw) = s.pad
    return np.pad(x.astype(np.float64), ((0, 0), (0, 0), (ph, ph), (pw, pw)))


def reference_forward(x, w, b, s, relu=False):
    y, x = np.empty(s.y), padded(x, s)
    for p, q, rows, columns in places(s):
        y[:, :, p, q] = np.einsum("cnrs,kcrs->kn", x[:, :, rows, columns], w.astype(np.float64)) + b[:, None]
    return np.maximum(y, 0) if relu else y


def reference_backward(x, w, dy, s):
    """dx, dw, db."""
    w, dy, dw = w.astype(np.float64), dy.astype(np.float64), np.zeros(s.w)
    x = padded(x, s)
    dx = np.zeros_like(x)
    for p, q, rows, columns in places(s):
        dx[:, :, rows, columns] += np.einsum("kn,kcrs->cnrs", dy[:, :, p, q], w)
        dw += np.einsum("kn,cnrs->kcrs", dy[:, :, p, q], x[:, :, rows, columns])
    (ph, pw) = s.pad
    return dx[:, :, ph : ph + s.H, pw : pw + s.W], dw, dy.sum(axis=(1, 2, 3))


def close(actual, exact, terms):
    """Sums of `terms` products of numbers near 1, each step rounded to 2^-24 of a sum near sqrt(terms)."""
    np.testing.assert_allclose(actual, exact, rtol=1e-6, atol=2**-23 * max(terms, 1) ** 1.5)


def workspace_of(conv, poison):
    return poison(-(-conv.workspace_bytes() // 4))


def run(conv, x, w, b, dy, poison, relu=False):
    """y, dx, dw, db of a plan, on poisoned outputs and workspace."""
    s = conv.shape
    y, dx, dw, db = poison(s.y), poison(s.x), poison(s.w), poison((s.K,))
    conv.forward(x, w, b, y, relu, workspace_of(conv, poison))
    conv.backward_data(dy, w, dx, workspace_of(conv, poison))
    conv.backward_filter(x, dy, dw, db, workspace_of(conv, poison))
    return y, dx, dw, db


def check(results, x, w, b, dy, s, relu=False):
    y, dx, dw, db = results
    close(y, reference_forward(x, w, b, s, relu), s.rows)
    for actual, exact, terms in zip((dx, dw, db), reference_backward(x, w, dy, s),
                                    (s.K * s.R * s.S, s.columns, s.columns), strict=True):
        close(actual, exact, terms)


def test_equals_float64(runner, shape, rng, poison):
    device, algo = runner
    x, w, b, dy = arrays(rng, shape)
    check(run(Conv(device, shape, algo), x, w, b, dy, poison), x, w, b, dy, shape)


def test_relu_is_fused_and_keeps_nan(runner, rng, poison):
    device, algo = runner
    s = ConvShape(2, 2, 5, 6, 3, 2, 3)
    x, w, b, _ = arrays(rng, s)
    x[1, 1, 4, 5] = np.nan
    conv, y = Conv(device, s, algo), poison(s.y)
    conv.forward(x, w, b, y, True, workspace_of(conv, poison))
    exact = reference_forward(x, w, b, s, relu=True)
    assert (exact == 0).any() and np.isnan(exact).any()
    np.testing.assert_array_equal(np.isnan(y), np.isnan(exact))
    close(np.nan_to_num(y), np.nan_to_num(exact), s.rows)
    assert not (y < 0).any()


def reference_pool(y, pool):
    """Maximum and the number of the first one in each pool x pool window."""
    K, N, P, Q = y.shape[0], y.shape[1], y.shape[2] // pool, y.shape[3] // pool
    out, arg = np.empty((K, N, P, Q)), np.empty((K, N, P, Q), int)
    for at in np.ndindex(out.shape):
        k, n, p, q = at
        window = y[k, n, p * pool : (p + 1) * pool, q * pool : (q + 1) * pool].ravel()
        out[at], arg[at] = window.max(), window.argmax()
    return out, arg


def reference_unpool(dy, y, arg, shape, pool, relu):
    """dy at the elements that won their windows, where a ReLU let them through."""
    whole = np.zeros(shape)
    for k, n, p, q in np.ndindex(dy.shape):
        h, w = divmod(int(arg[k, n, p, q]), pool)
        if not relu or y[k, n, p, q] > 0:
            whole[k, n, p * pool + h, q * pool + w] = dy[k, n, p, q]
    return whole


LAYERS = {
    "3x3 pool 2": (ConvShape(3, 2, 9, 11, 5, 3, 3), 2),
    "pool leaves a rest": (ConvShape(2, 3, 8, 10, 3, 2, 4), 3),
    "stride and pad": (ConvShape(2, 1, 11, 8, 4, 3, 2, (2, 1), (1, 2)), 2),
    "no pool": (ConvShape(3, 2, 6, 7, 4, 3, 3), 1),
}


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("s", "pool"), LAYERS.values(), ids=LAYERS)
def test_whole_layer_forward_and_back(runner, rng, poison, s, pool, relu):
    """ReLU and max-pool behind the convolution, fused or composed, and the way back through them."""
    device, algo = runner
    x, w, b, _ = arrays(rng, s)
    conv = Conv(device, s, algo, pool=pool)
    y, arg = poison(conv.y), poison(conv.y, np.uint8) if pool > 1 else None
    conv.forward(x, w, b, y, relu, workspace_of(conv, poison), arg)
    exact_y, exact_arg = reference_pool(reference_forward(x, w, b, s, relu), pool)
    close(y, exact_y, s.rows)
    if arg is not None:
        np.testing.assert_array_equal(arg[exact_y > 0], exact_arg[exact_y > 0])
    dy = rng.standard_normal(conv.y).astype(np.float32)
    dx, dw, db = poison(s.x), poison(s.w), poison((s.K,))
    whole = reference_unpool(dy, exact_y, exact_arg, s.y, pool, relu)
    conv.backward(x, w, y, dy.copy(), dw, db, dx, relu, workspace_of(conv, poison), arg)
    for actual, exact, terms in zip((dx, dw, db), reference_backward(x, w, whole, s),
                                    (s.K * s.R * s.S, s.columns, s.columns), strict=True):
        close(actual, exact, terms)
    again, again_b = poison(s.w), poison((s.K,))
    conv.backward(x, w, y, dy.copy(), again, again_b, None, relu, workspace_of(conv, poison), arg)
    assert (again.tobytes(), again_b.tobytes()) == (dw.tobytes(), db.tobytes())


def test_pool_needs_its_arg_and_fits(fast, rng):
    s = ConvShape(2, 1, 6, 7, 3, 3, 3)
    x, w, b, _ = arrays(rng, s)
    conv = Conv(fast, s, "explicit", pool=2)
    workspace = np.empty(conv.workspace_bytes() // 4, np.float32)
    for arg in (None, np.empty(conv.y, np.int32), np.empty((3, 1, 2, 1), np.uint8)):
        with pytest.raises(ValueError, match=r"arg\(3, 1, 2, 2\) as uint8"):
            conv.forward(x, w, b, np.empty(conv.y, np.float32), False, workspace, arg)
    for pool in (0, 5):
        with pytest.raises(ValueError, match=f"pool from 1 to 4, got {pool}"):
            Conv(fast, s, "explicit", pool=pool)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("rows", "K"), [(32, 32), (64, 40), (128, 130)])
def test_every_tile(monkeypatch, rng, poison, order, rows, K):
    """All three tiles over more than one tile each way; pick_tile would choose by the number of blocks."""
    from sprint.kernels import conv_tiles

    across = dict(conv_tiles.TILES)[rows]
    monkeypatch.setattr(conv_tiles, "pick_tile", lambda m, n: (rows, (-(-m // rows), -(-n // across))))
    s = ConvShape(9, 1, 17, 18, K, 2, 3, (1, 1), (1, 0))
    x, w, b, dy = arrays(rng, s)
    check(run(Conv(SimtDevice(order=order), s, "implicit"), x, w, b, dy, poison), x, w, b, dy, s)


def test_filter_gradient_in_parts(rng, poison):
    """Enough positions for several parts, with a last one that is shorter, and with a limit that allows two."""
    s = ConvShape(1, 3, 41, 37, 2, 3, 2)
    x, w, b, dy = arrays(rng, s)
    whole = Conv(SimtDevice(), s, "implicit")
    limited = Conv(SimtDevice(), s, "implicit", limit_bytes=2 * 4 * s.K * s.rows)
    assert [c.candidates[0].parts.count for c in (whole, limited)] == [4, 2]
    for conv in (whole, limited):
        check(run(conv, x, w, b, dy, poison), x, w, b, dy, s)


def test_algorithms_agree(fast, shape, rng, poison):
    x, w, b, dy = arrays(rng, shape)
    results = [run(Conv(device, shape, algo), x, w, b, dy, poison)
               for device, algo in ((fast, "explicit"), (fast, "implicit"), (SimtDevice(), "implicit"))]
    for one, two, three in zip(*results, strict=True):
        close(one, two, shape.rows + shape.columns)
        close(one, three, shape.rows + shape.columns)


@pytest.mark.parametrize("images", [1, 2, 3, 5, 7])
def test_chunks_equal_the_whole(rng, poison, images):
    s = ConvShape(3, 7, 9, 6, 4, 3, 2, (2, 1), (1, 0))
    x, w, b, dy = arrays(rng, s)
    limit = images * conv_explicit.image_bytes(s) + 3
    chunked = Conv(HostDevice(threads=1), s, "explicit", limit_bytes=limit)
    assert chunked.candidates[0].images == images
    assert chunked.workspace_bytes() <= limit
    check(run(chunked, x, w, b, dy, poison), x, w, b, dy, s)


def test_large_subbatch_is_chunked_and_says_so(fast):
    """Batch 4096 on layer 2 of CNN-C: 1.9 TB of columns, with a limit of 1 GB; planned, never allocated."""
    s = ConvShape(32, 4096, 634, 634, 64, 3, 3)
    assert 4 * s.rows * s.columns > 10**12
    conv = Conv(fast, s, "explicit", limit_bytes=10**9)
    images = conv.candidates[0].images
    assert 1 <= images < 4096
    assert images * conv_explicit.image_bytes(s) <= 10**9 < (images + 1) * conv_explicit.image_bytes(s)
    assert conv.workspace_bytes() <= 10**9
    assert f"{images} of 4096 images at a time" in conv.describe()


def test_more_elements_than_32_bits_are_planned(fast):
    s = ConvShape(64, 1311, 32, 32, 64, 5, 5, (1, 1), (2, 2))
    assert s.rows * s.columns == 2_147_942_400 > 2**31 - 1
    assert Conv(fast, s, "explicit", limit_bytes=2**40).workspace_bytes() == 4 * 2_147_942_400
    assert Conv(SimtDevice(), s, "implicit").workspace_bytes() < 2**30


def test_tile_limits_are_refused_not_wrapped():
    wide, many = ConvShape(1, 1, 1, 2**14, 1, 1, 1), ConvShape(1, 2**27, 4, 4, 1, 1, 1)
    for s, name in ((wide, "width plus pads below 16384, got 16384"), (many, r"N\*H\*W .* got 21474")):
        with pytest.raises(ValueError, match=name):
            Conv(SimtDevice(), s, "implicit")
        assert [a.name for a in Conv(SimtDevice(), s, "auto").candidates] == ["explicit"]


@pytest.mark.parametrize(("values", "word"), [
    ({"stride": (0, 1)}, "height stride"), ({"stride": (1, 2**63 - 1)}, "width stride"),
    ({"pad": (-1, 0)}, "height pad"), ({"pad": (0, 2**31)}, "width pad"), ({"R": 0}, "height of the window"),
    ({"S": 7}, "at most 6 in width"), ({"K": 0}, "K from 1"), ({"N": -1}, "N from 0"),
])
def test_absurd_extents_are_named(values, word):
    with pytest.raises(ValueError, match=word):
        ConvShape(**{"C": 2, "N": 1, "H": 5, "W": 6, "K": 3, "R": 2, "S": 2, **values})


def test_wrong_arrays_are_refused_before_any_launch(runner, rng, monkeypatch):
    device, algo = runner
    s = ConvShape(2, 2, 5, 6, 3, 2, 2)
    x, w, b, dy = arrays(rng, s)
    conv = Conv(device, s, algo)
    workspace = np.empty(conv.workspace_bytes() // 4 + 1, np.float32)
    monkeypatch.setattr(device, "launch", lambda *args: pytest.fail("launched"))
    turned = x.transpose(0, 1, 3, 2).copy().transpose(0, 1, 3, 2)
    for error, word, *wrong in ((ValueError, r"expected x\(", x[:, :1].copy(), w),
                                (ValueError, "x C-contiguous", turned, w),
                                (TypeError, "w as float32", x, w.astype(float))):
        y = dy.copy()
        for _again in range(2):  # what was refused is not remembered as seen
            with pytest.raises(error, match=word):
                conv.forward(*wrong, b, y, False, workspace)
    if conv.workspace_bytes():
        with pytest.raises(ValueError, match=f"at least {conv.workspace_bytes()} bytes"):
            conv.forward(x, w, b, dy.copy(), False, np.empty(0, np.float32))


def test_unknown_algorithm_and_too_small_limits(fast):
    s = ConvShape(2, 2, 5, 6, 3, 2, 2)
    with pytest.raises(ValueError, match="explicit, implicit, winograd, auto, got 'fft'"):
        Conv(fast, s, "fft")
    for device, algo in ((fast, "explicit"), (fast, "implicit"), (SimtDevice(), "implicit"), (fast, "auto")):
        with pytest.raises(ValueError, match="workspace of at least"):
            Conv(device, s, algo, limit_bytes=5)


def test_equal_bytes_twice_and_in_every_order(rng, poison):
    s = ConvShape(3, 2, 23, 29, 5, 3, 3, (1, 1), (1, 1))
    x, w, b, dy = arrays(rng, s)
    devices = [SimtDevice(order=order, seed=5) for order in ORDERS] + [SimtDevice()]
    outcomes = {tuple(a.tobytes() for a in run(Conv(d, s, "implicit"), x, w, b, dy, poison)) for d in devices}
    assert len(outcomes) == 1
    for algo in ("explicit", "implicit"):
        conv = Conv(HostDevice(threads=2), s, algo)
        first, second = (run(conv, x, w, b, dy, poison) for _ in range(2))
        assert [a.tobytes() for a in first] == [a.tobytes() for a in second]


def test_directions_are_those_of_the_op():
    assert all(callable(getattr(Conv, direction)) for direction in DIRECTIONS)


@pytest.mark.parametrize("algo", ["explicit", "implicit"])
def test_two_workers_with_their_own_workspaces_equal_the_serial_result(algo, poison):
    """A workspace belongs to one worker; with one each, 200 steps side by side give the bytes of one after another."""
    s = ConvShape(3, 2, 7, 8, 4, 3, 2)

    def work(number):
        x, w, b, dy = arrays(np.random.default_rng(number), s)
        conv = Conv(HostDevice(number, threads=1), s, algo)
        return [a.tobytes() for step in range(200) for a in run(conv, x, w + np.float32(step), b, dy, poison)]

    serial = [work(number) for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(2), timeout=60)) == serial


@pytest.mark.parametrize("algo", ["explicit", "implicit", "winograd"])
def test_steady_step_allocates_no_array(algo, fast, rng, poison):
    s = ConvShape(24, 4, 30, 30, 32, 3, 3)
    x, w, b, dy = arrays(rng, s)
    conv = Conv(fast, s, algo)
    workspace, y, dx, dw, db = workspace_of(conv, poison), poison(s.y), poison(s.x), poison(s.w), poison((s.K,))

    def step():
        conv.forward(x, w, b, y, True, workspace)
        conv.backward(x, w, y, dy, dw, db, dx, True, workspace)

    step()
    tracemalloc.start()
    step()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8_000, f"{peak} bytes; dw has {dw.nbytes}, x {x.nbytes}"


@pytest.mark.parametrize("algo", ["explicit", "implicit", "winograd"])
def test_a_call_uses_the_arrays_of_this_call_not_of_the_last(algo, fast, rng, poison):
    s = ConvShape(3, 2, 9, 8, 5, 3, 3)
    first, second = arrays(rng, s), arrays(rng, s)
    conv = Conv(fast, s, algo)
    expected = [tuple(a.copy() for a in run(Conv(fast, s, algo), *each, poison)) for each in (first, second)]
    workspace, y = workspace_of(conv, poison), poison(s.y)
    for index in (0, 0, 1, 0, 1, 1):  # forward: the same arrays again, then others, y and workspace the same
        x, w, b, _ = (first, second)[index]
        y.fill(np.nan)
        conv.forward(x, w, b, y, False, workspace)
        assert y.tobytes() == expected[index][0].tobytes()

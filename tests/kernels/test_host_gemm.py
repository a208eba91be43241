"""The host's own convolution and sgemm against float64 references written as loops over taps."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sprint.kernels import host_gemm, source
from sprint.kernels.conv_shape import ConvShape
from sprint.kernels.host import HostDevice

# Sums of n products in float32, in blocks: (KC + n / KC) * 2^-24 of the sum of their magnitudes; see host_conv_*.cpp.
BLOCK, UNIT = 384, 2.0**-24


def close(actual, expected, magnitude, count, algorithm="direct"):
    """Every element of `actual` is within the documented bound; `magnitude` is the same sum over absolute values.

    Winograd's sums run over whole tiles and grow by at most 9 on the way: the norms 3, 1.5 and 2 of A, G and B,
    squared, over the 9 taps of the direct sum.
    """
    if algorithm == "winograd":
        magnitude = 9 * np.max(magnitude, initial=0)
    bound = (min(count, BLOCK) + count // BLOCK + 4) * UNIT * magnitude + 1e-30
    assert np.isfinite(actual).all()
    worst = np.max(np.abs(actual - expected) - bound, initial=-1)
    assert worst <= 0, f"off the bound by {worst}, largest error {np.max(np.abs(actual - expected), initial=0)}"


def tap_views(shape, padded):
    """(r, s, view (C,N,P,Q)) of every filter tap of a padded x."""
    (sh, sw), P, Q = shape.stride, shape.P, shape.Q
    for r in range(shape.R):
        for s in range(shape.S):
            yield r, s, padded[:, :, r : r + sh * (P - 1) + 1 : sh, s : s + sw * (Q - 1) + 1 : sw]


def pad(x, shape):
    ph, pw = shape.pad
    return np.pad(x.astype(np.float64), ((0, 0), (0, 0), (ph, ph), (pw, pw)))


def reference_forward(x, w, shape):
    y = np.zeros(shape.y)
    for r, s, view in tap_views(shape, pad(x, shape)):
        y += np.einsum("kc,cnpq->knpq", w[:, :, r, s].astype(np.float64), view)
    return y


def reference_data(dy, w, shape):
    dx = pad(np.zeros(shape.x), shape)
    for r, s, view in tap_views(shape, dx):
        view += np.einsum("kc,knpq->cnpq", w[:, :, r, s].astype(np.float64), dy)
    ph, pw = shape.pad
    return dx[:, :, ph : ph + shape.H, pw : pw + shape.W]


def reference_filter(x, dy, shape):
    dw = np.zeros(shape.w)
    for r, s, view in tap_views(shape, pad(x, shape)):
        dw[:, :, r, s] = np.einsum("knpq,cnpq->kc", dy, view)
    return dw


def reference_pool(y, pool):
    """Maximum and number of the first maximum of each window (NaN is a maximum), by loops."""
    K, N, P, Q = y.shape
    top, arg = np.empty((K, N, P // pool, Q // pool)), np.empty((K, N, P // pool, Q // pool), np.uint8)
    for at in np.ndindex(top.shape):
        k, n, u, v = at
        window = y[k, n, u * pool : (u + 1) * pool, v * pool : (v + 1) * pool].ravel()
        arg[at] = np.argmax(window)
        top[at] = window[arg[at]]
    return top, arg


def spread(dy, top, arg, shape, pool):
    """Gradient at the convolution's output of a gradient behind ReLU and pool."""
    full = np.zeros(shape.y)
    for at in np.ndindex(dy.shape):
        k, n, u, v = at
        if top is None or top[at] > 0:
            down, right = divmod(int(arg[at]), pool)
            full[k, n, u * pool + down, v * pool + right] = dy[at]
    return full


def poisoned(shape, dtype=np.float32):
    return np.full(shape, np.nan if dtype == np.float32 else 255, dtype)


def workspace(step, shape, device, pool=1, algorithm="direct", **_):
    """Poisoned, and not aligned to anything."""
    return np.full(host_gemm.conv_workspace(step, shape, device.threads, pool, algorithm) + 4, 0xFF, np.uint8)[4:]


def random(rng, *shapes):
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def forward(device, x, w, shape, **options):
    y = poisoned(host_gemm.pooled(shape, options.get("pool", 1)))
    host_gemm.conv_forward(device, x, w, y, shape, workspace("forward", shape, device, **options), **options)
    return y


def backward(device, x, w, dy, shape, **options):
    dx, dw, db = poisoned(shape.x), poisoned(shape.w), poisoned((shape.K,))
    host_gemm.conv_backward_data(device, dy, w, dx, shape, workspace("data", shape, device, **options), **options)
    space = workspace("filter", shape, device, **options)
    host_gemm.conv_backward_filter(device, x, dy, dw, shape, space, db=db, **options)
    return dx, dw, db


def every_pass(device, x, w, dy, shape, **options):
    return forward(device, x, w, shape, **options), *backward(device, x, w, dy, shape, **options)


def algorithms(shape, pool=1):
    return ("direct", "winograd") if host_gemm.winograd_fits(shape, pool) else ("direct",)


def check_forward(device, x, w, shape, algorithm):
    y, magnitude = forward(device, x, w, shape, algorithm=algorithm), reference_forward(abs(x), abs(w), shape)
    close(y, reference_forward(x, w, shape), magnitude, shape.rows, algorithm)


def check_backward(device, x, w, dy, full, shape, algorithm, **options):
    """`full` is the float64 gradient at the convolution's output that the options make of dy."""
    dx, dw, db = backward(device, x, w, dy, shape, algorithm=algorithm, **options)
    taps = shape.R * shape.S
    close(dx, reference_data(full, w, shape), reference_data(abs(full), abs(w), shape), shape.K + taps, algorithm)
    close(dw, reference_filter(x, full, shape), reference_filter(abs(x), abs(full), shape), shape.columns, algorithm)
    close(db, full.sum((1, 2, 3)), abs(full).sum((1, 2, 3)), shape.columns)


SHAPES = [
    ConvShape(3, 2, 5, 9, 32, 3, 2, (2, 1), (0, 1)),
    ConvShape(3, 3, 11, 13, 17, 3, 3),
    ConvShape(1, 1, 1, 1, 1, 1, 1),
    ConvShape(1, 1, 3, 3, 1, 3, 3),
    ConvShape(2, 1, 4, 5, 1, 2, 3, (1, 1), (1, 2)),
    ConvShape(13, 5, 7, 3, 29, 5, 3, (1, 1), (2, 1)),
    ConvShape(7, 2, 23, 19, 31, 1, 1),
    ConvShape(5, 3, 17, 8, 14, 2, 5, (3, 2), (1, 3)),
    ConvShape(64, 8, 4, 4, 48, 3, 3),
    ConvShape(130, 2, 6, 6, 33, 3, 3),
    ConvShape(43, 1, 9, 37, 410, 3, 3),
    ConvShape(2, 1, 2, 2, 3, 2, 2, (1, 1), (4, 5)),
    ConvShape(3, 2, 3, 90, 47, 3, 3),
    ConvShape(5, 3, 9, 34, 33, 3, 3, (1, 1), (2, 1)),
    ConvShape(30, 7, 5, 8, 15, 3, 3, (1, 1), (0, 3)),
]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_convolution_equals_the_loops(shape, threads):
    rng, device = np.random.default_rng(7), HostDevice(threads=threads)
    x, w, dy = random(rng, shape.x, shape.w, shape.y)
    for algorithm in algorithms(shape):
        check_forward(device, x, w, shape, algorithm)
        check_backward(device, x, w, dy, dy.astype(np.float64), shape, algorithm)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_shape_equals_the_loops(data):
    draw = lambda least, most: data.draw(st.integers(least, most))  # noqa: E731
    pad_, square = (draw(0, 3), draw(0, 3)), draw(0, 1)
    kernel, stride = ((3, 3), (1, 1)) if square else ((draw(1, 5), draw(1, 5)), (draw(1, 3), draw(1, 3)))
    extent = [max(1, kernel[i] - 2 * pad_[i]) + draw(0, 9) for i in (0, 1)]
    shape = ConvShape(draw(1, 20), draw(1, 5), *extent, draw(1, 40), *kernel, stride, pad_)
    rng, device = np.random.default_rng(draw(0, 99)), HostDevice(threads=draw(1, 3))
    x, w, dy = random(rng, shape.x, shape.w, shape.y)
    for algorithm in algorithms(shape):
        check_forward(device, x, w, shape, algorithm)
        check_backward(device, x, w, dy, dy.astype(np.float64), shape, algorithm)


ODD_ROWS = ConvShape(4, 2, 12, 500, 3, 3, 1, (1, 1), (0, 1))
FUSED = [SHAPES[0], SHAPES[1], SHAPES[-1], ConvShape(5, 3, 21, 70, 15, 4, 3), ConvShape(2, 7, 6, 6, 40, 3, 3), ODD_ROWS]


@pytest.mark.parametrize("pool", [1, 2, 3])
@pytest.mark.parametrize("shape", FUSED, ids=str)
def test_fused_bias_relu_and_pool(shape, pool):
    rng, device = np.random.default_rng(3), HostDevice(threads=2)
    x, w, bias, dy = random(rng, shape.x, shape.w, (shape.K,), host_gemm.pooled(shape, pool))
    for algorithm in algorithms(shape, pool):
        plain = forward(device, x, w, shape, bias=bias, algorithm=algorithm)
        close(plain, reference_forward(x, w, shape) + bias[:, None, None, None],
              reference_forward(abs(x), abs(w), shape) + abs(bias)[:, None, None, None], shape.rows + 1, algorithm)
        top, number = reference_pool(np.maximum(plain, 0), pool)
        options = {"pool": pool, "arg": poisoned(dy.shape, np.uint8)} if pool > 1 else {}
        y = forward(device, x, w, shape, bias=bias, relu=True, algorithm=algorithm, **options)
        np.testing.assert_array_equal(y, top)
        np.testing.assert_array_equal(options.get("arg", number), number)
        check_backward(device, x, w, dy, spread(dy, y, number, shape, pool), shape, algorithm, y=y, **options)


def test_pool_alone_sends_the_gradient_to_negative_maxima():
    shape, device = ConvShape(2, 3, 7, 9, 5, 3, 3), HostDevice(threads=2)
    x, w, dy = random(np.random.default_rng(5), shape.x, shape.w, host_gemm.pooled(shape, 2))
    for algorithm in algorithms(shape, 2):
        arg = poisoned(dy.shape, np.uint8)
        forward(device, x, w, shape, pool=2, arg=arg, algorithm=algorithm)
        check_backward(device, x, w, dy, spread(dy, None, arg, shape, 2), shape, algorithm, pool=2, arg=arg)


def test_winograd_rounds_like_the_direct_sum():
    shape, device = ConvShape(32, 2, 22, 27, 24, 3, 3, (1, 1), (1, 1)), HostDevice(threads=2)
    x, w, dy = random(np.random.default_rng(8), shape.x, shape.w, shape.y)
    references = reference_forward(x, w, shape), reference_data(dy, w, shape), reference_filter(x, dy, shape)
    rms = {}
    for algorithm in algorithms(shape):
        results = every_pass(device, x, w, dy, shape, algorithm=algorithm)
        rms[algorithm] = [np.sqrt(np.mean((r - e) ** 2)) for r, e in zip(results, references, strict=False)]
    assert all(a < 2 * b for a, b in zip(rms["winograd"], rms["direct"], strict=True)), rms


@pytest.mark.parametrize("pool", [2, 3])
def test_nan_wins_its_window_and_the_first_maximum_takes_it(pool):
    shape, device = ConvShape(1, 1, 6, 42, 1, 1, 1), HostDevice(threads=1)
    values = np.random.default_rng(1).choice(np.float32([-np.inf, -1, 0, 2, 2, np.nan]), shape.x)
    arg = poisoned(host_gemm.pooled(shape, pool), np.uint8)
    y = forward(device, values, np.ones(shape.w, np.float32), shape, pool=pool, arg=arg)
    top, number = reference_pool(values, pool)
    np.testing.assert_array_equal(y, top)
    np.testing.assert_array_equal(arg, number)
    relu = forward(device, values, np.ones(shape.w, np.float32), shape, relu=True)
    np.testing.assert_array_equal(relu, np.where(values < 0, 0, values))


@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
def test_bytes_do_not_depend_on_the_run_nor_forward_on_threads(algorithm):
    shape = ConvShape(16, 6, 21, 25, 24, 3, 3)
    x, w, dy = random(np.random.default_rng(2), shape.x, shape.w, shape.y)
    runs = {threads: [every_pass(HostDevice(threads=threads), x, w, dy, shape, algorithm=algorithm) for _ in range(3)]
            for threads in (1, 2, 3)}
    for threads, results in runs.items():
        for result in results:
            for actual, same in zip(result, results[0], strict=True):
                np.testing.assert_array_equal(actual, same, f"{threads} threads")
            np.testing.assert_array_equal(result[0], runs[1][0][0])


@pytest.mark.parametrize("pool", [1, 2])
def test_no_images_and_windows_that_do_not_fit(pool):
    device = HostDevice(threads=2)
    for shape in (ConvShape(3, 0, 5, 6, 4, 3, 3), ConvShape(3, 2, 3, 6, 4, 3, 3)):
        if shape.N and pool == 1:
            continue
        x, w, dy = random(np.random.default_rng(0), shape.x, shape.w, host_gemm.pooled(shape, pool))
        arg = np.zeros(dy.shape, np.uint8) if pool > 1 else None
        for algorithm in algorithms(shape, pool):
            assert forward(device, x, w, shape, pool=pool, arg=arg, algorithm=algorithm).size == 0
            for gradient in backward(device, x, w, dy, shape, pool=pool, arg=arg, algorithm=algorithm):
                assert not gradient.any()


GEMMS = [(1, 1, 1), (1, 7, 900), (29, 1, 31), (64, 8, 500), (51, 9, 2100), (1100, 16, 35), (500, 4, 61), (37, 130, 5),
         (100, 300, 401), (14, 32, 0), (0, 5, 3), (257, 67, 129)]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", GEMMS, ids=str)
def test_sgemm(size, threads):
    (m, n, k), rng, device = size, np.random.default_rng(11), HostDevice(threads=threads)
    space = np.full(host_gemm.sgemm_workspace(m, n, k, threads), 0xFF, np.uint8)
    for trans_a, trans_b, alpha, beta in [(0, 0, 1, 0), (0, 1, -0.5, 0), (1, 0, 2, 1), (1, 1, 1, -3)]:
        a, b, c = random(rng, (k, m + 3) if trans_a else (m, k + 3), (n, k + 1) if trans_b else (k, n + 1), (m, n + 2))
        a, b = a[:, :-3], b[:, :-1]
        product, magnitude = ((f(a.T if trans_a else a).astype(np.float64) @ f(b.T if trans_b else b))
                              for f in (np.array, abs))
        expected, before = alpha * product + (beta * c[:, :n] if beta else 0), c.copy()
        if beta == 0:
            c[:, :n] = np.nan
        transposed = {"trans_a": bool(trans_a), "trans_b": bool(trans_b)}
        host_gemm.sgemm(device, a, b, c[:, :n], space, alpha=alpha, beta=beta, **transposed)
        close(c[:, :n], expected, abs(alpha) * magnitude + abs(beta * before[:, :n]), k + 2)
        np.testing.assert_array_equal(c[:, n:], before[:, n:])


def test_wrong_arguments_are_named():
    shape, device = ConvShape(3, 2, 5, 6, 4, 3, 2), HostDevice(threads=1)
    x, w, y = (np.zeros(s, np.float32) for s in (shape.x, shape.w, shape.y))
    space = workspace("forward", shape, device)
    call = host_gemm.conv_forward
    for error, text, action in [
        (ValueError, r"expected x\(3, 2, 5, 6\)", lambda: call(device, x[:, :1], w, y, shape, space)),
        (ValueError, "expected x C-contiguous", lambda: call(device, x[:, ::-1], w, y, shape, space)),
        (TypeError, "expected w as float32, got float64", lambda: call(device, x, w.astype(float), y, shape, space)),
        (ValueError, "expected 3x3 filters at stride 1",
         lambda: call(device, x, w, y, shape, space, algorithm="winograd")),
        (ValueError, "workspace of at least", lambda: call(device, x, w, y, shape, space[:8])),
        (ValueError, "expected pool from 1 to 15, got 16", lambda: host_gemm.conv_workspace("forward", shape, 1, 16)),
        (ValueError, "expected arg exactly when pool > 1",
         lambda: host_gemm.conv_backward_data(device, y, w, x, shape, space, arg=np.zeros(shape.y, np.uint8))),
    ]:
        with pytest.raises(error, match=text):
            action()


BUILDS = {
    "sanitized": (*source.SIMT_FLAGS, "-march=native", "-fopenmp", *source.SANITIZE_FLAGS),
    "avx2": ("-O2", "-march=x86-64-v3", "-fno-trapping-math", "-fopenmp"),
    "sse2": ("-O2", "-march=x86-64", "-fno-trapping-math", "-fopenmp"),
}
PROGRAM = """
import sys
import pytest
from sprint.kernels import source

path, *flags = sys.argv[1:]
source.build_host_library = lambda name, files: source.build(name, "".join(map(source.with_line, files)), tuple(flags))
chosen = ["-k", "any_shape or fused or sgemm or no_images"]
sys.exit(pytest.main(["-q", "-x", "-s", "-p", "no:cacheprovider", *chosen, path]))
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are those of x86-64")
@pytest.mark.parametrize("build", BUILDS)
def test_other_builds_pass_these_tests(build):
    """Narrower vectors are right; AddressSanitizer and UBSan find no access outside an array or a workspace."""
    runner = [str(Path(__file__).parents[1] / "sanitize.py")] if build == "sanitized" else []
    command = [sys.executable, *runner, "-c", PROGRAM, __file__, *BUILDS[build]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]

"""The table of cases: every kernel is in it, every case is right in both host modes, and a faulty kernel is found."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from sprint.bench import references as ref
from sprint.bench.cases import TABLE
from sprint.bench.checking import WrongResult, check, compare
from sprint.bench.convolutions import ALGORITHMS, rows_read
from sprint.bench.copies import copies
from sprint.bench.dry import DryDevice, Launch
from sprint.bench.library import open_library
from sprint.bench.net_calls import net_cases, op_of, problem_of
from sprint.bench.selection import OPS, cases_of, default_cases, named
from sprint.bench.sets import convnet, deepbench, set_cases
from sprint.engine.errors import UsageError
from sprint.engine.nets import build
from sprint.kernels import blas, source
from sprint.kernels.conv_shape import ConvShape
from sprint.kernels.host import HostDevice
from sprint.kernels.simt import SimtDevice

SMALL = {  # no size is square, no stride is the window
    "im2col": "c3n3h7w9r3s2sh2ph1pw1count2", "col2im": "c3n2h7w9r3s2sw2ph2",
    "conv_forward": "n2c3h9w8k5r3s3sh2ph1 relu explicit", "conv_backward_data": "n2c3h7w9k5r2s3sw2 explicit",
    "conv_backward_filter": "n3c2h7w9k4r3s2ph1 explicit", "sgemm": "m5n7k11 ta tb add", "gemm_tiled": "m70n66k9 tb add",
    "add_bias": "k3j1001", "bias_relu": "k3j1001", "relu": "n1003", "relu_backward": "n1003 inplace",
    "sigmoid": "n1003", "sigmoid_backward": "n1003", "max_pool": "c2n3h7w9r3s2sh2sw1ph1",
    "max_pool_backward": "c2n3h7w9r3s2sh2sw1ph1 relu",
    "softmax": "k11n5", "softmax_cross_entropy": "k11n5", "cross_entropy_loss": "k11n5", "label_rank": "k11n5",
    "scale": "n1003", "axpy": "n1003", "sgd": "n1003", "momentum": "n1003", "adagrad": "n1003", "row_sum": "m7j301",
    "row_max": "m7j301", "column_sum": "m7j301", "column_max": "m7j301", "to_float": "c3n2h5w7",
    "normalize": "c3n2h5w7",
    "crop": "c3n2h9w7p4q5", "mirror": "c3n3h5w7", "deform": "c3n2h9w7p6q8", "dropout": "n1003", "copy": "n1003",
}


def small(name):
    return cases_of(f"{name} {SMALL[name]}")[0]


def test_every_op_has_a_small_case_here():
    assert set(SMALL) == set(OPS)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("device", [HostDevice(threads=2), SimtDevice(block=64, order="shuffle", seed=1)],
                         ids=["fast", "simt"])
def test_small_cases_are_right(name, device):
    case = small(name)
    if case.op.missing(device, case.problem):
        assert name == "gemm_tiled" and device.mode == "fast"
        return
    assert 0 <= check(device, case).worst <= 1


@pytest.mark.parametrize(("name", "spoilt"), [
    ("max_pool", "y"), ("max_pool", "arg"), ("momentum", "v"), ("momentum", "w"), ("im2col", "col"), ("row_sum", "out"),
    ("softmax_cross_entropy", "loss"), ("softmax_cross_entropy", "dlogits"), ("mirror", "out"), ("label_rank", "rank")])
def test_every_output_is_checked_and_a_fault_says_how_to_repeat_it(name, spoilt):
    class Faulty(HostDevice):
        """A device that spoils one element behind every launch."""

        def _run(self, family, signature, work, values, block):
            super()._run(family, signature, work, values, block)
            for parameter, value in zip(signature.parameters, values, strict=True):
                if parameter.pointer and not parameter.constant and parameter.name == spoilt:
                    value.flat[value.size // 2] += 3

    case = small(name)
    with pytest.raises(WrongResult, match=re.escape(f"--problem '{case.problem}'")):
        check(Faulty(threads=1), case)


def test_an_output_that_nobody_writes_is_wrong():
    class Lazy(HostDevice):
        def _run(self, *_):
            pass

    for name in ("relu", "im2col", "row_max", "crop", "to_float"):
        with pytest.raises(WrongResult, match=f"{name}: expected "):
            check(Lazy(threads=1), small(name))


def test_compare_gives_the_worst_share_of_the_tolerance_and_refuses_nan():
    case = small("add_bias")
    atol, rtol = case.op.tolerance(case.problem)
    expected = np.full((3, 4), 2.0)
    got = expected.astype(np.float32)
    got[1, 2] += 0.5 * (atol + 2 * rtol)
    assert compare(case, "y", got, expected) == pytest.approx(0.5, rel=0.05)
    got[1, 3] = np.nan
    with pytest.raises(WrongResult, match=r"y\[1, 3\] = 2 within .* got nan"):
        compare(case, "y", got, expected)


# ---- bytes and flops

@pytest.mark.parametrize(("text", "moved", "flops"), [
    ("relu n100", 800, 100), ("relu_backward n100", 1200, 100), ("relu_backward n100 inplace", 1200, 100),
    ("add_bias k4j10", 2 * 160 + 16, 40), ("momentum n100", 2000, 600), ("axpy n100", 1200, 200),
    ("sgemm m2n3k5", 4 * (10 + 15 + 6), 60), ("sgemm m2n3k5 add", 4 * (10 + 15 + 12), 60),
    ("im2col c2n3h5w6r3s3", 4 * (2 * 3 * 5 * 6 + 18 * 3 * 3 * 4), 0),
    ("im2col c2n3h5w6r3s3count1", 4 * (2 * 5 * 6 + 18 * 3 * 4), 0),
    ("im2col c1n1h5w6r1s1sh2sw1", 4 * (3 * 6 + 3 * 6), 0),  # two of five rows are never read
    ("conv_forward n2c3h5w6k4r3s3 explicit", 4 * (2 * 3 * 30 + 108 + 4 + 4 * 2 * 12), 2 * 4 * 27 * 24),
    ("max_pool c1n1h4w6r2s2", 4 * 24 + 4 * 6 + 6, 24), ("normalize c3n1h2w2", 12 + 48 + 24, 36),
])
def test_bytes_and_flops(text, moved, flops):
    (case,) = cases_of(text)
    assert (case.bytes_moved, case.flops) == (moved, flops)


def test_only_convolutions_may_take_fewer_operations():
    assert cases_of("conv_forward n1c1h8w8k1r3s3 winograd")[0].least_flops == 2 * 9 * 36 / 2.25
    assert cases_of("conv_forward n1c1h8w8k1r3s3 explicit")[0].least_flops == 2 * 9 * 36
    assert all(case.least_flops == case.flops for case in default_cases([]) if "winograd" not in case.problem.words)


# ---- what the cases are compared with

@pytest.mark.parametrize("text", [
    "conv_forward n3c2h9w8k5r3s3 explicit", "conv_backward_data n3c2h9w8k5r3s3 explicit",
    "conv_backward_filter n3c2h9w8k5r3s3 explicit", "sgemm m5n7k11 ta", "sgemm m5n7k11 tb"])
@pytest.mark.parametrize("part_bytes", [1 << 26, 2000, 100])
def test_the_library_does_the_whole_product_in_parts(monkeypatch, text, part_bytes):
    monkeypatch.setattr("sprint.bench.convolutions.PART_BYTES", part_bytes)
    done, sgemm = [], blas.sgemm

    def spied(a, b, c, trans_a, trans_b, alpha, beta, threads):
        done.append(2 * c.size * a.shape[0 if trans_a else 1])
        sgemm(a, b, c, trans_a, trans_b, alpha, beta, threads)

    monkeypatch.setattr(blas, "sgemm", spied)
    (case,) = cases_of(text)
    library = open_library(HostDevice(threads=2), case, "NumPy copy")
    assert list(library) == ["BLAS"]
    library["BLAS"](0)
    assert sum(done) == case.flops and (len(done) > 1) == ("conv" in text and part_bytes < 1 << 26)


def test_copies_copy(rng, fast):
    source = rng.random(700_001, np.float32)
    for name, copy in copies(fast, target := np.empty_like(source), source).items():
        target.fill(np.nan)
        copy()
        np.testing.assert_array_equal(target, source, err_msg=name)
    (case,) = cases_of("axpy n1000")
    assert list(open_library(fast, case, "relu copy")) == ["NumPy copy", "relu copy"]


# ---- problem strings

def test_canonical_strings_name_themselves():
    for name, sizes in SMALL.items():
        case = small(name)
        assert case.problem.text == f"{name} {sizes}"
        assert [c.problem for c in cases_of(case.problem.text)] == [case.problem]


def test_a_family_gives_every_op_and_every_algorithm():
    texts = [case.problem.text for case in cases_of("conv n8c64h56w56k128r3s3")]
    assert texts[:2] == ["conv_forward n8c64h56w56k128r3s3 explicit", "conv_forward n8c64h56w56k128r3s3 implicit"]
    assert len(texts) == len(set(texts)) == 3 * len(ALGORITHMS)
    assert [case.op.name for case in cases_of("conv n8c64h56w56k128r3s3 relu implicit")] == [
        "conv_forward", "conv_backward_data", "conv_backward_filter"]
    assert [case.op.name for case in cases_of("pool c1n1h4w4r2s2")] == ["max_pool", "max_pool_backward"]


def test_defaults_are_filled_in_and_left_out_of_the_string():
    (pool,) = cases_of("max_pool c1n1h9w9r3s2sh3sw2ph0")
    assert (pool.problem.sh, pool.problem.sw, pool.problem.text) == (3, 2, "max_pool c1n1h9w9r3s2")


@pytest.mark.parametrize(("text", "message"), [
    ("", "got an empty one"), ("convolve n1", "expected a kernel of"), ("relu", "got ''"), ("relu n0", "got n=0"),
    ("relu n-1", "got 'n-1'"), ("relu n3n4", "got 'n3n4'"), ("relu m3", "got sizes m"), ("relu n3m4", "got sizes n m"),
    ("relu n99999999999", "got n=99999999999"), ("relu n3 fast", "got the word 'fast'"),
    ("im2col c1n1h2w2r3s3", "expected a window of at most 2"), ("im2col c1n1h4w4r3s3count2", "at most 1 images, got 2"),
    ("max_pool c1n1h4w4r2s2ph2", "pad less than the window"),
    ("conv_forward n1c1h4w4k1r2s2 explicit implicit", "word"),
])
def test_bad_strings_are_usage_errors_of_one_line(text, message):
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        cases_of(text)
    assert "\n" not in str(error.value)


def test_names_are_ops_or_families():
    assert [op.name for op in named("im2col")] == ["im2col", "col2im"]
    assert [op.name for op in named("momentum")] == ["momentum"]
    assert {case.op.name for case in default_cases(["pool", "max_pool"])} == {"max_pool", "max_pool_backward"}


def test_default_memory_bound_cases_are_beyond_the_cache():
    for case in default_cases([]):
        assert case.op.product or case.bytes_moved >= 60e6, case.problem


# ---- every kernel, every call

def test_every_kernel_in_kernels_belongs_to_an_op():
    for family in source.families():
        for kernel in source.signatures(family):
            if family != "conv":  # whole convolutions stand for these
                assert op_of(family, kernel) in TABLE
    with pytest.raises(RuntimeError, match=r"expected kernel frobnicate of pool\.cu in the table"):
        op_of("pool", "frobnicate")


@pytest.mark.parametrize("name", [name for name in SMALL if name not in ("copy", "gemm_tiled") and "conv" not in name])
def test_launches_are_recognised_as_the_problem_that_made_them(name):
    case, dry = small(name), DryDevice()
    case.bind(dry)(case.inputs(1))
    assert [problem_of(launch) for launch in dry.launches] == [case.problem]


def test_pool_kernels_of_one_window_are_recognised():
    (case,) = cases_of("max_pool c2n3h6w9r2s2")
    dry = DryDevice()
    case.bind(dry)(case.inputs(1))
    assert dry.launches[0].kernel == "max_pool_2x2" and problem_of(dry.launches[0]) == case.problem


def test_a_net_lists_every_call_once_with_its_count():
    device = HostDevice(threads=1)
    cases = net_cases(build("lenet"), device, 3)
    counts = {case.problem.text: case.calls for case in cases}
    assert len(counts) == len(cases)
    assert counts["im2col c1n3h28w28r5s5"] == 2  # forward, and for the gradient to the filters
    assert counts["sgemm m20n1728k25"] == 1 and counts["sgemm m20n25k1728 tb"] == 1
    assert "sgemm m25n1728k20 ta" not in counts  # nobody wants the gradient to the images
    assert counts["max_pool c20n3h24w24r2s2"] == 1 and counts["max_pool_backward c20n3h24w24r2s2"] == 1
    assert counts["conv_forward n3c1h28w28k20r5s5 implicit"] == 1
    assert counts["momentum n431296"] == 1  # the flat buffer with its padding
    assert counts["normalize c1n3h28w28"] == 1 and counts["deform c1n3h28w28p28q28"] == 0
    assert counts["label_rank k10n3"] == 0


def test_a_whole_net_is_listed_without_touching_its_memory():
    cases = net_cases(build("cnn-c"), HostDevice(threads=1), 64)  # tens of gigabytes of activations
    assert len(cases) > 100 and max(case.nbytes for case in cases) > 1e9


def test_a_launch_that_the_table_lacks_is_an_error():
    with pytest.raises(RuntimeError, match="expected kernel relu6 of"):
        problem_of(Launch("activation", "relu6", {"n": 3}))


def test_public_sets():
    assert convnet()[1] == "conv n128c64h64w64k128r9s9" and len(convnet()) == 5
    strings = deepbench()
    assert len(strings) == len(set(strings)) == 90 + 160
    assert "conv n16c2048h7w7k512r1s1sh2sw2ph3pw3" in strings and "sgemm m35n8457k4096 ta" in strings
    assert len(set_cases("deepbench")) == 3 * len(ALGORITHMS) * 90 + 160
    with pytest.raises(UsageError, match="expected convnet or deepbench, got 'imagenet'"):
        set_cases("imagenet")


# ---- the references themselves, by loops

def test_references_of_columns_and_convolution_agree_with_loops(rng):
    s = ConvShape(2, 3, 6, 5, 4, 3, 2, (2, 1), (1, 0))
    x, w, b = rng.standard_normal(s.x), rng.standard_normal(s.w), rng.standard_normal(s.K)
    dy = rng.standard_normal(s.y)
    y, dx, dw = np.empty(s.y), np.zeros(s.x), np.zeros(s.w)
    for k, n, p, q in np.ndindex(*s.y):
        y[k, n, p, q] = b[k]
        for c, r, t in np.ndindex(s.C, s.R, s.S):
            h, v = p * 2 + r - 1, q + t
            if 0 <= h < s.H and 0 <= v < s.W:
                y[k, n, p, q] += w[k, c, r, t] * x[c, n, h, v]
                dx[c, n, h, v] += w[k, c, r, t] * dy[k, n, p, q]
                dw[k, c, r, t] += dy[k, n, p, q] * x[c, n, h, v]
    np.testing.assert_allclose(ref.conv_forward(x, w, b, s, False), y, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(ref.conv_backward_data(dy, w, s), dx, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(ref.conv_backward_filter(x, dy, s)[0], dw, rtol=1e-12, atol=1e-12)
    columns = ref.im2col(x, s)
    np.testing.assert_allclose(w.reshape(s.K, -1) @ columns + b[:, None], y.reshape(s.K, -1), rtol=1e-12, atol=1e-12)


def test_reference_of_philox_gives_the_published_words():
    zero = np.zeros((1, 4), np.uint64)
    assert ref.philox(zero, 0).tolist() == [[0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]]
    ones = np.full((1, 4), 0xFFFFFFFF, np.uint64)
    assert ref.philox(ones, 2**64 - 1).tolist() == [[0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]]


def test_reference_of_deform_is_exact_where_pixels_meet(rng):
    images = rng.integers(0, 256, (1, 4, 5, 2), np.uint8)
    shifted = ref.deform(images, np.array([[1, 0, 1, 0, 1, 2]], np.float32), np.zeros(2), np.ones(2), (2, 3))
    np.testing.assert_allclose(shifted[:, 0], images[0, 2:4, 1:4].transpose(2, 0, 1) / 255)


def test_rows_that_no_window_touches_are_not_counted():
    for h, r, stride, pad in itertools.product((1, 2, 7, 12), (1, 2, 5), (1, 2, 3, 6), (0, 1, 4)):
        if h + 2 * pad < r:
            continue
        shape = ConvShape(1, 1, h, 9, 1, r, 1, (stride, 1), (pad, 0))
        rows = {p * stride - pad + i for p in range(shape.P) for i in range(r)} & set(range(h))
        assert rows_read(shape) == len(rows) / h, (h, r, stride, pad)

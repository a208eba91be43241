"""Two results compared: the statistics against known values, the verdicts, and what is refused."""

from __future__ import annotations

import copy
import itertools
import json
import math

import numpy as np
import pytest
from sprint.__main__ import run
from sprint.bench.compare import Compared, compare_files, mann_whitney
from sprint.engine.errors import UsageError

MACHINE = {"processor": "P", "cores": 2, "device": "host:0 (P, 2 threads, fast)", "kind": "host", "threads": 2}


def result(samples, machine=MACHINE):
    cases = [{"problem": name, "block": None, "status": "ok", "samples_ms": list(values)}
             for name, values in samples.items()]
    return {"schema": 1, "machine": dict(machine), "cases": cases}


@pytest.fixture
def files(tmp_path):
    """files(a, b) writes two results and gives their paths."""
    def write(a, b):
        paths = tmp_path / "a.json", tmp_path / "b.json"
        for path, data in zip(paths, (a, b), strict=True):
            path.write_text(json.dumps(data))
        return paths

    return write


def around(centre, count=20):
    """Samples spread by about 1% around a centre, none equal."""
    return [centre * (1 + 0.01 * math.sin(3 * i)) for i in range(count)]


# ---- Mann-Whitney

@pytest.mark.parametrize(("x", "y", "p"), [
    ([1, 2, 3], [4, 5, 6], 0.1),  # 2 of the 20 orders are as extreme
    ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], 2 / 252),
    ([1, 3], [2, 4], 4 / 6),
    ([19, 22, 16, 29, 24], [20, 11, 17, 12], 0.11111111111111112),  # scipy.stats.mannwhitneyu's own example, exact
])
def test_exact_p_of_small_samples(x, y, p):
    assert mann_whitney(x, y) == pytest.approx(p, rel=1e-12)
    assert mann_whitney(y, x) == pytest.approx(p, rel=1e-12)


def test_exact_p_counts_all_orders():
    for n, m in ((1, 4), (3, 4), (4, 2)):
        ranks = range(1, n + m + 1)
        us = [sum(chosen) - n * (n + 1) // 2 for chosen in itertools.combinations(ranks, n)]
        for chosen in itertools.combinations(ranks, n):
            u = sum(chosen) - n * (n + 1) // 2
            extreme = min(u, n * m - u)
            expected = min(1.0, 2 * sum(v <= extreme for v in us) / len(us))
            rest = [r for r in ranks if r not in chosen]
            assert mann_whitney(list(chosen), rest) == pytest.approx(expected, rel=1e-12)


def test_large_samples_and_ties_agree_with_scipy():
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(5)
    for n, m, digits in ((30, 40, 9), (8, 9, 1), (100, 100, 2), (12, 50, 9), (21, 20, 9)):
        x, y = rng.normal(0, 1, n).round(digits), rng.normal(0.4, 1.3, m).round(digits)
        expected = stats.mannwhitneyu(x, y, method="asymptotic").pvalue
        assert mann_whitney(x, y) == pytest.approx(expected, rel=1e-9)
    x, y = rng.normal(0, 1, 15), rng.normal(0.5, 1, 20)
    assert mann_whitney(x, y) == pytest.approx(stats.mannwhitneyu(x, y, method="exact").pvalue, rel=1e-9)


def test_equal_samples_are_equal():
    assert mann_whitney([1.0] * 9, [1.0] * 7) == 1.0
    assert mann_whitney(around(1), around(1)) > 0.9


def test_false_alarms_are_as_rare_as_promised():
    rng = np.random.default_rng(7)
    alarms = sum(mann_whitney(rng.exponential(1, 10), rng.exponential(1, 12)) < 0.05 for _ in range(2000))
    assert 60 <= alarms <= 130  # 5% of 2000, a little less for a discrete test


# ---- verdicts

@pytest.mark.parametrize(("b_ms", "p", "verdict"), [
    (1.06, 1e-5, "slower"), (1.04, 1e-5, "same"), (1.06, 0.02, "same"), (0.94, 1e-5, "faster"), (0.96, 1e-5, "same")])
def test_a_difference_must_be_large_and_no_chance(b_ms, p, verdict):
    assert Compared("x", 1.0, b_ms, p, 0.05).verdict == verdict


def test_cases_are_compared_by_name(files):
    a, b = files(result({"relu n3": around(1), "axpy n3": around(2), "gone n3": around(1)}),
                 result({"axpy n3": around(2.4), "relu n3": around(1.01), "new n3": around(1)}))
    compared, unpaired = compare_files(a, b, threshold=0.05)
    assert [(c.name, c.verdict) for c in compared] == [("relu n3", "same"), ("axpy n3", "slower")]
    assert compared[1].ratio == pytest.approx(1.2, rel=1e-3) and unpaired == ["gone n3", "new n3"]


def test_exit_codes(files, capsys):
    slower = files(result({"relu n3": around(1)}), result({"relu n3": around(1.2)}))
    assert run(["bench", "compare", *map(str, slower)]) == 1
    out = capsys.readouterr().out
    assert "1.200" in out and "1 slower, 0 faster, 0 the same" in out
    assert run(["bench", "compare", *map(str, reversed(slower))]) == 0
    assert run(["bench", "compare", *map(str, slower), "--threshold", "25"]) == 0


@pytest.mark.parametrize(("key", "value"), [
    ("processor", "Q"), ("threads", 1), ("cores", 4), ("device", "cuda:0 (Fake GPU, compute capability 9.0, fp32)")])
def test_other_machines_are_refused_unless_forced(files, capsys, key, value):
    a, b = files(result({"relu n3": around(1)}), result({"relu n3": around(1)}, {**MACHINE, key: value}))
    assert run(["bench", "compare", str(a), str(b)]) == 2
    error = capsys.readouterr().err
    assert key in error and str(value) in error and error.count("\n") == 1
    assert run(["bench", "compare", str(a), str(b), "--force"]) == 0


def test_files_of_pytest_benchmark(files):
    benchmarks = {"machine_info": {"sprint": MACHINE}, "benchmarks": [
        {"extra_info": {"problem": "relu n3"}, "stats": {"data": [1e-3 * s for s in around(1)]}}]}
    compared, _ = compare_files(*files(benchmarks, result({"relu n3": around(1)})), threshold=0.05)
    assert compared[0].verdict == "same" and compared[0].ratio == pytest.approx(1)


def test_cases_without_times_are_not_compared(files):
    b = result({"relu n3": around(1), "axpy n3": around(1)})
    b["cases"][1] = {"problem": "axpy n3", "block": None, "status": "wrong"}
    compared, unpaired = compare_files(*files(result({"relu n3": around(1), "axpy n3": around(1)}), b), threshold=0.05)
    assert [c.name for c in compared] == ["relu n3"] and unpaired == ["axpy n3"]


def spoilt(change):
    data = result({"relu n3": around(1)})
    change(data)
    return data


@pytest.mark.parametrize("data", [
    [], 3, {}, spoilt(lambda d: d.pop("machine")), spoilt(lambda d: d["cases"][0].pop("samples_ms")),
    spoilt(lambda d: d["cases"][0].update(samples_ms=[])), spoilt(lambda d: d["cases"][0].update(samples_ms=[0.0])),
    spoilt(lambda d: d["cases"][0].update(samples_ms="12")), spoilt(lambda d: d.update(machine=3))])
def test_what_is_no_result_is_said_so(files, data):
    a, b = files(result({"relu n3": around(1)}), data)
    with pytest.raises(UsageError, match=r"expected (a machine|cases).*"):
        compare_files(a, b, threshold=0.05)


def test_missing_and_broken_files(files, tmp_path, capsys):
    a, b = files(result({"relu n3": around(1)}), result({"axpy n3": around(1)}))
    assert run(["bench", "compare", str(a), str(b)]) == 2  # nothing in common
    assert run(["bench", "compare", str(a), str(tmp_path / "none.json")]) == 2
    b.write_text(b.read_text()[:50])
    assert run(["bench", "compare", str(a), str(b)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3 and "none in" in errors[0] and "No such file" in errors[1] and "not JSON" in errors[2]


def test_the_inputs_stay_as_they_are(files):
    a, b = files(result({"relu n3": around(1)}), result({"relu n3": around(1)}))
    before = copy.deepcopy((a.read_bytes(), b.read_bytes()))
    compare_files(a, b, threshold=0.05)
    assert (a.read_bytes(), b.read_bytes()) == before


@pytest.mark.timeout(30)
def test_a_file_without_end_is_refused(files, capsys):
    _, b = files(result({"relu n10": around(1)}), result({"relu n10": around(1)}))
    assert run(["bench", "compare", "/dev/zero", str(b)]) == 2
    assert capsys.readouterr().err == "sprint: compare: expected a result file, got /dev/zero (larger than 64 MiB)\n"

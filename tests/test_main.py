"""The command line as a person meets it: help, one line for every mistake, Ctrl-C, exit codes."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest
import sprint
from sprint.__main__ import run
from sprint.engine.config import TrainConfig, flag
from sprint.engine.data import NAMES as DATA_NAMES
from sprint.engine.nets import NAMES as NETS
from sprint.engine.report import Report

SPRINT = [sys.executable, "-m", "sprint"]
SMALL = ["train", "cnn-a", "--data", "synthetic", "--classes", "7", "--limit", "40", "--image-size", "12", "--width",
         "0.1", "--subbatch", "6", "--device", "host", "--device-threads", "1", "--conv-algo", "explicit"]


@pytest.fixture(autouse=True)
def undrawn(monkeypatch, tmp_path):
    """No pictures where they are not the point; and every default run folder in a place of its own."""
    monkeypatch.setattr("sprint.engine.curves.curves", lambda *_arguments: b"")
    monkeypatch.chdir(tmp_path)


def call(capsys, *arguments):
    """Run one command line in this process: (exit code, standard output, standard error)."""
    code = run([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def words(text):
    """The text without frames and line breaks."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


# ---- help -------------------------------------------------------------------------------------------------------


def test_alone_it_shows_its_commands(capsys):
    code, out, err = call(capsys)
    assert code == 0 and err == ""
    for command in ("train", "eval", "nets", "doctor", "predict", "plan", "simulate"):
        assert f" {command} " in words(out)
    assert call(capsys, "--help")[:2] == call(capsys, "-h")[:2] == (code, out)


def test_the_version(capsys):
    assert call(capsys, "--version") == (0, f"sprint {sprint.__version__}\n", "")


def test_the_help_of_train_has_every_option_with_its_default(capsys):
    code, out, _ = call(capsys, "train", "--help")
    text = words(out)
    assert code == 0
    for option in fields(TrainConfig)[1:]:
        assert re.search(rf"{flag(option.name)}\b", text), option.name
    for default in ("[default: digits]", "[default: 32]", "[default: momentum]", "[default: no-augment]"):
        assert default in text
    for name in DATA_NAMES:
        assert name in text


@pytest.mark.parametrize("command", ["train", "eval", "nets", "doctor", "predict", "plan", "simulate"])
def test_every_command_has_help(capsys, command):
    code, out, err = call(capsys, command, "--help")
    assert code == 0 and err == "" and f"sprint {command}" in out


# ---- start-up ---------------------------------------------------------------------------------------------------

HEAVY = ("cupy", "mpi4py", "matplotlib", "scipy", "pandas", "numpy", "PIL", "simpy", "onnx", "safetensors",
         "tensorboardX")


def test_the_command_line_loads_nothing_heavy():
    code = f"import sys, sprint.__main__; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_training_loads_neither_mpi_nor_the_packages_of_other_commands(tmp_path):
    arguments = [*SMALL, "--steps", "1", "--out", str(tmp_path)]
    code = (f"import sys; from sprint.__main__ import run; assert run({arguments}) == 0; "
            "print([name for name in ('cupy', 'mpi4py', 'scipy', 'pandas', 'simpy', 'onnx') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def processor_seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, timeout=60, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_costs_little_more_than_the_packages_that_draw_it():
    peer = [sys.executable, "-c", "import typer, typer.rich_utils"]
    ratios = [processor_seconds([*SPRINT, "--help"]) / processor_seconds(peer) for _ in range(5)]
    assert min(ratios) < 1.6, ratios


# ---- mistakes -----------------------------------------------------------------------------------------------

MISTAKES = [
    ["trian"], ["train"], ["train", "alexnet"], ["train", "cnn-a", "--lrr", "1"], ["train", "cnn-a", "--lr", "x"],
    ["train", "cnn-a", "--lr", "-1"], ["train", "cnn-a", "--lr", "nan"], ["train", "cnn-a", "--epochs", "1.5"],
    ["train", "cnn-a", "--subbatch", "0"], ["train", "cnn-a", "lenet"], ["train", "cnn-a", "--data", "imagenet"],
    ["train", "cnn-a", "--data", "mnist"], ["train", "cnn-a", "--data", "mnist", "--data-dir", "/nowhere"],
    ["train", "cnn-a", "--schedule", "linear"], ["train", "cnn-a", "--optimizer", "adam"],
    ["train", "cnn-a", "--image-size", "2"], ["train", "cnn-a", "--device", "gpu"],
    ["train", "cnn-a", "--resume", "/nowhere"],
    ["train", "mlp", "--width", "100"], ["train", "cnn-a", "--width", "1e9"], ["nets", "cnn-a", "--width", "1e9"],
    ["train", "cnn-a", "--device-threads", "100000"], ["train", "cnn-a", "--device-threads", "2147483648"],
    ["bench", "relu", "--device", "host", "--device-threads", "100000"], ["train", "cnn-a", "--lr", "1e39"],
    ["profile", "lenet", "--device", "host", "--device-threads", "2147483648"],
    ["train", "cnn-a", "--device", "host:99999"],
    ["train", "cnn-a", "--subbatch", str(2**63)], ["train", "cnn-a", "--subbatch", str(2**31 - 1), "--device", "host"],
    ["train", "cnn-a", "--lr"], ["eval"], ["eval", "/nowhere"], ["nets", "alexnet"],
    ["nets", "cnn-a", "--image-size", "2"], ["nets", "cnn-a", "--width", "0"], ["nets", "cnn-a", "--classes", "0"],
    ["nets", "cnn-a", "--subbatch", "0"], ["--versoin"], ["predict", "cnn-a"], ["predict", "alexnet", "--machine", "x"],
]


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, tmp_path, arguments):
    if arguments[0] == "predict" and len(arguments) > 2:
        arguments = [*arguments, "--nodes", "1", "--subbatch", "1"]
    code, out, err = call(capsys, *arguments)
    assert code == 2 and out == ""
    assert err.startswith("sprint: ") and err.count("\n") == 1 and len(err) < 400
    assert list(tmp_path.iterdir()) == []


def test_a_mistyped_option_gets_the_right_one_and_the_way_to_help(capsys):
    err = call(capsys, "train", "cnn-a", "--imagesize", "28")[2]
    assert "--imagesize" in err and "--image-size" in err and "sprint train --help" in err


@pytest.mark.parametrize("out", ["file/run", "/proc/run"])
def test_a_folder_that_cannot_be_written_is_one_line_and_exit_code_1(capsys, tmp_path, out):
    (tmp_path / "file").write_text("x")
    code, _, err = call(capsys, *SMALL, "--steps", "1", "--out", tmp_path / out)
    assert code == 1 and err.count("\n") == 1 and str(tmp_path / out) in err


def test_a_damaged_checkpoint_is_one_line_and_exit_code_1(capsys, tmp_path):
    path = tmp_path / "c.safetensors"
    path.write_bytes(b"x" * 50)
    for arguments in (["eval", path], ["train", "cnn-a", "--resume", path]):
        code, _, err = call(capsys, *arguments)
        assert code == 1 and err.count("\n") == 1
        assert err.startswith("sprint: checkpoint: ") and err.endswith(f"{path}\n")


def test_a_missing_device_is_one_line_and_exit_code_1(capsys, monkeypatch):
    monkeypatch.setattr("sprint.kernels.cuda.missing", lambda *_a: "CuPy is not installed")
    code, _, err = call(capsys, *SMALL, "--device", "cuda", "--steps", "1")
    assert code == 1 and err.count("\n") == 1


def test_debug_shows_the_traceback_wherever_it_stands():
    for arguments in (["--debug", "train", "alexnet"], ["train", "alexnet", "--debug"]):
        done = subprocess.run([*SPRINT, *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and "Traceback" in done.stderr and "net: expected one of" in done.stderr


def test_a_closed_pipe_is_no_error():
    command = f"'{sys.executable}' -m sprint nets --json | head -c 1"
    done = subprocess.run(command, shell=True, capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"[", b"")


def test_a_closed_output_is_a_quiet_one(tmp_path):
    command = f"'{sys.executable}' -m sprint {' '.join(SMALL)} --steps 1 --out r >&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "") and (tmp_path / "r" / "summary.json").exists()
    done = subprocess.run(f"'{sys.executable}' -m sprint nets alexnet 2>&- >&-", shell=True, timeout=60)
    assert done.returncode == 2


def test_a_report_without_an_output_has_no_bar(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with Report().progress(0, 3):
        pass


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["nets"], ["nets", "--json"], [*SMALL, "--steps", "1"]], ids=lambda a: a[0])
def test_a_full_output_is_named(arguments, unbuffered):
    with open("/dev/full", "w") as full:
        done = subprocess.run([*SPRINT, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120,
                              env={**os.environ, "PYTHONUNBUFFERED": unbuffered})
    assert (done.returncode, done.stderr) == (1, "sprint: standard output: No space left on device\n")


def test_signs_that_the_output_does_not_know_are_replaced():
    code = "import sys, sprint.__main__ as m; m.run = lambda words: print('a \u2192 b'); m.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stdout) == (0, "a ? b\n"), done.stderr


# ---- commands -----------------------------------------------------------------------------------------------


def test_train_then_eval_then_resume(capsys, tmp_path):
    code, out, err = call(capsys, *SMALL, "--epochs", "1", "--out", "one")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"sprint   {sprint.__version__}" and lines[-1].startswith("done     loss ")
    assert re.search(r", peak \d+\.\d+ [MG]B of the process: one$", lines[-1])
    assert any(re.fullmatch(r"step 7/7  epoch 1\.00  loss \d\.\d{4}  lr \S+  [\d.]+ images/s", line) for line in lines)
    summary = json.loads((tmp_path / "one" / "summary.json").read_text())
    code, out, _ = call(capsys, "eval", "one", "--json")
    assert code == 0 and json.loads(out)["loss"] == pytest.approx(summary["loss"], rel=1e-6)
    code, out, _ = call(capsys, "eval", "one/checkpoints/step-000000007.safetensors")
    assert code == 0 and f"loss {summary['loss']:.4f}" in out and "(40 images, host:0" in out
    code, out, _ = call(capsys, "train", "cnn-a", "--resume", "one", "--steps", "9")
    assert code == 0 and "step 7, epoch 1.00" in out and "--steps was not set, is now 9" in out
    assert json.loads((tmp_path / "one" / "summary.json").read_text())["steps"] == 9


def test_options_reach_the_run(capsys, tmp_path):
    code, _, _ = call(capsys, *SMALL, "--steps", "2", "--out", "r", "--augment", "--workspace", "3", "--seed", "5",
                      "--optimizer", "adagrad", "--schedule", "constant", "--weight-decay", "0", "--momentum", "0.5",
                      "--log-every", "1")
    assert code == 0
    config = json.loads((tmp_path / "r" / "config.json").read_text())["config"]
    expected = {"augment": True, "workspace": 3, "seed": 5, "optimizer": "adagrad", "schedule": "constant",
                "weight_decay": 0.0, "momentum": 0.5, "log_every": 1, "subbatch": 6, "width": 0.1}
    assert {name: config[name] for name in expected} == expected


def test_the_default_run_folder(capsys, tmp_path):
    assert call(capsys, *SMALL, "--steps", "1")[0] == 0
    assert re.fullmatch(r"cnn-a-\d{8}-\d{6}", next((tmp_path / "runs").iterdir()).name)


def test_nets_lists_all_and_calls_the_reconstruction_one(capsys):
    code, out, _ = call(capsys, "nets")
    assert code == 0 and all(name in out for name in NETS) and "reconstruction" in out and "18,653,352" in out
    rows = json.loads(call(capsys, "nets", "--json")[1])
    assert [row["net"] for row in rows] == list(NETS)
    assert rows[0]["MMAC"] == pytest.approx(22638.54, abs=0.01)
    assert rows[0]["GFLOP fwd+bwd"] == pytest.approx(135.6, abs=0.05)


def test_the_layer_table_of_cnn_a_is_the_papers(capsys):
    code, out, _ = call(capsys, "nets", "cnn-a", "--subbatch", "6")
    assert code == 0 and "1,012.92" in out  # the paper prints 1013 MiB of columns
    assert "reconstruction: the paper's table" in out and "x'_l, x_l: size before and after pooling; m_l: maps" in out
    net = json.loads(call(capsys, "nets", "cnn-a", "--subbatch", "6", "--json")[1])
    layers = net["layers"]
    assert [layer["x_l"] for layer in layers] == [394, 196, 194, 96, 94, 46, 44, 42, 20, 18, 8, 6, 4, 1, 1]
    assert [layer["m_l"] for layer in layers] == [
        32, 64, 128, 128, 256, 256, 256, 256, 256, 384, 384, 512, 512, 1024, 1000]
    assert [layer["l"] for layer in layers if layer["p_l"] == 2] == [2, 4, 6, 9, 11]
    assert sum(layer["parameters"] for layer in layers) == net["parameters"] == 18_653_352
    assert layers[0]["x'_l"] == 394 and layers[1]["x'_l"] == 392
    assert layers[1]["column bytes"] == 6 * 4 * 9 * 32 * 392**2
    assert layers[1]["activation bytes"] == 6 * 4 * 64 * (392**2 + 196**2)


def test_a_scaled_net_is_shown_scaled(capsys):
    options = ["--image-size", "28", "--width", "0.5", "--classes", "10", "--json"]
    net = json.loads(call(capsys, "nets", "cnn-b", *options)[1])
    assert net["input"] == "3x28x28" and net["classes"] == 10 and net["layers"][0]["m_l"] == 16
    assert net["layers"][-1]["m_l"] == 10


def test_doctor_is_wired(capsys, monkeypatch):
    for good in (True, False):
        monkeypatch.setattr("sprint.bench.doctor.doctor", lambda as_json, good=good: good)
        assert call(capsys, "doctor")[0] == (0 if good else 1)


# ---- Ctrl-C -------------------------------------------------------------------------------------------------


def start(*arguments):
    """Start a run that would take very long; returns the process once it has made some steps."""
    process = subprocess.Popen([*SPRINT, *SMALL, "--steps", "1000000", "--log-every", "5", *arguments], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for line in process.stdout:
        if line.startswith("step 5/"):
            return process
    raise AssertionError(process.stderr.read())


def end(process):
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, out, err


@pytest.mark.parametrize("number, wanted", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_finishes_the_step_saves_and_says_which_it_was(tmp_path, capsys, number, wanted):
    process = start("--out", "r")
    process.send_signal(number)
    code, out, err = end(process)
    assert (code, err) == (wanted, "")
    step = int(re.search(r"stopped  after step (\d+); go on with: sprint train cnn-a --resume r", out).group(1))
    assert step >= 5 and (tmp_path / "r" / "checkpoints" / f"step-{step:09d}.safetensors").exists()
    assert (tmp_path / "r" / "curves.png").exists() and not (tmp_path / "r" / "summary.json").exists()
    assert call(capsys, "train", "cnn-a", "--resume", "r", "--steps", step + 1)[0] == 0


@pytest.mark.parametrize("number, wanted", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_stops_at_once(tmp_path, number, wanted):
    code = ("import signal, sys, time\n"
            "from sprint.engine import trainer\n"
            "from sprint.__main__ import run\n"
            "advance = trainer.Trainer.advance\n"
            "def slow(self, lr):\n"
            "    advance(self, lr)\n"
            "    if self.step == 3:\n"
            "        print('slow', flush=True)\n"
            "        time.sleep(50)\n"
            "trainer.Trainer.advance = slow\n"
            f"sys.exit(run({[*SMALL, '--out', 'r', '--steps', '9']}))\n")
    process = subprocess.Popen([sys.executable, "-c", code], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while process.stdout.readline() != "slow\n":
        assert process.poll() is None
    begin = time.monotonic()
    process.send_signal(number)
    time.sleep(0.3)
    assert process.poll() is None  # the first one waits for the step
    process.send_signal(number)
    code, _, err = end(process)
    assert (code, err) == (wanted, "") and time.monotonic() - begin < 20
    assert list((tmp_path / "r" / "checkpoints").iterdir()) == []


def test_ctrl_c_before_the_first_step_is_one_line_too():
    code = ("import os, signal, sys\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # jobs in the background ignore it
            "from sprint.engine import session\n"
            "from sprint.__main__ import run\n"
            "session.open_device = lambda *a, **b: os.kill(os.getpid(), signal.SIGINT)\n"
            f"sys.exit(run({[*SMALL, '--out', 'r']}))\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "")


def test_ctrl_c_while_the_command_line_is_loaded_is_silent_too():
    code = ("import signal, sys\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "class Pressed:\n"
            "    def find_spec(self, name, *_):\n"
            "        if name == 'typer':\n"
            "            signal.raise_signal(signal.SIGINT)\n"
            "sys.meta_path.insert(0, Pressed())\n"
            "from sprint.console import main\n"
            "main()\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "")
    setup = (Path(__file__).parents[1] / "setup.cfg").read_text()
    assert "sprint = sprint.console:main" in setup


def test_a_terminal_gets_a_bar_and_keeps_its_cursor(tmp_path):
    import pty

    parent, child = pty.openpty()
    process = subprocess.Popen([*SPRINT, *SMALL, "--steps", "40", "--out", "r"], stdout=child, stderr=child,
                               env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"})
    os.close(child)
    seen = b""
    while True:
        try:
            chunk = os.read(parent, 65536)
        except OSError:
            break
        if not chunk:
            break
        seen += chunk
    os.close(parent)
    assert process.wait(timeout=60) == 0
    text = seen.decode()
    assert "step 40/40" in text and "━" in text and "done     loss" in text and "step 20/40  epoch" not in text
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") >= 0

"""`engram demo`, from its arguments to its exit status."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import wait_until

from engram.cli.interrupt import DeferredInterrupt

TINY = ["--headless", "--max-steps", "1100"]


@pytest.mark.jax
def test_summary_plot_and_record(run, tmp_path):
    result = run("demo", *TINY, "--out", tmp_path / "new")
    assert result.exit_code == 0, result.output
    assert "not solved in" in result.stdout
    assert "items: " in result.stdout
    for options in ("--seeds 5 --headless", "--processes 3", "--env Acrobot-v1", "--env ALE/Pong-v5"):
        assert f"engram demo {options}\n" in result.stdout
    assert (tmp_path / "new" / "returns.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "new" / "result.json").read_text())["runs"][0]["steps"] == 1100
    assert "CartPole-v1, seed 0: up to 1,100 steps" in result.stderr
    assert "\x1b" not in result.output


@pytest.mark.jax
def test_json_is_all_there_is_on_stdout(run, tmp_path):
    result = run("demo", *TINY, "--json", "--seed", 3, "--seeds", 2, "--target", 5, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert [run["seed"] for run in record["runs"]] == [3, 4]
    assert record["env"] == "CartPole-v1"
    assert record["processes"] == 1
    assert record["target"] == 5
    assert record["solved"] == 2
    assert record["plot"] == str(tmp_path / "returns.png")
    assert all(run["stopped"] == "solved" and run["mean_return"] >= 5 for run in record["runs"])


@pytest.mark.jax
def test_seeds_make_a_table(run, tmp_path):
    result = run("demo", *TINY, "--seeds", 2, "--target", 5, "--out", tmp_path)
    assert "CartPole-v1, target 5" in result.stdout
    assert "solved 2 of 2 seeds" in result.stdout


@pytest.mark.jax
def test_several_processes_and_atari(run, tmp_path):
    result = run(
        "demo", "--headless", "--steps", 100, "--env", "ALE/Pong-v5", "--processes", 2, "--json", "--out", tmp_path
    )
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert (record["env"], record["processes"], record["target"]) == ("ALE/Pong-v5", 2, None)
    assert record["runs"][0]["stopped"] == "budget"
    assert record["runs"][0]["steps"] >= 100


@pytest.mark.jax
def test_other_environments_bring_their_own_threshold(run, tmp_path):
    result = run("demo", "--headless", "--max-steps", 50, "--env", "Acrobot-v1", "--json", "--out", tmp_path)
    assert json.loads(result.stdout)["target"] == -100
    assert json.loads(result.stdout)["runs"][0]["mean_return"] is None


@pytest.mark.jax
def test_an_environment_that_does_not_fit_is_refused(run, tmp_path):
    result = run("demo", "--env", "Pendulum-v1", "--out", tmp_path / "never")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: environment `Pendulum-v1` has observations `Box(")
    assert "actions `Box(-2.0, 2.0, (1,), float32)`" in result.stderr
    assert "allowed is a `Box` observation of one axis with `Discrete` actions" in result.stderr
    assert not (tmp_path / "never").exists()


@pytest.mark.jax
def test_out_must_not_be_a_file(run, tmp_path):
    (tmp_path / "taken").touch()
    result = run("demo", "--out", tmp_path / "taken")
    assert result.exit_code == 2
    assert "is a file; it must be a folder, made if missing" in result.stderr


def test_a_missing_extra_says_what_to_install(run, monkeypatch):
    for module in [name for name in sys.modules if name.startswith("engram.agents")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.setitem(sys.modules, "jax", None)
    result = run("demo", "--headless")
    assert result.exit_code == 2
    assert "which is not installed; install the extra `agents` of this package" in result.stderr
    assert "`uv pip install -e '.[agents]'` or `make install`" in result.stderr


ENDLESS = ["--headless", "--target", 501]


@pytest.mark.jax
def test_ctrl_c_ends_with_a_summary(spawn, tmp_path):
    demo = spawn("demo", *ENDLESS, "--out", tmp_path)
    for line in demo.process.stderr:
        if "| step" in line:
            break
    status, stdout, stderr = demo.ended(signal.SIGINT)
    assert status == 130, stderr
    assert stdout.startswith("interrupted after")
    assert (tmp_path / "returns.png").exists()


def descendants(pid):
    """The live processes below `pid` that run Python code of ours or its helpers."""
    tasks = Path(f"/proc/{pid}/task")
    found = [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]
    return found + [below for child in found for below in descendants(child)]


def is_there(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def three_processes(spawn, tmp_path):
    """The demo in a session of its own, once both actors play; and the processes below it."""
    demo = spawn("demo", *ENDLESS, "--out", tmp_path, "--processes", 3, new_session=True)
    for line in demo.process.stderr:
        if "| step" in line and "| step 0 " not in line:
            break
    below = descendants(demo.process.pid)
    assert len(below) >= 2
    return demo, below


@pytest.mark.jax
def test_ctrl_c_ends_all_processes(three_processes):
    demo, below = three_processes
    for pid in below:
        os.kill(pid, signal.SIGINT)  # not theirs to end by
    for _ in range(2):
        assert "| step" in demo.process.stderr.readline()
    os.killpg(demo.process.pid, signal.SIGINT)  # as a terminal does
    status, stdout, stderr = demo.ended()
    assert status == 130, stderr
    assert stdout.startswith("interrupted after")
    assert "Traceback" not in stderr
    wait_until(lambda: not any(map(is_there, below)))


@pytest.mark.jax
@pytest.mark.crash
def test_actors_outlive_no_killed_learner(three_processes):
    demo, below = three_processes
    _, _, stderr = demo.ended(signal.SIGKILL)  # until the last of them has closed it
    assert "actor 0: " in stderr
    assert "actor 1: " in stderr
    assert "Traceback" not in stderr
    wait_until(lambda: not any(map(is_there, below)))


@pytest.mark.jax
@pytest.mark.crash
def test_a_dead_actor_ends_the_demo(three_processes):
    demo, below = three_processes
    victim = next(pid for pid in below if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(victim, signal.SIGKILL)
    status, _, stderr = demo.ended()
    assert status == 2
    assert f"(process {victim}) was killed by SIGKILL; all 2 must play until the learner ends them" in stderr
    wait_until(lambda: not any(map(is_there, below)))


def test_ctrl_c_waits_for_a_check_and_a_second_one_does_not():
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with DeferredInterrupt() as interrupt:
            interrupt.check()
            signal.raise_signal(signal.SIGINT)
            assert interrupt.pressed
            with pytest.raises(KeyboardInterrupt):
                interrupt.check()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_command_line_needs_no_extra():
    script = (
        "import sys, engram.cli; print([m for m in ('jax', 'gymnasium', 'matplotlib', 'optax') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"

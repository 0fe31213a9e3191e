"""`engram demo`: arguments, output and exit status."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.support import wait_until

from engram.cli.interrupt import DeferredInterrupt

TINY = ["--headless", "--max-steps", "1100"]


@pytest.mark.jax
def test_a_run_prints_a_summary_and_writes_plot_and_result(run, tmp_path):
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
def test_json_is_the_only_output_on_stdout(run, tmp_path):
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
def test_several_seeds_are_shown_as_a_table(run, tmp_path):
    result = run("demo", *TINY, "--seeds", 2, "--target", 5, "--out", tmp_path)
    assert "CartPole-v1, target 5" in result.stdout
    assert "solved 2 of 2 seeds" in result.stdout


@pytest.mark.jax
def test_several_processes_train_on_atari(run, tmp_path):
    result = run(
        "demo", "--headless", "--steps", 100, "--env", "ALE/Pong-v5", "--processes", 2, "--json", "--out", tmp_path
    )
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert (record["env"], record["processes"], record["target"]) == ("ALE/Pong-v5", 2, None)
    assert record["runs"][0]["stopped"] == "budget"
    assert record["runs"][0]["steps"] >= 100


@pytest.mark.jax
def test_the_default_target_is_the_environments_threshold(run, tmp_path):
    result = run("demo", "--headless", "--max-steps", 50, "--env", "Acrobot-v1", "--json", "--out", tmp_path)
    assert json.loads(result.stdout)["target"] == -100
    assert json.loads(result.stdout)["runs"][0]["mean_return"] is None


@pytest.mark.jax
def test_an_unsupported_environment_is_rejected(run, tmp_path):
    result = run("demo", "--env", "Pendulum-v1", "--out", tmp_path / "never")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: environment `Pendulum-v1` has observations `Box(")
    assert "actions `Box(-2.0, 2.0, (1,), float32)`" in result.stderr
    assert "expected a `Box` observation of one axis and `Discrete` actions" in result.stderr
    assert not (tmp_path / "never").exists()


@pytest.mark.jax
def test_out_must_not_be_a_file(run, tmp_path):
    (tmp_path / "taken").touch()
    result = run("demo", "--out", tmp_path / "taken")
    assert result.exit_code == 1
    text = "`--out` must be a directory, which is created if it does not exist; got the file "
    assert result.stderr == f"error: {text}{tmp_path / 'taken'}\n"


@pytest.mark.jax
def test_results_that_cannot_be_written_are_an_error_before_the_training(run, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "out" / "result.json").mkdir(parents=True)
    for out, text in [
        (tmp_path / "file" / "out", f"cannot write {tmp_path}/file/out: Not a directory; give another `--out`"),
        (tmp_path / "out", f"cannot write {tmp_path}/out/result.json: it is a directory; give the path of a file"),
    ]:
        result = run("demo", *TINY, "--out", out)
        assert (result.exit_code, result.stderr) == (1, f"error: {text}\n")


@pytest.mark.parametrize(
    "other", [["--env", "Acrobot-v1"], ["--processes", "2"], ["--out", "x"], ["--headless"], ["--dashboard"]]
)
def test_options_that_exclude_ray(run, other):
    result = run("demo", "--ray", *other)
    text = "`--ray` cannot be used with --env, --processes, --out, --headless and --dashboard; omit them"
    assert (result.exit_code, result.stderr) == (1, f"error: {text}\n")


def test_a_missing_package_names_the_extra(run, monkeypatch):
    for module in [name for name in sys.modules if name.startswith("engram.agents")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.setitem(sys.modules, "jax", None)
    result = run("demo", "--headless")
    assert result.exit_code == 1
    text = (
        "`engram demo` needs Gymnasium, which is not installed; install it with `pip install 'engram-replay[agents]'`"
    )
    assert result.stderr == f"error: {text}\n"


UNSOLVABLE = ["--headless", "--target", 501]  # the maximum return is 500


@pytest.mark.jax
def test_ctrl_c_prints_a_summary(spawn, tmp_path):
    demo = spawn("demo", *UNSOLVABLE, "--out", tmp_path)
    for line in demo.process.stderr:
        if "| step" in line:
            break
    status, stdout, stderr = demo.end(signal.SIGINT)
    assert status == 130, stderr
    assert stdout.startswith("interrupted after")
    assert (tmp_path / "returns.png").exists()


def descendants(pid):
    """Returns the ids of all descendants of a process."""
    tasks = Path(f"/proc/{pid}/task")
    children = [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]
    return children + [descendant for child in children for descendant in descendants(child)]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def three_processes(spawn, tmp_path):
    """Starts the demo with two actors, in a session of its own, and waits until an actor has made a step.

    Returns the running command, and the ids of its descendants.
    """
    demo = spawn("demo", *UNSOLVABLE, "--out", tmp_path, "--processes", 3, new_session=True)
    for line in demo.process.stderr:
        if "| step" in line and "| step 0 " not in line:
            break
    children = descendants(demo.process.pid)
    assert len(children) >= 2
    return demo, children


@pytest.mark.jax
def test_ctrl_c_ends_all_processes(three_processes):
    demo, children = three_processes
    for pid in children:
        os.kill(pid, signal.SIGINT)  # actors ignore it
    for _ in range(2):
        assert "| step" in demo.process.stderr.readline()
    os.killpg(demo.process.pid, signal.SIGINT)  # as a terminal does
    status, stdout, stderr = demo.end()
    assert status == 130, stderr
    assert stdout.startswith("interrupted after")
    assert "Traceback" not in stderr
    wait_until(lambda: not any(map(is_running, children)))


@pytest.mark.slow
@pytest.mark.jax
@pytest.mark.crash
def test_actors_exit_if_the_learner_is_killed(three_processes):
    demo, children = three_processes
    _, _, stderr = demo.end(signal.SIGKILL)  # returns when the last actor has closed stderr
    assert "actor 0: " in stderr
    assert "actor 1: " in stderr
    assert "Traceback" not in stderr
    wait_until(lambda: not any(map(is_running, children)))


@pytest.mark.slow
@pytest.mark.jax
@pytest.mark.crash
def test_a_killed_actor_ends_the_demo(three_processes):
    demo, children = three_processes
    victim = next(pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(victim, signal.SIGKILL)
    status, _, stderr = demo.end()
    assert status == 1
    assert f"(process {victim}) was killed by SIGKILL, but training needs all 2 actors;" in stderr
    wait_until(lambda: not any(map(is_running, children)))


def test_ctrl_c_is_deferred_until_a_check_but_a_second_one_is_not():
    previous = signal.getsignal(signal.SIGINT)
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
        signal.signal(signal.SIGINT, previous)


def test_the_command_line_imports_no_package_of_an_extra():
    script = (
        "import sys, engram.cli; print([m for m in ('jax', 'gymnasium', 'matplotlib', 'optax') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"

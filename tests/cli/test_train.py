"""`engram train`: arguments, output and exit status."""

import dataclasses
import json
import re
import signal
import sys

import pytest
import typer

from engram.cli import app
from engram.cli.interrupt import DeferredInterrupt
from engram.cli.train_ftw import make_config, make_run_config


@pytest.fixture
def tiny(monkeypatch):
    """Makes the configurations of the environments tiny, so that they compile and train quickly."""
    import jax  # noqa: PLC0415
    from helpers import ftw_agent  # noqa: PLC0415 - an extra, not needed to collect the tests

    from engram.agents.ftw import config  # noqa: PLC0415

    tiny = {
        name: dataclasses.replace(
            preset,
            num_envs=4,
            max_frames=200,
            network=ftw_agent.network_config("lstm", conv_filters=((4, 6, 6),)),
            replay=ftw_agent.replay_config(max_queue_size=40, use_pixel_control=False, use_reward_prediction=False),
            evaluation_episodes=5,
        )
        for name, preset in config.PRESETS.items()
    }
    monkeypatch.setattr(config, "PRESETS", tiny)
    jax.config.update("jax_disable_most_optimizations", True)  # noqa: FBT003, JAX's signature
    yield tiny
    jax.config.update("jax_disable_most_optimizations", False)  # noqa: FBT003


def parse(env="fetch", **options):
    defaults = {"core": None, "auxiliaries": None, "memory": True, "hypers": []}
    return make_config(env, **{**defaults, **options})


@pytest.mark.jax
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("tiny")
def test_a_run_is_logged_resumed_and_drawn(run, tmp_path, monkeypatch):
    from engram.agents.ftw import evaluation  # noqa: PLC0415 - an extra

    options = ["--env", "cue", "--headless", "--sync", "--out", tmp_path / "a"]
    result = run("train", "ftw", *options)
    assert result.exit_code == 0, result.output
    assert f"FTW on cue, seed 0: started, up to 200 frames; Ctrl-C saves a checkpoint in {tmp_path}" in result.stderr
    assert re.match(r"success in [\d.]+% of 5 evaluation episodes, mean return ", result.stdout)
    assert "\n200 frames, " in result.stdout
    assert "\x1b" not in result.output
    assert (tmp_path / "a" / "curves.png").read_bytes().startswith(b"\x89PNG")

    result = run("train", "ftw", *options)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].endswith(
        "has the checkpoints of a run; resume it, or choose another directory"
    )

    result = run("train", "ftw", *options, "--frames", 300, "--resume", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record == json.loads((tmp_path / "a" / "result.json").read_text())
    assert (record["env"], record["seed"], record["stopped"], record["episodes"]) == ("cue", 0, "budget", 5)
    assert 300 <= record["frames"] < 304
    assert record["plot"] == str(tmp_path / "a" / "curves.png")

    result = run("train", "ftw", *options, "--seed", 1, "--resume")
    assert result.exit_code == 1
    message = "error: a run can be resumed only with its own configuration: `seed` is 1, but 0 in the checkpoint\n"
    assert result.stderr.endswith(message)

    # Two runs in one picture.
    (tmp_path / "b").symlink_to(tmp_path / "a")
    result = run("train", "curves", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "new" / "both.png")
    assert result.stdout == f"{tmp_path / 'new' / 'both.png'}\n"
    assert (tmp_path / "new" / "both.png").read_bytes().startswith(b"\x89PNG")

    # Ctrl-C, once: after the first learner step, then in the evaluation after training.
    check = DeferredInterrupt.check
    make = evaluation.make_environment

    def press_in_training(interrupt):
        signal.raise_signal(signal.SIGINT)
        check(interrupt)

    def press_in_evaluation(*args):
        signal.raise_signal(signal.SIGINT)
        return make(*args)

    options = ["--env", "cue", "--sync", "--headless", "--out", tmp_path / "c"]
    with monkeypatch.context() as patch:
        patch.setattr(DeferredInterrupt, "check", press_in_training)
        result = run("train", "ftw", *options)
    assert result.exit_code == 130, result.output
    assert result.stdout.startswith("interrupted; continue with the same options and --resume\n")
    (checkpoint,) = (tmp_path / "c" / "checkpoints").iterdir()
    assert int(checkpoint.name[:12]) < 200

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "make_environment", press_in_evaluation)
        result = run("train", "ftw", *options, "--resume")
    assert result.exit_code == 130, result.output
    assert result.stdout.startswith("interrupted; continue with the same options and --resume\n200 frames, ")
    result = run("train", "ftw", *options, "--resume")
    assert result.exit_code == 0, result.output


@pytest.mark.jax
def test_options_override_the_environments_configuration():
    from engram.agents.ftw.config import CUE, FETCH, RunConfig  # noqa: PLC0415 - an extra

    for env, preset in (("fetch", FETCH), ("cue", CUE)):
        config = parse(env)
        assert repr(config) == repr(preset)
    config = parse(
        "cue",
        core="lstm",
        auxiliaries=True,
        memory=False,
        hypers=["learning_rate=3e-4", "slow_core_period=7", "max_abs_reward=null", "internal_rewards=[2]"],
        seed=3,
        max_frames=5,
        num_envs=6,
        evaluation_episodes=7,
    )
    assert config.network.core.core_type == "lstm"
    assert not config.network.memory
    assert config.replay.use_pixel_control
    assert config.replay.use_reward_prediction
    assert (config.hypers.learning_rate, config.hypers.slow_core_period) == (3e-4, 7)
    assert config.hypers.internal_rewards.tolist() == [2]
    assert (config.seed, config.max_frames, config.num_envs, config.evaluation_episodes) == (3, 5, 6, 7)
    assert config.network.torso_size == CUE.network.torso_size
    assert config.replay.max_queue_size == CUE.replay.max_queue_size
    config = parse("cue", num_envs=500)
    assert config.replay.max_queue_size == 4 * config.replay.batch_size + 2 * 500
    assert make_run_config(sync=False, checkpoint_period=None) == RunConfig()
    assert make_run_config(sync=True, checkpoint_period=0) == RunConfig(sync=True, checkpoint_period=0)


@pytest.mark.jax
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--env", "pong"], '`--env` must be "fetch" or "cue"; got'),
        (["--core", "gru"], '`--core` must be "lstm", "rpth" or "rpth_dnc"; got'),
        (
            ["--hyper", "learning_rate"],
            "`--hyper` must be a name and a number, such as learning_rate=3e-4; got learning_rate",
        ),
        (
            ["--hyper", "learning_rate=x"],
            "`--hyper` must be a name and a number, such as learning_rate=3e-4; got learning_rate=x",
        ),
        (["--hyper", 'internal_rewards="x"'], "`internal_rewards` must be finite numbers [E]; got 'x'"),
        (["--hyper", "internal_rewards=[[1], [1, 2]]"], "`internal_rewards` must be finite numbers [E]; got [[1], [1,"),
        (["--hyper", "lr=1"], "hyperparameters: unknown lr; expected some of learning_rate, entropy_cost"),
        (["--resume"], "no checkpoint to resume from in "),
    ],
)
def test_bad_values_are_errors_before_anything_is_written(run, tmp_path, options, message):
    result = run("train", "ftw", *options, "--out", tmp_path / "never")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1].startswith(f"error: {message}")
    assert "Traceback" not in result.output
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(("option", "value"), [("--frames", 0), ("--seed", -1), ("--checkpoint-period", -1)])
def test_numbers_out_of_range_are_usage_errors(run, option, value):
    result = run("train", "ftw", option, value)
    assert result.exit_code == 2
    assert f"Invalid value for '{option}': Input should be greater than or equal to {value + 1}" in result.stderr


def test_an_empty_directory_is_a_usage_error(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("train", "ftw", "--out", "")
    assert result.exit_code == 2
    assert "must not be empty; give a directory (. is the working directory)" in result.stderr


@pytest.mark.jax
def test_files_of_others_are_not_overwritten(run, tmp_path):
    (tmp_path / "result.json").write_text("mine")
    result = run("train", "ftw", "--out", tmp_path)
    assert result.exit_code == 1
    assert result.stderr.endswith("but has result.json, which a run would overwrite; choose another directory\n")
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.jax
def test_errors_of_the_operating_system_name_the_file(run, tmp_path):
    (tmp_path / "file").touch()
    result = run("train", "ftw", "--out", tmp_path / "file" / "run")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == f"error: {tmp_path / 'file' / 'run'}: Not a directory"
    for name, content in (("train.csv", "frames,mean_return,loss,entropy_loss"), ("evaluation.csv", "frames,success")):
        (tmp_path / name).write_text(content + "\n")
    result = run("train", "curves", tmp_path, "--out", tmp_path / "file" / "curves.png")
    assert result.exit_code == 1
    assert result.stderr == f"error: cannot write {tmp_path / 'file' / 'curves.png'}: Not a directory\n"


@pytest.mark.jax
def test_curves_need_directories(run, tmp_path):
    (tmp_path / "file").touch()
    result = run("train", "curves", tmp_path / "file", "--out", tmp_path / "never.png")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: no logs of a run in {tmp_path / 'file'}: ")


@pytest.mark.jax
def test_curves_need_logs(run, tmp_path):
    result = run("train", "curves", tmp_path, "--out", tmp_path / "never.png")
    assert result.exit_code == 1
    expected = f"error: no logs of a run in {tmp_path}: {tmp_path / 'train.csv'} does not exist\n"
    assert result.stderr == expected
    assert not (tmp_path / "never.png").exists()


def test_help_explains_each_option(run):
    result = run("train", "ftw", "--help")
    assert result.exit_code == 0
    lines = [line.strip("│ ") for line in result.stdout.splitlines() if line.strip("│ ").startswith("--")]
    names = {line.split()[0] for line in lines}
    assert {"--env", "--out", "--resume", "--seed", "--frames", "--sync", "--core", "--auxiliaries"} <= names
    command = typer.main.get_command(app).commands["train"].commands["ftw"]
    assert [option.name for option in command.params if not option.help] == []
    assert len(command.params) == len(names) - 1  # --help


@pytest.mark.parametrize("command", [["ftw"], ["curves", "runs/a"]])
def test_a_missing_package_names_the_extra(run, monkeypatch, command):
    for module in [name for name in sys.modules if name.startswith("engram.agents")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "equinox", None)
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("train", *command)
    assert result.exit_code == 1
    assert re.fullmatch(
        r"error: .* needs \w+, which is not installed; install it with `pip install 'engram-replay\[agents\]'`\n",
        result.stderr,
    )

"""`engram train ftw`: trains FTW, with logs and checkpoints in a directory, and resumes."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console

from engram import _checks
from engram._complete_output import complete_output
from engram._extras import importing_extra
from engram.cli.directory import directory
from engram.cli.ftw_progress import take_snapshot
from engram.cli.interrupt import EXIT_INTERRUPTED, DeferredInterrupt
from engram.cli.output import fail, stdout_console, text
from engram.cli.training_progress import make_reporter
from engram.errors import EngramError

if TYPE_CHECKING:
    from engram.agents.ftw.config import FtwConfig, RunConfig
    from engram.agents.ftw.training import Progress, Result


def ftw(
    *,
    env: Annotated[
        str,
        typer.Option(
            help="Environment: fetch (find the flag in a room) or cue (remember a color to the end of a corridor)."
        ),
    ] = "fetch",
    out: Annotated[
        Path | None,
        typer.Option(
            parser=directory,
            metavar="PATH",
            help="Directory for logs, curves and checkpoints. Default: runs/ftw/ENV-SEED.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue from the newest checkpoint in --out; repeat the options of the first start. Only --frames "
            "and --checkpoint-period may differ.",
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of everything random. Without --sync, results also depend on timing.")
    ] = 0,
    frames: Annotated[
        int | None,
        typer.Option(
            min=1, help="Frames of training, a frame being a step of one environment. Default: the environment's."
        ),
    ] = None,
    sync: Annotated[
        bool,
        typer.Option(
            "--sync",
            help="Act and learn in lock step, instead of in two threads: the seed determines the run, and a resumed "
            "run equals an uninterrupted one, bit for bit on the same CPU.",
        ),
    ] = False,
    core: Annotated[
        str | None, typer.Option(help="Recurrent core: lstm, rpth or rpth_dnc. Default: the environment's, rpth.")
    ] = None,
    auxiliaries: Annotated[
        bool | None,
        typer.Option(
            "--auxiliaries/--no-auxiliaries",
            help="Train pixel control and reward prediction, too. Default: the environment's, off.",
        ),
    ] = None,
    memory: Annotated[
        bool,
        typer.Option(
            "--memory/--no-memory",
            help="Without memory, an ablation: in training and evaluation, each step starts from the core's initial "
            "state, without previous action and reward.",
        ),
    ] = True,
    num_envs: Annotated[
        int | None, typer.Option(min=1, help="Environments that step together. Default: the environment's, 32.")
    ] = None,
    hyper: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A hyperparameter, such as learning_rate=3e-4; may be repeated. Default: the environment's.",
        ),
    ] = None,
    evaluation_episodes: Annotated[
        int | None, typer.Option(min=1, help="Episodes of an evaluation. Default: the environment's.")
    ] = None,
    evaluation_period: Annotated[
        int | None,
        typer.Option(min=0, help="Frames between evaluations; 0: only after training. Default: 20000."),
    ] = None,
    checkpoint_period: Annotated[
        int | None,
        typer.Option(min=0, help="Frames between checkpoints; 0: only after training. Default: 20000."),
    ] = None,
    headless: Annotated[bool, typer.Option("--headless", help="Print plain lines instead of a live display.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train FTW, the agent of For The Win, on a small environment with frames.

    Ctrl-C saves a checkpoint. --out gets train.csv, evaluation.csv, events for TensorBoard, curves.png, result.json
    and checkpoints.
    """
    stderr = Console(stderr=True)
    try:
        import_extras()
        config = make_config(
            env,
            seed=seed,
            max_frames=frames,
            core=core,
            auxiliaries=auxiliaries,
            memory=memory,
            num_envs=num_envs,
            hypers=hyper or [],
            evaluation_episodes=evaluation_episodes,
        )
        run_config = make_run_config(
            sync=sync, evaluation_period=evaluation_period, checkpoint_period=checkpoint_period
        )
        folder = out or Path("runs/ftw") / f"{env}-{seed}"
        result = run(config, run_config, folder, stderr, resume=resume, headless=headless)
        summary = summarize(result, folder)
    except (ModuleNotFoundError, EngramError, OSError) as error:
        fail(stderr, describe_failure(error))
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
    else:
        show(stdout_console(), summary, folder)
    if result.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def import_extras() -> None:
    """Imports the packages of the extra `agents`: an error for a missing one is raised before anything else happens."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # networks of this size run faster on a CPU
    with importing_extra("agents", "`engram train`"):
        from engram.agents.ftw import curves, run_training  # noqa: F401, PLC0415, an extra


def make_config(
    env: str,
    *,
    core: Any,  # noqa: ANN401, checked here
    auxiliaries: bool | None,
    memory: bool,
    hypers: list[str],
    **overrides: int | None,
) -> FtwConfig:
    """Returns the configuration of an environment, overridden by the command line. The queue grows with `num_envs`.

    Raises:
        InvalidArgumentError: A value is invalid.
    """
    from engram.agents.ftw.config import PRESETS, RunConfig  # noqa: PLC0415, an extra
    from engram.agents.ftw.networks.core_types import CORE_TYPES  # noqa: PLC0415

    _checks.choice("`--env`", env, tuple(PRESETS))
    config = PRESETS[env]
    network = dataclasses.replace(config.network, memory=memory)
    if core is not None:
        _checks.choice("`--core`", core, CORE_TYPES)
        network = dataclasses.replace(network, core=dataclasses.replace(network.core, core_type=core))
    replay = config.replay
    if auxiliaries is not None:
        replay = dataclasses.replace(replay, use_pixel_control=auxiliaries, use_reward_prediction=auxiliaries)
    given: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    num_items = RunConfig().max_policy_lag * replay.batch_size + 2 * given.get("num_envs", config.num_envs)
    replay = dataclasses.replace(replay, max_queue_size=max(replay.max_queue_size, num_items))
    values = config.hypers.replace(parse_hypers(hypers))
    return dataclasses.replace(config, network=network, replay=replay, hypers=values, **given)


def parse_hypers(hypers: list[str]) -> dict[str, Any]:
    """Returns the values of hyperparameters by name, given as NAME=VALUE with a JSON value."""
    values = {}
    for each in hypers:
        name, separator, value = each.partition("=")
        try:
            values[name] = json.loads(value)
        except json.JSONDecodeError:
            separator = ""
        if not separator:
            raise EngramError(f"`--hyper` must be a name and a number, such as learning_rate=3e-4; got {each}")
    return values


def make_run_config(*, sync: bool, **periods: int | None) -> RunConfig:
    """Returns how to run, with the defaults where there is no value."""
    from engram.agents.ftw.config import RunConfig  # noqa: PLC0415, an extra

    return RunConfig(sync=sync, **{name: period for name, period in periods.items() if period is not None})


def run(
    config: FtwConfig, run_config: RunConfig, folder: Path, stderr: Console, *, resume: bool, headless: bool
) -> Result:
    """Trains, and shows the progress; Ctrl-C saves a checkpoint."""
    from engram.agents.ftw.run_training import run_training  # noqa: PLC0415, an extra

    started = "resumed" if resume else "started"
    line = f"FTW on {config.environment}, seed {config.seed}: {started}, up to {config.max_frames:,} frames"
    stderr.print(text(f"{line}; Ctrl-C saves a checkpoint in {folder}"), soft_wrap=True)
    returns: list[float] = []
    shown = time.perf_counter()
    frames: int | None = None  # at the last snapshot
    with DeferredInterrupt() as interrupt, make_reporter(stderr, headless=headless) as show_progress:

        def report(progress: Progress) -> None:
            nonlocal shown, frames
            frames = progress.frames if frames is None else frames
            returns.extend(progress.returns)
            del returns[:-200]
            if (elapsed := time.perf_counter() - shown) >= show_progress.period:
                show_progress(take_snapshot(progress, returns, (progress.frames - frames) / elapsed, config))
                shown, frames = time.perf_counter(), progress.frames
            interrupt.check()

        return run_training(config, run_config, folder, resume=resume, report=report, check_interrupt=interrupt.check)


def summarize(result: Result, folder: Path) -> dict[str, Any]:
    """Writes the curves and the result of a run to its directory; returns the result as JSON values."""
    from engram.agents.ftw.curves import plot_curves  # noqa: PLC0415, an extra

    evaluation = np.array(result.evaluation)
    summary = {
        "env": result.config.environment,
        "seed": result.config.seed,
        "stopped": "interrupted" if result.interrupted else "budget",
        "frames": result.frames,
        "learner_steps": result.learner_steps,
        "seconds": round(result.seconds, 3),
        "episodes": len(evaluation),
        "success": float((evaluation > 0).mean()) if len(evaluation) else None,
        "mean_return": float(evaluation.mean()) if len(evaluation) else None,
        "plot": str(plot_curves([folder], folder / "curves.png")),
    }
    with complete_output(folder / "result.json", is_directory=False) as temporary:
        temporary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary


def show(console: Console, summary: dict[str, Any], folder: Path) -> None:
    """Prints the summary as text."""
    if summary["stopped"] == "interrupted":
        headline = "interrupted; continue with the same options and --resume"
    else:
        headline = (
            f"success in {summary['success']:.1%} of {summary['episodes']} evaluation episodes, mean return"
            f" {summary['mean_return']:.3f}"
        )
    console.print(text(headline, style="bold"))
    counts = f"{summary['frames']:,} frames, {summary['learner_steps']:,} learner steps, {summary['seconds']:.1f} s"
    console.print(text(counts))
    console.print(text(f"plot: {summary['plot']}"), soft_wrap=True)
    console.print(text(f"logs: {folder}"), soft_wrap=True)


def describe_failure(error: Exception) -> str:
    """Returns the text of an error; of one of the operating system, the file and the reason."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)

"""`engram demo`: watch an agent learn from a store, then look at the plot."""

from __future__ import annotations

import importlib
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from engram.cli.interrupt import EXIT_INTERRUPTED, DeferredInterrupt
from engram.cli.program_name import program_name
from engram.cli.training_progress import Reporter, make_reporter
from engram.errors import EngramError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from engram.agents.dqn import DQNConfig, Progress, Result

EXIT_USAGE = 2
NEXT_COMMANDS = (
    "demo --seeds 5 --headless",
    "demo --processes 3",
    "demo --env Acrobot-v1",
    "demo --env ALE/Pong-v5",
)


def demo(
    *,
    env: Annotated[
        str | None,
        typer.Option(
            help="Gymnasium id: a vector observation and discrete actions, or an Atari game; CartPole-v1 if not given."
        ),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, help="1: act and learn by turns. More: this one learns, the others act.")
    ] = 1,
    seed: Annotated[
        int,
        typer.Option(
            min=0, help="Everything random follows from it; with several processes, timing plays a part, too."
        ),
    ] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Run this many seeds one after the other, from --seed on.")] = 1,
    target: Annotated[
        float | None,
        typer.Option(help="Mean return to stop at; if not given, 195 on CartPole-v1, else Gymnasium's threshold."),
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(
            "--max-steps",
            "--steps",
            min=1,
            help="Environment steps per seed at most; 100000 if not given, 200000 on Atari.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for returns.png and result.json; runs/demo/ENV if not given.")
    ] = None,
    headless: Annotated[bool, typer.Option("--headless", help="Plain lines instead of a live display.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")] = False,
) -> None:
    """Train a Double DQN with prioritized n-step replay until it solves its environment or has used its steps up.

    The clock of each seed starts with the command: imports and compilation count.
    """
    started = time.perf_counter()
    stderr = Console(stderr=True)
    try:
        import_extras()
        configs = make_configs(
            env=env, processes=processes, seeds=range(seed, seed + seeds), target=target, max_steps=max_steps
        )
        folder = out or Path("runs/demo") / configs[0].env_id.lower().replace("/", "-").replace(":", "-")
        if folder.exists() and not folder.is_dir():
            fail(stderr, f"`--out {folder}` is a file; it must be a folder, made if missing")
        startup = time.perf_counter() - started
        results = run(configs, stderr, headless=headless)
    except ModuleNotFoundError as err:
        fail(stderr, missing_extra(err))
    except EngramError as err:
        fail(stderr, str(err))
    summary = summarise(results, startup, folder)
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
    else:
        show(Console(), summary)
    if results[-1].stopped == "interrupted":
        raise typer.Exit(EXIT_INTERRUPTED)


def import_extras() -> None:
    """Import what the extra `agents` adds: takes a second or two, and shows at once what is missing."""
    # Networks of this size run faster on a CPU; it also keeps a GPU's memory free for others.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    for module in ("engram.agents.dqn", "engram.agents.dqn.plot"):
        importlib.import_module(module)


def make_configs(
    *, env: str | None, processes: int, seeds: Sequence[int], target: float | None, max_steps: int | None
) -> list[DQNConfig]:
    """One configuration per seed: the agent's defaults and what the command line says otherwise."""
    from engram.agents.dqn import DQNConfig, Environment  # noqa: PLC0415 - an extra

    env_id = env or DQNConfig().env_id
    given: dict[str, Any] = {"processes": processes}
    if env_id != DQNConfig().env_id:
        with Environment(env_id) as opened:
            given["solved_return"] = opened.reward_threshold
    if target is not None:
        given["solved_return"] = target
    if max_steps is not None:
        given["max_steps"] = max_steps
    return [DQNConfig.for_env(env_id, seed=seed, **given) for seed in seeds]


def run(configs: Sequence[DQNConfig], stderr: Console, *, headless: bool) -> list[Result]:
    """Train with each configuration in turn; Ctrl-C ends the series after the run it hit."""
    from engram.agents.dqn import train  # noqa: PLC0415 - an extra

    results: list[Result] = []
    for config in configs:
        stderr.print(
            f"{config.env_id}, seed {config.seed}: up to {config.max_steps:,} steps; Ctrl-C ends it cleanly",
            highlight=False,
        )
        with DeferredInterrupt() as interrupt, make_reporter(stderr, config, headless=headless) as show_progress:

            def report(
                progress: Progress, show: Reporter = show_progress, check: Callable[[], None] = interrupt.check
            ) -> None:
                show(progress)
                check()

            results.append(train(config, report, report_period=show_progress.period))
        stderr.print(f"  {results[-1].stopped} after {results[-1].steps:,} steps", highlight=False)
        if interrupt.pressed or results[-1].stopped == "interrupted":
            break
    return results


def summarise(results: Sequence[Result], startup: float, folder: Path) -> dict[str, Any]:
    """Plot and record the runs in `folder`; returns what was recorded, ready for JSON.

    `seconds` of a run includes `startup` (seconds of imports), so that each seed counts as if it had run alone.
    """
    from engram.agents.dqn.plot import plot_returns  # noqa: PLC0415 - an extra

    config = results[0].config
    runs = [
        {
            "seed": result.config.seed,
            "stopped": result.stopped,
            "mean_return": result.mean_return if len(result.returns) >= config.solved_episodes else None,
            "episodes": len(result.returns),
            "steps": result.steps,
            "learner_steps": result.learner_steps,
            "seconds": round(startup + result.seconds, 3),
            "inserts_per_s": round(result.table.inserts / result.seconds, 1),
            "samples_per_s": round(result.table.samples / result.seconds, 1),
        }
        for result in results
    ]
    summary = {
        "env": config.env_id,
        "processes": config.processes,
        "target": config.solved_return,
        "solved": sum(result.stopped == "solved" for result in results),
        "runs": runs,
        "plot": str(plot_returns(results, folder / "returns.png")),
    }
    (folder / "result.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary


def show(console: Console, summary: dict[str, Any]) -> None:
    """Print the summary for people: a table if there are several runs, then where to go next."""
    runs = summary["runs"]
    if len(runs) > 1:
        console.print(render(summary))
        console.print(f"solved {summary['solved']} of {len(runs)} seeds", highlight=False)
    else:
        console.print(headline(runs[0]), style="bold", highlight=False)
        console.print(
            f"items: {runs[0]['inserts_per_s']:,.0f}/s in, {runs[0]['samples_per_s']:,.0f}/s out", highlight=False
        )
    console.print(f"plot:  {summary['plot']}", highlight=False, soft_wrap=True)
    console.print("next:")
    for command in NEXT_COMMANDS:
        console.print(f"  {program_name()} {command}", markup=False, highlight=False, soft_wrap=True)


def headline(run: dict[str, Any]) -> str:
    """How one run ended."""
    words = {"solved": "solved in", "budget": "not solved in", "interrupted": "interrupted after"}
    mean = "too few episodes for a mean" if run["mean_return"] is None else f"mean return {run['mean_return']:.1f}"
    return (
        f"{words[run['stopped']]} {run['seconds']:.1f} s: {mean}, {run['episodes']:,} episodes, {run['steps']:,} steps"
    )


def render(summary: dict[str, Any]) -> Table:
    """The runs as a table."""
    target = "none" if summary["target"] is None else f"{summary['target']:g}"
    table = Table(title=f"{summary['env']}, target {target}; items per second in and out", title_justify="left")
    for name in ("seed", "stopped", "mean return", "episodes", "steps", "seconds", "in/s", "out/s"):
        table.add_column(name, justify="left" if name == "stopped" else "right")
    for run in summary["runs"]:
        mean = "-" if run["mean_return"] is None else f"{run['mean_return']:.1f}"
        table.add_row(
            str(run["seed"]),
            run["stopped"],
            mean,
            f"{run['episodes']:,}",
            f"{run['steps']:,}",
            f"{run['seconds']:.1f}",
            f"{run['inserts_per_s']:,.0f}",
            f"{run['samples_per_s']:,.0f}",
        )
    return table


def missing_extra(err: ModuleNotFoundError) -> str:
    """What to install for the module that is missing."""
    return (
        f"the demo needs the module `{err.name}`, which is not installed;"
        " install the extra `agents` of this package, e.g. `uv pip install -e '.[agents]'` or `make install`"
    )


def fail(console: Console, message: str) -> NoReturn:
    """Print an error and end the command."""
    console.print(f"error: {message}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(EXIT_USAGE)

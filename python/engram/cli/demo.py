"""`engram demo`: trains an agent from a store, and plots its returns."""

from __future__ import annotations

import importlib
import json
import os
import time
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from engram._complete_output import check_output, complete_output, make_directory
from engram._extras import importing_extra
from engram.cli.demo_page import DEFAULT_PORT, DemoPage, demo_page
from engram.cli.demo_progress import take_snapshot
from engram.cli.demo_ray import demo_on_ray
from engram.cli.interrupt import EXIT_INTERRUPTED, DeferredInterrupt
from engram.cli.output import fail, stdout_console, text
from engram.cli.program_name import program_name
from engram.cli.progress_log import ProgressLog
from engram.cli.training_progress import Reporter, make_reporter
from engram.errors import EngramError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from engram.agents.dqn import DQNConfig, Progress, Result

PLOT, RESULT = "returns.png", "result.json"

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
            help="Gymnasium id of an environment with vector observations and discrete actions, or of an Atari game. "
            "Default: CartPole-v1."
        ),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of processes. With 1, acting and learning alternate; with more, this one learns and the "
            "others act.",
        ),
    ] = 1,
    ray: Annotated[
        bool,
        typer.Option(
            "--ray",
            help="Act and store on Ray: sharded replay, actors with different exploration, and this process learns. "
            "CartPole-v1 only; needs the extra `ray`.",
        ),
    ] = False,
    seed: Annotated[
        int,
        typer.Option(min=0, help="Seed of everything random. With several processes, results also depend on timing."),
    ] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds to run one after the other, from --seed on.")] = 1,
    target: Annotated[
        float | None,
        typer.Option(
            help="Mean return at which training stops. Default: 195 for CartPole-v1, else Gymnasium's threshold."
        ),
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(
            "--max-steps",
            "--steps",
            min=1,
            help="Maximum environment steps per seed. Default: 100000, for Atari games 200000.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory for returns.png and result.json. Default: runs/demo/ENV.")
    ] = None,
    dashboard: Annotated[
        bool,
        typer.Option(
            "--dashboard",
            help="Open a live page of the training on 127.0.0.1, and print its address; needs the extra `dashboard`. "
            "It stays open after the training until Ctrl-C.",
        ),
    ] = False,
    dashboard_port: Annotated[
        int | None,
        typer.Option(
            help=f"Port of the page; 0 for any free port. Needs --dashboard. Default: {DEFAULT_PORT}.",
            min=0,
            max=65_535,
            show_default=False,
        ),
    ] = None,
    headless: Annotated[bool, typer.Option("--headless", help="Print plain lines instead of a live display.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a Double DQN with prioritized n-step replay until it solves its environment or reaches --max-steps.

    The reported time of each seed includes imports and compilation.
    """
    started = time.perf_counter()
    stderr = Console(stderr=True)
    if dashboard_port is not None and not dashboard:
        fail(stderr, "`--dashboard-port` needs --dashboard; add it, or omit --dashboard-port")
    if ray:
        if env is not None or processes != 1 or out is not None or headless or dashboard:
            fail(stderr, "`--ray` cannot be used with --env, --processes, --out, --headless and --dashboard; omit them")
        demo_on_ray(range(seed, seed + seeds), target=target, max_steps=max_steps, as_json=as_json)
        return
    try:
        import_extras()
        configs = make_configs(
            env=env, processes=processes, seeds=range(seed, seed + seeds), target=target, max_steps=max_steps
        )
        folder = out or Path("runs/demo") / configs[0].env_id.lower().replace("/", "-").replace(":", "-")
        if folder.exists() and not folder.is_dir():
            fail(stderr, f"`--out` must be a directory, which is created if it does not exist; got the file {folder}")
        check_folder(folder)
        port = (DEFAULT_PORT if dashboard_port is None else dashboard_port) if dashboard else None
        with demo_page(port, out or Path("runs")) as page:
            startup = time.perf_counter() - started
            if page is not None and page.server is not None:
                stderr.print(text(f"dashboard: {page.server.url}/training"), soft_wrap=True)
            results = run(configs, stderr, folder, headless=headless, page=page)
            summary = summarize(results, startup, folder)
            if as_json:
                typer.echo(json.dumps(summary, indent=2))
            else:
                show(stdout_console(), summary)
            if page is not None and results[-1].stopped != "interrupted":
                page.wait_for_ctrl_c(stderr)
    except (ModuleNotFoundError, EngramError) as error:
        fail(stderr, str(error))
    if results[-1].stopped == "interrupted":
        raise typer.Exit(EXIT_INTERRUPTED)


def check_folder(folder: Path) -> None:
    """Creates the directory of the results; checks before the training that they can be written.

    Raises:
        StorageError: They cannot be written.
    """
    try:
        make_directory(folder)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"cannot write {folder}: {error.strerror or error}; give another `--out`") from error
    for name in (PLOT, RESULT):
        check_output(folder / name)


def import_extras() -> None:
    """Imports the packages of the extra `agents`: an error for a missing one is raised before anything else happens."""
    # Networks of this size run faster on a CPU, and a GPU's memory stays free for other programs.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with importing_extra("agents", "`engram demo`"):
        for module in ("engram.agents.dqn.training", "engram.agents.dqn.plot"):
            importlib.import_module(module)


def make_configs(
    *, env: str | None, processes: int, seeds: Sequence[int], target: float | None, max_steps: int | None
) -> list[DQNConfig]:
    """Returns one configuration per seed: the agent's defaults, overridden by the command line."""
    from engram.agents.dqn import DQNConfig, Environment  # noqa: PLC0415 - an extra

    env_id = env or DQNConfig().env_id
    overrides: dict[str, Any] = {"processes": processes}
    if env_id != DQNConfig().env_id:
        with Environment(env_id) as environment:
            overrides["solved_return"] = environment.reward_threshold
    if target is not None:
        overrides["solved_return"] = target
    if max_steps is not None:
        overrides["max_steps"] = max_steps
    return [DQNConfig.for_env(env_id, seed=seed, **overrides) for seed in seeds]


def run(
    configs: Sequence[DQNConfig], stderr: Console, folder: Path, *, headless: bool, page: DemoPage | None = None
) -> list[Result]:
    """Trains with each configuration; Ctrl-C ends the current run, and no further run starts.

    The progress of each run is logged below `folder`, for the dashboard. `page` shows the store of the current run.
    """
    from engram.agents.dqn import train  # noqa: PLC0415 - an extra

    results: list[Result] = []
    for config in configs:
        run_name = f"{config.env_id}, seed {config.seed}"
        stderr.print(text(f"{run_name}: up to {config.max_steps:,} steps; Ctrl-C stops it, results are kept"))
        with (
            DeferredInterrupt() as interrupt,
            ProgressLog(folder / f"seed-{config.seed}") as log,
            make_reporter(stderr, headless=headless) as show_progress,
        ):

            def report(
                progress: Progress,
                config: DQNConfig = config,
                show: Reporter = show_progress,
                check: Callable[[], None] = interrupt.check,
                add: Callable[[Progress], None] = log.add,
            ) -> None:
                add(progress)
                if page is not None:
                    page.store = progress.store
                show(take_snapshot(progress, config))
                check()

            results.append(train(config, report, report_period=show_progress.period))
        if page is not None:
            page.store = None
        stderr.print(text(f"  {results[-1].stopped} after {results[-1].steps:,} steps"))
        if interrupt.pressed or results[-1].stopped == "interrupted":
            break
    return results


def summarize(results: Sequence[Result], startup: float, folder: Path) -> dict[str, Any]:
    """Writes plot and results of the runs to `folder`; returns the results as JSON values.

    `seconds` of each run includes `startup`, the seconds that imports took, as if each seed had run alone.
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
        "plot": str(plot_returns(results, folder / PLOT)),
    }
    with complete_output(folder / RESULT, is_directory=False) as temporary:
        temporary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary


def show(console: Console, summary: dict[str, Any]) -> None:
    """Prints the summary as text: the runs, the plot, and commands to try next."""
    runs = summary["runs"]
    if len(runs) > 1:
        console.print(render(summary))
        console.print(text(f"solved {summary['solved']} of {len(runs)} seeds"))
    else:
        console.print(text(headline(runs[0]), style="bold"))
        console.print(
            text(f"items: {runs[0]['inserts_per_s']:,.0f}/s inserted, {runs[0]['samples_per_s']:,.0f}/s sampled")
        )
    console.print(text(f"plot:  {summary['plot']}"), soft_wrap=True)
    console.print("try next:")
    for command in NEXT_COMMANDS:
        console.print(text(f"  {program_name()} {command}"), soft_wrap=True)


def headline(run: dict[str, Any]) -> str:
    """Returns one line about the end of a run."""
    outcomes = {"solved": "solved in", "budget": "not solved in", "interrupted": "interrupted after"}
    mean = "too few episodes for a mean" if run["mean_return"] is None else f"mean return {run['mean_return']:.1f}"
    return (
        f"{outcomes[run['stopped']]} {run['seconds']:.1f} s: {mean}, {run['episodes']:,} episodes, "
        f"{run['steps']:,} steps"
    )


def render(summary: dict[str, Any]) -> Table:
    """Returns the runs as a table."""
    target = "none" if summary["target"] is None else f"{summary['target']:g}"
    table = Table(
        title=f"{summary['env']}, target {target}; inserts and samples in items per second", title_justify="left"
    )
    for name in ("seed", "stopped", "mean return", "episodes", "steps", "seconds", "inserts/s", "samples/s"):
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

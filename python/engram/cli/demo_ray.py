"""`engram demo --ray`: trains on a local Ray cluster."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from engram._extras import importing_extra
from engram.cli.output import fail, text
from engram.errors import EngramError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["demo_on_ray"]


def demo_on_ray(seeds: Sequence[int], *, target: float | None, max_steps: int | None, as_json: bool) -> None:
    """Trains once per seed, and prints each result as text, or all of them as JSON."""
    stderr = Console(stderr=True)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    logging.basicConfig(format="%(message)s")
    overrides: dict[str, Any] = {"solved_return": target, "max_steps": max_steps}
    overrides = {name: value for name, value in overrides.items() if value is not None}
    results = []
    try:
        with importing_extra("agents", "`engram demo --ray`"):
            from engram.agents import apex_dqn_ray  # noqa: PLC0415, an extra
        for seed in seeds:
            config = replace(apex_dqn_ray.CONFIG, seed=seed, **overrides)
            result = apex_dqn_ray.run(config, report=lambda line: stderr.print(text(line)))
            results.append({"seed": seed, **asdict(result)})
            stderr.print(text(f"seed {seed}: {apex_dqn_ray.describe(result)}", style="bold"))
    except (ImportError, EngramError) as error:
        fail(stderr, str(error))
    if as_json:
        typer.echo(json.dumps(results, indent=2))

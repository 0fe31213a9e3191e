"""`engram train`: one command per agent, and their learning curves."""

import typer

from engram.cli.train_curves import curves
from engram.cli.train_ftw import ftw

app = typer.Typer(no_args_is_help=True, help="Train an agent, with logs and checkpoints in a directory.")
app.command()(ftw)
app.command()(curves)

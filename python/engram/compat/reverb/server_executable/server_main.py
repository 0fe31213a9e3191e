"""Serves the tables of a config in protobuf's text format until Ctrl-C or SIGTERM. Needs the package protobuf.

python -m engram.compat.reverb.server_executable.server_main --config='
    port: 8000
    tables {
      table_name: "replay"
      sampler { prioritized { priority_exponent: 0.8 } }
      remover { fifo: true }
      max_size: 100000
      rate_limiter { samples_per_insert: 1 min_size_to_sample: 100 min_diff: -1e9 max_diff: 1e9 }
    }'
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from engram.compat.reverb.server import Server
from engram.compat.reverb.server_executable.server_from_proto import parse_config, tables_from_proto

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves the tables of `--config` until Ctrl-C or SIGTERM.

    Prints the table names and the port to stderr once it serves.

    Args:
        arguments: Command-line arguments without the program's name. Default: those of the process.

    Raises:
        SystemExit: Status 2 if `--config` is missing, 1 if the config cannot be served. stderr states the reason.
    """
    parser = argparse.ArgumentParser(prog="reverb_server", description="Serve tables for Reverb's clients.")
    text = "the text of a ReverbServerConfig in protobuf's text format, not the name of a file"
    parser.add_argument("--config", required=True, help=text)
    options = parser.parse_args(arguments)
    try:
        config = parse_config(options.config)
        tables = tables_from_proto(config.tables)
        server = Server(tables, port=config.port)
    except (ValueError, TypeError, NotImplementedError, RuntimeError, ImportError) as error:
        parser.exit(1, f"error: {error}\n")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        names = ", ".join(table.name for table in tables)
        print(f"serving {names} on port {server.port}", file=sys.stderr, flush=True)  # noqa: T201, a command-line program
        server.wait()
    server.stop()


if __name__ == "__main__":
    main()

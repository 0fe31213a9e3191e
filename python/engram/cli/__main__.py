"""`python -m engram.cli` is `engram`."""

from engram.cli.app import main

main()

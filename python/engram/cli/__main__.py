"""`python -m engram.cli` runs `engram`."""

from engram.cli.app import main

main()

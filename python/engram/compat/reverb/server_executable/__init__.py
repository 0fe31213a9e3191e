"""The command that serves tables described by a text config."""

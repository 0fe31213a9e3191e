"""Agents that learn from an Engram store; each one is a package of its own and needs the extra `agents`."""

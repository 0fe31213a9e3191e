"""Agents that learn from an Engram store, one package each; they need the extra `agents`."""

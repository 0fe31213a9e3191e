"""The class of FTW's internal rewards; it is the agent's own."""

from engram.agents.ftw.internal_rewards import InternalRewards

__all__ = ["InternalRewards"]

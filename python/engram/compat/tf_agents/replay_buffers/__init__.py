"""Replay buffers with the API of `tf_agents.replay_buffers`."""

from engram.compat.tf_agents.replay_buffers import replay_buffer, table, tf_uniform_replay_buffer
from engram.compat.tf_agents.replay_buffers.replay_buffer import ReplayBuffer
from engram.compat.tf_agents.replay_buffers.tf_uniform_replay_buffer import TFUniformReplayBuffer

__all__ = ["ReplayBuffer", "TFUniformReplayBuffer", "replay_buffer", "table", "tf_uniform_replay_buffer"]

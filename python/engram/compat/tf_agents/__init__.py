"""TF-Agents' uniform replay buffer on Engram's engine, with TF-Agents' module paths. It needs TensorFlow.

from engram.compat import tf_agents

buffer = tf_agents.replay_buffers.TFUniformReplayBuffer(data_spec, batch_size=1, max_length=100_000)
"""

from typing import TYPE_CHECKING

from engram._lazy_modules import lazy_modules

if TYPE_CHECKING:
    from engram.compat.tf_agents import replay_buffers

__all__ = ["replay_buffers"]

if not TYPE_CHECKING:
    __getattr__ = lazy_modules("engram.compat.tf_agents", ("replay_buffers",))

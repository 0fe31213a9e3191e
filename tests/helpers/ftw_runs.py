"""Tiny runs of FTW, for tests that train in a directory, in this process and in others."""

import dataclasses

from engram.agents.ftw.config import FtwConfig, RunConfig
from helpers import ftw_agent

TINY = FtwConfig(
    environment="fetch",
    num_envs=4,
    max_frames=2000,
    network=ftw_agent.network_config(conv_filters=((4, 6, 6),)),
    replay=ftw_agent.replay_config(
        sequence_length=9, max_queue_size=40, max_pixel_control_buffer_size=8, max_reward_prediction_buffer_size=20
    ),
    hypers=ftw_agent.HYPERS,
    evaluation_episodes=6,
)
SYNC = RunConfig(sync=True, log_period=3, evaluation_period=500, checkpoint_period=0)


def tiny(max_frames=2000, **options):
    return dataclasses.replace(TINY, max_frames=max_frames, **options)

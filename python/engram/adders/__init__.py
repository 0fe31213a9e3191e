"""Adders: they take dm_env time steps of an environment, and write the items that an agent learns from."""

from engram.adders.base import Adder, TimeStep
from engram.adders.episode import EpisodeAdder
from engram.adders.multi_sequence import MultiSequenceAdder
from engram.adders.rnn_sequence import NonOverlappingRNNSequenceAdder
from engram.adders.sequence import EndBehavior, SequenceAdder
from engram.adders.step import DEFAULT_PRIORITY_TABLE, MaskedStep, Step, Transition
from engram.adders.structured import StructuredAdder
from engram.adders.transition import NStepTransitionAdder

__all__ = [
    "DEFAULT_PRIORITY_TABLE",
    "Adder",
    "EndBehavior",
    "EpisodeAdder",
    "MaskedStep",
    "MultiSequenceAdder",
    "NStepTransitionAdder",
    "NonOverlappingRNNSequenceAdder",
    "SequenceAdder",
    "Step",
    "StructuredAdder",
    "TimeStep",
    "Transition",
]

"""Cores by the names of the published agent's argument `core_type`."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import jax

from engram import _checks
from engram.agents.ftw.networks.dnc.memory_access import MemoryAccess
from engram.agents.ftw.networks.gaussian_head import DEFAULT_CONFIG, GaussianHeadConfig
from engram.agents.ftw.networks.lstm import LSTM
from engram.agents.ftw.networks.rpth import RPTH

CoreType: TypeAlias = Literal["lstm", "rpth", "rpth_dnc"]
CORE_TYPES: tuple[CoreType, ...] = get_args(CoreType)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreConfig:
    """Options of `make_core`; the defaults are those of the published agent."""

    core_type: CoreType = "rpth"  # "rpth_dnc": RPTH with a memory
    hidden_size: int = 256  # units of each LSTM
    num_dimensions: int = 256  # of z; not of "lstm", whose z is its output
    num_slow_cores: int = 1
    head: GaussianHeadConfig = DEFAULT_CONFIG
    strict_period_order: bool = True  # sort several periods in descending order
    dnc_memory_size: int = 450  # slots
    dnc_word_size: int = 32  # numbers per slot
    dnc_num_reads: int = 4  # read heads
    dnc_num_writes: int = 1  # write heads
    dnc_clip_value: float | None = None  # see `RPTH`
    use_dnc_linear_projection: bool = True  # see `RPTH`


def make_core(in_size: int, config: CoreConfig, *, key: jax.Array) -> LSTM | RPTH:
    """Returns a core for embeddings f[B, in_size].

    Raises:
        InvalidArgumentError: If `core_type` is unknown, or another option has a wrong type or value.
    """
    _checks.choice("`core_type`", config.core_type, CORE_TYPES)
    hidden_size = _checks.integer("`hidden_size`", config.hidden_size)
    core_key, memory_key = jax.random.split(key)
    if config.core_type == "lstm":
        return LSTM(in_size, hidden_size, key=core_key)
    memory = None
    if config.core_type == "rpth_dnc":
        sizes = (config.dnc_memory_size, config.dnc_word_size, config.dnc_num_reads, config.dnc_num_writes)
        memory = MemoryAccess(hidden_size, *sizes, key=memory_key)
    return RPTH(
        in_size,
        hidden_size,
        config.num_dimensions,
        num_slow_cores=config.num_slow_cores,
        memory=memory,
        dnc_clip_value=config.dnc_clip_value,
        use_dnc_linear_projection=config.use_dnc_linear_projection,
        head=config.head,
        strict_period_order=config.strict_period_order,
        key=core_key,
    )

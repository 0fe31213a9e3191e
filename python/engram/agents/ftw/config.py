"""The agent's configuration: small frozen values, each default written once."""

from dataclasses import dataclass, field
from typing import Literal

from engram import _checks
from engram.agents.ftw.hypers import Hypers
from engram.agents.ftw.networks.core_types import CoreConfig
from engram.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """Sizes of the networks. The defaults are the paper's, for frames of 84 x 84 pixels."""

    conv_filters: tuple[tuple[int, int, int], ...] = ((32, 8, 4), (64, 4, 2))
    """Channels, kernel and stride of the torso's convolutions."""
    residual_filters: tuple[tuple[int, int, int], ...] = ((64, 3, 1), (64, 3, 1))
    """The same of its residual blocks, which keep the shape."""
    torso_size: int = 256
    """Features of a frame."""
    activate_last: bool = False
    """Whether these features pass the nonlinearity."""
    core: CoreConfig = field(default_factory=CoreConfig)
    """Type and sizes of the recurrent core."""
    head_hidden_size: int = 256
    """Units of the hidden layers of policy and value."""
    pixel_control_cells: int = 20
    """Cells along each side of the picture, for pixel control."""
    pixel_control_channels: int = 32
    """Channels of the hidden images of pixel control."""
    reward_prediction_hidden_size: int = 128
    """Units of the hidden layer of reward prediction."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """dtype of the torso's arithmetic; parameters, core and heads are float32."""
    rematerialize: bool = False
    """Whether gradients compute each step of the core again instead of storing it; for "rpth_dnc"."""
    memory: bool = True
    """If False, an ablation: each step starts from the core's initial state, without previous action and reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """Tables, and the batches that the learner draws from them."""

    sequence_length: int = 20
    """T: transitions of an item."""
    batch_size: int = 16
    """B: items of a batch; B // 2 windows of either kind for reward prediction."""
    max_queue_size: int = 128
    """Items that the queue holds. Actors wait when it is full."""
    use_pixel_control: bool = True
    """Whether to train the auxiliary task pixel control."""
    use_reward_prediction: bool = True
    """Whether to train the auxiliary task reward prediction."""
    max_pixel_control_buffer_size: int = 100
    """Items for pixel control; the oldest is removed first."""
    max_reward_prediction_buffer_size: int = 800
    """Windows with a reward of zero, and as many with another one; the oldest is removed first."""
    reward_prediction_sequence_length: int = 3
    """Frames of a window."""

    def __post_init__(self) -> None:
        """Checks the sizes.

        Raises:
            InvalidArgumentError: A size is not a positive integer, or a table is smaller than its part of a batch.
        """
        for name in ("sequence_length", "batch_size", "max_queue_size", "reward_prediction_sequence_length"):
            _checks.integer(f"`{name}`", getattr(self, name))
        tables = [("max_queue_size", True, self.batch_size)]
        tables += [("max_pixel_control_buffer_size", self.use_pixel_control, self.batch_size)]
        tables += [("max_reward_prediction_buffer_size", self.use_reward_prediction, self.num_windows)]
        for name, used, needed in tables:
            if used and _checks.integer(f"`{name}`", getattr(self, name)) < needed:
                raise InvalidArgumentError(
                    f"`{name}` must be at least {needed}, the items of a batch; got {getattr(self, name)}"
                )
        if self.use_reward_prediction and self.num_windows == 0:
            raise InvalidArgumentError(
                f"`batch_size` must be at least 2 for reward prediction, whose batches have two halves; got"
                f" {self.batch_size}"
            )

    @property
    def num_windows(self) -> int:
        """Windows of either kind in a batch for reward prediction."""
        return self.batch_size // 2

    @property
    def has_auxiliary_tasks(self) -> bool:
        """Whether there is any."""
        return self.use_pixel_control or self.use_reward_prediction


def _paper_hypers() -> Hypers:
    """Returns values in the middle of the ranges that population-based training starts from."""
    return Hypers.create(
        learning_rate=3e-4,
        entropy_cost=2e-3,
        reward_prediction_cost=0.3,
        pixel_control_cost=0.03,
        kld_prior_fixed_cost=3e-3,
        kld_prior_posterior_cost=0.03,
        scale_grads_fast_to_slow=0.3,
        slow_core_period=10,
        internal_rewards=[1.0],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FtwConfig:
    """A training run. A frame is one transition of one environment."""

    environment: Literal["fetch", "cue"] = "fetch"
    """Name of the environment; see `engram.envs`."""
    seed: int = 0
    """Seed of everything random: weights, policy, environments, samples of the store."""
    num_envs: int = 32
    """Environments that step together."""
    max_frames: int = 300_000
    """Frames of training."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """Sizes of the networks."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """Tables and batches."""
    hypers: Hypers = field(default_factory=_paper_hypers)
    """Hyperparameters at the start."""
    evaluation_episodes: int = 200
    """Episodes of the evaluation after training, with seeds that training does not use."""

    def __post_init__(self) -> None:
        """Checks the counts.

        Raises:
            InvalidArgumentError: A count is not a positive integer, or the queue cannot take what one step of all
                environments may add to an incomplete batch, so that actors and learner would wait for each other.
        """
        for name in ("num_envs", "max_frames", "evaluation_episodes"):
            _checks.integer(f"`{name}`", getattr(self, name))
        # A step may complete two items: one whose last row is the next item's first, and the padded last one.
        needed = self.replay.batch_size - 1 + 2 * self.num_envs
        if self.replay.max_queue_size < needed:
            raise InvalidArgumentError(
                f"`max_queue_size` must be at least {needed}, for `batch_size` {self.replay.batch_size} and `num_envs`"
                f" {self.num_envs}; got {self.replay.max_queue_size}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """How a run acts, logs and saves; what it trains is in `FtwConfig`."""

    sync: bool = False
    """Actors and learner in lock step: a seed determines the run. If False, actors are in a thread of their own."""
    max_policy_lag: int = 4
    """Without `sync`: actors wait while the queue has the items of this many learner steps."""
    log_period: int = 10
    """Learner steps per row of train.csv, which has their means."""
    evaluation_period: int = 20_000
    """Frames between evaluations; 0: only after training."""
    checkpoint_period: int = 20_000
    """Frames between checkpoints; 0: only after training."""
    keep_checkpoints: int = 2
    """Newest checkpoints that are kept."""

    def __post_init__(self) -> None:
        """Checks the counts.

        Raises:
            InvalidArgumentError: A count is not a positive integer, or a period of frames is negative.
        """
        for name in ("max_policy_lag", "log_period", "keep_checkpoints"):
            _checks.integer(f"`{name}`", getattr(self, name))
        for name in ("evaluation_period", "checkpoint_period"):
            _checks.integer(f"`{name}`", getattr(self, name), low=0)


_GRID_NETWORK = NetworkConfig(
    conv_filters=((16, 6, 6), (32, 3, 2)),
    residual_filters=((32, 3, 1), (32, 3, 1)),
    torso_size=128,
    core=CoreConfig(hidden_size=64, num_dimensions=32),
    head_hidden_size=64,
    pixel_control_cells=7,
)
"""For frames of 42 x 42 pixels: 7 x 7 cells of 6 x 6 pixels."""

# Small batches learn with fewer frames than the published 16: what counts is the number of updates.
_GRID_REPLAY = ReplayConfig(
    sequence_length=20, batch_size=4, max_queue_size=128, use_pixel_control=False, use_reward_prediction=False
)

_GRID_HYPERS = Hypers.create(
    learning_rate=5e-4,
    entropy_cost=3e-3,
    reward_prediction_cost=0.3,
    pixel_control_cost=0.03,
    kld_prior_fixed_cost=1e-4,
    kld_prior_posterior_cost=1e-3,
    scale_grads_fast_to_slow=0.3,
    slow_core_period=5,
    internal_rewards=[1.0],
    discount=0.95,
)

FETCH = FtwConfig(
    environment="fetch",
    max_frames=120_000,
    network=_GRID_NETWORK,
    replay=_GRID_REPLAY,
    hypers=_GRID_HYPERS,
    evaluation_episodes=200,
)
"""Fetch, with auxiliary tasks off."""

CUE = FtwConfig(
    environment="cue",
    max_frames=80_000,
    network=_GRID_NETWORK,
    replay=_GRID_REPLAY,
    hypers=_GRID_HYPERS.replace({"discount": 0.99}),
    evaluation_episodes=500,
)
"""Cue, with auxiliary tasks off. `network.memory=False` is the ablation, which cannot solve it."""

PRESETS = {"fetch": FETCH, "cue": CUE}
"""Configuration by environment."""

"""The learner."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from engram import _checks
from engram._extras import importing_extra
from engram.adders.step import MaskedStep
from engram.agents.ftw import learner
from engram.agents.ftw import separate_optimizers as separate
from engram.agents.ftw.agent_networks import AgentNetworks, split_networks
from engram.agents.ftw.hyperparameters import Hyperparameter
from engram.agents.ftw.hypers import Hypers
from engram.agents.ftw.internal_rewards import InternalRewards
from engram.agents.ftw.learner import LearnerState
from engram.agents.ftw.trajectory import Batch
from engram.compat.ftw._same_arguments import arguments_of
from engram.compat.ftw.agents.tf.ftw._batches import to_items, to_windows, zeros_like_items, zeros_like_windows
from engram.compat.ftw.agents.tf.ftw._learner_weights import LearnerWeights
from engram.compat.ftw.counting import Counter
from engram.compat.ftw.loggers import Logger
from engram.compat.ftw.tf.networks._lazy_module import Seed, random_key, value_of
from engram.compat.ftw.tf.networks.auxiliary import RewardPredictionNetwork, RNNPixelControlNetwork
from engram.compat.ftw.tf.networks.ftw_network import FtwNetwork
from engram.compat.ftw.tf.networks.recurrence import RPTH, period_of
from engram.errors import InvalidArgumentError

with importing_extra("agents", "engram.compat.ftw"):
    import equinox as eqx
    import jax

__all__ = ["FtwLearner"]

POLL_INTERVAL = 0.01
"""Seconds between two checks whether there is a batch, or room in the queue."""

# The buffers of the state are not reused: actors in other threads may use its parameters during a step.
_JOINT_UPDATE = jax.jit(learner.update, static_argnames="static")
_SEPARATE_UPDATES = jax.jit(separate.update, static_argnames="static")


class FtwLearner:
    """A learner with V-trace, auxiliary tasks and a hierarchical core.

    Numbers may be given as `Hyperparameter`s, which are read at each step: new values need no compilation.
    """

    def __init__(  # noqa: PLR0917, FTW's signature
        self,
        policy_network: FtwNetwork,
        dataset: Iterable[Any],
        learning_rate: float | Hyperparameter,
        slow_core_period: int | Hyperparameter | Sequence[int | Hyperparameter],
        internal_rewards: InternalRewards,
        pixel_control_network: RNNPixelControlNetwork | None = None,
        reward_prediction_network: RewardPredictionNetwork | None = None,
        pixel_control_dataset: Iterable[Any] | None = None,
        nonzero_reward_prediction_dataset: Iterable[Any] | None = None,
        zero_reward_prediction_dataset: Iterable[Any] | None = None,
        entropy_cost: float | Hyperparameter = 0.0,
        kld_prior_fixed_cost: float | Hyperparameter = 1e-4,
        kld_prior_posterior_cost: float | Hyperparameter = 1e-3,
        pixel_control_cost: float | Hyperparameter = 0.01,
        reward_prediction_cost: float | Hyperparameter = 0.1,
        baseline_cost: float = 0.5,
        discount: float | Hyperparameter = 0.99,
        max_abs_reward: float | None = None,
        max_gradient_norm: float | None = None,
        rms_prop_epsilon: float = 0.01,
        learning_rate_decay_steps: int = 0,
        can_sample: bool | Callable[[], bool] | None = None,  # noqa: FBT001, FTW's signature
        can_sample_auxiliary: bool | Callable[[], bool] | None = None,  # noqa: FBT001, FTW's signature
        uint_pixels_to_float: bool = True,  # noqa: FBT001, FBT002, FTW's signature
        learner_id: int = 0,
        counter: Any = None,  # noqa: ANN401, a Counter or Acme's
        logger: Logger | None = None,
        *,
        separate_optimizers: bool = False,
        seed: Seed | None = None,
    ) -> None:
        """Sets up the learner.

        Args:
            policy_network: The policy network. It gets the new parameters after each step.
            dataset: Iterable of batches for the actor-critic: `Step`s or `MaskedStep`s `[B, T, ...]`, or samples with
                these as `data`; see `create_datasets`. Arrays of NumPy or JAX, or tensors of TensorFlow or PyTorch in
                main memory.
            learning_rate: Learning rate of RMSProp.
            slow_core_period: The period of the policy network's core.
            internal_rewards: The internal rewards of the policy network's embedding, which uses these if it has none.
            pixel_control_network: With it and its dataset, the task pixel control is on.
            reward_prediction_network: With it and its two datasets, the task reward prediction is on.
            pixel_control_dataset: As `dataset`.
            nonzero_reward_prediction_dataset: Iterable of windows whose last reward is not zero.
            zero_reward_prediction_dataset: Iterable of windows whose last reward is zero.
            entropy_cost: Weight of the entropy loss.
            kld_prior_fixed_cost: Weight of KL(prior || fixed prior).
            kld_prior_posterior_cost: Weight of KL(posterior || prior).
            pixel_control_cost: Weight of the pixel control loss.
            reward_prediction_cost: Weight of the reward prediction loss.
            baseline_cost: Weight of the baseline loss.
            discount: Discount of the agent.
            max_abs_reward: Internal rewards are clipped to this magnitude. Default: they are not.
            max_gradient_norm: Gradients with a larger global norm are scaled down to it. Default: they are not.
            rms_prop_epsilon: Added to the mean squared gradients.
            learning_rate_decay_steps: Steps until the learning rate is 0. Default: 0, it is constant.
            can_sample: Whether `dataset` has a batch: a bool or a callable. Default: always.
            can_sample_auxiliary: Whether the datasets of all auxiliary tasks have one. Default: never.
            uint_pixels_to_float: As in `FtwActor`.
            learner_id: Number of this learner, which separates its random numbers from those of others.
            counter: Counts `steps` and `walltime`. Default: a new one.
            logger: Receives the metrics of each step. Default: they are not logged.
            separate_optimizers: Whether each task has an optimizer of its own. Default: one for the sum of all losses.
            seed: Seed of the latent variables.

        Raises:
            InvalidArgumentError: A network has the wrong type or does not share the parts of the policy network, only
                one of both datasets of reward prediction is given, period or internal rewards are not those of the
                policy network, or a number is invalid.
        """
        given = dict(locals())
        _check_networks(policy_network, pixel_control_network, reward_prediction_network)
        if (nonzero_reward_prediction_dataset is None) != (zero_reward_prediction_dataset is None):
            raise InvalidArgumentError(
                "`nonzero_reward_prediction_dataset` and `zero_reward_prediction_dataset` belong together; got only one"
            )
        self._policy = policy_network
        self._control = None if pixel_control_dataset is None else pixel_control_network
        self._prediction = None if zero_reward_prediction_dataset is None else reward_prediction_network
        self._batches = iter(dataset)
        self._auxiliary_batches = [
            iter(() if each is None else each)
            for each in (pixel_control_dataset, zero_reward_prediction_dataset, nonzero_reward_prediction_dataset)
        ]
        self._values = arguments_of(Hypers, given)
        self._check_shared_values()
        self._can_sample = _predicate("`can_sample`", can_sample, default=True)
        self._can_sample_auxiliary = _predicate("`can_sample_auxiliary`", can_sample_auxiliary, default=False)
        _checks.boolean("`uint_pixels_to_float`", uint_pixels_to_float)
        _checks.boolean("`separate_optimizers`", separate_optimizers)
        self._scales_pixels = uint_pixels_to_float
        self._separate = separate_optimizers
        self._counter = Counter() if counter is None else counter
        self._logger = logger
        self._key = jax.random.fold_in(random_key(seed), _checks.integer("`learner_id`", learner_id, low=0))
        self._state: LearnerState | None = None
        self._static: Any = None
        self._num_steps = 0
        self._last_time: float | None = None
        # Only now, since none of the checks failed.
        if policy_network.embed.internal_rewards is None:
            policy_network.embed.internal_rewards = internal_rewards
        if reward_prediction_network is not None:
            reward_prediction_network.embedding = policy_network.embed

    def step(self) -> bool:
        """Does one update, if there is a batch; with the auxiliary tasks, if they have one, too.

        Returns:
            Whether there was a batch: False if `can_sample` returns False.

        Raises:
            InvalidArgumentError: A hyperparameter is invalid, or a dataset's items do not fit its specs.
        """
        if not self._can_sample():
            return False
        hypers = self.hypers()  # an invalid value costs no batch
        items = to_items(next(self._batches), scale_pixels=self._scales_pixels)
        state = self._built(items.observation.observation.shape[2:])
        update = _SEPARATE_UPDATES if self._separate else _JOINT_UPDATE
        state, metrics = update(state, self._batch(items), hypers, static=self._static)
        self._set_state(state)
        self._num_steps += 1
        now = time.monotonic()
        walltime = 0.0 if self._last_time is None else now - self._last_time
        self._last_time = now
        counts = self._counter.increment(steps=1, walltime=walltime)
        if self._logger is not None:
            losses = {name: float(value) for name, value in metrics.losses._asdict().items()}
            self._logger.write({**losses, **counts})
        return True

    def run(self) -> None:
        """Does updates forever, and waits while there is no batch.

        Raises:
            InvalidArgumentError: See `step`.
        """
        while True:
            if not self.step():
                time.sleep(POLL_INTERVAL)

    def hypers(self) -> Hypers:
        """Returns the current values of all hyperparameters.

        Raises:
            InvalidArgumentError: A value is invalid.
        """
        values = {name: value_of(value) for name, value in self._values.items()}
        values["slow_core_period"] = period_of(values["slow_core_period"])
        factor = self._policy.hypers().scale_grads_fast_to_slow
        return Hypers.create(**values, scale_grads_fast_to_slow=factor)

    def build(self, observation_shape: tuple[int, ...]) -> None:
        """Makes the weights of all networks, for frames of the `observation_shape` (H, W, C), unless they exist.

        The first `step` does it, too.
        """
        self._built(tuple(observation_shape))

    def get_step(self) -> int:
        """Returns the number of updates."""
        return self._num_steps

    def set_step(self, step: int) -> None:
        """Sets the number of updates, which determines the decayed learning rate, to `step`.

        Raises:
            InvalidArgumentError: It is not an integer of at least 0, or there are no weights yet.
        """
        step = _checks.integer("`step`", step, low=0)
        self._set_state(self._weights().with_step(step))
        self._num_steps = step

    @property
    def state(self) -> dict[str, Any]:
        """The parameters and statistics for a checkpoint, by name: pytrees of arrays.

        Raises:
            InvalidArgumentError: There are no weights yet.
        """
        return self._weights().trees()

    def get_weights(self) -> dict[str, list[Any]]:
        """Returns the arrays of `state` as lists, by name.

        Raises:
            InvalidArgumentError: There are no weights yet.
        """
        return self._weights().arrays()

    def set_weights(self, weights: Mapping[str, Sequence[Any]]) -> None:
        """Replaces the arrays of `state` by `weights` of a learner with the same networks, all or none.

        Raises:
            InvalidArgumentError: A name, or the number or shape of arrays, differs; or there are no weights yet.
        """
        self._set_state(self._weights().replaced(weights))

    def get_variables(self, names: Sequence[str]) -> list[list[Any]]:
        """Returns the parameters of the policy network, once for each of `names`, whatever these are.

        Raises:
            InvalidArgumentError: There are no weights yet.
        """
        arrays = [np.asarray(leaf) for leaf in self._policy.trainable_variables]
        return [arrays for _ in names]

    def _weights(self) -> LearnerWeights:
        if self._state is None and self._policy.is_built:
            self._built(self._policy.observation_shape)
        if self._state is None:
            raise InvalidArgumentError("this learner has no weights yet; call `build`")
        return LearnerWeights(self._state)

    def _built(self, observation_shape: tuple[int, ...]) -> LearnerState:
        """Returns the state; the first call makes it."""
        if self._state is None:
            control_key, prediction_key, key = jax.random.split(self._key, 3)
            self._policy.build(observation_shape)
            control = prediction = None
            if self._control is not None:
                control = self._control.build(observation_shape, control_key).head.module
            if self._prediction is not None:
                prediction = self._prediction.build(observation_shape, prediction_key).head.module
            networks = AgentNetworks(self._policy.module, control, prediction, memory=True)
            params, self._static = split_networks(networks)
            init = separate.init if self._separate else learner.init
            self._state = init(params, key)
        return self._state

    def _set_state(self, state: LearnerState) -> None:
        self._state = state
        networks = eqx.combine(state.params, self._static)
        self._policy.module = networks.policy
        if self._control:
            self._control.head.module = networks.pixel_control
        if self._prediction:
            self._prediction.head.module = networks.reward_prediction

    def _batch(self, items: MaskedStep) -> Batch:
        control_batches, *window_batches = self._auxiliary_batches
        ready = bool((self._control or self._prediction) and self._can_sample_auxiliary())
        control = windows = None
        if self._control:
            control = zeros_like_items(items)
            if ready:
                control = to_items(next(control_batches), scale_pixels=self._scales_pixels)
        if self._prediction:
            windows = zeros_like_windows(items, self._prediction.sequence_length)
            if ready:
                windows = to_windows(*map(next, window_batches), scale_pixels=self._scales_pixels)
        return Batch(items, control, windows, np.float32(ready))

    def _check_shared_values(self) -> None:
        """Checks that learner and policy network have the same period and internal rewards."""
        mine, network = self.hypers(), self._policy.hypers()
        pairs = []
        if self._policy.embed.internal_rewards is not None:
            pairs.append(("internal_rewards", mine.internal_rewards, network.internal_rewards))
        if isinstance(self._policy.core, RPTH):
            pairs.append(("slow_core_period", mine.slow_core_period, network.slow_core_period))
        for name, given, expected in pairs:
            if np.shape(given) != np.shape(expected) or np.any(np.asarray(given) != np.asarray(expected)):
                raise InvalidArgumentError(
                    f"`{name}` must be that of the policy network; got {given}, expected {expected}"
                )


def _check_networks(policy: Any, control: Any, prediction: Any) -> None:  # noqa: ANN401, any objects
    for name, network in (("policy_network", policy), ("pixel_control_network", control)):
        if network is not None and not hasattr(network, "unroll"):
            raise InvalidArgumentError(f"`{name}` must have an `unroll`; got {_checks.short_repr(network)}")
    kinds = (("policy_network", policy, FtwNetwork), ("pixel_control_network", control, RNNPixelControlNetwork | None))
    for name, network, kind in (
        *kinds,
        ("reward_prediction_network", prediction, RewardPredictionNetwork | None),
    ):
        if not isinstance(network, kind):
            raise InvalidArgumentError(f"`{name}` must be of {kind}; got {_checks.short_repr(network)}")
    if control is not None and (control.embed is not policy.embed or control.core is not policy.core):
        raise InvalidArgumentError("`pixel_control_network` must have the embedding and the core of `policy_network`")
    if prediction is not None and prediction.torso is not policy.embed.torso:
        raise InvalidArgumentError("`reward_prediction_network` must have the torso of `policy_network`")


def _predicate(name: str, given: object, *, default: bool) -> Callable[[], bool]:
    if callable(given):
        return lambda: bool(given())
    if given is not None:
        _checks.boolean(name, given)
    return lambda: default if given is None else bool(given)

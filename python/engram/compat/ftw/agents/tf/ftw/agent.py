"""The FTW agent in one process: replay, learner and actor."""

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import numpy as np
import numpy.typing as npt

import engram
from engram import ArraySpec, Nest, _checks
from engram._extras import importing_extra
from engram.adders import TimeStep
from engram.adders.step import map_leaves
from engram.agents.ftw.actions import group_sizes
from engram.agents.ftw.config import ReplayConfig
from engram.agents.ftw.hyperparameters import HyperparametersContainer, Range, initialize_hypers
from engram.agents.ftw.internal_rewards import InternalRewards, initialize_internal_rewards
from engram.agents.ftw.networks.initializers import Initializer
from engram.agents.ftw.replay import QUEUE, can_sample_auxiliary, can_sample_queue, make_tables
from engram.agents.ftw.seeds import Seed, seed_sequence
from engram.compat.ftw._same_arguments import arguments_of, same_arguments
from engram.compat.ftw.agents.tf.ftw.acting import FtwActor
from engram.compat.ftw.agents.tf.ftw.learning import POLL_INTERVAL, FtwLearner
from engram.compat.ftw.agents.tf.ftw.utils import create_adders, create_datasets, item_specs
from engram.compat.ftw.loggers import Logger
from engram.compat.ftw.specs import EnvironmentSpec, EnvironmentSpecLike, checked_frame, num_actions_of
from engram.compat.ftw.tf.networks._lazy_module import value_of
from engram.compat.ftw.tf.networks.auxiliary import RewardPredictionNetwork, RNNPixelControlNetwork
from engram.compat.ftw.tf.networks.dnc.access import MemoryAccess
from engram.compat.ftw.tf.networks.embedding import OAREmbedding
from engram.compat.ftw.tf.networks.ftw_network import FtwNetwork
from engram.compat.ftw.tf.networks.recurrence import LSTM, RPTH
from engram.compat.ftw.tf.networks.vision import FtwTorso
from engram.errors import DeadlineExceededError, InvalidArgumentError

with importing_extra("agents", "engram.compat.ftw"):
    import jax

__all__ = ["FTW", "FTWWithoutActor"]


class FTWWithoutActor:
    """Replay and learner of an agent. Close it, or use it in a `with` block."""

    def __init__(  # noqa: PLR0917, FTW's signature
        self,
        environment_spec: EnvironmentSpecLike,
        sequence_length: int,
        num_environment_events: int = 1,
        embed: Any = None,  # noqa: ANN401, see Args
        max_queue_size: int = 64,
        batch_size: int = 32,
        hidden_size: int = 256,
        use_pixel_cotrol: bool = True,  # noqa: FBT001, FBT002, FTW's signature, like what follows
        use_reward_prediction: bool = True,  # noqa: FBT001, FBT002
        reward_prediction_sequence_length: int = 3,
        reward_prediction_sequence_period: int = 1,
        num_dimensions: int = 256,
        dnc_clip_value: float | None = None,
        use_dnc_linear_projection: bool = True,  # noqa: FBT001, FBT002
        init_scale: float = 0.1,
        min_scale: float = 1e-6,
        tanh_mean: bool = False,  # noqa: FBT001, FBT002
        fixed_scale: bool = False,  # noqa: FBT001, FBT002
        use_tfd_independent: bool = False,  # noqa: FBT001, FBT002
        variational_unit_w_init: Initializer | None = None,
        variational_unit_b_init: Initializer | None = None,
        strict_period_order: bool = True,  # noqa: FBT001, FBT002
        dnc_memory_size: int = 450,
        dnc_word_size: int = 32,
        dnc_num_reads: int = 4,
        core_type: str = "rpth",
        slow_core_period_min_max: tuple[int, int] = (5, 20),
        slow_core_period_init_value: int | None = None,
        learning_rate: Range = (1e-5, 5e-3),
        entropy_cost: Range = (5e-4, 1e-2),
        reward_prediction_cost: Range = (0.1, 1.0),
        pixel_control_cost: Range = (0.01, 0.1),
        kld_prior_fixed_cost: Range = (1e-4, 0.1),
        kld_prior_posterior_cost: Range = (1e-3, 1.0),
        scale_grads_fast_to_slow: Range = (0.1, 1.0),
        internal_rewards: Range = (0.1, 1.0),
        baseline_cost: float = 0.5,
        discount: float = 0.99,
        max_abs_reward: float | None = None,
        max_gradient_norm: float | None = None,
        rms_prop_epsilon: float = 1e-5,
        learning_rate_decay_steps: int = 0,
        uint_pixels_to_float: bool = True,  # noqa: FBT001, FBT002
        agent_id: int = 0,
        counter: Any = None,  # noqa: ANN401, a Counter or Acme's
        logger: Logger | None = None,
        *,
        use_pixel_control: bool | None = None,
        separate_optimizers: bool = False,
        seed: Seed | None = None,
    ) -> None:
        """Creates networks, tables and learner.

        The other arguments are those of `RPTH`.

        Args:
            environment_spec: `EnvironmentSpec` of an environment whose observations are triples of observation, action
                and reward (OAR).
            sequence_length: T, transitions of a stored sequence.
            num_environment_events: Number of events that the environment returns as rewards; 1: scalar rewards.
            embed: Torso: `FtwTorso`, or another callable with the attribute `hidden_size`. Default: `FtwTorso()`.
            max_queue_size: Sequences that the queue holds.
            batch_size: Sequences of a batch.
            hidden_size: Units of each core, and of the hidden layers of policy and value.
            use_pixel_cotrol: Whether to train pixel control.
            use_reward_prediction: Whether to train reward prediction.
            reward_prediction_sequence_length: Frames of a window for reward prediction.
            reward_prediction_sequence_period: Steps from the start of one window to the start of the next.
            num_dimensions: Dimensions of the latent variable.
            use_tfd_independent: No effect: it selects a class of TensorFlow Probability.
            variational_unit_w_init: Initial weights of the Gaussian heads, as one of `jax.nn.initializers`. Default:
                Sonnet's.
            variational_unit_b_init: Initial biases of the Gaussian heads, the same. Default: zeros.
            dnc_memory_size: Slots of the memory.
            dnc_word_size: Numbers per slot.
            dnc_num_reads: Read heads.
            core_type: "lstm", "rpth", or "rpth_dnc", with a memory.
            slow_core_period_min_max: Smallest and largest period of the slow core, in steps.
            slow_core_period_init_value: An exact period. Default: it is drawn.
            learning_rate: An exact value, or the bounds of a log-uniform distribution, as for all that follow.
            entropy_cost: Weight of the entropy loss.
            reward_prediction_cost: Weight of the reward prediction loss.
            pixel_control_cost: Weight of the pixel control loss.
            kld_prior_fixed_cost: Weight of KL(prior || fixed prior).
            kld_prior_posterior_cost: Weight of KL(posterior || prior).
            scale_grads_fast_to_slow: Factor of the gradients from the fast to the slow core.
            internal_rewards: Weights of the events.
            baseline_cost: Weight of the baseline loss, an exact value, like all that follow.
            discount: Discount of the agent.
            max_abs_reward: Internal rewards are clipped to this magnitude. Default: they are not.
            max_gradient_norm: Gradients with a larger global norm are scaled down to it. Default: they are not.
            rms_prop_epsilon: Added to the mean squared gradients.
            learning_rate_decay_steps: Updates until the learning rate is 0. Default: 0, it is constant.
            uint_pixels_to_float: Whether pixels of unsigned integers are divided by 255. Floats never are.
            agent_id: Number of this agent, which separates its random numbers from those of others.
            counter: Counts `steps` and `walltime` of the learner. Default: a new one.
            logger: Receives the metrics of each update. Default: they are not logged.
            use_pixel_control: The right spelling of `use_pixel_cotrol`; replaces its default.
            separate_optimizers: See `FtwLearner`.
            seed: Seed of all random numbers, together with `agent_id`.

        Raises:
            InvalidArgumentError: An argument has the wrong type or value; observations are no triple, or their rewards
                are not `num_environment_events` numbers; `embed` is an `OAREmbedding`, of which the
                agent makes its own; the batch is larger than the queue; or both spellings contradict each other.
        """
        given = dict(locals())
        pixel_control = _one_spelling(use_pixel_cotrol=use_pixel_cotrol, use_pixel_control=use_pixel_control)
        given["use_pixel_control"] = pixel_control
        given["max_pixel_control_buffer_size"] = max(100, batch_size)
        self._config = ReplayConfig(**arguments_of(ReplayConfig, given))
        _checks.integer("`agent_id`", agent_id, low=0)
        if isinstance(embed, OAREmbedding):
            raise InvalidArgumentError(
                "`embed` must be a torso, not an OAREmbedding: the agent makes its own around it"
            )
        _checks.choice("`core_type`", core_type, ("lstm", "rpth", "rpth_dnc"))
        frame = checked_frame(environment_spec, num_environment_events)
        entropy = seed_sequence(seed).generate_state(8).tolist()
        seeds = np.random.SeedSequence(entropy, spawn_key=(agent_id,)).spawn(8)
        hypers_seed, rewards_seed, network_seed, learner_seed, store_seed, self._actor_seed, *head_seeds = seeds
        self._hypers = initialize_hypers(**{**arguments_of(initialize_hypers, given), "seed": hypers_seed})
        self._rewards = initialize_internal_rewards(num_environment_events, internal_rewards, seed=rewards_seed)
        num_actions = num_actions_of(environment_spec.actions)
        torso = FtwTorso() if embed is None else embed
        embedding = OAREmbedding(torso, num_actions, self._rewards)
        core: LSTM | RPTH = LSTM(hidden_size)
        if core_type != "lstm":
            memory = MemoryAccess(dnc_memory_size, dnc_word_size, dnc_num_reads) if core_type == "rpth_dnc" else None
            core = RPTH(
                **{**arguments_of(RPTH, given), "seed": None},
                period=self._hypers["slow_core_period"],
                w_init=variational_unit_w_init,
                b_init=variational_unit_b_init,
                shared_memory=memory,
                scale_gradients_fast_to_slow=self._hypers["scale_grads_fast_to_slow"],
            )
        self._network = FtwNetwork(
            embedding, core, num_actions, hidden_size, rematerialize=core_type == "rpth_dnc", seed=network_seed
        )
        control = RNNPixelControlNetwork(embedding, core, num_actions, seed=head_seeds[0]) if pixel_control else None
        prediction = (
            RewardPredictionNetwork(torso, sequence_length=reward_prediction_sequence_length, seed=head_seeds[1])
            if use_reward_prediction
            else None
        )
        self._network.build(frame)
        self._extra_spec = _extra_spec(self._network)
        self._adder_options = arguments_of(create_adders, given)
        self._uint_pixels_to_float = uint_pixels_to_float
        tables = make_tables(self._config, *self._signatures(environment_spec))
        self._store = engram.Store(tables, seed=int(store_seed.generate_state(1)[0]))
        queue, control_items, nonzero_windows, zero_windows = create_datasets(
            self._store, **arguments_of(create_datasets, given), extra_spec=self._extra_spec, overlap=True
        )
        given |= {**self._hypers, "internal_rewards": self._rewards, "seed": learner_seed}
        self._learner = FtwLearner(
            self._network,
            queue,
            **arguments_of(FtwLearner, given),
            pixel_control_network=control,
            reward_prediction_network=prediction,
            pixel_control_dataset=control_items,
            nonzero_reward_prediction_dataset=nonzero_windows,
            zero_reward_prediction_dataset=zero_windows,
            can_sample=self.can_sample_queue,
            can_sample_auxiliary=lambda: can_sample_auxiliary(self._store, self._config),
            learner_id=agent_id,
        )
        self._learner.build(frame)

    def get_step(self) -> int:
        """Returns the number of the learner's updates."""
        return self._learner.get_step()

    def set_step(self, step: int) -> None:
        """Sets the number of the learner's updates to `step`.

        Raises:
            InvalidArgumentError: It is not an integer of at least 0.
        """
        self._learner.set_step(step)

    def get_weights(self) -> dict[str, list[Any]]:
        """Returns parameters and optimizer statistics; see `FtwLearner.get_weights`."""
        return self._learner.get_weights()

    def set_weights(self, weights: Mapping[str, Sequence[Any]]) -> None:
        """Replaces parameters and optimizer statistics by `weights` of an agent with the same networks, all or none.

        Raises:
            InvalidArgumentError: A name, or the number or shape of arrays, differs.
        """
        self._learner.set_weights(weights)

    def get_hypers(self) -> HyperparametersContainer:
        """Returns the hyperparameters: not a copy, so `perturb` and `set` of the result change the agent."""
        return HyperparametersContainer(self._hypers)

    def set_hypers(self, hypers: HyperparametersContainer | Mapping[str, Any]) -> None:
        """Replaces values of hyperparameters, all or none; nothing is compiled again.

        Args:
            hypers: Values, or hyperparameters of which the current values are copied, by name; or a container of these.
                Unknown names are ignored.

        Raises:
            InvalidArgumentError: A value is invalid.
        """
        values = hypers.get() if isinstance(hypers, HyperparametersContainer) else hypers
        self.get_hypers().set({name: value_of(values[name]) for name in values})

    def get_rewards(self) -> InternalRewards:
        """Returns the internal rewards: not a copy, so `perturb` and `set` of the result change the agent."""
        return self._rewards

    def set_rewards(self, rewards: InternalRewards | npt.ArrayLike) -> None:
        """Replaces the values of the internal rewards.

        Args:
            rewards: Numbers `[E]`; or internal rewards, of which the current values are copied.

        Raises:
            InvalidArgumentError: They are not finite numbers `[E]`.
        """
        self._rewards.set(rewards.get() if isinstance(rewards, InternalRewards) else rewards)

    def can_sample_queue(self) -> bool:
        """Returns whether the queue has a batch."""
        return can_sample_queue(self._store, self._config)

    def close(self) -> None:
        """Closes the replay."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _signatures(self, environment_spec: EnvironmentSpecLike) -> tuple[Any, Any]:
        """Returns the signatures of items and windows: actors store actions and rewards in the dtypes of the OAR."""
        oar = environment_spec.observations
        specs = item_specs(
            EnvironmentSpec(oar, oar[1], oar[2], None),
            self._config.sequence_length,
            self._extra_spec,
            self._config.reward_prediction_sequence_length,
            overlap=True,
        )
        item, window = (map_leaves(lambda spec: ArraySpec(spec.shape, spec.dtype, spec.name), each) for each in specs)
        return item, window

    def _make_actor(self, seed: Seed, timeout: float | None) -> FtwActor:
        """Returns an actor with new adders, which wait `timeout` seconds, and the learner's parameters."""
        adders = create_adders(
            self._store, **self._adder_options, pad_end_of_episode=True, overlap=True, timeout=timeout
        )
        return FtwActor(self._network, *adders, uint_pixels_to_float=self._uint_pixels_to_float, seed=seed)


class FTW(FTWWithoutActor):
    """The agent: actor and learner, in one thread or, with `run`, in two.

        agent = FTW(make_environment_spec(environment), sequence_length=20)
        timestep = environment.reset()
        agent.observe_first(timestep)
        while not timestep.last():
            action = agent.select_action(timestep.observation)
            timestep = environment.step(action)
            agent.observe(action, timestep)
            agent.update()

    Its constructor has the arguments of `FTWWithoutActor`.
    """

    @same_arguments(FTWWithoutActor.__init__, max_queue_size=32, batch_size=16)
    def __init__(self, **arguments: Any) -> None:  # noqa: ANN401, see the decorator
        super().__init__(**arguments)
        self._actor = self._make_actor(self._actor_seed, timeout=0)
        self._learner_thread: threading.Thread | None = None

    def select_action(self, observation: Nest) -> int | Nest:
        """Samples an action.

        Args:
            observation: A triple of observation, previous action and previous reward.

        Returns:
            The action, an int; if decomposed, i32 `[G]`.
        """
        action = self._actor.select_action(observation)
        return action if action.ndim else int(action)

    def observe_first(self, timestep: TimeStep) -> None:
        """Starts an episode with its first time step, `timestep`."""
        self._actor.observe_first(timestep)

    def observe(self, action: Nest, next_timestep: Any) -> None:  # noqa: ANN401, a dm_env.TimeStep
        """Records a step.

        Args:
            action: The action of the last `select_action`.
            next_timestep: What it led to.

        While the queue is full, this waits for the thread that calls `run`, or called `update` last, if it is another
        one.

        Raises:
            InvalidArgumentError: The queue is full, and no other thread can empty it. Nothing was recorded.
        """
        while (size := self._store.info()[QUEUE].size) >= self._config.max_queue_size:
            learner = self._learner_thread
            if learner is None or learner is threading.current_thread() or not learner.is_alive():
                raise InvalidArgumentError(
                    f"`observe`: the queue is full, with {size} sequences, and no other thread trains on them; call"
                    " `update`"
                )
            time.sleep(POLL_INTERVAL)
        # The end of an episode may complete two sequences. If the queue has room for one of them, the other one follows
        # after the next update.
        with suppress(DeadlineExceededError):
            self._actor.observe(action, next_timestep)

    def reset(self) -> None:
        """Abandons the episode in progress; `observe_first` starts another one."""
        with suppress(DeadlineExceededError):  # sequences that wait for the queue follow after the next update
            self._actor.reset()

    def update(self) -> None:
        """Does updates of the learner while the queue has batches."""
        self._learner_thread = threading.current_thread()
        while self._learner.step():
            pass
        self._actor.update()

    def run(self) -> None:
        """Does updates forever, for example in a thread of its own, while another one acts."""
        self._learner_thread = threading.current_thread()
        try:
            self._learner.run()
        finally:
            self._learner_thread = None


def _one_spelling(*, use_pixel_cotrol: bool, use_pixel_control: bool | None) -> bool:
    """Returns the value of an argument with two spellings. The first one is True by default, the second one None."""
    _checks.boolean("`use_pixel_cotrol`", use_pixel_cotrol)
    if use_pixel_control is None:
        return use_pixel_cotrol
    _checks.boolean("`use_pixel_control`", use_pixel_control)
    if use_pixel_control and not use_pixel_cotrol:
        raise InvalidArgumentError("`use_pixel_cotrol` and `use_pixel_control` are one argument; got False and True")
    return use_pixel_control


def _extra_spec(network: FtwNetwork) -> dict[str, Any]:
    """Returns arrays like one step's extras."""
    state = jax.tree.map(
        lambda leaf: np.zeros(leaf.shape[1:], leaf.dtype), jax.eval_shape(lambda: network.initial_state(1))
    )
    sizes = group_sizes(network.num_actions)
    return {"core_state": state, "logits": np.zeros(sum(sizes), np.float32)}

"""ALF's replay buffer: sequences of the newest steps of several environments, sampled uniformly or by priority."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import optree
import torch

from engram import Nest, _checks
from engram.compat.alf._host import Ints, TensorLike, host_ints, on_default_device
from engram.compat.alf.experience_replayers._episodes import EpisodeIndex
from engram.compat.alf.experience_replayers._priorities import StartPriorities
from engram.compat.alf.experience_replayers._returns import EpisodicReturns, ReturnOptions
from engram.compat.alf.experience_replayers._sampler import SampleOptions, Sampler
from engram.compat.alf.experience_replayers._starts import Starts
from engram.compat.alf.utils._ring_buffer import POS, RingBuffer
from engram.errors import InvalidArgumentError

__all__ = ["BatchInfo", "ReplayBuffer"]

_FIRST, _LAST = 0, 2
"""Values of the field `step_type`; that of the steps between them is 1."""


class BatchInfo(NamedTuple):
    """What is known about each sequence of a batch; `()` for what is not.

    Attributes:
        env_ids: Environment of each sequence, int64, [B].
        positions: Position of the first step of each sequence, int64, [B].
        importance_weights: Priority of each sequence, divided by the mean of all priorities above 0: float32, [B]. Only
            with `prioritized_sampling`.
        replay_buffer: The buffer.
        discounted_return: Return at the first step of each sequence, float32, [B]. Only with `record_episodic_return`.
    """

    env_ids: Any = ()
    positions: Any = ()
    importance_weights: Any = ()
    replay_buffer: Any = ()
    discounted_return: Any = ()


class ReplayBuffer(RingBuffer):
    """The newest steps of several environments, from which sequences are sampled, as ALF's.

        buffer = ReplayBuffer(data_spec, num_environments=8, max_length=100_000, prioritized_sampling=True)
        buffer.add_batch(steps)
        batch, info = buffer.get_batch(batch_size=64, batch_length=2)
        buffer.update_priority(info.env_ids, info.positions, (td_errors.abs() + 1e-6) ** 0.7)

    Random choices use PyTorch's generator of the host, which `torch.manual_seed` seeds. See `RingBuffer` for positions,
    devices, threads and processes. The other arguments are those of `RingBuffer`.

    Args:
        data_spec: Nest of the specs of a step; a spec has `shape` and `dtype`, see `TensorSpec`. It must have a field
            `step_type` (0: FIRST, 1: MID, 2: LAST) for `keep_episodic_info`, and `discount` and `reward` for
            `record_episodic_return`, each one number per step. They may be properties of a namedtuple, as ALF's
            `Experience` has.
        num_earliest_frames_ignored: Number of oldest steps of each environment that no sample begins with.
        prioritized_sampling: Whether sequences are drawn in proportion to the priorities of their first steps.
        initial_priority: Minimum of the priority of a new step, which otherwise gets the largest one in the buffer.
        recent_data_steps: Number of newest starts of each environment that count as recent.
        recent_data_ratio: Fraction of a batch that is drawn from recent starts.
        with_replacement: False to draw one sequence from each of equal strata.
        keep_episodic_info: Whether to record where episodes begin and end. None: if `num_earliest_frames_ignored` is
            above 0.
        record_episodic_return: Whether to record the return of each step of complete episodes. Needs
            `keep_episodic_info`.
        default_return: Return of a step while it is unknown.
        gamma: Discount of the recorded return.
        reward_clip: Minimum and maximum of a reward in the recorded return; None: rewards are not clipped.
        enable_checkpoint: Whether ALF's checkpoints contain the buffer.

    Raises:
        AssertionError: `record_episodic_return` without `keep_episodic_info`.
        InvalidArgumentError: Another argument is invalid.
    """

    ONE_MINUS = 0.9999999

    def __init__(  # noqa: PLR0917, ALF's signature
        self,
        data_spec: Nest,
        num_environments: int,
        max_length: int = 1024,
        num_earliest_frames_ignored: int = 0,
        prioritized_sampling: bool = False,  # noqa: FBT001, FBT002, ALF's signature
        initial_priority: float = 1.0,
        recent_data_steps: int = 1,
        recent_data_ratio: float = 0.0,
        with_replacement: bool = False,  # noqa: FBT001, FBT002, ALF's signature
        device: str = "cpu",
        allow_multiprocess: bool = False,  # noqa: FBT001, FBT002, ALF's signature
        keep_episodic_info: bool | None = None,  # noqa: FBT001, ALF's signature
        record_episodic_return: bool = False,  # noqa: FBT001, FBT002, ALF's signature
        default_return: float = -1000.0,
        gamma: float = 0.99,
        reward_clip: tuple[float, float] | None = None,
        enable_checkpoint: bool = False,  # noqa: FBT001, FBT002, ALF's signature
        name: str = "ReplayBuffer",
    ) -> None:
        super().__init__(data_spec, num_environments, max_length, device, allow_multiprocess, name)
        size: tuple[int, int] = (self._num_envs, self._max_length)
        shared = allow_multiprocess
        self._alf_checkpoint_enabled = enable_checkpoint  # which ALF's checkpoints read
        sampling = SampleOptions(num_earliest_frames_ignored, recent_data_steps, recent_data_ratio, with_replacement)
        self._ignored = num_earliest_frames_ignored
        keeps_episodes = self._ignored > 0 if keep_episodic_info is None else keep_episodic_info
        if record_episodic_return and not keeps_episodes:
            raise AssertionError("`record_episodic_return=True` needs `keep_episodic_info=True`")
        options = ReturnOptions(default_return, gamma, reward_clip)
        self._priorities = StartPriorities(*size, initial_priority, shared=shared) if prioritized_sampling else None
        self._sampler = Sampler(sampling, self._max_length, self._priorities)
        self._episodes = EpisodeIndex(*size, shared=shared) if keeps_episodes else None
        self._returns = EpisodicReturns(*size, options, shared=shared) if record_episodic_return else None
        if keeps_episodes:
            self._step_type = self._number_field("step_type", "keep_episodic_info")
        if record_episodic_return:
            self._reward = self._number_field("reward", "record_episodic_return")
            self._discount = self._number_field("discount", "record_episodic_return")
        self.register_load_state_dict_post_hook(_finish_loading)

    def _number_field(self, name: str, needed_by: str) -> int:
        """The index of a leaf that has one number per step."""
        index = self._spec.number(name)
        if index is None:
            raise InvalidArgumentError(
                f"`{needed_by}=True` needs the field or property `{name}` in `data_spec`, with shape (); its fields "
                f"are {', '.join(self._spec.names)}"
            )
        return index

    # --- adding -------------------------------------------------------------------------------

    def add_batch(self, batch: Nest, env_ids: TensorLike | None = None, blocking: bool = False) -> None:  # noqa: FBT001, FBT002, ALF's signature
        """Adds one step of each of several environments.

        Args:
            batch: Nest of tensors `[B, ...]`. Step `i` is of environment `env_ids[i]`. A value is converted to the
                dtype of its spec if that is of the same kind, and repeated on the axes of a step where its size is 1.
            env_ids: B different numbers of environments. None: all of them.
            blocking: True to wait until all these environments have space, instead of overwriting their oldest steps.
                If `stop` ends the wait, nothing is added.

        Raises:
            AssertionError: `env_ids` is not one-dimensional, or repeats an environment; the batch has another number of
                steps; or `blocking` without `allow_multiprocess`, or with episodic information.
            TypeError, IndexError: `env_ids` has other values than numbers of environments.
            InvalidArgumentError: The batch does not fit `data_spec`.
        """
        if blocking and self._episodes is not None:
            raise AssertionError("`blocking=True` needs a buffer with `keep_episodic_info=False`")
        self.enqueue(batch, env_ids, blocking)

    def _starts(self, envs: Ints) -> Starts:
        """The steps that have, or can get, a priority above 0."""
        return self._sampler.starts(envs, self._size, self._pos)

    def _write(self, envs: Ints, given: list[torch.Tensor], stored: list[torch.Tensor]) -> None:
        # Priorities become 0 before, and above 0 after the steps are visible: if this process dies in between, no
        # sequence can begin with a step that it must not begin with.
        positions, old = self._pos[envs], self._starts(envs)
        if self._priorities is not None:
            is_full = self._size[envs] == self._max_length
            self._priorities.set(old.before(old.first + is_full).rows(self._max_length), 0.0)
        super()._write(envs, given, stored)
        if self._episodes is not None:
            is_first = (_on_host(given[self._step_type]) == _FIRST) | (positions == 0)
            self._episodes.add(envs, positions, is_first)
            if self._returns is not None:
                new = self._returns.add(envs, positions, is_first, _on_host(given[self._discount]) == 0)
                self._complete_returns(self._returns, new)
        if self._priorities is not None:
            added = self._starts(envs).after(old.end).rows(self._max_length)
            self._priorities.set(added, self._priorities.initial())

    def _complete_returns(self, returns: EpisodicReturns, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Computes the returns of some ranges of steps, as `EpisodicReturns.add` returns them."""
        for env, begin, end in ranges:
            steps = np.arange(begin, end + 1)
            fields = self._read(np.array(env), steps, (self._reward, self._discount), convert=False)
            rewards, discounts = (_on_host(field).astype(np.float64) for field in fields)
            returns.complete(env, begin, rewards, discounts)

    def _remove(self, envs: Ints, steps: Ints | int) -> None:
        if self._priorities is not None:
            old = self._starts(envs)
            self._priorities.set(old.before(old.first + steps).rows(self._max_length), 0.0)
        super()._remove(envs, steps)

    def _reset(self, envs: Ints) -> None:
        super()._reset(envs)
        if self._returns is not None:
            self._returns.clear(envs)

    def dequeue(self, env_ids: TensorLike | None = None, n: int = 1, blocking: bool = False) -> Nest:  # noqa: FBT001, FBT002, ALF's signature
        """Is not available for a replay buffer, as in ALF.

        Args:
            env_ids: Is not used.
            n: Is not used.
            blocking: Is not used.

        Raises:
            NotImplementedError: Always.
        """
        del env_ids, n, blocking
        raise NotImplementedError("a ReplayBuffer has no `dequeue`; use a RingBuffer, or `remove_up_to`")

    # --- sampling -----------------------------------------------------------------------------

    def get_batch(self, batch_size: int, batch_length: int) -> tuple[Any, BatchInfo]:
        """Samples sequences of consecutive steps of one environment each. They may extend over several episodes.

        Without `prioritized_sampling`, all environments are equally likely, whatever number of steps they have. The
        batch has one sequence of each environment, in order, then another one of each, and so on.

        With it, the priorities are for one `batch_length` at a time. Another one than in the last call sets the
        priorities of the starts that become possible to the initial one, and forgets those of others.

        If `recent_data_ratio` is above 0 and enough steps are stored, the batch begins with sequences from recent
        starts. With `prioritized_sampling`, those with priority 0 are left out, and the others are equally likely.

        Args:
            batch_size: Number of sequences, B.
            batch_length: Number of steps of each, T.

        Returns:
            Nest of tensors `[B, T, ...]`, a copy, and a `BatchInfo`.

        Raises:
            AssertionError: Without `prioritized_sampling`: an environment has fewer than `batch_length +
                num_earliest_frames_ignored` steps. With it: no possible start has a priority above 0.
            InvalidArgumentError: An argument is invalid.
        """
        batch_size = _checks.integer("`batch_size`", batch_size, low=0)
        batch_length = _checks.integer("`batch_length`", batch_length)
        with self._lock:
            envs, positions, weights = self._sampler.draw(self._size, self._pos, batch_size, batch_length)
            info = BatchInfo()
            if weights is not None:
                info = BatchInfo(importance_weights=on_default_device(weights.astype(np.float32, copy=False)))
            if self._returns is not None:
                info = info._replace(discounted_return=on_default_device(self._returns.get(envs, positions)))
            data = self._read(envs[:, None], positions[:, None] + np.arange(batch_length))
        return data, info._replace(
            env_ids=on_default_device(envs), positions=on_default_device(positions), replay_buffer=self
        )

    @property
    def initial_priority(self) -> torch.Tensor:
        """The priority that a new step would get now: float32, without axes.

        Raises:
            AssertionError: The buffer has no `prioritized_sampling`.
        """
        with self._lock:
            return on_default_device(np.array(self._required_priorities().initial(), np.float32))

    def update_priority(self, env_ids: TensorLike, positions: TensorLike, priorities: TensorLike) -> None:
        """Sets the priorities of steps. Steps that no sequence can begin with any more, or yet, are skipped.

        Args:
            env_ids: Environments of the steps, [B].
            positions: Positions of the steps, [B].
            priorities: Their priorities, [B], which are used as they are. 0: the step is not drawn any more. If a step
                is repeated, one of its priorities remains, the same as in ALF.

        Raises:
            AssertionError: The buffer has no `prioritized_sampling`; the arguments do not have one axis of the same
                size; or a priority is negative, NaN or infinite.
            TypeError, IndexError: `env_ids` or `positions` have other values than numbers of environments and integers.
        """
        envs, at = self._env_ids(env_ids), host_ints("`positions`", positions)
        tensor = torch.as_tensor(priorities, device="cpu").detach()
        values = tensor.to(torch.float64).numpy()
        if envs.ndim != 1 or not envs.shape == at.shape == values.shape:
            raise AssertionError(
                "`env_ids`, `positions` and `priorities` must have one axis of the same size; got shapes "
                f"{[*envs.shape]}, {[*at.shape]} and {[*values.shape]}"
            )
        with self._lock:
            changed = self._required_priorities()
            changed.check(values)
            starts = self._starts(np.arange(self._num_envs))
            possible = (at >= starts.first[envs]) & (at < starts.end[envs])
            rows = (envs * self._max_length + at % self._max_length)[possible]
            # As in ALF, where the order of PyTorch's sort decides which priority of a repeated step remains.
            order = torch.from_numpy(rows).sort().indices.numpy()
            changed.set(rows[order], values[possible][order])

    def _required_priorities(self) -> StartPriorities:
        if self._priorities is None:
            raise AssertionError("priorities need a buffer with `prioritized_sampling=True`")
        return self._priorities

    # --- reading ------------------------------------------------------------------------------

    @property
    def total_size(self) -> torch.Tensor:
        """Number of stored steps of all environments: int64, without axes."""
        return on_default_device(np.array(self._size.sum()))

    def gather_all(
        self,
        ignore_earliest_frames: bool = False,  # noqa: FBT001, FBT002, ALF's signature
        convert_to_default_device: bool = True,  # noqa: FBT001, FBT002, ALF's signature
    ) -> tuple[Any, BatchInfo]:
        """Returns all steps.

        Args:
            ignore_earliest_frames: True to leave out the oldest `num_earliest_frames_ignored` steps.
            convert_to_default_device: False to leave the result on the buffer's device.

        Returns:
            Nest of tensors `[num_environments, T, ...]`, the oldest step first, a copy; and a `BatchInfo` with
            `env_ids` and `positions`, those of the first steps returned.

        Raises:
            AssertionError: The environments differ in their number of steps or positions, or have no step that is not
                left out.
        """
        with self._lock:
            for what, values in (("number of steps", self._size), ("current position", self._pos)):
                if (values != values[0]).any():
                    raise AssertionError(f"all environments must have the same {what}; got {values.tolist()}")
            left_out = self._ignored if ignore_earliest_frames else 0
            size = int(self._size[0])
            if ignore_earliest_frames and size <= left_out:
                raise AssertionError(
                    f"each environment must have more than {left_out} steps, the `num_earliest_frames_ignored`; got "
                    f"{size}"
                )
            envs = np.arange(self._num_envs)
            positions = self._pos - self._size + left_out
            steps = positions[:, None] + np.arange(size - left_out)
            data = self._read(envs[:, None], steps, convert=convert_to_default_device)
        ids, first = torch.from_numpy(envs), torch.from_numpy(positions)
        if convert_to_default_device:
            ids, first = on_default_device(ids), on_default_device(first)
        else:
            ids, first = ids.to(self._place), first.to(self._place)
        return data, BatchInfo(env_ids=ids, positions=first, replay_buffer=self)

    def get_field(self, field_name: Nest, env_ids: TensorLike, positions: TensorLike) -> Nest:
        """Returns fields of stored steps.

        Args:
            field_name: Path of a field, its parts separated by `.`, such as `"observation.image"`; a nest of paths; or
                None or `""` for the whole step.
            env_ids: Environments of the steps.
            positions: Positions of the steps; broadcast with `env_ids`.

        Returns:
            Nest of tensors, a copy: the broadcast shape, then that of the field.

        Raises:
            AssertionError: A step is not stored.
            TypeError, IndexError: `env_ids` or `positions` have other values than numbers of environments and integers.
            InvalidArgumentError: The field is unknown.
        """
        field = self._spec.field("") if field_name is None else optree.tree_map(self._spec.field, field_name)
        with self._lock:
            envs, at = self._stored(positions, env_ids, "`positions`")
            return self._read(envs, at, field)

    def get_episode_begin_position(self, pos: TensorLike, env_ids: TensorLike) -> torch.Tensor:
        """Returns the positions of the FIRST steps of the episodes of steps. They may have been overwritten.

        Args:
            pos: Positions of stored steps.
            env_ids: Their environments; broadcast with `pos`.

        Returns:
            int64, with the broadcast shape.

        Raises:
            AssertionError: The buffer has no `keep_episodic_info`, or a step is not stored.
            TypeError, IndexError: `env_ids` or `pos` have other values than numbers of environments and integers.
        """
        with self._lock:
            envs, at = self._stored(pos, env_ids, "`pos`")
            return on_default_device(self._required_episodes().begin(envs, at))

    def steps_to_episode_end(self, pos: TensorLike, env_ids: TensorLike) -> torch.Tensor:
        """Returns how many steps of the same episode follow each step; those stored, of an episode in progress.

        Arguments and errors are those of `get_episode_begin_position`.

        Returns:
            int64, at least 0, with the broadcast shape.
        """
        with self._lock:
            envs, at = self._stored(pos, env_ids, "`pos`")
            return on_default_device(self._required_episodes().end(envs, at, self._pos - 1) - at)

    def get_disc_0_begin_position(self, pos: TensorLike, env_ids: TensorLike) -> torch.Tensor:
        """Returns the positions of the newest steps, at or before steps, that are FIRST or have discount 0.

        Arguments and errors are those of `get_episode_begin_position`, but the buffer needs `record_episodic_return`
        instead of `keep_episodic_info`.

        Returns:
            int64, with the broadcast shape. These steps may have been overwritten.
        """
        returns = self._required_returns("get_disc_0_begin_position")
        with self._lock:
            envs, at = self._stored(pos, env_ids, "`pos`")
            return on_default_device(returns.begin(envs, at))

    def _finish_loading(self) -> None:
        """Adapts a loaded state: the environments of this program begin new episodes."""
        with self._lock:
            envs = np.flatnonzero(self._size)
            step_type = self._spec.number("step_type")
            if step_type is not None:
                newest = self._rows(envs, self._pos[envs] - 1)
                self._buffers[self._keys[step_type]].flatten(0, 1).index_fill_(0, newest, _LAST)
            if self._priorities is not None:
                impossible = np.ones(len(self._priorities.values), np.bool_)
                impossible[self._starts(envs).rows(self._max_length)] = False
                self._priorities.values[impossible] = 0.0
                self._priorities.rebuild()

    # --- ALF's names of what is stored --------------------------------------------------------

    @property
    def _indexed_pos(self) -> torch.Tensor:
        return self._required_episodes().get_buffer("bounds")

    @property
    def _headless_indexed_pos(self) -> torch.Tensor:
        return self._required_episodes().get_buffer("headless_end")

    @property
    def _prev_disc_0_pos(self) -> torch.Tensor:
        return self._required_returns("_prev_disc_0_pos").get_buffer("disc_0_begin")

    @property
    def _episodic_discounted_return(self) -> torch.Tensor:
        return self._required_returns("_episodic_discounted_return").get_buffer("values")

    def _pad(self, x: torch.Tensor, env_ids: torch.Tensor) -> torch.Tensor:
        """Returns the positions in `[end - max_length, end)` of slots, where `end` is the position of the next step."""
        newest = self._buffers[POS][env_ids] - 1
        return newest - (newest - x) % self._max_length

    def _required_returns(self, what: str) -> EpisodicReturns:
        if self._returns is None:
            raise AssertionError(f"`{what}` needs a buffer with `record_episodic_return=True`")
        return self._returns

    def _required_episodes(self) -> EpisodeIndex:
        if self._episodes is None:
            raise AssertionError("episodes need a buffer with `keep_episodic_info=True`")
        return self._episodes

    def _stored(self, positions: TensorLike, env_ids: TensorLike, what: str) -> tuple[Ints, Ints]:
        """Broadcasts environments and positions of steps, and checks that the steps are stored."""
        envs, at = np.broadcast_arrays(self._env_ids(env_ids), host_ints(what, positions))
        missing = (at < (self._pos - self._size)[envs]) | (at >= self._pos[envs])
        if missing.any():
            env, bad = int(envs[missing][0]), int(at[missing][0])
            oldest, end = int(self._pos[env] - self._size[env]), int(self._pos[env])
            stored = f"positions {oldest} to {end - 1}" if oldest < end else "no steps"
            raise AssertionError(f"each of {what} must be stored; environment {env} has {stored}; got {bad}")
        return envs, at


def _on_host(leaf: torch.Tensor) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = leaf.cpu().numpy()
    return array


def _finish_loading(buffer: ReplayBuffer, _: object) -> None:
    buffer._finish_loading()  # noqa: SLF001, of this module

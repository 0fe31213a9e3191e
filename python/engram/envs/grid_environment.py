"""Grid environments, many at once or one, by dm_env's rules."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from engram import _checks
from engram._extras import importing_extra
from engram.errors import InvalidArgumentError

with importing_extra("agents", "engram.envs"):
    import dm_env
    from dm_env import specs

FRAME_SIZE = 42
"""Height and width of a frame in pixels."""


class BatchedGridEnvironment(ABC):
    """N environments that step together.

    `reset` and `step` return a `dm_env.TimeStep` of arrays: `step_type` i32 `[N]`, `reward` f32 `[N]`, `discount` f32
    `[N]`, and `observation`, frames u8 `[N, 42, 42, 3]`. After an environment's LAST time step, its action is ignored
    and its next time step is the FIRST of a new episode, with reward 0 and discount 1.

    Episode k of the environment with seed s depends on s, k and the actions only; it does not depend on the others.
    """

    num_actions: ClassVar[int]
    """Actions are 0 ... num_actions - 1."""
    max_steps: ClassVar[int]
    """Steps of the longest episode."""

    def __init__(self, seeds: Sequence[int]) -> None:
        """Creates one environment per seed.

        Raises:
            InvalidArgumentError: There are no seeds, or one is negative.
        """
        self._seeds = [_checks.integer("each of `seeds`", seed, low=0) for seed in seeds]
        if not self._seeds:
            raise InvalidArgumentError("`seeds`: no environments; got an empty sequence, expected at least one seed")
        number = len(self._seeds)
        self._episode = np.full(number, -1)
        self._step = np.zeros(number, np.int64)
        self._over = np.ones(number, bool)
        self._position = np.zeros((number, 2), np.int64)
        self._heading = np.zeros(number, np.int64)

    @property
    def num_envs(self) -> int:
        """N, the number of environments."""
        return len(self._seeds)

    def reset(self) -> dm_env.TimeStep:
        """Begins a new episode in each environment."""
        self._over[:] = True
        return self.step(np.zeros(self.num_envs, np.int64))

    def step(self, actions: npt.ArrayLike) -> dm_env.TimeStep:
        """Does an action in each environment, int `[N]`, or begins a new episode where the last one is over.

        Raises:
            InvalidArgumentError: The shape is not `[N]`, or an action is out of range.
        """
        actions = self._checked(np.asarray(actions))
        begins = self._over
        continues = np.flatnonzero(~begins)
        rewards = np.zeros(self.num_envs, np.float32)
        terminated = np.zeros(self.num_envs, bool)
        self._step[continues] += 1
        rewards[continues], terminated[continues] = self._move(continues, actions[continues])
        for index in np.flatnonzero(begins).tolist():
            self._episode[index] += 1
            self._step[index] = 0
            self._begin(index, np.random.default_rng([self._seeds[index], int(self._episode[index])]))
        self._over = terminated | (self._step >= self.max_steps)
        step_type = np.where(begins, dm_env.StepType.FIRST, dm_env.StepType.MID)
        step_type[self._over] = dm_env.StepType.LAST
        discount = np.where(terminated, 0, 1).astype(np.float32)
        return dm_env.TimeStep(step_type.astype(np.int32), rewards, discount, self._render())

    def observation_spec(self) -> specs.BoundedArray:
        """Spec of one environment's frame."""
        return specs.BoundedArray((FRAME_SIZE, FRAME_SIZE, 3), np.uint8, 0, 255, "frame")

    def action_spec(self) -> specs.DiscreteArray:
        """Spec of one environment's action."""
        return specs.DiscreteArray(self.num_actions, np.int32, "action")

    def reward_spec(self) -> specs.Array:
        """Spec of one environment's reward."""
        return specs.Array((), np.float32, "reward")

    def discount_spec(self) -> specs.BoundedArray:
        """Spec of one environment's discount."""
        return specs.BoundedArray((), np.float32, 0, 1, "discount")

    def get_state(self) -> dict[str, npt.NDArray[Any]]:
        """Returns copies of all arrays that the next time steps depend on, each `[N, ...]`, without the seeds."""
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return {name.removeprefix("_"): value.copy() for name, value in arrays.items()}

    def set_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continues from a state that `get_state` returned, of environments with the same seeds.

        Raises:
            InvalidArgumentError: The state is from another class or another number of environments.
        """
        mine = self.get_state()
        if {k: v.shape for k, v in mine.items()} != {k: np.shape(v) for k, v in state.items()}:
            raise InvalidArgumentError(
                f"`state`: from another environment or number of environments; got {sorted(state)}, expected"
                f" {sorted(mine)}, {self.num_envs} rows each"
            )
        for name, value in state.items():
            setattr(self, f"_{name}", np.array(value, mine[name].dtype))

    @abstractmethod
    def _begin(self, index: int, rng: np.random.Generator) -> None:
        """Sets environment `index` to the first state of an episode."""

    @abstractmethod
    def _move(
        self, indices: npt.NDArray[np.int64], actions: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """Does the actions of the environments `indices`; returns their rewards and which of them terminate."""

    @abstractmethod
    def _render(self) -> npt.NDArray[np.uint8]:
        """Returns all frames."""

    def _checked(self, actions: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        if actions.shape != (self.num_envs,) or actions.dtype.kind not in "iu":
            raise InvalidArgumentError(
                f"`actions` must be integers of the shape ({self.num_envs},); got {actions.dtype}{list(actions.shape)}"
            )
        valid = (actions >= 0) & (actions < self.num_actions)
        if not (valid | self._over).all():
            raise InvalidArgumentError(
                f"`actions` must be from 0 to {self.num_actions - 1}; got {actions[~valid & ~self._over][0]}"
            )
        return actions.astype(np.int64)


class GridEnvironment(dm_env.Environment):  # type: ignore[misc]  # untyped
    """One environment of a batched class, for programs that use dm_env."""

    def __init__(self, batch: BatchedGridEnvironment) -> None:
        """Presents a batch of one environment.

        Raises:
            InvalidArgumentError: The batch has more environments.
        """
        if batch.num_envs != 1:
            raise InvalidArgumentError(f"`batch` must have one environment; got {batch.num_envs}")
        self._batch = batch

    def reset(self) -> dm_env.TimeStep:
        """Begins a new episode."""
        return _of_only_environment(self._batch.reset())

    def step(self, action: int) -> dm_env.TimeStep:
        """Does an action, or begins a new episode if the last one is over."""
        return _of_only_environment(self._batch.step(np.asarray(action)[None]))

    def observation_spec(self) -> specs.BoundedArray:
        """Frames, u8 `[42, 42, 3]`."""
        return self._batch.observation_spec()

    def action_spec(self) -> specs.DiscreteArray:
        """Integers from 0."""
        return self._batch.action_spec()

    def reward_spec(self) -> specs.Array:
        """A number, f32."""
        return self._batch.reward_spec()

    def discount_spec(self) -> specs.BoundedArray:
        """A number from 0 to 1, f32."""
        return self._batch.discount_spec()


def _of_only_environment(batched: dm_env.TimeStep) -> dm_env.TimeStep:
    observation = batched.observation[0]
    if batched.first()[0]:
        return dm_env.restart(observation)
    step_type = dm_env.StepType(int(batched.step_type[0]))
    return dm_env.TimeStep(step_type, batched.reward[0], batched.discount[0], observation)

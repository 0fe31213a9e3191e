"""Recorder of N environments: writes their steps to the tables, and can continue where another recorder stopped."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from engram._extras import importing_extra
from engram.agents.ftw.environment import BatchedTimeStep
from engram.agents.ftw.networks import OAR
from engram.agents.ftw.replay import Replay

with importing_extra("agents", "engram.agents"):
    import dm_env
    from dm_env import StepType


class Action(NamedTuple):
    """The actions of N environments, and what the learner needs to know about them.

    Attributes:
        actions: i32 `[N]`, or `[N, G]` if decomposed.
        logits: f32 `[N, L]`.
        core_before: `[N, ...]`, the core's state before the step, packed: at the start of an episode, the initial one.
    """

    actions: Any
    logits: Any
    core_before: tuple[Any, ...]


class _Step(NamedTuple):
    before: BatchedTimeStep
    action: Action


class Recorder:
    """Writes the steps of N environments: an adder per environment, and one writer of windows.

    After each step, the tables have all items that are complete, wherever the chunks of the writers end. Therefore the
    tables and the newest steps are all that another recorder needs to continue.
    """

    def __init__(self, replay: Replay, first: BatchedTimeStep) -> None:
        """Begins an episode in each environment."""
        self._replay = replay
        self._period = replay.config.sequence_length
        # The steps that an incomplete item or window may need.
        self._steps: deque[_Step] = deque(maxlen=max(self._period, replay.config.reward_prediction_sequence_length))
        self._rows = [0] * len(first.step_type)  # of the episode, per environment
        self._open()
        for adder, timestep in zip(self._adders, _each(first), strict=True):
            adder.add_first(timestep)

    def record(self, before: BatchedTimeStep, action: Action, after: BatchedTimeStep) -> None:
        """Records a step: the time steps before and after it."""
        self._steps.append(_Step(before, action))
        if self._windows is not None:
            self._windows.record(before, after)
            self._windows.flush()
        ended = (np.asarray(before.step_type) == StepType.LAST).tolist()
        for index, timestep in enumerate(_each(after)):
            if ended[index]:
                self._rows[index] = 0
                self._adders[index].add_first(timestep)
            else:
                self._add(index, action, timestep)
                self._rows[index] += 1
                if self._rows[index] > 1 and self._open_rows(index) == 1:  # the row completes an item
                    self._adders[index].flush()

    def get_state(self) -> dict[str, Any]:
        """Returns the newest steps, as nested dictionaries of arrays: of S steps, `[S, N, ...]`."""
        state: dict[str, Any] = {"rows": np.array(self._rows)}
        if self._steps:
            steps = [_step_arrays(step) for step in self._steps]
            state["steps"] = {name: np.stack([step[name] for step in steps]) for name in steps[0]}
        return state

    def set_state(self, state: Mapping[str, Any], current: BatchedTimeStep) -> None:
        """Continues where another recorder stopped, whose items the tables have.

        Args:
            state: Its state.
            current: The last time step that it recorded.
        """
        self.close()
        self._open()
        self._rows = np.asarray(state["rows"]).tolist()
        arrays = state.get("steps", {})
        number = len(next(iter(arrays.values()), ()))
        self._steps.clear()
        self._steps.extend(_step_of_arrays({name: array[i] for name, array in arrays.items()}) for i in range(number))
        timesteps = [*(step.before for step in self._steps), current]
        each = [list(_each(timestep)) for timestep in timesteps]
        for index, adder in enumerate(self._adders):
            if each[-1][index].last():
                continue
            rows = self._open_rows(index)
            adder.add_first(dm_env.restart(each[number - rows][index].observation))
            adder._is_start = rows == self._rows[index]  # noqa: SLF001, the one thing by which a rest of an episode differs
            for moment in range(number - rows, number):
                self._add(index, self._steps[moment].action, each[moment + 1][index])
        if self._windows is not None:
            # One step less than a window has, so that this writes none again.
            for moment in range(max(number - self._replay.config.reward_prediction_sequence_length + 1, 0), number):
                self._windows.record(timesteps[moment], timesteps[moment + 1])

    def close(self) -> None:
        """Abandons the episodes in progress."""
        # The queue may be full, and the caller may not read it any more.
        for adder in self._adders:
            adder.close(timeout=0)
        if self._windows is not None:
            self._windows.close()

    def _open(self) -> None:
        self._adders = [self._replay.adder() for _ in self._rows]
        self._windows = self._replay.window_recorder(len(self._rows))

    def _open_rows(self, index: int) -> int:
        """Returns the number of rows of an environment's incomplete item: with the first row, which may be shared."""
        return (self._rows[index] - 1) % self._period + 1 if self._rows[index] else 0

    def _add(self, index: int, action: Action, timestep: dm_env.TimeStep) -> None:
        extras = {"core_state": tuple(part[index] for part in action.core_before), "logits": action.logits[index]}
        self._adders[index].add(action.actions[index], timestep, extras)


def timestep_arrays(timestep: BatchedTimeStep) -> dict[str, Any]:
    """Returns the arrays of a time step by name."""
    oar = timestep.observation
    return {
        "step_type": np.asarray(timestep.step_type),
        "reward": np.asarray(timestep.reward),
        "discount": np.asarray(timestep.discount),
        "observation": np.asarray(oar.observation),
        "previous_action": np.asarray(oar.action),
        "previous_reward": np.asarray(oar.reward),
    }


def timestep_of_arrays(arrays: Mapping[str, Any]) -> dm_env.TimeStep:
    """Returns the time step of `timestep_arrays`."""
    oar = OAR(arrays["observation"], arrays["previous_action"], arrays["previous_reward"])
    return dm_env.TimeStep(arrays["step_type"], arrays["reward"], arrays["discount"], oar)


def _step_arrays(step: _Step) -> dict[str, Any]:
    core = {f"core{index}": part for index, part in enumerate(step.action.core_before)}
    return {**timestep_arrays(step.before), "actions": step.action.actions, "logits": step.action.logits, **core}


def _step_of_arrays(arrays: Mapping[str, Any]) -> _Step:
    core = tuple(arrays[f"core{index}"] for index in range(sum(name.startswith("core") for name in arrays)))
    return _Step(timestep_of_arrays(arrays), Action(arrays["actions"], arrays["logits"], core))


def _each(timestep: BatchedTimeStep) -> Iterator[dm_env.TimeStep]:
    """Yields the time step of each environment."""
    observation, action, reward = timestep.observation
    oars = map(OAR, observation, action, reward)
    return map(dm_env.TimeStep, np.asarray(timestep.step_type).tolist(), timestep.reward, timestep.discount, oars)

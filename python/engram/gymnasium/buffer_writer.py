"""Adds the steps of vector environments to a replay buffer."""

from typing import Any

import numpy as np
import numpy.typing as npt

from engram import Nest, _checks, _engram
from engram._casts import cast
from engram._nest_checks import check_number_lists
from engram.buffers import ReplayBuffer
from engram.buffers._steps import as_array
from engram.errors import InvalidArgumentError, SignatureError
from engram.gymnasium.autoreset import AutoresetMode, VectorEnvs, autoreset_mode_of, check_unpacked, num_envs_of
from engram.gymnasium.env_nests import EnvNests
from engram.gymnasium.final_observations import check_structure, final_observations

__all__ = ["BufferWriter"]


class BufferWriter:
    """Adds what `reset` and `step` of a vector environment return to a `ReplayBuffer`, in every autoreset mode.

        buffer = ReplayBuffer(100_000, envs.num_envs, items=Transitions(discount=0.99))
        writer = BufferWriter(buffer, envs)
        writer.reset(*envs.reset(seed=0))
        while training:
            actions = policy(obs)
            obs, *results = envs.step(actions)
            writer.step(actions, obs, *results)

    A step of the buffer is a dict with

    - `obs`: the observation before the action;
    - `action`;
    - `reward`, as float32;
    - `next_obs`: the observation after the action; at the end of an episode its last one;
    - `terminated` and `truncated`: True if the episode ended with this step;
    - `extras`, if they are given.

    With `NEXT_STEP` autoreset, the step that only resets an environment is not added. See `VectorWriter` for the modes.
    A writer belongs to one thread. What it added stays in the buffer; there is nothing to close.

    Args:
        buffer: The buffer. Its `num_envs` must be that of `envs`.
        envs: The vector environment, whose `num_envs`, `metadata["autoreset_mode"]` and spaces are used, or the number
            of environments. Lists of one nest per environment are stacked if they fit the spaces or a signature.
        autoreset_mode: A `gymnasium.vector.AutoresetMode`, or `"NEXT_STEP"`, `"SAME_STEP"` or `"DISABLED"`. Default:
            that of `envs`; required if `envs` is a number.

    Raises:
        InvalidArgumentError: An argument is invalid, or `autoreset_mode` is not that of `envs`.
    """

    def __init__(self, buffer: ReplayBuffer, envs: VectorEnvs, *, autoreset_mode: AutoresetMode | None = None) -> None:
        _checks.instance_of("`buffer`", buffer, ReplayBuffer, "an engram.buffers.ReplayBuffer")
        num_envs = num_envs_of(envs)
        if num_envs != buffer.num_envs:
            raise InvalidArgumentError(
                f"`buffer` must have the number of environments of `envs`, {num_envs}; it has {buffer.num_envs}; "
                f"create it with `num_envs={num_envs}`"
            )
        self._buffer = buffer
        self._mode = autoreset_mode_of(envs, autoreset_mode)
        self._nests = EnvNests(envs, num_envs, buffer._declared)  # noqa: SLF001, same package
        # The newest observations, a copy; None before the first `reset`.
        self._obs: list[npt.NDArray[Any]] | None = None
        self._structure = ""  # of the observations
        self._has_steps = False
        self._running = np.zeros(num_envs, bool)  # False: the next step resets the environment, or it must be reset
        self._was_reset = np.zeros(num_envs, bool)  # False: before the first reset of the environment

    def reset(self, obs: Nest, info: Nest | None = None, *, mask: "npt.ArrayLike | None" = None) -> None:
        """Begins episodes with the observations that `reset` of the environments returned.

        An episode that has not ended yet ends with its newest step, as `ReplayBuffer.end_episodes` describes; also one
        that another writer has added.

        Args:
            obs: Nest of arrays `[N, ...]`, or a list of `N` nests.
            info: Not used. It is a parameter so that all that `envs.reset` returns can be passed on.
            mask: bool `[N]`: True for environments that were reset, as in `options={"reset_mask": mask}`; the
                observations of the others are not used. Default: all True.

        Raises:
            SignatureError: The observations are not numbers, are a masked array, or differ from those of an earlier
                step, or of a reset of other environments, in structure, dtype or shape. Nothing changes.
            InvalidArgumentError: `mask` is not bool `[N]`, or `obs` is all that `envs.reset` returned: observations and
                info. Nothing changes.
        """
        check_unpacked(obs, info)
        obs = self._nests.stacked("obs", obs)
        resets = np.ones_like(self._running) if mask is None else self._flags("mask", mask)
        # Before the first step, a reset of all environments may have other columns than the one before.
        is_new = self._obs is None or bool(resets.all() and not self._has_steps)
        arrays, structure = self._read_observations(obs, is_new=is_new)
        # Episodes of environments that are not running here may be those of an earlier writer.
        self._buffer.end_episodes(env_ids=np.flatnonzero(resets))
        if self._obs is None or is_new:
            self._obs, self._structure = [array.copy() for array in arrays], structure
        else:
            for newest, array in zip(self._obs, arrays, strict=True):
                newest[resets] = array[resets]
        self._running |= resets
        self._was_reset |= resets

    def step(  # noqa: PLR0917, what a step returns
        self,
        actions: Nest,
        obs: Nest,
        rewards: "npt.ArrayLike",
        terminated: "npt.ArrayLike",
        truncated: "npt.ArrayLike",
        info: Nest | None = None,
        *,
        extras: Nest | None = None,
    ) -> None:
        """Adds one step of every environment.

        After an error nothing of the call is stored, and the same call can be repeated.

        Args:
            actions: Nest of arrays `[N, ...]`, or a list of `N` nests: the actions that were passed to `step` of the
                environments.
            obs: Nest of arrays `[N, ...]`, or a list of `N` nests: the observations that it returned. They are copied.
            rewards: Numbers `[N]`, stored as float32. NaN is allowed.
            terminated: bool `[N]`: True if the episode ended in a terminal state.
            truncated: bool `[N]`: True if the episode ended for another reason, such as a time limit.
            info: What `step` of the environments returned. Needed with SAME_STEP autoreset only.
            extras: Nest of arrays `[N, ...]` that belong to the actions, such as recurrent states before them. Given
                at every step or at none.

        Raises:
            SignatureError: An array has another shape than `[N, ...]`, or differs from earlier steps in structure,
                dtype or shape; or observations, actions or extras are a masked array. Nothing is stored.
            InvalidArgumentError: `rewards`, `terminated` or `truncated` has another shape than `[N]` or an unsuitable
                dtype, or is a masked array; `reset` was not called, or an environment must be reset first; `info` does
                not fit `autoreset_mode`. Nothing is stored.
            OutOfMemoryError: At the first step: the memory of the buffer cannot be reserved. Nothing is stored.
        """
        if self._obs is None:
            raise InvalidArgumentError(
                "`reset` must be called before `step`, with the observations that `reset` of the environments returned"
            )
        obs = self._nests.stacked("obs", obs)
        arrays, _ = self._read_observations(obs)
        flags = self._flags("terminated", terminated), self._flags("truncated", truncated)
        ended = flags[0] | flags[1]
        self._check_running(ended)
        next_obs = self._next_observations(arrays, ended, info, obs)
        step = {
            "obs": _engram.unflatten(self._structure, self._obs),
            "action": self._nests.stacked("action", actions),
            "reward": self._rewards(rewards),
            "next_obs": _engram.unflatten(self._structure, next_obs),
            "terminated": flags[0],
            "truncated": flags[1],
        }
        if extras is not None:
            step["extras"] = self._nests.stacked("extras", extras)
        if self._running.all():
            self._add(step)
        elif self._running.any():
            env_ids = np.flatnonzero(self._running)
            leaves, names, structure = _engram.flatten(step)
            part = [self._rows_of(leaf, name, env_ids) for leaf, name in zip(leaves, names, strict=True)]
            self._add(_engram.unflatten(structure, part), env_ids=env_ids)
        self._has_steps = True
        for newest, array in zip(self._obs, arrays, strict=True):
            np.copyto(newest, array)
        self._running = ~ended if self._mode != "SAME_STEP" else np.ones_like(ended)

    def _add(self, step: Nest, **env_ids: npt.NDArray[np.int64]) -> None:
        if self._buffer._native is None:  # noqa: SLF001, the lists of the first step are checked already
            self._buffer._add("add_batch", step, ("num_envs",), are_columns=True, **env_ids)  # noqa: SLF001
        else:
            self._buffer.add_batch(step, **env_ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_envs={len(self._running)}, autoreset_mode={self._mode!r})"

    def _check_running(self, ended: npt.NDArray[np.bool_]) -> None:
        """Checks that environments whose episode has ended are reset as the autoreset mode states."""
        if self._running.all():
            return
        must_reset = ~self._was_reset if self._mode == "NEXT_STEP" else ~self._running
        if must_reset.any():
            raise InvalidArgumentError(
                f"environment {must_reset.argmax()} must be reset before this step: call `reset` of the environments, "
                "and then of this writer, with a mask of the environments that were reset (default: all)"
            )
        early = ended & ~self._running
        if early.any():
            raise InvalidArgumentError(
                f"environment {early.argmax()} ended an episode in the step before, so with `autoreset_mode` NEXT_STEP "
                "this step resets it and cannot end an episode; check the `autoreset_mode` of the environments"
            )

    def _next_observations(
        self, arrays: list[npt.NDArray[Any]], ended: npt.NDArray[np.bool_], info: Nest, obs: Nest
    ) -> list[npt.NDArray[Any]]:
        """Returns the observations after the actions: `arrays`, with SAME_STEP the last ones where episodes ended."""
        if not ended.any():
            return arrays
        if self._mode != "SAME_STEP":
            if hasattr(info, "get") and info.get("final_obs") is not None:
                raise InvalidArgumentError(
                    '`info` has "final_obs", which only environments with `autoreset_mode` SAME_STEP return; create '
                    "the writer with the `autoreset_mode` of the environments"
                )
            return arrays
        env_ids = np.flatnonzero(ended)
        last = final_observations(info, env_ids.tolist(), obs)
        changed = [array.copy() for array in arrays]
        for array, rows in zip(changed, last, strict=True):
            array[env_ids] = rows
        return changed

    def _read_observations(self, obs: Nest, *, is_new: bool = False) -> tuple[list[npt.NDArray[Any]], str]:
        """Returns the arrays of observations, and their structure. Compares them with earlier ones unless new."""
        if is_new:
            check_number_lists({"obs": obs})
        leaves, names, structure = _engram.flatten(obs)
        columns = [f"obs/{name}" if name else "obs" for name in names]
        arrays = [as_array(leaf, column) for leaf, column in zip(leaves, columns, strict=True)]
        if self._obs is None or is_new:
            for array, column in zip(arrays, columns, strict=True):
                self._check_axis(array, column)
            return arrays, structure
        check_structure(structure, self._structure, "`obs` must have the structure of the first one", SignatureError)
        for array, newest, column in zip(arrays, self._obs, columns, strict=True):
            if array.shape != newest.shape or array.dtype != newest.dtype:
                self._check_axis(array, column)
                raise SignatureError(
                    f"column `{column}` must have {newest.dtype}{list(newest.shape[1:])} per environment, as before; "
                    f"got {array.dtype}{list(array.shape[1:])}"
                )
        return arrays, structure

    def _check_axis(self, array: npt.NDArray[Any], name: str) -> None:
        num_envs = len(self._running)
        if array.ndim == 0 or len(array) != num_envs:
            raise SignatureError(
                f"column `{name}` must have shape [{num_envs}, ...] with {num_envs} environments; got shape "
                f"{list(array.shape)}"
            )

    def _rows_of(self, leaf: object, name: str, env_ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        array = as_array(leaf, name)
        self._check_axis(array, name)
        return array[env_ids]

    def _rewards(self, rewards: "npt.ArrayLike") -> npt.NDArray[np.float32]:
        array = _argument_array("rewards", rewards)
        if array.shape != self._running.shape or array.dtype.kind not in "fiub":
            raise InvalidArgumentError(
                f"`rewards` must have shape {list(self._running.shape)}, one number per environment; got "
                f"{array.dtype}{list(array.shape)}"
            )
        return cast(array, np.dtype(np.float32), "`rewards` has", InvalidArgumentError)

    def _flags(self, name: str, value: "npt.ArrayLike") -> npt.NDArray[np.bool_]:
        array = _argument_array(name, value)
        if array.shape != self._running.shape or array.dtype != bool:
            raise InvalidArgumentError(
                f"`{name}` must have shape {list(self._running.shape)} and dtype bool, one entry per environment; got "
                f"{array.dtype}{list(array.shape)}"
            )
        return array


def _argument_array(name: str, value: "npt.ArrayLike") -> npt.NDArray[Any]:
    """Returns an argument that is not a column as an array. Rejects masked arrays."""
    _checks.not_masked(f"`{name}`", value)
    return np.asarray(value)

"""A writer of vector environments, whose items are correct in every autoreset mode."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from engram import Nest, _checks, _engram
from engram.gymnasium.autoreset import AutoresetMode, VectorEnvs, autoreset_mode_of, check_unpacked, num_envs_of
from engram.gymnasium.env_nests import EnvNests
from engram.gymnasium.final_observations import final_observations
from engram.gymnasium.items import CompiledItems, Items, checked_items
from engram.table_store import TableStore
from engram.writer import _Writer
from engram.writer_options import WriterOptions, checked_options

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["VectorWriter"]


class VectorWriter(_Writer):
    """Writes what N environments return, and creates transitions, sequences and episodes that never cross a reset.

    The `with` block flushes and closes it:

        with VectorWriter(store, envs, [Transitions("replay", n_step=3, discount=0.99)]) as writer:
            obs, info = envs.reset(seed=0)
            writer.reset(obs, info)
            for _ in range(1000):
                actions = policy(obs)
                obs, rewards, terminated, truncated, info = envs.step(actions)
                writer.step(actions, obs, rewards, terminated, truncated, info)

    `autoreset_mode` determines which observations begin an episode, and where the last one of an episode is:

    - `NEXT_STEP`: the step after the end of an episode resets the environment. It is not a transition; its action and
      reward are not stored.
    - `SAME_STEP`: the step that ends an episode returns the first observation of the next one. The last one is in
      `info["final_obs"]`.
    - `DISABLED`: `envs.reset(options={"reset_mask": mask})` resets environments whose episode has ended, and
      `writer.reset(obs, info, mask=mask)` must follow before the next step.

    A writer belongs to one thread. Of an episode that has not ended when the writer is closed, it does not store the
    last `n_step - 1` transitions of `Transitions`, nor an item of `Sequences` or `Episodes` that is not full yet.

    Args:
        store: A `Store` or a `Client`.
        envs: The vector environment, whose `num_envs`, `metadata["autoreset_mode"]` and spaces are used, or the number
            of environments. Lists of one nest per environment are stacked if they fit the spaces or a signature.
        items: `Transitions`, `Sequences` and `Episodes` to create; at least one.
        autoreset_mode: A `gymnasium.vector.AutoresetMode`, or `"NEXT_STEP"`, `"SAME_STEP"` or `"DISABLED"`. Default:
            that of `envs`; required if `envs` is a number.
        **options: Options of `engram.WriterOptions`.

    Raises:
        InvalidArgumentError: An argument is invalid, or `autoreset_mode` is not that of `envs`.
        TypeError: An option is unknown.
        UnknownTableError: `store` has no table with the name that one of the `items` gives.
        ClosedError: The store is closed.
        DeadlineExceededError: The server did not describe a table within `timeout`.
        UnavailableError: The server cannot be reached.
    """

    _shown = ("_num_envs", "_autoreset_mode", "_tables", "pending_items")

    def __init__(
        self,
        store: TableStore,
        envs: VectorEnvs,
        items: Sequence[Items],
        *,
        autoreset_mode: AutoresetMode | None = None,
        **options: Unpack[WriterOptions],
    ) -> None:
        kinds = "an engram.Store or a client of servers (for an engram.buffers.ReplayBuffer, use a BufferWriter)"
        _checks.instance_of("`store`", store, TableStore, kinds)
        checked = checked_items(items)
        self._tables = sorted({each.table for each in checked})
        self._num_envs = num_envs_of(envs)
        self._autoreset_mode = autoreset_mode_of(envs, autoreset_mode)

        def compile_all(obs: str, action: str, extras: str | None) -> list[CompiledItems]:
            return [each._compile(obs, action, extras) for each in checked]  # noqa: SLF001, this package's own

        def declared(name: str) -> Nest | None:
            infos = store.info()
            specs = (each._declared(infos[each.table].signature, name) for each in checked if each.table in infos)  # noqa: SLF001
            return next((each for each in specs if each is not None), None)

        self._nests = EnvNests(envs, self._num_envs, declared)
        self._native: _engram.VectorWriter = _engram.VectorWriter(
            store._native_for_writer(),  # noqa: SLF001, same package
            self._num_envs,
            self._autoreset_mode,
            self._tables,
            compile_all,
            final_observations,
            checked_options(options, max_in_flight_items=65_536),
        )

    def reset(self, obs: Nest, info: Nest | None = None, *, mask: "npt.ArrayLike | None" = None) -> None:
        """Begins episodes with the observations that `reset` of the environments returned.

        An episode that has not ended yet ends with its newest step, as if that step had been truncated; in the items,
        the step's `truncated` stays False.

        Args:
            obs: Nest of arrays `[N, ...]`, or a list of `N` nests.
            info: Not used. It is a parameter so that all that `envs.reset` returns can be passed on.
            mask: bool `[N]`: True for environments that were reset, as in `options={"reset_mask": mask}`; the
                observations of the others are not used. Default: all True.

        Raises:
            SignatureError: The observations differ from earlier ones in structure, dtype or shape. Nothing is stored.
            InvalidArgumentError: `mask` is not bool `[N]`, or `obs` is all that `envs.reset` returned: observations and
                info. Nothing is stored.
            BackpressureError, UnsatisfiableError, ClosedError: As in `step`.
        """
        check_unpacked(obs, info)
        self._native.reset(self._nests.stacked("obs", obs), info, mask=mask)

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
        """Adds one step of every environment, and creates the items that are due.

        After an error nothing of the call is stored, and the same call can be repeated.

        Args:
            actions: Nest of arrays `[N, ...]`, or a list of `N` nests: the actions that were passed to `step` of the
                environments.
            obs: Nest of arrays `[N, ...]`, or a list of `N` nests: the observations that it returned. They are copied.
            rewards: Numbers `[N]`, stored as float32. NaN is allowed.
            terminated: bool `[N]`: True if the episode ended in a terminal state.
            truncated: bool `[N]`: True if the episode ended for another reason, such as a time limit. An episode that
                is both counts as terminated.
            info: What `step` of the environments returned. Needed with SAME_STEP autoreset only.
            extras: Nest of arrays `[N, ...]` that belong to the actions, such as their log-probabilities or the
                recurrent states before them. Given at every step or at none.

        Raises:
            SignatureError: An array has another shape than `[N, ...]`, or differs from earlier steps in structure,
                dtype or shape, or the items would not match their table's signature. Nothing is stored.
            InvalidArgumentError: `rewards`, `terminated` or `truncated` has another shape than `[N]` or an unsuitable
                dtype; `reset` was not called, or an environment has to be reset first; `info` does not fit
                `autoreset_mode`. Nothing is stored.
            BackpressureError: Too many items wait for their tables or are in flight, or the disk cannot keep up, and
                the writer's timeout has passed. Nothing is stored.
            DeadlineExceededError: The server did not describe a table within the writer's timeout. Nothing is stored.
            UnknownTableError: A table was dropped. Nothing is stored.
            PriorityError: A table rejects the priority of its items. Nothing is stored.
            UnsatisfiableError, ClosedError: A table rejected an earlier item. Nothing of this step is stored.
        """
        actions, obs = self._nests.stacked("action", actions), self._nests.stacked("obs", obs)
        extras = self._nests.stacked("extras", extras)
        self._native.step(actions, obs, rewards, terminated, truncated, info, extras=extras)

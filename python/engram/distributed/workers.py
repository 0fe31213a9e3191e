"""Workers on Ray that run a function with a client of a cluster, and are restarted when they fail."""

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import engram
from engram import _checks
from engram.distributed._ray import ray
from engram.distributed.cluster import Cluster
from engram.distributed.spec import checked_resources
from engram.errors import InvalidArgumentError

__all__ = ["RolloutWorkers", "WorkerReport"]

POLL_INTERVAL = 0.2
RESTART_DELAY = 0.5
"""Seconds before a failed worker is started again; doubled after each failure, up to `MAX_RESTART_DELAY`."""
MAX_RESTART_DELAY = 30.0

_COLORS = re.compile("\x1b\\[[0-9;]*m")
"""Ray colors its tracebacks."""

logger = logging.getLogger("engram.distributed")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """State of one worker.

    Attributes:
        index: The worker's number, from 0.
        state: `"finished"`: the function has returned. `"failed"`: it failed more than `max_restarts` times.
        restarts: How often the worker was started again.
        result: What the function has returned.
        error: The last failure: the exception with its traceback, or why the process or node died.
    """

    index: int
    state: Literal["running", "restarting", "finished", "failed", "stopped"] = "running"
    restarts: int = 0
    result: Any = None
    error: str = ""


class RolloutWorkers:
    """Runs a function in many processes of a Ray cluster, each with its own client.

        def act(client, index):
            with client.writer() as writer:
                ...

        with distributed.RolloutWorkers(cluster, act, 16) as workers:
            learn()

    The workers are Ray tasks. If the function raises, or its process or node dies, the worker is started again after a
    pause. At the end of the `with` block, workers that still run are interrupted by a `KeyboardInterrupt`; their
    writers then send what they have.
    """

    def __init__(
        self,
        cluster: Cluster,
        function: Callable[["engram.ShardedClient", int], Any],
        num_workers: int,
        *,
        num_cpus: float = 1.0,
        resources: Mapping[str, float] | None = None,
        max_restarts: int | None = None,
        reconnect_timeout: float = 60.0,
    ) -> None:
        """Starts the workers.

        Args:
            cluster: The cluster whose client the function gets.
            function: Called as `function(client, index)`, with the worker's number from 0. It should not contain large
                constants, such as weights: see `Weights`.
            num_workers: Number of workers.
            num_cpus: CPUs that Ray reserves for each worker.
            resources: Other resources of Ray that each worker needs.
            max_restarts: How often each worker is started again; 0 for never. Default: no limit.
            reconnect_timeout: Seconds to wait for an unreachable shard, as in `Cluster.client`.

        Raises:
            InvalidArgumentError: The function cannot be pickled, or another argument is invalid.
        """
        _checks.instance_of("`cluster`", cluster, Cluster, "an engram.distributed.Cluster")
        if not callable(function):
            raise InvalidArgumentError(
                f"`function` must be a function of a client and an index; got {_checks.short_repr(function)}"
            )
        num_workers = _checks.integer("`num_workers`", num_workers)
        self._max_restarts = None if max_restarts is None else _checks.integer("`max_restarts`", max_restarts, low=0)
        num_cpus, checked = checked_resources(num_cpus, resources)
        self._cluster = cluster
        self._reconnect_timeout = _checks.positive("`reconnect_timeout`", reconnect_timeout)
        try:
            self._function = ray.put(_Function(function))
        except Exception as error:
            raise InvalidArgumentError(
                f"`function` {_checks.short_repr(function)} cannot be pickled: {_last_line(error)}; pass a function "
                "that refers to nothing that only this process has, such as clients, locks and open files"
            ) from error
        self._task = ray.remote(_run).options(num_cpus=num_cpus, resources=checked, max_retries=0)
        self._lock = threading.Lock()
        self._reports = [WorkerReport(index=index) for index in range(num_workers)]
        self._failures = [0] * num_workers
        self._restart_at = [0.0] * num_workers
        self._tasks: dict[Any, int] = {self._start(index): index for index in range(num_workers)}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._supervise, daemon=True, name="engram-workers")
        self._thread.start()

    def report(self) -> list[WorkerReport]:
        """Returns the state of each worker."""
        with self._lock:
            return list(self._reports)

    def wait(self, timeout: float | None = None) -> list[WorkerReport]:
        """Waits until all workers have finished or failed.

        Args:
            timeout: Seconds to wait; the reports then show which workers still run. `None` waits forever.

        Returns:
            The reports of all workers.

        Raises:
            InvalidArgumentError: `timeout` is invalid.
        """
        timeout = _checks.seconds("`timeout`", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while any(report.state in {"running", "restarting"} for report in self.report()):
            if deadline is not None and time.monotonic() > deadline:
                break
            time.sleep(POLL_INTERVAL / 4)
        return self.report()

    def stop(self, timeout: float = 10.0) -> None:
        """Interrupts all workers, and ends those that still run after the timeout. Can be called again.

        Args:
            timeout: Seconds that workers have to end after the interrupt.

        Raises:
            InvalidArgumentError: `timeout` is not above 0.
        """
        timeout = _checks.positive("`timeout`", timeout)
        self._stopped.set()
        self._thread.join()
        if self._tasks and ray.is_initialized():
            ended, _ = ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0)
            for task in ended:
                self._handle_end(task, self._tasks.pop(task))
            for task in self._tasks:
                ray.cancel(task)
            if self._tasks:
                _, running = ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=timeout)
                for task in running:
                    ray.cancel(task, force=True)
        self._set_stopped()
        self._tasks = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self, index: int) -> Any:  # noqa: ANN401, Ray's reference
        return self._task.remote(self._function, self._cluster, index, self._reconnect_timeout)

    def _set(self, index: int, **changes: Any) -> None:  # noqa: ANN401, the fields of a report
        with self._lock:
            self._reports[index] = replace(self._reports[index], **changes)

    def _set_stopped(self) -> None:
        """Marks the workers as stopped that have neither finished nor failed."""
        for index, report in enumerate(self.report()):
            if report.state in {"running", "restarting"}:
                self._set(index, state="stopped")

    def _supervise(self) -> None:
        while not self._stopped.wait(POLL_INTERVAL):
            try:
                if ray.is_initialized():
                    self._check_tasks()
            except Exception:
                if ray.is_initialized():
                    logger.exception("cannot check the workers")
            if not ray.is_initialized():
                self._set_stopped()  # its tasks have ended, too
                return

    def _check_tasks(self) -> None:
        if self._tasks:
            ended, _ = ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0)
            for task in ended:
                self._handle_end(task, self._tasks.pop(task))
        for index, report in enumerate(self.report()):
            if report.state == "restarting" and time.monotonic() >= self._restart_at[index]:
                self._tasks[self._start(index)] = index
                self._set(index, state="running", restarts=report.restarts + 1)

    def _handle_end(self, task: Any, index: int) -> None:  # noqa: ANN401, Ray's reference
        try:
            self._set(index, state="finished", result=ray.get(task))
        except ray.exceptions.RayError as error:
            failures = self._failures[index] = self._failures[index] + 1
            limit = self._max_restarts
            is_last = limit is not None and failures > limit
            self._restart_at[index] = time.monotonic() + min(
                MAX_RESTART_DELAY, RESTART_DELAY * 2 ** min(failures - 1, 10)
            )
            self._set(index, state="failed" if is_last else "restarting", error=_COLORS.sub("", str(error)))
            outcome = "is not started again" if is_last else "is started again"
            logger.warning("worker %d %s; it failed: %s", index, outcome, _last_line(error))


@dataclass(frozen=True, slots=True)
class _Function:
    """The function, so that Ray pickles it once for all workers."""

    call: Callable[["engram.ShardedClient", int], Any]


def _run(function: _Function, cluster: Cluster, index: int, reconnect_timeout: float) -> Any:  # noqa: ANN401, its result
    with cluster.client(reconnect_timeout=reconnect_timeout) as client:
        return function.call(client, index)


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__

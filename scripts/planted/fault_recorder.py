"""Plugin of pytest for `scripts/plant_faults.py`: records which faults each test reaches, or runs tests with faults.

When it records, the file named by `ENGRAM_FAULT_MAP` has a byte per fault for each process that runs tests, which the
test, its threads and its child processes set.
"""

import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import hypothesis.configuration
import pytest

FOLDER = Path(os.environ["ENGRAM_FAULT_RECORDS"])
PROCESSES = int(os.environ.get("ENGRAM_FAULT_PROCESSES", "1"))
STOP = int(os.environ.get("ENGRAM_FAULT_STOP") or sys.maxsize)
# The tests to run with each fault, by the fault's number; an empty list means all. None: record.
RUNS: dict[str, list[str]] | None = None
if _path := os.environ.get("ENGRAM_FAULT_RUNS"):
    RUNS = json.loads(Path(_path).read_text())
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")
MAP = FOLDER / f"{WORKER}.map"
if RUNS is None:
    MAP.write_bytes(bytes(4096))
    os.environ["ENGRAM_FAULT_MAP"] = str(MAP)

# Faults reached by fixtures that several tests share, by the fixture.
shared: dict[object, set[int]] = {}

# The first marker that a test has decides.
TARGETS = {
    "ray": "make test-ray",
    "frameworks": "make frameworks",
    "interop": "make test-interop",
    "page": "make test-page",
    "slow": "make test-all",
}
# As in the Makefile.
AGENTS = ("tests/agents/", "tests/compat/ftw/", "tests/examples/", "tests/cli/test_demo.", "tests/cli/test_train")


def reached() -> set[int]:
    """Returns the faults recorded since the last call."""
    numbers = {number for number, byte in enumerate(MAP.read_bytes()) if byte}
    with MAP.open("r+b") as file:
        file.write(bytes(4096))
    return numbers


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Generator[None, Any, Any]:  # noqa: ANN401, not in pytest's API
    if RUNS is not None or fixturedef.scope == "function":
        return (yield)
    before = reached()
    try:
        return (yield)
    finally:
        shared.setdefault(fixturedef, set()).update(reached())
        with MAP.open("r+b") as file:
            for number in before:
                file.seek(number)
                file.write(b"\1")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    if RUNS is not None:
        return (yield)
    reached()
    result = yield
    numbers = reached()
    for definitions in item._fixtureinfo.name2fixturedefs.values():  # noqa: SLF001, pytest has no other way
        numbers.update(*(shared.get(definition, ()) for definition in definitions))
    with (FOLDER / f"{WORKER}.jsonl").open("a") as file:
        file.write(json.dumps([item.nodeid, sorted(numbers)]) + "\n")
    return result


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the tests that are run with a fault."""
    if RUNS and all(RUNS.values()):
        listed = set().union(*RUNS.values())
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in listed])
        items[:] = [item for item in items if item.nodeid in listed]


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Runs the tests of each fault in a forked process, which reads the fault's number when it first needs it."""
    if RUNS is None:
        return None
    chosen = {number: set(tests) for number, tests in RUNS.items()}
    todo = [
        (number, [item for item in session.items if not tests or item.nodeid in tests])
        for number, tests in chosen.items()
    ]
    todo.sort(key=lambda run: len(run[1]))
    running: dict[int, tuple[str, list[pytest.Item]]] = {}
    while todo or running:
        while todo and len(running) < PROCESSES:
            number, items = todo.pop(0)
            if pid := os.fork():
                running[pid] = number, items
            else:
                _run_with_fault(session.config, number, items)
        pid, status = os.wait()
        number, items = running.pop(pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # servers that a killed process has left
        if status:  # it crashed, or was killed because it hung
            lines = (FOLDER / f"{number}.jsonl").read_text().splitlines()
            last = next((name for kind, name in map(json.loads, reversed(lines)) if kind == "begin"), None)
            index = next((index for index, item in enumerate(items) if item.nodeid == last), None)
            if index is None:
                sys.exit(f"the process for fault {number} failed before its first test: status {status}")
            _write(number, _target(items[index].nodeid, items[index].keywords), items[index].nodeid)
            todo.insert(0, (number, items[index + 1 :]))
    return True


def _run_with_fault(config: pytest.Config, number: str, items: list[pytest.Item]) -> NoReturn:
    os.setsid()
    os.environ["ENGRAM_FAULT"] = number
    if "engram._planted" in sys.modules:
        sys.modules["engram._planted"]._active = int(number)  # type: ignore[attr-defined]  # noqa: SLF001
    hypothesis.configuration.set_hypothesis_home_dir(FOLDER / f"hypothesis-{number}")
    config._tmp_path_factory._basetemp = Path(tempfile.mkdtemp(dir=FOLDER))  # type: ignore[attr-defined]  # noqa: SLF001
    reports = Reports(number)
    config.pluginmanager.register(reports)
    for item, following in zip(items, [*items[1:], None], strict=True):
        _write(number, "begin", item.nodeid)
        config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if len(reports.functions) >= STOP:
            break
    os._exit(0)


def _write(number: str, kind: str, name: str) -> None:
    with (FOLDER / f"{number}.jsonl").open("a") as file:
        file.write(json.dumps([kind, name]) + "\n")


def _target(name: str, keywords: Mapping[str, Any]) -> str:
    default = "make test-agents" if name.startswith(AGENTS) else "make test, Python"
    return next((target for marker, target in TARGETS.items() if marker in keywords), default)


class Reports:
    """Writes the failed tests and their targets."""

    def __init__(self, number: str) -> None:
        self._number = number
        log = FOLDER / f"{number}.jsonl"
        lines = map(json.loads, log.read_text().splitlines()) if log.exists() else ()
        # Also those of an earlier process that crashed.
        self.functions = {name.partition("[")[0] for kind, name in lines if kind != "begin"}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.functions.add(report.nodeid.partition("[")[0])
            _write(self._number, _target(report.nodeid, report.keywords), report.nodeid)


def pytest_configure(config: pytest.Config) -> None:
    if RUNS is None and WORKER == "main":
        config.pluginmanager.register(Reports("failed"))

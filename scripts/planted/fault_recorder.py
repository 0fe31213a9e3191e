"""Plugin of pytest for `scripts/plant_faults.py`: records which faults each test reaches, and which tests fail.

In each process that runs tests, the file named by `ENGRAM_FAULT_MAP` has a byte per fault, which the test, its threads
and its child processes set. Reports are written by the process that receives those of all workers.
"""

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ["ENGRAM_FAULT_RECORDS"])
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")
RECORDS = os.environ.get("ENGRAM_FAULT") is None
MAP = FOLDER / f"{WORKER}.map"
if RECORDS:
    MAP.write_bytes(bytes(4096))
    os.environ["ENGRAM_FAULT_MAP"] = str(MAP)

# Faults reached by fixtures that several tests share, by the fixture.
shared: dict[object, set[int]] = {}
failed: dict[str, str] = {}  # failed tests, with the `make` target that runs them
functions: set[str] = set()

# The first marker that a test has decides.
TARGETS = {
    "ray": "make test-ray",
    "frameworks": "make frameworks",
    "interop": "make test-interop",
    "page": "make test-page",
    "slow": "make test SLOW=1",
    "jax": "make test, Python (extra agents)",
}


def reached() -> set[int]:
    """Returns the faults recorded since the last call."""
    numbers = {number for number, byte in enumerate(MAP.read_bytes()) if byte}
    with MAP.open("r+b") as file:
        file.write(bytes(4096))
    return numbers


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Generator[None, Any, Any]:  # noqa: ANN401, not in pytest's API
    if not RECORDS or fixturedef.scope == "function":
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
    if not RECORDS:
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
    """Keeps the tests that are listed in a file, if there is one."""
    if path := os.environ.get("ENGRAM_FAULT_TESTS"):
        wanted = set(json.loads(Path(path).read_text()))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in wanted])
        items[:] = [item for item in items if item.nodeid in wanted]


class Reports:
    """In the process that receives all reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        target = next((name for marker, name in TARGETS.items() if marker in report.keywords), "make test, Python")
        failed[report.nodeid] = target
        functions.add(report.nodeid.partition("[")[0])
        (FOLDER / "failed.json").write_text(json.dumps(failed))
        if len(functions) >= int(os.environ.get("ENGRAM_FAULT_STOP", "1000000")):
            plugins = self._config.pluginmanager
            (plugins.get_plugin("dsession") or plugins.get_plugin("session")).shouldstop = "enough tests have failed"


def pytest_configure(config: pytest.Config) -> None:
    if WORKER == "main":
        config.pluginmanager.register(Reports(config))

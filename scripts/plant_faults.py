"""Plants small faults in a copy of Engram and reports which tests catch each; changes of the tests must lose none.

    .venv/bin/python scripts/plant_faults.py build --dir /tmp/faults   # copy the tree, plant all faults, build
    .venv/bin/python scripts/plant_faults.py record --dir /tmp/faults  # run all tests: which of them reach which fault
    .venv/bin/python scripts/plant_faults.py run --dir /tmp/faults     # per fault, run these tests with the fault on
    .venv/bin/python scripts/plant_faults.py table --dir /tmp/faults   # print what caught each fault

The faults are in `scripts/faults.toml`. One build contains all of them, and the environment variable `ENGRAM_FAULT`
switches one on. `build`, `record` and `run` can be repeated; a build takes over the changes of the tree.

A fault replaces the text `old` by `new`. `old` occurs once in its file, or in the text `within` that does. Its kind:

* `value`: expressions without side effects, of one type. Both are computed, and a test reaches the fault only where
  the values differ. The default.
* `code`: expressions of one type, of which only one is computed.
* `statement`: Rust statements with their semicolons, of which only one is executed; `new` may be empty.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent
CRATES = ["--workspace", "--exclude", "engram-protogen", "--tests", "--locked"]
NEXTEST = ["cargo", "nextest", "run", *CRATES]
DEFAULT_MARKERS = "not frameworks and not interop and not page and not ray and not slow"

# A failed test in the output of nextest: its binary and its name.
NEXTEST_FAILED = re.compile(
    r"^ +(?:TRY \d+ )?(?:FAIL|TIMEOUT|ABORT|SIG\w+)\b[^\[]*\[[^\]]*\] +(?:\([^)]*\) +)?(\S+) (\S+)$", re.MULTILINE
)

RUST = "make test, Rust"

# The stores of the fixture `open_store`, as in the names of tests.
STORES = {"in_process": "in process", "remote": "remote", "sharded": "three shards"}


@dataclass(frozen=True)
class Fault:
    """One fault. `number` is its position in the list, from 1 on."""

    number: int
    id: str
    file: str
    old: str
    new: str
    kind: str = "value"
    within: str | None = None

    def position(self, text: str) -> int:
        """Where the faulty text begins in the text of the file."""
        within = self.within or self.old
        if text.count(within) != 1 or within.count(self.old) != 1:
            sys.exit(f"fault {self.id}: `{within}` must occur once in {self.file}, and `old` once in it")
        return text.index(within) + within.index(self.old)

    def switched(self) -> str:
        """The text that replaces `old`."""
        number, old, new = self.number, self.old, self.new
        if self.file.endswith(".py"):
            switch = '__import__("engram._planted", fromlist=["on"])'
            if self.kind == "value":
                return f"{switch}.pick({number}, lambda: ({old}), lambda: ({new}))"
            return f"(({new}) if {switch}.on({number}) else ({old}))"
        if self.kind == "value":
            return f"crate::planted::pick({number}, {old}, {new})"
        either = f"if crate::planted::on({number}) {{ {new} }} else {{ {old} }}"
        return either if self.kind == "statement" else f"({either})"


def read_faults(path: Path) -> list[Fault]:
    keys = ("id", "file", "old", "new", "kind", "within")
    faults = [
        Fault(number=number, **{key: entry[key] for key in keys if key in entry})
        for number, entry in enumerate(tomllib.loads(path.read_text())["fault"], start=1)
    ]
    twice = {fault.id for fault in faults if sum(other.id == fault.id for other in faults) > 1}
    if twice:
        sys.exit(f"{path}: the same id twice: {', '.join(sorted(twice))}")
    return faults


def plant(text: str, faults: list[Fault]) -> str:
    """Returns the text of a file with its faults."""
    for begin, fault in sorted(((fault.position(text), fault) for fault in faults), key=lambda pair: -pair[0]):
        text = text[:begin] + fault.switched() + text[begin + len(fault.old) :]
    return text


def write_if_changed(path: Path, content: bytes) -> None:
    """Keeps the time of an unchanged file, so that it is not compiled again."""
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def copy_tree(tree: Path, copy: Path, faults: list[Fault]) -> None:
    """Copies all tracked files and plants the faults in them."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=tree, check=True, capture_output=True, text=True)
    files = {name for name in tracked.stdout.split("\0") if name and (tree / name).exists()}
    if unknown := {fault.file for fault in faults} - files:
        sys.exit(f"faults in files that are not tracked: {', '.join(sorted(unknown))}")
    switches = {copy / "python/engram/_planted.py": (SCRIPTS / "planted/switch.py").read_bytes()}
    for name in files:
        content = (tree / name).read_bytes()
        here = [fault for fault in faults if fault.file == name]
        if here:
            content = plant(content.decode(), here).encode()
        if name.startswith("crates/") and name.endswith("src/lib.rs"):
            content += b"\nmod planted;\n"
            switches[copy / name.replace("lib.rs", "planted.rs")] = (SCRIPTS / "planted/switch.rs").read_bytes()
        write_if_changed(copy / name, content)
        (copy / name).chmod((tree / name).stat().st_mode)
    for path, content in switches.items():
        write_if_changed(path, content)
    for path in copy.rglob("*"):
        relative = path.relative_to(copy)
        tracked_name = relative.as_posix() in files or path in switches
        generated = {"__pycache__", ".git", ".hypothesis"} & set(relative.parts) or path.suffix == ".so"
        if path.is_file() and not tracked_name and not generated:
            path.unlink()


class Copy:
    """A copy of the tree with all faults, its build and the results."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.folder: Path = arguments.dir.resolve()
        self.tree = self.folder / "tree"
        self.records = self.folder / "records"
        self.results = self.folder / "results.json"
        self.faults = read_faults(arguments.faults)
        self.arguments = arguments
        self.environment = {
            **os.environ,
            "CARGO_TARGET_DIR": str(self.folder / "target"),
            "PYO3_BUILD_EXTENSION_MODULE": "1",
            "PYO3_PYTHON": arguments.python,
            "PYTHONPATH": f"{self.tree / 'python'}:{self.folder}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PROPTEST_RNG_SEED": "0",
            "PROPTEST_MAX_SHRINK_ITERS": "0",
            "RUST_BACKTRACE": "0",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self.folder / "hypothesis"),
        }

    def command(self, command: list[str], *, log: Path | None = None, **environment: str) -> str:
        """Runs a command in the copy; returns its output, which is also written to a log."""
        if log is None:
            subprocess.run(command, cwd=self.tree, check=True, env={**self.environment, **environment})
            return ""
        with log.open("w") as file:
            subprocess.run(
                command,
                cwd=self.tree,
                check=False,
                env={**self.environment, **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        return log.read_text(errors="replace")

    def build(self) -> None:
        """Copies the tree, plants the faults, and builds the extension and the Rust tests."""
        self.tree.mkdir(parents=True, exist_ok=True)
        copy_tree(self.arguments.tree, self.tree, self.faults)
        self.command(["git", "init", "--quiet"])  # some tests list the tracked files
        self.command(["git", "add", "--all"])
        shutil.copy(SCRIPTS / "planted/fault_recorder.py", self.folder)
        (self.folder / "numbers.json").write_text(json.dumps({fault.id: fault.number for fault in self.faults}))
        self.command(["cargo", "build", "--package", "engram-py", "--locked"])
        extension = (self.folder / "target/debug/lib_engram.so").read_bytes()
        write_if_changed(self.tree / "python/engram/_engram.abi3.so", extension)
        self.command([*NEXTEST, "--no-run"])

    def pytest(self, folder: Path, files: list[str], *options: str, **environment: str) -> None:
        """Runs Python tests."""
        shutil.rmtree(self.folder / "hypothesis", ignore_errors=True)
        options = ("-p", "fault_recorder", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-q", *options, *files)
        command = [self.arguments.python, "-m", "pytest", f"--timeout={self.arguments.timeout}", *options]
        self.command(command, log=folder / "pytest.txt", ENGRAM_FAULT_RECORDS=str(folder), **environment)

    def nextest(self, log: Path, *options: str, **environment: str) -> list[str]:
        """Runs Rust tests; returns the failed ones, each with its binary."""
        command = [*NEXTEST, "--status-level", "fail", "--color", "never", *options]
        output = self.command(command, log=log, **environment)
        # Failed cases, which proptest would run with other faults, too.
        self.command(["git", "clean", "-dfq", "crates"])
        self.command(["git", "checkout", "--quiet", "crates"])
        return sorted({f"{binary} {test}" for binary, test in NEXTEST_FAILED.findall(output)})

    def record(self) -> None:
        """Runs tests without a fault. Writes which of them reach each fault, and which fail without one."""
        if not self.arguments.add:
            shutil.rmtree(self.records, ignore_errors=True)
        (self.records / "rust").mkdir(parents=True, exist_ok=True)
        always: list[str] = []
        if not self.arguments.no_rust:
            always += self.nextest(
                self.records / "nextest.txt", "--no-fail-fast", ENGRAM_FAULT_MAP=str(self.records / "rust")
            )
        if not self.arguments.no_python:
            parallel = ("-n", str(self.arguments.processes), "--dist", "worksteal")
            self.pytest(self.records, self.arguments.files, "-m", self.arguments.markers, *parallel)
            always += self.failed(self.records / "failed.jsonl")
        self.write_records(always)

    def write_records(self, always: list[str]) -> None:
        """Writes the tests that reach each fault, and those that always fail."""
        ids = {fault.number: fault.id for fault in self.faults}
        reached: dict[str, dict[str, list[str]]] = {fault.id: {"rust": [], "python": []} for fault in self.faults}
        for file in (self.records / "rust").iterdir():
            for number in (number for number, byte in enumerate(file.read_bytes()) if byte):
                reached[ids[number]]["rust"].append(file.name)
        for log in self.records.glob("gw*.jsonl"):
            for test, numbers in map(json.loads, log.read_text().splitlines()):
                for number in numbers:
                    reached[ids[number]]["python"].append(test)
        (self.records / "reached.json").write_text(json.dumps(reached, indent=1))
        if (self.records / "always.json").exists():
            always = sorted({*always, *json.loads((self.records / "always.json").read_text())})
        (self.records / "always.json").write_text(json.dumps(always, indent=1))
        for identifier, tests in reached.items():
            print(f"{identifier:40} {len(tests['rust']):5} Rust tests {len(tests['python']):5} Python tests")
        print(f"{len(always)} tests fail without a fault: {', '.join(always) or 'none'}")

    @staticmethod
    def failed(log: Path) -> dict[str, str]:
        """Returns the failed Python tests, and the target of `make` that each belongs to."""
        lines = map(json.loads, log.read_text().splitlines()) if log.exists() else []
        return {test: target for target, test in lines if target != "begin"}

    def run(self) -> None:
        """Runs, for each fault, the tests that reach it; writes those that fail to the results."""
        arguments = self.arguments
        reached = json.loads((self.records / "reached.json").read_text())
        faults = [fault for fault in self.faults if not arguments.ids or fault.id in arguments.ids]
        caught: dict[str, dict[str, str]] = {fault.id: {} for fault in faults}
        if not arguments.no_rust:
            logs = self.new_folder("logs-rust")
            for fault in (fault for fault in faults if reached[fault.id]["rust"]):
                selected = (test.split(" ", 1) for test in reached[fault.id]["rust"])
                expression = " + ".join(f"(binary_id(={binary}) & test(={name}))" for binary, name in selected)
                stop = ("--max-fail", str(arguments.stop)) if arguments.stop else ("--no-fail-fast",)
                failed = self.nextest(logs / f"{fault.id}.txt", *stop, "-E", expression, ENGRAM_FAULT=str(fault.number))
                caught[fault.id] = dict.fromkeys(failed, RUST)
        if not arguments.no_python:
            logs = self.new_folder("logs-python")
            self.run_python(logs, faults, {name: tests["python"] for name, tests in reached.items()})
            for fault in faults:
                caught[fault.id] |= self.failed(logs / f"{fault.number}.jsonl")
        always = set(json.loads((self.records / "always.json").read_text()))
        results = json.loads(self.results.read_text()) if self.results.exists() else {}
        for fault in faults:
            # What is not run again is kept.
            for test, target in results.get(fault.id, {}).items():
                if arguments.all_tests or (arguments.no_rust if target == RUST else arguments.no_python):
                    caught[fault.id].setdefault(test, target)
            results[fault.id] = {test: target for test, target in caught[fault.id].items() if test not in always}
            names = functions(results[fault.id])
            print(f"{fault.id}: {len(names)} test functions: {', '.join(names)}")
        self.results.write_text(json.dumps(results, indent=1))

    def run_python(self, logs: Path, faults: list[Fault], reached: dict[str, list[str]]) -> None:
        """Runs Python tests with each fault."""
        arguments = self.arguments
        runs = {str(fault.number): [] if arguments.all_tests else reached[fault.id] for fault in faults}
        runs = {number: tests for number, tests in runs.items() if tests or arguments.all_tests}
        if not runs:
            return
        (logs / "runs.json").write_text(json.dumps(runs))
        files = sorted({test.partition("::")[0] for tests in runs.values() for test in tests})
        self.pytest(
            logs,
            arguments.files if arguments.all_tests else files,
            *(("-m", arguments.markers) if arguments.all_tests else ()),
            "--timeout-method=thread",  # ends the process, also where a test waits in native code
            ENGRAM_FAULT_RUNS=str(logs / "runs.json"),
            ENGRAM_FAULT_STOP=str(arguments.stop or ""),
            ENGRAM_FAULT_PROCESSES=str(arguments.processes),
        )

    def new_folder(self, name: str) -> Path:
        """Returns an empty folder."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def table(self) -> None:
        """Prints, as Markdown, the test functions that caught each fault, and where they run."""
        results = json.loads(self.results.read_text())
        print("| fault | file | caught by (tests) | target | store |\n| --- | --- | --- | --- | --- |")
        for fault in self.faults:
            failed = results.get(fault.id, {})
            caught = ", ".join(f"`{name}` ({count})" for name, count in functions(failed).items())
            targets = ", ".join(sorted(set(failed.values())))
            print(f"| {fault.id} | {fault.file} | {caught or 'none'} | {targets} | {', '.join(stores_of(failed))} |")


def functions(failed: dict[str, str]) -> dict[str, int]:
    """Returns the functions of failed tests, each with its number of failed tests."""
    names = [test.partition("[")[0] for test in failed]
    return {name: names.count(name) for name in sorted(set(names))}


def stores_of(failed: dict[str, str]) -> list[str]:
    """Returns the stores with which tests of `open_store` failed."""
    return [name for part, name in STORES.items() if any(re.search(rf"[\[-]{part}[\]-]", test) for test in failed)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["build", "record", "run", "table"])
    parser.add_argument("ids", nargs="*", help="run: the faults; default: all")
    parser.add_argument("--dir", type=Path, required=True, help="folder of the copy, its build and the results")
    parser.add_argument("--tree", type=Path, default=SCRIPTS.parent, help="the tree to copy; default: this one")
    parser.add_argument("--faults", type=Path, default=SCRIPTS / "faults.toml")
    parser.add_argument("--python", default=sys.executable, help="interpreter with the packages of the tests")
    parser.add_argument("--processes", type=int, default=2, help="number of processes of pytest; default: 2")
    parser.add_argument("--timeout", type=int, default=60, help="seconds after which a Python test fails; default: 60")
    parser.add_argument("--stop", type=int, help="run: stop the Python tests when this many test functions have failed")
    parser.add_argument("--all-tests", action="store_true", help="run: run all tests of -m; adds to the results")
    parser.add_argument("-m", dest="markers", default=DEFAULT_MARKERS, help=f"Python tests; default: {DEFAULT_MARKERS}")
    parser.add_argument("--files", nargs="*", default=[], help="folders and files of Python tests; default: all")
    parser.add_argument("--add", action="store_true", help="record: add to what earlier calls recorded")
    parser.add_argument("--no-rust", action="store_true", help="run no Rust tests")
    parser.add_argument("--no-python", action="store_true", help="run no Python tests")
    arguments = parser.parse_args()
    getattr(Copy(arguments), arguments.command)()


if __name__ == "__main__":
    main()

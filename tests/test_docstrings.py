"""The docstrings of the modules in `AUDITED` document arguments, results and errors.

The examples in the docstrings of `engram.compat.reverb` run.
"""

import contextlib
import importlib
import inspect
import operator
import re
import textwrap
from importlib.util import find_spec

import numpy as np
import pytest
from helpers.compat_tables import serving, table
from helpers.docstrings import (
    Name,
    fields,
    kind_named,
    modules,
    names_of,
    parameters,
    parse_docstring,
    raised,
    referred_sections,
    returns,
)

from engram.compat import reverb
from engram.compat.reverb import _arguments

WITH_TENSORFLOW = {
    "engram.compat.ftw.datasets.reverb",
    "engram.compat.reverb",
    "engram.compat.reverb.pattern_dataset",
    "engram.compat.reverb.replay_dataset",
    "engram.compat.reverb.tf_client",
    "engram.compat.reverb.timestep_dataset",
    "engram.compat.reverb.trajectory_dataset",
}
"""Modules that need TensorFlow for some of their names."""


def of_compat():
    """Modules of `engram.compat`; those that need TensorFlow or PyTorch are marked."""
    for module in modules("engram.compat"):
        needs_tensorflow = module in WITH_TENSORFLOW or module.startswith("engram.compat.tf_agents")
        marks = [pytest.mark.frameworks] if needs_tensorflow else []
        if module.startswith("engram.compat.alf"):
            marks = [pytest.mark.frameworks, pytest.mark.torch]
        if module.startswith(("engram.compat.ftw.agents", "engram.compat.ftw.tf")):
            marks = [pytest.mark.jax]
        yield pytest.param(module, marks=marks)


AUDITED = [
    *of_compat(),
    "engram.adders",
    "engram.buffers",
    "engram.data",
    "engram.gymnasium",
    "engram.data.numpy",
    pytest.param("engram.distributed", marks=pytest.mark.ray),
    pytest.param("engram.minari", marks=pytest.mark.skipif(not find_spec("minari"), reason="needs Minari")),
    pytest.param("engram.parquet", marks=pytest.mark.skipif(not find_spec("pyarrow"), reason="needs PyArrow")),
    pytest.param("engram.data.jax", marks=pytest.mark.jax),
    pytest.param("engram.data.tensorflow", marks=pytest.mark.frameworks),
    pytest.param("engram.data.torch", marks=[pytest.mark.frameworks, pytest.mark.torch]),
]

VERB = re.compile(r"[A-Z][a-z]+s\b")
"""The start of a first line that states what is done. Such a docstring needs a section on what is returned."""

STATES_RESULT = {"Returns", "Creates", "Steps", "Seconds", "Names", "Items", "This", "Its"}
"""Exceptions: first words after which the line states the result."""

_NO_TIMEOUT = "it is called without a timeout"
_CHECKED = "the address was checked when it was given"
_COUNTED = "the number of leaves is that of the nest"
_BUILT = "the arguments were checked when the object was created"
_OWN_STORE = "it is called with a store"
_FTW_AGENTS = (
    "engram.compat.ftw.agents.tf.ftw.agent.FTWWithoutActor.__init__",
    "engram.compat.ftw.agents.tf.ftw.learning_standalone.FTWLearnerStandalone.__init__",
)
_NOTED = "a table's note was created from a checked signature"
_IMPORTED = "the constructor imported TensorFlow"

IMPOSSIBLE = {
    **{agent: {"TypeError": _OWN_STORE, "ValueError": _BUILT} for agent in _FTW_AGENTS},
    "engram.compat.ftw.agents.tf.ftw.learning_standalone.FTWLearnerStandalone.replay_server_address": {
        "InvalidArgumentError": _OWN_STORE
    },
    "engram.compat.ftw.agents.tf.ftw.learning_standalone.FTWLearnerStandalone.make_actor": {
        "InvalidArgumentError": _BUILT,
        "TypeError": _OWN_STORE,
    },
    "engram.compat.ftw.agents.tf.ftw.utils.create_reverb_tables": dict.fromkeys(
        ("TypeError", "ValueError", "NotImplementedError"), "it is called with checked sizes"
    ),
    "engram.compat.ftw.tf.networks.dnc.access.MemoryAccess.initial_state": {"InvalidArgumentError": _BUILT},
    **{
        f"engram.compat.reverb.{writer}.{method}": {"DeadlineExceededError": "it becomes Reverb's error of this name"}
        for writer in ("structured_writer.StructuredWriter", "trajectory_writer.TrajectoryWriter")
        for method in ("flush", "end_episode")
    },
    "engram.compat.reverb.client.Client.insert": {"DeadlineExceededError": _NO_TIMEOUT},
    "engram.compat.reverb.client.Client.sample": {"DeadlineExceededError": _NO_TIMEOUT},
    "engram.compat.reverb.client.Client.server_info": {"InvalidArgumentError": _CHECKED, "ValueError": _NOTED},
    "engram.compat.reverb.client.Client.checkpoint": {"TypeError": _NOTED},
    "engram.compat.reverb.server.Server.localhost_client": {"TypeError": _CHECKED, "InvalidArgumentError": _CHECKED},
    "engram.compat.reverb.server.Server.in_process_client": {"TypeError": _CHECKED, "InvalidArgumentError": _CHECKED},
    "engram.compat.reverb._config_builder.Condition.data": {"ValueError": _COUNTED},
    "engram.compat.reverb._config_builder.create_config": {"ValueError": _COUNTED},
    "engram.compat.reverb._config_builder.create_reference_step": {"ValueError": _COUNTED},
    "engram.compat.reverb._config_builder.pattern_from_transform": {"ValueError": _COUNTED},
    "engram.compat.reverb._config_builder.td_error": {"ValueError": _COUNTED},
    "engram.compat.reverb.table.Table.info": {
        "InvalidArgumentError": "one table has one name",
        "TypeError": _NOTED,
        "ValueError": _NOTED,
    },
    "engram.compat.reverb.tf_client.TFClient.insert": {"ModuleNotFoundError": _IMPORTED},
    "engram.compat.reverb.tf_client.TFClient.sample": {"ModuleNotFoundError": _IMPORTED},
    "engram.compat.reverb.tf_client.TFClient.update_priorities": {"ModuleNotFoundError": _IMPORTED},
    "engram.compat.reverb.writer.Writer.close": {
        "DeadlineExceededError": _NO_TIMEOUT,
        "TypeError": "it is called with constants",
    },
    "engram.compat.reverb.writer.Writer.flush": {
        "DeadlineExceededError": _NO_TIMEOUT,
        "TypeError": "it is called with constants",
        "ValueError": "it is called with constants",
    },
}
"""Errors that the source code seems to raise, by public name and class, and why they cannot occur."""


def class_sections(name: Name) -> dict[str, list[str]]:
    """Sections of the class's docstring about a member: about `__init__`, or about errors if that has its own docs."""
    sections = parse_docstring(name.owner.__doc__).sections if name.owner else {}
    if name.path.endswith("__init__"):
        return sections
    init = getattr(name.owner, "__init__", None)
    return {"Raises": sections.get("Raises", [])} if inspect.isfunction(init) and init.__doc__ else {}


def faults(name: Name) -> list[str]:
    """Problems of a docstring."""
    init = name.path.endswith("__init__")
    if not init and not (name.value.__doc__ or "").strip():
        return ["no docstring"]
    docstring = parse_docstring(name.value.__doc__)
    if name.function is None:
        return [f"field {each}" for each in fields(name.value) if each not in docstring.sections.get("Attributes", [])]
    sections = [docstring.sections, *referred_sections(name), class_sections(name)]
    documented = [each for section in sections for each in section.get("Args", [])]
    documented += [each for each in sections[-1].get("Attributes", []) if each not in documented]
    if name.path.startswith("engram.compat."):
        documented += re.findall(r"`(\w+)`", docstring.first)  # one line documents an argument that it names
    taken = parameters(name.function)
    problems = [f"argument {each}" for each in taken if each not in documented]
    problems += [f"unknown argument {each}" for each in docstring.sections.get("Args", []) if each not in taken]
    timed = [each for each in taken if re.search("timeout|_ms$|interval", each) and each in docstring.texts]
    problems += [f"unit of {each}" for each in timed if "econds" not in docstring.texts[each]]
    word = docstring.first.partition(" ")[0]
    states_result = isinstance(name.value, property) or not VERB.match(word) or word in STATES_RESULT
    if returns(name.function) and not (states_result or {"Returns", "Yields"} & {*docstring.sections}):
        problems.append("what it returns")
    kinds = {each: kind_named(each, name.function) for section in sections for each in section.get("Raises", [])}
    problems += [f"unknown error {each}" for each, kind in kinds.items() if kind is None]
    known = tuple(kind for each, kind in kinds.items() if kind is not None)
    impossible = IMPOSSIBLE.get(name.path, {})
    errors = raised(name.function, name.owner)
    for kind, where in errors.items():
        if not issubclass(kind, known) and kind.__name__ not in impossible:
            problems.append(f"raises {kind.__name__} (in {where})")
    raised_names = {kind.__name__ for kind in errors}
    problems += [f"not raised, but in IMPOSSIBLE: {each}" for each in impossible if each not in raised_names]
    return problems


@pytest.mark.parametrize("module", AUDITED)
def test_docstrings_are_complete(module):
    # What is exported of another package is documented there.
    names = [name for name in names_of(module) if not name.path.startswith("engram.agents.")]
    incomplete = {name.path: faults(name) for name in names}
    assert not {path: problems for path, problems in incomplete.items() if problems}


# --- tests of the audit ---------------------------------------------------------------------------


def drawn(n: int) -> list[int]:
    """Returns items.

    Args:
        n: How many.

    Raises:
        ValueError: `n` is below 1.
    """
    if n < 1:
        raise ValueError(n)
    return [n]


class Audited:
    """A class whose docstrings have the faults of `AUDITED_FAULTS`."""

    def silent(self): ...

    def draws(self, table: str, n: int, timeout: float | None) -> list[int]:  # noqa: ARG002, an example
        """Draws items.

        Args:
            tabel: A typo.
            n: How many.
            timeout: How long to wait,
                at most.

        Raises:
            ValueError: `n` is below 1.
            tf.errors.NotFoundError: It documents no other error.
            UnknownError: There is none.
        """
        if n < 1:
            raise ValueError(n)
        try:
            return self._drawn(table, n)
        except KeyError:
            return []

    def _drawn(self, table: str, n: int) -> list[int]:
        _arguments.integer("n", n)
        if not table:
            raise self._late()
        raise KeyError(table)

    @staticmethod
    def _late() -> TimeoutError:
        return TimeoutError()

    def more(self, n: int, seed: int) -> list[int]:  # noqa: ARG002, an example
        """Returns items. The other arguments and errors are those of `drawn`."""
        _arguments.integer("n", n)
        return drawn(n)

    def again(self, n: int) -> list[int]:
        """Returns items. Arguments and errors are those of `Audited.more`."""
        return self.more(n, 0)

    @property
    def count(self) -> int:
        """How many.

        Raises:
            TypeError, TimeoutError: As of `draws`.
        """
        return len(self._drawn("", 0))


AUDITED_FAULTS = {
    "silent": ["no docstring"],
    "draws": [
        "argument table",
        "unknown argument tabel",
        "unit of timeout",
        "what it returns",
        "unknown error UnknownError",
        "raises TypeError (in integer)",
        "raises TimeoutError (in Audited._drawn)",
    ],
    "more": ["argument seed", "raises TypeError (in integer)"],
    "again": ["raises TypeError (in integer)"],
    "count": ["raises KeyError (in Audited._drawn)"],
}


@pytest.mark.parametrize("member", AUDITED_FAULTS)
def test_the_audit_finds_faults(member):
    assert faults(Name(member, vars(Audited)[member], Audited)) == AUDITED_FAULTS[member]


def test_the_audit_includes_inherited_members():
    paths = {name.path for name in names_of("engram.compat.reverb.timestep_dataset")}
    assert "engram.compat.reverb.timestep_dataset.TimestepDataset.element_spec" in paths


# --- examples -------------------------------------------------------------------------------------

EXAMPLES = [
    "checkpointers.DefaultCheckpointer",
    "structured.Condition",
    "Client",
    "Server",
    "structured.StructuredWriter",
    "Table",
    "TrajectoryWriter",
    "Writer",
    *(
        pytest.param(name, marks=pytest.mark.frameworks)
        for name in ("PatternDataset", "TFClient", "TimestepDataset", "TrajectoryDataset")
    ),
]


def example(docstring):
    """First indented block of a docstring."""
    lines = inspect.cleandoc(docstring).splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("    "))
    end = next(
        (index for index, line in enumerate(lines[start:], start) if line and not line.startswith("    ")), len(lines)
    )
    return textwrap.dedent("\n".join(lines[start:end]))


class Learned(Exception):  # noqa: N818, not an error
    """Ends an example that would loop forever."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name, request, tmp_path):
    value = operator.attrgetter(name)(reverb)
    learned = []

    def learn(*data):
        learned.append(data)
        if len(learned) > 1:
            raise Learned

    with serving(table("replay")) as (server, client):
        for _ in range(2):
            client.insert({"observation": np.zeros(4, np.float32)}, {"replay": 1.0})
        code = example(value.__doc__).replace("localhost:8000", f"localhost:{server.port}")
        code = code.replace("port=8000", "port=0").replace("/data/replay", str(tmp_path))
        names = {"np": np, "reverb": reverb, "client": client, "table": table("another"), "learn": learn}
        names["Condition"] = reverb.structured.Condition
        if request.node.get_closest_marker("frameworks"):
            names["tf"] = request.getfixturevalue("tf")
        with contextlib.suppress(Learned):
            exec(compile(code, name, "exec"), names)  # noqa: S102, trusted code
        assert len(learned) == 2 * ("learn(" in code)
        assert client.server_info()["replay"].current_size > 2 * ("Writer" in name)
        if isinstance(names.get("server"), reverb.Server):
            names["server"].stop()


@pytest.fixture
def tf():
    """TensorFlow, which is installed: only tests with the marker `frameworks` request it."""
    return importlib.import_module("tensorflow")

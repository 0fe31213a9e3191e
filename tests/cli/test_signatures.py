"""Signatures in a tables file."""

import numpy as np
import pytest
from helpers.support import raises

import engram
from engram.cli import signatures
from engram.compat import reverb
from engram.compat.reverb.tensor_spec import TensorSpec
from engram.errors import InvalidArgumentError, SignatureError

DTYPES = (
    "bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, float32, float64, bfloat16, "
    "float8_e4m3fn, float8_e5m2, complex64, complex128, string, str"
)


def test_signatures_can_be_mappings_lists_and_single_columns(read):
    text = """
    [t.signature]
    observation = { image = "uint8[?, 84,84]", text = "string", word = "str" }
    actions = ["int64[?]", "float32[]"]

    [leaf]
    like = "queue"
    max_size = 3
    signature = "float32[3]"
    """
    first, second = read(text)
    spec = engram.ArraySpec
    assert first.signature == {
        "observation": {"image": spec((None, 84, 84), "uint8"), "text": spec((), "string"), "word": spec((), "str")},
        "actions": [spec((None,), "int64"), spec((), "float32")],
    }
    assert second == engram.Table.queue("leaf", max_size=3, signature=spec((3,), "float32"))


def test_every_dtype_is_accepted(read):
    columns = "\n".join(f'{dtype} = "{dtype}"' for dtype in DTYPES.split(", "))
    with engram.Store(read(f"[t.signature]\n{columns}")) as store:
        assert store.info()["t"].signature.keys() == set(DTYPES.split(", "))


def test_the_store_checks_the_signature(read):
    with engram.Store(read('[t]\nsignature = { x = "float32[2]" }')) as store:
        store.insert({"x": np.zeros(2, np.float32)}, {"t": 1.0})
        with pytest.raises(SignatureError, match=r"must be float32\[2\]; got float32\[3\]"):
            store.insert({"x": np.zeros(3, np.float32)}, {"t": 1.0})


def test_reverbs_clients_receive_a_reverb_signature(serve, tmp_path):
    file = tmp_path / "tables.toml"
    file.write_text(
        """
        [steps]
        reverb_signature = { x = "float32[2]", y = ["int64"] }

        [queue]
        like = "queue"
        max_size = 9
        reverb_signature = { x = "string[?]" }
        """
    )
    _, _, address = serve("--tables", file)
    client = reverb.Client(address)
    infos = client.server_info()
    assert infos["steps"].signature == {"x": TensorSpec([2], np.float32), "y": [TensorSpec([], np.int64)]}
    assert infos["queue"].signature == {"x": TensorSpec([None], "string")}
    assert [infos[name].max_times_sampled for name in ("steps", "queue")] == [0, 1]
    client.insert({"x": np.zeros(2, np.float32), "y": [1]}, {"steps": 1.0})
    with pytest.raises(ValueError, match="inconsistent with the table signature"):
        client.insert({"x": np.zeros(3, np.float32), "y": [1]}, {"steps": 1.0})


COLUMN = 'must be a dtype and a shape, such as "float32[?,84,84]"'


@pytest.mark.parametrize("key", ["signature", "reverb_signature"])
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("{ x = 3 }", f"`x` {COLUMN}; got 3"),
        ('{ a = { b = [[], "float32[-1]"] } }', f"`a.b[1]` {COLUMN}; got 'float32[-1]'"),
        ("{ x = 'float32[' }", f"`x` {COLUMN}; got 'float32['"),
        ("{ x = 'float32[,]' }", f"`x` {COLUMN}; got 'float32[,]'"),
        ("{ x = '' }", f"`x` {COLUMN}; got ''"),
    ],
)
def test_bad_columns_are_rejected(read, tmp_path, key, value, text):
    with raises(InvalidArgumentError, f"table [t] of `{tmp_path / 'tables.toml'}`: `{key}`: {text}"):
        read(f"[t]\n{key} = {value}")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("signature = 3", f"`signature` {COLUMN}; got 3"),
        ("signature = {}", '`signature` has no columns; a column is text such as "float32[?,84,84]"'),
        ("reverb_signature = [[]]", '`reverb_signature` has no columns; a column is text such as "float32[?,84,84]"'),
        ("signature = 'float[3]'", f"`signature` has the dtype `float`; supported are {DTYPES}"),
        (
            "reverb_signature = ['float8_e5m2']",
            "`reverb_signature`: `[0]` has the dtype `float8_e5m2`; supported are "
            + DTYPES.replace("float8_e4m3fn, float8_e5m2, ", "").removesuffix(", str"),
        ),
        (
            "signature = 'int8'\nreverb_signature = 'int8'",
            "`signature` and `reverb_signature` must not be given together",
        ),
        ("note = 'n'\nreverb_signature = 'int8'", "`note` and `reverb_signature` must not be given together"),
    ],
)
def test_bad_signatures_are_rejected(read, tmp_path, options, text):
    with raises(InvalidArgumentError, f"table [t] of `{tmp_path / 'tables.toml'}`: {text}"):
        read(f"[t]\n{options}")


def test_a_reverb_signature_that_is_too_large_is_rejected():
    nest = {f"column_{index}": "float32[3]" for index in range(2_000)}
    with pytest.raises(
        InvalidArgumentError, match=r"^`reverb_signature`: Unsupported signature: its encoding has \d+ b"
    ):
        signatures.read_reverb_signature(nest, None)

"""Pickled clients: what a DataLoader's workers get."""

import pickle

from support import raises

import engram
from engram import Table
from engram.errors import InvalidArgumentError


def copy(client):
    return pickle.loads(pickle.dumps(client))  # noqa: S301, our own


def test_a_copy_connects_anew():
    with engram.Server([Table("t")], token="secret") as server:
        client = engram.Client(server.address, token="secret", reconnect_timeout=3)
        other = copy(client)
        client.insert(1, {"t": 1.0})
        assert other.sample("t", 1).data.tolist() == [1]
        assert (other.address, other._timeout) == (client.address, 3)


def test_the_token_is_in_clear_text():
    client = engram.Client("localhost:1", token="secret")
    assert b"secret" in pickle.dumps(client)


def test_pem_files_are_found_from_other_directories(certificates, monkeypatch, tmp_path):
    folder = certificates.ca.parent
    with engram.Server([Table("t")], client_ca=certificates.ca, **certificates.server) as server:
        monkeypatch.chdir(folder)
        client = engram.Client(
            f"localhost:{server.port}", ca="ca.pem", certificate="client.pem", key="client.key", server_name="127.0.0.1"
        )
        monkeypatch.chdir(tmp_path)
        assert copy(client).tables == ["t"]


def test_a_copy_that_does_not_find_its_files_says_so(tmp_path, certificates):
    ca = tmp_path / "ca.pem"
    ca.write_bytes(certificates.ca.read_bytes())
    pickled = pickle.dumps(engram.Client("localhost:1", ca=ca))
    ca.unlink()
    text = f"cannot read the PEM file `{ca}`: [Errno 2] No such file or directory: '{ca}'"
    with raises(InvalidArgumentError, text):
        pickle.loads(pickled)  # noqa: S301, our own


class Named(engram.Client):
    """A client with a way of its own to begin."""

    def __init__(self, server, name):
        self.name = name
        super().__init__(server.address)


def test_subclasses_stay_what_they_are():
    with engram.Server([Table("t")]) as server:
        other = copy(Named(server, "reader"))
        assert (type(other), other.name, other.tables) == (Named, "reader", ["t"])


def test_a_store_stays():
    with engram.Store([Table("t")]) as store, raises(TypeError, "cannot pickle 'engram._engram.Store' object"):
        pickle.dumps(store)

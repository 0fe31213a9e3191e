"""Pickled clients, which a DataLoader's workers receive."""

import errno
import os
import pickle

from helpers.support import raises

import engram
from engram import Table
from engram.errors import InvalidArgumentError


def copy(client):
    """Pickles and unpickles a client."""
    return pickle.loads(pickle.dumps(client))  # noqa: S301, pickled by this test


def test_a_copy_connects_with_the_same_options():
    with engram.Server([Table("t")], token="secret") as server:
        client = engram.Client(server.address, token="secret", reconnect_timeout=3)
        other = copy(client)
        client.insert(1, {"t": 1.0})
        assert other.sample("t", 1).data.tolist() == [1]
        assert (other.address, other._reconnect_timeout) == (client.address, 3)


def test_the_pickled_token_is_not_encrypted():
    client = engram.Client("localhost:1", token="secret")
    assert b"secret" in pickle.dumps(client)


def test_relative_paths_of_pem_files_work_in_other_directories(certificates, monkeypatch, tmp_path):
    folder = certificates.ca.parent
    with engram.Server([Table("t")], client_ca=certificates.ca, **certificates.server) as server:
        monkeypatch.chdir(folder)
        client = engram.Client(
            f"localhost:{server.port}", ca="ca.pem", certificate="client.pem", key="client.key", server_name="127.0.0.1"
        )
        monkeypatch.chdir(tmp_path)
        assert copy(client).tables == ["t"]


def test_a_missing_pem_file_is_an_error(tmp_path, certificates):
    ca = tmp_path / "ca.pem"
    ca.write_bytes(certificates.ca.read_bytes())
    pickled = pickle.dumps(engram.Client("localhost:1", ca=ca))
    ca.unlink()
    text = f"`ca`: cannot read the PEM file `{ca}`: {os.strerror(errno.ENOENT)}"
    with raises(InvalidArgumentError, text):
        pickle.loads(pickled)  # noqa: S301, pickled by this test


class NamedClient(engram.Client):
    """A client with another constructor."""

    def __init__(self, server, name):
        self.name = name
        super().__init__(server.address)


def test_subclasses_keep_their_type_and_attributes():
    with engram.Server([Table("t")]) as server:
        other = copy(NamedClient(server, "reader"))
        assert (type(other), other.name, other.tables) == (NamedClient, "reader", ["t"])

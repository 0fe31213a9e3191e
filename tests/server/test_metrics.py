"""Prometheus metrics, compared with `info`; bad requests are tested in Rust."""

import http.client
import json
import math
import re
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from helpers.support import BackgroundCall, raises, wait_until
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import engram
from engram.errors import InvalidArgumentError

TOKEN = "s3cret"
PAGE = Path(__file__).parents[2] / "docs" / "server.md"
BOARD = PAGE.parent / "grafana.json"


def scrape(server, *, scheme="http", token=None, context=None):
    """Reads the metrics with a strict parser; returns each value by the metric's name and the values of its labels.

    The key of a metric without labels is a tuple of one: `("engram_server_connections_total",)`.
    """
    request = urllib.request.Request(f"{scheme}://{server.metrics_address}/metrics")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=30, context=context) as response:
        text = response.read().decode()
    families = text_string_to_metric_families(text)
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


@pytest.fixture
def server():
    limited = engram.rate_limiters.SampleToInsertRatio(samples_per_insert=2, min_size=2, error_buffer=6)
    tables = [
        engram.Table("plain", max_size=5),
        engram.Table('odd "name"\\\n', max_bytes=1_000_000, rate_limiter=limited),
        engram.Table.queue("queue", max_size=1),
    ]
    with engram.Server(tables, metrics_port=0) as server:
        yield server


def test_metrics_match_info(server):
    client = engram.Client(server.address)
    for value in range(7):
        client.insert({"x": np.float32(value)}, {"plain": 1.0, 'odd "name"\\\n': 1.0} if value < 3 else {"plain": 1.0})
    client.sample("plain", 4, timeout=10)
    client.sample('odd "name"\\\n', 1, timeout=10)
    client.insert({"x": np.float32(0)}, {"queue": 1.0})
    waiting = BackgroundCall(lambda: client.insert({"x": np.float32(1)}, {"queue": 1.0}))
    wait_until(lambda: server.store.info()["queue"].waiting_inserts)

    scraped = scrape(server)
    for name, info in server.store.info().items():
        limiter = info.rate_limiter
        expected = {
            "items": info.size,
            "max_items": info.max_size,
            "bytes": info.bytes,
            "max_bytes": info.max_bytes,
            "hidden_items": info.hidden_items,
            "episodes": info.num_episodes,
            "inserts_total": info.inserts,
            "samples_total": info.samples,
            "deletes_total": info.deletes,
            "unique_samples": info.num_unique_samples,
            "deleted_episodes_total": info.num_deleted_episodes,
            "unreadable_items_total": info.unreadable_items,
            "waiting_inserts": info.waiting_inserts,
            "waiting_samples": info.waiting_samples,
            "inserting_blocked": info.inserting_blocked is not None,
            "sampling_blocked": info.sampling_blocked is not None,
            "limiter_diff": info.inserts * limiter.samples_per_insert - info.samples,
            "limiter_min_diff": limiter.min_diff,
            "limiter_max_diff": limiter.max_diff,
            "limiter_min_items": limiter.min_size,
            "limiter_samples_per_insert": limiter.samples_per_insert,
        }
        metrics = {key[0].removeprefix("engram_table_"): value for key, value in scraped.items() if key[1:] == (name,)}
        assert metrics == {key: value for key, value in expected.items() if value is not None}
    assert scraped["engram_table_deletes_total", "plain"] == 2
    assert scraped["engram_table_limiter_max_diff", "plain"] == math.inf
    assert scraped["engram_table_inserting_blocked", "queue"] == 1
    client.sample("queue", 1, timeout=10)
    waiting.result()
    assert scrape(server)["engram_table_waiting_inserts", "queue"] == 0


def test_the_counter_of_samples_does_not_decrease_when_leases_return(server):
    client = engram.Client(server.address)
    for value in range(5):
        client.insert({"x": np.float32(value)}, {"plain": 1.0})
    samples = lambda: scrape(server)["engram_table_samples_total", "plain"]  # noqa: E731
    batches = iter(engram.Dataset(client, "plain", 2, prefetch=3))
    for _ in range(2):
        next(batches)
    wait_until(lambda: server.store.info()["plain"].samples > 4)
    before = samples()
    batches.close()
    wait_until(lambda: server.store.info()["plain"].samples == 4)
    assert before <= samples() == 4


def test_connections_and_calls_are_counted(server):
    metrics_before = scrape(server)
    assert metrics_before["engram_server_connections_total",] == metrics_before["engram_server_open_connections",] == 0
    assert metrics_before["engram_server_info", engram.__version__] == 1
    client = engram.Client(server.address)
    with client.writer() as writer:
        writer.append({"x": np.float32(1)})
        writer.create_item("plain", 1.0, num_steps=1)
        writer.flush(timeout=10)
        metrics_during = scrape(server)
    assert metrics_during["engram_server_open_calls", "engram", "insert"] == 1
    assert metrics_during["engram_server_calls_total", "engram", "insert"] == 1
    assert (
        metrics_during["engram_server_calls_total", "engram", "hello"]
        == metrics_during["engram_server_connections_total",]
        >= 1
    )
    assert metrics_during["engram_server_open_connections",] >= 1
    client.close()
    del client, writer
    wait_until(lambda: scrape(server)["engram_server_open_calls", "engram", "insert"] == 0)
    wait_until(lambda: scrape(server)["engram_server_open_connections",] == 0)
    assert scrape(server)["engram_server_connections_total",] == metrics_during["engram_server_connections_total",]


def test_metrics_include_created_tables_and_omit_dropped_ones(server):
    server.store.create_table(engram.Table("late"))
    assert scrape(server)["engram_table_items", "late"] == 0
    server.store.drop_table("late")
    assert ("engram_table_items", "late") not in scrape(server)


def test_every_metric_is_documented(server):
    documented = set(re.findall(r"^\| `(engram_\w+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert {key[0] for key in scrape(server)} == documented


def test_by_default_a_server_has_no_metrics():
    with engram.Server([]) as server:
        assert server.metrics_address is None


def test_metrics_require_the_token():
    with engram.Server([engram.Table("t")], token=TOKEN, metrics_port=0) as server:
        for token in (None, TOKEN + "7"):
            with pytest.raises(urllib.error.HTTPError, match="HTTP Error 401"):
                scrape(server, token=token)
        assert scrape(server, token=TOKEN)["engram_table_items", "t"] == 0


def test_metrics_use_the_servers_certificates(certificates, other_certificates):
    with engram.Server([], **certificates.server, client_ca=certificates.ca, metrics_port=0) as server:
        context = ssl.create_default_context(cafile=certificates.ca)
        with pytest.raises(OSError, match=r"(?i)certificate"):
            scrape(server, scheme="https", context=context)
        context.load_cert_chain(certificates.client["certificate"], certificates.client["key"])
        assert ("engram_server_connections_total",) in scrape(server, scheme="https", context=context)
        with pytest.raises(OSError, match=r"certificate verify failed"):
            scrape(server, scheme="https", context=ssl.create_default_context(cafile=other_certificates.ca))
        with pytest.raises(http.client.BadStatusLine):
            scrape(server)


def test_bad_metrics_ports_are_rejected():
    with engram.Server([], metrics_port=0) as server:
        port = int(server.metrics_address.rpartition(":")[2])
        text = f"`metrics_port` {port} is already in use; choose another, or 0 for any free port"
        with raises(InvalidArgumentError, text):
            engram.Server([], metrics_port=port)
    with engram.Server([], metrics_port=port) as server:
        assert server.metrics_address == f"127.0.0.1:{port}"
    with raises(InvalidArgumentError, "`metrics_port` must be at most 65535; got 65536"):
        engram.Server([], metrics_port=65_536)


def test_the_board_for_grafana_shows_metrics_that_the_server_has(server):
    panels = json.loads(BOARD.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) == 10
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    shown = {name for expression in expressions for name in re.findall(r"engram_\w+", expression)}
    exported = {name for name, *_ in scrape(server)}
    assert len(shown) > 10
    assert shown <= exported

"""Shards whose process or node is killed under load: nothing acknowledged is lost or doubled, and calls soon go on."""

import logging
import os
import re
import time

import pytest
from helpers.ray_nodes import Load
from helpers.support import runs_all_tests, wait_until

from engram import Table
from engram.selectors import Prioritized

pytestmark = [pytest.mark.ray, pytest.mark.crash, pytest.mark.timeout(3_600)]

ROUNDS = int(os.environ.get("ENGRAM_RAY_KILLS") or (4 if runs_all_tests() else 2))
"""Number of kills: every second one is a whole node."""
MAX_WAIT = float(os.environ.get("ENGRAM_RAY_MAX_WAIT") or 60)
"""Longest wait of the learner, in seconds. On an idle machine it is below 5."""


def test_killed_processes_and_nodes(nodes, start, caplog):
    caplog.set_level(logging.WARNING, "engram.distributed")
    cluster = start([Table("t", sampler=Prioritized(0.6), max_size=10_000_000)], shards=2)
    load = Load(cluster)
    wait_until(lambda: load.waits or load.errors, 60)
    waits, unexplained = {"process": [], "node": []}, []
    for number in range(ROUNDS):
        time.sleep(0.5)
        shard = cluster.shards()[number // 2 % 2]
        kind = ("process", "node")[number % 2]
        caplog.clear()
        killed = time.monotonic()
        nodes.kill_process(cluster, shard) if kind == "process" else nodes.kill_node(shard)
        wait_until(lambda: load.longest_wait(killed) > 0.5 or load.errors or time.monotonic() > killed + 4, 60)  # noqa: B023
        cluster.wait_until_ready(60)
        wait_until(lambda: any(began > killed + 1 for began, _ in load.waits[-20:]) or load.errors, 60)  # noqa: B023
        assert load.errors == []
        waits[kind].append(load.longest_wait(killed))
        # A shard that is back within 2 s is not reported as unreachable. A registry that was on its node does not know
        # its address.
        name = rf"shard {shard.index} \(id {shard.shard_id}"
        waiting = (
            rf"{name}, (last at {shard.address}\) does not respond|address not known\) is).*; calls that need it wait"
        )
        restarted = rf"{name}\) was restarted at .*, and was at {shard.address}; calls that waited for it go on"
        if waits[kind][-1] > 1.0 and not re.search(f"{waiting}|{restarted}", caplog.text):
            unexplained.append(waits[kind][-1])
        nodes.replace_killed()
    load.stop()
    print({kind: [round(wait, 2) for wait in values] for kind, values in waits.items()}, load.written)  # noqa: T201
    print("waits above 1 s without a warning:", unexplained)  # noqa: T201
    load.check_content()
    assert max(waits["process"] + waits["node"]) <= MAX_WAIT, waits
    assert unexplained == []

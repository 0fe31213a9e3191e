"""A Ray cluster of several nodes on this machine, whose processes and nodes are killed, and load on it."""

import os
import signal
import subprocess

import engram

# A killed node is noticed after about a second, because nothing listens at its address any more. The long timeouts are
# for nodes that are slow because the machine is busy.
CONFIG = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 400,
    "health_check_failure_threshold": 3,
    "health_check_timeout_ms": 10_000,
    "agent_register_timeout_ms": 120_000,
    "prestart_worker_first_driver": False,
}

# The same on each node: every node has an address of its own. With fixed ports, nodes start without their agents.
PORTS = {"metrics_agent_port": 40_001, "runtime_env_agent_port": 40_002, "dashboard_agent_listen_port": 40_003}


class RayNodes:
    """A head node, on which the test and its workers run, and nodes with the resource `shard`. A context manager.

    Ray replaces 127.0.0.1 by another address of the machine; so nodes have 127.0.0.2 and the following.
    """

    def __init__(self, nodes):
        # A busy machine starts nodes slowly. Ray reads this when it is imported.
        os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")
        from ray.cluster_utils import Cluster

        self._cluster = Cluster()
        self._next_host = 2
        self._killed = []
        self._add(num_cpus=2, resources={"head": 8}, include_dashboard=False, _system_config=CONFIG)
        self.nodes = [self.add() for _ in range(nodes)]

    def _add(self, **options):
        host = f"127.0.0.{self._next_host}"
        self._next_host += 1
        return self._cluster.add_node(node_ip_address=host, **PORTS, **options)

    def add(self):
        """Adds a node for shards."""
        return self._add(num_cpus=1, resources={"shard": 2})

    def node_of(self, shard):
        """Returns the node on which a shard runs."""
        host = shard.address.rpartition(":")[0]
        return next(node for node in self.nodes if node.node_ip_address == host)

    def kill_process(self, cluster, shard):
        """Kills a shard's process, as `kill -9` does."""
        import ray

        actor = ray.get_actor(cluster.actor_name(shard), namespace=cluster.namespace)
        os.kill(ray.get(actor.pid.remote(), timeout=10), signal.SIGKILL)

    def kill_node(self, shard):
        """Kills all processes of the node on which a shard runs. `replace_killed` adds others."""
        node = self.node_of(shard)
        raylet = node.all_processes["raylet"][0].process.pid
        pids = [raylet, *children(raylet)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.nodes.remove(node)
        self._killed.append(node)

    def replace_killed(self):
        """Adds a node for each one that was killed, and ends what is left of these."""
        while self._killed:
            self._cluster.remove_node(self._killed.pop(), allow_graceful=False)
            self.nodes.append(self.add())

    def __enter__(self):
        import ray

        ray.init(address=self._cluster.address, _node_ip_address="127.0.0.2", log_to_driver=False)
        return self

    def __exit__(self, *_):
        import ray

        ray.shutdown()
        self._cluster.shutdown()


def children(pid):
    """Process ids of the child processes."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)  # noqa: S607
    return [int(line) for line in listed.stdout.split()]


class Load:
    """Writers and a sampler of a cluster, in threads. Each writer writes 0, 1, 2, ... of its own."""

    def __init__(self, cluster, writers=2):
        import threading

        self._cluster = cluster
        self._stopping = threading.Event()
        self.errors, self.written, self.waits = [], [0] * writers, []
        targets = [(self._write, index) for index in range(writers)] + [(self._sample,)]
        self._threads = [threading.Thread(target=self._run, args=target, daemon=True) for target in targets]
        for thread in self._threads:
            thread.start()

    def _run(self, call, *args):
        try:
            with self._cluster.client(reconnect_timeout=30.0) as client:
                call(client, *args)
        except BaseException as error:  # noqa: BLE001, checked by `stop`
            self.errors.append(error)

    def _write(self, client, index):
        pattern = engram.Pattern("t", lambda step: {"writer": step["writer"][-1], "x": step["x"][-1]})
        with client.pattern_writer([pattern]) as writer:
            while not self._stopping.is_set():
                writer.append({"writer": index, "x": self.written[index]})
                self.written[index] += 1
                if self.written[index] % 100 == 0:
                    writer.flush()
                    self._stopping.wait(0.01)  # leaves CPU to the cluster

    def _sample(self, client):
        import time

        while not self._stopping.is_set():
            began = time.monotonic()
            batch = client.sample("t", 16, timeout=60.0)
            client.update_priorities("t", batch.info.key, batch.info.priority)
            self.waits.append((began, time.monotonic() - began))
            self._stopping.wait(0.005)

    def longest_wait(self, since=0.0):
        """Seconds of the longest sample and update that began after this time or lasted until then."""
        return max((wait for began, wait in list(self.waits) if began + wait > since), default=0.0)

    def stop(self):
        """Stops all; raises their errors."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a call does not end"
        assert self.errors == []

    def check_content(self):
        """Checks that each item that was written is there exactly once, and its key too."""
        with self._cluster.client() as client:
            batches = list(client.scan("t"))
        found = sorted(
            item
            for batch in batches
            for item in zip(batch.data["writer"].tolist(), batch.data["x"].tolist(), strict=True)
        )
        expected = [(writer, x) for writer, count in enumerate(self.written) for x in range(count)]
        missing, extra = set(expected) - set(found), len(found) - len(set(found))
        assert found == expected, f"{len(missing)} of {len(expected)} items are lost, {extra} are doubled"
        keys = [int(key) for batch in batches for key in batch.info.key]
        assert len(set(keys)) == len(keys)

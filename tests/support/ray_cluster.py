"""A Ray cluster of two nodes on this machine, in a process of its own: it obeys lines on standard input.

    -> the address, on standard output
    <- "lose"    kills the second node with all its workers
    <- end       kills the cluster

Ray clusters of several machines need addresses that are not loopback; on one machine Ray's switch for systems without
such clusters makes it use loopback for all, so the tests work on machines without a network.
"""

import os
import secrets
import subprocess
import sys
from pathlib import Path

LOOPBACK = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}
"""Environment of the cluster, and of the commands that use it."""


class ClusterProcess:
    """The process of the cluster, as a test sees it."""

    def __init__(self, log: Path, nodes: int = 2) -> None:
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__)), str(nodes)],
                env={**os.environ, **LOOPBACK, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.address = self._read()
        assert self.address, log.read_text()

    def lose_node(self) -> None:
        self.process.stdin.write("lose\n")
        self.process.stdin.flush()
        assert self._read() == "lost"

    def workers(self) -> list:
        """Processes that embed."""
        import psutil

        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if "ChunkEmbedder" in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()

    def _read(self) -> str:
        return self.process.stdout.readline().strip()


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints to both
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 2**27, "node_ip_address": "127.0.0.1"}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    nodes = [cluster.add_node(**small) for _ in range(int(sys.argv[1]) - 1)]
    print(cluster.address, file=out, flush=True)
    for line in sys.stdin:
        if line.strip() == "lose":
            cluster.remove_node(nodes.pop(), allow_graceful=False)
            print("lost", file=out, flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()

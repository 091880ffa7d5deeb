"""Process that builds and runs the Ray Data pipeline of one plan.

    standard input     the plan, then nothing until the supervisor closes it: so this process ends with the supervisor
    standard output    the messages of the workers
    standard error     what Ray and its processes say

    from_items(files) -> map_batches(read_files) -> map_batches(ChunkEmbedder, actors) -> messages

Ray Data repeats what a killed worker was doing, on a worker that replaces it. A machine that leaves the cluster is
another matter: Ray Data waits until its workers fit elsewhere, without end if they do not. So this process then ends
with ``MACHINE_LOST``, and the supervisor starts a pipeline for the machines that are left.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from functools import partial
from typing import Any, TextIO

from regard.errors import ClusterError
from regard.ray_embedding.messages import Plan, describe_error
from regard.ray_embedding.worker import ChunkEmbedder, read_files

MACHINE_LOST = 75
MAX_THREADS = 4
"""Threads per worker. A batch of short texts has little work for more: several models of few threads are faster."""
_WATCH_SECONDS = 1.0
_CONNECT_SECONDS = 10.0


def main() -> None:
    """Run the plan on standard input."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever Ray prints is no message
    plan = sys.stdin.readline()
    threading.Thread(target=_end_with_supervisor, daemon=True).start()
    address = Plan.from_json(plan).address
    try:
        _check_reachable(address)
        import ray

        _connect(ray, address)
    except (OSError, RuntimeError, ValueError) as error:
        _send(out, {"error": describe_error(_unreachable_error(address, error))})
        return
    try:
        _run(ray, plan, out)
    finally:
        ray.shutdown()


def count_workers(cpus: list[int]) -> tuple[int, int]:
    """Choose the number of workers and the threads of each, for machines with these numbers of processors."""
    threads = min(MAX_THREADS, *cpus)
    return sum(count // threads for count in cpus), threads


def _check_reachable(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT: Ray would try again for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()


def _connect(ray: Any, address: str) -> None:
    # A cluster of this machine alone keeps to it: the supervisor sets Ray's option for loopback addresses.
    alone: dict[str, Any] = {"include_dashboard": False, "object_store_memory": 2**28} if address == "local" else {}
    ray.init(address, log_to_driver=False, logging_level="warning", **alone)


def _run(ray: Any, plan: str, out: TextIO) -> None:
    machines = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]}
    cpus = [count for count in machines.values() if count]
    if not cpus:
        _send(out, {"error": describe_error(_no_processor_error())})
        return
    workers, threads = count_workers(cpus)
    _send(out, {"workers": workers, "machines": len(cpus), "threads": threads})
    threading.Thread(target=_end_without_machine, args=(ray, set(machines)), daemon=True).start()
    pipeline = _build_pipeline(plan, workers, threads)
    for batch in pipeline.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        for message in batch["message"].to_pylist():
            out.write(message + "\n")
        out.flush()


def _build_pipeline(plan: str, workers: int, threads: int) -> Any:
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # A block of one message: by default blocks are joined up to 128 MiB, which is hundreds of chunks for one worker.
    context.target_min_block_size = context.target_max_block_size = 1
    files = [{"file": number} for number in range(len(Plan.from_json(plan).files))]
    readers = ray.data.TaskPoolStrategy(size=min(len(files), workers))
    table: dict[str, Any] = {"batch_size": 1, "batch_format": "pyarrow"}
    return (
        ray.data.from_items(files, override_num_blocks=len(files))
        # Readers mostly wait, for the disk and for embedders. With a processor each, none would be left for them.
        .map_batches(partial(read_files, plan=plan), num_cpus=0, compute=readers, **table)
        .map_batches(
            ChunkEmbedder,
            fn_constructor_args=(plan, threads),
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=threads,
            **table,
        )
    )


def _end_with_supervisor() -> None:
    sys.stdin.read()
    os._exit(1)


def _end_without_machine(ray: Any, machines: set[str]) -> None:
    while True:
        time.sleep(_WATCH_SECONDS)
        try:
            alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        except Exception:  # the pipeline reports it
            return
        if machines - alive:
            os._exit(MACHINE_LOST)


def _send(out: TextIO, message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


def _unreachable_error(address: str, error: Exception) -> ClusterError:
    local = address == "local"
    return ClusterError(
        "Ray cannot start here" if local else f"there is no Ray cluster at {address}",
        expected="memory and disk space for its processes" if local else "a cluster that this machine belongs to",
        got=" ".join(str(error).split())[:300],
        do="see the log" if local else "start one with ray start on each machine, and run the command on one of them",
    )


def _no_processor_error() -> ClusterError:
    return ClusterError(
        "the cluster has no processors for workers",
        expected="a machine with at least one CPU",
        got="no CPUs",
        do="add a machine: ray start --address=HOST:PORT",
    )


if __name__ == "__main__":
    main()

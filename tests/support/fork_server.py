"""A process that has imported regard, and forks for each command that a client requests (see ``cli_process``).

It creates a socket, prints its address and serves it until standard input ends. A fork takes over the streams, working
directory, environment, limits and warning filters of its client (``fork_client``), runs the command, and ends like any
Python process. multiprocessing's fork server only serves Python processes, not those that a shell starts.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

STARTUP_VARIABLES = ("PYTHON", "OMP_")
"""Prefixes of variables that are read when a process starts, so a fork cannot change them."""

PRELOADED_MODULES = ("regard.cli.app", "regard.search", "regard.translation", "regard.view.page")
PRELOADED_FOR_TRAINING = ("accelerate", "regard.train.loop", "sacrebleu", "torch._dynamo", "torch.utils.tensorboard")

exit_codes: list[int | None] = []
"""The exit code of this fork, once it is known."""


def exit_now() -> None:
    """Flush and exit at once: Python's shutdown would write to, and so copy, the memory of all imported modules."""
    with suppress(OSError, AttributeError):
        if exit_codes:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(exit_codes[0] or 0)


def preload_modules(arguments: list[str]) -> None:
    """Import the modules that commands use, including those that they import late; all later forks share them."""
    for name in (*PRELOADED_MODULES, *(PRELOADED_FOR_TRAINING if "train" in arguments else ())):
        importlib.import_module(name)


class Request(NamedTuple):
    """A client's request. ``streams`` are the numbers of its open streams, ``files`` their descriptors here."""

    arguments: list[str]
    folder: str
    environment: dict[str, str]
    limits: dict[str, tuple[int, int]]
    warnings: list[str]
    streams: list[int]
    files: list[int]

    def take_over(self) -> None:
        """Take over the client's environment, working directory, streams, limits and warning filters."""
        own_variables, client_variables = (
            {name: value for name, value in one.items() if name.startswith(STARTUP_VARIABLES)}
            for one in (os.environ, self.environment)
        )
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for action in self.warnings:
            warnings.simplefilter(action)
        for stream in range(3):
            os.close(stream)
        for stream, file in zip(self.streams, self.files, strict=True):
            os.dup2(file, stream)
            os.close(file)
        sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__ = tuple(_standard_streams())
        for name, limits in self.limits.items():
            resource.setrlimit(getattr(resource, name), limits)
        if own_variables != client_variables:
            sys.exit(f"a fork cannot change the start-up variables {own_variables} to {client_variables}")

    def run(self) -> None:
        """Run the command, or a program from standard input."""
        sys.argv = self.arguments
        if self.arguments[0] == "regard":
            from regard.cli.app import main

            main()
        elif self.arguments == ["python", "-"]:
            exec(compile(sys.stdin.read(), "<stdin>", "exec"), {"__name__": "__main__"})
        else:
            sys.exit(f"cannot run {self.arguments} in a fork")


def _standard_streams() -> Iterator[Any]:
    """Yield standard input, output and error as Python opens them in UTF-8 mode; None for a closed one."""
    for stream, mode in ((0, "r"), (1, "w"), (2, "w")):
        try:
            file = open(stream, f"{mode}b", closefd=False)  # noqa: SIM115
        except OSError:
            yield None
        else:
            errors = "backslashreplace" if stream == 2 else "surrogateescape"
            newline = "\n" if mode == "w" else None
            in_lines = stream == 2 or file.isatty()
            yield io.TextIOWrapper(file, "utf-8", errors, newline, line_buffering=in_lines)


class Server:
    """Sends each client the process id of its fork, and at the end the fork's exit code."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="regard-forks-")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(f"{self.folder}/socket")
        self.listener.listen()
        self.clients: dict[int, socket.socket] = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(sys.stdin, selectors.EVENT_READ)
        print(self.listener.getsockname(), flush=True)

    def serve(self) -> Request:
        """Serve until standard input ends, and then exit. Returns only in forks: the request that the fork must run."""
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is sys.stdin:
                    shutil.rmtree(self.folder)
                    os._exit(0)
                elif key.fileobj is self.listener:
                    request = self.fork()
                    if request is not None:
                        return request
                elif not isinstance(key.fileobj, socket.socket):
                    self.selector.unregister(key.fileobj)
                    os.close(key.fd)
                    self.send_exit_code(key.data)
                elif key.data in self.clients:
                    self.selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)  # its client was killed: clients send nothing else

    def fork(self) -> Request | None:
        """Fork for the next client. Return its request in the fork, and None in this process."""
        client, _ = self.listener.accept()
        message, files, _, _ = socket.recv_fds(client, 2**20, 3)
        if not message:  # the client was killed before it sent a request
            client.close()
            return None
        arguments, *rest = json.loads(message)
        preload_modules(arguments)
        gc.freeze()  # otherwise a fork's first garbage collection would copy all memory
        child = os.fork()
        if child == 0:
            for one in (self.listener, self.selector, client, *self.clients.values()):
                one.close()
            return Request(arguments, *rest, files)
        for file in files:
            os.close(file)
        self.clients[child] = client
        self.selector.register(client, selectors.EVENT_READ, child)
        self.selector.register(os.pidfd_open(child), selectors.EVENT_READ, child)
        self.send_number(child, child)
        return None

    def send_exit_code(self, child: int) -> None:
        """Send the exit code of a fork that has ended to its client."""
        _, status = os.waitpid(child, 0)
        self.send_number(child, os.waitstatus_to_exitcode(status))
        client = self.clients.pop(child)
        with suppress(KeyError):  # the client was killed
            self.selector.unregister(client)
        client.close()

    def send_number(self, child: int, number: int) -> None:
        """Send a number to the client of a fork, if the client still exists."""
        with suppress(OSError):
            self.clients[child].send(b"%d" % number)


if __name__ == "__main__":
    atexit.register(exit_now)  # registered first, so that it runs last
    preload_modules([])
    request = Server().serve()
    request.take_over()
    try:
        request.run()
        exit_codes.append(0)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            exit_codes.append(error.code)
        raise

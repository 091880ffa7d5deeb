"""One process that has imported regard, and forks whenever a client asks for a command: see ``command``.

It makes a socket, prints its address and serves it until standard input ends. A fork becomes what its client is
(``fork_client``): it takes over streams, folder, environment, limits and warnings, runs the command, and ends as any
process of Python does. multiprocessing's server of forks serves processes of Python alone, not those of a shell.
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
"""Variables with such names are read when a process starts, so a fork cannot have others."""

PRELOADED_MODULES = ("regard.cli.app", "regard.search", "regard.translation", "regard.view.page")
PRELOADED_FOR_TRAINING = ("accelerate", "regard.train.loop", "sacrebleu", "torch._dynamo", "torch.utils.tensorboard")

exit_codes: list[int | None] = []
"""That of a fork, once it is known."""


def exit_now() -> None:
    """End at once where nothing is left to say: Python would take apart all that was imported, and so copy it first."""
    with suppress(OSError, AttributeError):
        if exit_codes:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(exit_codes[0] or 0)


def preload_modules(arguments: list[str]) -> None:
    """Import what commands do, also what they import when they come to need it. All forks that follow have it too."""
    for name in (*PRELOADED_MODULES, *(PRELOADED_FOR_TRAINING if "train" in arguments else ())):
        importlib.import_module(name)


class Request(NamedTuple):
    """What a client asks for. ``streams`` are the numbers of its open streams, ``files`` are they themselves."""

    arguments: list[str]
    folder: str
    environment: dict[str, str]
    limits: dict[str, tuple[int, int]]
    warnings: list[str]
    streams: list[int]
    files: list[int]

    def take_over(self) -> None:
        """Make this process what the client is."""
        here, there = (
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
        if here != there:
            sys.exit(f"a fork of a process that began with {here} cannot have {there}")

    def run(self) -> None:
        """The command, or a program from standard input."""
        sys.argv = self.arguments
        if self.arguments[0] == "regard":
            from regard.cli.app import main

            main()
        elif self.arguments == ["python", "-"]:
            exec(compile(sys.stdin.read(), "<stdin>", "exec"), {"__name__": "__main__"})
        else:
            sys.exit(f"it is not known how to fork {self.arguments}")


def _standard_streams() -> Iterator[Any]:
    """Standard input, output and error as Python makes them when it starts in UTF-8; None for one that is closed."""
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
    """Sends each client the number of its fork, and its exit code in the end."""

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
        """Serve until standard input ends, which ends this process. Returns in forks alone: what each is to do."""
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
                    os.kill(key.data, signal.SIGKILL)  # as its client was, which says nothing otherwise

    def fork(self) -> Request | None:
        """What the next client asks for, in the fork that is to do it; in this process None."""
        client, _ = self.listener.accept()
        message, files, _, _ = socket.recv_fds(client, 2**20, 3)
        if not message:  # killed before it could ask
            client.close()
            return None
        arguments, *rest = json.loads(message)
        preload_modules(arguments)
        gc.freeze()  # or a fork's first collection would copy all there is
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
        """Of a fork that has ended, to its client."""
        _, status = os.waitpid(child, 0)
        self.send_number(child, os.waitstatus_to_exitcode(status))
        client = self.clients.pop(child)
        with suppress(KeyError):  # it was killed
            self.selector.unregister(client)
        client.close()

    def send_number(self, child: int, number: int) -> None:
        """Send a number to the client of a fork, if it is there still."""
        with suppress(OSError):
            self.clients[child].send(b"%d" % number)


if __name__ == "__main__":
    atexit.register(exit_now)  # before any other, so that it is called after all others
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

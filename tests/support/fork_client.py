"""Client of ``fork_server``: runs a command in a fork and forwards streams, signals, limits and exit code.

    python -I -S [-W error] tests/support/fork_client.py ADDRESS regard list
    python -I -S tests/support/fork_client.py ADDRESS python - < program.py

It imports little, in order to start fast.
"""

import json
import os
import resource
import signal
import socket
import sys


def is_open(stream):
    try:
        os.fstat(stream)
    except OSError:
        return False
    return True


streams = [stream for stream in range(3) if is_open(stream)]  # before the socket takes a closed stream's number
address, *arguments = sys.argv[1:]
limits = {name: resource.getrlimit(getattr(resource, name)) for name in ("RLIMIT_AS", "RLIMIT_FSIZE")}
request = [arguments, os.getcwd(), dict(os.environ), limits, sys.warnoptions, streams]  # noqa: PTH109 - pathlib is slow
signals = {signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect(address)
socket.send_fds(server, [json.dumps(request).encode()], streams)
child = int(server.recv(32))
for one in signals:
    signal.signal(one, lambda number, frame: os.kill(child, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
code = int(server.recv(32))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)

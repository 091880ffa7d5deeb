"""A page of texts with all weights on demand: a server on this computer alone, which the page asks while one zooms.

    /SECRET/             the page
    /SECRET/row?..       the shares of all keys for one query of a head, as float32
    /SECRET/tile?..      a part of a head, of at most ``TILE`` queries at even steps and as many stretches of keys: the
                         numbers of rows and columns as int32, then of each cell the largest share and the sum, float32
    /SECRET/alive        an answer without end, so that the server sees when the page is closed

The server listens on 127.0.0.1 and answers only requests with the secret in the address, with this address as ``Host``,
and from no other origin, so that no other user or web page can read the text. It ends some seconds after the last page
was closed.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import final
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from regard.view.attention_layer import AttentionLayer
from regard.view.long_reading import LongReading
from regard.view.page import render_page
from regard.view.reading import Reading
from regard.view.shares import shares_of_block

TILE = 128
"""Rows and columns of a tile, at most."""
CLOSING_SECONDS = 3.0
"""The server ends when no page was open for so long."""
_BEAT_SECONDS = 0.5


@final
class PageServer:
    """A server of the page of some texts; ``address`` is where it is shown, and ``serve`` returns when it was closed.

    ``summaries`` are those of ``readings``, and ``model`` names the model on the page.
    """

    def __init__(self, readings: Sequence[Reading], summaries: Sequence[LongReading], *, model: str = "") -> None:
        served_summaries = [replace(summary, is_served=True) for summary in summaries]
        self._readings, self._page = tuple(readings), render_page(served_summaries, model=model).encode()
        self._secret = secrets.token_urlsafe(24)
        self._open, self._lock, self._last_open = 0, Lock(), float("inf")
        self._stopped = False
        served = self

        @final
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def do_GET(self) -> None:
                served.answer(self)

            def log_message(self, *args: object) -> None:
                """Print nothing: standard error has the messages of the command."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._host = f"127.0.0.1:{self._server.server_port}"

    @property
    def address(self) -> str:
        """The address of the page, with the secret."""
        return f"http://{self._host}/{self._secret}/"

    def serve(self) -> None:
        """Answer until the page was closed."""
        thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        try:
            while not self._stopped and (self._open or time.monotonic() - self._last_open < CLOSING_SECONDS):
                time.sleep(0.1)
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def stop(self) -> None:
        """Let ``serve`` return, whether the page is open or not."""
        self._stopped = True

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request; refuse it without the secret, for another host, or from another origin."""
        path = urlsplit(request.path)
        secret, _, name = path.path.removeprefix("/").partition("/")
        is_ours = hmac.compare_digest(secret.encode(), self._secret.encode())
        origin = request.headers.get("Origin")
        if not is_ours or request.headers.get("Host") != self._host or origin not in (None, f"http://{self._host}"):
            request.send_error(HTTPStatus.FORBIDDEN)
        elif name == "":
            _send(request, self._page, "text/html; charset=utf-8")
        elif name == "alive":
            self._hold(request)
        elif name in _ANSWERS:
            numbers = _read_numbers(path.query)
            layer = self._find_layer(numbers)
            data = None if layer is None else _ANSWERS[name](layer, numbers)
            if data is None:
                request.send_error(HTTPStatus.BAD_REQUEST)
            else:
                _send(request, data, "application/octet-stream")
        else:
            request.send_error(HTTPStatus.NOT_FOUND)

    def _find_layer(self, numbers: Mapping[str, int]) -> AttentionLayer | None:
        """The layer that a request names; None if there is no such layer or head."""
        text, layer, head = (numbers.get(name, -1) for name in ("text", "layer", "head"))
        if not 0 <= text < len(self._readings) or not 0 <= layer < len(self._readings[text].layers):
            return None
        found = self._readings[text].layers[layer]
        return found if 0 <= head < found.heads else None

    def _hold(self, request: BaseHTTPRequestHandler) -> None:
        """Send a byte now and then until the page is closed."""
        with self._lock:
            self._open += 1
        try:
            _send_head(request, "application/octet-stream")
            while True:
                request.wfile.write(b".")
                time.sleep(_BEAT_SECONDS)
        except OSError:
            pass
        finally:
            with self._lock:
                self._open -= 1
                self._last_open = time.monotonic()


def _send_head(request: BaseHTTPRequestHandler, kind: str) -> None:
    request.send_response(HTTPStatus.OK)
    headers = {
        "Content-Type": kind,
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
    for name, value in headers.items():
        request.send_header(name, value)
    request.end_headers()


def _send(request: BaseHTTPRequestHandler, data: bytes, kind: str) -> None:
    try:
        _send_head(request, kind)
        request.wfile.write(data)
    except OSError:  # the page asks for another part by now
        pass


def _read_numbers(query: str) -> Mapping[str, int]:
    pairs = parse_qsl(query)
    return {name: int(value) for name, value in pairs if value.isascii() and value.isdecimal() and len(value) < 9}


def _row(layer: AttentionLayer, numbers: Mapping[str, int]) -> bytes | None:
    query = numbers.get("query", -1)
    if not 0 <= query < layer.queries:
        return None
    row = np.zeros(layer.keys, dtype="<f4")
    shares = shares_of_block(layer, numbers["head"], range(query, query + 1))[0]
    row[: len(shares)] = shares
    return row.tobytes()


def _tile(layer: AttentionLayer, numbers: Mapping[str, int]) -> bytes | None:
    top, bottom, left, right = (numbers.get(name, -1) for name in ("top", "bottom", "left", "right"))
    if not (0 <= top < bottom <= layer.queries and 0 <= left < right <= layer.keys):
        return None
    queries = range(top, bottom, -(-(bottom - top) // TILE))
    shares = np.zeros((len(queries), right - left), dtype=np.float32)
    some = shares_of_block(layer, numbers["head"], queries)[:, left:right]
    shares[:, : some.shape[1]] = some
    columns = min(TILE, right - left)
    starts = np.arange(columns) * (right - left) // columns
    cells = [reduce.reduceat(shares, starts, axis=1).astype("<f4").tobytes() for reduce in (np.maximum, np.add)]
    return np.array([len(queries), columns], dtype="<i4").tobytes() + b"".join(cells)


_ANSWERS: Mapping[str, Callable[[AttentionLayer, Mapping[str, int]], bytes | None]] = {"row": _row, "tile": _tile}

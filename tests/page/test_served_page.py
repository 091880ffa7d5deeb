"""The page with all weights on demand: a real server and browser, what is refused, and how the server ends."""

import http.client
from collections.abc import Iterator
from threading import Thread
from urllib.parse import urlsplit

import numpy as np
import pytest
from playwright.sync_api import Page
from test_long_page import LENGTH, long_reading

from regard.view.long_reading import summarize_long
from regard.view.serve import TILE, PageServer

READING = long_reading()


@pytest.fixture
def server() -> Iterator[tuple[PageServer, Thread]]:
    """A server whose thread ends by itself."""
    started = PageServer([READING], [summarize_long(READING)], model="test")
    thread = Thread(target=started.serve, daemon=True)
    thread.start()
    yield started, thread
    started.stop()
    thread.join(10)
    assert not thread.is_alive()


def get(address: str, path: str, **headers: str) -> tuple[int, bytes]:
    """The status and the body of an answer."""
    connection = http.client.HTTPConnection(str(urlsplit(address).netloc), timeout=10)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    answer = response.status, response.read()
    connection.close()
    return answer


def test_rows_and_tiles_are_the_weights_of_the_layer(server: tuple[PageServer, Thread]) -> None:
    address = server[0].address
    path, weights = urlsplit(address).path, READING.layers[1].weights_of(1)
    status, row = get(address, f"{path}row?text=0&layer=1&head=1&query=777")
    assert status == 200
    np.testing.assert_allclose(np.frombuffer(row, "<f4"), weights[777], atol=1e-6)
    place = "text=0&layer=1&head=1"
    _, tile = get(address, f"{path}tile?{place}&top=700&bottom=740&left=650&right=690")
    assert np.frombuffer(tile[:8], "<i4").tolist() == [40, 40]
    largest, sums = np.frombuffer(tile[8:], "<f4").reshape(2, 40, 40)
    np.testing.assert_allclose(largest, weights[700:740, 650:690], atol=1e-6)
    np.testing.assert_allclose(sums, largest, atol=1e-6)
    _, tile = get(address, f"{path}tile?{place}&top=0&bottom={LENGTH}&left=0&right={LENGTH}")
    assert np.frombuffer(tile[:8], "<i4").tolist() == [LENGTH // 12, TILE]
    sums = np.frombuffer(tile[8:], "<f4").reshape(2, -1, TILE)[1]
    np.testing.assert_allclose(sums.sum(axis=1), 1, atol=1e-5)


def test_only_the_page_of_this_server_is_answered(server: tuple[PageServer, Thread]) -> None:
    address = server[0].address
    path, netloc = urlsplit(address).path, urlsplit(address).netloc
    assert netloc.startswith("127.0.0.1:")
    assert get(address, path)[0] == 200
    assert get(address, path, Origin=f"http://{netloc}")[0] == 200
    refused = [
        get(address, "/"),
        get(address, "/wrong/"),
        get(address, path[:-2] + "/"),
        get(address, "/%ff/row"),
        get(address, path, Host="attacker.example"),
        get(address, path, Host=f"localhost:{urlsplit(address).port}"),
        get(address, path, Origin="http://attacker.example"),
        get(address, path, Origin="null"),
    ]
    assert [status for status, _ in refused] == [403] * len(refused)
    assert all(b"w300" not in body for _, body in refused)
    assert get(address, f"{path}other")[0] == 404
    assert get(address, f"{path}../etc/passwd")[0] == 404
    wrong = (
        "row",
        "row?text=0&layer=0&head=0&query=1500",
        "row?text=0&layer=0&head=9&query=0",
        "row?text=x",
        "tile?text=0&layer=0&head=0&top=5&bottom=5&left=0&right=9",
        "tile?text=1&layer=0&head=0",
    )
    assert [get(address, path + part)[0] for part in wrong] == [400] * len(wrong)


def test_the_page_shows_any_row_and_exact_weights_when_zoomed(
    server: tuple[PageServer, Thread], browser_window: Page
) -> None:
    page, errors, requests = browser_window, list[str](), list[str]()
    page.set_viewport_size({"width": 1280, "height": 800})
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    address = server[0].address
    page.goto(f"{address}#layer=0&head=1&token=777")
    page.wait_for_selector("html[data-ready]")
    page.wait_for_selector("#sentence:has-text('token 777')")
    row = READING.layers[0].weights_of(1, [777])[0]
    assert page.inner_text("#sentence").endswith(f"{100 * row.max():.1f}\N{NO-BREAK SPACE}% in layer 0, head 1.")
    assert "any token" in page.inner_text("#holds")
    page.focus("#map")
    for _ in range(6):
        page.keyboard.press("+")
    page.wait_for_selector("#map[data-tile^='734 ']")
    box = page.locator("#map").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 1, box["y"] + box["height"] - 2)  # below the diagonal
    text = page.inner_text("#map-value")
    assert text.startswith("query 765, key 734: ")
    weight = READING.layers[0].weights_of(1, [765])[0, 734]
    assert float(text.split(": ")[1].split("\N{NO-BREAK SPACE}")[0]) == pytest.approx(100 * weight, rel=0.5, abs=0.06)
    assert all(url.startswith(address) for url in requests)
    blocked = page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')")
    assert blocked == "refused"
    assert [error for error in errors if "127.0.0.1:9" not in error] == []
    page.goto("about:blank")
    server[1].join(10)
    assert not server[1].is_alive()

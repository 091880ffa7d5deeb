"""The pipe reader knows whether its next line has arrived."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator

import pytest

from regard.text.pipe_reader import PipeReader


@pytest.fixture
def pipe() -> Iterator[tuple[PipeReader, int]]:
    """A PipeReader of a new pipe, and the descriptor to write to."""
    end, start = os.pipe()
    with os.fdopen(end, "rb") as stream:
        yield PipeReader(stream), start


def test_a_line_waits_until_it_has_come(pipe: tuple[PipeReader, int]) -> None:
    flow, start = pipe
    assert flow.would_block(0)
    os.write(start, b"one\ntwo\nthr")
    assert not flow.would_block(0)
    assert flow.buffered.readline() == b"one\n"
    assert not flow.would_block(4)  # the line is in the buffer; the pipe is empty
    assert flow.buffered.readline() == b"two\n"
    assert flow.would_block(8)
    os.write(start, b"ee\n")
    assert not flow.would_block(8)
    assert flow.buffered.readline() == b"three\n"
    assert flow.would_block(14)
    os.close(start)
    assert not flow.would_block(14)  # the end of the stream does not block
    assert flow.buffered.readline() == b""


def test_what_is_longer_than_the_buffer(pipe: tuple[PipeReader, int]) -> None:
    flow, start = pipe
    line = b"x" * (3 * io.DEFAULT_BUFFER_SIZE) + b"\n"
    os.write(start, line * 2)
    assert flow.buffered.readline() == line
    assert not flow.would_block(len(line))
    assert flow.buffered.readline() == line
    assert flow.would_block(2 * len(line))
    os.close(start)


def test_a_pipe_that_does_not_block_is_waited_for(pipe: tuple[PipeReader, int]) -> None:
    flow, start = pipe
    os.set_blocking(flow.fileno(), False)
    later = threading.Timer(0.2, lambda: (os.write(start, b"late\n"), os.close(start)))
    later.start()
    assert flow.buffered.readline() == b"late\n"
    assert flow.buffered.readline() == b""
    later.join()


def test_closing_leaves_the_stream_open(pipe: tuple[PipeReader, int]) -> None:
    flow, start = pipe
    flow.buffered.close()
    os.write(start, b"on\n")
    os.close(start)
    assert os.read(flow.fileno(), 10) == b"on\n"

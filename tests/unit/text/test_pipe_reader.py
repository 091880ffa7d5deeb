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
    end, write_end = os.pipe()
    with os.fdopen(end, "rb") as stream:
        yield PipeReader(stream), write_end


def test_would_block_until_a_line_has_arrived(pipe: tuple[PipeReader, int]) -> None:
    reader, write_end = pipe
    assert reader.would_block(0)
    os.write(write_end, b"one\ntwo\nthr")
    assert not reader.would_block(0)
    assert reader.buffered.readline() == b"one\n"
    assert not reader.would_block(4)  # the line is in the buffer; the pipe is empty
    assert reader.buffered.readline() == b"two\n"
    assert reader.would_block(8)
    os.write(write_end, b"ee\n")
    assert not reader.would_block(8)
    assert reader.buffered.readline() == b"three\n"
    assert reader.would_block(14)
    os.close(write_end)
    assert not reader.would_block(14)  # the end of the stream does not block
    assert reader.buffered.readline() == b""


def test_lines_longer_than_the_buffer(pipe: tuple[PipeReader, int]) -> None:
    reader, write_end = pipe
    line = b"x" * (3 * io.DEFAULT_BUFFER_SIZE) + b"\n"
    os.write(write_end, line * 2)
    assert reader.buffered.readline() == line
    assert not reader.would_block(len(line))
    assert reader.buffered.readline() == line
    assert reader.would_block(2 * len(line))
    os.close(write_end)


def test_nonblocking_pipe_is_waited_for(pipe: tuple[PipeReader, int]) -> None:
    reader, write_end = pipe
    os.set_blocking(reader.fileno(), False)
    later = threading.Timer(0.2, lambda: (os.write(write_end, b"late\n"), os.close(write_end)))
    later.start()
    assert reader.buffered.readline() == b"late\n"
    assert reader.buffered.readline() == b""
    later.join()


def test_closing_leaves_the_stream_open(pipe: tuple[PipeReader, int]) -> None:
    reader, write_end = pipe
    reader.buffered.close()
    os.write(write_end, b"on\n")
    os.close(write_end)
    assert os.read(reader.fileno(), 10) == b"on\n"

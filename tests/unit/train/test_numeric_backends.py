"""A resumed run restores its numeric backends, and a message reports those that are not available."""

from __future__ import annotations

import os

import pytest

from regard.errors import OptionError
from regard.layers import projection
from regard.train import numeric_backends


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Remove regard's environment variables for a test, and clear the measurements that depend on them."""
    for name in ("REGARD_ISA", "REGARD_LINEAR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    projection._is_onednn_faster.cache_clear()
    yield
    projection._is_onednn_faster.cache_clear()


def take_and_collect_messages(kept):
    said: list[str] = []
    numeric_backends.restore_backends(kept, said.append)
    return said


def test_what_is_in_use_is_taken_without_a_word():
    kept = numeric_backends.current_backends()
    assert set(kept) == {"isa", "linear"}
    projection._is_onednn_faster.cache_clear()
    assert take_and_collect_messages(kept) == []
    assert numeric_backends.current_backends() == kept


@pytest.mark.parametrize("library", ["onednn", "torch"])
def test_the_library_of_the_run_is_taken_whatever_would_be_measured(monkeypatch, library):
    if library not in projection.matmul_libraries():
        assert take_and_collect_messages({**numeric_backends.current_backends(), "linear": library})
        return
    monkeypatch.setattr(projection, "least_seconds", lambda *_, **__: pytest.fail("measured"))
    assert take_and_collect_messages({"isa": numeric_backends.extension.native.isa(), "linear": library}) == []
    assert projection.matmul_library() == library
    assert os.environ["REGARD_LINEAR"] == library


def test_a_variable_that_is_empty_is_none(monkeypatch):
    monkeypatch.setenv("REGARD_LINEAR", "")
    assert take_and_collect_messages({"isa": numeric_backends.extension.native.isa(), "linear": "torch"}) == []
    assert os.environ["REGARD_LINEAR"] == "torch"


def test_an_instruction_set_that_there_is_not_is_named(monkeypatch):
    class Refusing:
        def isa(self):
            raise ValueError

        def isas(self):
            return ["portable"]

    monkeypatch.setenv("REGARD_ISA", "avx9")
    monkeypatch.setattr(numeric_backends.support, "native", Refusing())
    with pytest.raises(OptionError, match=r"REGARD_ISA(.|\n)*portable(.|\n)*avx9"):
        numeric_backends.current_backends()


def test_a_run_of_a_gpu_is_said_to_be_one():
    (said,) = take_and_collect_messages({})
    assert "started with no CPU kernels" in said


def test_another_machine_is_said():
    (said,) = take_and_collect_messages({"isa": "of another machine", "linear": "onednn"})
    assert "isa of another machine" in said
    assert "weights will differ in their last bits" in said
    assert "REGARD_ISA" not in os.environ


def test_a_library_that_there_is_not_is_named(monkeypatch):
    monkeypatch.setenv("REGARD_LINEAR", "blas")
    with pytest.raises(OptionError, match=r"REGARD_LINEAR(.|\n)*torch"):
        projection.matmul_library()

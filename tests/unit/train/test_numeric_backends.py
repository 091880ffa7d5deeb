"""A resumed run restores its numeric backends, and a message reports those that are not available."""

from __future__ import annotations

import os

import pytest

from regard.errors import OptionError
from regard.layers import projection
from regard.log import notes_to
from regard.train import numeric_backends


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """Remove regard's environment variables for a test, and clear the measurements that depend on them."""
    for name in ("REGARD_ISA", "REGARD_LINEAR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    clear_choices()
    yield
    clear_choices()


def clear_choices():
    for choice in (projection.matmul_library, projection.uses_own_kernel):
        choice.cache_clear()


def restore_and_collect_messages(backends):
    messages: list[str] = []
    with notes_to(messages.append):
        numeric_backends.restore_backends(backends)
    return messages


def test_current_backends_are_restored_without_a_message():
    backends = numeric_backends.current_backends()
    assert set(backends) == {"isa", "linear"}
    clear_choices()
    assert restore_and_collect_messages(backends) == []
    assert numeric_backends.current_backends() == backends


def test_a_resumed_run_uses_the_own_kernels_as_the_run_did(monkeypatch):
    backends = numeric_backends.current_backends()
    assert projection.uses_own_kernel()
    clear_choices()
    assert restore_and_collect_messages(backends) == []
    assert os.environ["REGARD_LINEAR"] == backends["linear"]
    assert projection.uses_own_kernel()


@pytest.mark.parametrize("ending", ["", "+own"])
@pytest.mark.parametrize("name", projection.MATMUL_LIBRARIES)
def test_matmul_library_of_the_run_is_restored(monkeypatch, name, ending):
    library = name + ending
    if name not in projection.matmul_libraries():
        assert restore_and_collect_messages({**numeric_backends.current_backends(), "linear": library})
        return
    assert restore_and_collect_messages({"isa": numeric_backends.extension.native.isa(), "linear": library}) == []
    assert projection.matmul_library() == name
    assert projection.uses_own_kernel() == bool(ending)
    assert os.environ["REGARD_LINEAR"] == library


def test_empty_environment_variables_are_ignored(monkeypatch):
    monkeypatch.setenv("REGARD_LINEAR", "")
    assert restore_and_collect_messages({"isa": numeric_backends.extension.native.isa(), "linear": "torch"}) == []
    assert os.environ["REGARD_LINEAR"] == "torch"


def test_unavailable_instruction_set_is_reported(monkeypatch):
    class Refusing:
        def isa(self):
            raise ValueError

        def isas(self):
            return ["portable"]

    monkeypatch.setenv("REGARD_ISA", "avx9")
    monkeypatch.setattr(numeric_backends.support, "native", Refusing())
    with pytest.raises(OptionError, match=r"REGARD_ISA(.|\n)*portable(.|\n)*avx9"):
        numeric_backends.current_backends()


def test_run_without_cpu_kernels_is_reported():
    (message,) = restore_and_collect_messages({})
    assert "started with no CPU kernels" in message


def test_other_machine_is_reported():
    (said,) = restore_and_collect_messages({"isa": "of another machine", "linear": "onednn"})
    assert "isa of another machine" in said
    assert "weights will differ in their last bits" in said
    assert "REGARD_ISA" not in os.environ


def test_unknown_matmul_library_is_refused(monkeypatch):
    monkeypatch.setenv("REGARD_LINEAR", "blas")
    with pytest.raises(OptionError, match=r"REGARD_LINEAR(.|\n)*torch"):
        projection.matmul_library()

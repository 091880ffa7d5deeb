"""Notes go to the logger "regard", and inside a block to one function alone."""

from __future__ import annotations

import logging

import pytest

from regard.log import log, notes_to


def test_notes_reach_the_function_of_the_innermost_block_alone(caplog):
    outer, inner = [], []
    with caplog.at_level(logging.DEBUG, logger="regard"):
        with notes_to(outer.append):
            log.info("50 % of the %s")
            with notes_to(inner.append):
                log.warning("b")
                log.debug("not a note")
            log.info("c")
        log.info("d")
    assert (outer, inner, caplog.messages) == (["50 % of the %s", "c"], ["b"], ["d"])


def test_notes_are_shown_only_where_the_caller_asks_for_them(capfd):
    log.info("a")
    assert capfd.readouterr() == ("", "")


def test_the_logger_is_as_before_after_an_error_and_errors_of_the_function_are_raised():
    before = (list(log.handlers), log.level, log.propagate)

    def fail(note):
        raise BrokenPipeError(note)

    with pytest.raises(BrokenPipeError, match="a"), notes_to(fail):
        log.info("a")
    assert (log.handlers, log.level, log.propagate) == before

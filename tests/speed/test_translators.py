"""The page of translation results agrees with the results, and each config can be run."""

from __future__ import annotations

import pytest
from typer.main import get_command

from benchmarks.translation import report
from benchmarks.translation.config import NAMES, Config
from benchmarks.translation.prepare import PREPARE
from regard.cli.app import app


def test_the_page_is_what_the_results_say() -> None:
    assert report.PAGE.read_text(encoding="utf-8") == report.render_page(report.read_all())


@pytest.mark.parametrize("name", NAMES)
def test_a_config_has_options_that_there_are(name: str) -> None:
    config = Config.read(name)
    assert config.prepare is None or config.prepare in PREPARE
    assert config.metric.split(", ")[0] in ("greedy", f"beam {config.beam}")
    train = get_command(app).commands["train"].commands["translate"]
    known = {option for parameter in train.params for option in parameter.opts}
    assert {option for option in config.options if option.startswith("--")} <= known

"""The page of translation results agrees with the results, and each config can be run."""

from __future__ import annotations

import pytest
from typer.main import get_command

from benchmarks.translation import report
from benchmarks.translation.config import NAMES, Config
from benchmarks.translation.prepare import PREPARE
from regard.cli.app import app


def test_page_agrees_with_the_results() -> None:
    assert report.PAGE.read_text(encoding="utf-8") == report.render_page(report.read_all())


@pytest.mark.parametrize("name", NAMES)
def test_options_of_every_config_exist(name: str) -> None:
    config = Config.read(name)
    assert config.prepare is None or config.prepare in PREPARE
    assert config.metric.split(", ")[0] in ("greedy", f"beam {config.beam}")
    train = get_command(app).commands["train"].commands["translate"]
    known = {option for parameter in train.params for option in parameter.opts}
    assert {option for option in config.options if option.startswith("--")} <= known

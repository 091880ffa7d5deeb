"""``regard list``: the catalogue, for people and for programs."""

import json

import pytest
from typer.testing import CliRunner

import regard
from regard.cli.app import app


@pytest.fixture
def listed(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    return lambda *options: CliRunner().invoke(app, ["list", *options], catch_exceptions=False)


def test_table_has_every_mechanism(listed):
    done = listed()
    assert done.exit_code == 0
    for entry in regard.catalogue():
        (line,) = (line for line in done.output.splitlines() if line.split()[:1] == [entry.name])
        for shown in (entry.equation, entry.paper, entry.cost, entry.masks):
            assert shown in line


def test_json(listed):
    rows = json.loads(listed("--json").output)
    assert [row["name"] for row in rows] == [entry.name for entry in regard.catalogue()]
    assert rows[0]["equation"] == "softmax(q . k / sqrt(d)) v"
    assert {"paper", "cost", "masks", "exact", "bias", "options"} <= rows[0].keys()

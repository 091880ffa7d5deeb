"""``regard list``: the catalogue as text and as JSON."""

import json
import sys

import pytest
import torch
from typer.testing import CliRunner

import regard
from regard.cli.app import app
from regard.errors import OptionError
from regard.kernels import extension, support
from regard.kernels.select import BACKENDS


@pytest.fixture
def run_list(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    return lambda *options: CliRunner().invoke(app, ["list", *options], catch_exceptions=False)


def test_table_has_every_mechanism(run_list):
    result = run_list()
    assert result.exit_code == 0
    lines = [line.strip() for line in result.output.splitlines()]
    for entry in regard.catalogue():
        (at,) = (at for at, line in enumerate(lines) if line.split()[:1] == [entry.name])
        assert lines[at].removeprefix(entry.name).strip() == entry.equation
        assert lines[at + 1 : at + 3] == [entry.paper, f"{entry.cost}; state: {entry.state}; masks: {entry.masks}"]


def test_json(run_list):
    rows = json.loads(run_list("--json").output)["mechanisms"]
    assert [row["name"] for row in rows] == [entry.name for entry in regard.catalogue()]
    assert rows[0]["equation"] == "softmax(q . k / sqrt(d)) v"
    assert {"paper", "cost", "state", "masks", "exact", "bias", "options"} <= rows[0].keys()


def test_implementations_and_their_availability(run_list):
    rows = {row["impl"]: row for row in json.loads(run_list("--json").output)["implementations"]}
    assert list(rows) == list(BACKENDS)
    assert {name for name, row in rows.items() if row["available"]} >= {"native", "sdpa", "reference"}
    assert rows["native"]["details"].startswith(f"{extension.native.isa()} (here run: ")
    assert "libgomp" in rows["native"]["details"] or sys.platform != "linux"
    assert torch.__version__ in rows["sdpa"]["details"]
    lines = run_list().output.splitlines()
    for name, row in rows.items():
        (line,) = (line for line in lines if line.split()[:2] == [name, "yes" if row["available"] else "no"])
        assert row["details"] in line


def test_unsupported_instruction_set_is_listed_with_the_reason(run_list, monkeypatch):
    monkeypatch.setattr(support, "check_isa", raise_option_error)
    rows = {row["impl"]: row for row in json.loads(run_list("--json").output)["implementations"]}
    assert rows["native"] == {"impl": "native", "available": False, "details": "no such set: 'sse9', expected avx2"}


def raise_option_error():
    raise OptionError("no such set", expected="avx2", got="'sse9'")

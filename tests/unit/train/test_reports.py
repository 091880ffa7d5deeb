"""The report on the terminal: its progress lines."""

from __future__ import annotations

from regard.train.reports import TerminalReport


def test_progress_line_has_the_unit_and_the_remaining_time(monkeypatch, capsys):
    """Without a terminal, one line per minute."""
    now = [0.0]
    monkeypatch.setattr("regard.train.reports.time.monotonic", lambda: now[0])
    report = TerminalReport()
    for unit in ("tokens", "texts"):
        now[0] += 61
        report.numbers(50, "train", {"loss": 0.25, f"{unit}_per_second": 1234.5, "done": 0.5, "seconds_left": 75})
        report.numbers(60, "train", {"loss": 0.5, f"{unit}_per_second": 1234.5})
    report.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "step 50: loss 0.250 · 1,234 tokens/s · 1:15 left",
        "step 50: loss 0.250 · 1,234 texts/s · 1:15 left",
    ]

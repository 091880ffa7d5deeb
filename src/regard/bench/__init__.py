"""Benchmark of mechanisms: time, peak memory, error, and the length from which each is faster than exact attention."""

from regard.bench.crossing import Crossing
from regard.bench.replacement import Replacement, VectorChange
from regard.bench.report import BenchCase, BenchedMechanism, BenchReport
from regard.bench.run import run
from regard.bench.run_on_text import TextReport, run_on_text
from regard.bench.settings import BenchSettings
from regard.bench.text_errors import HeadError
from regard.bench.timing import Timing

__all__ = [
    "BenchCase",
    "BenchReport",
    "BenchSettings",
    "BenchedMechanism",
    "Crossing",
    "HeadError",
    "Replacement",
    "TextReport",
    "Timing",
    "VectorChange",
    "run",
    "run_on_text",
]

"""All instruction sets that run on this machine compute equal results, within rounding, and can be selected."""

import os
import subprocess
from functools import cache

import pytest

from regard.kernels import extension
from script_process import run_script

ISAS = extension.native.isas() if extension.missing_reason is None else []


def run(script: str, isa: str) -> subprocess.CompletedProcess[str]:
    return run_script(script, environment={**os.environ, "REGARD_ISA": isa})


def test_baseline_instruction_set_is_available():
    assert ISAS[-1] in ("portable", "neon")


SCRIPT = """
import regard, torch
from kernels.compare_with_oracles import main
from regard import masks
from regard.kernels import extension

torch.set_num_threads(1)  # the workers of pytest share the cores; test_hash_buckets.py has threads in each set
main(sample=True)

def auto(queries=16, dtype=torch.float32, value_dim=8, **options):
    sizes = (queries, 8), (16, 8), (16, value_dim)
    query, key, value = (torch.ones(1, 1, *size, dtype=dtype) for size in sizes)
    if options.pop("trained", False):
        query.requires_grad_()
    return regard.why(query, key, value, **options).impl

half = torch.bfloat16
print(extension.native.isa())
print(auto(), auto(trained=True), auto(dtype=half))
print(auto(dtype=half, trained=True), auto(mask=masks.causal()), auto(dropout=0.5), auto(value_dim=5), auto(queries=15))
"""


@pytest.fixture(scope="module", params=ISAS)
def isa(request):
    return request.param


@cache
def script_lines(isa: str) -> list[str]:
    """Output lines of ``SCRIPT``: one process for both tests of an instruction set."""
    result = run(SCRIPT, isa)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_every_operation_agrees_with_the_oracle(isa):
    """With every dtype, and some of the kinds of scan."""
    assert script_lines(isa)[:-3] == [isa, "all agree"]


@pytest.mark.slow
def test_every_kind_of_every_operation_agrees_with_the_oracle(isa):
    """With torch's number of threads. The test before compares a sample of them."""
    result = run("from kernels.compare_with_oracles import main; main()", isa)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [isa, "all agree"]


def test_auto_choice_of_each_instruction_set(isa):
    """As docs/implementations.md says."""
    dense = "sdpa" if isa in ("portable", "neon") else "native"
    assert script_lines(isa)[-3:] == [isa, " ".join(3 * [dense]), " ".join(5 * ["native"])]


UNKNOWN_ISA_SCRIPT = """
from regard.kernels import extension
import regard, torch
from regard.errors import OptionError
query = torch.ones(1, 1, 1, 1)
for ask in (lambda: regard.attention(query, query, query), lambda: regard.why(query, query, query)):
    try:
        ask()
    except OptionError as error:
        print(error)
"""


@pytest.mark.parametrize("name", ["sse9", *(pytest.param(name, marks=pytest.mark.slow) for name in ("AVX2", "avx2 "))])
def test_unknown_instruction_set_error_lists_the_available_ones(name):
    result = run(UNKNOWN_ISA_SCRIPT, name)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("REGARD_ISA names an instruction set that does not run here") == 2, result.stdout
    assert result.stdout.count(", ".join(ISAS)) == 2
    assert result.stdout.count(repr(name)) == 2


def test_default_instruction_set_is_fast_and_reproducible():
    script = "from regard.kernels import extension; print(extension.native.isa())"
    defaults = {run(script, "").stdout.strip() for _ in range(3)}
    # Pairs of bfloat16 are slower on some processors; a matrix unit is on none.
    fast = set(ISAS[:2]) if ISAS[0] == "avx512_bf16" else {ISAS[0]}
    assert len(defaults) == 1
    assert defaults <= fast

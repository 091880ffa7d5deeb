"""``.ci/as-processor`` limits a command to the instructions of another processor, in every library that multiplies."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "as-processor"
PROCESSORS = ["any-x86", "zen3", "skylake", "sapphire", "zen5"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_an_unknown_processor_is_refused_with_those_there_are():
    done = run("z80", "true")
    assert done.returncode == 2
    assert done.stderr.strip() == f"unknown processor 'z80'; there are: {' '.join(PROCESSORS)}"


@pytest.mark.parametrize("processor", PROCESSORS)
def test_one_that_has_more_than_this_is_refused(processor):
    """Uses Linux's names of x86 extensions for each processor."""
    needs = dict(zip(PROCESSORS, ["sse4_1", "avx2", "avx512dq", "avx512_bf16", "avx512_bf16"], strict=True))[processor]
    here = needs in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    done = run(processor, "--possible")
    assert done.returncode == (0 if here else 3)
    assert done.stderr.strip() == (
        "" if here else f"this processor has no {needs}, so {processor} cannot be emulated here"
    )


@pytest.mark.slow
def test_everything_is_held_to_it():
    """Checks what torch reports: its own kernels' instruction set, and whether oneDNN multiplies bfloat16."""
    script = (
        "import torch; print(torch.backends.cpu.get_cpu_capability(), torch.ops.mkldnn._is_mkldnn_bf16_supported())"
    )
    done = run("any-x86", sys.executable, "-c", script)
    said = (
        ["as any-x86: regard's kernels take portable, torch's DEFAULT; oneDNN has no bfloat16", "DEFAULT False"]
        if platform.machine() in ("x86_64", "AMD64")
        else []
    )
    assert done.stdout.splitlines() == said, done.stderr

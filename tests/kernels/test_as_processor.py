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


def test_unknown_processor_error_lists_the_known_ones():
    result = run("z80", "true")
    assert result.returncode == 2
    assert result.stderr.strip() == f"unknown processor 'z80'; there are: {' '.join(PROCESSORS)}"


@pytest.mark.parametrize("processor", PROCESSORS)
def test_processor_with_unsupported_instructions_is_refused(processor):
    """Uses Linux's names of x86 extensions for each processor."""
    needs = dict(zip(PROCESSORS, ["sse4_1", "avx2", "avx512dq", "avx512_bf16", "avx512_bf16"], strict=True))[processor]
    supported = needs in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    result = run(processor, "--possible")
    assert result.returncode == (0 if supported else 3)
    assert result.stderr.strip() == (
        "" if supported else f"this processor has no {needs}, so {processor} cannot be emulated here"
    )


@pytest.mark.slow
def test_kernels_torch_and_onednn_are_limited():
    """Checks what torch reports: its own kernels' instruction set, and whether oneDNN multiplies bfloat16."""
    script = (
        "import torch; print(torch.backends.cpu.get_cpu_capability(), torch.ops.mkldnn._is_mkldnn_bf16_supported())"
    )
    result = run("any-x86", sys.executable, "-c", script)
    expected = (
        ["as any-x86: regard's kernels take portable, torch's DEFAULT; oneDNN has no bfloat16", "DEFAULT False"]
        if platform.machine() in ("x86_64", "AMD64")
        else []
    )
    assert result.stdout.splitlines() == expected, result.stderr

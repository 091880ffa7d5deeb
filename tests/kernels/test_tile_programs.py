"""impl "triton" of ``observe``: refused where there is no GPU, and proved without one.

tile_program_checks.py has the checks against oracles. By night Triton's interpreter runs them on the CPU, and on a GPU
they run on it. compiled_tile_programs.py compiles the kernels for devices that are not there. Triton is found in
folders of its own, as in tests/conformance/test_frameworks.py: the newest, and the oldest that the kernels compile
with, which torch 2.13 asks for.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regard
from docs.pages import ROOT
from regard import masks, positions
from regard.errors import RefusedError
from regard.kernels.hardware import Hardware
from regard.kernels.implementations import triton
from regard.kernels.request import Request, Terms
from regard.kernels.select import select

FRAMEWORKS = ROOT / "build" / "frameworks"
OLDEST = ROOT / "build" / "triton-3.7"
SHARED_MEMORY = {"sm_80": 163 << 10, "sm_90": 227 << 10, "gfx942": 64 << 10}
"""Bytes of shared memory that a program may use: NVIDIA's tables of compute capabilities, and AMD's of CDNA 3."""
REGISTERS = {"sm_80": 255, "sm_90": 255, "gfx942": 512}
"""Registers that a thread may use."""
MAX_SPILLED = {FRAMEWORKS: 128, OLDEST: 160}
"""Bytes of a thread that the compiler may keep in memory, by its version; on AMD, registers."""
TRITONS = pytest.mark.parametrize("folder", MAX_SPILLED, ids=lambda folder: folder.name)


def run_python(*arguments: str, folder: Path = FRAMEWORKS, **environment: str) -> subprocess.CompletedProcess:
    """Run Python with the tests, and the Triton of a folder, on its path."""
    paths = (ROOT / "tests", ROOT / "tests" / "support", *([folder] if folder.is_dir() else []))
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "TRITON_DEFAULT_FP_FUSION": "1"}
    command = [sys.executable, "-W", "ignore", *arguments]
    options = {"capture_output": True, "text": True, "timeout": 3000, "check": False}
    return subprocess.run(command, cwd=ROOT, env=variables | environment, **options)


def run_checks(*options: str, folder: Path = FRAMEWORKS, **environment: str) -> None:
    checks = "tests/kernels/tile_program_checks.py"
    result = run_python("-m", "pytest", "-q", "-n", "0", *options, checks, folder=folder, **environment)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]


@pytest.mark.slow
@TRITONS
def test_in_tritons_interpreter(folder):
    assert folder.is_dir(), "make frameworks installs Triton"
    run_checks("-p", "kernels.interpreter_of_triton", folder=folder, TRITON_INTERPRET="1")


@pytest.mark.slow
@TRITONS
@pytest.mark.parametrize("device", SHARED_MEMORY)
def test_compiled_for_devices_that_are_not_there(folder, device, tmp_path):
    assert folder.is_dir(), "make frameworks installs Triton"
    script, cache = "tests/kernels/compiled_tile_programs.py", str(tmp_path)
    result = run_python(script, "all", device, folder=folder, TRITON_CACHE_DIR=cache)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-5000:]
    kernels = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert len({kernel["kernel"] for kernel in kernels}) == 9
    for kernel in kernels:
        assert kernel["shared"] <= SHARED_MEMORY[device], kernel
        assert kernel["registers"] <= REGISTERS[device], kernel
        assert kernel["spilled"] <= MAX_SPILLED[folder], kernel


# ---- on this machine ----


def tensors(**options) -> list[torch.Tensor]:
    return [torch.ones(1, 2, 5, 3, **options) for _ in range(3)]


def test_refused_on_a_cpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RefusedError, match=r"(?s)'triton' refuses: triton runs on a GPU.*cpu.*impl=\"auto\""):
        regard.observe(*tensors(), impl="triton")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"dtype": torch.float64}, "no float64"),
        ({"size": 129}, "head_dim and value_dim of at most 128 in torch.float32, and these are 129 and 3"),
        ({"bias": positions.ShawRelative(3)}, "ShawRelative needs the queries"),
        ({"bias": positions.ALiBi(2)}, None),
        ({"dropout": 0.5}, "no dropout"),
        ({"hardware": Hardware("cuda", (8, 0), has_triton=True)}, None),
        ({"hardware": Hardware("cuda", None, has_triton=True)}, None),
        ({"hardware": Hardware("xpu", None, has_triton=True)}, None),
        ({"hardware": Hardware("cuda", (7, 5), has_triton=True)}, "from sm_80 on, and the tensors are on cuda (sm_75)"),
        ({"hardware": Hardware("cuda", (9, 0))}, "the package triton is not installed"),
        ({"hardware": Hardware("mps")}, "triton runs on a GPU, and the tensors are on mps"),
    ],
    ids=str,
)
def test_requests_that_are_refused_on_a_gpu(changes, reason):
    """Only a description of a GPU is needed."""
    changes = dict(changes)
    hardware = changes.pop("hardware", Hardware("cuda", (9, 0), has_triton=True))
    query = torch.ones(1, 2, 5, changes.pop("size", 3), dtype=changes.pop("dtype", torch.float32))
    request = Request(query, query, torch.ones(1, 2, 5, 3), Terms(**changes), hardware=hardware)
    found = triton.OBSERVE.refuses(request)
    assert found is None if reason is None else reason in found


def test_refused_while_torch_traces(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(triton, "find_problem", lambda name, minimum: None)
    request = Request(*tensors())
    assert triton.OBSERVE.refuses(request) is None
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert "torch.compile" in triton.OBSERVE.refuses(request)


def test_an_older_triton_is_refused(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    asked = []
    monkeypatch.setattr(triton, "find_problem", lambda name, minimum: asked.append((name, minimum)) or "is too old")
    assert triton.OBSERVE.refuses(Request(*tensors())) == "is too old"
    assert triton.BACKEND.unavailable_reason() == "is too old"
    assert asked == [("triton", (3, 7))] * 2


def test_lists_of_tiles_hold_the_tile_map():
    """Each row and column of a map, expanded to cells, full tiles first."""
    for mask in (masks.causal(), masks.padding([131, 0]), masks.window(70, 3) | masks.global_tokens([66])):
        lists = mask.lower_to_device(regard.contract.Frame(131, 197), torch.device("cpu"))
        codes = mask.tiles(131, 197)
        sides = (
            (lists.row_bounds, lists.row_tile, lists.row_bitmap, False),
            (lists.column_bounds, lists.column_tile, lists.column_bitmap, True),
        )
        whole = codes.codes().flatten(0, 1)
        for bounds, tile, bitmap, is_column in sides:
            seen = torch.zeros_like(whole.mT if is_column else whole)
            for group, lines in enumerate(bounds.tolist()):
                for line, (begin, middle, end) in enumerate(lines):
                    assert (bitmap[begin:middle] == -1).all()
                    assert (bitmap[middle:end] >= 0).all()
                    assert tile[begin:middle].tolist() == sorted(tile[begin:middle].tolist())
                    seen[group, line, tile[begin:middle].long()] = 2
                    seen[group, line, tile[middle:end].long()] = 1
            assert torch.equal(seen.mT if is_column else seen, whole), mask
        by_place = torch.where(lists.codes == -2, 0, torch.where(lists.codes == -1, 2, 1))
        assert torch.equal(by_place.to(whole.dtype), whole)
        rows = torch.tensor([2, 0, 2, 1, 1])
        assert torch.equal(lists.codes_of(rows), lists.codes[:, rows])
        assert lists.codes_of(rows[:0]).shape == (lists.codes.shape[0], 0, 4)


# ---- on a GPU ----


@pytest.mark.gpu
def test_on_a_gpu():
    run_checks()


@pytest.mark.gpu
def test_auto_takes_it_on_a_gpu():
    request = Request(*tensors(device="cuda"))
    assert select("observe", "auto", request).name == "triton"


@pytest.mark.gpu
def test_recordings_of_a_model_on_a_gpu():
    """Statistics of a recorded layer agree with those of the reference, computed in float64 on the CPU."""
    torch.manual_seed(3)
    layer = regard.MultiHeadAttention(32, 4, key_value_heads=2).cuda()
    with torch.no_grad(), regard.record(layer) as seen:
        layer(torch.randn(2, 131, 32, device="cuda"), mask=masks.causal())
    call = seen[0]
    exact = regard.observe(*(part.double().cpu() for part in (call.query, call.key, call.value)), mask=call.mask, top=2)
    ours = call.observe(top=2)
    for name in ("output", "lse", "entropy", "received", "top_weights"):
        torch.testing.assert_close(getattr(ours, name).double().cpu(), getattr(exact, name), rtol=0, atol=1e-4)

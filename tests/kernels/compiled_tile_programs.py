"""The kernels in Triton, compiled for devices that are not there: what they need of shared memory and registers.

test_tile_programs.py runs this script in a process in which triton is found. It prints a line of JSON for each kernel,
case and device, with the names of ``CASES`` and ``TARGETS``. Nothing is run: a call's arguments are collected, and
kernels are compiled for their types, their constants and what is known of their sizes, as a launch would do it.
"""

import json
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from regard import masks, positions
from regard.kernels.request import Request, Terms
from regard.kernels.tile_programs import launch
from regard.kernels.tile_programs.block_sizes import Target
from regard.kernels.tile_programs.observe import observe

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
_TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.uint8: "*u8",
}


def collect_calls(compute, backend):
    """Return the kernels and arguments of all calls that ``compute`` makes, without running them."""
    calls = []
    run, find_target = launch.run, launch.find_target
    launch.run = lambda kernel, grid, arguments, sizes: calls.append((kernel, (*arguments, sizes.blocks), sizes))
    launch.find_target = lambda device: Target(backend)
    try:
        compute()
    finally:
        launch.run, launch.find_target = run, find_target
    return calls


def describe(argument, path, constants, attributes):
    """Return the type of an argument as a launch would find it, and note what is constant or divisible by 16."""
    if isinstance(argument, tuple):
        parts = [describe(part, (*path, place), constants, attributes) for place, part in enumerate(argument)]
        return type(argument)(*parts) if hasattr(argument, "_fields") else tuple(parts)
    if argument is None or (type(argument) is int and argument == 1):
        constants[path] = argument
        return "constexpr"
    if isinstance(argument, torch.Tensor):
        attributes[path] = [["tt.divisibility", 16]]
        return _TYPES[argument.dtype]
    if isinstance(argument, int):
        if argument % 16 == 0:
            attributes[path] = [["tt.divisibility", 16]]
        return "i32" if abs(argument) < 2**31 else "i64"
    assert isinstance(argument, float)
    return "fp32"


def compile_call(kernel, arguments, sizes, target):
    """Compile a kernel for a device as the call would."""
    signature, constants, attributes = {}, {}, {}
    for place, (parameter, argument) in enumerate(zip(kernel.params, arguments, strict=True)):
        if parameter.is_constexpr:
            constants[(place,)] = argument
            signature[parameter.name] = "constexpr"
        else:
            signature[parameter.name] = describe(argument, (place,), constants, attributes)
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": sizes.num_warps, "num_stages": sizes.num_stages}
    return triton.compile(source, target=target, options=options)


def resources(compiled):
    """Return the bytes of shared memory of a program, and the registers and spilled bytes or registers of a thread."""
    used = {"shared": compiled.metadata.shared}
    if "cubin" in compiled.asm:
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(compiled.asm["cubin"])
            file.flush()
            command = [str(tool), "--dump-resource-usage", file.name]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        # of a function: REG:168 STACK:0 SHARED:.. LOCAL:0; the stack holds what is spilled
        numbers = {
            name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", text.split("Function")[-1])
        }
        return used | {"registers": numbers["REG"], "spilled": numbers["STACK"] + numbers["LOCAL"]}
    text = compiled.asm["amdgcn"]
    numbers = {name: int(number) for name, number in re.findall(r"\.(vgpr_count|vgpr_spill_count):\s+(\d+)", text)}
    return used | {"registers": numbers["vgpr_count"], "spilled": numbers["vgpr_spill_count"]}


def call(dtype, head_dim, **terms):
    """Observe with gradients of everything: kernels are called for all that can be asked of them."""
    generator = torch.Generator().manual_seed(1)
    shapes = ((8, 192), (4, 256), (4, 256))
    query, key, value = (torch.randn(2, *shape, head_dim, generator=generator).to(dtype) for shape in shapes)
    inputs = [part.requires_grad_() for part in (query, key, value)]
    seen = observe(Request(*inputs, Terms(mask=masks.causal(), scale=0.1, **terms)), 8, torch.tensor([191, 0]))
    parts = (seen.output, seen.lse, seen.entropy, seen.received, seen.top_weights, seen.sink_weight, seen.rows)
    sum(part.float().sum() for part in parts if part is not None).backward()


def with_terms(dtype, head_dim):
    """Call with all terms of scores, and a bias of each kind."""
    sinks = torch.zeros(1, 8, 1, 1, requires_grad=True)
    call(dtype, head_dim, bias=torch.zeros(1, 8, 192, 256, requires_grad=True), softcap=30.0, sinks=sinks)
    call(dtype, head_dim, bias=positions.T5Buckets(8))


CASES = {
    "bfloat16, heads of 64": partial(call, torch.bfloat16, 64),
    "bfloat16, heads of 128": partial(call, torch.bfloat16, 128),
    "float32, heads of 64": partial(call, torch.float32, 64),
    "bfloat16, heads of 256": partial(call, torch.bfloat16, 256),
    "float32, heads of 128": partial(call, torch.float32, 128),
    "bfloat16, heads of 64, all terms": partial(with_terms, torch.bfloat16, 64),
}


def main() -> None:
    """Compile the kernels of the cases for the devices that the arguments name; "all" is each."""
    case, device = sys.argv[1:]
    cases = CASES if case == "all" else {case: CASES[case]}
    targets = TARGETS if device == "all" else {device: TARGETS[device]}
    for target_name, target in targets.items():
        for case_name, compute in cases.items():
            seen = set()
            for kernel, arguments, sizes in collect_calls(compute, target.backend):
                compiled = compile_call(kernel, arguments, sizes, target)
                if compiled.hash not in seen:
                    seen.add(compiled.hash)
                    row = {"kernel": kernel.__name__, "case": case_name, "device": target_name, **resources(compiled)}
                    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

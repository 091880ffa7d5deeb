"""Memory that runs out: what a user of the shell reads, with the options of the command that save memory."""

import pytest
import torch

from regard.cli.out_of_memory import is_out_of_memory, out_of_memory_error
from shell_command import run, shell_message

OF_A_GPU = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.10 GiB.\nMore.")
OF_APPLE = RuntimeError("MPS backend out of memory (MPS allocated: 17.00 GB, max allowed: 18.13 GB)")
OF_A_CPU = RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")


@pytest.mark.parametrize("error", [OF_A_GPU, OF_APPLE, OF_A_CPU, MemoryError()])
def test_memory_that_ran_out(error):
    assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("CUDA error: device-side assert triggered"))


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (["embed"], "lower --batch, or"),
        (["translate"], "lower --batch-tokens, or"),
        (["train", "lm"], "lower --batch (with a larger --accumulate), or"),
        (["bench"], "lower --batch, --length, or"),
        (["view"], "use less text"),
    ],
)
def test_options_of_the_command_are_named(command, options):
    run(*command, "--help")  # the command that runs
    said = shell_message(out_of_memory_error(OF_A_GPU))
    assert "there is not enough memory on the device" in said
    assert "--device cpu computes in the memory of the machine" in said
    assert "GPU 0 has 79.10 GiB." in said
    assert options in said


def test_memory_of_the_cpu():
    run("embed", "--help")
    said = shell_message(out_of_memory_error(OF_A_CPU))
    assert "on the device" not in said
    assert "--device" not in said
    assert "lower --batch, or use less text or a smaller model" in said

"""Threads: torch's pool and no other, in the number torch says, and right answers whoever calls at the same time."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import regard
from regard import masks
from regard.kernels import library

TOKENS = """
import os, torch, regard
from regard.kernels import library
generator = torch.Generator().manual_seed(7)
query, key, value = (torch.randn(2, 4, 131, 67, generator=generator, requires_grad=True) for _ in range(3))

def bits():
    output = regard.attention(query, key, value, impl="native")
    return [output, *torch.autograd.grad(output.square().sum(), (query, key, value))]

def same(ones, others):
    return all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))

def threads():
    return len(os.listdir("/proc/self/task"))

def with_torch():
    torch.rand(1 << 22).exp().sum()
"""


def said(script: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", TOKENS + script], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_number_of_threads_is_torchs(count):
    """Three calls and torch's own work between them: no thread beyond the team that torch has."""
    script = f"""
torch.set_num_threads({count})
before = threads()
bits()
started = threads() - before
with_torch()
for _ in range(3):
    bits()
    with_torch()
print(started, threads() - before)
"""
    started, all_of_them = map(int, said(script))
    assert started <= count  # the calling thread is one of the team, and autograd has one of its own
    assert all_of_them <= count


def test_a_team_that_torch_has_started_is_taken_over():
    script = """
torch.set_num_threads(2)
with_torch()
before = threads()
with torch.no_grad():
    regard.attention(query, key, value, impl="native")
print(threads() - before)
"""
    assert said(script) == ["0"]


def test_a_forked_child_computes_the_same():
    """Of the parent's threads it has none, and torch's own operations may wait for them for ever: NumPy compares."""
    script = """
torch.set_num_threads(2)
with torch.no_grad():
    before = regard.attention(query, key, value, impl="native")
    child = os.fork()
    if child == 0:
        after = regard.attention(query, key, value, impl="native")
        os._exit(0 if (before.numpy() == after.numpy()).all() and threads() == 1 else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(torch.equal(before, regard.attention(query, key, value, impl="native")))
"""
    assert said(script) == ["0", "True"]


def test_processes_forked_while_others_compute():
    """The memory that calls share is in order in the child, whenever it was forked."""
    script = """
import threading
torch.set_num_threads(2)
stop = threading.Event()
with torch.no_grad():
    before = regard.attention(query, key, value, impl="native")

    def work():
        with torch.no_grad():
            while not stop.is_set():
                regard.attention(query, key, value, impl="native")

    busy = [threading.Thread(target=work) for _ in range(2)]
    for thread in busy:
        thread.start()
    codes = set()
    for _ in range(10):
        child = os.fork()
        if child == 0:
            after = torch.empty_like(before)
            lse = torch.empty(before.shape[:3])
            library.native.forward(query, key, value, after, lse, scale=67**-0.5, threads=2)
            os._exit(0 if (before.numpy() == after.numpy()).all() else 1)
        codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    stop.set()
    for thread in busy:
        thread.join()
print(codes)
"""
    assert said(script) == ["{0}"]


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_calls_at_the_same_time_give_the_same_bits(two_threads):
    """Several threads of Python, each with a problem of its own, share scratch memory and the pool."""
    sizes = [(5, 7), (67, 131), (131, 67), (257, 31), (64, 64), (3, 1031)]
    mask = masks.causal()

    def bits(place: int) -> list[torch.Tensor]:
        torch.set_num_threads(2)  # the number is each Python thread's own
        queries, keys = sizes[place % len(sizes)]
        generator = torch.Generator().manual_seed(place % len(sizes))
        shapes = (queries, 19), (keys, 19), (keys, 37)
        tokens = [torch.randn(2, 4, *shape, generator=generator, requires_grad=True) for shape in shapes]
        output = regard.attention(*tokens, mask=mask, impl="native")
        seen = regard.observe(*(tensor.detach() for tensor in tokens), mask=mask, impl="native")
        return [output, seen.received, *torch.autograd.grad(output.sum(), tokens)]

    alone = [bits(place) for place in range(len(sizes))]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(bits, range(8 * len(sizes))))
    for place, together in enumerate(found):
        assert all(torch.equal(*pair) for pair in zip(together, alone[place % len(sizes)], strict=True)), place


def test_a_call_inside_a_parallel_region_starts_no_team_of_its_own():
    """A region of torch's OpenMP runtime, entered by hand, on whose threads the kernel is called."""
    script = """
import ctypes
torch.set_num_threads(2)
whole = bits()
runtime = next(line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line)
found = []

@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def inside(_):
    found.append(bits())

ctypes.CDLL(runtime).GOMP_parallel(inside, None, 2, 0)
print(len(found), all(same(each, whole) for each in found), threads() <= before)
"""
    assert said("before = threads() + 2" + script) == ["2", "True", "True"]


def test_the_interpreter_is_free_while_a_kernel_computes():
    """Another thread counts meanwhile. If it had to wait, it could count between the calls alone."""
    query = torch.randn(1, 8, 2048, 64)
    output = torch.empty_like(query)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: [library.native.forward(query, query, query, output, None) for _ in range(3)])
        counted = 0
        while not running.done():
            counted += 1
    assert counted > 100

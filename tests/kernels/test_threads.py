"""Threads: torch's pool if it polls, else workers of the module; never more than torch reports; concurrent callers."""

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch

import regard
from regard import masks
from regard.kernels import extension
from script_process import run_script

TOKENS = """
import os, torch, regard
from regard.kernels import extension
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


def script_output(script: str) -> list[str]:
    result = run_script(TOKENS + script)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.split()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_number_of_threads_is_torchs(count):
    """Three calls with torch's own work between them start no thread besides torch's team.

    Where other processes delay that team, the module starts workers of its own, one for each of its members.
    """
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
    started, all_of_them = map(int, script_output(script))
    assert started <= count + count - 1  # the calling thread is in the team, and autograd has its own thread
    assert all_of_them <= count + count - 1


def test_running_team_of_torch_is_reused():
    script = """
torch.set_num_threads(2)
with_torch()
before = threads()
with torch.no_grad():
    regard.attention(query, key, value, impl="native")
print(threads() - before)
"""
    assert any(script_output(script) == ["0"] for _ in range(3))  # unless another process delayed the team


@pytest.mark.parametrize("count", [1, 2, 3])
def test_threads_of_torch_that_sleep_are_left_alone(count):
    """Then the module has as many workers as a team has members besides the caller, and the same bits."""
    script = f"""
os.environ["OMP_WAIT_POLICY"] = "passive"
torch.set_num_threads(1)
with_one = bits()
torch.set_num_threads({count})
before = threads()
for _ in range(3):
    regard.attention(query, key, value, impl="native")
print(extension.native.openmp(), threads() - before, same(bits(), with_one))
"""
    assert script_output(script) == ["None", str(count - 1), "True"]


FORKS = '''
import threading
torch.set_num_threads(2)
with_torch()
with torch.no_grad():
    before = regard.attention(query, key, value, impl="native").numpy()

def check(expected_threads=None):
    """What torch does itself may wait for the parent's threads for ever: NumPy compares."""
    with torch.no_grad():
        same = [(regard.attention(query, key, value, impl="native").numpy() == before).all() for _ in range(3)]
    if not all(same) or expected_threads not in (None, threads()):
        print(same, threads(), "threads", flush=True)
        os._exit(1)

def forked(work):
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
'''


def test_forked_children_have_teams_of_their_own():
    """Two threads: the forking one and a worker."""
    script = """
def child():
    print("forked before it has a team:", forked(lambda: check(2)), flush=True)
    check(2)
    print("after:", forked(lambda: check(2)), flush=True)
    check(2)
    in_a_thread(check)
    in_a_thread(lambda: print("from a thread of it:", forked(check), flush=True))

print("child:", forked(child))
check()
in_a_thread(lambda: print("from a thread:", forked(check)))
check()
"""
    actual = " ".join(script_output(FORKS + script))
    assert actual == ("forked before it has a team: 0 after: 0 from a thread of it: 0 child: 0 from a thread: 0")


@pytest.mark.parametrize("order", [("use torch", "import regard"), ("import regard", "use torch")])
def test_importing_regard_before_a_fork_is_enough(order):
    """The child is the first to use a name of regard, and the parent's pool runs already. Torch's own operations are
    too small for threads.
    """
    steps = {"use torch": "torch.rand(1 << 22).exp().sum()", "import regard": "import regard"}
    lines = "\n".join(steps[step] for step in order)
    script = f"""
import os, signal, torch
torch.set_num_threads(2)
{lines}
child = os.fork()
if child == 0:
    signal.alarm(60)  # seconds, for a child that waits for ever
    tokens = [torch.ones(1, 4, 257, 16, requires_grad=True) for _ in range(3)]
    output = regard.attention(*tokens, impl="native")
    output.sum().backward()
    os._exit(0 if (output.detach().numpy() == 1).all() and tokens[2].grad is not None else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    result = run_script(script)
    assert result.stdout.split() == ["0"], result.stderr


def test_data_loader_workers():
    """Workers are forked, and have one thread each."""
    script = """
from torch.utils.data import DataLoader

class Outputs(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        with torch.no_grad():
            return regard.attention(query, key, value, impl="native").numpy()

loader = DataLoader(Outputs(), num_workers=2, batch_size=None, multiprocessing_context="fork")
print([bool((output.numpy() == before).all()) for output in loader])
"""
    assert script_output(FORKS + script) == ["[True,", "True,", "True,", "True]"]


def test_fork_during_calls_of_other_threads():
    """The memory that calls share is consistent in the child, whenever it was forked."""
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
            extension.native.forward(query, key, value, after, lse, scale=67**-0.5, threads=2)
            os._exit(0 if (before.numpy() == after.numpy()).all() else 1)
        codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    stop.set()
    for thread in busy:
        thread.join()
print(codes)
"""
    assert script_output(script) == ["{0}"]


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_concurrent_calls_give_the_same_bits(two_threads):
    """Several Python threads, each with its own problem, share scratch memory and the pool."""
    sizes = [(5, 7), (67, 131), (131, 67), (257, 31), (64, 64), (3, 1031)]
    mask = masks.causal()

    def bits(place: int) -> list[torch.Tensor]:
        torch.set_num_threads(2)  # each Python thread has its own number
        queries, keys = sizes[place % len(sizes)]
        generator = torch.Generator().manual_seed(place % len(sizes))
        shapes = (queries, 19), (keys, 19), (keys, 37)
        tokens = [torch.randn(2, 4, *shape, generator=generator, requires_grad=True) for shape in shapes]
        output = regard.attention(*tokens, mask=mask, impl="native")
        observation = regard.observe(*(tensor.detach() for tensor in tokens), mask=mask, impl="native")
        return [output, observation.received, *torch.autograd.grad(output.sum(), tokens)]

    alone = [bits(place) for place in range(len(sizes))]
    with ThreadPoolExecutor(4) as pool:
        actual = list(pool.map(bits, range(8 * len(sizes))))
    for place, together in enumerate(actual):
        assert all(torch.equal(*pair) for pair in zip(together, alone[place % len(sizes)], strict=True)), place


def test_call_inside_a_parallel_region_starts_no_team():
    """The kernel is called on the threads of a region of torch's OpenMP runtime, which the test starts itself."""
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
    assert script_output("before = threads() + 2" + script) == ["2", "True", "True"]


def test_kernels_release_the_gil():
    """Another thread continues meanwhile. If it had to wait, it would pause for the whole call.

    A busy machine may pause it too, so one call of five is enough.
    """
    query = torch.randn(1, 8, 1031, 64)
    output = torch.empty_like(query)

    def seconds() -> float:
        began = time.perf_counter()
        extension.native.forward(query, query, query, output, None)
        return time.perf_counter() - began

    def longest_pause() -> float:
        """Return the longest pause as a fraction of the call's time."""
        moments = [time.perf_counter()]
        running = pool.submit(seconds)
        while not running.done():
            time.sleep(1e-3)
            moments.append(time.perf_counter())
        return max(later - earlier for earlier, later in pairwise(moments)) / running.result()

    with ThreadPoolExecutor(1) as pool:
        assert any(longest_pause() < 0.5 for _ in range(5))

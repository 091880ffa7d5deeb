"""Kernels use the indices that were checked, even if another thread writes to the arrays while a kernel reads.

The thread alternates each array between two contents, valid indices and indices far out of bounds. A call that has
checked the valid ones returns the correct result, any other is refused. The calls run in a separate process, since
without copies they would read out of bounds.
"""

import pytest

from script_process import run_script

SCRIPT = """
import threading, torch
from regard.kernels import extension

native, far = extension.native, 2**28  # elements: beyond every array
generator = torch.Generator().manual_seed(7)

def drawn(*shape):
    return torch.randn(shape, generator=generator)

queries, keys = 257, 521
query, key, value = drawn(2, 2, queries, 19), drawn(2, 2, keys, 19), drawn(2, 2, keys, 19)
pages = drawn(80, 2, 7, 19)
logits = drawn(4001, 101)
query_tiles, key_tiles = 5, 9
tiles = {
    "row_start": torch.arange(query_tiles + 1).mul(key_tiles).view(1, 1, -1),
    "key_tile": torch.arange(key_tiles, dtype=torch.int32).repeat(query_tiles),
    "bitmap": torch.zeros(query_tiles * key_tiles, dtype=torch.int32),
    "bitmaps": torch.full((1, 64), -1),
}
intervals = {"start": torch.tensor([3, 5]), "stop": torch.tensor([keys, 300])}
rows = torch.tensor([0, 256])
table, lengths = torch.arange(80).view(2, 40), torch.tensor([277, 131])
short = table.int()
targets = torch.arange(4001) % 101
tops = torch.arange(3).expand(2, 2, queries, 3).contiguous()
dense = torch.ones(queries, keys, dtype=torch.bool)
long = drawn(1, 2, 2049, 5)  # tokens whose blocks take long enough to count
chosen = (torch.arange(33) < (torch.arange(2049) // 64)[:, None]).expand(1, 2, -1, -1).contiguous()
positions = torch.arange(0, keys, 7, dtype=torch.int32).expand(2, 2, queries, -1).contiguous()
visible = (torch.arange(queries) + keys - queries + 1).expand(2, -1).contiguous()

def forward(**options):
    output = torch.empty_like(query)
    native.forward(query, key, value, output, None, threads=2, **options)
    return output

def observe():
    output, (lse, entropy) = torch.empty_like(query), torch.empty(2, 2, 2, queries)
    weights, received = torch.empty(2, 2, 2, keys), torch.empty(2, 2, keys)
    native.observe(query, key, value, output, lse, entropy, received, None, None, rows, weights, threads=2)
    return weights

def backward(**options):
    output, normalizer = torch.empty_like(query), torch.empty(2, 2, queries, 2)
    native.forward(query, key, value, output, None, normalizer=normalizer)
    gradients = [torch.empty_like(tensor) for tensor in (query, key, value)]
    native.backward(query, query, key, value, output, normalizer, *gradients, None, None, threads=2, **options)
    return torch.cat([gradient.view(-1) for gradient in gradients])

def tops_backward():
    return backward(top_keys=tops, top_grad=torch.ones(2, 2, queries, 3))

def rows_backward():
    return backward(rows=rows, rows_grad=torch.ones(2, 2, 2, keys))

def paged(of_pages):
    output = torch.empty(2, 2, 3, 19)
    native.paged(query[:, :, :3], pages, pages, of_pages, lengths, None, output, None, threads=2)
    return output

def losses():
    loss, normalizer = torch.empty(4001), torch.empty(4001, 2)
    native.cross_entropy(logits, targets, loss, normalizer, threads=2)
    return loss

def chosen_forward():
    output, normalizer = torch.empty_like(long), torch.empty(1, 2, 2049, 2)
    native.chosen_blocks_forward(long, long, long, chosen, output, normalizer, block=64, threads=2)
    return output

def chosen_backward():
    output, normalizer = torch.ones_like(long), torch.zeros(1, 2, 2049, 2)
    gradients = [torch.empty_like(long) for _ in range(3)]
    options = {"block": 64, "threads": 2}
    native.chosen_blocks_backward(long, long, long, long, chosen, output, normalizer, *gradients, **options)
    return torch.cat([gradient.view(-1) for gradient in gradients])

def gathered_forward():
    output = torch.empty_like(query)
    native.gathered_forward(query, key, value, positions, output, threads=2)
    return output

def gathered_backward():
    gradients = [torch.empty_like(tensor) for tensor in (query, key, value)]
    native.gathered_backward(query, query, key, value, positions, *gradients, threads=2)
    return torch.cat([gradient.view(-1) for gradient in gradients])

def importance():
    blocks, certain = torch.empty(2, 2, queries, 9, dtype=torch.bool), torch.empty(2, 2, queries, dtype=torch.bool)
    native.block_importance(
        query, key, visible, blocks, certain, block=64, compressed_block=32, stride=16, count=3, threads=2
    )
    return blocks

CASES = {
    "row_start": (tiles["row_start"], lambda: forward(**tiles)),
    "key_tile": (tiles["key_tile"], lambda: forward(**tiles)),
    "bitmap": (tiles["bitmap"], lambda: forward(**tiles)),
    "key_tile, backward": (tiles["key_tile"], lambda: backward(**tiles)),
    "rows": (rows, observe),
    "rows, backward": (rows, rows_backward),
    "page_table": (table, lambda: paged(table)),
    "page_table of int32": (short, lambda: paged(short)),
    "lengths": (lengths, lambda: paged(table)),
    "targets": (targets, losses),
}
# For these arrays any content is valid, and none leads out of bounds.
LOOSE = {
    "start": (intervals["start"], lambda: forward(**intervals)),
    "stop": (intervals["stop"], lambda: forward(**intervals)),
    "bitmaps": (tiles["bitmaps"], lambda: forward(**tiles | {"bitmap": torch.zeros_like(tiles["bitmap"])})),
    "bitmaps, backward": (tiles["bitmaps"], lambda: backward(**tiles)),
    "dense": (dense, lambda: forward(dense=dense)),
    "dense, backward": (dense, lambda: backward(dense=dense)),
    "top_keys": (tops, tops_backward),
    "chosen": (chosen, chosen_forward),
    "chosen, backward": (chosen, chosen_backward),
    "positions": (positions, gathered_forward),
    "positions, backward": (positions, gathered_backward),
    "visible": (visible, importance),
}

def scribble(array, good, stop):
    bad = torch.zeros_like(good) if array.dtype == torch.bool else torch.full_like(good, far)
    while not stop.is_set():
        array.copy_(bad)
        array.copy_(good)

def run(array, call):
    \"\"\"How often the result was that of what the array holds, another one, and none.\"\"\"
    good, wanted, counts, stop = array.clone(), call(), [0, 0, 0], threading.Event()
    thread = threading.Thread(target=scribble, args=(array, good, stop))
    thread.start()
    for _ in range(calls * (10 if array is chosen else 1)):  # few calls meet a write between counts and lists
        try:
            counts[0 if torch.equal(call(), wanted) else 1] += 1
        except ValueError:
            counts[2] += 1
    stop.set()
    thread.join()
    assert torch.equal(call(), wanted)
    return counts

for name, case in CASES.items():
    right, wrong, refused = run(*case)
    assert wrong == 0, (name, right, wrong, refused)
for name, case in LOOSE.items():
    assert run(*case)[2] == 0, name
print("all hold")
"""


@pytest.mark.parametrize("calls", [10, pytest.param(30, marks=pytest.mark.slow)])
def test_index_arrays_written_by_another_thread(calls):
    result = run_script(f"calls = {calls}\n{SCRIPT}")
    assert result.stdout == "all hold\n", (result.returncode, result.stdout + result.stderr)

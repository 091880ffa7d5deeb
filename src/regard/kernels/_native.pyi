"""The compiled kernels: the binding as C++ defines it.

Arrays are whatever has DLPack: torch tensors, also those that require grad, NumPy arrays, others; in the CPU's memory,
of float32, float64, bfloat16 or float16 alike, with any strides. Results are allocated by the caller, and every element
is written. float64 input has float64 statistics, any other float32; "wide" below.

Every function raises ValueError or TypeError for arguments that do not fit together, before memory is taken,
MemoryError where there is too little, and ValueError where the environment variable REGARD_ISA names an instruction set
that does not run here.

Options that operations share:

    low, high        query i sees key j only if i + low <= j <= i + high; None: no bound
    start, stop      int64 (batch,): entry b sees key j only if start[b] <= j < stop[b]
    row_start        int64 (batch or 1, heads or 1, query_tiles + 1), with key_tile and bitmap int32 (entries,) and
                     bitmaps int64 (distinct, 64): a map of tiles of 64 x 64, as masks.tiles.TileMap has it
    dense            bool, broadcasts to (batch, heads, queries, keys); True: may attend
    scale            what products of query and key are multiplied with
    bias             any floating dtype, broadcasts to (batch, heads, queries, keys)
    table            wide (heads or 1, distances): a bias of the distance key - position(query), where the last query
                     stands at the last key; its first column is for the distance table_lowest
    dropout, seed    the share of weights that become 0, and where their random numbers start
    threads          how many to use; the same bits for any number
"""

from typing import Any, TypeAlias

Array: TypeAlias = Any

interface: int
"""The number of what is declared here, as the module was compiled; extension.py says which one it needs."""

def forward(
    query: Array,
    key: Array,
    value: Array,
    output: Array,
    lse: Array | None,
    *,
    normalizer: Array | None = None,
    rounding: Array | None = None,
    low: int | None = None,
    high: int | None = None,
    start: Array | None = None,
    stop: Array | None = None,
    row_start: Array | None = None,
    key_tile: Array | None = None,
    bitmap: Array | None = None,
    bitmaps: Array | None = None,
    dense: Array | None = None,
    scale: float = 1.0,
    bias: Array | None = None,
    table: Array | None = None,
    table_lowest: int = 0,
    dropout: float = 0.0,
    seed: int = 0,
    threads: int = 1,
) -> None:
    """Fill output (batch, heads, queries, value_dim) and lse (batch, heads, queries, wide) of attention.

    What the backward pass needs as well: normalizer (batch, heads, queries, 2, wide), the largest score of a query and
    the logarithm of the sum, as the kernels have them; and, for it to be more exact, rounding, as output, what half
    precision cut off the output.
    """

def backward(
    grad_output: Array,
    query: Array,
    key: Array,
    value: Array,
    output: Array,
    normalizer: Array,
    grad_query: Array,
    grad_key: Array,
    grad_value: Array,
    grad_bias: Array | None,
    grad_table: Array | None,
    *,
    grad_lse: Array | None = None,
    log_weight: Array | None = None,
    column: Array | None = None,
    top_keys: Array | None = None,
    top_grad: Array | None = None,
    rows: Array | None = None,
    rows_grad: Array | None = None,
    rounding: Array | None = None,
    low: int | None = None,
    high: int | None = None,
    start: Array | None = None,
    stop: Array | None = None,
    row_start: Array | None = None,
    key_tile: Array | None = None,
    bitmap: Array | None = None,
    bitmaps: Array | None = None,
    dense: Array | None = None,
    scale: float = 1.0,
    bias: Array | None = None,
    table: Array | None = None,
    table_lowest: int = 0,
    dropout: float = 0.0,
    seed: int = 0,
    threads: int = 1,
) -> None:
    """Fill the gradients of forward's arguments, from what forward gave.

    grad_bias has the shape of bias and grad_table that of table, both wide. Gradients of observe's statistics are
    added where they are given: grad_lse and log_weight (batch, heads, queries), column (batch, heads, keys),
    top_grad (batch, heads, queries, top) at top_keys (int64), rows_grad (batch, heads, rows, keys) at rows (int64).
    """

def observe(
    query: Array,
    key: Array,
    value: Array,
    output: Array,
    lse: Array | None,
    entropy: Array | None,
    received: Array | None,
    top_keys: Array | None,
    top_weights: Array | None,
    rows: Array | None,
    rows_weights: Array | None,
    *,
    normalizer: Array | None = None,
    rounding: Array | None = None,
    low: int | None = None,
    high: int | None = None,
    start: Array | None = None,
    stop: Array | None = None,
    row_start: Array | None = None,
    key_tile: Array | None = None,
    bitmap: Array | None = None,
    bitmaps: Array | None = None,
    dense: Array | None = None,
    scale: float = 1.0,
    bias: Array | None = None,
    table: Array | None = None,
    table_lowest: int = 0,
    dropout: float = 0.0,
    seed: int = 0,
    threads: int = 1,
) -> None:
    """Fill output and lse as forward does, and the statistics that are asked for, all wide.

    entropy (batch, heads, queries), received (batch, heads, keys), top_keys (int64) and top_weights (batch, heads,
    queries, top), rows_weights (batch, heads, rows, keys) of the queries rows (int64).
    """

def paged(
    query: Array,
    key_pages: Array,
    value_pages: Array,
    page_table: Array,
    lengths: Array,
    output: Array,
    lse: Array | None,
    *,
    scale: float = 1.0,
    low: int | None = None,
    high: int | None = None,
    threads: int = 1,
) -> None:
    """Fill output and lse of attention to a paged cache.

    key_pages and value_pages (pages, key_heads, page_size, head_dim or value_dim); page_table int32 or int64 (batch,
    max_pages) names the pages of each entry in order; lengths int64 (batch,) says how many keys are in use.
    """

def additive_forward(
    of_query: Array,
    of_key: Array,
    vector: Array,
    value: Array,
    output: Array,
    lse: Array | None,
    *,
    normalizer: Array | None = None,
    low: int | None = None,
    high: int | None = None,
    start: Array | None = None,
    stop: Array | None = None,
    row_start: Array | None = None,
    key_tile: Array | None = None,
    bitmap: Array | None = None,
    bitmaps: Array | None = None,
    dense: Array | None = None,
    scale: float = 1.0,
    bias: Array | None = None,
    table: Array | None = None,
    table_lowest: int = 0,
    dropout: float = 0.0,
    seed: int = 0,
    threads: int = 1,
) -> None:
    """Fill output and lse of attention with the score vector . tanh(of_query_i + of_key_j).

    of_query (batch, heads, queries, inner), of_key (batch, key_heads, keys, inner), vector (heads, inner); scale is
    not used.
    """

def additive_backward(
    grad_output: Array,
    of_query: Array,
    of_key: Array,
    vector: Array,
    value: Array,
    output: Array,
    normalizer: Array,
    grad_of_query: Array,
    grad_of_key: Array,
    grad_vector: Array,
    grad_value: Array,
    grad_bias: Array | None,
    grad_table: Array | None,
    *,
    grad_lse: Array | None = None,
    low: int | None = None,
    high: int | None = None,
    start: Array | None = None,
    stop: Array | None = None,
    row_start: Array | None = None,
    key_tile: Array | None = None,
    bitmap: Array | None = None,
    bitmaps: Array | None = None,
    dense: Array | None = None,
    scale: float = 1.0,
    bias: Array | None = None,
    table: Array | None = None,
    table_lowest: int = 0,
    dropout: float = 0.0,
    seed: int = 0,
    threads: int = 1,
) -> None:
    """Fill the gradients of additive_forward's arguments; grad_vector, grad_bias and grad_table are wide."""

def dropout(tokens: Array, output: Array, *, probability: float, seed: int, threads: int = 1) -> None:
    """Fill output with tokens / (1 - probability) where the coin of an index is kept, else with 0.

    Both (count,), contiguous, of one floating dtype. The coins depend on the seed and the index alone.
    """

def cross_entropy(
    logits: Array,
    targets: Array,
    loss: Array,
    normalizer: Array,
    *,
    smoothing: float = 0.0,
    ignored: int = -1,
    threads: int = 1,
) -> None:
    """Fill loss (rows, wide) of logits (rows, classes) and targets int64 (rows), all contiguous.

    And, for the backward pass, normalizer (rows, 2, wide): the largest logit and log2 sum exp of what is below it.

    smoothing is the share of the target that is spread over all classes; loss is 0 where the target is ignored.
    """

def cross_entropy_backward(
    grad_loss: Array,
    logits: Array,
    targets: Array,
    normalizer: Array,
    grad_logits: Array,
    *,
    smoothing: float = 0.0,
    ignored: int = -1,
    threads: int = 1,
) -> None:
    """Fill the gradient of cross_entropy's logits, in their dtype."""

def isa() -> str:
    """The instruction set in use: "avx512_bf16", "avx512", "avx2", "portable", or "neon" (portable, on arm64)."""

def isas() -> list[str]:
    """The instruction sets that run here, best first."""

def openmp() -> str | None:
    """The file of the OpenMP runtime whose threads are used, which is torch's; None if none was found: one thread."""

def poison(on: bool) -> None:
    """Whether scratch memory is filled with NaN (all bits set) before use; for tests."""

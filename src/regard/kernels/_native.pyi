"""Type stubs of the compiled kernels, as the C++ binding defines them.

Arrays are any objects that support DLPack: torch tensors (even if they require grad), NumPy arrays, and others; in CPU
memory, all of one dtype (float32, float64, bfloat16 or float16), with any strides. The caller allocates the results,
and every element is written. "wide" below is float64 for float64 input, else float32.

Every function raises ValueError or TypeError for arguments that do not fit together, before it allocates memory,
MemoryError if memory runs out, and ValueError if the environment variable REGARD_ISA names an instruction set that does
not run here.

Options that operations share:

    low, high        query i may attend to key j only if i + low <= j <= i + high; None: no bound
    start, stop      int64 (batch,): entry b may attend to key j only if start[b] <= j < stop[b]
    row_start        int64 (batch or 1, heads or 1, query_tiles + 1), with key_tile and bitmap int32 (entries,) and
                     bitmaps int64 (distinct, 64): a tile map with tiles of 64 x 64, as in masks.tiles.TileMap
    dense            bool, broadcasts to (batch, heads, queries, keys); True: may attend
    scale            factor of the dot products of query and key
    bias             any floating dtype, broadcasts to (batch, heads, queries, keys)
    table            wide (heads or 1, distances): a bias of the distance key - position(query), where the last query
                     is aligned with the last key; its first column is for the distance table_lowest
    dropout, seed    probability of setting a weight to 0, and the seed of the random numbers
    threads          number of threads; the bits of the results do not depend on it
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

Array: TypeAlias = Any

LinearLayer: TypeAlias = tuple[Array, Array | None, Array | None, int]
"""weight (outputs, inputs), or of few bits with scale, as ``project`` reads them; bias (outputs); number of outputs."""
NormLayer: TypeAlias = tuple[Array, Array | None, float, float, bool]
"""weight and bias (width), epsilon, an offset of the weight, and whether it is a layer norm, else an RMS norm."""
RotationFactors: TypeAlias = tuple[Array, Array, bool]
"""cosine and sine (length, rotated), and whether neighbours are pairs."""

NormsOfSublayer: TypeAlias = tuple[NormLayer | None, NormLayer | None, NormLayer | None]
"""The norm before a sublayer, that of its output, and that after the sum."""
AttentionLayers: TypeAlias = tuple[
    LinearLayer, LinearLayer, LinearLayer | None, LinearLayer | None, NormLayer | None, NormLayer | None
]
"""The layers of queries, of the output, of keys and of values; and the norms of each query and key."""
AttentionOfLayer: TypeAlias = tuple[
    int, int, int, int, float, float | None, Array | None, AttentionLayers, NormsOfSublayer
]
"""heads, key_heads, head_dim, value_dim, scale, softcap and sinks; the layers, and the norms of the sublayer."""
FeedForwardOfLayer: TypeAlias = tuple[tuple[LinearLayer, LinearLayer | None, LinearLayer, str], NormsOfSublayer]
"""The layers up, gate and down with the activation, and the norms of the sublayer."""
StepOfLayer: TypeAlias = tuple[
    Array, Array, int, int, int | None, int | None, Array | None, Array | None, RotationFactors | None
]
"""The storage of keys (batch, key_heads, rows, head_dim) and of values; its rows in use, begin to end; low, high, start
and stop of the mask; and the rotation."""
PagesOfLayer: TypeAlias = tuple[
    Array, Array, Array, Array, Array | None, int | None, int | None, RotationFactors | None
]
"""Pages of keys (pages, key_heads, page_size, head_dim) and of values; the pages of each text (batch, most_pages), the
lengths of the texts (batch,) and their new tokens (batch,); low and high of the mask; and the rotation, by tokens."""

interface: int
"""Version of this interface in the compiled module; extension.py says which one it needs."""
few_tokens: int
"""Number of tokens up to which ``project`` is faster than ``linear`` and torch's products."""
assertions: bool
"""Whether ranges and indices are asserted (csrc/runtime/debug_assert.h), as in builds with sanitizers; for tests."""

def forward(
    query: Array,
    key: Array,
    value: Array,
    output: Array,
    lse: Array | None,
    *,
    normalizer: Array | None = None,
    rounding: Array | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    query_rows: Array | None = None,
    key_rows: Array | None = None,
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
    """Compute output (batch, heads, queries, value_dim) and lse (batch, heads, queries, wide) of attention.

    For the backward pass it also writes normalizer (batch, heads, queries, 2, wide), the largest score of a query and
    the logarithm of the sum, in the units of the kernels; and rounding, with the shape of output: the rounding error of
    a half-precision output, which makes the backward pass more accurate.

    softcap bounds the scaled products before the bias is added; sinks, any floating dtype, broadcasts to (batch, heads,
    queries, 1) and adds exp(sink) to the sum of a row. query_rows and key_rows, int32 (batch, heads, places), list the
    rows of query, and of key and value, that are the queries and keys; -1 is a row of zeros.
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
    softcap: float | None = None,
    sinks: Array | None = None,
    grad_sinks: Array | None = None,
    sink_weight_grad: Array | None = None,
    query_rows: Array | None = None,
    key_rows: Array | None = None,
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
    """Compute the gradients of forward's arguments, from the results of forward.

    grad_bias has the shape of bias, grad_table that of table and grad_sinks that of sinks, all wide. Gradients of
    observe's statistics are added if they are passed: grad_lse and log_weight (batch, heads, queries), column
    (batch, heads, keys),
    top_grad (batch, heads, queries, top) at top_keys (int64), rows_grad (batch, heads, rows, keys) at rows (int64),
    sink_weight_grad (batch, heads, queries).
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
    softcap: float | None = None,
    sinks: Array | None = None,
    sink_weight: Array | None = None,
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
    """Compute output and lse as forward does, and the statistics that are not None, all wide.

    entropy (batch, heads, queries), received (batch, heads, keys), top_keys (int64) and top_weights (batch, heads,
    queries, top), rows_weights (batch, heads, rows, keys) of the queries rows (int64), sink_weight (batch, heads,
    queries) with sinks.
    """

def paged(
    query: Array,
    key_pages: Array,
    value_pages: Array,
    page_table: Array,
    lengths: Array,
    counts: Array | None,
    output: Array,
    lse: Array | None,
    *,
    softcap: float | None = None,
    sinks: Array | None = None,
    scale: float = 1.0,
    low: int | None = None,
    high: int | None = None,
    threads: int = 1,
) -> None:
    """Compute output and lse of attention to a paged cache.

    key_pages and value_pages (pages, key_heads, page_size, head_dim or value_dim); page_table int32 or int64 (batch,
    max_pages) lists the pages of each entry in order; lengths int64 (batch,) is the number of keys of each entry. With
    counts int64 (sequences,) the batch has one entry, in which the queries of the sequences follow each other, and
    page_table and lengths are of sequences. Pages with keys that the band hides from all queries
    are not read. softcap and sinks as in ``forward``.
    """

def sigmoid_forward(
    query: Array,
    key: Array,
    value: Array,
    output: Array,
    *,
    score_bias: Array | None = None,
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
    """Compute output of attention with the weights sigmoid(score_ij + b_i) in place of the softmax.

    score_bias float64 (1,) is b; None: b_i is -log of the number of keys that query i may attend to. For the backward
    pass it also writes normalizer (batch, heads, queries, 2, wide), b_i and whether the result is finite.
    """

def sigmoid_backward(
    grad_output: Array,
    query: Array,
    key: Array,
    value: Array,
    normalizer: Array,
    grad_query: Array,
    grad_key: Array,
    grad_value: Array,
    grad_bias: Array | None,
    grad_table: Array | None,
    *,
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
    """Compute the gradients of sigmoid_forward's arguments; grad_bias and grad_table are wide."""

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
    """Compute output and lse of attention with the score vector . tanh(of_query_i + of_key_j).

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
    """Compute the gradients of additive_forward's arguments; grad_vector, grad_bias and grad_table are wide."""

def talking_heads_forward(
    query: Array,
    key: Array,
    value: Array,
    score_mixing: Array,
    weight_mixing: Array,
    output: Array,
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
    """Compute output and normalizer of talking-heads attention; the matrices (heads, heads) are wide."""

def talking_heads_backward(
    grad_output: Array,
    query: Array,
    key: Array,
    value: Array,
    score_mixing: Array,
    weight_mixing: Array,
    normalizer: Array,
    grad_query: Array,
    grad_key: Array,
    grad_value: Array,
    grad_score_mixing: Array,
    grad_weight_mixing: Array,
    grad_bias: Array | None,
    grad_table: Array | None,
    *,
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
    """Compute the gradients of talking_heads_forward's arguments; those of matrices, bias and table are wide."""

def dropout(tokens: Array, output: Array, *, probability: float, seed: int, threads: int = 1) -> None:
    """Set output to tokens / (1 - probability) at indices that are kept, and to 0 at those that are dropped.

    Both (count,), contiguous, of one floating dtype. The dropout mask depends on the seed and the index only.
    """

def activation(tokens: Array, gradient: Array | None, output: Array, *, activation: str, threads: int = 1) -> None:
    """Set output to the activation of tokens; with a gradient, to gradient times the derivative at tokens.

    All (count,), contiguous, of one dtype, float32 or bfloat16. The activation is named as for a feed-forward sublayer;
    with a gradient it is "gelu", "gelu_tanh", "quick_gelu" or "silu". Each result is computed in float32 and rounded
    once.
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
    """Compute loss (rows, wide) of logits (rows, classes) and targets int64 (rows), all contiguous.

    For the backward pass it also writes normalizer (rows, 2, wide): the largest logit, and log2 of the sum of
    exp(logit - largest). smoothing is the label smoothing factor; loss is 0 if the target is ignored.
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
    """Compute the gradient of cross_entropy's logits, in their dtype."""

def likeliest_class(logits: Array, banned: Array, classes: Array, log_probability: Array, *, threads: int = 1) -> None:
    """Find the most probable class of each row of logits (rows, classes), contiguous, that is not banned.

    banned (any number of classes) and classes (rows) are int64, log_probability (rows) is wide. Probabilities are those
    of all classes; where none is allowed the class is 0 and its log-probability -infinity, or NaN in a row with a NaN.
    """

def project(
    tokens: Array, weight: Array, scale: Array | None, bias: Array | None, output: Array, *, threads: int = 1
) -> None:
    """Compute output (rows, outputs) = tokens weight^T + bias of tokens (rows, inputs), all contiguous.

    Tokens, bias (outputs) and output are float32 or bfloat16; weight (outputs, inputs) has their dtype, or is in panels
    of 16 outputs and groups of 64 inputs (csrc/linear/projection_kernels.h): int8 (panels, groups, 1024) with scales
    (panels, groups, 16) in bfloat16, or int4: uint8 (panels, pairs of groups, 1024) with scales and minima (panels,
    groups, 32). With the last two, tokens are rounded to bytes. Sums are float32, and rounded once. It is made for few
    rows.
    """

def linear(
    tokens: Array,
    weight: Array,
    scale: Array | None,
    bias: Array | None,
    output: Array,
    *,
    activation: str = "identity",
    threads: int = 1,
) -> None:
    """Compute output (rows, outputs) = activation(tokens weight^T + bias) of tokens (rows, inputs).

    All are contiguous and of one dtype: float32, or with the instruction set avx512_bf16 also bfloat16, for an even
    number of inputs. Or weight and scale are of few bits, as in ``project``. Sums are float32, and rounded after the
    activation. It is made for many rows.
    """

def feed_forward_sublayer(
    tokens: Array,
    up: LinearLayer,
    gate: LinearLayer | None,
    down: LinearLayer,
    output: Array,
    *,
    activation: str = "identity",
    before: NormLayer | None = None,
    of_output: NormLayer | None = None,
    after: NormLayer | None = None,
    threads: int = 1,
) -> None:
    """Compute output (batch, length, width) = after(tokens + of_output(down(inner))) with x = before(tokens).

    inner is activation(up(x)), or with a gate activation(gate(x)) * up(x). Tokens, norms, biases and output are float32
    or bfloat16, contiguous. Each norm may be absent. The activation is "identity", "relu", "gelu", "gelu_tanh", "silu",
    "sigmoid", "relu_squared" or "quick_gelu". It is made for few rows.
    """

def attention_sublayer(
    tokens: Array,
    query: Array,
    key: Array,
    value: Array,
    mixed: Array,
    output: Array,
    *,
    query_layer: LinearLayer,
    output_layer: LinearLayer,
    key_layer: LinearLayer | None = None,
    value_layer: LinearLayer | None = None,
    before: NormLayer | None = None,
    of_output: NormLayer | None = None,
    after: NormLayer | None = None,
    query_norm: NormLayer | None = None,
    key_norm: NormLayer | None = None,
    rotation: RotationFactors | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
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
    threads: int = 1,
) -> None:
    """Compute output = after(tokens + of_output(output_layer(mixed))) with x = before(tokens).

    Tokens and output are (batch, length, width). query_layer(x) are the queries; key_layer(x) and value_layer(x), if
    they are given, are written to the last length rows of key (batch, key_heads, keys, head_dim) and value. Heads of
    queries and keys are normalized, then rotated: the first elements of each by (cosine, sine, pairs), of which cosine
    and sine are (length, rotated). Then mixed is the attention of the queries to key and value. query and mixed (batch,
    heads, length, head_dim or value_dim) are memory for both, stored as (batch, length, heads, ..). Tokens are float32
    or bfloat16. It is made for few rows.
    """

class DecoderStack:
    """The layers of a decoder for few tokens, read once for all steps.

    They are read from dicts and arrays, which hold more than the layers do: while no entry of a dict was added, taken
    away or replaced, and each array is where and as it was, the layers are right.
    """

    @staticmethod
    def read(
        layers: Sequence[tuple[AttentionOfLayer, FeedForwardOfLayer]],
        norm: NormLayer | None,
        output: LinearLayer | None,
        dicts: Sequence[dict[Any, Any]],
        arrays: Sequence[Array],
        tokens: Array,
    ) -> DecoderStack | None:
        """Read layers for tokens of this width and dtype; None if an array has to be copied to be read."""

    def is_unchanged(self) -> bool:
        """Whether the dicts and arrays from which the layers were read are as they were."""

    def step(
        self, tokens: Array, outputs: Array, logits: Array | None, steps: Sequence[StepOfLayer], *, threads: int = 1
    ) -> None:
        """Compute outputs (layers, batch, length, width) of tokens (batch, length, width), by layer after layer.

        Each layer is an attention sublayer, then a feed-forward sublayer, as the functions above compute them; the
        output of the last one is normalized, and multiplied by the output layer for logits (batch, length, outputs).
        The keys and values of the tokens are written to the last rows in use of the storage of keys and values.
        """

    def step_in_pages(
        self, tokens: Array, outputs: Array, logits: Array | None, steps: Sequence[PagesOfLayer], *, threads: int = 1
    ) -> None:
        """Compute the same for tokens (tokens, 1, width), the last ones of texts whose keys and values are in pages."""

def weight_gradient(
    tokens: Array, gradient: Array, of_weight: Array, of_bias: Array | None, *, threads: int = 1
) -> None:
    """Compute of_weight (outputs, inputs) = gradient^T tokens, and of_bias (outputs) = sum of the rows of gradient.

    tokens (rows, inputs) and gradient (rows, outputs). All are contiguous float32. It is made for many rows.
    """

def scan(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None,
    beta: Array | None,
    state: Array | None,
    output: Array,
    final_state: Array,
    *,
    scale: float = 1.0,
    threads: int = 1,
) -> bool:
    """Compute output (batch, heads, length, value_dim) and final_state (batch, heads, head_dim, value_dim, wide).

    query and key (batch, heads, length, head_dim), value (batch, heads, length, value_dim). log_decay (batch, heads,
    length, 1 or head_dim), beta (batch, heads, length, 1) and state, as final_state, may have the dtype of the others
    or be wide. None: no decay, no delta rule, a state of 0. Returns whether every log_decay is at most 0; if not, the
    results are undefined. The equations are in csrc/scan/scan.h.
    """

def scan_backward(
    grad_output: Array,
    grad_final_state: Array | None,
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None,
    beta: Array | None,
    state: Array | None,
    grad_query: Array,
    grad_key: Array,
    grad_value: Array,
    grad_log_decay: Array | None,
    grad_beta: Array | None,
    grad_state: Array | None,
    *,
    scale: float = 1.0,
    threads: int = 1,
) -> None:
    """Compute the gradients of scan's arguments, each in the dtype of its argument."""

def feature_attention(
    query: Array,
    key: Array,
    value: Array,
    projection: Array | None,
    hidden: Array | None,
    output: Array,
    sums: Array,
    log_scale: Array,
    flags: Array,
    *,
    kind: str,
    norm_factor: float,
    floor: float,
    largest_norm: float,
    causal: bool,
    threads: int = 1,
) -> None:
    """Compute attention by features: output (batch, heads, queries, value_dim), and the sums of its keys.

    query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim), value (batch, key_heads, keys,
    value_dim), projection (features, head_dim, wide, contiguous; None for "elu"), hidden bool (batch, 1 or heads, 1,
    keys), sums (batch, sum_heads, features, value_dim + 1, wide), log_scale (batch, sum_heads, wide) and flags bool
    (batch, sum_heads, 2), contiguous; sum_heads is key_heads unless causal, or hidden has several heads. kind is
    "exponential", "relu" or "elu". The equations are in csrc/scan/feature_attention.h.
    """

def feature_attention_backward(
    grad_output: Array,
    sums: Array,
    log_scale: Array,
    flags: Array,
    query: Array,
    key: Array,
    value: Array,
    projection: Array | None,
    hidden: Array | None,
    grad_query: Array,
    grad_key: Array,
    grad_value: Array,
    *,
    kind: str,
    norm_factor: float,
    floor: float,
    largest_norm: float,
    causal: bool,
    threads: int = 1,
) -> None:
    """Compute the gradients of feature_attention's query, key and value; causal, if key_heads is heads."""

def convolve_tokens(
    from_: Array, filters: Array, base: Array | None, into: Array, offset: int, *, threads: int = 1
) -> None:
    """Compute into_i = base_i + sum_t filter_t from_(i + offset + t - size // 2), for one filter a head.

    from_ (batch, sources, keys, channels), base and into (batch, heads, queries, channels), float32 or float64, filters
    (the larger of sources and heads, size), contiguous. Heads share a source, or one is the sum of several.
    """

def differentiate_filters(output: Array, from_: Array, into: Array, offset: int, *, threads: int = 1) -> None:
    """Compute the gradients of filters, into (heads, size), from those of output (batch, heads, queries, channels)."""

def bucket_cells(
    query_token: Array,
    key_token: Array,
    query_buckets: Array,
    key_buckets: Array,
    row_start: Array,
    key_tile: Array,
    bitmaps: Array,
    *,
    earlier: int = 0,
    buckets: int = 0,
    high: int | None = None,
    own: int | None = None,
    chunk: int = 0,
    last_chunk: Array | None = None,
    threads: int = 1,
) -> None:
    """Write the bitmaps (entries, 64) of a tile map over sorted tokens: which queries may attend to which keys.

    query_token and key_token int32 (groups, places) are the tokens at each place, -1 for none; query_buckets and
    key_buckets int32 (groups, tokens, rounds), contiguous; row_start int64 (groups, query_tiles + 1) and key_tile int32
    (entries,) list the tiles. A pair is left out if key - query is above high or is own, in indices of tokens, or if
    any of the first rounds, as many as earlier says, has both in one bucket; bucket numbers are below buckets, and -1
    is none. With chunk, the number of places in a chunk, a query attends to its own chunk and to the one before; before
    the first chunk of a round is the one of last_chunk int64 (groups,), counted within a round, of the round before it,
    cyclically.
    """

def hash_tokens(tokens: Array, rotations: Array, factors: Array, buckets: Array, *, threads: int = 1) -> None:
    """Write the buckets (batch, heads, length, rounds) int64 of tokens (batch, heads, length, head_dim) float32.

    rotations float32 (heads, rounds, head_dim, columns); factors int64, even, with twice as many columns as their sum
    has halves. The bucket of a factor is the index of the largest of [x R; -x R], of sums in float64 (token_hash.h).
    """

def count_buckets(codes: Array, sizes: Array, *, threads: int = 1) -> None:
    """Write how many tokens each bucket has: sizes int64 (groups, rounds, buckets + 2).

    codes int32 (groups, tokens, rounds) are below buckets, and -1 is none: the last two numbers count tokens without a
    bucket in this round, and those without one in any round, which are not in the former.
    """

def sort_by_bucket(codes: Array, start: Array, token: Array, place: Array, *, threads: int = 1) -> None:
    """Write the token at each place and the place of each token, from the first place of each bucket.

    codes as for count_buckets; start int64 (groups, rounds, buckets + 2), -1 for no place; token int32 (groups, places)
    and place int32 (groups, rounds, tokens), -1 for none. Tokens of a bucket are in order.
    """

def list_bucket_tiles(
    query_token: Array,
    key_token: Array,
    query_start: Array,
    key_start: Array,
    row_start: Array,
    key_tile: Array,
    *,
    high: int | None = None,
) -> int:
    """Write a tile map's row_start and key_tile: for each tile of queries the tiles of keys of its bucket.

    query_token and key_token int32 (groups, places); query_start and key_start int64 (groups, buckets + 1), the first
    tile of each bucket. Tiles whose keys all have key - query above high are left out. Returns the number of entries of
    key_tile, which may have room for more.
    """

def divide_rows(rows: Array, divided: Array, *, threads: int = 1) -> None:
    """Divide rows (batch, heads, tokens, size), float32 or float64, by the root of their mean square and 1e-6.

    divided has the shape of rows; both have contiguous rows. A row with NaN or Inf becomes NaN. The equation is in
    csrc/buckets/sorted_rows.h.
    """

def sort_gradients(
    grad_output: Array,
    output: Array,
    normalizer: Array,
    token: Array,
    sorted_normalizer: Array,
    grad_lse: Array,
    *,
    threads: int = 1,
) -> None:
    """Copy normalizer to places, and write grad_lse, -grad_output . output (batch, heads, places).

    token int32 (batch * heads, places), -1 for none.
    """

def merge_rounds(
    sorted_rows: Array,
    sorted_normalizer: Array,
    place: Array,
    output: Array,
    normalizer: Array,
    *,
    factor: float = 1.0,
    first: bool = True,
    last: bool = True,
    threads: int = 1,
) -> None:
    """Merge the results at the places of each token, int32 (batch * heads, rounds, tokens), into one softmax.

    Without first, output and normalizer hold what earlier calls, without last, left there.
    """

def add_rows(
    sorted_rows: Array, place: Array, into: Array, *, divided: Array | None = None, first: bool = True, threads: int = 1
) -> None:
    """Add the rows at the places of each token to into; with first, write their sum.

    divided (batch, heads, tokens, size): rows that sort_rows divided. Then sorted_rows are gradients of the quotients,
    and what is added is the gradient of the rows.
    """

def highest_keys(
    query: Array,
    key: Array,
    weight: Array | None,
    positions: Array,
    *,
    first: Array | None = None,
    summed: bool | None = None,
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
    """Write positions int32 (batch, heads, queries, count): the keys with the highest scores, ascending, then -1.

    query (batch, score_heads, queries, head_dim), key (batch, key_heads, keys, head_dim). The score is query . key; if
    summed, sum_h weight_h relu(query_h . key), with weight (batch, score_heads, queries, 1) or 1, and one key head.
    first bool (batch, heads or 1, 1, keys) marks keys that come before all others. Of the options, the mask is read.
    float64 is not supported.
    """

def chosen_blocks_forward(
    query: Array,
    key: Array,
    value: Array,
    chosen: Array,
    output: Array,
    normalizer: Array,
    *,
    block: int,
    stop: Array | None = None,
    scale: float = 1.0,
    threads: int = 1,
) -> None:
    """Compute output and normalizer of causal attention to the own block of each query and to chosen complete ones.

    chosen is bool (batch, heads, queries, blocks). block is a multiple of 64. Keys from stop int64 (batch) on are
    hidden. scale is above 0. float32 and float64.
    """

def chosen_blocks_backward(
    grad_output: Array,
    query: Array,
    key: Array,
    value: Array,
    chosen: Array,
    output: Array,
    normalizer: Array,
    grad_query: Array,
    grad_key: Array,
    grad_value: Array,
    *,
    block: int,
    stop: Array | None = None,
    scale: float = 1.0,
    threads: int = 1,
) -> None:
    """Compute the gradients of chosen_blocks_forward, from its output and normalizer."""

def block_importance(
    query: Array,
    key: Array,
    visible: Array,
    chosen: Array,
    certain: Array,
    *,
    block: int,
    compressed_block: int,
    stride: int,
    count: int,
    threads: int = 1,
) -> None:
    """Choose count blocks before the own one of each query by the weights of compressed attention.

    query is not float64. key float32 (batch, key_heads, compressed, head_dim) are compressed keys times the scale,
    visible int64 (batch or 1, queries) the number of keys that each query may see. chosen bool (batch, key_heads,
    queries, blocks) is written, and certain bool (batch, key_heads, queries): whether the choice is that of exact
    weights.
    """

def gathered_forward(
    query: Array,
    key: Array,
    value: Array,
    positions: Array,
    output: Array,
    *,
    scale: float = 1.0,
    dropout: float = 0.0,
    seed: int = 0,
    threads: int = 1,
) -> None:
    """Compute output of attention to the keys at positions int32 (batch, 1, key_heads or heads, queries, count).

    Positions are ascending, then -1. scale is above 0.
    """

def gathered_backward(
    grad_output: Array,
    query: Array,
    key: Array,
    value: Array,
    positions: Array,
    grad_query: Array,
    grad_key: Array,
    grad_value: Array,
    *,
    scale: float = 1.0,
    dropout: float = 0.0,
    seed: int = 0,
    threads: int = 1,
) -> None:
    """Compute the gradients of gathered_forward's arguments."""

def isa() -> str:
    """The instruction set in use: "avx512_amx", "avx512_bf16", "avx512", "avx2", "portable", or "neon" (on arm64)."""

def uses_dot_products() -> bool:
    """Return whether an Arm processor's products of bytes (FEAT_DotProd) multiply weights of few bits."""

def isas() -> list[str]:
    """List the instruction sets that run on this machine, best first."""

def openmp() -> str | None:
    """Return the path of torch's OpenMP runtime if its threads are used; None if the module uses its own."""

def parallel_counts() -> list[int]:
    """Return how many teams of threads were gathered so far, and how many stages of regions were computed."""

def record_task_times(on: bool) -> None:
    """Turn on or off that the calling thread computes each task and its time is recorded; for a model of many cores."""

def take_task_times() -> list[list[int]]:
    """Return the recorded nanoseconds of the tasks of each stage, in order, and forget them."""

def poison(on: bool) -> None:
    """Turn on or off that scratch memory is filled with NaN (all bits set) before use; for tests."""

// What one instruction set offers: a table of functions for each kind of arithmetic. `kernels.cpp` is compiled once for
// each instruction set and fills them; the drivers, compiled for any CPU, call through them.
#pragma once

#include "drivers.h"
#include "problem.h"

namespace regard {

// Keys and values of one call in the layout of the kernels, for each (batch, key head):
//     key     key_tiles x [units of head_dim][64]       transposed, so that 64 scores are computed side by side
//     value   key_tiles x [64 / per unit][padded value_dim]
//     bad     key_tiles words: bit j is set where key j holds a NaN or Inf; its numbers are zeros in key and value
struct PackedKeys {
    char* key;
    char* value;
    uint64_t* bad;
    size_t key_bytes, value_bytes;  // of one tile
};

// What the backward pass is given, beside the problem: dO, and what the forward pass left. The others are gradients of
// statistics (see observe.h), and may be absent.
struct BackwardInputs {
    Array grad_output, output, normalizer, rounding;
    Array grad_lse;        // (batch, heads, queries)
    Array log_weight;      // a_i (batch, heads, queries): adds a_i ln w_ij to D_ij
    Array column;          // g_j (batch, heads, keys): adds g_j
    Array top_keys, top;   // (batch, heads, queries, top): adds top to D at those keys
    Array rows, rows_weights;  // (rows) query indices; (batch, heads, rows, keys) added to D of those queries

    REGARD_INLINE bool has_statistics() const { return log_weight || column || top || rows_weights; }
};

// Bytes of one tile, under the names of BackwardTiles, and of what a task works with.
struct BackwardSizes {
    size_t key, key_rows, value, query, query_rows, output, output_rows, row_numbers, grad_query, weights;
    size_t scratch, pack_scratch, number;
};

// Tokens of one (batch, key head) in the layout of the backward pass, tile after tile; queries of the heads that share
// the key head one head after the other.
struct BackwardTiles {
    char *key, *key_rows, *value;                      // columns for scores; rows for dQ; columns for D
    char *query, *query_rows, *output, *output_rows;   // rows for scores and D; paired rows for dK and dV
    char *largest, *log_sum;                           // the normalizer of each query
    char *delta, *active;                              // sum_j w D; bit i: query i takes part
    char* weights;  // null, or those of each head and tile of keys, and what they are relative to: see normalize_strip
    const BackwardSizes* size;
};

struct BackwardResults {
    char* grad_query;            // sums of this range, before the scale: group x query_tiles x 64 x padded head_dim
    int64_t first_query_tile, past_query_tile;  // that the band lets see these keys: other sums are not written
    Array key, value;            // dK and dV, written
    Array bias, table;           // added to; in the dtype of sums
    bool grad_bias, grad_table;  // whether they are wanted
    Array vector;                // additive attention: (batch, heads, key_tiles, head_dim), parts of dv, written
};

// Where observing writes. `normals` lie between its passes: normal_bytes for each (batch, head, query).
struct ObserveOutputs {
    ForwardResults results;
    Statistics statistics;
    char* normals;
};

inline constexpr int64_t max_decode_rows = 64;  // of a chunk of decoding, at most: they are counted in the bits of a word
inline constexpr int64_t max_chunk_tiles = 64;  // key tiles in a chunk of decoding, at most
inline constexpr int64_t dropout_block = 16384;  // numbers in a block: fewer would not be worth another thread

struct Kernels {
    const char* isa;
    const Kernels* additive;  // forward and backward of additive attention, in the same form (additive.h)

    // ---- packing: bytes of one tile, and the packing of one tile of one (batch, key head) ----
    size_t (*key_bytes)(const Problem&);
    size_t (*value_bytes)(const Problem&);
    size_t (*pack_scratch)(const Problem&);
    void (*pack_keys)(const Problem&, int64_t batch, int64_t key_head, int64_t key_tile, char* key, char* value,
                      uint64_t* bad, char* scratch);

    // ---- forward: one tile of queries of one head. `keys` are those of its (batch, key head). lse may be absent ----
    size_t (*forward_scratch)(const Problem&);
    void (*forward)(const Problem&, const PackedKeys& keys, int64_t batch, int64_t head, int64_t query_tile,
                    const ForwardResults& results, char* scratch);

    // ---- backward: see backward.h ----
    BackwardSizes (*backward_sizes)(const Problem&);
    void (*backward_pack_keys)(const Problem&, int64_t batch, int64_t key_head, int64_t key_tile,
                               const BackwardTiles& into, char* scratch);
    void (*backward_pack_queries)(const Problem&, const BackwardInputs&, int64_t batch, int64_t head,
                                  int64_t query_tile, const BackwardTiles& into, int64_t in_group, char* scratch);
    void (*backward_prepare_queries)(const Problem&, const BackwardInputs&, const BackwardTiles&, int64_t batch,
                                     int64_t head, int64_t in_group, int64_t query_tile, char* scratch);
    void (*backward)(const Problem&, const BackwardInputs&, const BackwardTiles&, const BackwardResults&, int64_t batch,
                     int64_t key_head, int64_t first_key_tile, int64_t stop_key_tile, char* scratch);
    void (*backward_finish_queries)(const Problem&, int64_t batch, int64_t head, int64_t query_tile, char* buffers,
                                    size_t step, int64_t count, const Array& grad_query);

    // ---- decoding: all queries of one key head against one chunk of its keys, and the joining of chunks (decode_chunk.h) ----
    // A chunk is the key tiles first .. stop - 1. What it leaves takes `decode_partial_bytes` bytes, those of one (batch, key head)
    // one after the other. Without pages (null) the keys are the problem's.
    size_t (*decode_partial_bytes)(const Problem&);
    size_t (*decode_scratch)(const Problem&);
    void (*decode_chunk)(const Problem&, const Pages* pages, int64_t batch, int64_t key_head, int64_t first_tile,
                         int64_t stop_tile, char* partials, char* scratch);
    void (*decode_join)(const Problem&, char* partials, int64_t count, int64_t batch, int64_t key_head,
                        const ForwardResults& results);

    // ---- observe (see observe.h): forward with statistics; then what keys first .. stop - 1 received, at most
    // received_tiles tiles; then the weights of one asked row ----
    size_t normal_bytes;
    int64_t received_tiles;
    size_t (*observe_scratch)(const Problem&, int64_t top);
    void (*observe)(const Problem&, const PackedKeys& keys, int64_t batch, int64_t head, int64_t query_tile,
                    const ObserveOutputs&, char* scratch);
    size_t (*received_scratch)(const Problem&);
    void (*observe_received)(const Problem&, const PackedKeys& keys, int64_t batch, int64_t head, int64_t first_key_tile,
                     int64_t stop_key_tile, const ObserveOutputs&, char* scratch);
    size_t (*row_scratch)(const Problem&);
    void (*observe_row)(const Problem&, const PackedKeys& keys, int64_t batch, int64_t head, int64_t index, const ObserveOutputs&,
                char* scratch);

    // ---- the register tile by itself, as many products as that: see throughput_probe.h ----
    size_t multiply_bytes;
    int64_t products;
    void (*multiply)(char* scratch);

    // ---- beside attention: dropout of one block of an array; the cross-entropy of one row of logits ----
    void (*dropout)(const DropoutArguments&, int64_t block);
    void (*cross_entropy)(const CrossEntropyArguments&, const CrossEntropyResults&, int64_t row);
    void (*cross_entropy_backward)(const CrossEntropyArguments&, const CrossEntropyGradients&, int64_t row);
};

// The tables: null where this build has none for the instruction set. Dtype is that of query, key and value.
namespace avx512_bf16 { const Kernels* kernels(Dtype); }
namespace avx512 { const Kernels* kernels(Dtype); }
namespace avx2 { const Kernels* kernels(Dtype); }
namespace portable { const Kernels* kernels(Dtype); }

// The table of the instruction set in use (see cpu.h).
const Kernels& kernels_for(Dtype);
REGARD_INLINE const Kernels& kernels_for(const Problem& p) {
    const Kernels& k = kernels_for(p.query.dtype);
    return p.vector ? *k.additive : k;
}

}  // namespace regard

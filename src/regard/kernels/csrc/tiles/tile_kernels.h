// The kernels of one instruction set for attention by tiles of 64 queries and 64 keys. The dot product, its sigmoid and
// additive attention have a table each; the drivers (attention.cpp, backward.cpp) are the same.
#pragma once

#include "drivers.h"
#include "tiles/problem.h"

namespace regard {

// Keys and values of one call in the layout of the kernels, for each (batch, key head):
//     key     key_tiles x [units of head_dim][64]       transposed, so that 64 scores are computed side by side; for
//                                                       the matrix unit the units are filled up to a multiple of 16
//     value   key_tiles x [64 / per unit][padded value_dim]
//     bad     key_tiles words: bit j is set if key j has NaN or Inf; its numbers are zeros in key and value
// Keys and values are right operands of products, in panels of columns (right_operand.h).
struct PackedKeys {
    char* key;
    char* value;
    uint64_t* bad;
    size_t key_bytes, value_bytes;  // of one tile
    char* pack_scratch = nullptr;   // if set, there is room for one group of tiles, which a kernel packs itself
};

// Inputs of the backward pass besides the problem: dO and results of the forward pass. The others are gradients of
// statistics (see observe.h), and may be absent.
struct BackwardInputs {
    Array grad_output, output, normalizer, rounding;
    Array grad_lse;        // (batch, heads, queries)
    Array log_weight;      // a_i (batch, heads, queries): adds a_i ln w_ij to D_ij
    Array column;          // g_j (batch, heads, keys): adds g_j
    Array top_keys, top;   // (batch, heads, queries, top): adds top to D at those keys
    Array rows, rows_weights;  // (rows) query indices; (batch, heads, rows, keys) added to D of those queries
    Array sink_weight;     // (batch, heads, queries): D of the sink
    Array sink_rows;       // (batch, heads, queries): written, the gradient of the sink of each query; or absent

    REGARD_INLINE bool has_statistics() const { return log_weight || column || top || rows_weights; }
};

// Sizes in bytes: of one tile in each array of BackwardTiles, of the scratch memory of a task, and of a number.
struct BackwardSizes {
    size_t key, key_rows, value, query, query_rows, output, output_rows, row_numbers, grad_query, weights;
    size_t scratch, pack_scratch, number;
};

// Tokens of one (batch, key head) in the layout of the backward pass, tile after tile; queries of the heads that share
// the key head one head after the other.
struct BackwardTiles {
    char *key, *key_rows, *value;                      // columns for scores; rows for dQ; columns for D
    char *query, *query_rows, *output, *output_rows;   // rows for scores and D; paired rows (for the matrix unit,
                                                       // columns of them) for dK and dV
    char *largest, *log_sum;                           // the normalizer of each query
    char *delta, *active;                              // sum_j w D; bit i: query i takes part
    char* weights;  // null, or saved weights of each head and key tile, and their largest scores: see SavedWeights
    const BackwardSizes* size;
};

struct BackwardResults {
    char* grad_query;            // sums of this range, added to: group x query_tiles x 64 x padded head_dim; no scale yet
    TileRange query_tiles;       // those that the band lets attend to these keys
    Array key, value;            // dK and dV, written
    Array bias, table;           // added to; in the dtype of sums
    bool grad_bias, grad_table;  // whether they are requested
    Array vector;                // additive attention: (batch, heads, key_tiles, head_dim), parts of dv, written
};

struct TileKernels {
    // ---- packing: bytes of one tile, and the packing of one tile of one (batch, key head) ----
    size_t (*key_bytes)(const Problem&);
    size_t (*value_bytes)(const Problem&);
    size_t (*pack_scratch)(const Problem&);
    void (*pack_keys)(const Problem&, int64_t batch, int64_t key_head, int64_t key_tile, char* key, char* value,
                      uint64_t* bad, char* scratch);

    // ---- forward: one tile of queries of one head. `keys` are those of its (batch, key head). lse may be absent ----
    int64_t group;  // most key tiles in a group
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
};

}  // namespace regard

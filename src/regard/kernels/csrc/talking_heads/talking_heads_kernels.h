// Talking-heads attention: the arguments of its drivers, and the kernels of one instruction set. A task computes all heads
// of a tile of queries, since the weights of each depend on the scores of all.
#pragma once

#include "drivers.h"
#include "tiles/problem.h"

namespace regard {

// The trained matrices (heads, heads) in the dtype of sums, each from a head (row) to a head (column).
struct TalkingHeads {
    Array score_mixing, weight_mixing;
};
void talking_heads_forward(const Problem& problem, const TalkingHeads& mixing, const ForwardResults& results, int threads);

struct TalkingHeadsGradients : TokenGradients {
    Array score_mixing, weight_mixing;  // in the dtype of sums
};
void talking_heads_backward(const Problem& problem, const TalkingHeads& mixing, const Array& normalizer,
                            const TalkingHeadsGradients& gradients, int threads);

// What a range of key tiles of one entry of the batch adds to.
struct TalkingHeadsSums {
    char* grad_query;            // heads x query_tiles x 64 x padded head_dim, written; no scale yet
    char* mixing;                // 2 x heads x heads, written: terms of the gradients of the two matrices
    Array bias, table;           // added to
    bool grad_bias, grad_table;  // whether they are requested
};

struct TalkingHeadsKernels {
    size_t number;  // bytes of a number of sums

    // Packed tokens of one entry of the batch: see TalkingTokens. Tasks write a tile of keys, or of queries, each.
    size_t (*bytes)(const Problem&, bool backward);
    size_t (*pack_scratch)(const Problem&);
    void (*pack_keys)(const Problem&, int64_t batch, int64_t key_head, int64_t key_tile, bool backward, char* tokens,
                      char* scratch);

    size_t (*forward_scratch)(const Problem&);
    void (*forward)(const Problem&, const TalkingHeads&, int64_t batch, int64_t query_tile, char* tokens,
                    const ForwardResults& results, char* scratch);

    // Backward: prepare_queries packs a tile of queries after all keys of the entry are packed, and reads all of them.
    size_t (*prepare_scratch)(const Problem&);
    void (*prepare_queries)(const Problem&, const TalkingHeads&, const Array& grad_output, const Array& normalizer,
                            int64_t batch, int64_t query_tile, char* tokens, char* scratch);
    size_t (*backward_scratch)(const Problem&);
    size_t (*grad_query_bytes)(const Problem&);
    void (*backward)(const Problem&, const TalkingHeads&, const TalkingHeadsGradients&, const TalkingHeadsSums&,
                     int64_t batch, int64_t first_key_tile, int64_t stop_key_tile, char* tokens, char* scratch);
    void (*finish_queries)(const Problem&, int64_t batch, int64_t head, int64_t query_tile, const char* sums, size_t step,
                           int64_t count, const Array& grad_query);
};

}  // namespace regard

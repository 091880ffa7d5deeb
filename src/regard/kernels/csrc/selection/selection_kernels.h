// Attention to chosen keys, and the choice of keys by their scores: what one instruction set offers for them. Compiled
// apart from the other kernels (selection_kernels.cpp), so that neither waits for the other. The drivers are
// gathered_keys.cpp, chosen_blocks.cpp, chosen_blocks_backward.cpp and choice.cpp; the equations are in the headers
// gathered_keys.h, chosen_blocks.h, highest_keys.h and block_importance.h.
#pragma once

#include "drivers.h"
#include "tiles/problem.h"
#include "tiles/tile_kernels.h"

namespace regard {

inline constexpr int64_t gathered_block = 16;  // queries of a task

// Keys, values and flags of one (batch, key head), widened to the type of sums, in rows of whole vectors.
struct GatheredTokens {
    char *key, *value;
    uint64_t* bad;  // bit j % 64 of word j / 64: key j has NaN or Inf in key or value; its numbers are zeros
    bool any_bad;   // whether there is such a key
};

// What the passes of the backward pass leave to each other for one (batch, key head) and some queries:
struct GatheredGradients {
    int64_t first, count;     // the queries
    int64_t ranges, step;     // ranges of keys, and the number of keys of each
    char *query, *output;     // rows of queries and of dO, (heads of the group, count, ..)
    char *score, *weight;     // dS and the weights of values, (heads of the group, count, chosen)
    int32_t* position;        // (heads of the group, count, chosen): the keys
    int32_t* start;           // (heads of the group, count, ranges + 1): where each range begins among these keys
    char *grad_key, *grad_value;  // sums: rows of all keys, added to
};

struct GatheredKernels {
    size_t number;
    int64_t (*row)(int64_t width);  // numbers in a row of whole vectors
    // Keys of one tile: rows in `tokens`.
    void (*pack)(const Problem&, int64_t batch, int64_t key_head, int64_t key_tile, const GatheredTokens& tokens);
    size_t (*scratch)(const GatheredArguments&);
    void (*forward)(const GatheredArguments&, const GatheredTokens&, int64_t batch, int64_t key_head, int64_t first,
                    int64_t stop, char* scratch);
    // dQ of the queries first .. stop - 1, and what `accumulate` needs.
    void (*backward)(const GatheredArguments&, const GatheredTokens&, const GatheredGradients&, int64_t batch,
                     int64_t key_head, int64_t first, int64_t stop, char* scratch);
    // Adds to dK and dV of one range of keys.
    void (*accumulate)(const GatheredArguments&, const GatheredGradients&, int64_t range);
    // Writes the rows first .. stop - 1 of dK and dV.
    void (*finish)(const GatheredArguments&, const GatheredGradients&, int64_t batch, int64_t key_head, int64_t first,
                   int64_t stop);
};

// Keys of one (batch, key head) for the choice, in float32: key_tiles x [head_dim][64], and for each tile the keys with
// NaN or Inf, whose numbers are zeros, and the largest norm.
struct ChoiceKeys {
    float* key;
    uint64_t* bad;
    double* norm;
};

// What choice.cpp offers to all instruction sets: templates of the standard library must not be compiled for any.
struct ExactChoice {
    float (*score)(const HighestArguments&, const float* query, const float* weight, int64_t weight_step,
                   int64_t query_step, const float* key);
    void (*keep_lowest)(uint64_t* codes, int64_t count, int64_t keep);
};

struct ChoiceKernels {
    void (*pack)(const HighestArguments&, int64_t batch, int64_t key_head, int64_t key_tile, const ChoiceKeys& into,
                 char* scratch);
    size_t (*pack_scratch)(const HighestArguments&);
    size_t (*scratch)(const HighestArguments&);
    void (*choose)(const HighestArguments&, const ChoiceKeys&, const ExactChoice&, int64_t batch, int64_t head,
                   int64_t query_tile, char* scratch);
};

// The parts of the queries first .. first + queries - 1 of one head: see chosen_blocks.cpp.
struct ChosenParts {
    int64_t first, queries;
    char *output, *normalizer;      // rows of whole vectors, and two numbers for each row
    const int64_t *start, *slot;    // the rows of query first + i: i, and queries + slot[start[i] .. start[i + 1] - 1]
};

// Sums of dK and dV of some tiles of keys: rows of whole vectors.
struct KeySums {
    char *key, *value;
};

struct ChosenKernels {
    size_t number;
    int64_t (*row)(int64_t width);  // numbers in a row of whole vectors
    size_t (*scratch)(const ChosenArguments&, int64_t most_parts);
    // Copies queries of a head side by side.
    void (*gather)(const Problem&, int64_t batch, int64_t head, const int64_t* queries, int64_t count, char* to);
    // Writes output and normalizer of the queries first .. stop - 1 of a head.
    void (*join)(const ChosenArguments&, const ChosenParts&, int64_t batch, int64_t head, int64_t first, int64_t stop,
                 char* scratch);
    // Adds the terms of the one tile of queries of a problem with one head to results.grad_query and to `sums`; `scratch`
    // is that of TileKernels::backward.
    void (*add_query_tile)(const Problem&, const BackwardTiles&, const BackwardResults&, const KeySums& sums,
                           char* scratch);
    // Writes dK and dV of one tile of keys.
    void (*write_keys)(const Problem&, const KeySums& sums, const Array& grad_key, const Array& grad_value, int64_t batch,
                       int64_t key_head, int64_t key_tile);
};

struct ImportanceKernels {
    void (*pack)(const ImportanceArguments&, int64_t batch, int64_t key_head, int64_t key_tile, const ChoiceKeys& into,
                 char* scratch);
    size_t (*pack_scratch)(const ImportanceArguments&);
    size_t (*scratch)(const ImportanceArguments&);
    void (*choose)(const ImportanceArguments&, const ChoiceKeys&, int64_t first_bad, double norm, int64_t batch,
                   int64_t key_head, int64_t query_tile, char* scratch);
};

// By the dtype of query, key and value. Compared with AVX-512, AVX512_BF16 adds nothing here: products are in float32 or
// float64.
namespace avx512 {
const GatheredKernels& gathered_kernels(Dtype);
const ChoiceKernels& choice_kernels();
const ChosenKernels& chosen_kernels(Dtype);
const ImportanceKernels& importance_kernels();
}
namespace avx2 {
const GatheredKernels& gathered_kernels(Dtype);
const ChoiceKernels& choice_kernels();
const ChosenKernels& chosen_kernels(Dtype);
const ImportanceKernels& importance_kernels();
}
namespace portable {
const GatheredKernels& gathered_kernels(Dtype);
const ChoiceKernels& choice_kernels();
const ChosenKernels& chosen_kernels(Dtype);
const ImportanceKernels& importance_kernels();
}

}  // namespace regard

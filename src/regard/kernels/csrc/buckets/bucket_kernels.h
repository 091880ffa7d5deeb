// Attention in hash buckets, besides attention itself: the hash of tokens, and copies between tokens and their places
// among sorted ones. What one instruction set offers for them, compiled apart from the other kernels
// (bucket_kernels.cpp). The drivers are token_hash.cpp and sorted_rows.cpp; the equations are in token_hash.h and
// sorted_rows.h.
#pragma once

#include "buckets/sorted_tokens.h"

namespace regard {

inline constexpr int64_t hash_block = 64;    // tokens of a task
inline constexpr int64_t rows_block = 128;   // rows of a task
inline constexpr int64_t column_block = 16;  // numbers in whole vectors of every instruction set
inline constexpr int64_t max_row = 640;      // numbers of a row whose gradients are added

// The rotations of one head in one round: (head_dim, width), each factor's columns followed by zeros up to whole vectors.
struct PackedRotation {
    const float* columns;
    int64_t width;
    float largest;  // no number is larger
};

struct HashKernels {
    // Buckets of the tokens first .. stop - 1 in one round. `products` has room for 4 rows of the rotation's width.
    void (*hash)(const HashArguments&, const PackedRotation&, int64_t batch, int64_t head, int64_t round, int64_t first,
                 int64_t stop, float* products);
};

// Each computes the rows first .. stop - 1 of one (batch, head).
struct RowKernels {
    void (*divide_rows)(const DividedRows&, int64_t batch, int64_t head, int64_t first, int64_t stop);
    void (*sort_gradients)(const SortedGradients&, int64_t batch, int64_t head, int64_t first, int64_t stop);
    void (*merge)(const MergedRounds&, int64_t batch, int64_t head, int64_t first, int64_t stop);
    void (*add)(const AddedRows&, int64_t batch, int64_t head, int64_t first, int64_t stop);
};

// Compared with AVX-512, AVX512_BF16 adds nothing here: numbers are float32 or float64.
namespace avx512 { const HashKernels& hash_kernels(); const RowKernels& row_kernels(Dtype); }
namespace avx2 { const HashKernels& hash_kernels(); const RowKernels& row_kernels(Dtype); }
namespace portable { const HashKernels& hash_kernels(); const RowKernels& row_kernels(Dtype); }

}  // namespace regard

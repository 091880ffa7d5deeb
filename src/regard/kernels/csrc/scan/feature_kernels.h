// Attention by features of queries and keys: what one instruction set offers for it, compiled apart from the other kernels
// (feature_kernels.cpp). The driver is feature_attention.cpp, the equations are in feature_attention.h.
#pragma once

#include "scan/features.h"

namespace regard {

inline constexpr int64_t feature_chunk = 64;  // tokens

// Sums over keys of one head, in memory of the kernels: with the root sums of a pass, or their gradients.
struct FeatureKernels {
    // The projection in the layouts of products, for all tasks of a call.
    size_t (*projection_bytes)(const FeatureArguments&);
    void (*pack_projection)(const FeatureArguments&, char* projection);
    size_t (*scratch)(const FeatureArguments&);
    size_t (*sums_bytes)(const FeatureArguments&);

    void (*clear)(const FeatureArguments&, char* sums);
    void (*copy)(const FeatureArguments&, const char* from, char* to);
    // Adds the keys first .. stop - 1 to sums.
    void (*sum_keys)(const FeatureArguments&, int64_t batch, int64_t sum_head, int64_t first, int64_t stop,
                     const char* projection, char* sums, char* scratch);
    // Every query sees all keys: the sums of several ranges, and the outputs of queries.
    void (*join)(const FeatureArguments&, const FeatureResults&, int64_t batch, int64_t sum_head, int64_t ranges,
                 char* const* sums);
    void (*attend)(const FeatureArguments&, const FeatureResults&, int64_t batch, int64_t head, int64_t first,
                   int64_t stop, const char* projection, const char* sums, char* scratch);
    // Query i sees the keys up to i: the outputs first .. stop - 1, from the sums of the keys before, to which theirs are
    // added.
    void (*attend_causally)(const FeatureArguments&, const FeatureResults&, int64_t batch, int64_t head, int64_t first,
                            int64_t stop, const char* projection, char* sums, char* scratch);

    // Backward, where every query sees all keys. `read_sums` reads those of the forward pass.
    void (*read_sums)(const FeatureArguments&, const FeatureResults&, int64_t batch, int64_t sum_head, char* sums);
    // Gradients of the queries first .. stop - 1 of a head, which are added to those of the sums.
    void (*query_gradients)(const FeatureArguments&, const FeatureGradients&, int64_t batch, int64_t head, int64_t first,
                            int64_t stop, const char* projection, const char* sums, char* of_sums, char* scratch);
    void (*join_gradients)(const FeatureArguments&, int64_t ranges, char* const* of_sums);
    // Gradients of the keys and values first .. stop - 1, from the gradients of all sums that they are in.
    void (*key_gradients)(const FeatureArguments&, const FeatureGradients&, int64_t batch, int64_t key_head,
                          int64_t first, int64_t stop, const char* projection, char* const* sums, char* const* of_sums,
                          char* scratch);
    // Causally, those of a head, with memory for the sums before each chunk.
    size_t (*saved_bytes)(const FeatureArguments&);
    void (*causal_gradients)(const FeatureArguments&, const FeatureGradients&, int64_t batch, int64_t head,
                             const char* projection, char* saved, char* of_sums, char* scratch);
};

// Compared with AVX-512, AVX512_BF16 adds nothing here: products are in the dtype of sums.
namespace avx512 { const FeatureKernels& feature_kernels(Dtype); }
namespace avx2 { const FeatureKernels& feature_kernels(Dtype); }
namespace portable { const FeatureKernels& feature_kernels(Dtype); }

}  // namespace regard

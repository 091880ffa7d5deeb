// Attention by features: its arguments, and the drivers (feature_attention.cpp), as drivers.h has them for other kernels.
#pragma once

#include "tiles/problem.h"

namespace regard {

// Attention whose weights are products of features of the query and of the key (scan/feature_attention.h). query (batch,
// heads, queries, head_dim), key (batch, key_heads, keys, head_dim), value (batch, key_heads, keys, value_dim);
// projection (features, head_dim), contiguous and in the dtype of sums, or absent where the features are of the tokens
// themselves; hidden (batch, 1 or heads, 1, keys), bool: keys that no query sees, or absent.
enum class FeatureMap { exponential, relu, elu };
struct FeatureArguments {
    Array query, key, value, projection, hidden;
    int64_t batch = 0, heads = 0, key_heads = 0, queries = 0, keys = 0, head_dim = 0, value_dim = 0, features = 0;
    FeatureMap map = FeatureMap::exponential;
    double norm_factor = 0;   // the logarithm of a key's weight is its largest product minus this times |k|^2
    double floor = 0;         // added to each feature of a key, or the least one (elu)
    double largest_norm = 0;  // tokens with a norm from here on are as those with NaN
    bool causal = false;      // query i sees the keys up to i; else all

    // Heads whose sums differ: those of the keys, unless the keys that are hidden do.
    REGARD_INLINE int64_t sum_heads() const {
        return causal || (hidden && hidden.shape[1] > 1) ? heads : key_heads;
    }
};
// sums (batch, sum_heads, features, value_dim + 1): the last column sums the weights; log_scale (batch, sum_heads), of what
// they are divided by; flags (batch, sum_heads, 2), bool: whether any visible key is not finite, and whether any is visible.
struct FeatureResults {
    Array output, sums, log_scale, flags;
};
void feature_attention(const FeatureArguments& given, const FeatureResults& results, int threads);

// The gradient of the output and the other results, which are inputs, and, as outputs, of query, key and value.
struct FeatureGradients {
    Array output;
    FeatureResults results;  // without an output
    Array query, key, value;
};
void feature_attention_backward(const FeatureArguments& given, const FeatureGradients& gradients, int threads);

}  // namespace regard

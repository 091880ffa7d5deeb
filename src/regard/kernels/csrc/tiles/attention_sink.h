// An attention sink: a term exp(z) more in the sum of a softmax, as of a key that every query may attend to, whose value
// is 0.
//
//     w_ij = exp(s_ij) / (exp(z_i) + sum_j exp(s_ij))        OpenAI 2025 (gpt-oss model card), section 2
//     v_i  = exp(z_i) / (exp(z_i) + sum_j exp(s_ij))         the weight of the sink
//     dz_i = v_i (D_i - delta_i),    delta_i = v_i D_i + sum_j w_ij D_ij
//
// D_i is 0, unless statistics add terms. With the sink in the normalizer (normalizer.h), the weights of keys are those of
// any softmax, and so are their gradients. A row without allowed keys takes no part: its weights are 0, also v_i.
#pragma once

#include <math.h>

#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

REGARD_INLINE double read_sink(const Problem& p, int64_t batch, int64_t head, int64_t query) {
    const int64_t at = p.sinks.at(batch, head, query, 0);
    switch (p.sinks.dtype) {
        case Dtype::float32: return widen(((const float*)p.sinks.data)[at]);
        case Dtype::bfloat16: return widen(((const bfloat16*)p.sinks.data)[at]);
        case Dtype::float16: return widen(((const float16*)p.sinks.data)[at]);
        default: return ((const double*)p.sinks.data)[at];
    }
}

// How a row is shared between its keys and its sink. By default there is no sink.
struct SinkShare {
    double keys = 1, sink = 0;  // sums of weights
    double log_sum = 0;         // ln of the sum, relative to the largest score of the keys

    // z: the sink. largest: the largest score of the keys. log_sum: ln of the sum of the keys, relative to it. For a
    // sink of NaN or +infinity all are NaN.
    REGARD_INLINE SinkShare(double z, double largest, double log_sum_of_keys) {
        const double x = z < HUGE_VAL ? z - largest : NAN;
        const double more = x > log_sum_of_keys ? x : log_sum_of_keys, less = x > log_sum_of_keys ? log_sum_of_keys : x;
        log_sum = more + log1p(exp(less - more));
        keys = exp(log_sum_of_keys - log_sum);
        sink = exp(x - log_sum);
    }
    explicit REGARD_INLINE SinkShare(double log_sum_of_keys) : log_sum(log_sum_of_keys) {}
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

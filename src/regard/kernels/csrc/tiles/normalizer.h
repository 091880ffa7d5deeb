// The softmax normalizer of a row of scores: the largest score m and the logarithm of the sum (Milakov and Gimelshein
// 2018).
//
//     w_ij = 2^((s_ij - m_i) c - log2 l_i),    l_i = sum_j 2^((s_ij - m_i) c)    + 2^(z_i log2 e - m_i c) with a sink z_i
//
// The forward pass stores both for the backward pass. As one number, lse = m + ln l would be rounded: with scores
// around 1e9, ln l would be lost. With two numbers, s - m is computed first, from the same bits as in the forward pass,
// and is exact for scores close to m. So adding a constant to the scores of a row changes nothing.
//
//     normalizer[0]   m, of products q . k (c = scale log2 e); with a bias, a cap or additive scores, of scores (c = log2 e)
//     normalizer[1]   log2 l; -infinity for a row without allowed keys, NaN for a row whose result is NaN
//
// For a sigmoid (weight_function.h), which has no normalizer, the same two numbers are b_i, and any finite number,
// -infinity or NaN as above.
#pragma once

#include <math.h>

#include "tiles/problem.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class Number>
struct Normalizer {
    Number largest, log_sum;

    // The array: (batch, heads, queries, 2).
    static REGARD_INLINE Normalizer read(const Array& from, int64_t batch, int64_t head, int64_t query) {
        const Number* at = (const Number*)from.data + from.at(batch, head, query, 0);
        return {at[0], at[from.stride[3]]};
    }
    REGARD_INLINE void write(const Array& to, int64_t batch, int64_t head, int64_t query) const {
        Number* at = (Number*)to.data + to.at(batch, head, query, 0);
        at[0] = largest, at[to.stride[3]] = log_sum;
    }
    // Whether the row takes part in the backward pass: it has an allowed key, and its result is finite.
    REGARD_INLINE bool is_active() const { return log_sum - log_sum == 0; }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

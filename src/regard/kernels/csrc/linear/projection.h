// A linear layer of few tokens:
//
//     y_ro = sum_k x_rk W_ok + b_o          x (rows, inputs), W (outputs, inputs) -> y (rows, outputs)
//
// Each weight is read once, in the order in which it is stored, and multiplies all tokens: nothing is packed but the
// tokens, so no copy of weights can become stale. Sums are float32, one for each lane, and are added by halves. So the
// bits of an output depend on its token and its row of weights only, not on the other tokens nor on the threads.
//
// Weights of few bits: integer_linear.h. Here a *format* says how `step` stored weights become `vectors` vectors, and a
// token is packed in the same order.
#pragma once

#include "linear/token_blocks.h"
#include "tiles/compute_types.h"
#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

struct FloatWeights {
    typedef float stored;
    typedef vfloat operand;
    static constexpr int vectors = 1, step = lanes<float>;
    static REGARD_INLINE operand load(const stored* from, int) { return REGARD_ISA_NAMESPACE::load(from); }
    static REGARD_INLINE vfloat multiply_add(operand a, operand b, vfloat sum) {
        return REGARD_ISA_NAMESPACE::multiply_add(a, b, sum);
    }
    template <class T>
    static REGARD_INLINE void pack(const T* from, char* to) {
        for (int i = 0; i < step; ++i) ((float*)to)[i] = widen(from[i]);
    }
};

// Two bfloat16 numbers are the halves of 32 bits: one vector has the even ones, one the odd ones.
struct Bfloat16Weights {
    typedef bfloat16 stored;
    typedef vfloat operand;
    static constexpr int vectors = 2, step = 2 * lanes<float>;
    static REGARD_INLINE operand load(const stored* from, int vector) {
        vbits pairs;
        memcpy(&pairs, from, sizeof pairs);
        return (vfloat)(vector == 0 ? pairs << 16 : pairs & 0xffff0000u);
    }
    static REGARD_INLINE vfloat multiply_add(operand a, operand b, vfloat sum) {
        return REGARD_ISA_NAMESPACE::multiply_add(a, b, sum);
    }
    template <class T>
    static REGARD_INLINE void pack(const T* from, char* to) {
        for (int i = 0; i < step; ++i) ((float*)to)[i / 2 + i % 2 * lanes<float>] = widen(from[i]);
    }
};

#if defined(__AVX512BF16__)
struct Bfloat16Pairs {
    typedef bfloat16 stored;
    typedef vbits operand;
    static constexpr int vectors = 1, step = 2 * lanes<float>;
    static REGARD_INLINE operand load(const stored* from, int) {
        operand pairs;
        memcpy(&pairs, from, sizeof pairs);
        return pairs;
    }
    static REGARD_INLINE vfloat multiply_add(operand a, operand b, vfloat sum) {
        return Bfloat16::multiply_add_vectors(a, b, sum);
    }
    template <class T>
    static REGARD_INLINE void pack(const T* from, char* to) {
        memcpy(to, from, sizeof(bfloat16) * step);
    }
};
#else
typedef Bfloat16Weights Bfloat16Pairs;
#endif

// T: the dtype of the tokens.
template <class T, class W>
struct Projection {
    typedef typename W::stored stored;
    typedef typename W::operand operand;
#if defined(__AVX512F__)
    static constexpr int most_tokens = 8, most_sums = 24;  // of 32 registers
#else
    static constexpr int most_tokens = 4, most_sums = 12;  // of 16
#endif
    static constexpr int most_weights = 4;  // rows of weights that are read side by side
    // One token reads them one after the other, as they are stored, which is what processors do fastest; but sums of a
    // row that wait for each other, and short vectors, leave time for other rows.
    static constexpr int weights_of_one_token = vector_bytes < 32 ? most_weights : W::vectors;
    // Bytes ahead of the weights that are multiplied. Where rows are read side by side, it must reach behind the last.
    static constexpr int64_t prefetched = 2048, prefetched_side_by_side = 8192;

    static size_t packed_bytes(int64_t inputs) {
        return (size_t)ceil_div(inputs, W::step) * W::vectors * sizeof(operand);
    }

    static void pack(const ProjectionArguments& given, int64_t row, char* packed) {
        const T* from = (const T*)given.tokens.data + row * given.inputs;
        int64_t k = 0;
        for (; k + W::step <= given.inputs; k += W::step, packed += W::vectors * sizeof(operand)) W::pack(from + k, packed);
        if (k == given.inputs) return;
        T last[W::step] = {};
        memcpy((void*)last, from + k, sizeof(T) * (size_t)(given.inputs - k));
        W::pack(last, packed);
    }

    // Rows of weights that are read side by side, for so many tokens.
    static constexpr int count_weights(int tokens) {
        const int wanted = tokens == 1 ? weights_of_one_token : most_weights;
        return most_sums / tokens < wanted ? most_sums / tokens : wanted;
    }

    // Adds the products of one step: rows of weights `stride` apart, tokens `each` bytes apart.
    template <int count, int weights>
    static REGARD_INLINE void multiply(const stored* from, int64_t stride, const char* x, int64_t each,
                                       vfloat (*sum)[weights]) {
#pragma GCC unroll 4
        for (int v = 0; v < W::vectors; ++v) {
            operand w[weights];
#pragma GCC unroll 4
            for (int i = 0; i < weights; ++i) w[i] = W::load(from + i * stride, v);
#pragma GCC unroll 8
            for (int t = 0; t < count; ++t) {
                operand token;
                memcpy(&token, x + t * each + v * (int64_t)sizeof(operand), sizeof token);
#pragma GCC unroll 4
                for (int i = 0; i < weights; ++i) sum[t][i] = W::multiply_add(w[i], token, sum[t][i]);
            }
        }
    }

    template <int count, int weights>
    static REGARD_INLINE void block(const ProjectionArguments& given, const char* packed, int64_t row, int64_t o) {
        const int64_t inputs = given.inputs, each = (int64_t)packed_bytes(inputs);
        const stored* from = (const stored*)given.weight.data + o * inputs;
        vfloat sum[count][weights] = {};
        // Into the second cache: there are too few buffers of the first one to wait for as much memory as can be read.
        const char* later = (const char*)from + (weights == 1 ? prefetched : prefetched_side_by_side);
        constexpr int64_t bytes = weights * W::step * (int64_t)sizeof(stored);
        int64_t k = 0;
        for (; k + W::step <= inputs; k += W::step, packed += W::vectors * sizeof(operand), later += bytes) {
#pragma GCC unroll 4
            for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(later + b, 0, 2);
            multiply<count, weights>(from + k, inputs, packed, each, sum);
        }
        if (k < inputs) {
            stored last[weights][W::step] = {};
            for (int i = 0; i < weights; ++i)
                memcpy((void*)last[i], from + i * inputs + k, sizeof(stored) * (size_t)(inputs - k));
            multiply<count, weights>(last[0], W::step, packed, each, sum);
        }
        for (int i = 0; i < weights; ++i) {
            const float bias = given.bias ? widen(((const T*)given.bias.data)[o + i]) : 0.0f;
            for (int t = 0; t < count; ++t)
                narrow(sum_lanes<float>(sum[t][i]) + bias,
                       (T*)given.output.data + (row + t) * given.outputs + o + i);
        }
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

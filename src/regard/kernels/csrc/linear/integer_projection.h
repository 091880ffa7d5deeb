// A linear layer of few tokens, with weights of few bits (integer_products.h):
//
//     y_ro = sum_g t_rg (s_og sum_{k in g} q_rk w_ok + m_og sum_{k in g} q_rk) + b_o
//
// int8 has no minima; but where its operands are unsigned, w + 128, those are -128 s_og.
//
// As in projection.h, each weight is read once, in the order in which it is stored, and multiplies all tokens; and the
// bits of an output depend on its token and its row of weights only.
//
// A packed token: the rounded numbers, then t_rg for each group, and t_rg sum_{k in g} q_rk.
#pragma once

#include "linear/integer_products.h"
#include "linear/token_blocks.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// T: the dtype of the tokens. W: the format of the weights.
template <class T, class W>
struct IntegerProjection {
#if defined(__AVX512F__)
    static constexpr int most_tokens = 4, most_sums = 12;  // of 32 registers
#else
    static constexpr int most_tokens = 4, most_sums = 8;  // of 16
#endif
    static constexpr int most_weights = 4;
    // What is added for a group, times the sum of its bytes: its minimum, or its scale times this.
    static constexpr bool has_correction = W::has_minimum || W::offset != 0;
    static constexpr float correction = W::has_minimum ? 1 : -(float)W::offset;
    static constexpr int64_t step = vector_bytes, numbers_of_group = W::has_minimum ? 2 : 1;

    static int64_t groups(int64_t inputs) { return ceil_div(inputs, group); }
    static int64_t padded_inputs(int64_t inputs) {
        return ceil_div(inputs, W::groups_side_by_side * group) * W::groups_side_by_side * group;
    }
    // The factors begin behind the numbers, and those of sums behind a whole number of vectors of factors.
    static int64_t factors_at(int64_t inputs) { return padded_inputs(inputs); }
    static int64_t padded_groups(int64_t inputs) { return ceil_div(groups(inputs), lanes<float>) * lanes<float>; }
    static size_t packed_bytes(int64_t inputs) {
        return (size_t)(factors_at(inputs) + 2 * padded_groups(inputs) * (int64_t)sizeof(float));
    }

    static void pack(const ProjectionArguments& given, int64_t row, char* packed) {
        const T* from = (const T*)given.tokens.data + row * given.inputs;
        float* factors = (float*)(packed + factors_at(given.inputs));
        float* of_sums = factors + padded_groups(given.inputs);
        memset(packed + groups(given.inputs) * group, 0, (size_t)(padded_inputs(given.inputs) - groups(given.inputs) * group));
        memset(factors, 0, 2 * sizeof(float) * (size_t)padded_groups(given.inputs));
        round_token(from, given.inputs, (int8_t*)packed, [=](int64_t g, RoundedGroup rounded) {
            factors[g] = rounded.factor;
            of_sums[g] = rounded.factor * (float)rounded.sum;
        });
    }

    // Rows of weights that are read side by side, for so many tokens.
    static constexpr int count_weights(int tokens) {
        return most_sums / tokens < most_weights ? most_sums / tokens : most_weights;
    }

    // Adds the products of a vector of weights of each row. read(i) gives that of row i.
    template <int count, int weights, class Read>
    static REGARD_INLINE void multiply(Read read, const char* x, int64_t each, vint (*sum)[weights]) {
        IntegerProducts::weights w[weights];
#pragma GCC unroll 4
        for (int i = 0; i < weights; ++i) w[i] = W::operand(read(i));
#pragma GCC unroll 4
        for (int t = 0; t < count; ++t) {
            vbits token = load((const uint32_t*)(x + t * each));
            keep_in_register(token);  // a load for each product would take as long as the product
#pragma GCC unroll 4
            for (int i = 0; i < weights; ++i) sum[t][i] = IntegerProducts::add(sum[t][i], w[i], token);
        }
    }

    // Sums of a block of outputs.
    template <int count, int weights>
    struct Block {
        float scaled[count][weights][lanes<float>];  // t_rg s_og of as many groups as a vector has lanes
        vfloat total[count][weights] = {};

        // Adds the products of groups whose weights are at `from`, in rows `stride` apart, and begin with group g.
        REGARD_INLINE void add_groups(const uint8_t* from, int64_t stride, const char* packed, int64_t each, int64_t g) {
#pragma GCC unroll 2
            for (int64_t other = 0; other < W::groups_side_by_side; ++other) {
                vint sum[count][weights];
#pragma GCC unroll 4
                for (int t = 0; t < count; ++t)
#pragma GCC unroll 4
                    for (int i = 0; i < weights; ++i) sum[t][i] = make_sum();
#pragma GCC unroll 4
                for (int64_t k = other * group; k < (other + 1) * group; k += step)
                    multiply<count, weights>([=](int i) { return W::load(from + i * stride, k); }, packed + k, each, sum);
#pragma GCC unroll 4
                for (int t = 0; t < count; ++t)
#pragma GCC unroll 4
                    for (int i = 0; i < weights; ++i) {
                        const vfloat factor = broadcast(scaled[t][i][(g + other) % lanes<float>]);
                        total[t][i] = multiply_add(to_float(sum[t][i]), factor, total[t][i]);
                    }
            }
        }
    };

    template <int count, int weights>
    static REGARD_INLINE void block(const ProjectionArguments& given, const char* packed, int64_t row, int64_t o) {
        constexpr int64_t some = W::groups_side_by_side, some_bytes = W::row_bytes(some * group);
        const int64_t inputs = given.inputs, each = (int64_t)packed_bytes(inputs), all_groups = groups(inputs);
        const int64_t stride = W::row_bytes(inputs), whole_groups = inputs / (some * group) * some;
        const int64_t scales_each = numbers_of_group * all_groups, factors_each = each / (int64_t)sizeof(float);
        const uint8_t* from = (const uint8_t*)given.weight.data + o * stride;
        const bfloat16* scales = (const bfloat16*)given.scale.data + o * scales_each;
        const float* factors = (const float*)(packed + factors_at(inputs));
        uint8_t last[weights][some_bytes] = {};  // the last weights of a row, with zeros behind them
        if (whole_groups < all_groups) {
            const int64_t done = W::row_bytes(whole_groups * group);
            for (int i = 0; i < weights; ++i) memcpy(last[i], from + i * stride + done, (size_t)(stride - done));
        }
        Block<count, weights> of;
        for (int64_t g = 0; g < all_groups; g += some, packed += some * group) {
            if (g % lanes<float> == 0)
#pragma GCC unroll 4
                for (int i = 0; i < weights; ++i) {
                    const vfloat scale = load_groups(scales + i * scales_each, g, all_groups);
#pragma GCC unroll 4
                    for (int t = 0; t < count; ++t)
                        store(of.scaled[t][i], scale * load(factors + t * factors_each + g));
                }
            if (g == whole_groups) {
                of.add_groups(last[0], some_bytes, packed, each, g);
                break;
            }
            const uint8_t* weight = from + g / some * some_bytes;
#pragma GCC unroll 4
            for (int i = 0; i < weights; ++i)  // what the next block reads, into the second cache
                __builtin_prefetch(weight + (weights + i) * stride, 0, 2);
            of.add_groups(weight, stride, packed, each, g);
        }
        for (int64_t g = 0; has_correction && g < all_groups; g += lanes<float>)
#pragma GCC unroll 4
            for (int i = 0; i < weights; ++i) {
                const int64_t numbers = i * scales_each + (W::has_minimum ? all_groups : 0);
                const vfloat of_weight = load_groups(scales + numbers, g, all_groups) * broadcast(correction);
#pragma GCC unroll 4
                for (int t = 0; t < count; ++t) {
                    const float* of_sums = factors + t * factors_each + padded_groups(inputs);
                    of.total[t][i] = multiply_add(of_weight, load(of_sums + g), of.total[t][i]);
                }
            }
#pragma GCC unroll 4
        for (int i = 0; i < weights; ++i) {
            const float bias = given.bias ? widen(((const T*)given.bias.data)[o + i]) : 0.0f;
#pragma GCC unroll 4
            for (int t = 0; t < count; ++t)
                narrow(sum_lanes<float>(of.total[t][i]) + bias, (T*)given.output.data + (row + t) * given.outputs + o + i);
        }
    }

    // The numbers of groups from g on, with zeros behind the last.
    static REGARD_INLINE vfloat load_groups(const bfloat16* of_groups, int64_t g, int64_t count) {
        if (count - g >= lanes<float>) return load_wide(of_groups + g);
#if defined(__AVX512F__)
        const __m256i some = _mm256_maskz_loadu_epi16((__mmask16)((1u << (count - g)) - 1), of_groups + g);
        return (vfloat)_mm512_slli_epi32(_mm512_cvtepu16_epi32(some), 16);
#else
        bfloat16 last[lanes<float>] = {};
        memcpy((void*)last, of_groups + g, sizeof(bfloat16) * (size_t)(count - g));
        return load_wide(last);
#endif
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

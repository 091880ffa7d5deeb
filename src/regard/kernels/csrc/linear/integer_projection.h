// A linear layer of few tokens, with weights of few bits (integer_products.h):
//
//     y_ro = s_o sum_g t_rg sum_{k in g} q_rk w_ok + b_o                             int8
//     y_ro = sum_g t_rg (s_og sum_{k in g} q_rk w_ok + m_og sum_{k in g} q_rk) + b_o     int4
//
// As in projection.h, each weight is read once, in the order in which it is stored, and multiplies all tokens; and the
// bits of an output depend on its token and its row of weights only.
//
// A packed token: for each group what the sums of a vector start with, and the rounded numbers; then t_rg for each
// group, and t_rg sum_{k in g} q_rk.
#pragma once

#include "linear/integer_products.h"
#include "linear/projection_kernels.h"
#include "tiles/mask_tiles.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// T: the dtype of the tokens. W: the format of the weights.
template <class T, class W>
struct IntegerProjection {
#if defined(__AVX512F__)
    static constexpr int most_tokens = 4, most_sums = W::has_minimum ? 12 : 16;  // of 32 registers
#else
    static constexpr int most_tokens = 4, most_sums = 8;  // of 16
#endif
    static constexpr int most_weights = 4;  // rows of weights that are read side by side
    static constexpr int64_t step = vector_bytes, group = W::group;
    static constexpr int64_t block_bytes = step + group;  // of a packed group

    static int64_t groups(int64_t inputs) { return ceil_div(inputs, group); }
    // The factors begin behind the groups, and those of sums behind a whole number of vectors of factors.
    static int64_t factors_at(int64_t inputs) { return groups(inputs) * block_bytes; }
    static int64_t padded_groups(int64_t inputs) { return ceil_div(groups(inputs), lanes<float>) * lanes<float>; }
    static size_t packed_bytes(int64_t inputs) {
        return (size_t)(factors_at(inputs) + 2 * padded_groups(inputs) * (int64_t)sizeof(float));
    }

    static void pack(const ProjectionArguments& given, int64_t row, char* packed) {
        const T* from = (const T*)given.tokens.data + row * given.inputs;
        memset(packed, 0, packed_bytes(given.inputs));
        float* factors = (float*)(packed + factors_at(given.inputs));
        float* of_sums = factors + padded_groups(given.inputs);
        for (int64_t g = 0; g < groups(given.inputs); ++g, packed += block_bytes) {
            const int64_t count = min_of(given.inputs - g * group, group);
            auto* numbers = (int8_t*)(packed + step);
            factors[g] = round_to_bytes(from + g * group, count, numbers);
            vint sums = {};
            for (int64_t k = 0; k < count; k += step)
                sums = IntegerProducts::add(sums, IntegerProducts::from_unsigned(broadcast(0x01010101u)),
                                            load((const uint32_t*)(numbers + k)));
            store((int32_t*)packed, sums * -W::offset);
            of_sums[g] = factors[g] * (float)sum_lanes<int32_t>(sums);
        }
    }

    static void project(const ProjectionArguments& given, const char* packed, int64_t first, int64_t stop) {
        const int64_t rows = given.rows, each = (int64_t)packed_bytes(given.inputs);
        if (rows <= most_tokens) return some(given, packed, 0, rows, first, stop);
        // A few rows of weights multiply all tokens while they are in the first cache.
        for (int64_t o = first; o < stop; o += most_weights)
            for (int64_t row = 0; row < rows; row += most_tokens)
                some(given, packed + row * each, row, min_of(rows - row, (int64_t)most_tokens), o,
                     min_of(o + most_weights, stop));
    }

private:
    static REGARD_INLINE void some(const ProjectionArguments& given, const char* packed, int64_t row, int64_t count,
                                   int64_t first, int64_t stop) {
        switch (count) {
            case 1: return tokens<1>(given, packed, row, first, stop);
            case 2: return tokens<2>(given, packed, row, first, stop);
            case 3: return tokens<3>(given, packed, row, first, stop);
            default: return tokens<4>(given, packed, row, first, stop);
        }
    }

    // The outputs first .. stop - 1 of `count` tokens from `row` on.
    template <int count>
    static __attribute__((noinline)) void tokens(const ProjectionArguments& given, const char* packed, int64_t row,
                                                 int64_t first, int64_t stop) {
        constexpr int weights = most_sums / count < most_weights ? most_sums / count : most_weights;
        int64_t o = first;
        for (; o + weights <= stop; o += weights) block<count, weights>(given, packed, row, o);
        for (; o < stop; ++o) block<count, 1>(given, packed, row, o);
    }

    // Adds the products of a vector of weights of each row. read(i) gives that of row i.
    template <int count, int weights, class Read>
    static REGARD_INLINE void multiply(Read read, const char* x, int64_t each, vint (*sum)[weights]) {
        IntegerProducts::weights w[weights];
#pragma GCC unroll 4
        for (int i = 0; i < weights; ++i) w[i] = W::operand(read(i));
#pragma GCC unroll 4
        for (int t = 0; t < count; ++t) {
            const vbits token = load((const uint32_t*)(x + t * each));
#pragma GCC unroll 4
            for (int i = 0; i < weights; ++i) sum[t][i] = IntegerProducts::add(sum[t][i], w[i], token);
        }
    }

    // What all groups of a block of outputs have in common.
    template <int count, int weights>
    struct Block {
        const uint8_t* weight;  // of the first row
        int64_t inputs, stride, each;
        const float* factors;
        int64_t factors_each;
        float scaled[count][weights][lanes<float>];  // t_rg s_og of as many groups as a vector has lanes
        vfloat total[count][weights] = {};

        // Adds the products of group g, whose numbers begin at k. Those of a group that is not whole end with the row.
        template <bool whole>
        REGARD_INLINE void add_group(const char* packed, int64_t g, int64_t k) {
            vint sum[count][weights];
#pragma GCC unroll 4
            for (int t = 0; t < count; ++t)
#pragma GCC unroll 4
                for (int i = 0; i < weights; ++i)
                    sum[t][i] = W::offset ? load((const int32_t*)(packed + t * each)) : vint{};
            const char* x = packed + step;
            const int64_t stop = whole ? k + group : min_of(k + group, inputs);
#pragma GCC unroll 4
            for (; k + step <= stop; k += step, x += step) {
#pragma GCC unroll 4
                for (int i = 0; i < weights; ++i)  // what the next block reads, into the second cache
                    __builtin_prefetch(weight + (weights + i) * stride + W::row_bytes(k), 0, 2);
                multiply<count, weights>([=](int i) { return W::load(weight + i * stride, k); }, x, each, sum);
            }
            if constexpr (!whole)
                if (k < stop)
                    multiply<count, weights>([=](int i) { return W::load_last(weight + i * stride, k, inputs); }, x, each,
                                             sum);
#pragma GCC unroll 4
            for (int t = 0; t < count; ++t)
#pragma GCC unroll 4
                for (int i = 0; i < weights; ++i) {
                    const float factor = W::has_minimum ? scaled[t][i][g % lanes<float>] : factors[t * factors_each + g];
                    total[t][i] = multiply_add(to_float(sum[t][i]), broadcast(factor), total[t][i]);
                }
        }
    };

    template <int count, int weights>
    static REGARD_INLINE void block(const ProjectionArguments& given, const char* packed, int64_t row, int64_t o) {
        const int64_t inputs = given.inputs, each = (int64_t)packed_bytes(inputs), all_groups = groups(inputs);
        const bfloat16* scales = (const bfloat16*)given.scale.data + 2 * o * all_groups;
        Block<count, weights> of;
        of.inputs = inputs, of.stride = W::row_bytes(inputs), of.each = each;
        of.weight = (const uint8_t*)given.weight.data + o * of.stride;
        of.factors = (const float*)(packed + factors_at(inputs)), of.factors_each = each / (int64_t)sizeof(float);
        constexpr int64_t some = W::groups_side_by_side;
        for (int64_t g = 0; g < all_groups; g += some, packed += some * block_bytes) {
            if constexpr (W::has_minimum)
                if (g % lanes<float> == 0)
#pragma GCC unroll 4
                    for (int i = 0; i < weights; ++i) {
                        const vfloat scale = load_groups(scales + 2 * i * all_groups, g, all_groups);
#pragma GCC unroll 4
                        for (int t = 0; t < count; ++t)
                            store(of.scaled[t][i], scale * load(of.factors + t * of.factors_each + g));
                    }
            if ((g + some) * group <= inputs) {
                of.template add_group<true>(packed, g, g * group);
                if constexpr (some > 1) of.template add_group<true>(packed + block_bytes, g + 1, g * group + group);
            } else {
                for (int64_t last = g; last < all_groups; ++last)
                    of.template add_group<false>(packed + (last - g) * block_bytes, last, last * group);
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < weights; ++i) {
            const float bias = given.bias ? widen(((const T*)given.bias.data)[o + i]) : 0.0f;
#pragma GCC unroll 4
            for (int t = 0; t < count; ++t) {
                float y = sum_lanes<float>(of.total[t][i]);
                if constexpr (W::has_minimum)
                    y += minimum_part(scales + (2 * i + 1) * all_groups,
                                      of.factors + t * of.factors_each + padded_groups(inputs), all_groups);
                else
                    y *= ((const float*)given.scale.data)[o + i];
                narrow(y + bias, (T*)given.output.data + (row + t) * given.outputs + o + i);
            }
        }
    }

    // The numbers of groups from g on, with zeros behind the last.
    static REGARD_INLINE vfloat load_groups(const bfloat16* of_groups, int64_t g, int64_t count) {
        if (count - g >= lanes<float>) return load_wide(of_groups + g);
        bfloat16 last[lanes<float>] = {};
        memcpy((void*)last, of_groups + g, sizeof(bfloat16) * (size_t)(count - g));
        return load_wide(last);
    }

    // sum_g m_g (t_g sum_{k in g} q_k)
    static REGARD_INLINE float minimum_part(const bfloat16* minima, const float* of_sums, int64_t count) {
        vfloat total = {};
        for (int64_t g = 0; g < count; g += lanes<float>)
            total = multiply_add(load_groups(minima, g, count), load(of_sums + g), total);
        return sum_lanes<float>(total);
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

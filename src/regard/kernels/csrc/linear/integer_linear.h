// A linear layer of many tokens with weights of few bits, and the activation after it: the equations of
// integer_projection.h, in the order of linear.h. Tokens are rounded first, all panels of weights read them. The sums of
// a group are integers, and are added to the float32 sums of the groups before it.
#pragma once

#include "linear/finish_sums.h"
#include "linear/integer_products.h"
#include "linear/linear_kernels.h"
#include "tiles/gemm_microkernel.h"
#include "tiles/pack.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// The number type of the microkernel: a unit is four bytes.
struct Bytes : OfVectors {
    typedef int32_t number;
    typedef uint32_t unit;
    static REGARD_INLINE vint multiply_add(unit token, vbits weights, vint sum) {
        if constexpr (IntegerProducts::offset != 0)
            return IntegerProducts::add(sum, IntegerProducts::from_unsigned(weights), broadcast(token));
        else
            return IntegerProducts::add(sum, IntegerProducts::from_signed(weights), broadcast(token));
    }
};

template <class T, class W>
struct IntegerLinear {
    static constexpr int64_t n = lanes<float>, panel = panel_vectors * n, per_unit = 4;
    static constexpr int64_t group_units = group / per_unit, numbers_of_group = W::has_minimum ? 2 : 1;
    static constexpr int64_t height = 48;  // rows whose sums wait

    static int64_t groups(int64_t inputs) { return ceil_div(inputs, group); }
    static int64_t units(int64_t inputs) { return groups(inputs) * group_units; }
    // A rounded token: its numbers, then for each group the factor, what integer sums start with, and factor times sum.
    static int64_t token_units(int64_t inputs) { return units(inputs) + 3 * groups(inputs); }
    static size_t token_bytes(int64_t inputs) { return sizeof(uint32_t) * (size_t)token_units(inputs); }

    static void round_tokens(const LinearArguments& given, int64_t row, int64_t stop, char* to) {
        for (; row < stop; ++row) {
            const T* from = (const T*)given.tokens.data + row * given.inputs;
            auto* token = (uint32_t*)(to + row * (int64_t)token_bytes(given.inputs));
            auto* factors = (float*)(token + units(given.inputs));
            auto* starts = (int32_t*)(factors + groups(given.inputs));
            auto* of_sums = (float*)(starts + groups(given.inputs));
            round_token(from, given.inputs, (int8_t*)token, [=](int64_t g, RoundedGroup rounded) {
                factors[g] = rounded.factor;
                starts[g] = start_bits - W::offset * rounded.sum;
                of_sums[g] = rounded.factor * (float)rounded.sum;
            });
        }
    }

    static size_t scratch_bytes(int64_t inputs) {
        return sizeof(uint32_t) * (size_t)(units(inputs) * panel) +
               sizeof(float) * (size_t)((height + 1 + numbers_of_group * groups(inputs)) * panel);
    }

    // The tokens of `given` are rounded ones.
    static void multiply(const LinearArguments& given, int64_t first, int64_t row, int64_t stop, char* scratch) {
        REGARD_ASSERT(0 <= first && first < given.outputs && 0 <= row && row < stop && stop <= given.rows);
        const int64_t inputs = given.inputs, columns = min_of(given.outputs - first, panel), all_groups = groups(inputs);
        auto* packed = (uint32_t*)scratch;
        auto* sums = (float*)(packed + units(inputs) * panel);
        float *bias = sums + height * panel, *scales = bias + panel;
        pack((const uint8_t*)given.weight.data + first * W::row_bytes(inputs), columns, inputs, packed);
        const int64_t scales_each = numbers_of_group * all_groups;
        const bfloat16* from_scale = (const bfloat16*)given.scale.data + first * scales_each;
        for (int64_t o = 0; o < panel; ++o) {
            bias[o] = given.bias && o < columns ? widen(((const T*)given.bias.data)[first + o]) : 0.0f;
            for (int64_t g = 0; g < scales_each; ++g)
                scales[g * panel + o] = o < columns ? widen(from_scale[o * scales_each + g]) : 0.0f;
        }
        const auto finish = FinishSums<T>::choose(given.activation);
        const int64_t stride = token_units(inputs);
        for_panels(0, ceil_div(columns, n), [&](int64_t vector, auto vectors) {
            if (vector > 0) return;  // at most one panel
            for (int64_t at = row; at < stop; at += height) {
                const int64_t rows = min_of(stop - at, height);
                const uint32_t* tokens = (const uint32_t*)given.tokens.data + at * stride;
                for (int64_t g = 0; g < all_groups; ++g)
                    add_group<decltype(vectors)::value>(tokens, inputs, rows, packed, g, scales, sums);
                finish(sums, bias, rows, columns, (T*)given.output.data + at * given.outputs + first, given.outputs);
            }
        });
    }

private:
    // Adds the products of a group to the sums of `rows` rows. The first group sets them.
    template <int vectors>
    static void add_group(const uint32_t* tokens, int64_t inputs, int64_t rows, const uint32_t* packed, int64_t g,
                          const float* scales, float* sums) {
        const int64_t stride = token_units(inputs), all_groups = groups(inputs), first = g * group_units;
        const float *scale = scales + g * panel, *minimum = scale + all_groups * panel;
        for_strips(rows, [&](int64_t row, auto strip) {
            constexpr int height_of_strip = decltype(strip)::value;
            const uint32_t* token = tokens + row * stride;
            const auto* factors = (const float*)(token + units(inputs)) + g;
            const auto* starts = (const int32_t*)(factors + all_groups);
            const auto* of_sums = (const float*)(starts + all_groups);
            float* to = sums + row * panel;
            Sums<Bytes, height_of_strip, vectors> s;
            s.each([&](int r, int, vint& sum) { sum = W::offset ? broadcast(starts[r * stride]) : make_sum(); });
            REGARD_ISA_NAMESPACE::multiply(s, token + first, stride, 1, packed + first * panel, panel, group_units);
            s.each([&](int r, int v, vint& sum) {
                float* place = to + r * panel + v * n;
                const vfloat products = to_float(sum) * load(scale + v * n);
                vfloat total = g == 0 ? vfloat{} : load(place);
                if constexpr (W::has_minimum)
                    total = multiply_add(load(minimum + v * n), broadcast(of_sums[r * stride]), total);
                store(place, multiply_add(products, broadcast(factors[r * stride]), total));
            });
        });
    }

    // Transposes the rows of `columns` outputs square by square: a row of the result has one unit of each output.
    static void pack(const uint8_t* from, int64_t columns, int64_t inputs, uint32_t* to) {
        const int64_t stride = W::row_bytes(inputs);
        for (int64_t o = 0; o < columns; o += n) {
            uint32_t* column = to + o;
            for (int64_t k = 0; k < inputs; k += n * per_unit, column += n * panel) {
                vbits square[n];
                const bool whole = inputs - k >= n * per_unit;
#pragma GCC unroll 16
                for (int i = 0; i < n; ++i) {
                    const uint8_t* row = from + (o + i) * stride;
                    square[i] = o + i >= columns ? vbits{} : whole ? W::load(row, k) : W::load_last(row, k, inputs);
                    square[i] = W::unit(square[i]);
                }
                transpose_square<uint32_t>(square);
#pragma GCC unroll 16
                for (int i = 0; i < n; ++i) store(column + i * panel, square[i]);
            }
        }
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

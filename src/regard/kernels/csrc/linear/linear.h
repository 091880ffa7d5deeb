// A linear layer of many tokens, and the activation after it:
//
//     y_ro = a(sum_k x_rk W_ok + b_o)          x (rows, inputs), W (outputs, inputs) -> y (rows, outputs)
//
// Goto and van de Geijn 2008, "Anatomy of high-performance matrix multiplication": a panel of W, the rows of 64 outputs
// (with AVX-512), is transposed into memory that stays in the second cache, and strips of 6 tokens are multiplied by it.
// Tokens are read as they are stored, or as they were widened. `depth` units of a strip at a time stay in the first cache; the sums of a few strips
// wait in between. Each sum is float32 and in one order, so its bits depend on its token and its row of W alone, neither on
// the other tokens nor on threads.
#pragma once

#include "linear/finish_sums.h"
#include "linear/linear_kernels.h"
#include "tiles/gemm_microkernel.h"
#include "tiles/pack.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// bfloat16 without an instruction for products of pairs: tokens are widened once in each call, weights when they are packed.
struct WidenedBfloat16 : Float32 {
    typedef bfloat16 storage;
};

template <class A>
struct Linear {
    typedef typename A::unit unit;
    typedef typename A::storage storage;
    static constexpr int64_t n = lanes<unit>, panel = panel_vectors * n, per_unit = A::per_unit;
    static constexpr int64_t depth = 768;  // units
    static constexpr int64_t height = 48;  // rows whose sums wait
    static constexpr bool widens = per_unit == 1 && sizeof(storage) < sizeof(unit);

    static size_t widened_bytes(int64_t inputs) { return sizeof(unit) * (size_t)inputs; }
    static void widen_tokens(const LinearArguments& given, int64_t row, int64_t stop, char* widened) {
        const storage* from = (const storage*)given.tokens.data + row * given.inputs;
        unit* to = (unit*)widened + row * given.inputs;
        const int64_t count = (stop - row) * given.inputs;
        int64_t k = 0;
        for (; k + n <= count; k += n) store(to + k, load_units(from + k));
        for (; k < count; ++k) to[k] = widen(from[k]);
    }

    static int64_t padded_units(int64_t inputs) { return padded_width<A>(count_units<A>(inputs)); }
    static size_t scratch_bytes(int64_t inputs) {
        return sizeof(unit) * (size_t)(padded_units(inputs) * panel) + sizeof(float) * (size_t)((height + 1) * panel);
    }

    static void multiply(const LinearArguments& given, int64_t first, int64_t row, int64_t stop, char* scratch) {
        REGARD_ASSERT(0 <= first && first < given.outputs && 0 <= row && row < stop && stop <= given.rows);
        const int64_t units = given.inputs / per_unit, columns = min_of(given.outputs - first, panel);
        unit* packed = (unit*)scratch;
        float *sums = (float*)(packed + padded_units(given.inputs) * panel), *bias = sums + height * panel;
        pack((const storage*)given.weight.data + first * given.inputs, columns, given.inputs, packed);
        for (int64_t o = 0; o < panel; ++o)
            bias[o] = given.bias && o < columns ? widen(((const storage*)given.bias.data)[first + o]) : 0.0f;
        const auto finish = FinishSums<storage>::choose(given.activation);
        for_panels(0, ceil_div(columns, n), [&](int64_t vector, auto vectors) {
            if (vector > 0) return;  // at most one panel
            for (int64_t at = row; at < stop; at += height) {
                const int64_t rows = min_of(stop - at, height);
                const unit* tokens = (const unit*)given.tokens.data + at * units;
                for (int64_t k = 0; k < units || k == 0; k += depth)
                    add_products<decltype(vectors)::value>(tokens + k, units, rows, packed, k, units, sums);
                finish(sums, panel, bias, rows, columns, (storage*)given.output.data + at * given.outputs + first,
                       given.outputs);
            }
        });
    }

private:
    // Multiplies the units k .. k + depth - 1 of `rows` rows. The first ones set the sums.
    template <int vectors>
    static void add_products(const unit* tokens, int64_t stride, int64_t rows, const unit* packed, int64_t k, int64_t units,
                             float* sums) {
        for_strips(rows, [&](int64_t row, auto strip) {
            Sums<A, decltype(strip)::value, vectors> s;
            float* to = sums + row * panel;
            if (k == 0)
                s.clear();
            else
                s.load_from(to, panel);
            REGARD_ISA_NAMESPACE::multiply(s, tokens + row * stride, stride, 1, packed + k * panel, panel,
                                           min_of(units - k, depth));
            s.store_to(to, panel);
        });
    }

    static REGARD_INLINE vec<unit> load_units(const storage* from) {
        if constexpr (widens)
            return load_wide(from);
        else
            return load((const unit*)from);
    }

    // Transposes the rows of `columns` outputs square by square: a row of the result has one unit of each output.
    static void pack(const storage* from, int64_t columns, int64_t inputs, unit* to) {
        for (int64_t o = 0; o < columns; o += n) {
            const int64_t count = min_of(columns - o, n);
            unit* column = to + o;
            for (int64_t k = 0; k < inputs; k += n * per_unit, column += n * panel) {
                vec<unit> square[n];
                const int64_t width = min_of(inputs - k, n * per_unit);
                if (count == n && width == n * per_unit) {
#pragma GCC unroll 16
                    for (int i = 0; i < n; ++i) square[i] = load_units(from + (o + i) * inputs + k);
                } else {
                    for (int64_t i = 0; i < n; ++i) {
                        storage last[n * per_unit] = {};
                        if (i < count) memcpy((void*)last, from + (o + i) * inputs + k, sizeof(storage) * (size_t)width);
                        square[i] = load_units(last);
                    }
                }
                transpose_square<unit>(square);
#pragma GCC unroll 16
                for (int i = 0; i < n; ++i) store(column + i * panel, square[i]);
            }
        }
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

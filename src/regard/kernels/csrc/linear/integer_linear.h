// A linear layer with weights of few bits, and the activation after it:
//
//     y_ro = a(sum_g t_rg (s_og sum_{k in g} q_rk w_ok + m_og sum_{k in g} q_rk) + b_o)
//
//     x (rows, inputs), W (outputs, inputs) -> y (rows, outputs); t, q: integer_products.h; int8 has no minima m
//
// Weights are stored as they are multiplied, in *panels* of 16 outputs (projection_kernels.h), since nothing else reads
// them. So nothing is packed but the tokens, each weight is read once for up to 48 of them, in the order in which it is
// stored, and the same kernel computes few tokens and many. The sums of a group are integers; they are added to the
// float32 sums of the groups before it. So the bits of an output depend on its token and its row of weights alone.
//
// A group of a panel fills a register of the matrix unit (matrix_registers.h), and a group of 16 tokens another one.
// Where there is such a unit it multiplies all tokens but the last few, 15 at most.
#pragma once

#include "linear/finish_sums.h"
#include "linear/integer_products.h"
#include "linear/linear_kernels.h"
#include "tiles/gemm_microkernel.h"
#include "tiles/mask_tiles.h"
#if defined(__AMX_INT8__)
#include <optional>

#include "tiles/matrix_registers.h"
#endif

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// Formats of stored weights. read: the vector of units at `from`, of group number 0 or 1 of a block.
struct Int8Weights {
    typedef Int8Products Products;
    static constexpr bool has_minimum = false;  // W_ok = s_og w_ok, with w of -127 .. 127
    static constexpr int64_t groups_of_block = 1;
    template <int>
    static REGARD_INLINE Products::Weights read(const uint32_t* from) {
        return Products::read(load(from));
    }
};

struct Int4Weights {
    typedef Int4Products Products;
    static constexpr bool has_minimum = true;  // W_ok = s_og w_ok + m_og, with w of 0 .. 15
    static constexpr int64_t groups_of_block = 2;
    template <int of_block>
    static REGARD_INLINE Products::Weights read(const uint32_t* from) {
        const vbits both = load(from);
        return Products::read((of_block == 0 ? both : both >> 4) & 0x0f0f0f0fu);
    }
};

template <class T, class W>
struct IntegerLinear {
    typedef typename W::Products Products;
    static constexpr int64_t n = lanes<float>, panel = integer_panel, vectors_of_panel = panel / n;
    static constexpr int64_t block_units = group_units * panel, numbers_of_group = W::has_minimum ? 2 : 1;
    static constexpr int64_t height = 48;  // rows that a group of weights multiplies while it is in the first cache
    static constexpr int64_t prefetched = 2048;  // bytes ahead of the weights that are multiplied
    // Rows and panels whose sums are in registers.
#if defined(__AVX512F__)
    static constexpr int most_rows = 6, most_panels = 4;  // 24 sums, of 32 registers
#elif defined(__SSE2__) && !defined(__AVX2__)
    static constexpr int most_rows = 2, most_panels = 1;  // 8 sums, of 16
#else
    static constexpr int most_rows = 4, most_panels = 1;  // 8 sums, of 16, or 16 sums, of 32
#endif
    static constexpr int64_t stride = most_panels * panel;  // of rows of sums: as many outputs has a task of many tokens

    static int64_t groups(int64_t inputs) { return ceil_div(inputs, group); }
    static int64_t panel_units(int64_t inputs) { return ceil_div(groups(inputs), W::groups_of_block) * block_units; }
    static size_t token_bytes(int64_t inputs) { return sizeof(TokenGroup) * (size_t)groups(inputs); }

    static void pack(const ProjectionArguments& given, int64_t row, char* packed) {
        round_token((const T*)given.tokens.data + row * given.inputs, given.inputs, (TokenGroup*)packed);
    }
    static void round_tokens(const LinearArguments& given, int64_t row, int64_t stop, char* to) {
        for (; row < stop; ++row) pack(given, row, to + row * (int64_t)token_bytes(given.inputs));
    }

    static void project(const ProjectionArguments& given, const char* packed, int64_t first, int64_t stop) {
        const auto finish = FinishSums<T>::choose(Activation::identity);
        compute(given, (const TokenGroup*)packed, first, stop, 0, given.rows, finish);
    }
    static size_t scratch_bytes(int64_t) { return 0; }
    // The tokens of `given` are rounded ones.
    static void multiply(const LinearArguments& given, int64_t first, int64_t row, int64_t stop, char*) {
        compute(given, (const TokenGroup*)given.tokens.data, first, min_of(first + stride, given.outputs), row, stop,
                FinishSums<T>::choose(given.activation));
    }

private:
    // Computes the outputs first .. stop - 1 of the rows row .. stop_row - 1. `first` is the first output of a panel.
    static void compute(const ProjectionArguments& given, const TokenGroup* tokens, int64_t first, int64_t stop,
                        int64_t row, int64_t stop_row, typename FinishSums<T>::Function finish) {
        REGARD_ASSERT(0 <= first && first < stop && stop <= given.outputs && first % panel == 0);
        REGARD_ASSERT(0 <= row && row < stop_row && stop_row <= given.rows);
        const int64_t all_groups = groups(given.inputs);
        for (; row < stop_row; row += height) {
            const int64_t rows = min_of(stop_row - row, height);
            for (int64_t o = first; o < stop; o += stride) {
                const int64_t columns = min_of(stop - o, stride);
                alignas(64) float sums[height * stride];
                memset(sums, 0, sizeof(float) * (size_t)(rows * stride));
                up_to<most_panels>(ceil_div(columns, panel), [&](auto panels) {
                    add_groups<decltype(panels)::value>(given, tokens + row * all_groups, rows, o, sums);
                });
                float bias[stride] = {};
                for (int64_t i = 0; given.bias && i < columns; ++i) bias[i] = widen(((const T*)given.bias.data)[o + i]);
                T* output = (T*)given.output.data + row * given.outputs + o;
                finish(sums, stride, bias, rows, columns, output, given.outputs);
            }
        }
    }

    // Calls body with `count`, 1 .. most, as a constant.
    template <int most, class Body>
    static REGARD_INLINE void up_to(int64_t count, Body body) {
        if constexpr (most > 1)
            if (count < most) return up_to<most - 1>(count, body);
        body(Constant<most>{});
    }

    // Adds the products of all groups to the sums of the panels from output `o` on.
    template <int panels>
    static __attribute__((noinline)) void add_groups(const ProjectionArguments& given, const TokenGroup* tokens,
                                                     int64_t rows, int64_t o, float* sums) {
        const int64_t all_groups = groups(given.inputs), units = panel_units(given.inputs);
        const int64_t scales = all_groups * numbers_of_group * panel;
        const auto* block = (const uint32_t*)given.weight.data + o / panel * units;
        const auto* scale = (const bfloat16*)given.scale.data + o / panel * scales;
        [[maybe_unused]] const MatrixScope scope(rows >= rows_of_matrix);
        const auto add = [&](int64_t g, auto of_block) {
            int64_t row = add_matrices<panels, decltype(of_block)::value>(tokens + g, all_groups, rows, block, units,
                                                                          scale, scales, sums);
            for (int64_t left = ceil_div(rows - row, most_rows); left > 0; --left)  // of equal height
                up_to<most_rows>(ceil_div(rows - row, left), [&](auto count) {
                    add_group<decltype(count)::value, panels, decltype(of_block)::value>(
                        tokens + row * all_groups + g, all_groups, block, units, scale, scales, sums + row * stride);
                    row += decltype(count)::value;
                });
            scale += numbers_of_group * panel;
        };
        for (int64_t g = 0; g < all_groups; g += W::groups_of_block, block += block_units) {
            for (int p = 0; p < panels; ++p)  // into the second cache
                for (int64_t b = 0; b < block_units; b += 16)
                    __builtin_prefetch(block + p * units + prefetched / 4 + b, 0, 2);
            add(g, Constant<0>{});
            if constexpr (W::groups_of_block == 2)
                if (g + 1 < all_groups) add(g + 1, Constant<1>{});
        }
    }

    // Adds the products of a group. Tokens are `each` groups apart, panels of weights `units`, those of scales `scales`.
    template <int rows, int panels, int of_block>
    static REGARD_INLINE void add_group(const TokenGroup* tokens, int64_t each, const uint32_t* block, int64_t units,
                                        const bfloat16* scale, int64_t scales, float* sums) {
        constexpr int vectors = panels * (int)vectors_of_panel;
        vint total[rows][vectors];
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v)
                total[r][v] = broadcast(start_bits - Products::offset * tokens[r * each].sum);
        for (int first = 0; first < group_units; first += Products::units) {
            typename Products::Partial partial[rows][vectors] = {};
            for (int unit = first; unit < first + Products::units; ++unit) {
                typename Products::Weights w[vectors];
#pragma GCC unroll 8
                for (int v = 0; v < vectors; ++v)
                    w[v] = W::template read<of_block>(block + v / vectors_of_panel * units + unit * panel +
                                                      v % vectors_of_panel * n);
#pragma GCC unroll 8
                for (int r = 0; r < rows; ++r) {
                    const typename Products::Unit q = Products::take(tokens[r * each], unit);
#pragma GCC unroll 8
                    for (int v = 0; v < vectors; ++v) partial[r][v] = Products::add(partial[r][v], w[v], q);
                }
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
                for (int v = 0; v < vectors; ++v) total[r][v] += Products::widen(partial[r][v]);
        }
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) {
            const bfloat16* numbers = scale + v / vectors_of_panel * scales + v % vectors_of_panel * n;
            const vfloat s = load_wide(numbers), m = W::has_minimum ? load_wide(numbers + panel) : vfloat{};
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r)
                add_scaled(to_float(total[r][v]), tokens[r * each], s, m, sums + r * stride + v * n);
        }
    }

    // Adds t (s products + m sum) of a group to a vector of sums.
    static REGARD_INLINE void add_scaled(vfloat products, const TokenGroup& token, vfloat s, [[maybe_unused]] vfloat m,
                                         float* sum) {
        vfloat y = load(sum);
        if constexpr (W::has_minimum) y = multiply_add(m, broadcast(token.factor * (float)token.sum), y);
        store(sum, multiply_add(products * s, broadcast(token.factor), y));
    }

#if defined(__AMX_INT8__)
    static constexpr int64_t rows_of_matrix = matrix_rows;

    struct MatrixScope {
        explicit MatrixScope(bool is_used) {
            if (is_used) unit.emplace();
        }
        std::optional<MatrixUnit> unit;
    };

    // As add_group, for as many times 16 rows as there are, whose number is returned.
    template <int panels, int of_block>
    static REGARD_INLINE int64_t add_matrices(const TokenGroup* tokens, int64_t each, int64_t rows, const uint32_t* block,
                                              int64_t units, const bfloat16* scale, int64_t scales, float* sums) {
        if (rows < matrix_rows) return 0;
        constexpr bool is_packed = W::groups_of_block > 1;
        alignas(64) uint32_t unpacked[is_packed ? panels * block_units : 1];
        const uint32_t* weights[panels];
        for (int p = 0; p < panels; ++p) {
            weights[p] = is_packed ? unpacked + p * block_units : block + p * units;
            for (int64_t u = 0; is_packed && u < block_units; u += n)
                store(unpacked + p * block_units + u, W::template read<of_block>(block + p * units + u));
        }
        int64_t row = 0;
        const auto add = [&](auto both_rows) {
            constexpr bool both = decltype(both_rows)::value != 0;
            for (int p = 0; p < panels; p += 2) {
                const TokenGroup* from = tokens + row * each;
                float* to = sums + row * stride + p * panel;
                if (p + 1 < panels)
                    add_matrix<both, true>(from, each, weights[p], weights[p + 1], scale + p * scales, scales, to);
                else
                    add_matrix<both, false>(from, each, weights[p], nullptr, scale + p * scales, scales, to);
            }
        };
        for (; row + 2 * matrix_rows <= rows; row += 2 * matrix_rows) add(Constant<1>{});
        if (row + matrix_rows <= rows) {
            add(Constant<0>{});
            row += matrix_rows;
        }
        return row;
    }

    // The same for one or two panels of weights, and 16 or 32 rows.
    template <bool both_rows, bool both_panels>
    static REGARD_INLINE void add_matrix(const TokenGroup* tokens, int64_t each, const uint32_t* first,
                                         const uint32_t* second, const bfloat16* scale, int64_t scales, float* sums) {
        constexpr int64_t token_row = sizeof(TokenGroup) / 4, block = matrix_rows * panel;
        alignas(64) int32_t products[4 * block];  // of panels, each of all rows
        load_matrix<0>(tokens, each * token_row);
        if constexpr (both_rows) load_matrix<1>(tokens + matrix_rows * each, each * token_row);
        const auto multiply = [&](auto at, const uint32_t* weights) {
            constexpr int b = 2 + decltype(at)::value, sum = 4 + 2 * decltype(at)::value;
            int32_t* to = products + 2 * decltype(at)::value * block;
            load_matrix<b>(weights, panel);
            clear_matrix<sum>();
            multiply_byte_matrices<sum, 0, b>();
            if constexpr (both_rows) {
                clear_matrix<sum + 1>();
                multiply_byte_matrices<sum + 1, 1, b>();
                store_matrix<sum + 1>(to + block, panel);
            }
            store_matrix<sum>(to, panel);
        };
        multiply(Constant<0>{}, first);
        if constexpr (both_panels) multiply(Constant<1>{}, second);
        for (int p = 0; p < (both_panels ? 2 : 1); ++p) {
            const bfloat16* numbers = scale + p * scales;
            const vfloat s = load_wide(numbers), m = W::has_minimum ? load_wide(numbers + panel) : vfloat{};
            for (int r = 0; r < (both_rows ? 2 : 1) * matrix_rows; ++r) {
                const vint product = load(products + 2 * p * block + r * panel);
                add_scaled(__builtin_convertvector(product, vfloat), tokens[r * each], s, m, sums + r * stride + p * panel);
            }
        }
    }
#else
    static constexpr int64_t rows_of_matrix = 0;
    struct MatrixScope {
        explicit MatrixScope(bool) {}
    };
    template <int panels, int of_block>
    static REGARD_INLINE int64_t add_matrices(const TokenGroup*, int64_t, int64_t, const uint32_t*, int64_t,
                                              const bfloat16*, int64_t, float*) {
        return 0;
    }
#endif
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

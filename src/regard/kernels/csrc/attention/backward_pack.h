// Backward pass, packing: the tokens of one (batch, key head) as operands of the five products of backward.h.
//
//     key       columns of 64 keys for scores; key_rows: rows for dQ; value: columns for D
//     query     rows for scores, output: rows of dO for D; query_rows and output_rows: paired rows for dK and dV
//     largest, log_sum, delta     of each query: its normalizer (normalizer.h) and delta_i = dO_i . o_i
//     active    bit i: query i takes part. The weights of the others are 0, and so are their packed numbers
#pragma once

#include "tiles/gemm_microkernel.h"
#include "tiles/normalizer.h"
#include "tiles/pack.h"
#include "tiles/tile_kernels.h"
#include "tiles/weight_function.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class A, class Weights = Softmax>
struct BackwardPack {
    typedef typename A::number number;
    typedef typename A::unit unit;
    typedef typename A::storage storage;
    typedef PackKeys<A> Pack;
    static constexpr int width = lanes<number>;
    static constexpr int64_t unit_tile = tile / A::per_unit;  // units along 64 numbers
    static constexpr number infinity = (number)HUGE_VAL;

    // ---- sizes in bytes ----

    static size_t column_bytes(int64_t width_of) { return sizeof(unit) * (size_t)(Pack::column_units(width_of) * tile); }
    static size_t row_bytes(int64_t width_of) { return sizeof(unit) * (size_t)(tile * Pack::unit_stride(width_of)); }
    static size_t paired_row_bytes(int64_t width_of) {
        return A::per_unit == 1 ? 0 : sizeof(unit) * (size_t)(unit_tile * padded_width<A>(width_of));
    }

    // All sizes but the scratch memory of a task.
    static BackwardSizes sizes(const Problem& p) {
        BackwardSizes s = {};
        s.key = column_bytes(p.head_dim);
        s.key_rows = sizeof(unit) * (size_t)(unit_tile * padded_width<A>(p.head_dim));
        s.value = column_bytes(p.value_dim);
        s.query = row_bytes(p.head_dim);
        s.query_rows = paired_row_bytes(p.head_dim);
        s.output = row_bytes(p.value_dim);
        s.output_rows = paired_row_bytes(p.value_dim);
        s.row_numbers = sizeof(number) * (size_t)tile;
        s.grad_query = sizeof(number) * (size_t)(tile * padded_width<A>(p.head_dim));
        s.weights = sizeof(number) * (size_t)(p.queries * tile + tile + width);  // then the largest scores
        s.number = sizeof(number);
        s.pack_scratch =
            sizeof(storage) * (size_t)(tile * (Pack::number_stride(p.head_dim) + Pack::number_stride(p.value_dim)));
        return s;
    }

    // ---- one tile ----

    static void pack_keys(const Problem& p, int64_t batch, int64_t key_head, int64_t key_tile,
                          const BackwardTiles& into, char* scratch) {
        const BackwardSizes& s = *into.size;
        int64_t first = key_tile * tile, count = p.keys_in(key_tile), height = Pack::padded_height(count);
        int64_t key_stride = Pack::number_stride(p.head_dim), value_stride = Pack::number_stride(p.value_dim);
        storage* key_rows = (storage*)scratch;
        storage* value_rows = (storage*)scratch + tile * key_stride;
        Pack::read(p, batch, key_head, first, count, height, key_rows, value_rows);
        Pack::write_columns(key_rows, key_stride, height, p.head_dim, (unit*)(into.key + s.key * (size_t)key_tile));
        Pack::write_columns(value_rows, value_stride, height, p.value_dim,
                         (unit*)(into.value + s.value * (size_t)key_tile));
        Pack::write_rows(key_rows, key_stride, height, padded_width<A>(p.head_dim),
                         (unit*)(into.key_rows + s.key_rows * (size_t)key_tile));
    }

    // Packs one tile of queries of head `in_group` of those that share the key head: q, dO, the normalizer and delta.
    static void pack_queries(const Problem& p, const BackwardInputs& g, int64_t batch, int64_t head,
                             int64_t query_tile, const BackwardTiles& into, int64_t in_group, char* scratch) {
        const BackwardSizes& s = *into.size;
        size_t at = (size_t)(in_group * p.query_tiles() + query_tile);
        int64_t first = query_tile * tile, rows = p.queries_in(query_tile), height = Pack::padded_height(rows);
        int64_t query_stride = Pack::number_stride(p.head_dim), output_stride = Pack::number_stride(p.value_dim);
        storage* query = (storage*)(into.query + s.query * at);
        storage* grad_output = (storage*)(into.output + s.output * at);
        storage* output = (storage*)scratch;
        read_tokens(p.query, batch, head, first, rows, height, p.head_dim, query, query_stride);
        read_tokens(g.grad_output, batch, head, first, rows, height, p.value_dim, grad_output, output_stride);
        if (Weights::is_normalized)
            read_rows(g.output, g.output.at(batch, head, first, 0), rows, rows, p.value_dim, output, output_stride);
        number* largest = (number*)(into.largest + s.row_numbers * at);
        number* log_sum = (number*)(into.log_sum + s.row_numbers * at);
        number* delta = (number*)(into.delta + s.row_numbers * at);
        uint64_t active = 0;
        for (int64_t i = 0; i < tile; i += width) {  // makes all weights 0
            store(largest + i, broadcast(Weights::is_normalized ? (number)0 : infinity));
            store(log_sum + i, broadcast(infinity));
            store(delta + i, vec<number>{});
        }
        for (int64_t i = 0; i < rows; ++i) {
            const Normalizer<number> normalizer = Normalizer<number>::read(g.normalizer, batch, head, first + i);
            if (!normalizer.is_active()) {
                memset(query + i * query_stride, 0, sizeof(storage) * (size_t)query_stride);
                memset(grad_output + i * output_stride, 0, sizeof(storage) * (size_t)output_stride);
                continue;
            }
            active |= (uint64_t)1 << i;
            largest[i] = normalizer.largest, log_sum[i] = normalizer.log_sum;
            if constexpr (!Weights::is_normalized) {
                largest[i] = (number)(largest[i] * -log2_e);  // b_i as an exponent: see SigmoidWeight
                continue;
            }
            delta[i] = compute_delta((const unit*)(output + i * output_stride),
                                (const unit*)(grad_output + i * output_stride), p.value_dim, log_sum[i]);
            if (delta[i] != delta[i])  // 0 * infinity: an output overflowed, and its gradient is 0
                delta[i] = dot_nonzero(output + i * output_stride, grad_output + i * output_stride, p.value_dim);
        }
        if (g.rounding) {
            read_rows(g.rounding, g.rounding.at(batch, head, first, 0), rows, rows, p.value_dim, output, output_stride);
            for (int64_t i = 0; i < rows; ++i)
                delta[i] += dot((const unit*)(output + i * output_stride),
                                (const unit*)(grad_output + i * output_stride), Pack::unit_stride(p.value_dim));
        }
        ((uint64_t*)into.active)[at] = active;
        if (A::per_unit == 1) return;  // paired rows are the rows themselves
        write_rows(query, query_stride, height, p.head_dim, (unit*)(into.query_rows + s.query_rows * at), scratch);
        write_rows(grad_output, output_stride, height, p.value_dim, (unit*)(into.output_rows + s.output_rows * at),
                   scratch);
    }

    // Writes rows of numbers as units of two adjacent rows; for the matrix unit, where they are the left operand of the
    // transposed products for dV and dK, as columns of such units, 32 of each.
    static REGARD_INLINE void write_rows(const storage* rows, int64_t stride, int64_t height, int64_t width_of, unit* to,
                                         char* scratch) {
        const int64_t columns = padded_width<A>(width_of);
        Pack::write_paired_rows(rows, stride, height, columns, A::has_matrix_unit ? (unit*)scratch : to);
        if (A::has_matrix_unit) transpose((const unit*)scratch, columns, unit_tile, columns, to, unit_tile);
    }

    static REGARD_INLINE number dot(const unit* a, const unit* b, int64_t count) {
        vec<number> sum = {};
        for (int64_t k = 0; k < count; k += lanes<unit>) sum = A::multiply_add_vectors(load(a + k), load(b + k), sum);
        return sum_lanes<number>(sum);
    }

    // delta = dO . o. If one key has weight 1 (log_sum = 0), o is its value, and D - delta must be exactly 0: a
    // rounding error would be multiplied by keys of any magnitude. So delta is then summed in the order of D.
    static REGARD_INLINE number compute_delta(const unit* output, const unit* grad_output, int64_t width_of,
                                              number log_sum) {
        if (log_sum != 0) return dot(output, grad_output, Pack::unit_stride(width_of));
        if constexpr (A::has_matrix_unit) {
            constexpr int64_t most = 640 / A::per_unit;
            unit column[most * lanes<unit>];
            for (int64_t k = 0; k < Pack::unit_stride(width_of); ++k) store(column + k * lanes<unit>, broadcast(output[k]));
            Sums<A, 1, 1> s;
            multiply_in_parts(s, grad_output, 0, 1, column, lanes<unit>, count_units<A>(width_of));
            return s.at[0][0][0];
        }
        vec<number> sum = {};  // the same in each lane
        for (int64_t k = 0; k < count_units<A>(width_of); ++k)
            sum = A::multiply_add(grad_output[k], broadcast(output[k]), sum);
        return sum[0];
    }

    static number dot_nonzero(const storage* a, const storage* b, int64_t count) {
        number sum = 0;
        for (int64_t k = 0; k < count; ++k)
            if (widen(b[k]) != 0) sum += widen(a[k]) * widen(b[k]);
        return sum;
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

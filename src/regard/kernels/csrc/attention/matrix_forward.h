// Forward pass in bfloat16 on the matrix unit of the processor (matrix_unit.h): see forward.h for the equations.
//
// 32 queries are taken at a time. Their products with a group of key tiles are written to memory, the weights are
// computed from them there, and are the left operand of the product with the values. Most of the time goes into the
// exponentials of the weights.
#pragma once

#include "attention/forward.h"
#include "tiles/matrix_unit.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <>
inline constexpr int rows_together<Bfloat16Matrices> = 2 * matrix_rows;

template <class A, class Hook = NoHook>
struct MatrixForward : Forward<A, Hook> {
    typedef Forward<A, Hook> Base;
    using typename Base::number;
    using typename Base::unit;
    using Base::Base, Base::bits, Base::factor, Base::first_query, Base::group, Base::infinity, Base::keys, Base::output,
        Base::query, Base::query_stride, Base::row, Base::rows, Base::scores, Base::softcap, Base::unit_row,
        Base::value_stride, Base::weights, Base::width;
    static constexpr int64_t block = rows_together<A>;

    static void run(const Problem& p, const PackedKeys& keys, int64_t batch, int64_t head, int64_t query_tile,
                    const ForwardResults& results, char* scratch) {
        MatrixForward f(p, keys, batch, head, query_tile, scratch);
        f.process_keys(query_tile);
        f.finish(results);
    }

    void process_keys(int64_t query_tile) {
        this->for_key_groups(query_tile, [&](const KeyTile* tiles, int count) {
            for (int64_t first = 0; first < rows; first += block) process_block(first, tiles, count);
        });
    }

    REGARD_INLINE void process_block(int64_t first, const KeyTile* tiles, int count) {
        const int64_t height = min_of(rows - first, block);
        int32_t from[group], stop[group];  // vectors of each tile, in pairs: 32 keys
        for (int t = 0; t < count; ++t) {
            Base::find_visible_vectors(tiles[t].is_partial, bits + t * tile + first, height, &from[t], &stop[t]);
            from[t] = from[t] / 2 * 2, stop[t] = (stop[t] + 1) / 2 * 2;
        }
        number shrink[block];
        if (height > matrix_rows)
            multiply_keys<true>(first, tiles, count, from, stop);
        else
            multiply_keys<false>(first, tiles, count, from, stop);
        for_strips(height, [&](int64_t at, auto n) {
            vec<number> highest[decltype(n)::value];
            finish_scores<decltype(n)::value>(first, at, tiles, count, from, stop, highest);
            this->template weigh<decltype(n)::value>(first + at, at, tiles, count, from, stop, highest, shrink + at);
        });
        for (int64_t r = 0; r < height; ++r) {
            number* row_of = output + (first + r) * value_stride;
            for (int64_t c = 0; c < value_stride; c += width)
                store(row_of + c, load(row_of + c) * broadcast(shrink[r]));
        }
        if (height > matrix_rows)
            mix<true>(first, tiles, count, from, stop);
        else
            mix<false>(first, tiles, count, from, stop);
    }

    template <bool both_rows>
    REGARD_INLINE void multiply_keys(int64_t first, const KeyTile* tiles, int count, const int32_t* from,
                                     const int32_t* stop) {
        typedef MatrixSums<both_rows, true> Products;
        for (int t = 0; t < count; ++t) {
            const unit* key = (const unit*)(keys.key + keys.key_bytes * (size_t)tiles[t].place);
            for (int64_t c = from[t] * width; c < stop[t] * width; c += 2 * width) {
                Products::clear();
                Products::multiply(query + first * query_stride, query_stride, key + c, tile, query_stride);
                Products::store_to(scores + t * tile + c, row);
            }
        }
    }

    // Makes scores of products where they differ (`premultiply`), and -infinity where the mask forbids a key.
    template <int n>
    REGARD_INLINE void finish_scores(int64_t first, int64_t at, const KeyTile* tiles, int count, const int32_t* from,
                                     const int32_t* stop, vec<number>* highest) {
        for (int r = 0; r < n; ++r) highest[r] = broadcast(-infinity);
        for (int t = 0; t < count; ++t) {
            const int64_t start = from[t] * width, past = stop[t] * width;
            number* score = scores + at * row + t * tile;
            if (this->premultiply)
                for (int r = 0; r < n; ++r)
                    scale_scores(first_query + first + at + r, tiles[t].index * tile, start, past, score + r * row);
            if (tiles[t].is_partial) {
                const uint64_t* allowed = bits + t * tile + first + at;
                for (int r = 0; r < n; ++r)
                    for (int64_t c = start; c < past; c += width) {
                        const vec<number> x = load(score + r * row + c);
                        store(score + r * row + c, select((uint32_t)(allowed[r] >> c), x, broadcast(-infinity)));
                    }
            }
            for (int64_t c = start; c < past; c += width)
#pragma GCC unroll 8
                for (int r = 0; r < n; ++r) highest[r] = maximum(highest[r], load(score + r * row + c));
        }
    }
    REGARD_INLINE void scale_scores(int64_t query_index, int64_t first_key, int64_t start, int64_t past, number* score) {
        if (past <= start) return;
        const bool has_bias = this->bias.has_bias();
        const number* added = has_bias ? this->bias.read(query_index, first_key, this->bias_rows) : nullptr;
        if (softcap) softcap.apply(score + start, 1, past - start, 0, nullptr, 0);
        for (int64_t c = start; c < past; c += width) {
            const vec<number> plus = has_bias ? load(added + c) : vec<number>{};
            store(score + c, multiply_add(load(score + c), broadcast(softcap ? 1 : factor), plus));
        }
    }

    // output += weights . values
    template <bool both_rows>
    REGARD_INLINE void mix(int64_t first, const KeyTile* tiles, int count, const int32_t* from, const int32_t* stop) {
        int64_t c = 0;
        for (; c + 2 * width <= value_stride; c += 2 * width)
            mix_columns<MatrixSums<both_rows, true>>(first, c, tiles, count, from, stop);
        if (c < value_stride) mix_columns<MatrixSums<both_rows, false>>(first, c, tiles, count, from, stop);
    }
    template <class Products>
    REGARD_INLINE void mix_columns(int64_t first, int64_t column, const KeyTile* tiles, int count, const int32_t* from,
                                   const int32_t* stop) {
        number* to = output + first * value_stride + column;
        Products::load_from(to, value_stride);
        for (int t = 0; t < count; ++t) {
            const unit* value = (const unit*)(keys.value + keys.value_bytes * (size_t)tiles[t].place) + column;
            const int64_t k0 = from[t] * width / 2, units = (stop[t] - from[t]) * width / 2;
            Products::multiply(weights + t * tile / 2 + k0, unit_row, value + k0 * value_stride, value_stride, units);
        }
        Products::store_to(to, value_stride);
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

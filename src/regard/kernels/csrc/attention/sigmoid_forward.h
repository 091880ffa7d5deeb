// Sigmoid attention, forward: one tile of 64 queries of one head, with all its keys.
//
//     s_ij = scale q_i . k_j + bias_ij                    where the mask allows, else -infinity
//     w_ij = sigmoid(s_ij + b_i),   output_i = sum_j w_ij v_j        Ramapuram et al. 2025, section 2
//
// b_i (Problem::row_bias) is a number, or -log of the number of keys that query i may attend to; count_visible_keys
// counts them. Scores and the products with values are those of Forward, without a running maximum to subtract and
// without a sum to divide by. The largest score finds rows without keys, and overflow. A score of NaN makes the output
// NaN, unless its weight is dropped, so with dropout the sum of weights is computed to find it.
#pragma once

#include "attention/forward.h"
#include "tiles/weight_function.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class A>
struct SigmoidForward {
    typedef typename A::number number;
    typedef typename A::unit unit;
    typedef Forward<A> Tiles;
    static constexpr int width = lanes<number>;

    const Problem& p;
    Tiles tiles;
    number factor;  // of a product, so that it becomes a score; 1 if it is one already
    number times;   // of a product, so that it becomes an exponent: see SigmoidWeight

    static size_t scratch(const Problem& p) { return Tiles::scratch(p); }

    SigmoidForward(const Problem& p, const PackedKeys& keys, int64_t batch, int64_t head, int64_t query_tile,
                   char* scratch)
        : p(p), tiles(p, keys, batch, head, query_tile, scratch) {
        factor = tiles.premultiply ? 1 : tiles.factor;
        times = (number)(-(tiles.premultiply ? 1 : fabs(p.scale)) * log2_e);
    }

    static void run(const Problem& p, const PackedKeys& keys, int64_t batch, int64_t head, int64_t query_tile,
                    const ForwardResults& results, char* scratch) {
        SigmoidForward f(p, keys, batch, head, query_tile, scratch);
        f.tiles.for_key_strips(query_tile, [&](int64_t first, auto n, const KeyTile* key_tiles, int count) {
            f.template process_strip<decltype(n)::value>(first, key_tiles, count);
        });
        f.finish(results);
    }

    REGARD_INLINE number row_bias(int64_t row) const {
        return ((const number*)p.row_bias.data)[p.row_bias.at(0, tiles.batch, tiles.head, tiles.first_query + row)];
    }

    template <int n>
    REGARD_INLINE void process_strip(int64_t first, const KeyTile* key_tiles, int count) {
        int32_t from[Tiles::group], stop[Tiles::group];  // the vectors of each tile that any row may attend to
        uint64_t visible[Tiles::group];                  // the keys
        vec<number> highest[n];
        number unchanged[n];
        for (int r = 0; r < n; ++r) highest[r] = broadcast(-Tiles::infinity), unchanged[r] = 1;
        for (int t = 0; t < count; ++t) {
            const uint64_t* allowed = tiles.bits + t * tile + first;
            visible[t] = tiles.template find_visible_vectors<n>(key_tiles[t].is_partial, allowed, &from[t], &stop[t]);
            if (from[t] < stop[t]) tiles.template score_tile<n>(first, t, key_tiles[t], from[t], stop[t], highest);
        }
        weigh<n>(first, key_tiles, count, from, stop, highest);
        tiles.template mix<n>(first, key_tiles, count, visible, unchanged);
    }

    // Computes weights from the scores, or products, of a strip of queries.
    template <int n>
    REGARD_INLINE void weigh(int64_t first, const KeyTile* key_tiles, int count, const int32_t* from,
                             const int32_t* stop, const vec<number>* highest) {
        for (int r = 0; r < n; ++r) {
            const number highest_of_row = max_lane<number>(highest[r]);
            number &largest = tiles.largest[first + r], *total = tiles.sums + (first + r) * width;
            largest = highest_of_row > largest ? highest_of_row : largest;
            const vec<number> added = broadcast((number)(-row_bias(first + r) * log2_e));
            vec<number> sum = {};
            const number* score = tiles.scores + r * Tiles::row;
            unit* weight = tiles.weights + r * Tiles::unit_row;
            DropoutMask drop_mask;
            if (tiles.threshold) drop_mask = tiles.make_drop_mask(tiles.first_query + first + r);
            for (int t = 0; t < count; ++t)
                for (int64_t c0 = from[t] * width; c0 < stop[t] * width; c0 += width) {
                    const vec<number> x = multiply_add(load(score + t * tile + c0), broadcast(times), added);
                    vec<number> w = SigmoidWeight<vec<number>>::template of<A::degree>(x).weight;
                    if (tiles.threshold) {
                        sum += w;
                        w = apply_dropout(drop_mask, (uint32_t)(key_tiles[t].index * tile + c0), tiles.threshold, w);
                    }
                    tiles.store_weights(weight, t * tile + c0, w);
                }
            store(total, load(total) + sum);
        }
    }

    // Whether every component of an output is NaN, as those of a NaN weight are.
    REGARD_INLINE bool is_nan(const number* row) const {
        int64_t k = 0;
        while (k < p.value_dim && row[k] != row[k]) ++k;
        return k == p.value_dim;
    }

    void finish(const ForwardResults& results) {
        const Array& out = results.output;
        for (int64_t i = 0; i < tiles.rows; ++i) {
            const number sum = sum_lanes<number>(load(tiles.sums + i * width)), largest = tiles.largest[i] * factor;
            const number* row = tiles.output + i * tiles.value_stride;
            const bool is_broken = (tiles.broken_rows >> i & 1) || largest == Tiles::infinity || sum != sum || is_nan(row);
            const bool is_empty = !is_broken && largest == -Tiles::infinity;
            if (results.normalizer) {
                const number state = is_broken ? (number)NAN : is_empty ? -Tiles::infinity : 0;
                Normalizer<number>{row_bias(i), state}.write(results.normalizer, tiles.batch, tiles.head,
                                                             tiles.first_query + i);
            }
            const number inverse = is_broken ? (number)NAN : is_empty ? 0 : (number)(1 / (1 - p.dropout));
            write_scaled_row(row, p.value_dim, inverse, out, out.at(tiles.batch, tiles.head, tiles.first_query + i, 0));
        }
    }
};

// The number of keys that each query of a tile may attend to by the mask.
struct VisibleKeys {
    static void count(const Problem& p, int64_t batch, int64_t head, int64_t query_tile, int64_t* counts) {
        constexpr int together = 8;
        const int64_t rows = p.queries_in(query_tile);
        for (int64_t i = 0; i < rows; ++i) counts[i] = 0;
        MaskView view(p, batch, head);
        KeyTileIterator of_query(view, query_tile);
        KeyTile key_tiles[together];
        uint64_t bits[together * tile];
        while (int found = of_query.next(together, key_tiles, bits))
            for (int t = 0; t < found; ++t)
                for (int64_t i = 0; i < rows; ++i)
                    counts[i] += key_tiles[t].is_partial ? __builtin_popcountll(bits[t * tile + i]) : tile;
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

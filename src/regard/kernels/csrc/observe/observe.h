// Observe: the forward pass with statistics of its weights.
//
//     w_ij        exp(s_ij - lse_i)
//     entropy_i   -sum_j w_ij ln w_ij = ln l - (sum_j 2^x_ij x_ij) ln 2 / l        x = (s - m) log2 e,  l = sum 2^x
//     top_i       the keys of the largest w_ij; among equal weights the lower key first
//     received_j  sum_i w_ij
//     rows        w_ij of some queries i
//     sink_weight_i, with a sink (attention_sink.h): it takes part in the entropy as a key does, and not in the others
//
// Entropy and top are computed from the strips of scores of the forward pass, with sums rescaled to the running maximum
// (Milakov and Gimelshein 2018): one more multiply-add and one compare per score. The received weights need the sum of
// every query first, so a second pass computes the scores again. It needs m and 1 / l of each query, its *normal*.
// 1 / l is NaN for a query whose result is NaN, so that every key that the query may attend to receives NaN.
#pragma once

#include <type_traits>

#include "attention/forward.h"
#include "observe/observe_kernels.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// Lower bound for exponents x in sums of 2^x x: below it 2^x is 0, and 0 * -infinity would be NaN.
template <class Number>
inline constexpr Number exponent_floor = sizeof(Number) == 4 ? -200 : -1200;

// The largest number less than x, which must not be -infinity or NaN.
REGARD_INLINE float next_below(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = x > 0 ? bits - 1 : x < 0 ? bits + 1 : 0x80000001u;
    memcpy(&x, &bits, sizeof bits);
    return x;
}
REGARD_INLINE double next_below(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = x > 0 ? bits - 1 : x < 0 ? bits + 1 : 0x8000000000000001u;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

// The largest scores of each query of a tile, in descending order; of equal ones the lower key first.
template <class Number>
struct TopScores {
    static constexpr int width = lanes<Number>;
    static constexpr Number infinity = (Number)HUGE_VAL;

    int64_t top;
    Number* scores;  // 64 x top; -infinity where there is none
    int64_t* keys;   // 64 x top; -1 where there is none
    Number* limit;   // 64: only larger scores can be among the largest

    void carve(ScratchLayout& c, int64_t top_of) {
        top = top_of;
        scores = c.take<Number>(tile * top);
        keys = c.take<int64_t>(tile * top);
        limit = c.take<Number>(tile);
    }

    void clear() {
        for (int64_t i = 0; i < tile * top; ++i) scores[i] = -infinity, keys[i] = -1;
        for (int64_t i = 0; i < tile; ++i) limit[i] = top ? -infinity : infinity;
    }

    // Inserts scores of a query and a group of tiles, vectors from .. stop - 1 of each, from the last key to the first:
    // if scores increase with the key, as with a bias for near keys, only the first few are inserted. Within the group
    // an equal score is inserted before the existing one, since its key is lower; across groups, after it.
    REGARD_INLINE void see(int64_t query, const Number* score, const KeyTile* tiles, int count, const int32_t* from,
                           const int32_t* stop) {
        bool any = false;
        for (int t = count - 1; t >= 0; --t)
            for (int64_t c = (stop[t] - 1) * width; c >= from[t] * width; c -= width) {
                const Number* here = score + t * tile + c;
                uint32_t larger_ones = compare_greater(load(here), broadcast(limit[query]));
                for (; larger_ones; any = true) {
                    int lane = 31 - __builtin_clz(larger_ones);
                    larger_ones ^= 1u << lane;
                    if (here[lane] > limit[query]) put(query, here[lane], tiles[t].index * tile + c + lane);
                }
            }
        if (any) limit[query] = scores[query * top + top - 1];
    }

  private:
    REGARD_INLINE void put(int64_t query, Number score, int64_t key) {
        Number* s = scores + query * top;
        int64_t* k = keys + query * top;
        int64_t at = top - 1;
        for (; at > 0 && (s[at - 1] < score || (s[at - 1] == score && k[at - 1] > key)); --at)
            s[at] = s[at - 1], k[at] = k[at - 1];
        s[at] = score, k[at] = key;
        limit[query] = s[top - 1] > -infinity ? next_below(s[top - 1]) : -infinity;
    }
};

// Hook of the forward pass of one tile of queries, which writes its statistics.
template <class A>
struct StatisticsHook {
    typedef typename A::number Number;
    static constexpr int width = lanes<Number>;
    static constexpr Number floor = exponent_floor<Number>;

    const ObserveOutputs* into = nullptr;
    int64_t batch = 0, head = 0, first_query = 0, queries = 0, heads = 0;
    Number times = 1;          // factor of the difference of two scores in the exponent
    Number* shares = nullptr;  // 64 x lanes: sum_j 2^x x
    TopScores<Number> largest = {};

    struct Row {
        vec<Number> share = {};
        REGARD_INLINE void see(vec<Number> x, vec<Number> weight) {
            share = multiply_add(weight, maximum(broadcast(floor), x), share);
        }
    };

    void carve(ScratchLayout& c, const Problem& p, int64_t top) {
        shares = c.take<Number>(tile * width);
        largest.carve(c, min_of(top, p.keys));
    }

    // Adapts the sums to a new largest score: exponents x become x + change. `sums` are sums of the old 2^x.
    REGARD_INLINE void raise(int64_t row, const Number* sums, Number change) {
        Number* share = shares + row * width;
        change = change > floor ? change : floor;
        store(share, multiply_add(load(sums), broadcast(change), load(share)));
    }

    REGARD_INLINE void see(int64_t row, const Row& seen, Number shrink, vec<Number> highest, const Number* score,
                           const KeyTile* tiles, int count, const int32_t* from, const int32_t* stop) {
        Number* share = shares + row * width;
        store(share, multiply_add(load(share), broadcast(shrink), seen.share));
        if (compare_greater(highest, broadcast(largest.limit[row]))) largest.see(row, score, tiles, count, from, stop);
    }

    // `m` is the largest score, `sum` the sum of 2^x.
    REGARD_INLINE void finish(int64_t row, bool is_broken, bool is_empty, Number m, Number sum, const SinkShare& shared) {
        int64_t query = first_query + row;
        Number inverse = is_broken ? (Number)NAN : is_empty ? 0 : (Number)(shared.keys / (double)sum);
        if (is_empty) m = 0;
        Number* normal = (Number*)into->normals + 2 * ((batch * heads + head) * queries + query);
        normal[0] = m, normal[1] = inverse;
        if (const Array& e = into->statistics.entropy) {
            double share = sum_lanes<Number>(load(shares + row * width));
            double entropy = is_empty ? 0 : log((double)sum) - share * ln_2 / (double)sum;
            if (shared.sink > 0)  // of two groups, keys and sink, and within the keys
                entropy = (shared.keys > 0 ? shared.keys * (entropy - log(shared.keys)) : 0) - shared.sink * log(shared.sink);
            if (entropy < 0) entropy = 0;  // by rounding
            ((Number*)e.data)[e.at(0, batch, head, query)] = is_broken ? (Number)NAN : (Number)entropy;
        }
        if (const Array& weight = into->statistics.sink_weight)
            ((Number*)weight.data)[weight.at(0, batch, head, query)] = is_broken ? (Number)NAN : (Number)shared.sink;
        if (into->statistics.top_keys) write_top(row, is_broken, m, inverse);
    }

    REGARD_INLINE void write_top(int64_t row, bool is_broken, Number m, Number inverse) {
        const Array &keys = into->statistics.top_keys, &weights = into->statistics.top_weights;
        int64_t query = first_query + row, there = largest.top;
        const Number* score = largest.scores + row * there;
        const int64_t* key = largest.keys + row * there;
        for (int64_t k = 0; k < keys.shape[3]; ++k) {
            bool found = k < there && !is_broken && key[k] >= 0;
            ((int64_t*)keys.data)[keys.at(batch, head, query, k)] = found ? key[k] : -1;
            Number weight = 0;
            if (found) {
                weight = softmax_weight<A::degree>(broadcast((score[k] - m) * times))[0] * inverse;
            }
            if (is_broken && k < there) weight = (Number)NAN;
            ((Number*)weights.data)[weights.at(batch, head, query, k)] = weight;
        }
    }
};

// Pass: the forward pass.
template <class A, template <class, class> class Pass = Forward>
struct Observe {
    typedef typename A::number number;
    typedef Forward<A> Scores;
    static constexpr int width = lanes<number>;

    static constexpr size_t normal_bytes = 2 * sizeof(number);

    // ---- first pass: a tile of queries ----

    static size_t scratch(const Problem& p, int64_t top) {
        ScratchLayout c{nullptr};
        StatisticsHook<A>{}.carve(c, p, top);
        return c.used_bytes + Pass<A, StatisticsHook<A>>::scratch(p);
    }

    static void run(const Problem& p, const PackedKeys& keys, int64_t batch, int64_t head, int64_t query_tile,
                    const ObserveOutputs& into, char* scratch) {
        StatisticsHook<A> hook;
        hook.into = &into;
        hook.batch = batch, hook.head = head, hook.first_query = query_tile * tile;
        hook.queries = p.queries, hook.heads = p.heads;
        ScratchLayout c{scratch};
        hook.carve(c, p, into.statistics.top_keys ? into.statistics.top_keys.shape[3] : 0);
        memset(hook.shares, 0, sizeof(number) * (size_t)(tile * width));
        hook.largest.clear();
        Pass<A, StatisticsHook<A>> forward(p, keys, batch, head, query_tile, scratch + c.used_bytes, hook);
        forward.hook.times = forward.times;
        forward.process_keys(query_tile);
        forward.finish(into.results);
    }

    // ---- second pass: the received weights of a few tiles of keys ----

    static constexpr int received_tiles = 8;

    static size_t received_scratch(const Problem& p) {
        ScratchLayout c{nullptr};
        c.take<number>(2 * received_tiles * tile);
        c.take<number>(2 * tile);
        return c.used_bytes + Scores::scratch(p);
    }

    static void received(const Problem& p, const PackedKeys& keys, int64_t batch, int64_t head, int64_t first_tile,
                         int64_t stop_tile, const ObserveOutputs& into, char* scratch) {
        REGARD_ASSERT(0 <= first_tile && first_tile < stop_tile && stop_tile - first_tile <= received_tiles);
        int count = (int)(stop_tile - first_tile);
        ScratchLayout c{scratch};
        number* total = c.take<number>(received_tiles * tile);
        number* part =
            c.take<number>(received_tiles * tile);  // of one tile of queries: two short sums have a smaller error
        number* most = c.take<number>(tile);
        number* inverse = c.take<number>(tile);
        memset(total, 0, sizeof(number) * (size_t)(count * tile));
        MaskView view(p, batch, head);
        TileRange queries_of[received_tiles];
        int64_t first = p.query_tiles(), stop = 0;
        for (int t = 0; t < count; ++t) {
            const TileRange of_tile = queries_of[t] = view.query_tile_range(first_tile + t);
            if (of_tile.first < of_tile.past) first = min_of(first, of_tile.first), stop = max_of(stop, of_tile.past);
        }
        for (int64_t i = first; i < stop; ++i) {
            Scores scores(p, keys, batch, head, i, scratch + c.used_bytes);
            bool ready = false;
            for (int t = 0; t < count; ++t) {
                if (!queries_of[t].contains(i)) continue;
                int32_t bitmap = find_bitmap(view, i, first_tile + t);
                if (bitmap == -2) continue;
                Fill fill = view.read_tile(i, first_tile + t, bitmap, scores.bits);
                if (fill == Fill::empty) continue;
                if (!ready) {
                    scores.read_queries();
                    read_normals(p, into, batch, head, i, most, inverse);
                    ready = true;
                }
                number* sums = part + t * tile;
                memset(sums, 0, sizeof(number) * (size_t)tile);
                KeyTile keys_of{first_tile + t, fill == Fill::partial, first_tile + t};
                for_strips(scores.rows, [&](int64_t r, auto n) {
                    add_strip<decltype(n)::value>(scores, r, keys_of, most, inverse, sums);
                });
                for (int64_t j = 0; j < tile; j += width)
                    store(total + t * tile + j, load(total + t * tile + j) + load(sums + j));
            }
        }
        const Array& to = into.statistics.received;
        for (int64_t j = first_tile * tile; j < min_of(stop_tile * tile, p.keys); ++j)
            ((number*)to.data)[to.at(0, batch, head, j)] = total[j - first_tile * tile];
    }

    static REGARD_INLINE void read_normals(const Problem& p, const ObserveOutputs& into, int64_t batch, int64_t head,
                                           int64_t query_tile, number* most, number* inverse) {
        int64_t first = query_tile * tile;
        const number* normal = (const number*)into.normals + 2 * ((batch * p.heads + head) * p.queries + first);
        for (int64_t i = 0; i < p.queries_in(query_tile); ++i)
            most[i] = normal[2 * i], inverse[i] = normal[2 * i + 1];
    }

    // sums[j] += sum over the strip of w_ij
    template <int n>
    static REGARD_INLINE void add_strip(Scores& scores, int64_t first, const KeyTile& keys_of, const number* most,
                                        const number* inverse, number* sums) {
        const uint64_t* allowed = scores.bits + first;
        int32_t from, stop;
        Scores::template find_visible_vectors<n>(keys_of.is_partial, allowed, &from, &stop);
        scores.template for_products<n>(first, keys_of, from, stop, [&](int64_t v0, auto& s) {
            constexpr int vectors = std::remove_reference_t<decltype(s)>::panel;
#pragma GCC unroll 8
            for (int v = 0; v < vectors; ++v) {
                number* to = sums + (v0 + v) * width;
                vec<number> sum = load(to);
#pragma GCC unroll 8
                for (int r = 0; r < n; ++r) {
                    vec<number> x = (s.at[r][v] - broadcast(most[first + r])) * broadcast(scores.times);
                    vec<number> with = multiply_add(softmax_weight<A::degree>(x), broadcast(inverse[first + r]), sum);
                    sum = keys_of.is_partial ? select((uint32_t)(allowed[r] >> ((v0 + v) * width)), with, sum) : with;
                }
                store(to, sum);
            }
        });
    }

    // ---- the weights of one query ----

    static size_t row_scratch(const Problem& p) {
        ScratchLayout c{nullptr};
        c.take<number>(3 * tile);
        return c.used_bytes + Scores::scratch(p);
    }

    // The index-th of the requested rows.
    static void row(const Problem& p, const PackedKeys& keys, int64_t batch, int64_t head, int64_t index,
                    const ObserveOutputs& into, char* scratch) {
        const Array &rows = into.statistics.rows, &to = into.statistics.rows_weights;
        int64_t query = ((const int64_t*)rows.data)[rows.at(0, 0, 0, index)], query_tile = query / tile;
        int64_t r = query % tile;
        ScratchLayout c{scratch};
        number* most = c.take<number>(tile);
        number* inverse = c.take<number>(tile);
        number* weights = c.take<number>(tile);
        Scores scores(p, keys, batch, head, query_tile, scratch + c.used_bytes);
        scores.read_queries();
        read_normals(p, into, batch, head, query_tile, most, inverse);
        number* row_of = (number*)to.data + to.at(batch, head, index, 0);
        for (int64_t j = 0; j < p.keys; ++j) row_of[j * to.stride[3]] = 0;
        MaskView view(p, batch, head);
        KeyTileIterator of_query(view, query_tile);
        KeyTile keys_of;
        while (of_query.next(1, &keys_of, scores.bits)) {
            memset(weights, 0, sizeof(number) * (size_t)tile);
            add_strip<1>(scores, r, keys_of, most, inverse, weights);
            int64_t first = keys_of.index * tile;
            for (int64_t j = 0; j < p.keys_in(keys_of.index); ++j) row_of[(first + j) * to.stride[3]] = weights[j];
        }
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

// Forward pass: one tile of 64 queries of one head, with all its keys.
//
//     s_ij = scale q_i . k_j + bias_ij                    where the mask allows, else -infinity; or capped: softcap.h
//     m    = max over the keys so far,   l = sum exp(s - m),   o = sum exp(s - m) v
//     output_i = o / l,   lse_i = ln l + m                Milakov and Gimelshein 2018; Dao 2023, section 3.1
//
// With a sink (attention_sink.h), l has one term more, which is added at the end.
//
// If weights are rounded before the product (Bfloat16), o is divided by the sum of the rounded weights: a component
// that all values share is reproduced exactly, and gradients computed from o have no error in proportion to it.
//
// Keys are processed in groups of a few tiles (not necessarily adjacent: empty tiles are skipped). Within a group,
// scores, their maximum, weights and weighted values are computed for a strip of six queries at a time (on a matrix unit
// 32: matrix_forward.h), so that scores and weights of a strip stay in the L1 cache, and the keys and values of a group
// in the L2 cache.
#pragma once

#include "runtime/scratch_layout.h"
#include "tiles/attention_sink.h"
#include "tiles/bias_rows.h"
#include "tiles/gemm_microkernel.h"
#include "tiles/normalizer.h"
#include "tiles/pack.h"
#include "tiles/random.h"
#include "tiles/softcap.h"
#include "tiles/tile_kernels.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// Hook that is called while a tile of queries is computed. This one does nothing and costs nothing; see StatisticsHook
// in observe.h.
struct NoHook {
    struct Row {
        template <class V>
        REGARD_INLINE void see(V, V) {}  // exponents, weights
    };
    template <class Number>
    REGARD_INLINE void raise(int64_t, const Number*, Number) {}
    template <class V, class Number>
    REGARD_INLINE void see(int64_t, const Row&, Number, V, const Number*, const KeyTile*, int, const int32_t*,
                           const int32_t*) {}
    template <class Number>
    REGARD_INLINE void finish(int64_t, bool, bool, Number, Number, const SinkShare&) {}
};

// Queries whose scores and weights are held together.
template <class A>
inline constexpr int rows_together = strip;

template <class A, class Hook = NoHook>
struct Forward {
    typedef typename A::number number;
    typedef typename A::unit unit;
    typedef typename A::storage storage;
    static constexpr int group = A::group;
    static constexpr int width = lanes<number>;
    static constexpr int64_t row = group * tile;                // numbers in a strip's row of scores
    static constexpr int64_t unit_row = row / A::per_unit;      // units in a strip's row of weights
    static constexpr number infinity = (number)HUGE_VAL;

    // ---- state of one tile of queries ----
    const Problem& p;
    const PackedKeys& keys;
    int64_t batch, head, first_query, rows, depth, query_stride, value_stride;
    number factor;     // of products: |scale|
    bool premultiply;  // scores are scaled before their maximum is taken: with a bias or a cap, a scale of 0, or
                       // additive scores
    number times;      // factor of the difference of two scores in the exponent
    BiasRows<number> bias;
    Softcap<number> softcap;
    uint32_t threshold;
    unit* query;
    number *output, *scores, *bias_rows, *largest;
    number *sums, *divisors;  // sums of weights; sums of the rounded weights
    unit* weights;
    uint64_t* bits;
    uint64_t broken_rows = 0;  // rows whose result is NaN
    Hook hook;

    static int64_t units_in_row(const Problem& p) { return PackKeys<A>::unit_stride(p.head_dim); }

    static size_t scratch(const Problem& p) {
        return bytes_of_parts([&](ScratchLayout& c) { carve(c, p, nullptr); });
    }

    static void carve(ScratchLayout& c, const Problem& p, Forward* f) {
        c.take(f, &Forward::query, tile * units_in_row(p));
        c.take(f, &Forward::output, tile * padded_width<A>(p.value_dim));
        c.take(f, &Forward::scores, rows_together<A> * row);
        c.take(f, &Forward::bias_rows, strip * tile);
        c.take(f, &Forward::weights, rows_together<A> * unit_row);
        c.take(f, &Forward::largest, tile);
        c.take(f, &Forward::sums, tile * width);
        if (A::per_unit != 1) c.take(f, &Forward::divisors, tile * width);
        c.take(f, &Forward::bits, group * tile);
        if (f && A::per_unit == 1) f->divisors = f->sums;
    }

    Forward(const Problem& p, const PackedKeys& keys, int64_t batch, int64_t head, int64_t query_tile, char* scratch,
            Hook hook = {})
        : p(p), keys(keys), batch(batch), head(head), bias{p, batch, head},
          softcap(p, (number)fabs(p.scale)), hook(hook) {
        first_query = query_tile * tile;
        rows = p.queries_in(query_tile);
        depth = count_units<A>(p.head_dim);
        query_stride = units_in_row(p);
        value_stride = padded_width<A>(p.value_dim);
        factor = (number)fabs(p.scale);
        premultiply = bias.has_bias() || softcap || factor == 0 || p.vector;
        times = (number)((premultiply ? 1 : fabs(p.scale)) * log2_e);
        threshold = p.dropout > 0 ? drop_threshold(p.dropout) : 0;
        ScratchLayout c{scratch};
        carve(c, p, this);
    }

    // Computes one tile of queries and writes its rows of the results.
    static void run(const Problem& p, const PackedKeys& keys, int64_t batch, int64_t head, int64_t query_tile,
                    const ForwardResults& results, char* scratch) {
        Forward f(p, keys, batch, head, query_tile, scratch);
        f.process_keys(query_tile);
        f.finish(results);
    }

    void process_keys(int64_t query_tile) {
        for_key_strips(query_tile, [&](int64_t first, auto n, const KeyTile* tiles, int count) {
            process_strip<decltype(n)::value>(first, tiles, count);
        });
    }

    // Calls body(first row, Constant, key tiles, their number) for each group of key tiles and each strip.
    template <class Body>
    REGARD_INLINE void for_key_strips(int64_t query_tile, Body body) {
        for_key_groups(query_tile, [&](const KeyTile* tiles, int count) {
            for_strips(rows, [&](int64_t first, auto n) { body(first, n, tiles, count); });
        });
    }

    // Reads the queries, and calls body(key tiles, their number) for each group of key tiles. `bits` then has the keys
    // of the group that each row may attend to.
    template <class Body>
    REGARD_INLINE void for_key_groups(int64_t query_tile, Body body) {
        uint64_t bad_queries = read_queries();
        memset(output, 0, sizeof(number) * (size_t)(rows * value_stride));
        memset(sums, 0, sizeof(number) * (size_t)(rows * width));
        memset(divisors, 0, sizeof(number) * (size_t)(rows * width));
        for (int64_t i = 0; i < rows; ++i) largest[i] = -infinity;
        MaskView view(p, batch, head);
        KeyTileIterator of_query(view, query_tile);
        KeyTile tiles[group];
        // Every strip reads the keys and values of a group again, so they should fit the L2 cache.
        int64_t together = max_of(2, min_of(group, (512 << 10) / (int64_t)(keys.key_bytes + keys.value_bytes)));
        // Groups of similar size: the nine tiles of a window are split into five and four, not eight and one.
        int64_t all = of_query.max_tiles(), groups = ceil_div(all, together);
        if (groups > 0) together = ceil_div(all, groups);
        while (int count = of_query.next((int)together, tiles, bits)) {
            if (keys.pack_scratch) pack_group(tiles, count);
            for (int t = 0; t < count; ++t) mark_broken(tiles[t], bits + t * tile, bad_queries);
            body(tiles, count);
        }
    }

    // Packs the tiles of a group one after the other, where they are used at once.
    void pack_group(KeyTile* tiles, int count) {
        const int64_t key_head = head / p.group();
        for (int t = 0; t < count; ++t) {
            PackKeys<A>::pack(p, batch, key_head, tiles[t].index, keys.key + keys.key_bytes * (size_t)t,
                              keys.value + keys.value_bytes * (size_t)t, keys.bad + t, keys.pack_scratch);
            tiles[t].place = t;
        }
    }

    // Stores the queries as units; those with NaN or Inf as zeros, with their bit set.
    uint64_t read_queries() {
        int64_t stride = A::per_unit * query_stride;
        storage* to = (storage*)query;
        uint64_t bad = read_tokens(p.query, batch, head, first_query, rows, rows, p.head_dim, to, stride);
        if (bad) clear_rows(bad, p.head_dim, to, stride);
        if (p.scale < 0) negate(to, rows * stride);  // so that the largest product is the largest score
        return bad;
    }

    // Marks rows that may attend to a token with NaN or Inf, and rows whose query has NaN or Inf and that have an
    // allowed key.
    REGARD_INLINE void mark_broken(const KeyTile& t, const uint64_t* allowed, uint64_t bad_queries) {
        uint64_t bad_keys = keys.bad[t.place];
        if (!bad_keys && !bad_queries) return;
        for (int64_t i = 0; i < rows; ++i) {
            uint64_t seen = t.is_partial ? allowed[i] : ~(uint64_t)0;
            if ((seen & bad_keys) || (seen && (bad_queries >> i & 1))) broken_rows |= (uint64_t)1 << i;
        }
    }

    template <int n>
    REGARD_INLINE void process_strip(int64_t first, const KeyTile* tiles, int count) {
        int32_t from[group], stop[group];  // the vectors of each tile that any row of the strip may attend to
        uint64_t visible[group];           // the keys
        vec<number> highest[n];
        for (int r = 0; r < n; ++r) highest[r] = broadcast(-infinity);
        for (int t = 0; t < count; ++t) {
            visible[t] = find_visible_vectors<n>(tiles[t].is_partial, bits + t * tile + first, &from[t], &stop[t]);
            if (from[t] < stop[t]) score_tile<n>(first, t, tiles[t], from[t], stop[t], highest);
        }
        number shrink[n];
        weigh<n>(first, 0, tiles, count, from, stop, highest, shrink);
        mix<n>(first, tiles, count, visible, shrink);
    }

    // Returns the keys of a tile that any row of a strip may attend to, as bits, and writes the vectors with such keys.
    template <int n>
    static REGARD_INLINE uint64_t find_visible_vectors(bool is_partial, const uint64_t* allowed, int32_t* from,
                                                       int32_t* stop) {
        return find_visible_vectors(is_partial, allowed, n, from, stop);
    }
    static REGARD_INLINE uint64_t find_visible_vectors(bool is_partial, const uint64_t* allowed, int64_t count,
                                                       int32_t* from, int32_t* stop) {
        *from = 0, *stop = tile / width;
        if (!is_partial) return ~(uint64_t)0;
        uint64_t any = 0;
        for (int64_t r = 0; r < count; ++r) any |= allowed[r];
        *from = any ? __builtin_ctzll(any) / width : 0;
        *stop = any ? (63 - __builtin_clzll(any)) / width + 1 : 0;
        return any;
    }

    // scores[r][64 t + c]: the product, or the final score if `premultiply`; -infinity where forbidden.
    template <int n>
    REGARD_INLINE void score_tile(int64_t first, int t, const KeyTile& keys_of, int32_t from, int32_t stop,
                                  vec<number>* highest) {
        number* to = scores + t * tile;
        const uint64_t* allowed = bits + t * tile + first;
        for_products<n>(first, keys_of, from, stop, [&](int64_t v0, auto& s) {
            if (keys_of.is_partial)
                s.each([&](int r, int v, vec<number>& x) {
                    x = select((uint32_t)(allowed[r] >> ((v0 + v) * width)), x, broadcast(-infinity));
                });
            s.each([&](int r, int, vec<number>& x) { highest[r] = maximum(highest[r], x); });
            s.store_to(to + v0 * width, row);
        });
    }

    // Computes the products of a strip of queries and the vectors from .. stop - 1 of a tile of keys, or the final
    // scores if `premultiply`. Calls take(first vector, Sums) for each panel.
    template <int n, class Take>
    REGARD_INLINE void for_products(int64_t first, const KeyTile& keys_of, int32_t from, int32_t stop, Take take) {
        const Panels<A> key = PackKeys<A>::keys(p, keys.key + keys.key_bytes * (size_t)keys_of.place);
        const unit* left = query + first * query_stride;
        const number* added[n];
        if (bias.has_bias())
            for (int r = 0; r < n; ++r)
                added[r] = bias.read(first_query + first + r, keys_of.index * tile, bias_rows + r * tile);
        for_panels(from, stop, [&](int64_t v0, auto panel) {
            constexpr int vectors = decltype(panel)::value;
            Sums<A, n, vectors> s;
            s.clear();
            multiply_in_parts(s, left, query_stride, 1, key.at(0, v0), key.template step<vectors>(v0), depth);
            if (softcap) softcap.apply_to(s);
            if (premultiply)
                s.each([&](int r, int v, vec<number>& x) {
                    vec<number> plus = {};
                    if (bias.has_bias()) plus = load(added[r] + (v0 + v) * width);
                    x = multiply_add(x, broadcast(softcap ? 1 : factor), plus);
                });
            take(v0, s);
        });
    }

    // Computes weights of n rows from their scores, which are from row `at` on, relative to the new largest score; older
    // sums must be multiplied by `shrink`.
    template <int n>
    REGARD_INLINE void weigh(int64_t first, int64_t at, const KeyTile* tiles, int count, const int32_t* from,
                             const int32_t* stop, const vec<number>* highest, number* shrink) {
        number base[n], change[padded_strip];
        for (int r = 0; r < n; ++r) {
            number old = largest[first + r], now = max_lane<number>(highest[r]);
            now = now > old ? now : old;
            largest[first + r] = now;
            base[r] = now == -infinity ? 0 : now;  // no allowed key yet
            change[r] = (old - base[r]) * times;
            hook.raise(first + r, sums + (first + r) * width, change[r]);
        }
        for (int r = n; r < padded_strip; ++r) change[r] = 0;
        for (int r = 0; r < n; r += width) store(change + r, exp2<A::degree>(load(change + r)));
        for (int r = 0; r < n; ++r) {
            shrink[r] = change[r];
            const number* score = scores + (at + r) * row;
            unit* weight = weights + (at + r) * unit_row;
            vec<number> sum = {}, divisor = {};
            typename Hook::Row seen;
            if (threshold)
                weigh_row<true>(first + r, base[r], score, weight, tiles, count, from, stop, seen, &sum, &divisor);
            else
                weigh_row<false>(first + r, base[r], score, weight, tiles, count, from, stop, seen, &sum, &divisor);
            number* total = sums + (first + r) * width;
            store(total, multiply_add(load(total), broadcast(shrink[r]), sum));
            if constexpr (A::per_unit > 1) {
                total = divisors + (first + r) * width;
                store(total, multiply_add(load(total), broadcast(shrink[r]), divisor));
            }
            hook.see(first + r, seen, shrink[r], highest[r], score, tiles, count, from, stop);
        }
    }
    // Writes the weights of one row, their sum to `total`, and that of the rounded ones to `total_divisor`.
    template <bool has_dropout>
    REGARD_INLINE void weigh_row(int64_t i, number base, const number* score, unit* weight, const KeyTile* tiles, int count,
                                 const int32_t* from, const int32_t* stop, typename Hook::Row& seen, vec<number>* total,
                                 vec<number>* total_divisor) const {
        // Locals: a store of weights could change members, so those would be read again each time.
        const vec<number> most = broadcast(base), factor_of = broadcast(times);
        const uint32_t below = threshold;
        const DropoutMask drop_mask = has_dropout ? make_drop_mask(first_query + i) : DropoutMask{};
        vec<number> sum = {}, divisor = {};
        for (int t = 0; t < count; ++t) {
            const int64_t past = stop[t] * width;
            for (int64_t c0 = from[t] * width; c0 < past; c0 += width) {
                // The difference comes first; it is 0 for the largest score. The rounding error of times * score would
                // be large for a large score.
                const vec<number> x = (load(score + t * tile + c0) - most) * factor_of;
                vec<number> w = softmax_weight<A::degree>(x);
                sum += w;
                if constexpr (A::per_unit > 1) divisor += A::round_to_bfloat16(w);
                seen.see(x, w);
                if constexpr (has_dropout)
                    w = apply_dropout(drop_mask, (uint32_t)(tiles[t].index * tile + c0), below, w);
                store_weights(weight, t * tile + c0, w);
            }
        }
        *total = sum;
        *total_divisor = divisor;
    }
    REGARD_INLINE DropoutMask make_drop_mask(int64_t query_index) const {
        return DropoutMask(p.seed, (uint64_t)(batch * p.heads + head), (uint64_t)query_index);
    }
    static constexpr int padded_strip = (strip + width - 1) / width * width;

    static REGARD_INLINE void store_weights(unit* row_of, int64_t column, vec<number> w) {
        if constexpr (A::per_unit == 1)
            store(row_of + column, w);
        else
            store_narrow((bfloat16*)row_of + column, w);
    }

    // output = shrink * output + weights . values. From the first key that is `visible` to the last: of 49 keys not all 64.
    template <int n>
    REGARD_INLINE void mix(int64_t first, const KeyTile* tiles, int count, const uint64_t* visible, const number* shrink) {
        for_panels(0, value_stride / width, [&](int64_t v0, auto panel) {
            constexpr int vectors = decltype(panel)::value;
            Sums<A, n, vectors> s;
            number* to = output + first * value_stride + v0 * width;
            s.load_from(to, value_stride);
            s.each([&](int r, int, vec<number>& sum) { sum *= broadcast(shrink[r]); });
            for (int t = 0; t < count; ++t) {
                if (!visible[t]) continue;
                const Panels<A> value = PackKeys<A>::values(p, keys.value + keys.value_bytes * (size_t)tiles[t].place);
                const int64_t k0 = __builtin_ctzll(visible[t]) / A::per_unit;
                const int64_t past = (63 - __builtin_clzll(visible[t])) / A::per_unit + 1;
                multiply(s, weights + t * tile / A::per_unit + k0, unit_row, 1, value.at(k0, v0),
                         value.template step<vectors>(v0), past - k0);
            }
            s.store_to(to, value_stride);
        });
    }

    // The largest score of a row from `m`, which may be a product.
    REGARD_INLINE double largest_score(number m) const {
        return m == -infinity ? 0 : (double)m * (premultiply ? 1 : fabs(p.scale));
    }

    // Writes lse and the normalizer of a row from its largest score and ln of its sum, which is -infinity for a row
    // without allowed keys.
    REGARD_INLINE void write_normalizer(const ForwardResults& results, int64_t query, number m, double log_sum) const {
        if (const Array& lse = results.lse)
            ((number*)lse.data)[lse.at(0, batch, head, query)] = (number)(largest_score(m) + log_sum);
        if (!results.normalizer) return;
        number product = !premultiply && p.scale < 0 ? -m : m;  // queries were negated
        Normalizer<number>{product, (number)(log_sum * log2_e)}.write(results.normalizer, batch, head, query);
    }

    void finish(const ForwardResults& results) {
        number sum_of[tile], divisor_of[tile], inverse[tile];
        sum_lanes_of_rows(sums, sum_of);
        sum_lanes_of_rows(divisors, divisor_of);
        const double kept = 1 - p.dropout;
        for (int64_t i = 0; i < rows; ++i) inverse[i] = (number)(1 / ((double)divisor_of[i] * kept));
        for (int64_t i = 0; i < rows; ++i) finish_row(results, i, sum_of[i], (double)divisor_of[i] * kept, &inverse[i]);
        const Array &out = results.output, &rounding = results.rounding;
        const int64_t at = out.at(batch, head, first_query, 0);
        if (!rounding) return write_scaled_rows(output, value_stride, rows, p.value_dim, inverse, out, at);
        for (int64_t i = 0; i < rows; ++i)
            write_row_and_residual(output + i * value_stride, p.value_dim, inverse[i], out, at + i * out.stride[2], rounding,
                                   rounding.at(batch, head, first_query + i, 0));
    }

    // The sum of the lanes of each vector of `from`, for as many rows as there are.
    REGARD_INLINE void sum_lanes_of_rows(const number* from, number* to) const {
        for (int64_t i = 0; i < rows; i += width) {
            vec<number> of_row[width];
            for (int r = 0; r < width; ++r) of_row[r] = load(from + (i + r) * width);
            store(to + i, sum_each_vector<number>(of_row));
        }
    }

    // Writes the results of a row besides the output, and `inverse`, the factor of its output, where it is not 1 / divisor.
    REGARD_INLINE void finish_row(const ForwardResults& results, int64_t i, number sum, double divisor, number* inverse) {
        const number m = largest[i];
        bool is_broken = (broken_rows >> i & 1) || sum != sum || m == infinity;
        const bool is_empty = !is_broken && m == -infinity, has_sink = p.sinks && !is_empty;
        if (is_empty) *inverse = 0;
        double log_sum = 0;
        if (results.lse || results.normalizer || has_sink) log_sum = is_broken ? NAN : log((double)sum);
        SinkShare share(log_sum);
        if (has_sink) {
            share = {read_sink(p, batch, head, first_query + i), largest_score(m), log_sum};
            is_broken |= share.keys != share.keys;
            *inverse = (number)(share.keys / divisor);
        }
        if (results.lse || results.normalizer) write_normalizer(results, first_query + i, m, share.log_sum);
        if (is_broken) *inverse = (number)NAN;
        hook.finish(i, is_broken, is_empty, m, sum, share);
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

// Attention by features: weights that are products of features of the query and of the key, so that keys are summed once
// for all queries.
//
//     o_i = sum_j w_j s_ij v_j / sum_j w_j s_ij         s_ij = phi(q_i) . phi(k_j)
//
// Katharopoulos et al. 2020, "Transformers are RNNs", equations 4 to 12, and Choromanski et al. 2021, "Rethinking
// attention with Performers", lemma 1 and section 4.1. With p = W x, the products with the projection, features are
//
//     exponential    phi = exp(p - m) for the largest p = m; of a key exp(p - m) + floor, with the weight w =
//                    exp(m - norm_factor |k|^2)
//     relu           phi = max(p, 0) + 10^-3; those of a query are divided by the largest
//     elu            phi = elu(x) + 1, of a key at least `floor`; those of a query are divided by the largest
//
// A common factor of the features of a query cancels in the quotient. Features of 64 tokens at a time are computed into
// scratch memory, used and forgotten. The sums S = sum_j w_j phi(k_j) v_j^T and their denominators z = sum_j w_j phi(k_j)
// are divided by exp(r) for the largest logarithm r of a weight among the keys in them, so no exponential overflows.
//
// Causally, with S and r_0 before a chunk, and r_i the largest logarithm up to key i:
//
//     o_i = (exp(r_0 - r_i) phi(q_i) S + sum_(j<=i) exp(ln w_j - r_i) s_ij v_j) / the same sum of the weights
//
// A token with NaN or Inf, or with a norm from `largest_norm` on, is never multiplied: queries that may attend to it, and
// its own, are NaN. Queries that see no key are 0.
#pragma once

#include <math.h>

#include "scan/feature_kernels.h"
#include "scan/scan_chunk.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

REGARD_INLINE float exponential(float x) { return expf(x); }
REGARD_INLINE double exponential(double x) { return ::exp(x); }

// Widths of rows in memory: whole vectors, of which the last numbers are 0.
template <class A>
struct FeatureWidths {
    int64_t token, value, feature;
    REGARD_INLINE explicit FeatureWidths(const FeatureArguments& given)
        : token(padded_width<A>(given.head_dim)), value(padded_width<A>(given.value_dim)),
          feature(padded_width<A>(given.features)) {}
};

// Sums over keys: S (feature width x value width), z, the logarithm of what they are divided by, and of the keys in them
// whether any is visible, and whether any of those is not finite. The gradients of S and z, too, with S transposed.
template <class A>
struct FeatureSums {
    typedef typename A::number number;
    struct State {
        number log_scale;
        bool has_visible, has_nonfinite;
    };
    number *values, *totals, *columns;
    State* state;

    // Without memory for S transposed.
    REGARD_INLINE FeatureSums(const FeatureArguments& given, ScratchLayout& layout, number* columns) : columns(columns) {
        const FeatureWidths<A> width(given);
        values = layout.template take<number>(width.feature * width.value);
        totals = layout.template take<number>(width.feature);
        state = layout.template take<State>(1);
    }

    REGARD_INLINE FeatureSums(const FeatureArguments& given, ScratchLayout&& layout) : FeatureSums(given, layout) {}
    REGARD_INLINE FeatureSums(const FeatureArguments& given, ScratchLayout& layout) : FeatureSums(given, layout, nullptr) {
        const FeatureWidths<A> width(given);
        columns = layout.template take<number>(width.value * width.feature);
    }
};

template <class A>
struct FeatureAttention {
    typedef typename A::number number;
    typedef vec<number> numbers;
    typedef ScanProducts<A> Products;
    typedef typename Products::Depth Depth;
    typedef FeatureSums<A> KeySums;
    static constexpr int64_t n = lanes<number>;
    static constexpr number relu_floor = (number)1e-3;
    static constexpr number hidden_log_weight = -(number)0x1p100f;  // below every other one, and finite

    // The projection, transposed (head_dim x feature width), and its rows (features x token width).
    struct Projection {
        number *columns, *rows;
        REGARD_INLINE Projection(const FeatureArguments& given, ScratchLayout&& layout) : Projection(given, layout) {}
        REGARD_INLINE Projection(const FeatureArguments& given, ScratchLayout& layout) {
            const FeatureWidths<A> width(given);
            const bool present = (bool)given.projection;
            columns = present ? layout.template take<number>(given.head_dim * width.feature) : nullptr;
            rows = present ? layout.template take<number>(width.feature * width.token) : nullptr;
        }
    };

    // A chunk of tokens, and what is computed from it.
    struct Memory {
        FeatureWidths<A> width;
        number *query, *key, *value, *output;  // rows of tokens
        number *query_products, *key_products, *query_features, *key_features, *gradients;  // rows of features
        number *feature_columns, *pairs;  // features of keys, transposed; products of queries and keys
        number *query_factor, *key_factor;  // of each token: see map_rows
        number *log_weight, *weight, *decay;  // of each key; of each query, exp(r_0 - r_i)
        number *of_output, *value_columns, *of_pairs, *of_total;  // backward, causally
        RowFetch fetch;

        REGARD_INLINE Memory(const FeatureArguments& given, ScratchLayout& layout) : width(given) {
            const auto take = [&](int64_t row) { return layout.template take<number>(feature_chunk * row); };
            query = take(width.token), key = take(width.token);
            value = take(width.value), output = take(width.value);
            query_products = given.projection ? take(width.feature) : query;
            key_products = given.projection ? take(width.feature) : key;
            query_features = take(width.feature), key_features = take(width.feature), gradients = take(width.feature);
            feature_columns = take(width.feature), pairs = take(tile);
            query_factor = take(1), key_factor = take(1), log_weight = take(1), weight = take(1), decay = take(1);
            of_output = take(width.value), value_columns = take(width.value), of_pairs = take(tile), of_total = take(1);
        }
    };

    static size_t projection_bytes(const FeatureArguments& given) {
        return bytes_of_parts([&](ScratchLayout& layout) { Projection(given, layout); });
    }
    static size_t scratch(const FeatureArguments& given) {
        return bytes_of_parts([&](ScratchLayout& layout) { Memory(given, layout); });
    }
    static size_t sums_bytes(const FeatureArguments& given) {
        return bytes_of_parts([&](ScratchLayout& layout) { KeySums(given, layout); });
    }

    static void pack_projection(const FeatureArguments& given, char* into) {
        if (!given.projection) return;
        const FeatureWidths<A> width(given);
        const Projection to(given, ScratchLayout{into});
        memset((void*)to.columns, 0, sizeof(number) * (size_t)(given.head_dim * width.feature));
        memset((void*)to.rows, 0, sizeof(number) * (size_t)(width.feature * width.token));
        const number* from = (const number*)given.projection.data;
        for (int64_t f = 0; f < given.features; ++f)
            for (int64_t d = 0; d < given.head_dim; ++d)
                to.columns[d * width.feature + f] = to.rows[f * width.token + d] = from[f * given.head_dim + d];
    }

    // ---- every query sees all keys ----

    static void sum_keys(const FeatureArguments& given, int64_t batch, int64_t sum_head, int64_t first, int64_t stop,
                         const char* packed, char* into, char* scratch) {
        const Projection projection(given, ScratchLayout{(char*)packed});
        ScratchLayout layout{scratch};
        Memory m(given, layout);
        KeySums sums(given, ScratchLayout{into});
        const int64_t key_head = sum_head * given.key_heads / given.sum_heads();
        for (int64_t token = first; token < stop; token += feature_chunk) {
            const int64_t count = count_from(token, stop);
            const Bits bits = load_keys(given, m, batch, key_head, sum_head, token, count);
            m.fetch.start(count_or_zero(token + feature_chunk, stop));
            m.fetch.add(given.key, batch, key_head, token + feature_chunk);
            m.fetch.add(given.value, batch, key_head, token + feature_chunk);
            map_keys(given, projection, m, count);
            add_chunk(given, m, sums, bits, count);
        }
    }

    // Adds the sums of ranges to those of the first one, in their order, and writes them.
    static void join(const FeatureArguments& given, const FeatureResults& results, int64_t batch, int64_t sum_head,
                     int64_t ranges, char* const* parts) {
        const FeatureWidths<A> width(given);
        KeySums sums(given, ScratchLayout{parts[0]});
        for (int64_t range = 1; range < ranges; ++range) {
            const KeySums more(given, ScratchLayout{parts[range]});
            const number before = sums.state->log_scale, own = more.state->log_scale;
            const number both = before > own ? before : own;
            const number keep = decay_of(before - both), take = decay_of(own - both);
            add_scaled(more.values, take, sums.values, keep, width.feature * width.value);
            add_scaled(more.totals, take, sums.totals, keep, width.feature);
            sums.state->log_scale = both;
            sums.state->has_visible |= more.state->has_visible;
            sums.state->has_nonfinite |= more.state->has_nonfinite;
        }
        write_sums(given, results, batch, sum_head, sums);
    }

    static void attend(const FeatureArguments& given, const FeatureResults& results, int64_t batch, int64_t head,
                       int64_t first, int64_t stop, const char* packed, const char* of_keys, char* scratch) {
        const Projection projection(given, ScratchLayout{(char*)packed});
        const KeySums sums(given, ScratchLayout{(char*)of_keys});
        ScratchLayout layout{scratch};
        Memory m(given, layout);
        for (int64_t token = first; token < stop; token += feature_chunk) {
            const int64_t count = count_from(token, stop);
            uint64_t bad = load_queries(given, m, batch, head, token, count);
            if (sums.state->has_nonfinite) bad = ~(uint64_t)0;
            m.fetch.start(count_or_zero(token + feature_chunk, stop));
            m.fetch.add(given.query, batch, head, token + feature_chunk);
            m.fetch.add(results.output, batch, head, token);
            map_queries(given, projection, m, count);
            multiply_deep(m.query_features, m.width.feature, sums.values, m.width.value, given.features, m.output,
                          count, &m.fetch);
            for (int64_t i = 0; i < count; ++i) {
                const number total = Products::dot(m.query_features + i * m.width.feature, sums.totals, m.width.feature);
                write_output(given, results, m, batch, head, token, i, 1 / total, bad >> i & 1, sums.state->has_visible);
            }
        }
    }

    // ---- query i sees the keys up to i ----

    // The outputs of the queries first .. stop - 1, from the sums of all keys before, to which theirs are added.
    static void attend_causally(const FeatureArguments& given, const FeatureResults& results, int64_t batch,
                                int64_t head, int64_t first, int64_t stop, const char* packed, char* into,
                                char* scratch) {
        const Projection projection(given, ScratchLayout{(char*)packed});
        ScratchLayout layout{scratch};
        Memory m(given, layout);
        KeySums sums(given, ScratchLayout{into});
        const int64_t key_head = head * given.key_heads / given.heads;
        for (int64_t token = first; token < stop; token += feature_chunk) {
            const int64_t count = count_from(token, stop), next = token + feature_chunk;
            uint64_t bad = load_queries(given, m, batch, head, token, count);
            const Bits bits = load_keys(given, m, batch, key_head, head, token, count);
            uint64_t seen = sums.state->has_visible ? ~(uint64_t)0 : from_lowest(bits.visible);
            bad |= sums.state->has_nonfinite ? ~(uint64_t)0 : from_lowest(bits.nonfinite);
            m.fetch.start(count_or_zero(next, stop));
            m.fetch.add(given.query, batch, head, next);
            m.fetch.add(given.key, batch, key_head, next);
            m.fetch.add(given.value, batch, key_head, next);
            m.fetch.add(results.output, batch, head, token);
            map_queries(given, projection, m, count);
            map_keys(given, projection, m, count);
            pair(given, m, count);
            weigh_pairs(given, m, sums.state->log_scale, bits.excluded, count, m.pairs);
            multiply_deep(m.query_features, m.width.feature, sums.values, m.width.value, given.features, m.output,
                          count, &m.fetch);
            for (int64_t i = 0; i < count; ++i)
                if (m.decay[i] != 1) scale_row(m.output + i * m.width.value, m.decay[i], m.width.value);
            Products::multiply_rows(m.pairs, tile, 1, m.value, m.width.value, count, Depth::to_row, m.output, m.output,
                                    m.width.value, count, 0, m.width.value / n, &m.fetch);
            for (int64_t i = 0; i < count; ++i) {
                write_output(given, results, m, batch, head, token, i, 1 / total_of(m, sums, i), bad >> i & 1, seen >> i & 1);
            }
            add_chunk(given, m, sums, bits, count);
        }
        if (stop == given.keys) write_sums(given, results, batch, head, sums);
    }

    static void clear(const FeatureArguments& given, char* into) {
        KeySums sums(given, ScratchLayout{into});
        clear_sums(given, sums);
    }
    static void copy(const FeatureArguments& given, const char* from, char* to) {
        memcpy(to, from, sums_bytes(given));
    }

    // ---- parts, also of the backward pass ----

    // Of the keys of a chunk: those that are hidden or not finite; those that are visible, and those of them that are not
    // finite.
    struct Bits {
        uint64_t excluded, visible, nonfinite;
    };

    static REGARD_INLINE int64_t count_from(int64_t token, int64_t stop) {
        return stop - token < feature_chunk ? stop - token : feature_chunk;
    }
    static REGARD_INLINE int64_t count_or_zero(int64_t token, int64_t stop) {
        return token < stop ? count_from(token, stop) : 0;
    }
    static REGARD_INLINE uint64_t first_bits(int64_t count) {
        return count < 64 ? ((uint64_t)1 << count) - 1 : ~(uint64_t)0;
    }
    // The lowest bit that is set, and all above.
    static REGARD_INLINE uint64_t from_lowest(uint64_t bits) { return bits ? ~((bits & -bits) - 1) : 0; }
    static REGARD_INLINE void scale_row(number* row, number by, int64_t width) {
        Products::scale_row(row, by, width, row);
    }
    // The denominator of query i in its chunk.
    static REGARD_INLINE number total_of(const Memory& m, const KeySums& sums, int64_t i) {
        return m.decay[i] * Products::dot(m.query_features + i * m.width.feature, sums.totals, m.width.feature) +
               sum_row(m.pairs + i * tile, i + 1);
    }
    static REGARD_INLINE number decay_of(number logarithm) { return logarithm == 0 ? 1 : exponential(logarithm); }

    static REGARD_INLINE void clear_sums(const FeatureArguments& given, KeySums& sums) {
        const FeatureWidths<A> width(given);
        memset((void*)sums.values, 0, sizeof(number) * (size_t)(width.feature * width.value));
        memset((void*)sums.totals, 0, sizeof(number) * (size_t)width.feature);
        *sums.state = {given.map == FeatureMap::exponential ? hidden_log_weight : (number)0, false, false};
    }

    // Reads rows and clears those that are not finite, or too large. Returns their bits.
    static REGARD_INLINE uint64_t load_rows(const FeatureArguments& given, const Array& rows, int64_t batch,
                                            int64_t head, int64_t first, int64_t count, int64_t size, int64_t width,
                                            number* to, number* squares) {
        const int64_t height = ceil_div(count, 16) * 16;
        uint64_t bad = read_rows(rows, rows.at(batch, head, first, 0), count, height, size, to, width);
        const number largest = (number)(given.largest_norm * given.largest_norm);
        for (int64_t i = 0; i < count; ++i) {
            const number square = Products::dot(to + i * width, to + i * width, width);
            if (!(square < largest)) bad |= (uint64_t)1 << i;
            if (squares) squares[i] = square;
        }
        if (bad) clear_rows(bad, width, to, width);
        return bad;
    }
    static REGARD_INLINE uint64_t load_queries(const FeatureArguments& given, Memory& m, int64_t batch, int64_t head,
                                               int64_t first, int64_t count) {
        return load_rows(given, given.query, batch, head, first, count, given.head_dim, m.width.token, m.query, nullptr);
    }
    // Keys that are excluded, and their values, are 0. |k|^2 is in `log_weight`.
    static REGARD_INLINE Bits load_keys(const FeatureArguments& given, Memory& m, int64_t batch, int64_t key_head,
                                        int64_t sum_head, int64_t first, int64_t count) {
        uint64_t bad = load_rows(given, given.key, batch, key_head, first, count, given.head_dim, m.width.token, m.key,
                                 m.log_weight);
        bad |= load_rows(given, given.value, batch, key_head, first, count, given.value_dim, m.width.value, m.value,
                         nullptr);
        uint64_t hidden = 0;
        if (given.hidden) {
            const Array& from = given.hidden;
            const int64_t head = from.shape[1] > 1 ? sum_head : 0;
            for (int64_t i = 0; i < count; ++i)
                hidden |= (uint64_t)(((const bool*)from.data)[from.at(batch, head, 0, first + i)]) << i;
        }
        const Bits bits = {bad | hidden, ~hidden & first_bits(count), bad & ~hidden};
        if (bits.excluded) {
            clear_rows(bits.excluded, m.width.token, m.key, m.width.token);
            clear_rows(bits.excluded, m.width.value, m.value, m.width.value);
            for (int64_t i = 0; i < count; ++i)
                if (bits.excluded >> i & 1) m.log_weight[i] = 0;
        }
        return bits;
    }

    static REGARD_INLINE void project(const FeatureArguments& given, const Projection& projection, const number* tokens,
                                      int64_t count, number* products, RowFetch* fetch) {
        const FeatureWidths<A> width(given);
        if (!given.projection) return;
        Products::multiply_rows(tokens, width.token, 1, projection.columns, width.feature, given.head_dim, Depth::whole,
                                nullptr, products, width.feature, count, 0, width.feature / n, fetch);
    }

    // to_v = sum_k left_k right_kv, or that is added, in parts of some 96 products: their rows of `right` stay in the first cache, and a sum of
    // many numbers would round each of them relative to all.
    static REGARD_INLINE void multiply_deep(const number* left, int64_t row, const number* right, int64_t width,
                                            int64_t depth, number* to, int64_t rows, RowFetch* fetch = nullptr,
                                            bool add = false) {
        const int64_t part = ceil_div(depth, ceil_div(depth, 96));
        for (int64_t first = 0; first < depth; first += part)
            Products::multiply_rows(left + first, row, 1, right + first * width, width,
                                    depth - first < part ? depth - first : part, Depth::whole,
                                    first || add ? to : nullptr, to, width, rows, 0, width / n, fetch);
    }

    // Calls body(first number, lanes of features) for each vector of a row.
    template <class Body>
    static REGARD_INLINE void for_features(const FeatureArguments& given, Body body) {
        int64_t f = 0;
        for (; f + n <= given.features; f += n) body(f, ~0u);
        if (f < given.features) body(f, Products::first_lanes(f / n, given.features));
    }
    static REGARD_INLINE number largest_of(const FeatureArguments& given, const number* row) {
        numbers largest = broadcast((number)-HUGE_VAL);
        for_features(given, [&](int64_t f, uint32_t in) {
            largest = select(in, maximum(load(row + f), largest), largest);
        });
        return max_lane<number>(largest);
    }

    // Features of the tokens of a chunk, and of each row the largest product, or (relu, elu) the factor of its features.
    template <FeatureMap map>
    static REGARD_INLINE void map_rows(const FeatureArguments& given, const number* products, number floor, bool of_keys,
                                       int64_t count, number* features, number* of_row) {
        const int64_t width = FeatureWidths<A>(given).feature;
        const numbers zero = {}, to_log2 = broadcast((number)log2_e);
        for (int64_t i = 0; i < count; ++i) {
            const number* from = products + i * width;
            number* to = features + i * width;
            const bool divided = map == FeatureMap::exponential || !of_keys;
            const number most = divided ? largest_of(given, from) : 0;
            if constexpr (map == FeatureMap::exponential) {
                const numbers top = broadcast(most), least = broadcast(floor);
                for_features(given, [&](int64_t f, uint32_t in) {
                    store(to + f, select(in, exp2<A::degree>((load(from + f) - top) * to_log2) + least, zero));
                });
                of_row[i] = most;
            } else if constexpr (map == FeatureMap::relu) {
                const numbers least = broadcast(relu_floor);
                of_row[i] = divided ? 1 / ((most > 0 ? most : 0) + relu_floor) : 1;
                const numbers factor = broadcast(of_row[i]);
                for_features(given, [&](int64_t f, uint32_t in) {
                    store(to + f, select(in, (maximum(load(from + f), zero) + least) * factor, zero));
                });
            } else {
                const numbers base = broadcast(divided && most < 0 ? most : (number)0), least = broadcast(floor);
                of_row[i] = divided && most > 0 ? 1 / (1 + most) : 1;
                const numbers factor = broadcast(of_row[i]);
                for_features(given, [&](int64_t f, uint32_t in) {
                    const numbers x = load(from + f);
                    const numbers phi = exp2<A::degree>((minimum(x, zero) - base) * to_log2) + maximum(x, zero);
                    store(to + f, select(in, maximum(phi, least) * factor, zero));
                });
            }
        }
    }
    static REGARD_INLINE void map_features(const FeatureArguments& given, const number* products, bool of_keys,
                                           int64_t count, number* features, number* of_row) {
        const number floor = of_keys ? (number)given.floor : 0;
        switch (given.map) {
            case FeatureMap::exponential:
                return map_rows<FeatureMap::exponential>(given, products, floor, of_keys, count, features, of_row);
            case FeatureMap::relu:
                return map_rows<FeatureMap::relu>(given, products, floor, of_keys, count, features, of_row);
            case FeatureMap::elu:
                return map_rows<FeatureMap::elu>(given, products, floor, of_keys, count, features, of_row);
        }
    }
    static __attribute__((noinline)) void map_queries(const FeatureArguments& given, const Projection& projection,
                                                      Memory& m, int64_t count) {
        project(given, projection, m.query, count, m.query_products, &m.fetch);
        map_features(given, m.query_products, false, count, m.query_features, m.query_factor);
    }
    static __attribute__((noinline)) void map_keys(const FeatureArguments& given, const Projection& projection,
                                                   Memory& m, int64_t count) {
        project(given, projection, m.key, count, m.key_products, &m.fetch);
        map_features(given, m.key_products, true, count, m.key_features, m.key_factor);
        for (int64_t j = 0; j < count; ++j)
            m.log_weight[j] = given.map == FeatureMap::exponential
                                  ? m.key_factor[j] - (number)given.norm_factor * m.log_weight[j]
                                  : (number)0;
    }

    // weight_j = exp(ln w_j - log_scale), 0 for keys that are excluded.
    static REGARD_INLINE void weigh_keys(const FeatureArguments& given, Memory& m, number log_scale, uint64_t excluded,
                                         int64_t count) {
        for (int64_t j = 0; j < count; ++j)
            m.weight[j] = excluded >> j & 1                          ? 0
                          : given.map == FeatureMap::exponential ? decay_of(m.log_weight[j] - log_scale)
                                                                 : (number)1;
    }

    // Adds a chunk of keys to the sums; its values are multiplied by their weights.
    static REGARD_INLINE void add_chunk(const FeatureArguments& given, Memory& m, KeySums& sums, const Bits& bits,
                                        int64_t count) {
        sums.state->has_visible |= bits.visible != 0;
        sums.state->has_nonfinite |= bits.nonfinite != 0;
        number scale = sums.state->log_scale;
        if (given.map == FeatureMap::exponential) {
            for (int64_t j = 0; j < count; ++j)
                if (!(bits.excluded >> j & 1) && m.log_weight[j] > scale) scale = m.log_weight[j];
            const number keep = decay_of(sums.state->log_scale - scale);
            if (keep != 1) {
                scale_row(sums.values, keep, m.width.feature * m.width.value);
                scale_row(sums.totals, keep, m.width.feature);
            }
            sums.state->log_scale = scale;
        }
        weigh_keys(given, m, scale, bits.excluded, count);
        for (int64_t j = 0; j < count; ++j)
            if (m.weight[j] != 1) scale_row(m.value + j * m.width.value, m.weight[j], m.width.value);
        add_products(m, m.key_features, m.value, sums.values, given.features, count);
        add_rows(m, m.key_features, m.weight, sums.totals, count);
    }
    // to += left^T right, for rows of features and rows of values.
    static REGARD_INLINE void add_products(Memory& m, const number* left, const number* right, number* to,
                                           int64_t features, int64_t count) {
        Products::multiply_rows(left, 1, m.width.feature, right, m.width.value, count, Depth::whole, to, to,
                                m.width.value, features, 0, m.width.value / n, &m.fetch);
    }
    // to += sum_j times_j row_j, for rows of features.
    static __attribute__((noinline)) void add_rows(Memory& m, const number* rows, const number* times, number* to,
                                                   int64_t count) {
        const int64_t width = m.width.feature;
        for (int64_t f = 0; f < width; f += n) {
            numbers even = {}, odd = {};
            int64_t j = 0;
            for (; j + 1 < count; j += 2) {
                even = A::multiply_add(times[j], load(rows + j * width + f), even);
                odd = A::multiply_add(times[j + 1], load(rows + (j + 1) * width + f), odd);
            }
            if (j < count) even = A::multiply_add(times[j], load(rows + j * width + f), even);
            store(to + f, load(to + f) + (even + odd));
        }
    }

    // pairs_ij = phi(q_i) . phi(k_j) for j up to i, and some more.
    static REGARD_INLINE void pair(const FeatureArguments& given, Memory& m, int64_t count) {
        for (int64_t j = count; j < ceil_div(count, n) * n; ++j)
            memset((void*)(m.key_features + j * m.width.feature), 0, sizeof(number) * (size_t)m.width.feature);
        transpose(m.key_features, m.width.feature, ceil_div(count, n) * n, given.features, m.feature_columns);
        Products::multiply_triangle(m.query_features, m.width.feature, m.feature_columns, given.features, m.pairs, count);
    }
    // Multiplies pairs_ij by exp(ln w_j - r_i); they are 0 for keys that are excluded or after i. Also exp(r_0 - r_i).
    static __attribute__((noinline)) void weigh_pairs(const FeatureArguments& given, Memory& m, number log_scale,
                                                      uint64_t excluded, int64_t count, number* pairs) {
        const bool weighs = given.map == FeatureMap::exponential;
        number largest = log_scale;
        const numbers to_log2 = broadcast((number)log2_e);
        for (int64_t j = count; j < ceil_div(count, n) * n; ++j) m.log_weight[j] = 0;
        for (int64_t i = 0; i < count; ++i) {
            if (weighs && !(excluded >> i & 1) && m.log_weight[i] > largest) largest = m.log_weight[i];
            m.decay[i] = decay_of(log_scale - largest);
            number* row = pairs + i * tile;
            for (int64_t v = 0; v * n < count; ++v) {
                const uint32_t in = Products::first_lanes(v, i + 1) & (uint32_t)(~excluded >> (v * n));
                numbers x = load(row + v * n);
                if (weighs && in) x = x * exp2<A::degree>((load(m.log_weight + v * n) - broadcast(largest)) * to_log2);
                store(row + v * n, select(in, x, numbers{}));
            }
        }
    }
    static REGARD_INLINE number sum_row(const number* row, int64_t count) {
        numbers sum = {};
        for (int64_t v = 0; v * n < count; ++v) sum += load(row + v * n);
        return sum_lanes<number>(sum);
    }

    static REGARD_INLINE void add_scaled(const number* from, number take, number* to, number keep, int64_t count) {
        for (int64_t i = 0; i < count; i += n)
            store(to + i, load(to + i) * broadcast(keep) + load(from + i) * broadcast(take));
    }

    static REGARD_INLINE void write_output(const FeatureArguments& given, const FeatureResults& results, Memory& m,
                                           int64_t batch, int64_t head, int64_t token, int64_t i, number times, bool bad,
                                           bool seen) {
        number* row = m.output + i * m.width.value;
        if (!seen || bad) {
            for (int64_t c = 0; c < m.width.value; c += n) store(row + c, broadcast(seen ? (number)NAN : (number)0));
            times = 1;
        }
        write_scaled_row(row, given.value_dim, times, results.output, results.output.at(batch, head, token + i, 0));
    }

    static REGARD_INLINE void write_sums(const FeatureArguments& given, const FeatureResults& results, int64_t batch,
                                         int64_t sum_head, const KeySums& sums) {
        const FeatureWidths<A> width(given);
        number* to = (number*)results.sums.data + results.sums.at(batch, sum_head, 0, 0);
        for (int64_t f = 0; f < given.features; ++f) {
            number* row = to + f * (given.value_dim + 1);
            memcpy((void*)row, sums.values + f * width.value, sizeof(number) * (size_t)given.value_dim);
            row[given.value_dim] = sums.totals[f];
        }
        ((number*)results.log_scale.data)[results.log_scale.at(0, 0, batch, sum_head)] = sums.state->log_scale;
        bool* flags = (bool*)results.flags.data + results.flags.at(0, batch, sum_head, 0);
        flags[0] = sums.state->has_nonfinite;
        flags[1] = sums.state->has_visible;
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

// Decoding: attention of a few queries to a chunk of the keys of one (batch, key head), and the merging of chunks.
//
// Rows are the queries of all heads that share the key head (Ainslie et al. 2023): row g * queries + i is query i of
// head g of the group. Each key and value is read once for all rows, directly from the caller's memory. A chunk c
// computes
//
//     m_c = max_j s_j,    l_c = sum_j exp(s_j - m_c),    o_c = sum_j exp(s_j - m_c) v_j
//
// for each row, and chunks are merged in order (Dao et al. 2023, "Flash-Decoding"):
//
//     m = max_c m_c,    l = sum_c exp(m_c - m) l_c,    output = sum_c exp(m_c - m) o_c / l,    lse = ln l + m
//
// Keys and values that are rounded to int8 (stored_rows.h) are multiplied as bytes. Then a product is multiplied by the scale
// of the key, and a weight, once l has been summed, by that of the value.
//
// A row whose result is NaN has an l of NaN. Scores may be capped (softcap.h), and the sink of a row (attention_sink.h)
// is added to l at the end.
//
// Weights of a sigmoid (weight_function.h) are not relative to anything: then m_c is 0, or -infinity if the chunk has no
// key for the row, o_c is a sum that is only added up, and l_c is 1 or 0.
#pragma once

#include "decode/decode_kernels.h"
#include "decode/decode_products.h"
#include "tiles/attention_sink.h"
#include "tiles/bias_rows.h"
#include "tiles/normalizer.h"
#include "tiles/softcap.h"
#include "tiles/weight_function.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// Partial results of a chunk. Outputs are in the order of units (decode_rows.h).
template <class T>
struct PartialSoftmax {
    typedef typename Unit<T>::number number;
    int64_t stride;  // of outputs
    number *outputs, *largest, *sums;

    PartialSoftmax(ScratchLayout& c, const Problem& p) : stride(pad_to_units<T>(p.value_dim)) {
        int64_t rows = p.group() * p.queries;
        outputs = c.take<number>(rows * stride);
        largest = c.take<number>(rows);
        sums = c.take<number>(rows);
    }
    static size_t bytes(const Problem& p) {
        return bytes_of_parts([&](ScratchLayout& c) { PartialSoftmax(c, p); });
    }
};

// T: the dtype of queries and outputs. S: that of the stored keys and values.
template <class T, class Weights = Softmax, class S = T>
struct Decode {
    typedef typename Unit<S>::number number;
    typedef typename Unit<S>::factor factor_type;
    static constexpr int n = lanes<number>;
    static constexpr int64_t row_scores =
        max_chunk_tiles * tile + n;  // not a power of two, so that rows use different cache sets
    static constexpr int degree = sizeof(number) == 8 ? 12 : 6;
    static constexpr number infinity = (number)HUGE_VAL;

    // A tile that some row may attend to.
    struct Tile {
        int64_t index, from, stop;  // the visible keys are in from .. stop - 1, which are whole vectors
        const S *key, *value;       // of key 0 of the tile, if the rows may be StridedRows; else null
        uint64_t visible_keys;      // keys that any row may attend to
        const uint64_t* bits;       // keys that each row may attend to
        bool same_for_rows;         // whether all rows may attend to the same keys
    };
    // The address of each row of a tile: of its keys or its values.
    struct EachRow {
        const Rows<S>* side = nullptr;
        int tile = 0;
        const S* at[regard::tile + 1];
    };

    const Problem& p;
    int64_t batch, key_head, rows, stride;
    Rows<S> key, value;
    bool same_for_heads;
    PartialSoftmax<S> partials;
    factor_type* query;
    number *scores, *bias_buffer;
    uint64_t *bits, *tile_bits;
    T* one_query;
    int64_t first_tile = 0;
    Tile tiles[max_chunk_tiles];
    int count = 0;  // of tiles
    EachRow found[2];  // of the current tile and the next one, if they are GatheredRows
    uint64_t nonfinite_queries = 0, broken_rows = 0;

    // ---- memory ----

    static size_t scratch(const Problem& p) {
        return bytes_of_parts([&](ScratchLayout& c) { carve(c, p, nullptr, true, true); });
    }
    static REGARD_INLINE void carve(ScratchLayout& c, const Problem& p, Decode* d, bool copy_keys, bool copy_values) {
        int64_t rows = p.group() * p.queries, stride = pad_to_units<S>(p.head_dim);
        int64_t widest = row_elements<S>(max_of(p.head_dim, p.value_dim));
        c.take(d, &Decode::query, rows * stride);
        c.take(d, &Decode::scores, rows * row_scores);
        c.take(d, &Decode::bias_buffer, tile);
        c.take(d, &Decode::bits, rows * max_chunk_tiles);
        c.take(d, &Decode::tile_bits, tile);
        S* zeros = c.take<S>(widest);
        c.take(d, &Decode::one_query, p.head_dim);
        S* keys = c.take<S>(tile * p.head_dim);
        S* values = c.take<S>(tile * p.value_dim);
        if (!d) return;
        memset((void*)zeros, 0, sizeof(S) * (size_t)widest);
        d->key.zeros = d->value.zeros = zeros;
        d->key.copies = copy_keys ? keys : nullptr, d->value.copies = copy_values ? values : nullptr;
    }

    // ---- one chunk ----

    // If pages is null, the keys are those of the problem.
    static void run(const Problem& p, const Pages* pages, int64_t batch, int64_t key_head, int64_t first_tile,
                    int64_t stop_tile, char* partials, char* scratch) {
        if (pages) {
            const Problem own = with_length(p, pages->length(batch));
            Decode(own, pages, batch, key_head, partials, scratch).decode_tiles(first_tile, stop_tile);
        } else {
            Decode(p, nullptr, batch, key_head, partials, scratch).decode_tiles(first_tile, stop_tile);
        }
    }

    Decode(const Problem& p, const Pages* pages, int64_t batch, int64_t key_head, ScratchLayout of_partials,
           char* scratch)
        : p(p), batch(batch), key_head(key_head), rows(p.group() * p.queries), partials(of_partials, p) {
        stride = pad_to_units<S>(p.head_dim);
        same_for_heads = (!p.mask.row_start || p.mask.tile_heads == 1) && (!p.mask.dense || p.mask.dense.stride[1] == 0);
        key.array = pages ? &pages->key : &p.key;
        value.array = pages ? &pages->value : &p.value;
        key.page_table = value.page_table = pages ? &pages->table : nullptr;
        key.width = p.head_dim;
        value.width = p.value_dim;
        ScratchLayout of_scratch{scratch};
        carve(of_scratch, p, this, key.array->stride[3] != 1, value.array->stride[3] != 1);
    }
    Decode(const Problem& p, const Pages* pages, int64_t batch, int64_t key_head, char* partials, char* scratch)
        : Decode(p, pages, batch, key_head, ScratchLayout{partials}, scratch) {}

    void decode_tiles(int64_t first, int64_t stop) {
        first_tile = first;
        read_queries();
        memset(partials.outputs, 0, sizeof(number) * (size_t)(rows * partials.stride));
        read_tile(stop);
        if (count > 0 && key.page_table) prefetch(key, 0, tiles[0].key);
        for (int t = 0; t < count; ++t) score(t);
        if (count > 0) prefetch(value, 0, tiles[0].value);  // while weights are computed
        for (int64_t r = 0; r < rows; ++r) weigh(r);
        for (int t = 0; t < count; ++t) mix(t);
        if (!outputs_are_finite())
            for (int t = 0; t < count; ++t)
                if (is_checked_later(value, tiles[t])) mark_broken(tiles[t], find_nonfinite_rows(value, t));
        for (int64_t r = 0; r < rows; ++r)
            if (broken_rows >> r & 1) partials.sums[r] = (number)NAN;
    }

    // Stores queries as factors; those with NaN or Inf as zeros, with their bit set.
    void read_queries() {
        const Array& q = p.query;
        for (int64_t r = 0; r < rows; ++r) {
            const T* from = (const T*)q.data + q.at(batch, head_of(r), r % p.queries, 0);
            if (q.stride[3] != 1) {
                for (int64_t k = 0; k < p.head_dim; ++k) one_query[k] = from[k * q.stride[3]];
                from = one_query;
            }
            factor_type* to = query + r * stride;
            memset((void*)to, 0, sizeof(factor_type) * (size_t)stride);
            if (is_nonfinite_row(from, p.head_dim)) {
                nonfinite_queries |= (uint64_t)1 << r;
                continue;
            }
            if constexpr (std::is_same_v<T, S>) {
                for (int64_t k = 0; k < p.head_dim; k += Unit<T>::unit_size)
                    store_factors<T>(load_part(from + k, min_of(p.head_dim - k, Unit<T>::unit_size)), to + k);
            } else {
                for (int64_t k = 0; k < p.head_dim; ++k) to[unit_position<S>(k)] = widen(from[k]);
            }
        }
    }

    REGARD_INLINE int64_t head_of(int64_t row) const { return key_head * p.group() + row / p.queries; }

    // Fills `tiles` with the tiles that any row may attend to.
    void read_tile(int64_t stop_tile) {
        const TileRange of_queries = MaskView(p, batch, key_head * p.group()).key_tile_range(0);
        const int64_t first = max_of(of_queries.first, first_tile), past = min_of(of_queries.past, stop_tile);
        for (int64_t index = first; index < past; ++index) {
            uint64_t* of_tile = bits + (index - first_tile) * rows;
            uint64_t visible_keys = read_tile_bits(index, of_tile);
            bool same = true;
            for (int64_t r = 0; r < rows; ++r) same &= of_tile[r] == visible_keys;
            if (visible_keys) add_tile(index, visible_keys, of_tile, same);
        }
    }

    REGARD_INLINE void add_tile(int64_t index, uint64_t visible_keys, const uint64_t* of_tile, bool same) {
        int64_t from = __builtin_ctzll(visible_keys) / n * n, stop = (63 - __builtin_clzll(visible_keys)) / n * n + n;
        REGARD_ASSERT(count < max_chunk_tiles);
        Tile& of = tiles[count++] = {index, from, stop, nullptr, nullptr, visible_keys, of_tile, same};
        if (!same || bit_range(from, stop) & ~visible_keys) return;
        of.key = key.first_row(batch, key_head, index * tile, from, stop);
        of.value = value.first_row(batch, key_head, index * tile, from, stop);
    }

    uint64_t read_tile_bits(int64_t index, uint64_t* of_tile) {
        uint64_t visible_keys = 0;
        for (int64_t g = 0; g < p.group(); ++g) {
            uint64_t* of_head = of_tile + g * p.queries;
            if (g > 0 && same_for_heads) {
                memcpy(of_head, of_tile, sizeof(uint64_t) * (size_t)p.queries);
                continue;
            }
            MaskView view(p, batch, key_head * p.group() + g);
            int32_t bitmap = find_bitmap(view, 0, index);
            Fill fill = bitmap == -2 ? Fill::empty : view.read_tile(0, index, bitmap, tile_bits);
            for (int64_t i = 0; i < p.queries; ++i) {
                of_head[i] = fill == Fill::empty ? 0 : fill == Fill::full ? ~(uint64_t)0 : tile_bits[i];
                visible_keys |= of_head[i];
            }
        }
        return visible_keys;
    }

    // scores = query . key
    REGARD_INLINE void score(int t) {
        const Tile& of = tiles[t];
        at_rows(key, t, &Tile::key, [&](auto at) {
            for_row_groups<number>(rows, [&](int64_t r, auto few) {
                score_rows<decltype(few)::value>(at, of.from, of.stop, key.width, query + r * stride, stride,
                                                 scores_of(of, r), row_scores);
            });
            if constexpr (has_scale<S>) multiply_by_scales(of, at, key.width);
        });
    }

    // outputs += weights . value
    REGARD_INLINE void mix(int t) {
        const Tile& of = tiles[t];
        at_rows(value, t, &Tile::value, [&](auto at) {
            if constexpr (has_scale<S>) multiply_by_scales(of, at, value.width);
            for_row_groups<number>(rows, [&](int64_t r, auto few) {
                mix_rows<decltype(few)::value>(at, of.from, of.stop, value.width, scores_of(of, r), row_scores,
                                               partials.outputs + r * partials.stride, partials.stride);
            });
        });
        if (nonfinite_queries)
            for (int64_t r = 0; r < rows; ++r)
                if (of.bits[r]) broken_rows |= nonfinite_queries & (uint64_t)1 << r;
    }

    // Multiplies the scores, or the weights, of a tile by the scales of its keys, or of its values.
    template <class At>
    REGARD_INLINE void multiply_by_scales(const Tile& of, At at, int64_t width) {
        number scales[tile];
        for (int64_t j = of.from; j < of.stop; ++j) scales[j] = read_scale(at[j] + width);
        for (int64_t r = 0; r < rows; ++r) {
            number* row = scores_of(of, r);
            for (int64_t j = of.from; j < of.stop; j += n) store(row + j, load(row + j) * load(scales + j));
        }
    }

    REGARD_INLINE number* scores_of(const Tile& of, int64_t row) const {
        return scores + row * row_scores + (of.index - first_tile) * tile;
    }

    // ---- NaN and Inf ----
    // A key with NaN or Inf has a score that is NaN or infinite for any query, and such a value makes the outputs NaN
    // or infinite for any weight. If all queries may attend to the same keys, this is detected afterwards, and the
    // results of all queries become NaN. Otherwise the results of queries that may attend to such a key become NaN, and
    // the key is skipped for the others.

    REGARD_INLINE bool is_checked_later(const Rows<S>& side, const Tile& of) const {
        return of.same_for_rows && !side.copies;
    }

    // Calls body(rows) with the rows of the keys, or of the values, of a tile: StridedRows or GatheredRows. Those of the next
    // tile are prefetched.
    template <class Body>
    REGARD_INLINE void at_rows(const Rows<S>& side, int t, const S* Tile::*first_row, Body body) {
        const Tile &of = tiles[t], *next = t + 1 < count ? &tiles[t + 1] : nullptr;
        const S* first = of.*first_row;
        if (first && (!side.page_table || !next || next->*first_row)) {
            const int64_t to_next = next ? (const char*)(next->*first_row) - (const char*)first : 0;
            const int64_t ahead = side.page_table ? to_next : prefetch_bytes, step = side.array->stride[2];
            const S* next_tile = next && next->*first_row ? next->*first_row : first;
            if (side.is_contiguous()) return body(StridedRows<S, true>{first, step, ahead, next_tile});
            return body(StridedRows<S, false>{first, step, ahead, next_tile});
        }
        const S** at = find_each(side, t);
        if (side.copies) side.copy(of.visible_keys, at);
        if (!is_checked_later(side, of)) {
            uint64_t nonfinite = side.find_nonfinite_rows(of.from, of.stop, at);
            mark_broken(of, nonfinite);
            side.replace_by_zeros(nonfinite, of.from, of.stop, at);
        }
        body(GatheredRows<S>{at, next ? find_each(side, t + 1) : at});
    }

    REGARD_INLINE const S** find_each(const Rows<S>& side, int t) {
        EachRow& each = found[t % 2];
        const Tile& of = tiles[t];
        if (each.side != &side || each.tile != t)
            side.find(batch, key_head, of.index * tile, of.visible_keys, of.from, of.stop, each.at);
        each.side = &side, each.tile = t;
        return each.at;
    }

    // Prefetches rows of a tile, the first of a chunk, which nothing else does.
    REGARD_INLINE void prefetch(const Rows<S>& side, int t, const S* first) {
        if (first && !side.page_table) return side.prefetch_first(first);
        const S** at = find_each(side, t);
        for (int64_t j = tiles[t].from; j < tiles[t].stop; ++j)
            for (int64_t k = 0; k < side.width; k += 64 / (int64_t)sizeof(S)) __builtin_prefetch(at[j] + k, 0, 2);
    }

    REGARD_INLINE uint64_t find_nonfinite_rows(const Rows<S>& side, int t) {
        return side.find_nonfinite_rows(tiles[t].from, tiles[t].stop, find_each(side, t));
    }
    REGARD_INLINE void mark_broken(const Tile& of, uint64_t nonfinite) {
        for (int64_t r = 0; nonfinite && r < rows; ++r)
            if (of.bits[r] & nonfinite) broken_rows |= (uint64_t)1 << r;
    }
    bool outputs_are_finite() const {
        vec<number> nonfinite = {};
        for (int64_t k = 0; k < rows * partials.stride; k += n) nonfinite += load(partials.outputs + k) * 0;
        return sum_lanes<number>(nonfinite) == 0;
    }

    // ---- weights ----

    // Converts the products of a row to weights; those of a softmax are relative to the largest score.
    REGARD_INLINE void weigh(int64_t r) {
        const number largest = score_row(r);
        if constexpr (Weights::is_normalized)
            exponentiate(r, largest);
        else
            apply_sigmoid(r, largest);
    }

    // Converts the products of a row to scores, -infinity for forbidden keys, and returns the largest.
    REGARD_INLINE number score_row(int64_t r) {
        BiasRows<number> bias{p, batch, head_of(r)};
        bool has_bias = bias.has_bias();
        const Softcap<number> softcap(p, (number)p.scale);
        const number scale = softcap ? 1 : (number)p.scale;
        vec<number> highest = broadcast(-infinity);
        for (int t = 0; t < count; ++t) {
            const Tile& of = tiles[t];
            number* row = scores_of(of, r);
            const number* of_keys = has_bias ? bias.read(r % p.queries, of.index * tile, bias_buffer) : nullptr;
            vec<number> nonfinite = {};
            bool full = of.bits[r] == ~(uint64_t)0;
            if (softcap) {  // which would make an infinite product finite
                for (int64_t j = of.from; j < of.stop; j += n) nonfinite = multiply_add(load(row + j), vec<number>{}, nonfinite);
                softcap.apply(row + of.from, 1, of.stop - of.from, 0, nullptr, 0);
            }
            for (int64_t j = of.from; j < of.stop; j += n) {
                vec<number> s = load(row + j), plus = {};
                nonfinite = multiply_add(s, vec<number>{}, nonfinite);
                if (has_bias) plus = load(of_keys + j);
                s = multiply_add(s, broadcast(scale), plus);
                if (!full) s = select((uint32_t)(of.bits[r] >> j), s, broadcast(-infinity));
                highest = maximum(highest, s);
                store(row + j, s);
            }
            if (is_checked_later(key, of) && sum_lanes<number>(nonfinite) != 0)
                mark_broken(of, find_nonfinite_rows(key, t));
        }
        return max_lane<number>(highest);
    }

    REGARD_INLINE void exponentiate(int64_t r, number largest) {
        const number base = largest == -infinity ? 0 : largest;
        vec<number> sum = {};
        for (int t = 0; t < count; ++t) {
            number* row = scores_of(tiles[t], r);
            for (int64_t j = tiles[t].from; j < tiles[t].stop; j += n) {
                vec<number> w = softmax_weight<degree>((load(row + j) - broadcast(base)) * broadcast((number)log2_e));
                sum += w;
                store(row + j, w);
            }
        }
        partials.largest[r] = largest;
        partials.sums[r] = sum_lanes<number>(sum);
    }

    REGARD_INLINE void apply_sigmoid(int64_t r, number largest) {
        const number times = (number)-log2_e;
        const vec<number> added = broadcast((number)(row_bias(p, batch, head_of(r), r % p.queries) * -log2_e));
        vec<number> sum = {};
        for (int t = 0; t < count; ++t) {
            number* row = scores_of(tiles[t], r);
            for (int64_t j = tiles[t].from; j < tiles[t].stop; j += n) {
                const vec<number> x = multiply_add(load(row + j), broadcast(times), added);
                const vec<number> w = SigmoidWeight<vec<number>>::template of<degree>(x).weight;
                sum += w;
                store(row + j, w);
            }
        }
        const bool is_empty = largest == -infinity;
        partials.largest[r] = is_empty ? -infinity : 0;
        // The sum is NaN if a score is NaN.
        partials.sums[r] = !(largest < infinity) ? (number)NAN : sum_lanes<number>(sum) * 0 + (is_empty ? 0 : 1);
    }
    static REGARD_INLINE number row_bias(const Problem& p, int64_t batch, int64_t head, int64_t query) {
        return ((const number*)p.row_bias.data)[p.row_bias.at(0, batch, head, query)];
    }

    // ---- merging ----

    // Computes output and lse of the rows of one (batch, key head) from the partial results of its `count` chunks, and
    // overwrites these.
    static void join(const Problem& p, char* chunks, int64_t count, int64_t batch, int64_t key_head,
                     const ForwardResults& results) {
        const int64_t each = (int64_t)(PartialSoftmax<S>::bytes(p) / sizeof(number));
        ScratchLayout layout{chunks};
        PartialSoftmax<S> partials(layout, p);
        for (int64_t r = 0; r < p.group() * p.queries; ++r) {
            number most = -infinity, sum = 0;
            for (int64_t c = 0; c < count; ++c) {
                number m = partials.largest[c * each + r];
                most = m > most ? m : most;
            }
            number base = most == -infinity ? 0 : most;
            for (int64_t c = 0; c < count; ++c) {
                number& factor = partials.largest[c * each + r];
                factor = exp2<degree>(broadcast((factor - base) * (number)log2_e))[0];
                sum += factor * partials.sums[c * each + r];
            }
            number* outputs = partials.outputs + r * partials.stride;
            for (int64_t k = 0; sum != 0 && k < partials.stride; k += n) {
                vec<number> o = {};
                for (int64_t c = 0; c < count; ++c)
                    o = multiply_add(load(outputs + c * each + k), broadcast(partials.largest[c * each + r]), o);
                store(outputs + k, o);
            }
            finish(p, outputs, base, sum, batch, key_head * p.group() + r / p.queries, r % p.queries, results);
        }
    }

    static void finish(const Problem& p, const number* from, number base, number sum, int64_t batch, int64_t head,
                       int64_t query, const ForwardResults& results) {
        bool empty = sum == 0;
        const bool has_sink = p.sinks && !empty;
        double log_sum = results.lse || results.normalizer || has_sink ? log((double)sum) : 0, keys = 1;
        if (has_sink) {
            const SinkShare share(read_sink(p, batch, head, query), base, log_sum);
            log_sum = share.log_sum, keys = share.keys;
        }
        if (const Array& lse = results.lse)
            ((number*)lse.data)[lse.at(0, batch, head, query)] = (number)((double)base + log_sum);
        // The backward pass uses the logarithm only to decide which rows take part: see BackwardQueries::normalize.
        if (results.normalizer) {
            if constexpr (!Weights::is_normalized) base = row_bias(p, batch, head, query);
            Normalizer<number>{base, (number)(log_sum * log2_e)}.write(results.normalizer, batch, head, query);
        }
        number inverse = empty ? 0 : 1 / (Weights::is_normalized ? sum : sum * 0 + 1);  // NaN for a broken row
        if (has_sink) inverse = (number)(keys / (double)sum);
        const Array &output = results.output, &rounding = results.rounding;
        T* to = (T*)output.data + output.at(batch, head, query, 0);
        T* cut = rounding ? (T*)rounding.data + rounding.at(batch, head, query, 0) : nullptr;
        for (int64_t k = 0; k < p.value_dim; ++k) {
            // + 0: changes -0, which products with weights of 0 may give, to +0
            number x = empty ? 0 : from[unit_position<S>(k)] * inverse + 0;
            narrow(x, to + k * output.stride[3]);
            if (!cut) continue;
            number lost = x - widen(to[k * output.stride[3]]);
            narrow(lost - lost < 1 ? lost : 0, cut + k * rounding.stride[3]);
        }
    }
};

template <class T, class Weights, class S = T>
constexpr DecodeKernels decode_kernels() {
    typedef Decode<T, Weights, S> Kernels;
    return {PartialSoftmax<S>::bytes, Kernels::scratch, Kernels::run, Kernels::join};
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

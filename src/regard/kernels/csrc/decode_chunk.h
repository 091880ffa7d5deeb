// Decoding: a few queries against a chunk of the keys of one (batch, key head), and the joining of chunks.
//
// Rows are the queries of all heads that share the key head (Ainslie et al. 2023): row g * queries + i is query i of the
// group's head g. Each key and value is read from memory once for all rows, as it lies. A chunk c leaves
//
//     m_c = max_j s_j,    l_c = sum_j exp(s_j - m_c),    o_c = sum_j exp(s_j - m_c) v_j
//
// for each row, and chunks are joined in their order (Dao et al. 2023, "Flash-Decoding"):
//
//     m = max_c m_c,    l = sum_c exp(m_c - m) l_c,    output = sum_c exp(m_c - m) o_c / l,    lse = ln l + m
//
// A row whose result is NaN has an l of NaN.
#pragma once

#include "decode_products.h"
#include "kernel_table.h"
#include "normalizer.h"
#include "bias_rows.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// What a chunk leaves. Outputs are in the order of units (decode_rows.h).
template <class T>
struct PartialSoftmax {
    typedef typename Unit<T>::number number;
    int64_t stride;  // of outputs
    number *outputs, *largest, *sums;

    PartialSoftmax(ScratchLayout& c, const Problem& p) : stride(whole_units<T>(p.value_dim)) {
        int64_t rows = p.group() * p.queries;
        outputs = c.take<number>(rows * stride);
        largest = c.take<number>(rows);
        sums = c.take<number>(rows);
    }
    static size_t bytes(const Problem& p) {
        ScratchLayout c{nullptr};
        PartialSoftmax counted(c, p);
        (void)counted;
        return c.used;
    }
};

template <class T>
struct Decode {
    typedef typename Unit<T>::number number;
    typedef typename Unit<T>::factor factor_type;
    static constexpr int n = lanes<number>;
    static constexpr int64_t row_scores = chunk_tiles * tile + n;  // not a power of two: rows share no line of the cache
    static constexpr int degree = sizeof(number) == 8 ? 12 : 6;
    static constexpr number infinity = (number)HUGE_VAL;

    // A tile that some row may see, or the part of it that lies in one page.
    struct Tile {
        int64_t index, from, stop;  // keys from .. stop - 1 of it, whole vectors, hold all that is seen
        const T *key, *value;       // where its key 0 would be, if they are StridedRows
        uint64_t seen;
        const uint64_t* bits;  // what each row may see
        bool same;             // for all of them
    };
    static constexpr int64_t least_page = 16;  // keys, of pages that tiles are divided into
    static constexpr int64_t most_tiles = chunk_tiles * tile / least_page;

    const Problem& p;
    int64_t batch, key_head, rows, stride;
    Rows<T> key, value;
    bool same_for_heads;
    PartialSoftmax<T> left;
    factor_type* query;
    number *scores, *added;
    uint64_t *bits, *looked;
    T* one_query;
    int64_t first_tile = 0;
    Tile tiles[most_tiles];
    int count = 0;  // of tiles
    const T* rows_at[tile + 1];  // of the tile at hand, where they are GatheredRows
    uint64_t odd_queries = 0, broken = 0;

    // ---- memory ----

    static size_t scratch(const Problem& p) {
        ScratchLayout c{nullptr};
        carve(c, p, nullptr, true, true);
        return c.used;
    }
    static REGARD_INLINE void carve(ScratchLayout& c, const Problem& p, Decode* d, bool copy_keys, bool copy_values) {
        int64_t rows = p.group() * p.queries, stride = whole_units<T>(p.head_dim);
        int64_t widest = larger(p.head_dim, p.value_dim);
        factor_type* query = c.take<factor_type>(rows * stride);
        number* scores = c.take<number>(rows * row_scores);
        number* added = c.take<number>(tile);
        uint64_t* bits = c.take<uint64_t>(rows * chunk_tiles);
        uint64_t* looked = c.take<uint64_t>(tile);
        T* zeros = c.take<T>(widest);
        T* one_query = c.take<T>(p.head_dim);
        T* keys = c.take<T>(tile * p.head_dim);
        T* values = c.take<T>(tile * p.value_dim);
        if (!d) return;
        d->query = query, d->scores = scores, d->added = added, d->bits = bits, d->looked = looked;
        memset((void*)zeros, 0, sizeof(T) * (size_t)widest);
        d->key.zeros = d->value.zeros = zeros, d->one_query = one_query;
        d->key.copies = copy_keys ? keys : nullptr, d->value.copies = copy_values ? values : nullptr;
    }

    // ---- one chunk ----

    // Without pages (null) the keys are those of the problem.
    static void run(const Problem& p, const Pages* pages, int64_t batch, int64_t key_head, int64_t first_tile,
                    int64_t stop_tile, char* left, char* scratch) {
        if (pages) {
            Problem own = p;  // the sequence of this batch entry: its keys, and its queries at their end
            own.keys = ((const int64_t*)pages->lengths.data)[batch];
            own.offset += own.keys;
            own.mask.low += own.offset;
            own.mask.high += own.offset;
            Decode(own, pages, batch, key_head, left, scratch).all_tiles(first_tile, stop_tile);
        } else {
            Decode(p, nullptr, batch, key_head, left, scratch).all_tiles(first_tile, stop_tile);
        }
    }

    Decode(const Problem& p, const Pages* pages, int64_t batch, int64_t key_head, ScratchLayout of_left, char* scratch)
        : p(p), batch(batch), key_head(key_head), rows(p.group() * p.queries), left(of_left, p) {
        stride = whole_units<T>(p.head_dim);
        same_for_heads = (!p.mask.row_start || p.mask.tile_heads == 1) && (!p.mask.dense || p.mask.dense.stride[1] == 0);
        key.array = pages ? &pages->key : &p.key;
        value.array = pages ? &pages->value : &p.value;
        key.page_table = value.page_table = pages ? &pages->table : nullptr;
        key.width = p.head_dim;
        value.width = p.value_dim;
        ScratchLayout of_scratch{scratch};
        carve(of_scratch, p, this, key.array->stride[3] != 1, value.array->stride[3] != 1);
    }
    Decode(const Problem& p, const Pages* pages, int64_t batch, int64_t key_head, char* left, char* scratch)
        : Decode(p, pages, batch, key_head, ScratchLayout{left}, scratch) {}

    void all_tiles(int64_t first, int64_t stop) {
        first_tile = first;
        read_queries();
        memset(left.outputs, 0, sizeof(number) * (size_t)(rows * left.stride));
        look(stop);
        for (int t = 0; t < count; ++t) score(t);
        if (count > 0 && tiles[0].value) value.fetch_first(tiles[0].value);  // while weights are computed
        for (int64_t r = 0; r < rows; ++r) weigh(r);
        for (int t = 0; t < count; ++t) mix(t);
        if (!outputs_are_finite())
            for (int t = 0; t < count; ++t)
                if (afterwards(value, tiles[t])) note_broken(tiles[t], odd_rows(value, tiles[t]));
        for (int64_t r = 0; r < rows; ++r)
            if (broken >> r & 1) left.sums[r] = (number)NAN;
    }

    // Queries as factors; those that hold a NaN or Inf as zeros, with their bit set.
    void read_queries() {
        const Array& q = p.query;
        for (int64_t r = 0; r < rows; ++r) {
            const T* from = (const T*)q.data + q.at(batch, head_of(r), r % p.queries, 0);
            if (q.stride[3] != 1) {
                for (int64_t k = 0; k < p.head_dim; ++k) one_query[k] = from[k * q.stride[3]];
                from = one_query;
            }
            if (is_odd_row(from, p.head_dim)) {
                odd_queries |= (uint64_t)1 << r;
                from = key.zeros;
            }
            for (int64_t k = 0; k < p.head_dim; k += Unit<T>::per)
                store_factors<T>(load_part(from + k, smaller(p.head_dim - k, Unit<T>::per)), query + r * stride + k);
        }
    }

    REGARD_INLINE int64_t head_of(int64_t row) const { return key_head * p.group() + row / p.queries; }

    // Fills `tiles` with those that any row may see.
    void look(int64_t stop_tile) {
        int64_t first, past;
        MaskView(p, batch, key_head * p.group()).key_tile_range(0, &first, &past);
        first = larger(first, first_tile);
        past = smaller(past, stop_tile);
        for (int64_t index = first; index < past; ++index) {
            uint64_t* of_tile = bits + (index - first_tile) * rows;
            uint64_t seen = look_at_tile(index, of_tile);
            bool same = true;
            for (int64_t r = 0; r < rows; ++r) same &= of_tile[r] == seen;
            int64_t part = key.rows_of_a_page();
            part = part && part % least_page == 0 && least_page % n == 0 ? smaller(part, tile) : tile;
            for (int64_t from = 0; from < tile; from += part)
                if (uint64_t here = seen & bit_range(from, from + part)) take(index, here, of_tile, same);
        }
    }

    REGARD_INLINE void take(int64_t index, uint64_t seen, const uint64_t* of_tile, bool same) {
        int64_t from = __builtin_ctzll(seen) / n * n, stop = (63 - __builtin_clzll(seen)) / n * n + n;
        Tile& of = tiles[count++] = {index, from, stop, nullptr, nullptr, seen, of_tile, same};
        if (!same || bit_range(from, stop) & ~seen) return;
        of.key = key.first_row(batch, key_head, index * tile, from, stop);
        of.value = value.first_row(batch, key_head, index * tile, from, stop);
    }

    uint64_t look_at_tile(int64_t index, uint64_t* of_tile) {
        uint64_t seen = 0;
        for (int64_t g = 0; g < p.group(); ++g) {
            uint64_t* of_head = of_tile + g * p.queries;
            if (g > 0 && same_for_heads) {
                memcpy(of_head, of_tile, sizeof(uint64_t) * (size_t)p.queries);
                continue;
            }
            MaskView view(p, batch, key_head * p.group() + g);
            int32_t bitmap = bitmap_of(view, 0, index);
            Fill fill = bitmap == -2 ? Fill::empty : view.look(0, index, bitmap, looked);
            for (int64_t i = 0; i < p.queries; ++i) {
                of_head[i] = fill == Fill::empty ? 0 : fill == Fill::full ? ~(uint64_t)0 : looked[i];
                seen |= of_head[i];
            }
        }
        return seen;
    }

    // scores = query . key
    REGARD_INLINE void score(int t) {
        const Tile& of = tiles[t];
        at_rows(key, of, of.key, [&](auto at) {
            for_few<number>(rows, [&](int64_t r, auto few) {
                score_rows<decltype(few)::value>(at, of.from, of.stop, key.width, query + r * stride, stride,
                                                 scores_of(of, r), row_scores);
            });
        });
    }

    // outputs += weights . value
    REGARD_INLINE void mix(int t) {
        const Tile& of = tiles[t];
        at_rows(value, of, of.value, [&](auto at) {
            for_few<number>(rows, [&](int64_t r, auto few) {
                mix_rows<decltype(few)::value>(at, of.from, of.stop, value.width, scores_of(of, r), row_scores,
                                               left.outputs + r * left.stride, left.stride);
            });
        });
        if (odd_queries)
            for (int64_t r = 0; r < rows; ++r)
                if (of.bits[r]) broken |= odd_queries & (uint64_t)1 << r;
    }

    REGARD_INLINE number* scores_of(const Tile& of, int64_t row) const {
        return scores + row * row_scores + (of.index - first_tile) * tile;
    }

    // ---- NaN and Inf ----
    // A key that holds one has a score that is NaN or infinite, whatever the query holds, and a value makes the outputs
    // so, whatever its weight. Where all queries see the same keys that is noticed afterwards, and breaks them all. Else
    // such a key breaks the queries that may see it, and is left out for the others.

    REGARD_INLINE bool afterwards(const Rows<T>& side, const Tile& of) const { return of.same && !side.copies; }

    // body(where the rows of one side of a tile are)
    template <class Body>
    REGARD_INLINE void at_rows(const Rows<T>& side, const Tile& of, const T* first, Body body) {
        if (first && side.side_by_side()) return body(side.template from<true>(first));
        if (first) return body(side.template from<false>(first));
        side.find(batch, key_head, of.index * tile, of.seen, of.from, of.stop, rows_at);
        if (side.copies) side.copy(of.seen, rows_at);
        if (!afterwards(side, of)) {
            uint64_t odd = side.odd_rows(of.from, of.stop, rows_at);
            note_broken(of, odd);
            side.leave_out(odd, of.from, of.stop, rows_at);
        }
        body(GatheredRows<T>{rows_at});
    }

    REGARD_INLINE uint64_t odd_rows(const Rows<T>& side, const Tile& of) {
        side.find(batch, key_head, of.index * tile, of.seen, of.from, of.stop, rows_at);
        return side.odd_rows(of.from, of.stop, rows_at);
    }
    REGARD_INLINE void note_broken(const Tile& of, uint64_t odd) {
        for (int64_t r = 0; odd && r < rows; ++r)
            if (of.bits[r] & odd) broken |= (uint64_t)1 << r;
    }
    bool outputs_are_finite() const {
        vec<number> odd = {};
        for (int64_t k = 0; k < rows * left.stride; k += n) odd += load(left.outputs + k) * 0;
        return sum_of_lanes<number>(odd) == 0;
    }

    // ---- softmax ----

    // Scores of a row to weights, relative to the largest.
    REGARD_INLINE void weigh(int64_t r) {
        BiasRows<number> bias{p, batch, head_of(r)};
        bool biased = bias.any();
        vec<number> highest = broadcast(-infinity);
        for (int t = 0; t < count; ++t) {
            const Tile& of = tiles[t];
            number* row = scores_of(of, r);
            const number* of_keys = biased ? bias.read(r % p.queries, of.index * tile, added) : nullptr;
            vec<number> odd = {};
            bool full = of.bits[r] == ~(uint64_t)0;
            for (int64_t j = of.from; j < of.stop; j += n) {
                vec<number> s = load(row + j), plus = {};
                odd = multiply_add(s, vec<number>{}, odd);
                if (biased) plus = load(of_keys + j);
                s = multiply_add(s, broadcast((number)p.scale), plus);
                if (!full) s = select((uint32_t)(of.bits[r] >> j), s, broadcast(-infinity));
                highest = maximum(highest, s);
                store(row + j, s);
            }
            if (afterwards(key, of) && sum_of_lanes<number>(odd) != 0) note_broken(of, odd_rows(key, of));
        }
        number largest = largest_lane<number>(highest), base = largest == -infinity ? 0 : largest;
        vec<number> sum = {};
        for (int t = 0; t < count; ++t) {
            number* row = scores_of(tiles[t], r);
            for (int64_t j = tiles[t].from; j < tiles[t].stop; j += n) {
                vec<number> w = exp2<degree>((load(row + j) - broadcast(base)) * broadcast((number)log2_e));
                sum += w;
                store(row + j, w);
            }
        }
        left.largest[r] = largest;
        left.sums[r] = sum_of_lanes<number>(sum);
    }

    // ---- joining ----

    // Output and lse of the rows of one (batch, key head), from what its `count` chunks left; overwrites that.
    static void join(const Problem& p, char* chunks, int64_t count, int64_t batch, int64_t key_head,
                     const ForwardResults& results) {
        const int64_t each = (int64_t)(PartialSoftmax<T>::bytes(p) / sizeof(number));
        ScratchLayout carver{chunks};
        PartialSoftmax<T> left(carver, p);
        for (int64_t r = 0; r < p.group() * p.queries; ++r) {
            number most = -infinity, sum = 0;
            for (int64_t c = 0; c < count; ++c) {
                number m = left.largest[c * each + r];
                most = m > most ? m : most;
            }
            number base = most == -infinity ? 0 : most;
            for (int64_t c = 0; c < count; ++c) {
                number& factor = left.largest[c * each + r];
                factor = exp2<degree>(broadcast((factor - base) * (number)log2_e))[0];
                sum += factor * left.sums[c * each + r];
            }
            number* outputs = left.outputs + r * left.stride;
            for (int64_t k = 0; sum != 0 && k < left.stride; k += n) {
                vec<number> o = {};
                for (int64_t c = 0; c < count; ++c)
                    o = multiply_add(load(outputs + c * each + k), broadcast(left.largest[c * each + r]), o);
                store(outputs + k, o);
            }
            finish(p, outputs, base, sum, batch, key_head * p.group() + r / p.queries, r % p.queries, results);
        }
    }

    static void finish(const Problem& p, const number* from, number base, number sum, int64_t batch, int64_t head,
                       int64_t query, const ForwardResults& results) {
        bool empty = sum == 0;
        const double log_sum = results.lse || results.normalizer ? log((double)sum) : 0;
        if (const Array& lse = results.lse)
            ((number*)lse.data)[lse.at(0, batch, head, query)] = (number)((double)base + log_sum);
        // For the backward pass to know which rows take part, and no more: see Backward::normalize_queries.
        if (results.normalizer)
            Normalizer<number>{base, (number)(log_sum * log2_e)}.write(results.normalizer, batch, head, query);
        number inverse = empty ? 0 : 1 / sum;  // NaN for a broken row
        const Array &output = results.output, &rounding = results.rounding;
        T* to = (T*)output.data + output.at(batch, head, query, 0);
        T* cut = rounding ? (T*)rounding.data + rounding.at(batch, head, query, 0) : nullptr;
        for (int64_t k = 0; k < p.value_dim; ++k) {
            // + 0: whatever was multiplied with weights of 0, a zero is positive
            number x = empty ? 0 : from[place_of<T>(k)] * inverse + 0;
            narrow(x, to + k * output.stride[3]);
            if (!cut) continue;
            number lost = x - widen(to[k * output.stride[3]]);
            narrow(lost - lost < 1 ? lost : 0, cut + k * rounding.stride[3]);
        }
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

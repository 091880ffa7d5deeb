// Decoding: a few queries against a chunk of the keys of one (batch, key head), and the joining of chunks.
//
// Rows are the queries of all heads that share the key head (Ainslie et al. 2023): row g * queries + i is query i of the
// group's head g. Each key and value is read from memory once for all rows, as it lies. A chunk c leaves
//
//     m_c = max_j s_j,    l_c = sum_j 2^(s_j - m_c),    o_c = sum_j 2^(s_j - m_c) v_j
//
// for each row, with scores s in the exponent (see scores.h), and chunks are joined in their order (Dao et al. 2023,
// "Flash-Decoding"):
//
//     m = max_c m_c,    l = sum_c 2^(m_c - m) l_c,    output = sum_c 2^(m_c - m) o_c / l,    lse = ln l + m
//
// A row whose result is NaN has an l of NaN.
#pragma once

#include "few.h"
#include "isa.h"
#include "scores.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// What a chunk leaves. Outputs are in the order of units (rows.h).
template <class T>
struct Left {
    typedef typename Unit<T>::number number;
    int64_t stride;  // of outputs
    number *outputs, *largest, *sums;

    Left(Carver& c, const Problem& p) : stride(whole_units<T>(p.value_dim)) {
        int64_t rows = p.group() * p.queries;
        outputs = c.take<number>(rows * stride);
        largest = c.take<number>(rows);
        sums = c.take<number>(rows);
    }
    static size_t bytes(const Problem& p) {
        Carver c{nullptr};
        Left counted(c, p);
        (void)counted;
        return c.used;
    }
};

template <class T>
struct Decode {
    typedef typename Unit<T>::number number;
    typedef typename Unit<T>::factor factor_type;
    static constexpr int n = lanes<number>;
    static constexpr int64_t fetched_ahead = 8192;  // bytes
    static constexpr int degree = sizeof(number) == 8 ? 12 : 6;
    static constexpr number infinity = (number)HUGE_VAL;

    // A tile that some row may see, and the addresses of its keys and values.
    struct Tile {
        int64_t index, from, stop;  // keys from .. stop - 1 of it, whole vectors, hold all that is seen
        uint64_t seen;
        const uint64_t* bits;  // what each row may see
        bool same;             // for all of them
    };

    const Problem& p;
    int64_t batch, key_head, rows, stride, keys_ahead, values_ahead;
    Rows<T> key, value;
    number factor;  // of a product, in the exponent
    bool same_for_heads;
    Left<T> left;
    factor_type* query;
    number *scores, *added, *shrink;
    uint64_t *bits, *looked;
    T* one_query;
    Tile tiles[chunk_tiles];
    const T* keys_at[(chunk_tiles + 1) * tile];  // of tiles[t] from 64 t on; zeros follow the last
    const T* values_at[(chunk_tiles + 1) * tile];
    uint64_t odd_queries = 0, broken = 0;

    // ---- memory ----

    static size_t scratch(const Problem& p) {
        Carver c{nullptr};
        carve(c, p, nullptr, 0, true);
        return c.used;
    }
    static REGARD_INLINE void carve(Carver& c, const Problem& p, Decode* d, bool copy_keys, bool copy_values) {
        int64_t rows = p.group() * p.queries, stride = whole_units<T>(p.head_dim);
        int64_t widest = larger(p.head_dim, p.value_dim);
        factor_type* query = c.take<factor_type>(rows * stride);
        number* scores = c.take<number>(2 * rows * tile);
        number* added = c.take<number>(tile);
        number* shrink = c.take<number>(rows);
        uint64_t* bits = c.take<uint64_t>(rows * chunk_tiles);
        uint64_t* looked = c.take<uint64_t>(tile);
        T* zeros = c.take<T>(widest);
        T* one_query = c.take<T>(p.head_dim);
        T* keys = c.take<T>(tile * p.head_dim);
        T* values = c.take<T>(tile * p.value_dim);
        if (!d) return;
        d->query = query, d->scores = scores, d->added = added, d->shrink = shrink, d->bits = bits, d->looked = looked;
        memset((void*)zeros, 0, sizeof(T) * (size_t)widest);
        d->key.zeros = d->value.zeros = zeros, d->one_query = one_query;
        d->key.copies = copy_keys ? keys : nullptr, d->value.copies = copy_values ? values : nullptr;
    }

    // ---- one chunk ----

    // Without pages (null) the keys are those of the problem.
    static void run(const Problem& p, const Pages* pages, int64_t batch, int64_t key_head, int64_t chunk, char* left,
                    char* scratch) {
        if (pages) {
            Problem own = p;  // the sequence of this batch entry: its keys, and its queries at their end
            own.keys = ((const int64_t*)pages->lengths.data)[batch];
            own.offset += own.keys;
            own.mask.low += own.offset;
            own.mask.high += own.offset;
            Decode(own, pages, batch, key_head, left, scratch).all_tiles(chunk);
        } else {
            Decode(p, nullptr, batch, key_head, left, scratch).all_tiles(chunk);
        }
    }

    Decode(const Problem& p, const Pages* pages, int64_t batch, int64_t key_head, Carver of_left, char* scratch)
        : p(p), batch(batch), key_head(key_head), rows(p.group() * p.queries), left(of_left, p) {
        stride = whole_units<T>(p.head_dim);
        keys_ahead = ahead_of(p.head_dim), values_ahead = ahead_of(p.value_dim);
        factor = (number)(p.scale * log2_e);
        same_for_heads = (!p.mask.row_start || p.mask.tile_heads == 1) && (!p.mask.dense || p.mask.dense.stride[1] == 0);
        key.array = pages ? &pages->key : &p.key;
        value.array = pages ? &pages->value : &p.value;
        key.page_table = value.page_table = pages ? &pages->table : nullptr;
        key.width = p.head_dim;
        value.width = p.value_dim;
        Carver of_scratch{scratch};
        carve(of_scratch, p, this, key.array->stride[3] != 1, value.array->stride[3] != 1);
    }
    Decode(const Problem& p, const Pages* pages, int64_t batch, int64_t key_head, char* left, char* scratch)
        : Decode(p, pages, batch, key_head, Carver{left}, scratch) {}

    // How many rows ahead are fetched.
    static REGARD_INLINE int64_t ahead_of(int64_t width) {
        int64_t bytes = width * (int64_t)sizeof(T), rows = fetched_ahead / bytes;
        return rows < 4 ? 4 : rows > tile ? tile : rows;
    }

    void all_tiles(int64_t chunk) {
        read_queries();
        memset(left.outputs, 0, sizeof(number) * (size_t)(rows * left.stride));
        for (int64_t r = 0; r < rows; ++r) left.largest[r] = -infinity, left.sums[r] = 0;
        int count = look(chunk);
        for (int t = 0; t < count; ++t) find(t);
        for (int j = 0; j < tile; ++j)
            keys_at[count * tile + j] = key.zeros, values_at[count * tile + j] = value.zeros;
        // The next tile's scores are computed before this one's values are needed: so one does not wait for the other.
        if (count > 0) score(0);
        for (int t = 0; t < count; ++t) {
            for (int64_t r = 0; r < rows; ++r) weigh(t, r);
            if (t + 1 < count) score(t + 1);
            mix(t);
        }
        if (!outputs_are_finite())
            for (int t = 0; t < count; ++t) note_broken(tiles[t], odd_values(t));
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

    // Fills `tiles` with those of the chunk that any row may see; gives their number.
    int look(int64_t chunk) {
        int64_t first, past;
        MaskView(p, batch, key_head * p.group()).key_tile_range(0, &first, &past);
        first = larger(first, chunk * chunk_tiles);
        past = smaller(past, (chunk + 1) * chunk_tiles);
        int count = 0;
        for (int64_t index = first; index < past; ++index) {
            uint64_t* of_tile = bits + count * rows;
            uint64_t seen = look_at_tile(index, of_tile);
            if (!seen) continue;
            int64_t from = __builtin_ctzll(seen) / n * n, stop = (63 - __builtin_clzll(seen)) / n * n + n;
            bool same = true;
            for (int64_t r = 0; r < rows; ++r) same &= of_tile[r] == seen;
            tiles[count++] = {index, from, stop, seen, of_tile, same};
        }
        return count;
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

    REGARD_INLINE void find(int t) {
        const Tile& of = tiles[t];
        key.find(batch, key_head, of.index * tile, of.seen, of.from, of.stop, keys_at + t * tile);
        value.find(batch, key_head, of.index * tile, of.seen, of.from, of.stop, values_at + t * tile);
    }

    // scores = query . key
    REGARD_INLINE void score(int t) {
        const Tile& of = tiles[t];
        const T** at = keys_at + t * tile;
        if (key.copies) key.copy(of.seen, at);
        if (!of.same || key.copies) leave_out(of, key, odd_keys(t), at);
        for_few<number>(rows, [&](int64_t r, auto few) {
            score_rows<decltype(few)::value>(at, keys_ahead, of.from, of.stop, key.width, query + r * stride, stride,
                                             scores_of(t, r));
        });
    }

    // outputs = shrink * outputs + weights . value
    REGARD_INLINE void mix(int t) {
        const Tile& of = tiles[t];
        const T** at = values_at + t * tile;
        if (value.copies) value.copy(of.seen, at);
        if (!of.same || value.copies) leave_out(of, value, odd_values(t), at);
        for_few<number>(rows, [&](int64_t r, auto few) {
            mix_rows<decltype(few)::value>(at, values_ahead, of.from, of.stop, value.width, scores_of(t, r), shrink + r,
                                           left.outputs + r * left.stride, left.stride);
        });
        if (odd_queries)
            for (int64_t r = 0; r < rows; ++r)
                if (of.bits[r]) broken |= odd_queries & (uint64_t)1 << r;
    }

    REGARD_INLINE number* scores_of(int t, int64_t row) const { return scores + (t % 2 * rows + row) * tile; }

    // ---- NaN and Inf ----
    // A key that holds one has a score that is NaN or infinite, whatever the query holds, and a value makes the outputs
    // so, whatever its weight. Where all rows see the same keys that is noticed afterwards, and breaks them all. Where
    // they do not, such a key breaks the rows that may see it, and is left out for the others.

    REGARD_INLINE uint64_t odd_keys(int t) const {
        return key.odd_rows(tiles[t].from, tiles[t].stop, keys_at + t * tile);
    }
    REGARD_INLINE uint64_t odd_values(int t) const {
        return value.odd_rows(tiles[t].from, tiles[t].stop, values_at + t * tile);
    }
    REGARD_INLINE void leave_out(const Tile& of, const Rows<T>& side, uint64_t odd, const T** at) {
        note_broken(of, odd);
        side.leave_out(odd, of.from, of.stop, at);
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

    // Scores of a row to weights, relative to its new largest; shrink[r] is what its older sums are multiplied with.
    REGARD_INLINE void weigh(int t, int64_t r) {
        const Tile& of = tiles[t];
        number* row = scores_of(t, r);
        BiasRows<number> bias{p, batch, head_of(r)};
        bool biased = bias.any(), full = of.bits[r] == ~(uint64_t)0;
        if (biased) bias.read(r % p.queries, of.index * tile, added);
        vec<number> highest = broadcast(-infinity), odd = {};
        for (int64_t j = of.from; j < of.stop; j += n) {
            vec<number> s = load(row + j), plus = {};
            odd = multiply_add(s, vec<number>{}, odd);
            if (biased) plus = load(added + j);
            s = multiply_add(s, broadcast(factor), plus);
            if (!full) s = select((uint32_t)(of.bits[r] >> j), s, broadcast(-infinity));
            highest = maximum(highest, s);
            store(row + j, s);
        }
        if (sum_of_lanes<number>(odd) != 0) note_broken(of, odd_keys(t));
        number old = left.largest[r], now = largest_lane<number>(highest);
        now = now > old ? now : old;
        number base = now == -infinity ? 0 : now;
        vec<number> sum = {};
        for (int64_t j = of.from; j < of.stop; j += n) {
            vec<number> w = exp2<degree>(load(row + j) - broadcast(base));
            sum += w;
            store(row + j, w);
        }
        left.largest[r] = now;
        shrink[r] = exp2<degree>(broadcast(old - base))[0];
        left.sums[r] = left.sums[r] * shrink[r] + sum_of_lanes<number>(sum);
    }

    // ---- joining ----

    // Output and lse of the rows of one (batch, key head), from what its `count` chunks left; overwrites that.
    static void join(const Problem& p, char* chunks, int64_t count, int64_t batch, int64_t key_head,
                     const ForwardResults& results) {
        const int64_t each = (int64_t)(Left<T>::bytes(p) / sizeof(number));
        Carver carver{chunks};
        Left<T> left(carver, p);
        for (int64_t r = 0; r < p.group() * p.queries; ++r) {
            number most = -infinity, sum = 0;
            for (int64_t c = 0; c < count; ++c) {
                number m = left.largest[c * each + r];
                most = m > most ? m : most;
            }
            number base = most == -infinity ? 0 : most;
            for (int64_t c = 0; c < count; ++c) {
                number& factor = left.largest[c * each + r];
                factor = exp2<degree>(broadcast(factor - base))[0];
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
        if (const Array& lse = results.lse)
            ((number*)lse.data)[lse.at(0, batch, head, query)] =
                empty ? -infinity : (number)((double)base * ln_2 + log((double)sum));
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

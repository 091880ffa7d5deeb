// Additive attention, backward.
//
//     dS_ij = w_ij (dO_i . v_j - dO_i . o_i)                              as in backward.h
//     r_ijw = e^-2a_iw / (e^-2a_iw + e^2b_jw),    tanh = 1 - 2 r,    tanh' = 4 r (1 - r)
//     da_iw = 4 v_w sum_j dS_ij r (1 - r),    db_jw = 4 v_w sum_i dS_ij r (1 - r),    dv_w = sum_ij dS_ij (1 - 2 r)
//
// For each pair of tiles, the scores are computed again, then dS, then r again for the three sums: nothing of size
// queries x keys x inner is stored. The sums over queries (db) and over pairs (dv) are accumulated in vectors of keys.
// For the sum over keys (da), vectors are reduced across their lanes, as many vectors at a time as they have lanes.
//
// Tasks are as in backward.h: a range of key tiles has its own db and dV and its own buffer for da, and writes one part
// of dv per (head, key tile). The parts are added in order afterwards.
#pragma once

#include "additive/additive.h"
#include "attention/active_queries.h"
#include "attention/backward_products.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class A>
struct AdditiveBackward {
    typedef typename A::number number;
    typedef Backward<A> DotProduct;
    static constexpr int width = lanes<number>;

    // ---- packing ----

    static BackwardSizes sizes(const Problem& p) {
        BackwardSizes s = DotProduct::sizes(p);
        s.key = PackAdditive<A>::key_bytes(p);
        s.key_rows = 0;
        s.query = PackAdditive<A>::query_bytes(p);
        ScratchLayout c{nullptr};
        carve(c, p, nullptr);
        s.scratch += 64 + c.used_bytes;
        ScratchLayout packing{nullptr};
        ScoreVector<A> vector;
        vector.carve(packing, p);
        packing.take<number>(padded_width<A>(p.value_dim));
        s.pack_scratch = max_of(PackAdditive<A>::scratch(p), packing.used_bytes);
        return s;
    }

    static void pack_keys(const Problem& p, int64_t batch, int64_t key_head, int64_t key_tile,
                          const BackwardTiles& into, char* scratch) {
        const BackwardSizes& s = *into.size;
        typename PackAdditive<A>::Rows rows(p, batch, key_head, key_tile, into.key + s.key * (size_t)key_tile, scratch);
        transpose(rows.values, padded_width<A>(p.value_dim), rows.height, p.value_dim,
                  (number*)(into.value + s.value * (size_t)key_tile));
    }

    // Packs one tile of queries: decay and pull, dO, the normalizer, delta, and the bits of active rows.
    static void pack_queries(const Problem& p, const BackwardInputs& g, int64_t batch, int64_t head,
                             int64_t query_tile, const BackwardTiles& into, int64_t in_group, char* scratch) {
        const BackwardSizes& s = *into.size;
        size_t at = (size_t)(in_group * p.query_tiles() + query_tile);
        int64_t first = query_tile * tile, rows = p.queries_in(query_tile);
        int64_t stride = padded_width<A>(p.head_dim), output_stride = padded_width<A>(p.value_dim);
        ScratchLayout c{scratch};
        ScoreVector<A> vector;
        vector.carve(c, p);
        number* output_row = c.take<number>(output_stride);
        vector.read(p, head);
        char* query = into.query + s.query * at;
        number *decay = (number*)query, *pull = decay + tile * stride;
        number* grad_output = (number*)(into.output + s.output * at);
        number* largest = (number*)(into.largest + s.row_numbers * at);
        number* log_sum = (number*)(into.log_sum + s.row_numbers * at);
        number* delta = (number*)(into.delta + s.row_numbers * at);
        uint64_t active = 0, large = 0;
        for (int64_t i = 0; i < rows; ++i, decay += stride, pull += stride, grad_output += output_stride) {
            const Normalizer<number> normalizer = Normalizer<number>::read(g.normalizer, batch, head, first + i);
            largest[i] = normalizer.largest, log_sum[i] = normalizer.log_sum, delta[i] = 0;
            if (!normalizer.is_active()) {
                largest[i] = 0, log_sum[i] = (number)HUGE_VAL;  // makes all weights 0
                memset(decay, 0, sizeof(number) * (size_t)stride);
                memset(pull, 0, sizeof(number) * (size_t)stride);
                memset(grad_output, 0, sizeof(number) * (size_t)output_stride);
                continue;
            }
            active |= (uint64_t)1 << i;
            read_row(p.query, p.query.at(batch, head, first + i, 0), p.head_dim, decay, stride);
            large |= (uint64_t)PackAdditive<A>::pack_query(p, vector.scaled_values, decay, pull) << i;
            read_row(g.output, g.output.at(batch, head, first + i, 0), p.value_dim, output_row, output_stride);
            read_row(g.grad_output, g.grad_output.at(batch, head, first + i, 0), p.value_dim, grad_output,
                        output_stride);
            delta[i] = BackwardPack<A>::compute_delta(output_row, grad_output, p.value_dim, log_sum[i]);
        }
        ((uint64_t*)into.active)[at] = active;
        *PackAdditive<A>::large_queries(p, query) = large;
    }

    // Subtracts the gradient of lse from delta: d lse_i / d s_ij = w_ij, so that dS_ij contains w_ij grad_lse_i.
    static void prepare_queries(const Problem& p, const BackwardInputs& g, const BackwardTiles& tiles, int64_t batch,
                                int64_t head, int64_t in_group, int64_t query_tile, char*) {
        size_t at = (size_t)(in_group * p.query_tiles() + query_tile);
        number* delta = (number*)(tiles.delta + tiles.size->row_numbers * at);
        uint64_t active = ((const uint64_t*)tiles.active)[at];
        for (; active; active &= active - 1) {
            int64_t i = __builtin_ctzll(active);
            delta[i] -= ((const number*)g.grad_lse.data)[g.grad_lse.at(0, batch, head, query_tile * tile + i)];
        }
    }

    // ---- one range of key tiles ----

    const Problem& p;
    const BackwardTiles& tiles;
    const BackwardResults& results;
    const BackwardSizes& size;
    DotProduct shared;  // buffers of weights, dS and dV, and the gradients of biases
    ScoreVector<A> vector;
    ExactPair<A> pair;
    int64_t batch, head = 0, in_group = 0, stride;
    int64_t columns = 0;  // keys of the tile, rounded up to whole vectors; the other columns are not used
    number *exact, *bias_rows;
    number *grad_key, *head_grad_key;  // padded inner size x 64: db; the part of one head, without the factor 4 v_w
    number* ratio_sums;                // padded inner size x lanes: sums of dS r
    number* exact_sums;                // padded inner size: sums of dS tanh of pairs of large tokens
    number* total;                     // lanes: sums of dS of all other pairs
    number* block;                     // 64 x 64

    static void carve(ScratchLayout& c, const Problem& p, AdditiveBackward* b) {
        int64_t stride = padded_width<A>(p.head_dim);
        ScoreVector<A> vector;
        vector.carve(c, p);
        ExactPair<A> pair;
        pair.carve(c, p);
        c.take(b, &AdditiveBackward::exact, rows_per_group * tile);
        c.take(b, &AdditiveBackward::bias_rows, rows_per_group * tile);
        c.take(b, &AdditiveBackward::grad_key, stride * tile);
        c.take(b, &AdditiveBackward::head_grad_key, stride * tile);
        c.take(b, &AdditiveBackward::ratio_sums, stride * width);
        c.take(b, &AdditiveBackward::exact_sums, stride);
        c.take(b, &AdditiveBackward::total, width);
        c.take(b, &AdditiveBackward::block, tile * tile);
        if (b) b->vector = vector, b->pair = pair;
    }

    AdditiveBackward(const Problem& p, const BackwardInputs& g, const BackwardTiles& tiles,
                     const BackwardResults& results, int64_t batch, char* scratch)
        : p(p), tiles(tiles), results(results), size(*tiles.size), shared(p, g, tiles, results, batch, scratch),
          batch(batch), stride(padded_width<A>(p.head_dim)) {
        ScratchLayout c{scratch + align_up(DotProduct::sizes(p).scratch)};
        carve(c, p, this);
    }

    // Computes db and dV of key tiles first .. stop - 1, and their terms of da (results.grad_query), dv and the
    // gradients of bias and table.
    static void run(const Problem& p, const BackwardInputs& g, const BackwardTiles& tiles,
                    const BackwardResults& results, int64_t batch, int64_t key_head, int64_t first, int64_t stop,
                    char* scratch) {
        AdditiveBackward b(p, g, tiles, results, batch, scratch);
        int64_t group = p.group();
        for (int64_t j = first; j < stop; ++j) {
            b.columns = min_of(padded_width<A>(p.keys_in(j)), tile);
            b.clear_columns(b.grad_key);
            memset(b.shared.grad_value, 0, sizeof(number) * (size_t)(tile * b.shared.value_stride));
            for (int64_t h = 0; h < group; ++h) b.process_head(key_head * group + h, h, j);
            b.finish_keys(key_head, j);
        }
        for (int64_t h = 0; h < group; ++h) b.scale_queries(key_head * group + h, h);
    }

    void clear_columns(number* rows) const {
        for (int64_t w = 0; w < stride; ++w) memset(rows + w * tile, 0, sizeof(number) * (size_t)columns);
    }

    void process_head(int64_t of_head, int64_t of_group, int64_t key_tile) {
        head = shared.head = of_head, in_group = shared.in_group = of_group;
        vector.read(p, head);
        clear_columns(head_grad_key);
        memset(ratio_sums, 0, sizeof(number) * (size_t)(stride * width));
        memset(exact_sums, 0, sizeof(number) * (size_t)stride);
        memset(total, 0, sizeof(number) * (size_t)width);
        for_active_queries(p, batch, head, key_tile, shared.active(), shared.bits, [&](int64_t i, int64_t rows, bool partial) {
            process_tile_pair(i, key_tile, rows, partial);
        });
        for (int64_t w = 0; w < p.head_dim; ++w) {
            vec<number> times = broadcast(4 * vector.values[w]);
            for (int64_t c = w * tile; c < w * tile + columns; c += width)
                store(grad_key + c, multiply_add(load(head_grad_key + c), times, load(grad_key + c)));
        }
        const Array& to = results.vector;
        number sum = sum_lanes<number>(load(total));
        for (int64_t w = 0; w < p.head_dim; ++w)
            ((number*)to.data)[to.at(batch, head, key_tile, w)] =
                sum - 2 * sum_lanes<number>(load(ratio_sums + w * width)) + exact_sums[w];
    }

    void process_tile_pair(int64_t query_tile, int64_t key_tile, int64_t rows, bool partial) {
        size_t at = (size_t)(in_group * p.query_tiles() + query_tile);
        const BiasGradient<number> bias = shared.bias_gradient();
        bias.begin();
        for_rows(rows, [&](int64_t first, auto n) {
            constexpr int rows_of = decltype(n)::value;
            int32_t from, stop;
            Forward<A>::template find_visible_vectors<rows_of>(partial, shared.bits + first, &from, &stop);
            weigh<rows_of>(query_tile, key_tile, at, first, from, stop, partial, bias);
        });
        bias.finish(query_tile, key_tile, rows);
        BackwardProducts<A>::add_transposed(shared.grad_value, shared.value_stride, shared.weights, shared.outputs(at), rows,
                                            p.keys_in(key_tile), partial ? shared.bits : nullptr);
        for (int64_t w = 0; w < p.head_dim; w += width)
            for_rows(rows, [&](int64_t first, auto n) {
                constexpr int rows_of = decltype(n)::value;
                int32_t from, stop;
                Forward<A>::template find_visible_vectors<rows_of>(partial, shared.bits + first, &from, &stop);
                add_to_tokens<rows_of>(key_tile, at, first, w, from, stop);
            });
    }

    // Computes the weights and dS of a strip of queries for vectors from .. stop - 1 of a key tile; others become 0.
    template <int n>
    REGARD_INLINE void weigh(int64_t query_tile, int64_t key_tile, size_t at, int64_t first, int32_t from,
                             int32_t stop, bool partial, const BiasGradient<number>& bias_gradient) {
        char *query = tiles.query + size.query * at, *key = tiles.key + size.key * (size_t)key_tile;
        const number* decay = (const number*)query + first * stride;
        const number* largest = (const number*)(tiles.largest + size.row_numbers * at) + first;
        const number* log_sum = (const number*)(tiles.log_sum + size.row_numbers * at) + first;
        const uint64_t* allowed = shared.bits + first;
        number* w_to = shared.weights + first * tile;
        int64_t first_query = query_tile * tile + first;
        BiasRows<number> bias{p, batch, head};
        bool has_bias = bias.has_bias();
        const number* added[n];
        if (has_bias)
            for (int r = 0; r < n; ++r)
                added[r] = bias.read(first_query + r, key_tile * tile, bias_rows + r * tile);
        Scores<A> scores = {p,          vector,          pair,
                            exact,      decay,           decay + tile * stride,
                            (const number*)key, batch,   head,
                            first_query, key_tile * tile, *PackAdditive<A>::large_queries(p, query) >> first,
                            *PackAdditive<A>::large_keys(p, key)};
        scores.template prepare<n>();
        for_score_panels(from, stop, [&](int64_t v0, auto panel) {
            Sums<A, n, decltype(panel)::value> s;
            scores.sum(v0, s);
            s.each([&](int r, int v, vec<number>& sum) {
                int64_t c = (v0 + v) * width;
                vec<number> plus = {};
                if (has_bias) plus = load(added[r] + c);
                vec<number> score = multiply_add(sum, broadcast(vector.unit), plus);  // same bits as in forward
                vec<number> x =
                    multiply_add(score - broadcast(largest[r]), broadcast((number)log2_e), -broadcast(log_sum[r]));
                vec<number> w = softmax_weight<A::degree>(x);
                if (partial) w = select((uint32_t)(allowed[r] >> c), w, vec<number>{});
                store(w_to + r * tile + c, w);
            });
        });
        grad_scores<n>(query_tile, key_tile, at, first, from, stop, partial, bias_gradient);
        if (scores.large_keys && (scores.large_queries & bit_range(0, n)))
            for (int r = 0; r < n; ++r)
                if (scores.large_queries >> r & 1)
                    add_exact_pairs(first_query + r, key_tile, at, first + r, from, stop, scores.large_keys);
        vec<number> sum = load(total);
        for (int r = 0; r < n; ++r)
            for (int64_t c = from * width; c < stop * width; c += width)
                sum += load(shared.inner + (first + r) * tile + c);
        store(total, sum);
    }

    template <int n>
    REGARD_INLINE void grad_scores(int64_t query_tile, int64_t key_tile, size_t at, int64_t first, int32_t from,
                                   int32_t stop, bool partial, const BiasGradient<number>& bias_gradient) {
        int64_t value_stride = shared.value_stride, first_query = query_tile * tile + first;
        const number* output = (const number*)(tiles.output + size.output * at) + first * value_stride;
        const number* value = (const number*)(tiles.value + size.value * (size_t)key_tile);
        const number* delta = (const number*)(tiles.delta + size.row_numbers * at) + first;
        number *w_to = shared.weights + first * tile, *d_to = shared.inner + first * tile;
        const uint64_t* allowed = shared.bits + first;
        for_panels(from, stop, [&](int64_t v0, auto panel) {
            Sums<A, n, decltype(panel)::value> d;
            d.clear();
            multiply(d, output, value_stride, 1, value + v0 * width, tile, p.value_dim);
            d.each([&](int r, int v, vec<number>& of_pair) {
                int64_t c = (v0 + v) * width;
                vec<number> w = load(w_to + r * tile + c);
                if (shared.threshold) {
                    DropoutMask drop_mask(p.seed, (uint64_t)(batch * p.heads + head), (uint64_t)(first_query + r));
                    uint32_t key_index = (uint32_t)(key_tile * tile + c);
                    vec<number> kept =
                        apply_dropout(drop_mask, key_index, shared.threshold, broadcast(shared.keep_scale));
                    of_pair *= kept;
                    store(w_to + r * tile + c, w * kept);
                }
                vec<number> ds = w * (of_pair - broadcast(delta[r]));
                if (partial) ds = select((uint32_t)(allowed[r] >> c), ds, vec<number>{});
                store(d_to + r * tile + c, ds);
            });
        });
        for (int r = 0; r < n; ++r)
            for (int64_t c = 0; c < tile; c += width)
                if (c < from * width || c >= stop * width) {
                    store(w_to + r * tile + c, vec<number>{});
                    store(d_to + r * tile + c, vec<number>{});
                }
        for (int r = 0; r < n; ++r) bias_gradient.add(first_query + r, first + r, key_tile, d_to + r * tile);
    }

    // Adds the terms of the pairs of one large query with large keys, from unclamped numbers, and sets their dS to 0.
    void add_exact_pairs(int64_t query, int64_t key_tile, size_t at, int64_t row, int32_t from, int32_t stop,
                     uint64_t large_keys) {
        number* to = (number*)(results.grad_query + size.grad_query * at) + row * stride;
        for (uint64_t rest = large_keys & bit_range(from * width, stop * width); rest; rest &= rest - 1) {
            int64_t j = __builtin_ctzll(rest);
            number ds = shared.inner[row * tile + j];
            shared.inner[row * tile + j] = 0;
            if (ds == 0) continue;
            pair.read(p, batch, head, query, key_tile * tile + j);
            pair.for_each(p, [&](int64_t k, vec<number> tanh, vec<number> slope) {
                slope *= ds;
                store(to + k, load(to + k) + slope);
                store(exact_sums + k, multiply_add(tanh, broadcast(ds), load(exact_sums + k)));
                for (int i = 0; i < width; ++i) head_grad_key[(k + i) * tile + j] += slope[i];
            });
        }
    }

    // Adds the terms of a strip of queries and a tile of keys to the three sums, for one vector of w.
    template <int n>
    REGARD_INLINE void add_to_tokens(int64_t key_tile, size_t at, int64_t first, int64_t w0, int32_t from,
                                     int32_t stop) {
        if (from >= stop) return;
        const number* decay = (const number*)(tiles.query + size.query * at) + first * stride + w0;
        const number* growth = (const number*)(tiles.key + size.key * (size_t)key_tile) + w0 * tile;
        const number* inner = shared.inner + first * tile;
        vec<number> of_query[n][width];
        for (int r = 0; r < n; ++r)
            for (int w = 0; w < width; ++w) of_query[r][w] = vec<number>{};
        for_score_panels(from, stop, [&](int64_t v0, auto panel) {
            constexpr int vectors = decltype(panel)::value;
            vec<number> ds[n][vectors];
#pragma GCC unroll 8
            for (int r = 0; r < n; ++r)
#pragma GCC unroll 8
                for (int v = 0; v < vectors; ++v) ds[r][v] = load(inner + r * tile + (v0 + v) * width);
            for (int w = 0; w < width; ++w) {
                number* key_sums = head_grad_key + (w0 + w) * tile + v0 * width;
                vec<number> g[vectors], sums[vectors], sum = load(ratio_sums + (w0 + w) * width);
#pragma GCC unroll 8
                for (int v = 0; v < vectors; ++v) {
                    g[v] = load(growth + w * tile + (v0 + v) * width);
                    sums[v] = load(key_sums + v * width);
                }
#pragma GCC unroll 8
                for (int r = 0; r < n; ++r) {
                    vec<number> d = broadcast(decay[r * stride + w]), of_row = of_query[r][w];
#pragma GCC unroll 8
                    for (int v = 0; v < vectors; ++v) {
                        vec<number> ratio = quotient(d, d + g[v]), once = ds[r][v] * ratio;
                        vec<number> slope = multiply_add(-once, ratio, once);
                        sum += once;
                        sums[v] += slope;
                        of_row += slope;
                    }
                    of_query[r][w] = of_row;
                }
                store(ratio_sums + (w0 + w) * width, sum);
#pragma GCC unroll 8
                for (int v = 0; v < vectors; ++v) store(key_sums + v * width, sums[v]);
            }
        });
        number* to = (number*)(results.grad_query + size.grad_query * at) + first * stride + w0;
        for (int r = 0; r < n; ++r) store(to + r * stride, load(to + r * stride) + sum_each_vector<number>(of_query[r]));
    }

    // ---- final steps of a tile of keys, and of a range ----

    void finish_keys(int64_t key_head, int64_t key_tile) {
        int64_t first = key_tile * tile, count = p.keys_in(key_tile);
        const Array &key = results.key, &value = results.value;
        for (int64_t w = 0; w < p.head_dim; w += tile) {
            transpose(grad_key + w * tile, tile, min_of(stride - w, tile), columns, block);
            for (int64_t j = 0; j < count; ++j)
                write_scaled_row(block + j * tile, min_of(p.head_dim - w, tile), (number)1, key,
                             key.at(batch, key_head, first + j, w));
        }
        for (int64_t j = 0; j < count; ++j)
            write_scaled_row(shared.grad_value + j * shared.value_stride, p.value_dim, (number)1, value,
                         value.at(batch, key_head, first + j, 0));
    }

    void scale_queries(int64_t of_head, int64_t of_group) {
        vector.read(p, of_head);
        for (int64_t t = results.query_tiles.first; t < results.query_tiles.past; ++t) {
            number* sums = (number*)(results.grad_query + size.grad_query * (size_t)(of_group * p.query_tiles() + t));
            int64_t rows = p.queries_in(t);
            for (int64_t i = 0; i < rows; ++i, sums += stride)
                for (int64_t k = 0; k < stride; k += width) store(sums + k, load(sums + k) * load(vector.values + k) * 4);
        }
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

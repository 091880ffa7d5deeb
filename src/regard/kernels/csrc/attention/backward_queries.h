// Backward pass, the step between packing and gradients, which reads all keys of one tile of queries. Softmax only.
//
//     m_i, log2 l_i     the normalizers again, with the weights, if the forward pass used the decoding kernels
//     delta_i           + sum_j w_ij (D_ij - dO_i . v_j) - grad_lse_i, the terms of statistics (statistics_gradient.h)
//     delta_i, dz_i     the terms of the sinks and their gradients: see attention_sink.h
#pragma once

#include "attention/backward_head.h"
#include "attention/forward.h"
#include "decode/decode_kernels.h"
#include "tiles/attention_sink.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class A>
struct BackwardQueries : BackwardHead<A> {
    typedef BackwardHead<A> Head;
    using typename Head::Exponents;
    using typename Head::Normalizers;
    using typename Head::number;
    using typename Head::SavedWeights;
    using typename Head::unit;
    using Head::batch, Head::g, Head::has_bias, Head::head, Head::infinity, Head::p, Head::padded_strip;
    using Head::query_units, Head::size, Head::softcap, Head::tiles, Head::width;

    static constexpr int tiles_together = 4;  // key tiles that normalize processes together

    uint64_t* bits;
    number *bias_rows, *exponents, *extra;
    number* sums;  // of the weights of each query, in lanes

    static size_t scratch() {
        return bytes_of_parts([&](ScratchLayout& c) { carve(c, nullptr); });
    }
    static void carve(ScratchLayout& c, BackwardQueries* b) {
        c.take(b, &BackwardQueries::bits, tiles_together * tile);
        c.take(b, &BackwardQueries::bias_rows, strip * tile);
        c.take(b, &BackwardQueries::exponents, strip * tile);
        c.take(b, &BackwardQueries::extra, strip * tile);
        c.take(b, &BackwardQueries::sums, max_decode_rows * width);
    }

    static void prepare(const Problem& p, const BackwardInputs& g, const BackwardTiles& tiles, int64_t batch,
                        int64_t head, int64_t in_group, int64_t query_tile, char* scratch) {
        BackwardQueries b(p, g, tiles, batch, scratch);
        b.head = head, b.in_group = in_group;
        if (tiles.weights) b.normalize(query_tile);
        b.add_statistics(query_tile);
        if (p.sinks) b.differentiate_sinks(query_tile);
    }

    BackwardQueries(const Problem& p, const BackwardInputs& g, const BackwardTiles& tiles, int64_t batch, char* scratch)
        : Head(p, g, tiles, batch) {
        ScratchLayout c{scratch};
        carve(c, this);
    }

    REGARD_INLINE uint64_t& active_rows(int64_t query_tile) const { return this->active()[query_tile]; }

    // ---- normalizers ----

    // Computes the normalizers of one tile of queries again, if the forward pass used the decoding kernels
    // (decode.cpp). These add products in another order, and for large scores the difference of two roundings of the
    // same score can be large. Such calls have few queries, so the weights are saved for the gradients, and no product
    // is computed twice.
    void normalize(int64_t query_tile) {
        const size_t at = this->tile_index(query_tile);
        number *largest = this->largest(at), *log_sum = this->log_sums(at);
        uint64_t& active = active_rows(query_tile);
        const Exponents in(*this);
        const int64_t rows = p.queries_in(query_tile);  // the other weights are 0 already
        for (int64_t r = 0; r < rows; ++r) largest[r] = -infinity;
        memset(sums, 0, sizeof(number) * (size_t)(rows * width));
        for_strips_of_keys<tiles_together>(
            query_tile, active,
            [&](const int64_t* key_tiles, int count, int64_t first, auto n, const int32_t* from, const int32_t* stop) {
                normalize_strip<decltype(n)::value>(query_tile * tile + first, key_tiles, count, at, first, from, stop,
                                                    in, largest + first);
            });
        const uint64_t before = active;
        for (int64_t r = 0; r < rows; ++r) {
            if (!(before >> r & 1)) {
                largest[r] = 0, log_sum[r] = infinity;
                continue;
            }
            const double sum = sum_lanes<number>(load(sums + r * width));
            double log_of_sum = log(sum);
            if (p.sinks) {
                const double largest_score = (double)(in.sign * largest[r]) * this->scale_of_differences();
                log_of_sum = SinkShare(read_sink(p, batch, head, query_tile * tile + r), largest_score, log_of_sum).log_sum;
            }
            const Normalizer<number> found = {in.sign * largest[r], (number)(log_of_sum * log2_e)};
            const bool is_active = found.is_active() && largest[r] < infinity;
            if (!is_active) active &= ~((uint64_t)1 << r);
            largest[r] = is_active ? found.largest : 0, log_sum[r] = is_active ? found.log_sum : infinity;
        }
    }

    // Stores the weights of a strip of queries and a few tiles of keys in `tiles.weights`, relative to the largest
    // score so far, and that score with them.
    template <int n>
    REGARD_INLINE void normalize_strip(int64_t first_query, const int64_t* key_tiles, int count, size_t at, int64_t first,
                                       const int32_t* from, const int32_t* stop, const Exponents& in, number* largest) {
        vec<number> highest[n];
        for (int r = 0; r < n; ++r) highest[r] = broadcast(-infinity);
        for (int t = 0; t < count; ++t)
            score_strip<n>(first_query, key_tiles[t], at, first, from[t], stop[t], bits + t * tile + first, in, highest);
        number shrink[padded_strip] = {};
        for (int r = 0; r < n; ++r) {
            const number highest_of_row = max_lane<number>(highest[r]), old = largest[r];
            largest[r] = highest_of_row > old ? highest_of_row : old;
            shrink[r] = largest[r] == -infinity ? 0 : (old - largest[r]) * in.times;
        }
        for (int r = 0; r < n; r += width) store(shrink + r, exp2<A::degree>(load(shrink + r)));
        for (int r = 0; r < n; ++r) {
            const vec<number> base = broadcast(largest[r] == -infinity ? 0 : largest[r]);  // 0: no key yet
            vec<number> sum = {};
            for (int t = 0; t < count; ++t) {
                number* weight = SavedWeights(*this, key_tiles[t]).rows + (first + r) * tile;
                for (int64_t c = from[t] * width; c < stop[t] * width; c += width) {
                    const vec<number> w = softmax_weight<A::degree>((load(weight + c) - base) * broadcast(in.times));
                    sum += w;
                    store(weight + c, w);
                }
            }
            number* total = sums + (first + r) * width;
            store(total, multiply_add(load(total), broadcast(shrink[r]), sum));
        }
        for (int t = 0; t < count; ++t)
            memcpy(SavedWeights(*this, key_tiles[t]).largest + first, largest, sizeof(number) * n);
    }

    // Stores the scores of a strip and one tile of keys where the weights will be; -infinity for forbidden keys.
    template <int n>
    REGARD_INLINE void score_strip(int64_t first_query, int64_t key_tile, size_t at, int64_t first, int32_t from,
                                   int32_t stop, const uint64_t* allowed, const Exponents& in, vec<number>* highest) {
        const unit* query = this->queries(at) + first * query_units;
        const Panels<A> key = this->keys(key_tile);
        const number* added[n];
        if (has_bias) this->template read_biases<n>(first_query, key_tile, bias_rows, added);
        number* to = SavedWeights(*this, key_tile).rows + first * tile;
        for_panels(from, stop, [&](int64_t v0, auto panel) {
            constexpr int vectors = decltype(panel)::value;
            Sums<A, n, vectors> s;
            s.clear();
            multiply_in_parts(s, query, query_units, 1, key.at(0, v0), key.template step<vectors>(v0),
                              count_units<A>(p.head_dim));
            if (softcap) softcap.apply_to(s);
            s.each([&](int r, int v, vec<number>& x) {
                vec<number> plus = {};
                if (has_bias) plus = load(added[r] + (v0 + v) * width);
                x = multiply_add(x, broadcast(in.product_scale), plus);
                x = select((uint32_t)(allowed[r] >> ((v0 + v) * width)), x, broadcast(-infinity));
                highest[r] = maximum(highest[r], x);
            });
            s.store_to(to + v0 * width, tile);
        });
    }

    // ---- statistics and sinks ----

    // Adds the terms of statistics to delta: sum_j w_ij (D_ij - dO_i . v_j) - grad_lse_i.
    void add_statistics(int64_t query_tile) {
        const size_t at = this->tile_index(query_tile);
        const int64_t first_query = query_tile * tile, rows = p.queries_in(query_tile);
        number* delta = this->deltas(at);
        const uint64_t active = active_rows(query_tile);
        if (g.grad_lse)
            for (int64_t i = 0; i < rows; ++i)
                if (active >> i & 1)
                    delta[i] -= ((const number*)g.grad_lse.data)[g.grad_lse.at(0, batch, head, first_query + i)];
        if (!g.has_statistics()) return;
        for_strips_of_keys<1>(
            query_tile, active,
            [&](const int64_t* key_tile, int, int64_t first, auto n, const int32_t* from, const int32_t* stop) {
                add_statistics_strip<decltype(n)::value>(first_query + first, *key_tile, at, first, *from, *stop,
                                                         delta + first);
            });
    }

    template <int n>
    REGARD_INLINE void add_statistics_strip(int64_t first_query, int64_t key_tile, size_t at, int64_t first, int32_t from,
                                   int32_t stop, number* delta) {
        const unit* query = this->queries(at) + first * query_units;
        const Panels<A> key = this->keys(key_tile);
        const Normalizers normalizers(*this, at, first);
        const StatisticsGradient<number> statistics = this->statistics();
        const number* added[n];
        this->template read_biases<n>(first_query, key_tile, bias_rows, added);
        for (int r = 0; r < n; ++r) statistics.read(first_query + r, key_tile, extra + r * tile);
        vec<number> sum[n];
        for (int r = 0; r < n; ++r) sum[r] = vec<number>{};
        for_panels(from, stop, [&](int64_t v0, auto panel) {
            constexpr int vectors = decltype(panel)::value;
            Sums<A, n, vectors> s;
            s.clear();
            multiply_in_parts(s, query, query_units, 1, key.at(0, v0), key.template step<vectors>(v0),
                              count_units<A>(p.head_dim));
            if (softcap) softcap.apply_to(s);
            normalizers.to_exponents(s, added, v0);
            s.each([&](int r, int v, vec<number>& x) {
                int64_t c = r * tile + (v0 + v) * width;
                store(exponents + c, x);
                vec<number> part = softmax_weight<A::degree>(x) * statistics.terms(first_query + r, exponents + c, extra + c);
                sum[r] += select((uint32_t)(bits[first + r] >> ((v0 + v) * width)), part, vec<number>{});
            });
        });
        for (int r = 0; r < n; ++r) delta[r] += sum_lanes<number>(sum[r]);
    }

    // Adds the terms of the sinks in statistics to delta, and writes the gradients: see attention_sink.h.
    void differentiate_sinks(int64_t query_tile) {
        const size_t at = this->tile_index(query_tile);
        const int64_t first_query = query_tile * tile, rows = p.queries_in(query_tile);
        const number *largest = this->largest(at), *log_sum = this->log_sums(at);
        number* delta = this->deltas(at);
        const uint64_t active = active_rows(query_tile);
        const auto of_row = [&](const Array& array, int64_t query) -> number& {
            return ((number*)array.data)[array.at(0, batch, head, query)];
        };
        for (int64_t i = 0; i < rows; ++i) {
            const int64_t query = first_query + i;
            double gradient = 0;
            if (active >> i & 1) {
                const double largest_score = (double)largest[i] * this->scale_of_differences();
                double log_weight = read_sink(p, batch, head, query) - largest_score - (double)log_sum[i] * ln_2;
                if (log_weight > 0) log_weight = 0;  // by the rounding of log_sum
                const double weight = exp(log_weight);
                double of_weight = 0;
                if (g.sink_weight) of_weight += (double)of_row(g.sink_weight, query);
                if (g.log_weight && weight > 0) of_weight += (double)of_row(g.log_weight, query) * log_weight;
                if (weight > 0) {
                    const double sum = (double)delta[i] + weight * of_weight;
                    delta[i] = (number)sum;
                    gradient = weight * (of_weight - sum);
                }
            }
            if (g.sink_rows) of_row(g.sink_rows, query) = (number)gradient;
        }
    }

    // ---- all keys of one tile of queries ----

    // For one tile of queries, calls body(key tiles, their number, first row, Constant, from, stop) for each strip and
    // up to `most` key tiles at a time. `bits` then has the keys that active rows may attend to, and from .. stop - 1
    // are the vectors of each tile that contain them.
    template <int most, class Body>
    REGARD_INLINE void for_strips_of_keys(int64_t query_tile, uint64_t active, Body body) {
        const int64_t rows = p.queries_in(query_tile);
        MaskView view(p, batch, head);
        KeyTileIterator of_query(view, query_tile);
        KeyTile found[most];
        while (int count = of_query.next(most, found, bits)) {
            int64_t key_tiles[most];
            for (int t = 0; t < count; ++t) {
                key_tiles[t] = found[t].index;
                uint64_t* visible = bits + t * tile;
                for (int64_t r = 0; r < rows; ++r)
                    visible[r] = active >> r & 1 ? (found[t].is_partial ? visible[r] : ~(uint64_t)0) : 0;
            }
            for_strips(rows, [&](int64_t first, auto n) {
                int32_t from[most], stop[most];
                for (int t = 0; t < count; ++t)
                    Forward<A>::template find_visible_vectors<decltype(n)::value>(
                        true, bits + t * tile + first, &from[t], &stop[t]);
                body(key_tiles, count, first, n, from, stop);
            });
        }
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

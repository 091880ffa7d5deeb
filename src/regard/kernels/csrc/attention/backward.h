// Backward pass: the gradients of query, key, value and bias, from weights that are computed again.
//
//     w_ij  = 2^((s_ij - m_i) c - log2 l_i)                   s_ij, m_i, l_i as in the forward pass: see normalizer.h
//     D_ij  = dO_i . v_j  (+ terms of statistics)
//     dS_ij = w_ij (D_ij - delta_i)                           delta_i = sum_j w_ij D_ij = dO_i . o_i
//     dV_j  = sum_i w_ij dO_i,   dK_j = scale sum_i dS_ij q_i,   dQ_i = scale sum_j dS_ij k_j
// With a cap (softcap.h), dS is multiplied by its slope, after it was added to the gradient of a bias. The gradient of a
// sink is in attention_sink.h.
//
//                                                             Dao et al. 2022, algorithm 4; Dao 2023, algorithm 2
// With dropout, w_ij in dV and dO_i . v_j are multiplied by keep_ij / (1 - p), generated again from the seed.
//
// The weights of a sigmoid (weight_function.h) need no normalizer and no delta:
//
//     w_ij  = sigmoid(s_ij + b_i),    dS_ij = w_ij (1 - w_ij) D_ij
//
// backward_pack.h packs the tokens; backward_queries.h is a step between packing and these products; the gradients of biases
// are in bias_gradient.h, those of statistics in statistics_gradient.h.
//
// A task computes dK and dV of a range of key tiles of one (batch, key head). Each range sums its terms of dQ in a
// buffer of its own, and the buffers are added in order, so the bits do not depend on the number of threads. A pair of
// tiles takes five products of matrices: scores, D, dQ, dV and dK.
#pragma once

#include "attention/active_queries.h"
#include "attention/backward_products.h"
#include "attention/backward_queries.h"
#include "attention/bias_gradient.h"
#include "attention/forward.h"
#include "tiles/weight_function.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class A, class Weights = Softmax>
struct Backward : BackwardHead<A> {
    typedef BackwardHead<A> Head;
    typedef BackwardPack<A, Weights> Packing;
    using typename Head::Exponents;
    using typename Head::Normalizers;
    using typename Head::number;
    using typename Head::SavedWeights;
    using typename Head::unit;
    using Head::batch, Head::g, Head::has_bias, Head::head, Head::head_stride, Head::in_group, Head::output_units;
    using Head::p, Head::padded_strip, Head::query_units, Head::size, Head::softcap, Head::tiles, Head::value_stride;
    using Head::width;
    static constexpr int64_t unit_tile = Packing::unit_tile;
    static constexpr auto pack_keys = Packing::pack_keys;
    static constexpr auto pack_queries = Packing::pack_queries;

    static BackwardSizes sizes(const Problem& p) {
        BackwardSizes s = Packing::sizes(p);
        s.scratch = max_of(bytes_of_parts([&](ScratchLayout& c) { carve(c, p, nullptr); }), BackwardQueries<A>::scratch());
        return s;
    }

    static void prepare_queries(const Problem& p, const BackwardInputs& g, const BackwardTiles& tiles, int64_t batch,
                                int64_t head, int64_t in_group, int64_t query_tile, char* scratch) {
        if constexpr (Weights::is_normalized)
            BackwardQueries<A>::prepare(p, g, tiles, batch, head, in_group, query_tile, scratch);
    }

    // ---- one range of key tiles ----

    const BackwardResults& results;
    number keep_scale;
    uint32_t threshold;
    number *grad_key, *grad_value, *weights, *inner, *bias_rows, *exponents, *extra, *skewed_sums, *slopes;
    unit *paired_weights, *paired_inner, *inner_rows;
    uint64_t* bits;
    number *products, *turned;  // for the matrix unit: those of a pair of tiles; dK or dV

    static void carve(ScratchLayout& c, const Problem& p, Backward* b) {
        c.take(b, &Backward::grad_key, tile * padded_width<A>(p.head_dim));
        c.take(b, &Backward::grad_value, tile * padded_width<A>(p.value_dim));
        c.take(b, &Backward::weights, tile * tile);
        c.take(b, &Backward::inner, (A::per_unit == 1 || !Weights::is_normalized ? tile : strip) * tile);
        c.take(b, &Backward::bias_rows, strip * tile);
        c.take(b, &Backward::exponents, tile * tile);
        c.take(b, &Backward::extra, strip * tile);
        c.take(b, &Backward::skewed_sums, BiasGradient<number>::skewed_numbers);
        c.take(b, &Backward::paired_weights, A::per_unit == 1 ? 0 : unit_tile * tile);
        c.take(b, &Backward::paired_inner, A::per_unit == 1 ? 0 : unit_tile * tile);
        c.take(b, &Backward::inner_rows, A::per_unit == 1 ? 0 : tile * unit_tile);
        c.take(b, &Backward::bits, tile);
        c.take(b, &Backward::slopes, p.softcap > 0 ? tile * tile : 0);
        c.take(b, &Backward::products, A::has_matrix_unit ? tile * tile : 0);
        c.take(b, &Backward::turned, A::has_matrix_unit ? tile * padded_width<A>(max_of(p.head_dim, p.value_dim)) : 0);
    }

    Backward(const Problem& p, const BackwardInputs& g, const BackwardTiles& tiles, const BackwardResults& results,
             int64_t batch, char* scratch)
        : Head(p, g, tiles, batch), results(results) {
        threshold = p.dropout > 0 ? drop_threshold(p.dropout) : 0;
        keep_scale = (number)(1 / (1 - p.dropout));
        ScratchLayout c{scratch};
        carve(c, p, this);
    }

    REGARD_INLINE BiasGradient<number> bias_gradient() const { return {p, results, batch, head, skewed_sums}; }

    // Computes dK and dV of key tiles first .. stop - 1, and adds their terms of dQ (to results.grad_query) and of the
    // gradients of bias and table.
    static void run(const Problem& p, const BackwardInputs& g, const BackwardTiles& tiles,
                    const BackwardResults& results, int64_t batch, int64_t key_head, int64_t first, int64_t stop,
                    char* scratch) {
        Backward b(p, g, tiles, results, batch, scratch);
        int64_t group = p.group();
        for (int64_t j = first; j < stop; ++j) {
            memset(b.grad_key, 0, sizeof(number) * (size_t)(tile * b.head_stride));
            memset(b.grad_value, 0, sizeof(number) * (size_t)(tile * b.value_stride));
            for (int64_t h = 0; h < group; ++h) {
                b.in_group = h, b.head = key_head * group + h;
                for_active_queries(p, batch, b.head, j, b.active(), b.bits, [&](int64_t i, int64_t rows, bool partial) {
                    b.process_tile_pair(i, j, rows, partial);
                });
            }
            b.finish_keys(key_head, j);
        }
    }

    // Computes the five products: scores (and weights), D (and dS), dQ, dV, dK. Each is computed for all strips before
    // the next one, so that its right operand stays in the L1 cache.
    void process_tile_pair(int64_t query_tile, int64_t key_tile, int64_t rows, bool partial) {
        const size_t at = this->tile_index(query_tile);
        const BiasGradient<number> bias = bias_gradient();
        auto each_strip = [&](auto body) {
            for_strips(rows, [&](int64_t first, auto n) {
                int32_t from, stop;
                Forward<A>::template find_visible_vectors<decltype(n)::value>(partial, bits + first, &from, &stop);
                body(first, n, from, stop);
            });
        };
        if (!uses_saved_weights())
            multiply_tiles(this->queries(at), query_units, this->keys(key_tile).data, rows);
        each_strip([&](int64_t first, auto n, int32_t from, int32_t stop) {
            weigh<decltype(n)::value>(query_tile, key_tile, at, first, from, stop, partial);
        });
        bias.begin();
        multiply_tiles(this->outputs(at), output_units, this->values(key_tile).data, rows);
        each_strip([&](int64_t first, auto n, int32_t from, int32_t stop) {
            differentiate<decltype(n)::value>(query_tile, key_tile, at, first, from, stop, partial, bias);
        });
        bias.finish(query_tile, key_tile, rows);
        if constexpr (A::has_matrix_unit) {
            add_matrix_products(key_tile, at, rows);
        } else {
            each_strip([&](int64_t first, auto n, int32_t from, int32_t stop) {
                add_to_queries<decltype(n)::value>(key_tile, at, first, from, stop);
            });
            add_to_keys(at, rows, p.keys_in(key_tile), partial);
        }
    }

    // Whether the weights are those that BackwardQueries saved. Slopes are not saved.
    REGARD_INLINE bool uses_saved_weights() const {
        return Weights::is_normalized && tiles.weights && !g.has_statistics() && !softcap;
    }

    // The terms of dQ of a tile of queries, in this range.
    REGARD_INLINE number* grad_query(size_t at) const { return (number*)(results.grad_query + size.grad_query * at); }

    // For the matrix unit: products = `count` rows of queries . columns of 64 keys.
    REGARD_INLINE void multiply_tiles(const unit* rows, int64_t units, const unit* columns, int64_t count) const {
        if constexpr (A::has_matrix_unit)
            A::multiply_matrix({products, tile}, {rows, units}, {columns, tile},
                               (count + width - 1) / width * width, tile, units);
    }

    // For the matrix unit, the last three products of a pair of tiles: dQ, and the transposes of dV and dK, whose right
    // operands are w and dS as they are. Rows of dQ after the last query are filled up to 16 with arbitrary numbers.
    void add_matrix_products(int64_t key_tile, size_t at, int64_t rows) {
        const int64_t paired = count_units<A>(rows), missing = (unit_tile - paired) * tile;
        memset(paired_weights + paired * tile, 0, sizeof(unit) * (size_t)missing);
        memset(paired_inner + paired * tile, 0, sizeof(unit) * (size_t)missing);
        A::add_matrix_product({grad_query(at), head_stride}, {inner_rows, unit_tile}, {this->key_rows(key_tile).data, head_stride},
                              (rows + width - 1) / width * width, head_stride, unit_tile);
        A::add_matrix_product({grad_value, tile}, {this->output_rows(at), unit_tile}, {paired_weights, tile}, value_stride,
                              tile, unit_tile);
        A::add_matrix_product({grad_key, tile}, {this->query_rows(at), unit_tile}, {paired_inner, tile}, head_stride, tile,
                              unit_tile);
    }

    // Computes the weights of a strip of queries for vectors from .. stop - 1 of a key tile; the others become 0.
    template <int n>
    REGARD_INLINE void weigh(int64_t query_tile, int64_t key_tile, size_t at, int64_t first, int32_t from,
                             int32_t stop, bool partial) {
        if constexpr (Weights::is_normalized)
            if (uses_saved_weights())
                return load_weights<n>(key_tile, at, first, from, stop, partial);
        const unit* query = this->queries(at) + first * query_units;
        const Panels<A> key = this->keys(key_tile);
        const Normalizers normalizers(*this, at, first);
        number* to = weights + first * tile;
        const uint64_t* allowed = bits + first;
        int64_t first_query = query_tile * tile + first;
        bool has_statistics = g.has_statistics();
        const number* added[n];
        if (has_bias) this->template read_biases<n>(first_query, key_tile, bias_rows, added);
        if (partial) clear_outside<n>(to, from, stop);
        for_panels(from, stop, [&](int64_t v0, auto panel) {
            constexpr int vectors = decltype(panel)::value;
            Sums<A, n, vectors> s;
            s.clear();
            if constexpr (A::has_matrix_unit)
                s.load_from(products + first * tile + v0 * width, tile);
            else
                multiply_in_parts(s, query, query_units, 1, key.at(0, v0), key.template step<vectors>(v0),
                                  count_units<A>(p.head_dim));
            if (softcap) softcap.apply_to(s, slopes + first * tile + v0 * width, tile);
            if constexpr (Weights::is_normalized)
                normalizers.to_exponents(s, added, v0);
            else
                normalizers.to_sigmoid_exponents(s, added, v0);
            s.each([&](int r, int v, vec<number>& x) {
                int64_t c = r * tile + (v0 + v) * width;
                vec<number> w;
                if constexpr (Weights::is_normalized) {
                    if (has_statistics) store(exponents + first * tile + c, x);
                    w = softmax_weight<A::degree>(x);
                } else {
                    const auto found = SigmoidWeight<vec<number>>::template of<A::degree>(x);
                    w = found.weight;
                    store(inner + first * tile + c, found.slope);
                }
                if (partial) w = select((uint32_t)(allowed[r] >> ((v0 + v) * width)), w, vec<number>{});
                store(to + c, w);
            });
        });
    }

    // As `weigh`, from the weights that BackwardQueries saved. They are relative to the largest score up to their
    // tile, and are rescaled to the largest score of all.
    template <int n>
    REGARD_INLINE void load_weights(int64_t key_tile, size_t at, int64_t first, int32_t from, int32_t stop,
                                      bool partial) {
        const SavedWeights kept(*this, key_tile);
        const Exponents in(*this);
        const number *largest = this->largest(at) + first, *log_sum = this->log_sums(at) + first;
        number share[padded_strip], *to = weights + first * tile;
        for (int r = 0; r < n; r += width) {
            const vec<number> older = load(kept.largest + first + r), now = load(largest + r) * broadcast(in.sign);
            store(share + r, exp2<A::degree>((older - now) * broadcast(in.times) - load(log_sum + r)));
        }
        if (partial) clear_outside<n>(to, from, stop);
        for (int r = 0; r < n; ++r)
            for (int64_t v = from; v < stop; ++v) {
                vec<number> w = load(kept.rows + (first + r) * tile + v * width) * broadcast(share[r]);
                if (partial) w = select((uint32_t)(bits[first + r] >> (v * width)), w, vec<number>{});
                store(to + r * tile + v * width, w);
            }
    }

    template <int n>
    static REGARD_INLINE void clear_outside(number* rows, int32_t from, int32_t stop) {
        for (int r = 0; r < n; ++r)
            for (int64_t c = 0; c < tile; c += width)
                if (c < from * width || c >= stop * width) store(rows + r * tile + c, vec<number>{});
    }

    // Computes dS of a strip, the left operand of the products for dQ (by rows) and dK (by columns): from the weights, or
    // for a sigmoid from their derivatives, which are in `inner`.
    template <int n>
    REGARD_INLINE void differentiate(int64_t query_tile, int64_t key_tile, size_t at, int64_t first, int32_t from,
                                     int32_t stop, bool partial, const BiasGradient<number>& bias) {
        const unit* output = this->outputs(at) + first * output_units;
        const Panels<A> value = this->values(key_tile);
        const number* delta = this->deltas(at) + first;
        const StatisticsGradient<number> statistics = this->statistics();
        number *w_to = weights + first * tile, *d_to = A::per_unit == 1 ? inner + first * tile : inner;
        const uint64_t* allowed = bits + first;
        int64_t first_query = query_tile * tile + first;
        bool has_statistics = g.has_statistics();
        DropoutMask drop_mask[n];
        if (threshold)
            for (int r = 0; r < n; ++r)
                drop_mask[r] = DropoutMask(p.seed, (uint64_t)(batch * p.heads + head), (uint64_t)(first_query + r));
        if (has_statistics)
            for (int r = 0; r < n; ++r) statistics.read(first_query + r, key_tile, extra + r * tile);
        if (partial) clear_outside<n>(d_to, from, stop);
        for_panels(from, stop, [&](int64_t v0, auto panel) {
            constexpr int vectors = decltype(panel)::value;
            Sums<A, n, vectors> d;
            d.clear();
            if constexpr (A::has_matrix_unit)
                d.load_from(products + first * tile + v0 * width, tile);
            else
                multiply_in_parts(d, output, output_units, 1, value.at(0, v0), value.template step<vectors>(v0),
                                  count_units<A>(p.value_dim));
            d.each([&](int r, int v, vec<number>& of_pair) {
                int64_t c = r * tile + (v0 + v) * width;
                vec<number> w = load(w_to + c);
                if (threshold) {
                    uint32_t key_index = (uint32_t)(key_tile * tile + (v0 + v) * width);
                    vec<number> kept = apply_dropout(drop_mask[r], key_index, threshold, broadcast(keep_scale));
                    of_pair *= kept;
                    store(w_to + c, w * kept);
                }
                if (has_statistics) of_pair += statistics.terms(first_query + r, exponents + first * tile + c, extra + c);
                vec<number> ds;
                if constexpr (Weights::is_normalized)
                    ds = w * (of_pair - broadcast(delta[r]));
                else
                    ds = load(inner + first * tile + c) * of_pair;
                if (partial) ds = select((uint32_t)(allowed[r] >> ((v0 + v) * width)), ds, vec<number>{});
                store(d_to + c, ds);
            });
        });
        if (results.grad_bias || results.grad_table)
            for (int r = 0; r < n; ++r) bias.add(first_query + r, first + r, key_tile, d_to + r * tile);
        if (softcap) multiply_by_slopes<n>(first, from, stop, partial, d_to);
        if constexpr (A::per_unit == 2) pair_up<n>(first, w_to, d_to);
    }

    // Converts dS to gradients of the scores before the cap. A slope may be NaN for a forbidden key.
    template <int n>
    REGARD_INLINE void multiply_by_slopes(int64_t first, int32_t from, int32_t stop, bool partial, number* d) {
        for (int r = 0; r < n; ++r)
            for (int64_t v = from; v < stop; ++v) {
                number* at = d + r * tile + v * width;
                vec<number> ds = load(at) * load(slopes + (first + r) * tile + v * width);
                if (partial) ds = select((uint32_t)(bits[first + r] >> (v * width)), ds, vec<number>{});
                store(at, ds);
            }
    }

    // bfloat16: stores weights and dS in units of two adjacent queries, for dV and dK, and dS in units of two adjacent
    // keys, for dQ.
    template <int n>
    REGARD_INLINE void pair_up(int64_t first, const number* w, const number* d) {
        const vec<number> none = {};
        for (int r = 0; r < n; r += 2) {
            int64_t to = (first + r) / 2 * tile;
            for (int64_t c = 0; c < tile; c += width) {
                int64_t at = r * tile + c, next = at + tile;
                store(paired_weights + to + c, Pair<A>::interleave(load(w + at), r + 1 < n ? load(w + next) : none));
                store(paired_inner + to + c, Pair<A>::interleave(load(d + at), r + 1 < n ? load(d + next) : none));
            }
        }
        for (int r = 0; r < n; ++r)
            for (int64_t c = 0; c < tile; c += width)
                store_narrow((bfloat16*)(inner_rows + (first + r) * unit_tile) + c, load(d + r * tile + c));
    }

    // dQ_i += dS_ij k_j
    template <int n>
    REGARD_INLINE void add_to_queries(int64_t key_tile, size_t at, int64_t first, int32_t from, int32_t stop) {
        if (from >= stop) return;
        const unit* left;
        if constexpr (A::per_unit == 1)
            left = inner + first * tile;
        else
            left = inner_rows + first * unit_tile;
        const int64_t k0 = from * width / A::per_unit, depth = (stop - from) * width / A::per_unit;
        BackwardProducts<A>::template add<n>(grad_query(at) + first * head_stride, head_stride, left + k0, unit_tile, 1,
                                             this->key_rows(key_tile), k0, depth);
    }

    // dV_j += w_ij dO_i and dK_j += dS_ij q_i. Rows of these products are keys, so left operands are read by columns.
    void add_to_keys(size_t at, int64_t rows, int64_t keys, bool partial) {
        const unit *w, *d;
        if constexpr (A::per_unit == 1)
            w = weights, d = inner;
        else
            w = paired_weights, d = paired_inner;
        const uint64_t* visible = partial ? bits : nullptr;
        BackwardProducts<A>::add_transposed(grad_value, value_stride, w, this->output_rows(at), rows, keys, visible);
        BackwardProducts<A>::add_transposed(grad_key, head_stride, d, this->query_rows(at), rows, keys, visible);
    }

    void finish_keys(int64_t key_head, int64_t key_tile) {
        const int64_t first = key_tile * tile, count = p.keys_in(key_tile);
        const auto write = [&](const number* sums, int64_t stride, int64_t width_of, number times, const Array& to) {
            if constexpr (A::has_matrix_unit) {
                transpose(sums, tile, stride, tile, turned, stride);
                sums = turned;
            }
            for (int64_t j = 0; j < count; ++j)
                write_scaled_row(sums + j * stride, width_of, times, to, to.at(batch, key_head, first + j, 0));
        };
        write(grad_key, head_stride, p.head_dim, (number)p.scale, results.key);
        write(grad_value, value_stride, p.value_dim, (number)1, results.value);
    }

    // Writes dQ of one tile: the sum of the buffers of `count` ranges, in order, times the scale. Buffers are `step`
    // bytes apart. If count is 0, there is one buffer with arbitrary contents.
    static void finish_queries(const Problem& p, int64_t batch, int64_t head, int64_t query_tile, char* buffers,
                               size_t step, int64_t count, const Array& grad_query) {
        int64_t stride = padded_width<A>(p.head_dim), first = query_tile * tile, rows = p.queries_in(query_tile);
        number* sum = (number*)buffers;
        if (count == 0) memset(sum, 0, sizeof(number) * (size_t)(rows * stride));
        for (int64_t c = 1; c < count; ++c) {
            const number* more = (const number*)(buffers + step * (size_t)c);
            for (int64_t k = 0; k < rows * stride; k += width) store(sum + k, load(sum + k) + load(more + k));
        }
        for (int64_t i = 0; i < rows; ++i)
            write_scaled_row(sum + i * stride, p.head_dim, (number)p.scale, grad_query,
                         grad_query.at(batch, head, first + i, 0));
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

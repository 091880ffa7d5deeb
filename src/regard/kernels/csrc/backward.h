// Backward pass: the gradients of query, key, value and bias, from weights that are computed again.
//
//     w_ij  = 2^((s_ij - m_i) c - log2 l_i)                   s_ij, m_i, l_i as in the forward pass: see normalizer.h
//     D_ij  = dO_i . v_j  (+ terms of statistics: see statistics_part)
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
// A task computes dK and dV of a range of key tiles of one (batch, key head). Each range sums its terms of dQ in a
// buffer of its own, and the buffers are added in order, so the bits do not depend on the number of threads. A pair of
// tiles takes five products of matrices: scores, D, dQ, dV and dK.
#pragma once

#include "forward.h"
#include "decode_kernels.h"
#include "tile_kernels.h"
#include "weight_function.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class A, class Weights = Softmax>
struct Backward {
    typedef typename A::number number;
    typedef typename A::unit unit;
    typedef typename A::storage storage;
    typedef PackKeys<A> Pack;
    static constexpr int width = lanes<number>;
    static constexpr int64_t unit_tile = tile / A::per_unit;  // units along 64 numbers
    static constexpr number infinity = (number)HUGE_VAL;

    // ---- sizes of packed tiles, in bytes ----

    static size_t column_bytes(int64_t width_of) { return sizeof(unit) * (size_t)(Pack::column_units(width_of) * tile); }
    static size_t row_bytes(int64_t width_of) { return sizeof(unit) * (size_t)(tile * Pack::unit_stride(width_of)); }
    static size_t paired_row_bytes(int64_t width_of) {
        return A::per_unit == 1 ? 0 : sizeof(unit) * (size_t)(unit_tile * padded_width<A>(width_of));
    }

    static BackwardSizes sizes(const Problem& p) {
        BackwardSizes s;
        s.key = column_bytes(p.head_dim);
        s.key_rows = sizeof(unit) * (size_t)(unit_tile * padded_width<A>(p.head_dim));
        s.value = column_bytes(p.value_dim);
        s.query = row_bytes(p.head_dim);
        s.query_rows = paired_row_bytes(p.head_dim);
        s.output = row_bytes(p.value_dim);
        s.output_rows = paired_row_bytes(p.value_dim);
        s.row_numbers = sizeof(number) * (size_t)tile;
        s.grad_query = sizeof(number) * (size_t)(tile * padded_width<A>(p.head_dim));
        s.weights = sizeof(number) * (size_t)(p.queries * tile + tile + width);  // then the largest scores
        s.number = sizeof(number);
        ScratchLayout c{nullptr};
        carve(c, p, nullptr);
        s.scratch = c.used_bytes;
        s.pack_scratch =
            sizeof(storage) * (size_t)(tile * (Pack::number_stride(p.head_dim) + Pack::number_stride(p.value_dim)));
        return s;
    }

    // ---- packing ----

    static void pack_keys(const Problem& p, int64_t batch, int64_t key_head, int64_t key_tile,
                          const BackwardTiles& into, char* scratch) {
        const BackwardSizes& s = *into.size;
        int64_t first = key_tile * tile, count = min_of(p.keys - first, tile), height = Pack::padded_height(count);
        int64_t key_stride = Pack::number_stride(p.head_dim), value_stride = Pack::number_stride(p.value_dim);
        char* packed_rows = into.key_rows + s.key_rows * (size_t)key_tile;
        storage* key_rows = A::per_unit == 1 ? (storage*)packed_rows : (storage*)scratch;
        storage* value_rows = (storage*)scratch + tile * key_stride;
        Pack::read(p, batch, key_head, first, count, height, key_rows, value_rows);
        Pack::write_columns(key_rows, key_stride, height, p.head_dim, (unit*)(into.key + s.key * (size_t)key_tile));
        Pack::write_columns(value_rows, value_stride, height, p.value_dim,
                         (unit*)(into.value + s.value * (size_t)key_tile));
        if (A::per_unit > 1)
            Pack::write_paired_rows(key_rows, key_stride, height, padded_width<A>(p.head_dim), (unit*)packed_rows);
    }

    // Packs one tile of queries of head `in_group` of those that share the key head: q, dO, the normalizer and delta.
    static void pack_queries(const Problem& p, const BackwardInputs& g, int64_t batch, int64_t head,
                             int64_t query_tile, const BackwardTiles& into, int64_t in_group, char* scratch) {
        const BackwardSizes& s = *into.size;
        size_t at = (size_t)(in_group * p.query_tiles() + query_tile);
        int64_t first = query_tile * tile, rows = min_of(p.queries - first, tile), height = Pack::padded_height(rows);
        int64_t query_stride = Pack::number_stride(p.head_dim), output_stride = Pack::number_stride(p.value_dim);
        storage* query = (storage*)(into.query + s.query * at);
        storage* grad_output = (storage*)(into.output + s.output * at);
        storage* output = (storage*)scratch;
        read_rows(p.query, p.query.at(batch, head, first, 0), rows, height, p.head_dim, query, query_stride);
        read_rows(g.grad_output, g.grad_output.at(batch, head, first, 0), rows, height, p.value_dim, grad_output,
                  output_stride);
        if (Weights::is_normalized)
            read_rows(g.output, g.output.at(batch, head, first, 0), rows, rows, p.value_dim, output, output_stride);
        number* largest = (number*)(into.largest + s.row_numbers * at);
        number* log_sum = (number*)(into.log_sum + s.row_numbers * at);
        number* delta = (number*)(into.delta + s.row_numbers * at);
        uint64_t active = 0;
        for (int64_t i = 0; i < tile; i += width) {  // makes all weights 0
            store(largest + i, broadcast(Weights::is_normalized ? (number)0 : infinity));
            store(log_sum + i, broadcast(infinity));
            store(delta + i, vec<number>{});
        }
        for (int64_t i = 0; i < rows; ++i) {
            const Normalizer<number> normalizer = Normalizer<number>::read(g.normalizer, batch, head, first + i);
            if (!normalizer.is_active()) {
                memset(query + i * query_stride, 0, sizeof(storage) * (size_t)query_stride);
                memset(grad_output + i * output_stride, 0, sizeof(storage) * (size_t)output_stride);
                continue;
            }
            active |= (uint64_t)1 << i;
            largest[i] = normalizer.largest, log_sum[i] = normalizer.log_sum;
            if constexpr (!Weights::is_normalized) {
                largest[i] = (number)(largest[i] * -log2_e);  // b_i as an exponent: see SigmoidWeight
                continue;
            }
            delta[i] = compute_delta((const unit*)(output + i * output_stride),
                                (const unit*)(grad_output + i * output_stride), p.value_dim, log_sum[i]);
            if (delta[i] != delta[i])  // 0 * infinity: an output overflowed, and its gradient is 0
                delta[i] = dot_nonzero(output + i * output_stride, grad_output + i * output_stride, p.value_dim);
        }
        if (g.rounding) {
            read_rows(g.rounding, g.rounding.at(batch, head, first, 0), rows, rows, p.value_dim, output, output_stride);
            for (int64_t i = 0; i < rows; ++i)
                delta[i] += dot((const unit*)(output + i * output_stride),
                                (const unit*)(grad_output + i * output_stride), Pack::unit_stride(p.value_dim));
        }
        ((uint64_t*)into.active)[at] = active;
        if (A::per_unit == 1) return;  // paired rows are the rows themselves
        write_rows(query, query_stride, height, p.head_dim, (unit*)(into.query_rows + s.query_rows * at), scratch);
        write_rows(grad_output, output_stride, height, p.value_dim, (unit*)(into.output_rows + s.output_rows * at),
                   scratch);
    }

    // Writes rows of numbers as units of two adjacent rows; for the matrix unit, where they are the left operand of the
    // transposed products for dV and dK, as columns of such units, 32 of each.
    static REGARD_INLINE void write_rows(const storage* rows, int64_t stride, int64_t height, int64_t width_of, unit* to,
                                         char* scratch) {
        const int64_t columns = padded_width<A>(width_of);
        Pack::write_paired_rows(rows, stride, height, columns, A::has_matrix_unit ? (unit*)scratch : to);
        if (A::has_matrix_unit) transpose((const unit*)scratch, columns, unit_tile, columns, to, unit_tile);
    }

    static REGARD_INLINE number dot(const unit* a, const unit* b, int64_t count) {
        vec<number> sum = {};
        for (int64_t k = 0; k < count; k += lanes<unit>) sum = A::multiply_add_vectors(load(a + k), load(b + k), sum);
        return sum_lanes<number>(sum);
    }

    // delta = dO . o. If one key has weight 1 (log_sum = 0), o is its value, and D - delta must be exactly 0: a
    // rounding error would be multiplied by keys of any magnitude. So delta is then summed in the order of D.
    static REGARD_INLINE number compute_delta(const unit* output, const unit* grad_output, int64_t width_of,
                                              number log_sum) {
        if (log_sum != 0) return dot(output, grad_output, Pack::unit_stride(width_of));
        if constexpr (A::has_matrix_unit) {
            constexpr int64_t most = 640 / A::per_unit;
            unit column[most * lanes<unit>];
            for (int64_t k = 0; k < Pack::unit_stride(width_of); ++k) store(column + k * lanes<unit>, broadcast(output[k]));
            Sums<A, 1, 1> s;
            multiply_in_parts(s, grad_output, 0, 1, column, lanes<unit>, count_units<A>(width_of));
            return s.at[0][0][0];
        }
        vec<number> sum = {};  // the same in each lane
        for (int64_t k = 0; k < count_units<A>(width_of); ++k)
            sum = A::multiply_add(grad_output[k], broadcast(output[k]), sum);
        return sum[0];
    }

    static number dot_nonzero(const storage* a, const storage* b, int64_t count) {
        number sum = 0;
        for (int64_t k = 0; k < count; ++k)
            if (widen(b[k]) != 0) sum += widen(a[k]) * widen(b[k]);
        return sum;
    }

    // ---- one range of key tiles ----

    static constexpr int tiles_together = 4;  // key tiles that normalize_queries processes together

    const Problem& p;
    const BackwardInputs& g;
    const BackwardTiles& tiles;
    const BackwardResults& results;
    const BackwardSizes& size;
    int64_t batch, head, in_group, head_stride, value_stride, query_units, output_units;
    bool has_bias;
    number times;  // factor of a difference of scores in the exponent; without a bias or a cap it contains the scale
    Softcap<number> softcap;
    number keep_scale;
    uint32_t threshold;
    number *grad_key, *grad_value, *weights, *inner, *bias_rows, *exponents, *extra, *skewed_sums, *sums, *slopes;
    unit *paired_weights, *paired_inner, *inner_rows;
    uint64_t* bits;
    number *products, *turned;  // for the matrix unit: those of a pair of tiles; dK or dV

    static void carve(ScratchLayout& c, const Problem& p, Backward* b) {
        number* grad_key = c.take<number>(tile * padded_width<A>(p.head_dim));
        number* grad_value = c.take<number>(tile * padded_width<A>(p.value_dim));
        number* weights = c.take<number>(tile * tile);
        number* inner = c.take<number>((A::per_unit == 1 || !Weights::is_normalized ? tile : strip) * tile);
        number* bias_rows = c.take<number>(strip * tile);
        number* exponents = c.take<number>(tile * tile);
        number* extra = c.take<number>(strip * tile);
        number* skewed_sums = c.take<number>(width * skewed_row);
        unit* paired_weights = c.take<unit>(A::per_unit == 1 ? 0 : unit_tile * tile);
        unit* paired_inner = c.take<unit>(A::per_unit == 1 ? 0 : unit_tile * tile);
        unit* inner_rows = c.take<unit>(A::per_unit == 1 ? 0 : tile * unit_tile);
        uint64_t* bits = c.take<uint64_t>(tiles_together * tile);
        number* sums = c.take<number>(max_decode_rows * width);
        number* slopes = c.take<number>(p.softcap > 0 ? tile * tile : 0);
        number* products = c.take<number>(A::has_matrix_unit ? tile * tile : 0);
        number* turned = c.take<number>(A::has_matrix_unit ? tile * padded_width<A>(max_of(p.head_dim, p.value_dim)) : 0);
        if (!b) return;
        b->products = products, b->turned = turned;
        b->grad_key = grad_key, b->grad_value = grad_value, b->weights = weights, b->inner = inner;
        b->bias_rows = bias_rows, b->exponents = exponents, b->extra = extra, b->skewed_sums = skewed_sums;
        b->paired_weights = paired_weights, b->paired_inner = paired_inner, b->inner_rows = inner_rows, b->bits = bits,
        b->sums = sums, b->slopes = slopes;
    }

    Backward(const Problem& p, const BackwardInputs& g, const BackwardTiles& tiles, const BackwardResults& results,
             int64_t batch, char* scratch)
        : p(p), g(g), tiles(tiles), results(results), size(*tiles.size), batch(batch), softcap(p, (number)p.scale) {
        head_stride = padded_width<A>(p.head_dim), value_stride = padded_width<A>(p.value_dim);
        query_units = Pack::unit_stride(p.head_dim), output_units = Pack::unit_stride(p.value_dim);
        has_bias = p.bias || p.table;
        times = (number)(scale_of_differences() * log2_e);
        threshold = p.dropout > 0 ? drop_threshold(p.dropout) : 0;
        keep_scale = (number)(1 / (1 - p.dropout));
        ScratchLayout c{scratch};
        carve(c, p, this);
    }

    // Factor of the difference of two numbers of the unit in which the normalizer is: see normalizer.h.
    REGARD_INLINE double scale_of_differences() const { return has_bias || softcap ? 1 : p.scale; }

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
                b.process_queries(j);
            }
            b.finish_keys(key_head, j);
        }
    }

    void process_queries(int64_t key_tile) {
        MaskView view(p, batch, head);
        int64_t first, stop;
        view.query_tile_range(key_tile, &first, &stop);
        for (int64_t i = first; i < stop; ++i) {
            int32_t bitmap = find_bitmap(view, i, key_tile);
            if (bitmap == -2) continue;
            Fill fill = view.read_tile(i, key_tile, bitmap, bits);
            if (fill == Fill::empty) continue;
            int64_t rows = min_of(p.queries - i * tile, tile);
            uint64_t active = ((const uint64_t*)tiles.active)[in_group * p.query_tiles() + i];
            bool partial = fill == Fill::partial;
            if (active != bit_range(0, rows)) {
                if (!active) continue;
                for (int64_t r = 0; r < tile; ++r)
                    bits[r] = active >> r & 1 ? (partial ? bits[r] : ~(uint64_t)0) : 0;
                partial = true;
            }
            process_tile_pair(i, key_tile, rows, partial);
        }
    }

    // Computes the five products: scores (and weights), D (and dS), dQ, dV, dK. Each is computed for all strips before
    // the next one, so that its right operand stays in the L1 cache.
    void process_tile_pair(int64_t query_tile, int64_t key_tile, int64_t rows, bool partial) {
        size_t at = (size_t)(in_group * p.query_tiles() + query_tile);
        auto each_strip = [&](auto body) {
            for_strips(rows, [&](int64_t first, auto n) {
                int32_t from, stop;
                Forward<A>::template find_visible_vectors<decltype(n)::value>(partial, bits + first, &from, &stop);
                body(first, n, from, stop);
            });
        };
        if (!uses_saved_weights())
            multiply_tiles(tiles.query + size.query * at, query_units, tiles.key + size.key * (size_t)key_tile, rows);
        each_strip([&](int64_t first, auto n, int32_t from, int32_t stop) {
            weigh<decltype(n)::value>(query_tile, key_tile, at, first, from, stop, partial);
        });
        if (results.grad_table) memset(skewed_sums, 0, sizeof(number) * (size_t)(width * skewed_row));
        multiply_tiles(tiles.output + size.output * at, output_units, tiles.value + size.value * (size_t)key_tile, rows);
        each_strip([&](int64_t first, auto n, int32_t from, int32_t stop) {
            differentiate<decltype(n)::value>(query_tile, key_tile, at, first, from, stop, partial);
        });
        if (results.grad_table) add_to_table(query_tile, key_tile, rows);
        if constexpr (A::has_matrix_unit) {
            add_matrix_products(key_tile, at, rows);
        } else {
            each_strip([&](int64_t first, auto n, int32_t from, int32_t stop) {
                add_to_queries<decltype(n)::value>(key_tile, at, first, from, stop);
            });
            add_to_keys(at, rows, min_of(p.keys - key_tile * tile, tile), partial);
        }
    }

    // Whether the weights are those that normalize_queries saved. Slopes are not saved.
    REGARD_INLINE bool uses_saved_weights() const {
        return Weights::is_normalized && tiles.weights && !g.has_statistics() && !softcap;
    }

    // For the matrix unit: products = `count` rows of queries . columns of 64 keys.
    REGARD_INLINE void multiply_tiles(const char* rows, int64_t units, const char* columns, int64_t count) const {
        if constexpr (A::has_matrix_unit)
            A::multiply_matrix({products, tile}, {(const unit*)rows, units}, {(const unit*)columns, tile},
                               (count + width - 1) / width * width, tile, units);
    }

    // For the matrix unit, the last three products of a pair of tiles: dQ, and the transposes of dV and dK, whose right
    // operands are w and dS as they are. Rows of dQ after the last query are filled up to 16 with arbitrary numbers.
    void add_matrix_products(int64_t key_tile, size_t at, int64_t rows) {
        const int64_t paired = count_units<A>(rows), missing = (unit_tile - paired) * tile;
        memset(paired_weights + paired * tile, 0, sizeof(unit) * (size_t)missing);
        memset(paired_inner + paired * tile, 0, sizeof(unit) * (size_t)missing);
        const unit* rows_of_keys = (const unit*)(tiles.key_rows + size.key_rows * (size_t)key_tile);
        const unit* query = (const unit*)(tiles.query_rows + size.query_rows * at);
        const unit* output = (const unit*)(tiles.output_rows + size.output_rows * at);
        number* grad_query = (number*)(results.grad_query + size.grad_query * at);
        A::add_matrix_product({grad_query, head_stride}, {inner_rows, unit_tile}, {rows_of_keys, head_stride},
                              (rows + width - 1) / width * width, head_stride, unit_tile);
        A::add_matrix_product({grad_value, tile}, {output, unit_tile}, {paired_weights, tile}, value_stride, tile,
                              unit_tile);
        A::add_matrix_product({grad_key, tile}, {query, unit_tile}, {paired_inner, tile}, head_stride, tile, unit_tile);
    }

    // Computes the weights of a strip of queries for vectors from .. stop - 1 of a key tile; the others become 0.
    template <int n>
    REGARD_INLINE void weigh(int64_t query_tile, int64_t key_tile, size_t at, int64_t first, int32_t from,
                             int32_t stop, bool partial) {
        if constexpr (Weights::is_normalized)
            if (uses_saved_weights())
                return load_weights<n>(key_tile, at, first, from, stop, partial);
        const unit* query = (const unit*)(tiles.query + size.query * at) + first * query_units;
        const unit* key = (const unit*)(tiles.key + size.key * (size_t)key_tile);
        const Normalizers normalizers(*this, at, first);
        number* to = weights + first * tile;
        const uint64_t* allowed = bits + first;
        int64_t first_query = query_tile * tile + first;
        BiasRows<number> bias{p, batch, head};
        bool has_statistics = g.has_statistics();
        const number* added[n];
        if (has_bias)
            for (int r = 0; r < n; ++r)
                added[r] = bias.read(first_query + r, key_tile * tile, bias_rows + r * tile);
        if (partial) clear_outside<n>(to, from, stop);
        for_panels(from, stop, [&](int64_t v0, auto panel) {
            Sums<A, n, decltype(panel)::value> s;
            s.clear();
            if constexpr (A::has_matrix_unit)
                s.load_from(products + first * tile + v0 * width, tile);
            else
                multiply_in_parts(s, query, query_units, 1, key + v0 * width, tile, count_units<A>(p.head_dim));
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

    // Converts the products of a strip of queries to scores with the bits of the forward pass, and these to exponents
    // of 2, of which the largest is -log2 l. The largest score is subtracted first: see normalizer.h.
    struct Normalizers {
        number scale, times;
        bool has_bias;
        const number *largest, *log_sum;

        REGARD_INLINE Normalizers(const Backward& b, size_t at, int64_t first)
            : scale(b.softcap ? 1 : (number)b.p.scale), times(b.times), has_bias(b.has_bias),
              largest((const number*)(b.tiles.largest + b.size.row_numbers * at) + first),
              log_sum((const number*)(b.tiles.log_sum + b.size.row_numbers * at) + first) {}

        // `s`: products of rows with the vectors from v0 on; `added`: the biases of each row.
        template <class S>
        REGARD_INLINE void to_exponents(S& s, const number* const* added, int64_t v0) const {
            if (has_bias)
                s.each([&](int r, int v, vec<number>& x) {
                    x = multiply_add(x, broadcast(scale), load(added[r] + (v0 + v) * width));
                });
            s.each([&](int r, int, vec<number>& x) {
                x = multiply_add(x - broadcast(largest[r]), broadcast(times), -broadcast(log_sum[r]));
            });
        }
        // For a sigmoid: converts them to the exponents of SigmoidWeight.
        template <class S>
        REGARD_INLINE void to_sigmoid_exponents(S& s, const number* const* added, int64_t v0) const {
            if (has_bias)
                s.each([&](int r, int v, vec<number>& x) {
                    x = multiply_add(x, broadcast(scale), load(added[r] + (v0 + v) * width));
                });
            s.each([&](int r, int, vec<number>& x) {
                x = multiply_add(x, broadcast(-times), broadcast(largest[r]));
            });
        }
    };

    // As `weigh`, from the weights that normalize_queries saved. They are relative to the largest score up to their
    // tile, and are rescaled to the largest score of all.
    template <int n>
    REGARD_INLINE void load_weights(int64_t key_tile, size_t at, int64_t first, int32_t from, int32_t stop,
                                      bool partial) {
        const SavedWeights kept(*this, key_tile);
        const Exponents in(*this);
        const number* largest = (const number*)(tiles.largest + size.row_numbers * at) + first;
        const number* log_sum = (const number*)(tiles.log_sum + size.row_numbers * at) + first;
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
    static constexpr int padded_strip = (strip + width - 1) / width * width;

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
                                     int32_t stop, bool partial) {
        const unit* output = (const unit*)(tiles.output + size.output * at) + first * output_units;
        const unit* value = (const unit*)(tiles.value + size.value * (size_t)key_tile);
        const number* delta = (const number*)(tiles.delta + size.row_numbers * at) + first;
        number *w_to = weights + first * tile, *d_to = A::per_unit == 1 ? inner + first * tile : inner;
        const uint64_t* allowed = bits + first;
        int64_t first_query = query_tile * tile + first;
        bool has_statistics = g.has_statistics();
        DropoutMask drop_mask[n];
        if (threshold)
            for (int r = 0; r < n; ++r)
                drop_mask[r] = DropoutMask(p.seed, (uint64_t)(batch * p.heads + head), (uint64_t)(first_query + r));
        if (has_statistics)
            for (int r = 0; r < n; ++r) read_extra(first_query + r, key_tile, extra + r * tile);
        if (partial) clear_outside<n>(d_to, from, stop);
        for_panels(from, stop, [&](int64_t v0, auto panel) {
            Sums<A, n, decltype(panel)::value> d;
            d.clear();
            if constexpr (A::has_matrix_unit)
                d.load_from(products + first * tile + v0 * width, tile);
            else
                multiply_in_parts(d, output, output_units, 1, value + v0 * width, tile, count_units<A>(p.value_dim));
            d.each([&](int r, int v, vec<number>& of_pair) {
                int64_t c = r * tile + (v0 + v) * width;
                vec<number> w = load(w_to + c);
                if (threshold) {
                    uint32_t key_index = (uint32_t)(key_tile * tile + (v0 + v) * width);
                    vec<number> kept = apply_dropout(drop_mask[r], key_index, threshold, broadcast(keep_scale));
                    of_pair *= kept;
                    store(w_to + c, w * kept);
                }
                if (has_statistics) of_pair += statistics_part(first_query + r, exponents + first * tile + c, extra + c);
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
            for (int r = 0; r < n; ++r) {
                if (results.grad_bias) add_to_bias(first_query + r, key_tile, d_to + r * tile);
                if (results.grad_table) add_to_skewed(first + r, d_to + r * tile);
            }
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

    // The terms of statistics in D: a_i ln w_ij, plus those of read_extra.
    REGARD_INLINE vec<number> statistics_part(int64_t query, const number* exponent, const number* more) const {
        vec<number> part = load(more);
        if (g.log_weight) {
            number a = ((const number*)g.log_weight.data)[g.log_weight.at(0, batch, head, query)];
            vec<number> x = maximum(broadcast((number)-2000), load(exponent));  // w is 0 there, and 0 ln 0 = 0
            part = multiply_add(x, broadcast(a * (number)ln_2), part);
        }
        return part;
    }

    // Sums the gradients of received weights (column), of the largest weights (top) and of requested rows, for 64 keys
    // of a query.
    void read_extra(int64_t query, int64_t key_tile, number* to) const {
        int64_t first = key_tile * tile, count = min_of(p.keys - first, tile);
        for (int64_t j = 0; j < tile; ++j) to[j] = 0;
        if (g.column)
            for (int64_t j = 0; j < count; ++j)
                to[j] += ((const number*)g.column.data)[g.column.at(0, batch, head, first + j)];
        if (g.top)
            for (int64_t t = 0; t < g.top.shape[3]; ++t) {
                int64_t j = ((const int64_t*)g.top_keys.data)[g.top_keys.at(batch, head, query, t)] - first;
                if (j >= 0 && j < count) to[j] += ((const number*)g.top.data)[g.top.at(batch, head, query, t)];
            }
        if (g.rows_weights)
            for (int64_t t = 0; t < g.rows.shape[3]; ++t)
                if (((const int64_t*)g.rows.data)[g.rows.at(0, 0, 0, t)] == query)
                    for (int64_t j = 0; j < count; ++j)
                        to[j] += ((const number*)g.rows_weights.data)[g.rows_weights.at(batch, head, t, first + j)];
    }

    // dQ_i += dS_ij k_j
    template <int n>
    REGARD_INLINE void add_to_queries(int64_t key_tile, size_t at, int64_t first, int32_t from, int32_t stop) {
        if (from >= stop) return;
        const unit* rows_of_keys = (const unit*)(tiles.key_rows + size.key_rows * (size_t)key_tile);
        const unit* left;
        if constexpr (A::per_unit == 1)
            left = inner + first * tile;
        else
            left = inner_rows + first * unit_tile;
        number* to = (number*)(results.grad_query + size.grad_query * at) + first * head_stride;
        int64_t k0 = from * width / A::per_unit, depth = (stop - from) * width / A::per_unit;
        for_panels(0, head_stride / width, [&](int64_t v0, auto panel) {
            Sums<A, n, decltype(panel)::value> s;
            s.load_from(to + v0 * width, head_stride);
            multiply(s, left + k0, unit_tile, 1, rows_of_keys + k0 * head_stride + v0 * width, head_stride, depth);
            s.store_to(to + v0 * width, head_stride);
        });
    }

    // dV_j += w_ij dO_i and dK_j += dS_ij q_i. Rows of these products are keys, so left operands are read by columns.
    void add_to_keys(size_t at, int64_t rows, int64_t keys, bool partial) {
        const unit *w, *d, *query, *output;
        if constexpr (A::per_unit == 1) {
            w = weights, d = inner;
            query = (const unit*)(tiles.query + size.query * at);
            output = (const unit*)(tiles.output + size.output * at);
        } else {
            w = paired_weights, d = paired_inner;
            query = (const unit*)(tiles.query_rows + size.query_rows * at);
            output = (const unit*)(tiles.output_rows + size.output_rows * at);
        }
        add_product(grad_value, value_stride, w, output, rows, keys, partial);
        add_product(grad_key, head_stride, d, query, rows, keys, partial);
    }

    // to (keys, stride) += transpose of left (rows, 64 keys) times right (rows, stride)
    void add_product(number* to, int64_t stride, const unit* left, const unit* right, int64_t rows, int64_t keys,
                     bool partial) {
        for_strips(keys, [&](int64_t first, auto n) {
            constexpr int rows_of = decltype(n)::value;
            int64_t from = 0, stop = rows;  // queries that may attend to a key of the strip
            if (partial) {
                uint64_t strip_bits = bit_range(first, first + rows_of);
                while (from < stop && !(bits[from] & strip_bits)) ++from;
                while (from < stop && !(bits[stop - 1] & strip_bits)) --stop;
                if (from >= stop) return;
            }
            int64_t u0 = from / A::per_unit, depth = count_units<A>(stop) - u0;
            product<rows_of>(to + first * stride, stride, left + u0 * tile + first, right + u0 * stride, depth);
        });
    }

    template <int n>
    REGARD_INLINE void product(number* to, int64_t stride, const unit* left, const unit* right, int64_t depth) {
        for_panels(0, stride / width, [&](int64_t v0, auto panel) {
            Sums<A, n, decltype(panel)::value> s;
            s.load_from(to + v0 * width, stride);
            multiply(s, left, 1, tile, right + v0 * width, stride, depth);
            s.store_to(to + v0 * width, stride);
        });
    }

    // Adds dS to the gradient of the bias, for 64 keys of a query.
    void add_to_bias(int64_t query, int64_t key_tile, const number* ds) {
        int64_t first = key_tile * tile, count = min_of(p.keys - first, tile), j = 0;
        const Array& b = results.bias;
        number* to = (number*)b.data + b.at(batch, head, query, first);
        if (b.stride[3] == 1)
            for (; j + width <= count; j += width) store(to + j, load(to + j) + load(ds + j));
        for (; j < count; ++j) to[j * b.stride[3]] += ds[j];
    }

    // The gradient of a table of biases by distance is the sum of dS along diagonals. If each row were added one
    // element to the left of the previous one, loads would overlap recent stores, and wait for them. So rows that are a
    // multiple of `width` apart are added to the same row of `skewed_sums`, shifted by whole vectors, and the rows of
    // `skewed_sums` are added to the table once per pair of tiles.
    //
    //     skewed_sums[r % width][j - (r - r % width) + 64] += dS[r][j]
    //     table[d] += sum_b skewed_sums[b][d + b + 64]                         d = j - r
    static constexpr int64_t skewed_row = 3 * tile;

    REGARD_INLINE void add_to_skewed(int64_t row, const number* ds) {
        number* to = skewed_sums + row % width * skewed_row + tile - row / width * width;
        for (int64_t j = 0; j < tile; j += width) store(to + j, load(to + j) + load(ds + j));
    }

    void add_to_table(int64_t query_tile, int64_t key_tile, int64_t rows) {
        const Array& t = results.table;
        int64_t distance = (key_tile - query_tile) * tile - p.offset - p.table_lowest;
        number* to = (number*)t.data + (t.shape[2] == 1 ? 0 : head) * t.stride[2] + distance;
        int64_t d = 1 - rows, stop = min_of(p.keys - key_tile * tile, tile);
        for (; d + width <= stop; d += width) {
            vec<number> sum = load(to + d);
            for (int64_t b = 0; b < width; ++b) sum += load(skewed_sums + b * skewed_row + d + b + tile);
            store(to + d, sum);
        }
        for (; d < stop; ++d)
            for (int64_t b = 0; b < width; ++b) to[d] += skewed_sums[b * skewed_row + d + b + tile];
    }

    void finish_keys(int64_t key_head, int64_t key_tile) {
        const int64_t first = key_tile * tile, count = min_of(p.keys - first, tile);
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
        int64_t stride = padded_width<A>(p.head_dim), first = query_tile * tile, rows = min_of(p.queries - first, tile);
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

    // The step between packing and gradients, which reads all keys of one tile of queries: computes its normalizers, if
    // weights are saved, adds the terms of statistics to delta, and computes the gradients of the sinks.
    static void prepare_queries(const Problem& p, const BackwardInputs& g, const BackwardTiles& tiles, int64_t batch,
                                int64_t head, int64_t in_group, int64_t query_tile, char* scratch) {
        if constexpr (Weights::is_normalized) {
            BackwardResults none = {};
            Backward b(p, g, tiles, none, batch, scratch);
            b.head = head, b.in_group = in_group;
            if (tiles.weights) b.normalize_queries(query_tile);
            b.add_statistics(query_tile);
            if (p.sinks) b.differentiate_sinks(query_tile);
        }
    }

    // Adds the terms of the sinks in statistics to delta, and writes the gradients: see attention_sink.h.
    void differentiate_sinks(int64_t query_tile) {
        const size_t at = (size_t)(in_group * p.query_tiles() + query_tile);
        const int64_t first_query = query_tile * tile, rows = min_of(p.queries - first_query, tile);
        const number* largest = (const number*)(tiles.largest + size.row_numbers * at);
        const number* log_sum = (const number*)(tiles.log_sum + size.row_numbers * at);
        number* delta = (number*)(tiles.delta + size.row_numbers * at);
        const uint64_t active = ((const uint64_t*)tiles.active)[at];
        const auto of_row = [&](const Array& array, int64_t query) -> number& {
            return ((number*)array.data)[array.at(0, batch, head, query)];
        };
        for (int64_t i = 0; i < rows; ++i) {
            const int64_t query = first_query + i;
            double gradient = 0;
            if (active >> i & 1) {
                const double largest_score = (double)largest[i] * scale_of_differences();
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

    // Adds the terms of statistics to delta: sum_j w_ij (D_ij - dO_i . v_j) - grad_lse_i.
    void add_statistics(int64_t query_tile) {
        size_t at = (size_t)(in_group * p.query_tiles() + query_tile);
        int64_t first_query = query_tile * tile, rows = min_of(p.queries - first_query, tile);
        number* delta = (number*)(tiles.delta + size.row_numbers * at);
        uint64_t active = ((const uint64_t*)tiles.active)[at];
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

    // For one tile of queries, calls body(key tiles, their number, first row, Constant, from, stop) for each strip and
    // up to `most` key tiles at a time. `bits` then has the keys that active rows may attend to, and from .. stop - 1
    // are the vectors of each tile that contain them.
    template <int most, class Body>
    REGARD_INLINE void for_strips_of_keys(int64_t query_tile, uint64_t active, Body body) {
        const int64_t rows = min_of(p.queries - query_tile * tile, tile);
        MaskView view(p, batch, head);
        KeyTileIterator of_query(view, query_tile);
        KeyTile found[most];
        while (int count = of_query.next(most, found, bits)) {
            int64_t key_tiles[most];
            for (int t = 0; t < count; ++t) {
                key_tiles[t] = found[t].index;
                uint64_t* seen = bits + t * tile;
                for (int64_t r = 0; r < rows; ++r)
                    seen[r] = active >> r & 1 ? (found[t].is_partial ? seen[r] : ~(uint64_t)0) : 0;
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

    // Computes the normalizers of one tile of queries again, if the forward pass used the decoding kernels
    // (decode.cpp). These add products in another order, and for large scores the difference of two roundings of the
    // same score can be large. Such calls have few queries, so the weights are saved for the gradients, and no product
    // is computed twice.
    void normalize_queries(int64_t query_tile) {
        size_t at = (size_t)(in_group * p.query_tiles() + query_tile);
        number* largest = (number*)(tiles.largest + size.row_numbers * at);
        number* log_sum = (number*)(tiles.log_sum + size.row_numbers * at);
        uint64_t& active = ((uint64_t*)tiles.active)[at];
        const Exponents in(*this);
        const int64_t rows = min_of(p.queries - query_tile * tile, tile);  // the other weights are 0 already
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
                const double largest_score = (double)(in.sign * largest[r]) * scale_of_differences();
                log_of_sum = SinkShare(read_sink(p, batch, head, query_tile * tile + r), largest_score, log_of_sum).log_sum;
            }
            const Normalizer<number> found = {in.sign * largest[r], (number)(log_of_sum * log2_e)};
            const bool is_active = found.is_active() && largest[r] < infinity;
            if (!is_active) active &= ~((uint64_t)1 << r);
            largest[r] = is_active ? found.largest : 0, log_sum[r] = is_active ? found.log_sum : infinity;
        }
    }

    // As in Forward: with a bias, scores are final; otherwise they are products, negated if the scale is negative.
    struct Exponents {
        number product_scale, sign, times;  // score = product_scale * product + bias; times: as in Backward
        explicit REGARD_INLINE Exponents(const Backward& b) {
            sign = b.times > 0 ? 1 : b.times < 0 ? -1 : 0;
            product_scale = b.softcap ? 1 : b.has_bias ? (number)b.p.scale : sign;
            times = b.times == 0 ? 1 : sign * b.times;
        }
    };

    // The saved weights of a key tile, and for each query the largest score that they are relative to.
    struct SavedWeights {
        number *rows, *largest;
        REGARD_INLINE SavedWeights(const Backward& b, int64_t key_tile) {
            rows = (number*)(b.tiles.weights + b.size.weights * (size_t)(b.in_group * b.p.key_tiles() + key_tile));
            largest = rows + b.p.queries * tile;
        }
    };

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
        const unit* query = (const unit*)(tiles.query + size.query * at) + first * query_units;
        const unit* key = (const unit*)(tiles.key + size.key * (size_t)key_tile);
        BiasRows<number> bias{p, batch, head};
        const number* added[n];
        if (has_bias)
            for (int r = 0; r < n; ++r)
                added[r] = bias.read(first_query + r, key_tile * tile, bias_rows + r * tile);
        number* to = SavedWeights(*this, key_tile).rows + first * tile;
        for_panels(from, stop, [&](int64_t v0, auto panel) {
            Sums<A, n, decltype(panel)::value> s;
            s.clear();
            multiply_in_parts(s, query, query_units, 1, key + v0 * width, tile, count_units<A>(p.head_dim));
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

    template <int n>
    REGARD_INLINE void add_statistics_strip(int64_t first_query, int64_t key_tile, size_t at, int64_t first, int32_t from,
                                   int32_t stop, number* delta) {
        const unit* query = (const unit*)(tiles.query + size.query * at) + first * query_units;
        const unit* key = (const unit*)(tiles.key + size.key * (size_t)key_tile);
        const Normalizers normalizers(*this, at, first);
        BiasRows<number> bias{p, batch, head};
        const number* added[n];
        for (int r = 0; r < n; ++r) {
            added[r] = bias.read(first_query + r, key_tile * tile, bias_rows + r * tile);
            read_extra(first_query + r, key_tile, extra + r * tile);
        }
        vec<number> sum[n];
        for (int r = 0; r < n; ++r) sum[r] = vec<number>{};
        for_panels(from, stop, [&](int64_t v0, auto panel) {
            Sums<A, n, decltype(panel)::value> s;
            s.clear();
            multiply_in_parts(s, query, query_units, 1, key + v0 * width, tile, count_units<A>(p.head_dim));
            if (softcap) softcap.apply_to(s);
            normalizers.to_exponents(s, added, v0);
            s.each([&](int r, int v, vec<number>& x) {
                int64_t c = r * tile + (v0 + v) * width;
                store(exponents + c, x);
                vec<number> part = softmax_weight<A::degree>(x) * statistics_part(first_query + r, exponents + c, extra + c);
                sum[r] += select((uint32_t)(bits[first + r] >> ((v0 + v) * width)), part, vec<number>{});
            });
        });
        for (int r = 0; r < n; ++r) delta[r] += sum_lanes<number>(sum[r]);
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

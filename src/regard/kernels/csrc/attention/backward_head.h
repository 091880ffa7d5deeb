// Backward pass of one head: its packed tokens (backward_pack.h), and the exponents of its weights.
//
//     w_ij = 2^((s_ij - m_i) c - log2 l_i)                    s_ij, m_i, l_i as in the forward pass: see normalizer.h
#pragma once

#include "attention/backward_pack.h"
#include "observe/statistics_gradient.h"
#include "tiles/bias_rows.h"
#include "tiles/softcap.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class A>
struct BackwardHead {
    typedef typename A::number number;
    typedef typename A::unit unit;
    typedef PackKeys<A> Pack;
    static constexpr int width = lanes<number>;
    static constexpr int padded_strip = (strip + width - 1) / width * width;
    static constexpr number infinity = (number)HUGE_VAL;

    const Problem& p;
    const BackwardInputs& g;
    const BackwardTiles& tiles;
    const BackwardSizes& size;
    int64_t batch, head = 0, in_group = 0;  // in_group: index among the heads that share the key head
    int64_t head_stride, value_stride, query_units, output_units;
    bool has_bias;
    Softcap<number> softcap;
    number times;  // factor of a difference of scores in the exponent; without a bias or a cap it contains the scale

    BackwardHead(const Problem& p, const BackwardInputs& g, const BackwardTiles& tiles, int64_t batch)
        : p(p), g(g), tiles(tiles), size(*tiles.size), batch(batch), head_stride(padded_width<A>(p.head_dim)),
          value_stride(padded_width<A>(p.value_dim)), query_units(Pack::unit_stride(p.head_dim)),
          output_units(Pack::unit_stride(p.value_dim)), has_bias(p.bias || p.table), softcap(p, (number)p.scale),
          times((number)(scale_of_differences() * log2_e)) {}

    // Factor of the difference of two numbers of the unit in which the normalizer is: see normalizer.h.
    REGARD_INLINE double scale_of_differences() const { return has_bias || softcap ? 1 : p.scale; }

    // ---- packed tiles ----

    // The index of a tile of queries in the arrays of all heads of the group.
    REGARD_INLINE size_t tile_index(int64_t query_tile) const {
        return (size_t)(in_group * p.query_tiles() + query_tile);
    }
    REGARD_INLINE const unit* queries(size_t at) const { return (const unit*)(tiles.query + size.query * at); }
    REGARD_INLINE const unit* outputs(size_t at) const { return (const unit*)(tiles.output + size.output * at); }
    // Paired rows; if a unit is one number, the rows themselves.
    REGARD_INLINE const unit* query_rows(size_t at) const {
        return A::per_unit == 1 ? queries(at) : (const unit*)(tiles.query_rows + size.query_rows * at);
    }
    REGARD_INLINE const unit* output_rows(size_t at) const {
        return A::per_unit == 1 ? outputs(at) : (const unit*)(tiles.output_rows + size.output_rows * at);
    }
    REGARD_INLINE number* largest(size_t at) const { return (number*)(tiles.largest + size.row_numbers * at); }
    REGARD_INLINE number* log_sums(size_t at) const { return (number*)(tiles.log_sum + size.row_numbers * at); }
    REGARD_INLINE number* deltas(size_t at) const { return (number*)(tiles.delta + size.row_numbers * at); }
    REGARD_INLINE uint64_t* active() const { return (uint64_t*)tiles.active + tile_index(0); }  // of the head's tiles

    REGARD_INLINE Panels<A> keys(int64_t key_tile) const {
        return Pack::columns(p.head_dim, tiles.key + size.key * (size_t)key_tile);
    }
    REGARD_INLINE Panels<A> key_rows(int64_t key_tile) const {
        return Pack::rows(p.head_dim, tiles.key_rows + size.key_rows * (size_t)key_tile);
    }
    REGARD_INLINE Panels<A> values(int64_t key_tile) const {
        return Pack::columns(p.value_dim, tiles.value + size.value * (size_t)key_tile);
    }

    // Reads the biases of n queries from `first_query` and 64 keys into rows of `buffer`, or points into the table.
    template <int n>
    REGARD_INLINE void read_biases(int64_t first_query, int64_t key_tile, number* buffer, const number** added) const {
        const BiasRows<number> bias{p, batch, head};
        for (int r = 0; r < n; ++r) added[r] = bias.read(first_query + r, key_tile * tile, buffer + r * tile);
    }

    REGARD_INLINE StatisticsGradient<number> statistics() const { return {p, g, batch, head}; }

    // ---- exponents of the weights ----

    // Converts the products of a strip of queries to scores with the bits of the forward pass, and these to exponents
    // of 2, of which the largest is -log2 l. The largest score is subtracted first: see normalizer.h.
    struct Normalizers {
        number scale, times;
        bool has_bias;
        const number *largest, *log_sum;

        REGARD_INLINE Normalizers(const BackwardHead& of, size_t at, int64_t first)
            : scale(of.softcap ? 1 : (number)of.p.scale), times(of.times), has_bias(of.has_bias),
              largest(of.largest(at) + first), log_sum(of.log_sums(at) + first) {}

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

    // The factors of saved weights. As in Forward: with a bias, scores are final; otherwise they are products, negated if
    // the scale is negative.
    struct Exponents {
        number product_scale, sign, times;  // score = product_scale * product + bias; times: as in BackwardHead
        explicit REGARD_INLINE Exponents(const BackwardHead& of) {
            sign = of.times > 0 ? 1 : of.times < 0 ? -1 : 0;
            product_scale = of.softcap ? 1 : of.has_bias ? (number)of.p.scale : sign;
            times = of.times == 0 ? 1 : sign * of.times;
        }
    };

    // The saved weights of a key tile, and for each query the largest score that they are relative to.
    struct SavedWeights {
        number *rows, *largest;
        REGARD_INLINE SavedWeights(const BackwardHead& of, int64_t key_tile) {
            rows = (number*)(of.tiles.weights + of.size.weights * (size_t)(of.in_group * of.p.key_tiles() + key_tile));
            largest = rows + of.p.queries * tile;
        }
    };
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

// Attention to chosen blocks of keys, by tiles of queries that share a block: what lies between the tile kernels.
//
// Forward: joining the parts of a query: softmax attention to disjoint sets of keys, from that to each set.
//
//     e_p = (m_p - m) c + log2 l_p,   m = max m_p             m_p, l_p: the normalizer of part p (see normalizer.h)
//     output = sum_p w_p o_p,         w_p = 2^e_p / sum_p 2^e_p                 Milakov and Gimelshein 2018, section 3.1
//
// The parts are that of the query's own block and those of the blocks that it chose: see chosen_blocks.cpp.
//
// Backward: the products of backward.h for one tile of gathered queries and the keys of a block, which are added to sums
// that other tiles add to as well: see chosen_blocks_backward.cpp.
#pragma once

#include <math.h>

#include "attention/backward.h"
#include "selection/selection_kernels.h"
#include "tiles/compute_types.h"
#include "tiles/gemm_microkernel.h"
#include "tiles/mask_tiles.h"
#include "tiles/normalizer.h"
#include "tiles/pack.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class A>
struct ChosenBlocks {
    typedef typename A::number number;
    static constexpr int64_t width = lanes<number>;
    static constexpr number infinity = (number)HUGE_VAL;

    static int64_t row(int64_t columns) { return padded_width<A>(columns); }

    static size_t scratch(const ChosenArguments& given, int64_t most_parts) {
        return sizeof(number) * (size_t)(padded_width<A>(most_parts) + row(given.problem.value_dim));
    }

    // Copies queries of a head side by side, in rows of whole vectors.
    static void gather(const Problem& p, int64_t batch, int64_t head, const int64_t* queries, int64_t count, char* to) {
        const int64_t stride = row(p.head_dim);
        for (int64_t i = 0; i < count; ++i)
            read_row(p.query, p.query.at(batch, head, queries[i], 0), p.head_dim, (number*)to + i * stride, stride);
    }

    // Writes the output and the normalizer of the queries first .. stop - 1 of a head.
    static void join(const ChosenArguments& given, const ChosenParts& parts, int64_t batch, int64_t head, int64_t first,
                     int64_t stop, char* scratch) {
        const Problem& p = given.problem;
        const int64_t stride = row(p.value_dim);
        const number* normalizers = (const number*)parts.normalizer;
        const number *outputs = (const number*)parts.output, times = (number)(p.scale * log2_e);
        number *sum = (number*)scratch, *share = sum + stride;
        for (int64_t i = first; i < stop; ++i) {
            const int64_t own = i - parts.first, from = parts.start[own], count = 1 + parts.start[own + 1] - from;
            const auto row_of = [&](int64_t n) { return n == 0 ? own : parts.queries + parts.slot[from + n - 1]; };
            number largest = -infinity, most = -infinity;
            bool is_broken = false;
            for (int64_t n = 0; n < count; ++n) {
                const number* of = normalizers + 2 * row_of(n);
                is_broken |= of[1] != of[1];
                if (of[1] > -infinity && of[0] > largest) largest = of[0];
            }
            if (largest == -infinity) largest = 0;  // no keys
            for (int64_t n = 0; n < count; ++n) {
                const number* of = normalizers + 2 * row_of(n);
                share[n] = of[1] == -infinity ? -infinity : (of[0] - largest) * times + of[1];
                most = share[n] > most ? share[n] : most;
            }
            for (int64_t n = count; n < padded_width<A>(count); ++n) share[n] = -infinity;
            vec<number> total = {};
            for (int64_t n = 0; n < count; n += width) {
                const vec<number> w = softmax_weight<A::degree>(load(share + n) - broadcast(most > -infinity ? most : 0));
                store(share + n, w);
                total += w;
            }
            const number all = sum_lanes<number>(total);
            const number log_sum = is_broken ? (number)NAN : (number)(log((double)all) * log2_e + (all > 0 ? most : 0));
            Normalizer<number>{largest, log_sum}.write(given.normalizer, batch, head, i);
            const number inverse = is_broken ? (number)NAN : all > 0 ? 1 / all : 0;
            for_panels(0, stride / width, [&](int64_t v0, auto panel) {
                vec<number> x[decltype(panel)::value] = {};
                for (int64_t n = 0; n < count; ++n) {
                    if (share[n] == 0) continue;
                    const number* of = outputs + row_of(n) * stride + v0 * width;
                    for (int v = 0; v < decltype(panel)::value; ++v)
                        x[v] = multiply_add(load(of + v * width), broadcast(share[n]), x[v]);
                }
                for (int v = 0; v < decltype(panel)::value; ++v) store(sum + (v0 + v) * width, x[v]);
            });
            write_scaled_row(sum, p.value_dim, inverse, given.output, given.output.at(batch, head, i, 0));
        }
    }

    // Queries without keys need no test: their packed numbers are zeros, and their weights 0.
    static void add_query_tile(const Problem& p, const BackwardTiles& tiles, const BackwardResults& results,
                               const KeySums& sums, char* scratch) {
        const BackwardInputs none;
        Backward<A> b(p, none, tiles, results, 0, scratch);
        b.head = b.in_group = 0;
        const MaskView view(p, 0, 0);
        const TileRange of_queries = view.key_tile_range(0);
        for (int64_t j = of_queries.first; j < of_queries.past; ++j) {
            const Fill fill = view.read_tile(0, j, -1, b.bits);
            if (fill == Fill::empty) continue;
            b.grad_key = (number*)sums.key + j * tile * row(p.head_dim);
            b.grad_value = (number*)sums.value + j * tile * row(p.value_dim);
            b.process_tile_pair(0, j, p.queries, fill == Fill::partial);
        }
    }

    static void write_keys(const Problem& p, const KeySums& sums, const Array& grad_key, const Array& grad_value,
                           int64_t batch, int64_t key_head, int64_t key_tile) {
        const int64_t first = key_tile * tile, count = p.keys_in(key_tile);
        for (int64_t j = 0; j < count; ++j) {
            write_scaled_row((const number*)sums.key + j * row(p.head_dim), p.head_dim, (number)p.scale, grad_key,
                             grad_key.at(batch, key_head, first + j, 0));
            write_scaled_row((const number*)sums.value + j * row(p.value_dim), p.value_dim, (number)1, grad_value,
                             grad_value.at(batch, key_head, first + j, 0));
        }
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

// The gradients of statistics (observe.h) in the gradient of a weight: with w_ij = softmax weights,
//
//     D_ij = dO_i . v_j + a_i ln w_ij + c_j + t_ij + r_ij
//
// a: of sums of w ln w (log_weight); c: of the weights that keys receive (column); t: of the largest weights, at their keys
// (top); r: of the weights of requested queries (rows_weights).
#pragma once

#include <math.h>

#include "tiles/mask_tiles.h"
#include "tiles/tile_kernels.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class Number>
struct StatisticsGradient {
    const Problem& p;
    const BackwardInputs& g;
    int64_t batch, head;

    // Sums c, t and r for 64 keys of a query.
    void read(int64_t query, int64_t key_tile, Number* to) const {
        int64_t first = key_tile * tile, count = p.keys_in(key_tile);
        for (int64_t j = 0; j < tile; ++j) to[j] = 0;
        if (g.column)
            for (int64_t j = 0; j < count; ++j)
                to[j] += ((const Number*)g.column.data)[g.column.at(0, batch, head, first + j)];
        if (g.top)
            for (int64_t t = 0; t < g.top.shape[3]; ++t) {
                const int64_t key = ((const int64_t*)g.top_keys.data)[g.top_keys.at(batch, head, query, t)];
                if (key >= first && key < first + count)
                    to[key - first] += ((const Number*)g.top.data)[g.top.at(batch, head, query, t)];
            }
        if (g.rows_weights)
            for (int64_t t = 0; t < g.rows.shape[3]; ++t)
                if (((const int64_t*)g.rows.data)[g.rows.at(0, 0, 0, t)] == query)
                    for (int64_t j = 0; j < count; ++j)
                        to[j] += ((const Number*)g.rows_weights.data)[g.rows_weights.at(batch, head, t, first + j)];
    }

    // D_ij - dO_i . v_j of a vector of keys: a ln w, from the exponents of 2 of the weights, plus what `read` summed.
    REGARD_INLINE vec<Number> terms(int64_t query, const Number* exponent, const Number* more) const {
        vec<Number> sum = load(more);
        if (g.log_weight) {
            Number a = ((const Number*)g.log_weight.data)[g.log_weight.at(0, batch, head, query)];
            vec<Number> x = maximum(broadcast((Number)-2000), load(exponent));  // w is 0 there, and 0 ln 0 = 0
            sum = multiply_add(x, broadcast(a * (Number)ln_2), sum);
        }
        return sum;
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

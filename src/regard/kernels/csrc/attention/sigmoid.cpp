// Sigmoid attention: counts the keys of each query, then uses the drivers of attention (attention.cpp, backward.cpp)
// with the weight function sigmoid.
#include <math.h>

#include "drivers.h"
#include "runtime/parallel.h"
#include "tables/kernel_table.h"

namespace regard {

namespace {

constexpr int64_t min_parallel_tiles = 1 << 14;  // pairs of tiles; fewer are counted faster by one thread

Problem make_sigmoid_problem(const Problem& problem) {
    Problem p = problem;
    p.weight_function = WeightFunction::sigmoid;
    return p;
}

// Writes -log of the number of keys that each query may attend to; 0 where there are none.
template <class Number>
void write_minus_log_visible(const Problem& p, Number* to, int threads) {
    const auto count = kernels_in_use(p.query.dtype).count_visible_keys;
    const int64_t tiles = p.query_tiles(), tasks = p.batch * p.heads * tiles;
    parallel_for(tasks, tasks * p.key_tiles() < min_parallel_tiles ? 1 : threads, [&](int64_t task, int) {
        const int64_t unit = task / tiles, t = task % tiles;
        int64_t counts[tile];
        count(p, unit / p.heads, unit % p.heads, t, counts);
        Number* rows = to + unit * p.queries + t * tile;
        for (int64_t i = 0; i < tile && t * tile + i < p.queries; ++i)
            rows[i] = counts[i] > 1 ? (Number)-log((double)counts[i]) : 0;
    });
}

}  // namespace

void sigmoid_forward(const Problem& problem, const Array& score_bias, const ForwardResults& results, int threads) {
    Problem p = make_sigmoid_problem(problem);
    p.row_bias = {nullptr, dtype_of_sums(p.query.dtype), {1, p.batch, p.heads, p.queries}, {0, 0, 0, 0}};
    with_type_of_sums(p.query.dtype, [&](auto number) {
        typedef decltype(number) Number;
        if (score_bias) {
            number = (Number) * (const double*)score_bias.data;
            p.row_bias.data = &number;
            return forward(p, results, threads);
        }
        const Scratch memory = Scratch::of<Number>({p.batch, p.heads, p.queries});
        p.row_bias.data = memory.as<Number>();
        p.row_bias.stride[1] = p.heads * p.queries, p.row_bias.stride[2] = p.queries, p.row_bias.stride[3] = 1;
        write_minus_log_visible(p, memory.as<Number>(), threads);
        forward(p, results, threads);
    });
}

void sigmoid_backward(const Problem& problem, const Array& normalizer, const TokenGradients& gradients, int threads) {
    backward(make_sigmoid_problem(problem), {{}, {}, {}, normalizer}, Gradients(gradients), threads);
}

}  // namespace regard

// Additive attention: uses the drivers of attention (attention.cpp, backward.cpp) with its own kernels.
#include "drivers.h"
#include "runtime/parallel.h"

namespace regard {

namespace {

Problem make_additive_problem(const Problem& problem, const Additive& additive) {
    Problem p = problem;
    p.query = additive.of_query;
    p.key = additive.of_key;
    p.vector = additive.vector;
    p.scale = 1;
    return p;
}

// Sums parts (batch, heads, key_tiles, inner) over batch and key tiles, in order, to (heads, inner).
template <class Number>
void add_parts(const Problem& p, const Array& parts, const Array& sum) {
    for (int64_t head = 0; head < p.heads; ++head) {
        Number* to = (Number*)sum.data + sum.at(0, 0, head, 0);
        for (int64_t w = 0; w < p.head_dim; ++w) to[w * sum.stride[3]] = 0;
        for (int64_t batch = 0; batch < p.batch; ++batch)
            for (int64_t t = 0; t < p.key_tiles(); ++t) {
                const Number* part = (const Number*)parts.data + parts.at(batch, head, t, 0);
                for (int64_t w = 0; w < p.head_dim; ++w) to[w * sum.stride[3]] += part[w];
            }
    }
}

}  // namespace

void additive_forward(const Problem& problem, const Additive& additive, const ForwardResults& results, int threads) {
    forward(make_additive_problem(problem, additive), results, threads);
}

void additive_backward(const Problem& problem, const Additive& additive, const ForwardResults& results,
                       const AdditiveGradients& gradients, int threads) {
    const Problem p = make_additive_problem(problem, additive);
    const int64_t tiles = p.key_tiles(), of_tiles = tiles * p.head_dim;
    with_type_of_sums(p.query.dtype, [&](auto number) {
        typedef decltype(number) Number;
        const Scratch memory = Scratch::of<Number>({p.batch, p.heads, of_tiles});
        Gradients g(gradients);
        g.lse = gradients.lse;
        g.vector = {memory.as<Number>(),
                    dtype_of_sums(p.query.dtype),
                    {p.batch, p.heads, tiles, p.head_dim},
                    {p.heads * of_tiles, of_tiles, p.head_dim, 1}};
        backward(p, results, g, threads);
        add_parts<Number>(p, g.vector, gradients.vector);
    });
}

}  // namespace regard

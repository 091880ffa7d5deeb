// Talking-heads attention: packs the tokens of all heads of an entry of the batch, then each tile of queries of the
// forward pass, and each range of key tiles of the backward pass, is a task.
#include <cstring>

#include "attention/backward_split.h"
#include "attention/shared_gradient.h"
#include "runtime/cpu.h"
#include "runtime/parallel.h"
#include "tables/kernel_table.h"
#include "tiles/pack_layout.h"

namespace regard {

namespace {

void pack_entries(const Problem& p, const TalkingHeadsKernels& k, int64_t first, int64_t count, bool backward,
                  char* tokens, size_t bytes, char* scratch, size_t work, int threads) {
    const int64_t tiles = p.key_tiles(), tasks = p.key_heads * tiles;
    parallel_for(count * tasks, threads, [&](int64_t task, int thread) {
        const int64_t entry = task / tasks, key_head = task % tasks / tiles;
        k.pack_keys(p, first + entry, key_head, task % tiles, backward, tokens + bytes * (size_t)entry,
                    scratch + work * (size_t)thread);
    });
}

// The problem as the division of the backward pass sees it: a task computes all heads of an entry of the batch.
Problem as_one_head(const Problem& p) {
    Problem one = p;
    one.heads = one.key_heads = 1;
    return one;
}

Gradients of_biases(const TalkingHeadsGradients& g) {
    Gradients biases;
    biases.bias = g.bias, biases.table = g.table;
    return biases;
}

struct TalkingHeadsRun {
    const Problem& p;
    const TalkingHeadsKernels& k;
    const TalkingHeads& mixing;
    const Array& normalizer;
    const TalkingHeadsGradients& g;
    const Problem one_head;
    const BackwardSplit split;
    const int threads;
    SharedGradient bias, table;
    size_t bytes, grad_query, of_mixing, work;
    Scratch mixing_terms;  // (batch, ranges): see TalkingHeadsSums

    TalkingHeadsRun(const Problem& p, const TalkingHeads& mixing, const Array& normalizer, const TalkingHeadsGradients& g,
                    int threads)
        : p(p), k(kernels_for(p.query.dtype).talking_heads), mixing(mixing), normalizer(normalizer), g(g),
          one_head(as_one_head(p)), split(one_head, of_biases(g)), threads(threads), bias(g.bias, split.copies), table(g.table, split.copies) {
        bytes = align_up(k.bytes(p, true));
        grad_query = align_up(k.grad_query_bytes(p));
        of_mixing = k.number * (size_t)(2 * p.heads * p.heads);
        work = align_up(max_bytes(k.pack_scratch(p), max_bytes(k.prepare_scratch(p), k.backward_scratch(p))));
        mixing_terms = Scratch::of<char>({p.batch, split.ranges, (int64_t)of_mixing});
    }

    // Entries are processed in rounds, unless the gradient of a bias is a sum over them.
    void run() const {
        const size_t one = bytes + (size_t)split.ranges * grad_query;
        const int64_t round = split.has_own_gradients()
                                  ? heads_per_round(p.batch, one, ceil_div(4 * (int64_t)threads, split.ranges))
                                  : p.batch;
        Scratch tokens = Scratch::of<char>({round, (int64_t)bytes});
        Scratch sums = Scratch::of<char>({round, split.ranges, (int64_t)grad_query});
        Scratch scratch = Scratch::of<char>({threads, (int64_t)work});
        for_rounds(p.batch, round, [&](int64_t first, int64_t count) {
            process_round(first, count, tokens.as<char>(), sums.as<char>(), scratch.as<char>());
        });
        bias.finish();
        table.finish();
        if (p.query.dtype == Dtype::float64)
            add_mixing_terms<double>();
        else
            add_mixing_terms<float>();
    }

    void process_round(int64_t first, int64_t count, char* tokens, char* sums, char* scratch) const {
        const int64_t query_tiles = p.query_tiles();
        const auto tokens_of = [&](int64_t entry) { return tokens + bytes * (size_t)(entry - first); };
        const auto sums_of = [&](int64_t entry) {
            return sums + grad_query * (size_t)((entry - first) * split.ranges);
        };
        pack_entries(p, k, first, count, true, tokens, bytes, scratch, work, threads);
        parallel_for(count * query_tiles, threads, [&](int64_t task, int thread) {
            const int64_t entry = first + task / query_tiles, t = query_tiles - 1 - task % query_tiles;
            k.prepare_queries(p, mixing, g.output, normalizer, entry, t, tokens_of(entry),
                              scratch + work * (size_t)thread);
        });
        const int64_t chains = split.has_own_gradients() ? count : split.chains;
        parallel_for(chains * split.ranges, threads, [&](int64_t task, int thread) {
            const int64_t chain = first + task / split.ranges, range = task % split.ranges;
            for (int64_t n = 0; n < split.members; ++n) {
                const int64_t entry = split.member(one_head, chain, n);
                if (entry < 0) break;
                const int64_t copy = split.copy_index(chain, range);
                const TalkingHeadsSums into{sums_of(entry) + grad_query * (size_t)range,
                                            mixing_terms.as<char>() + of_mixing * (size_t)(entry * split.ranges + range),
                                            bias.copy(copy), table.copy(copy), (bool)g.bias, (bool)g.table};
                k.backward(p, mixing, g, into, entry, range_start(range), range_start(range + 1), tokens_of(entry),
                           scratch + work * (size_t)thread);
            }
        });
        parallel_for(count * p.heads * query_tiles, threads, [&](int64_t task, int) {
            const int64_t entry = first + task / (p.heads * query_tiles), head = task / query_tiles % p.heads;
            k.finish_queries(p, entry, head, task % query_tiles, sums_of(entry), grad_query, split.ranges, g.query);
        });
    }

    int64_t range_start(int64_t range) const { return std::min<int64_t>(range * split.tiles_in_range, p.key_tiles()); }

    template <class Number>
    void add_mixing_terms() const {
        const int64_t count = p.heads * p.heads, terms = p.batch * split.ranges;
        const Number* from = mixing_terms.as<Number>();
        const Array* const into[] = {&g.score_mixing, &g.weight_mixing};
        for (int64_t m = 0; m < 2; ++m)
            for (int64_t i = 0; i < count; ++i) {
                Number sum = 0;
                for (int64_t n = 0; n < terms; ++n) sum += from[(2 * n + m) * count + i];
                ((Number*)into[m]->data)[into[m]->at(0, 0, i / p.heads, i % p.heads)] = sum;
            }
    }
};

}  // namespace

void talking_heads_forward(const Problem& p, const TalkingHeads& mixing, const ForwardResults& results, int threads) {
    if (p.batch == 0 || p.queries == 0) return;
    const TalkingHeadsKernels& k = kernels_for(p.query.dtype).talking_heads;
    const int64_t query_tiles = p.query_tiles();
    const size_t bytes = align_up(k.bytes(p, false)), work = align_up(max_bytes(k.pack_scratch(p), k.forward_scratch(p)));
    const int64_t round = heads_per_round(p.batch, bytes, ceil_div(8 * (int64_t)threads, query_tiles));
    Scratch tokens = Scratch::of<char>({round, (int64_t)bytes});
    Scratch scratch = Scratch::of<char>({threads, (int64_t)work});
    for_rounds(p.batch, round, [&](int64_t first, int64_t count) {
        pack_entries(p, k, first, count, false, tokens.as<char>(), bytes, scratch.as<char>(), work, threads);
        parallel_for(count * query_tiles, threads, [&](int64_t task, int thread) {
            const int64_t entry = task / query_tiles, t = query_tiles - 1 - task % query_tiles;  // see forward_by_tile
            k.forward(p, mixing, first + entry, t, tokens.as<char>() + bytes * (size_t)entry, results,
                      scratch.as<char>() + work * (size_t)thread);
        });
    });
}

void talking_heads_backward(const Problem& p, const TalkingHeads& mixing, const Array& normalizer,
                            const TalkingHeadsGradients& gradients, int threads) {
    if (p.batch * p.queries * p.keys == 0) return;
    TalkingHeadsRun(p, mixing, normalizer, gradients, threads).run();
}

}  // namespace regard

// Talking-heads attention: packs the tokens of all heads of an entry of the batch, then each tile of queries of the
// forward pass, and each range of key tiles of the backward pass, is a task.
#include <cstring>

#include "attention/backward_split.h"
#include "attention/shared_gradient.h"
#include "runtime/parallel.h"
#include "tables/kernel_table.h"
#include "tiles/pack_layout.h"

namespace regard {

namespace {

void pack_entries(const Problem& p, const TalkingHeadsKernels& k, int64_t first, int64_t count, bool backward,
                  const ScratchParts& tokens, const ScratchParts& scratch, int threads) {
    const int64_t tiles = p.key_tiles(), tasks = p.key_heads * tiles;
    parallel_for(count * tasks, threads, [&](int64_t task, int thread) {
        const int64_t entry = task / tasks, key_head = task % tasks / tiles;
        k.pack_keys(p, first + entry, key_head, task % tiles, backward, tokens[entry], scratch[thread]);
    });
}

// The problem as the division of the backward pass sees it: a task computes all heads of an entry of the batch.
Problem as_one_head(const Problem& p) {
    Problem one = p;
    one.heads = one.key_heads = 1;
    return one;
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
    const size_t grad_query;
    const ScratchParts mixing_terms;  // (batch, ranges): see TalkingHeadsSums

    TalkingHeadsRun(const Problem& p, const TalkingHeads& mixing, const Array& normalizer, const TalkingHeadsGradients& g,
                    int threads)
        : p(p), k(kernels_in_use(p.query.dtype).talking_heads), mixing(mixing), normalizer(normalizer), g(g),
          one_head(as_one_head(p)), split(one_head, g), threads(threads), bias(g.bias, split.copies),
          table(g.table, split.copies), grad_query(align_up(k.grad_query_bytes(p))),
          mixing_terms(p.batch * split.ranges, k.number * (size_t)(2 * p.heads * p.heads)) {}

    // Entries are processed in rounds, unless the gradient of a bias is a sum over them.
    void run() const {
        const size_t bytes = align_up(k.bytes(p, true)), of_sums = (size_t)split.ranges * grad_query;
        const int64_t round = split.has_own_gradients()
                                  ? heads_per_round(p.batch, bytes + of_sums, ceil_div(4 * (int64_t)threads, split.ranges))
                                  : p.batch;
        const ScratchParts tokens(round, bytes), sums(round, of_sums);
        const ScratchParts scratch(threads, std::max({k.pack_scratch(p), k.prepare_scratch(p), k.backward_scratch(p)}));
        for_rounds(p.batch, round,
                   [&](int64_t first, int64_t count) { process_round(first, count, tokens, sums, scratch); });
        bias.finish();
        table.finish();
        with_type_of_sums(p.query.dtype, [&](auto number) { add_mixing_terms<decltype(number)>(); });
    }

    void process_round(int64_t first, int64_t count, const ScratchParts& tokens, const ScratchParts& sums,
                       const ScratchParts& scratch) const {
        const int64_t query_tiles = p.query_tiles();
        pack_entries(p, k, first, count, true, tokens, scratch, threads);
        parallel_for(count * query_tiles, threads, [&](int64_t task, int thread) {
            const int64_t entry = first + task / query_tiles, t = query_tiles - 1 - task % query_tiles;
            k.prepare_queries(p, mixing, g.output, normalizer, entry, t, tokens[entry - first], scratch[thread]);
        });
        const int64_t chains = split.has_own_gradients() ? count : split.chains;
        parallel_for(chains * split.ranges, threads, [&](int64_t task, int thread) {
            const int64_t chain = first + task / split.ranges, range = task % split.ranges;
            for (int64_t n = 0; n < split.members; ++n) {
                const int64_t entry = split.member(one_head, chain, n);
                if (entry < 0) break;
                const int64_t copy = split.copy_index(chain, range);
                const TalkingHeadsSums into{sums[entry - first] + grad_query * (size_t)range,
                                            mixing_terms[entry * split.ranges + range], bias.copy(copy),
                                            table.copy(copy), (bool)g.bias, (bool)g.table};
                k.backward(p, mixing, g, into, entry, range_start(range), range_start(range + 1), tokens[entry - first],
                           scratch[thread]);
            }
        });
        parallel_for(count * p.heads * query_tiles, threads, [&](int64_t task, int) {
            const int64_t entry = first + task / (p.heads * query_tiles), head = task / query_tiles % p.heads;
            k.finish_queries(p, entry, head, task % query_tiles, sums[entry - first], grad_query, split.ranges, g.query);
        });
    }

    int64_t range_start(int64_t range) const { return std::min<int64_t>(range * split.tiles_in_range, p.key_tiles()); }

    template <class Number>
    void add_mixing_terms() const {
        const int64_t count = p.heads * p.heads, terms = p.batch * split.ranges;
        const Array* const into[] = {&g.score_mixing, &g.weight_mixing};
        for (int64_t m = 0; m < 2; ++m)
            for (int64_t i = 0; i < count; ++i) {
                Number sum = 0;
                for (int64_t n = 0; n < terms; ++n) sum += ((const Number*)mixing_terms[n])[m * count + i];
                ((Number*)into[m]->data)[into[m]->at(0, 0, i / p.heads, i % p.heads)] = sum;
            }
    }
};

}  // namespace

void talking_heads_forward(const Problem& p, const TalkingHeads& mixing, const ForwardResults& results, int threads) {
    if (p.batch == 0 || p.queries == 0) return;
    const TalkingHeadsKernels& k = kernels_in_use(p.query.dtype).talking_heads;
    const int64_t query_tiles = p.query_tiles();
    const size_t bytes = align_up(k.bytes(p, false));
    const int64_t round = heads_per_round(p.batch, bytes, ceil_div(8 * (int64_t)threads, query_tiles));
    const ScratchParts tokens(round, bytes), scratch(threads, std::max(k.pack_scratch(p), k.forward_scratch(p)));
    for_rounds(p.batch, round, [&](int64_t first, int64_t count) {
        pack_entries(p, k, first, count, false, tokens, scratch, threads);
        parallel_for(count * query_tiles, threads, [&](int64_t task, int thread) {
            const int64_t entry = task / query_tiles, t = query_tiles - 1 - task % query_tiles;  // see forward_by_tile
            k.forward(p, mixing, first + entry, t, tokens[entry], results, scratch[thread]);
        });
    });
}

void talking_heads_backward(const Problem& p, const TalkingHeads& mixing, const Array& normalizer,
                            const TalkingHeadsGradients& gradients, int threads) {
    if (p.batch * p.queries * p.keys == 0) return;
    TalkingHeadsRun(p, mixing, normalizer, gradients, threads).run();
}

}  // namespace regard

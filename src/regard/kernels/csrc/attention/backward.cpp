// Backward pass: packs tokens, runs one task per chain and range of key tiles, and adds up the parts of dQ.
//
// A range of key tiles has its own dK and dV, and a buffer for its terms of dQ. Chains and ranges are defined in
// backward_split.h, the layout of packed tokens in backward_layout.h, sums of the gradients of biases in
// shared_gradient.h.
#include <algorithm>
#include <cstring>

#include "attention/backward_layout.h"
#include "attention/backward_split.h"
#include "attention/shared_gradient.h"
#include "drivers.h"
#include "runtime/parallel.h"
#include "tables/kernel_table.h"
#include "tiles/pack_layout.h"

namespace regard {

namespace {

// Heads for each thread from which a thread computes a whole head.
constexpr int64_t heads_per_thread = 4;

struct Run {
    const Problem& p;
    const TileKernels& k;
    const BackwardInputs& inputs;
    const Gradients& g;
    const BackwardSplit split;
    const bool was_decoded;  // whether a normalizer comes from the decoding kernels
    const BackwardLayout layout;
    int threads;
    SharedGradient bias, table;
    size_t work, grad_query;  // bytes of scratch memory of a thread, and of the terms of dQ of a range

    Run(const Problem& p, const TileKernels& k, const BackwardInputs& inputs, const Gradients& g, int threads)
        : p(p), k(k), inputs(inputs), g(g), split(p, g), was_decoded(p.weight_function == WeightFunction::softmax && !p.vector && is_decode_suitable(p)),
          layout(p, k, was_decoded), threads(threads), bias(g.bias, split.copies),
          table(g.table, split.copies) {
        work = std::max(layout.size.scratch, layout.size.pack_scratch);
        grad_query = align_up(layout.grad_query_bytes());
    }

    BackwardResults results(char* terms, const TileRange& reach, int64_t copy) const {
        return {terms,            reach,        g.key,         g.value, bias.copy(copy),
                table.copy(copy), (bool)g.bias, (bool)g.table, g.vector};
    }

    void pack_keys(int64_t member, int64_t t, const BackwardTiles& tiles, char* scratch) const {
        k.backward_pack_keys(p, member / p.key_heads, member % p.key_heads, t, tiles, scratch);
    }
    void pack_queries(int64_t member, int64_t n, const BackwardTiles& tiles, char* scratch) const {
        int64_t in_group = n / p.query_tiles(), head = member % p.key_heads * p.group() + in_group;
        k.backward_pack_queries(p, inputs, member / p.key_heads, head, n % p.query_tiles(), tiles, in_group, scratch);
    }
    // Whether prepare_queries is needed, a step between packing and gradients that reads all keys of a tile of queries.
    bool has_preparation() const {
        return was_decoded || inputs.grad_lse || inputs.has_statistics() || inputs.sink_weight || inputs.sink_rows;
    }
    void prepare_queries(int64_t member, int64_t n, const BackwardTiles& tiles, char* scratch) const {
        int64_t in_group = n / p.query_tiles(), t = n % p.query_tiles(), batch = member / p.key_heads;
        int64_t head = member % p.key_heads * p.group() + in_group;
        k.backward_prepare_queries(p, inputs, tiles, batch, head, in_group, t, scratch);
    }
    // The terms of each range are `step` bytes apart; with a step of 0 their sum is in place of those of range 0.
    void finish_queries(int64_t member, int64_t n, char* buffers, size_t step) const {
        int64_t in_group = n / p.query_tiles(), t = n % p.query_tiles();
        int64_t head = member % p.key_heads * p.group() + in_group;
        const Ranges of_tile = ranges_of(member / p.key_heads, head, t);
        const int64_t terms = of_tile.past - of_tile.first;
        k.backward_finish_queries(p, member / p.key_heads, head, t,
                                  buffers + layout.size.grad_query * (size_t)n + step * (size_t)of_tile.first, step,
                                  step == 0 ? std::min<int64_t>(terms, 1) : terms, g.query);
    }
    // Adds the terms of dQ of a range to the sum of those of the ranges before it: in the order of finish_queries.
    void add_terms(int64_t member, int64_t range, const char* terms, char* sum) const {
        const TileRange reach = query_reach(range);
        const int64_t batch = member / p.key_heads, first_head = member % p.key_heads * p.group();
        for (int64_t h = 0; h < p.group(); ++h)
            for (int64_t t = reach.first; t < reach.past; ++t) {
                const Ranges of_tile = ranges_of(batch, first_head + h, t);
                if (range < of_tile.first || of_tile.past <= range) continue;
                const size_t at = layout.size.grad_query * (size_t)(h * p.query_tiles() + t);
                const size_t bytes = layout.size.grad_query / tile * (size_t)p.queries_in(t);
                if (range == of_tile.first) {
                    memcpy(sum + at, terms + at, bytes);
                    continue;
                }
                with_type_of_sums(p.query.dtype, [&](auto number) {
                    typedef decltype(number) Number;
                    const auto* from = (const Number*)(terms + at);
                    auto* to = (Number*)(sum + at);
                    for (size_t i = 0; i < bytes / sizeof(Number); ++i) to[i] += from[i];
                });
            }
    }
    // Sets the terms of dQ of a range to 0, for the query tiles that have any. The others are neither written nor read:
    // a buffer may be larger than all tokens.
    void clear_queries(int64_t member, int64_t range, char* terms) const {
        const TileRange reach = query_reach(range);
        const int64_t batch = member / p.key_heads, first_head = member % p.key_heads * p.group();
        for (int64_t h = 0; h < p.group(); ++h)
            for (int64_t t = reach.first; t < reach.past; ++t) {
                const Ranges of_tile = ranges_of(batch, first_head + h, t);
                if (of_tile.first <= range && range < of_tile.past)
                    memset(terms + layout.size.grad_query * (size_t)(h * p.query_tiles() + t), 0,
                           layout.size.grad_query / tile * (size_t)p.queries_in(t));
            }
    }
    // The ranges with terms of a tile of queries: from the first to the last one that the band and the tile map let it
    // attend to.
    struct Ranges {
        int64_t first, past;
    };
    Ranges ranges_of(int64_t batch, int64_t head, int64_t query_tile) const {
        int64_t first = 0, past = split.ranges;
        const Mask& mask = p.mask;
        if (mask.row_start) {
            const int64_t b = mask.tile_batch == 1 ? 0 : batch, h = mask.tile_heads == 1 ? 0 : head;
            const int64_t* row = mask.row_start + (b * mask.tile_heads + h) * (p.query_tiles() + 1) + query_tile;
            if (row[0] == row[1]) return {0, 0};
            first = mask.key_tile[row[0]] / split.tiles_in_range;
            past = mask.key_tile[row[1] - 1] / split.tiles_in_range + 1;
        }
        while (first < past && !reaches(first, query_tile)) ++first;
        while (past > first && !reaches(past - 1, query_tile)) --past;  // the ranges that reach a tile are adjacent
        return {past > first ? first : 0, past > first ? past : 0};
    }
    bool reaches(int64_t range, int64_t query_tile) const {
        return query_reach(range).contains(query_tile);
    }
    // The query tiles that the band lets attend to the key tiles of a range.
    TileRange query_reach(int64_t range) const {
        return tiles_with(range_start(range) * tile - p.mask.high, range_start(range + 1) * tile - 1 - p.mask.low, p.queries);
    }
    // The first key tile of a range.
    int64_t range_start(int64_t range) const { return std::min<int64_t>(range * split.tiles_in_range, p.key_tiles()); }

    // One range: a thread packs, computes and finishes the members of a chain one after the other.
    void run_by_head() const {
        const ScratchParts scratch(threads, layout.bytes() + grad_query + work);
        auto compute_chain = [&](int64_t chain, int thread) {
            BackwardTiles tiles = layout.at(scratch[thread]);
            char *terms = scratch[thread] + layout.bytes(), *rest = terms + grad_query;
            for (int64_t n = 0; n < split.members; ++n) {
                int64_t member = split.member(p, chain, n);
                if (member < 0) break;
                for (int64_t t = 0; t < (int64_t)layout.key_tiles; ++t) pack_keys(member, t, tiles, rest);
                for (int64_t t = 0; t < (int64_t)layout.query_tiles; ++t) pack_queries(member, t, tiles, rest);
                if (has_preparation())
                    for (int64_t t = 0; t < (int64_t)layout.query_tiles; ++t) prepare_queries(member, t, tiles, rest);
                clear_queries(member, 0, terms);
                k.backward(p, inputs, tiles, results(terms, query_reach(0), split.copy_index(chain, 0)),
                           member / p.key_heads, member % p.key_heads, 0, (int64_t)layout.key_tiles, rest);
                for (int64_t t = 0; t < (int64_t)layout.query_tiles; ++t) finish_queries(member, t, terms, 0);
            }
        };
        if (split.members > 1) return parallel_for(split.chains, threads, compute_chain);
        HeadSets(p, threads).run(
            threads, {&p.key, &p.value}, {&p.query, &inputs.grad_output, &inputs.output, &inputs.rounding},
            [&](int64_t batch, int64_t key_head, int thread) { compute_chain(batch * p.key_heads + key_head, thread); });
    }

    // Several ranges per head. Heads are processed in rounds, unless the gradient of a bias is a sum over some of them.
    void run_by_range() const {
        const int64_t all = p.batch * p.key_heads;
        const size_t one = layout.bytes();
        if (split.has_own_gradients() && all >= heads_per_thread * threads) return run_by_head_and_range();
        const int64_t least_heads = ceil_div(4 * (int64_t)threads, split.ranges);
        const int64_t round_heads =
            split.has_own_gradients() ? heads_per_round(all, one + (size_t)split.ranges * grad_query, least_heads) : all;
        const ScratchParts packed(round_heads, one), scratch(threads, work);
        const ScratchParts sums(round_heads, (size_t)split.ranges * grad_query);
        for_rounds(all, round_heads,
                   [&](int64_t first, int64_t count) { process_round(first, count, packed, sums, scratch); });
    }

    // The same with few threads: one computes all ranges of a head, and adds up the terms of dQ as it goes. They stay in the
    // second cache, where a buffer for each range goes through memory. The bits are the same.
    void run_by_head_and_range() const {
        const size_t one = layout.bytes();
        const ScratchParts scratch(threads, one + 2 * grad_query + work);
        parallel_for(p.batch * p.key_heads, threads, [&](int64_t member, int thread) {
            const BackwardTiles tiles = layout.at(scratch[thread]);
            char *terms = scratch[thread] + one, *sum = terms + grad_query, *rest = sum + grad_query;
            for (int64_t t = 0; t < (int64_t)layout.key_tiles; ++t) pack_keys(member, t, tiles, rest);
            for (int64_t t = 0; t < (int64_t)layout.query_tiles; ++t) pack_queries(member, t, tiles, rest);
            if (has_preparation())
                for (int64_t t = 0; t < (int64_t)layout.query_tiles; ++t) prepare_queries(member, t, tiles, rest);
            for (int64_t range = 0; range < split.ranges; ++range) {
                clear_queries(member, range, terms);
                k.backward(p, inputs, tiles, results(terms, query_reach(range), split.copy_index(member, range)),
                           member / p.key_heads, member % p.key_heads, range_start(range), range_start(range + 1), rest);
                add_terms(member, range, terms, sum);
            }
            for (int64_t t = 0; t < (int64_t)layout.query_tiles; ++t) finish_queries(member, t, sum, 0);
        });
    }

    void process_round(int64_t first_member, int64_t count, const ScratchParts& packed, const ScratchParts& sums,
                       const ScratchParts& scratch) const {
        auto tiles_of = [&](int64_t member) { return layout.at(packed[member - first_member]); };
        auto sums_of = [&](int64_t member, int64_t range) {
            return sums[member - first_member] + grad_query * (size_t)range;
        };
        int64_t key_tiles = (int64_t)layout.key_tiles, query_tiles = (int64_t)layout.query_tiles;
        int64_t both = key_tiles + query_tiles;
        parallel_for(count * both, threads, [&](int64_t task, int thread) {
            int64_t member = first_member + task / both, n = task % both;
            if (n < key_tiles)
                pack_keys(member, n, tiles_of(member), scratch[thread]);
            else
                pack_queries(member, n - key_tiles, tiles_of(member), scratch[thread]);
        });
        if (has_preparation())
            parallel_for(count * query_tiles, threads, [&](int64_t task, int thread) {
                int64_t member = first_member + task / query_tiles;
                prepare_queries(member, task % query_tiles, tiles_of(member), scratch[thread]);
            });
        const int64_t chains = split.has_own_gradients() ? count : split.chains;
        parallel_for(chains * split.ranges, threads, [&](int64_t task, int thread) {
            int64_t chain = first_member + task / split.ranges, range = task % split.ranges;
            for (int64_t n = 0; n < split.members; ++n) {
                int64_t member = split.member(p, chain, n);
                if (member < 0) break;
                clear_queries(member, range, sums_of(member, range));
                k.backward(p, inputs, tiles_of(member),
                           results(sums_of(member, range), query_reach(range), split.copy_index(chain, range)),
                           member / p.key_heads, member % p.key_heads, range_start(range), range_start(range + 1),
                           scratch[thread]);
            }
        });
        parallel_for(count * query_tiles, threads, [&](int64_t task, int) {
            int64_t member = first_member + task / query_tiles;
            finish_queries(member, task % query_tiles, sums_of(member, 0), grad_query);
        });
    }
};

// Sums the gradients of the sinks of all queries (batch, heads, queries) to the shape of the sinks, in order.
template <class Number>
void sum_sinks(const Problem& p, const Number* rows, const Array& to) {
    const int64_t batches = to.shape[0], heads = to.shape[1], queries = to.shape[2];
    const int64_t last_batch = batches == 1 ? p.batch : 1, last_query = queries == 1 ? p.queries : 1;
    const int64_t last_head = heads == 1 ? p.heads : 1;
    for (int64_t b = 0; b < batches; ++b)
        for (int64_t h = 0; h < heads; ++h)
            for (int64_t q = 0; q < queries; ++q) {
                double sum = 0;
                for (int64_t of_batch = b; of_batch < b + last_batch; ++of_batch)
                    for (int64_t of_head = h; of_head < h + last_head; ++of_head)
                        for (int64_t query = q; query < q + last_query; ++query)
                            sum += (double)rows[(of_batch * p.heads + of_head) * p.queries + query];
                ((Number*)to.data)[to.at(b, h, q, 0)] = (Number)sum;
            }
}

}  // namespace

void backward(const Problem& p, const ForwardResults& results, const Gradients& g, int threads) {
    if (p.batch * p.heads * p.queries * p.keys == 0) return;
    BackwardInputs inputs = {g.output, results.output, results.normalizer, results.rounding, g.lse, g.log_weight,
                           g.column, g.top_keys,     g.top,       g.rows,           g.rows_weights,
                           g.sink_weight, {}};
    Scratch of_sinks;
    if (g.sinks) {
        of_sinks = Scratch(Scratch::bytes_of({p.batch, p.heads, p.queries}, dtype_size(g.sinks.dtype)));
        inputs.sink_rows = {of_sinks.as<char>(), g.sinks.dtype, {1, p.batch, p.heads, p.queries},
                            {0, p.heads * p.queries, p.queries, 1}};
    }
    Run run(p, tile_kernels_in_use(p), inputs, g, threads);
    in_one_region(threads, [&] { run.split.ranges == 1 ? run.run_by_head() : run.run_by_range(); });
    run.bias.finish();
    run.table.finish();
    if (!g.sinks) return;
    with_type_of_sums(g.sinks.dtype, [&](auto number) { sum_sinks(p, of_sinks.as<decltype(number)>(), g.sinks); });
}

}  // namespace regard

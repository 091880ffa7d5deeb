// Backward pass of attention to the own block and to chosen blocks of keys (chosen_blocks.cpp), by the tile kernels.
//
// A query has one normalizer and one delta for all blocks, so tokens are packed once, and the terms of a pair of a query
// and a key are those of exact attention (backward.h). The keys of a block are multiplied with
//
//     first   the queries whose own block it is, tile by tile: up to their own position
//     then    for each head the queries that chose it, 64 at a time: all keys of the block
//
// Packed rows of such queries are gathered into one tile, with their sums of dQ so far, which are copied back: a query is
// in a tile once. A range of blocks has sums of dQ of its own, and the ranges of a query are added in order, so no sum
// depends on the threads.
#include <algorithm>
#include <cstring>

#include "attention/backward_layout.h"
#include "runtime/parallel.h"
#include "selection/chosen_lists.h"
#include "selection/selection_kernels.h"
#include "tables/kernel_table.h"
#include "tiles/pack_layout.h"

namespace regard {

namespace {

class ChosenBackward {
  public:
    ChosenBackward(const ChosenArguments& given, const TokenGradients& gradients, int threads)
        : given_(given), p_(given.problem), gradients_(gradients), tiles_(tile_kernels_in_use(p_)),
          chosen_(chosen_kernels_in_use(p_.query.dtype)), layout_(p_, tiles_, false), size_(layout_.size),
          lists_(given, 0, p_.queries, threads), threads_(threads),
          inputs_{gradients.output, given.output, given.normalizer, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}},
          block_tiles_(given.block / tile) {
        ranges_ = std::min({ceil_div(min_tasks, p_.batch * p_.key_heads), max_ranges, lists_.blocks});
        blocks_in_range_ = ceil_div(lists_.blocks, ranges_);
        ranges_ = ceil_div(lists_.blocks, blocks_in_range_);
        grad_value_ = chosen_.number * (size_t)(tile * chosen_.row(p_.value_dim));
        sums_bytes_ = align_up(layout_.grad_query_bytes());
        list_bytes_ = bytes_of_parts([&](ScratchLayout& layout) { divide_list(layout); });
    }

    void run() {
        const int64_t units = p_.batch * p_.key_heads;
        const size_t each = layout_.bytes() + sums_bytes_ * (size_t)ranges_ + list_bytes_ * (size_t)p_.group();
        const int64_t round = heads_per_round(units, each, ceil_div(4 * (int64_t)threads_, ranges_));
        memory_ = ScratchParts(round, each);
        const size_t of_block = bytes_of_parts([&](ScratchLayout& layout) { divide_scratch(layout); });
        scratch_ = ScratchParts(threads_, of_block + std::max(size_.scratch, size_.pack_scratch));
        for_rounds(units, round, [&](int64_t first, int64_t count) { process(first, count); });
    }

  private:
    // One (batch, key head) of a round.
    struct Unit {
        int64_t batch, key_head;
        char* memory;
    };
    Unit unit(int64_t first, int64_t index) const {
        const int64_t at = first + index;
        return {at / p_.key_heads, at % p_.key_heads, memory_[index]};
    }
    char* sums_of(const Unit& u, int64_t range) const {
        return u.memory + layout_.bytes() + sums_bytes_ * (size_t)range;
    }
    // The queries of each block for one head: see ChosenLists::fill.
    struct List {
        int64_t *start, *query;
    };
    List divide_list(ScratchLayout& layout) const {
        return {layout.take<int64_t>(lists_.blocks + 1), layout.take<int64_t>(lists_.most_rows)};
    }
    List list_of(const Unit& u, int64_t in_group) const {
        ScratchLayout layout{sums_of(u, ranges_) + list_bytes_ * (size_t)in_group};
        return divide_list(layout);
    }
    int64_t head_of(const Unit& u, int64_t in_group) const { return u.key_head * p_.group() + in_group; }

    void process(int64_t first, int64_t count) const {
        const int64_t group = p_.group(), key_tiles = p_.key_tiles(), query_tiles = p_.query_tiles();
        const int64_t of_queries = group * query_tiles, all = key_tiles + of_queries + group;
        parallel_for(count * all, threads_, [&](int64_t task, int thread) {
            const Unit u = unit(first, task / all);
            const int64_t n = task % all;
            if (n < key_tiles) {
                tiles_.backward_pack_keys(p_, u.batch, u.key_head, n, layout_.at(u.memory), scratch_[thread]);
            } else if (n < key_tiles + of_queries) {
                const int64_t in_group = (n - key_tiles) / query_tiles;
                tiles_.backward_pack_queries(p_, inputs_, u.batch, head_of(u, in_group), (n - key_tiles) % query_tiles,
                                             layout_.at(u.memory), in_group, scratch_[thread]);
            } else {
                const List list = list_of(u, n - key_tiles - of_queries);
                lists_.fill(u.batch, head_of(u, n - key_tiles - of_queries), list.start, list.query,
                            [](int64_t, int64_t) {});
            }
        });
        parallel_for(count * ranges_, threads_, [&](int64_t task, int thread) {
            compute_range(unit(first, task / ranges_), task % ranges_, scratch_[thread]);
        });
        parallel_for(count * of_queries, threads_, [&](int64_t task, int) {
            const Unit u = unit(first, task / of_queries);
            const int64_t n = task % of_queries;
            tiles_.backward_finish_queries(p_, u.batch, head_of(u, n / query_tiles), n % query_tiles,
                                           sums_of(u, 0) + size_.grad_query * (size_t)n, sums_bytes_,
                                           ranges_of(n % query_tiles), gradients_.query);
        });
    }

    // The number of ranges with terms of a tile of queries: those up to its last query.
    int64_t ranges_of(int64_t query_tile) const {
        const int64_t last = p_.offset + std::min((query_tile + 1) * tile, p_.queries) - 1;
        if (last < 0) return 0;
        return std::min(ranges_, last / given_.block / blocks_in_range_ + 1);
    }

    void compute_range(const Unit& u, int64_t range, char* scratch) const {
        for (int64_t n = 0; n < p_.group() * p_.query_tiles(); ++n)
            if (range < ranges_of(n % p_.query_tiles()))
                std::memset(sums_of(u, range) + size_.grad_query * (size_t)n, 0, size_.grad_query);
        const int64_t stop = std::min((range + 1) * blocks_in_range_, lists_.blocks);
        for (int64_t b = range * blocks_in_range_; b < stop; ++b) compute_block(u, range, b, scratch);
    }

    // Scratch memory of a thread: a tile of gathered queries and their sums of dQ, those of the keys of a block, and the
    // rest for the kernels.
    struct BlockScratch {
        BackwardTiles gathered;
        char* grad_query;
        KeySums sums;
        char* rest;
    };
    BlockScratch divide_scratch(ScratchLayout& layout) const {
        const auto take = [&](size_t bytes) { return layout.take<char>((int64_t)bytes); };
        BlockScratch s = {};
        BackwardTiles& t = s.gathered;
        t.query = t.query_rows = take(size_.query);
        t.output = t.output_rows = take(size_.output);
        t.largest = take(size_.row_numbers);
        t.log_sum = take(size_.row_numbers);
        t.delta = take(size_.row_numbers);
        t.size = &size_;
        s.grad_query = take(size_.grad_query);
        s.sums.key = take(size_.grad_query * (size_t)block_tiles_);
        s.sums.value = take(grad_value_ * (size_t)block_tiles_);
        s.rest = take(0);
        return s;
    }

    void compute_block(const Unit& u, int64_t range, int64_t block, char* scratch) const {
        ScratchLayout layout{scratch};
        const BlockScratch s = divide_scratch(layout);
        const KeySums& sums = s.sums;
        const int64_t first_key = block * given_.block, first_tile = block * block_tiles_;
        const int64_t count = std::min(block_tiles_, p_.key_tiles() - first_tile);
        std::memset(sums.key, 0, size_.grad_query * (size_t)count);
        std::memset(sums.value, 0, grad_value_ * (size_t)count);
        const int64_t visible = p_.mask.stop ? std::min(p_.mask.stop[u.batch], p_.keys) : p_.keys;
        for (int64_t h = 0; first_key < visible && h < p_.group(); ++h) {
            const auto add = [&](const int64_t* queries, int64_t number, int64_t keys, int64_t high) {
                add_tile(u, range, h, first_tile, queries, number, keys, high, s);
            };
            // Queries behind the last visible key have its block as their own.
            const bool is_last = first_key + given_.block >= visible;
            const int64_t past = std::min(is_last ? p_.offset + p_.queries : first_key + given_.block,
                                          p_.offset + p_.queries);
            for (int64_t at = first_key; at < past; at += tile) {
                const int64_t from = std::max(at, p_.offset), stop = std::min(at + tile, past);
                int64_t queries[tile];
                for (int64_t n = 0; n < stop - from; ++n) queries[n] = from - p_.offset + n;
                if (from < stop) add(queries, stop - from, std::min(visible, at + tile) - first_key, from - first_key);
            }
            const List list = list_of(u, h);
            const int64_t keys = std::min(visible - first_key, given_.block);
            for (int64_t at = list.start[block]; at < list.start[block + 1]; at += tile)
                add(list.query + at, std::min(tile, list.start[block + 1] - at), keys, unbounded_high);
        }
        for (int64_t t = 0; t < count; ++t) {
            const KeySums of_tile = {sums.key + size_.grad_query * (size_t)t, sums.value + grad_value_ * (size_t)t};
            chosen_.write_keys(p_, of_tile, gradients_.key, gradients_.value, u.batch, u.key_head, first_tile + t);
        }
    }

    // Adds the terms of up to 64 queries of a head and the first `keys` keys of a block; query n may attend to the keys
    // up to n + high.
    void add_tile(const Unit& u, int64_t range, int64_t in_group, int64_t first_tile, const int64_t* queries,
                  int64_t number, int64_t keys, int64_t high, const BlockScratch& s) const {
        const BackwardTiles all = layout_.at(u.memory);
        BackwardTiles one = s.gathered;
        one.key = all.key + size_.key * (size_t)first_tile;
        one.key_rows = all.key_rows + size_.key_rows * (size_t)first_tile;
        one.value = all.value + size_.value * (size_t)first_tile;
        const int64_t first_row = in_group * p_.query_tiles() * tile;
        char* of_range = sums_of(u, range);
        for (int64_t n = 0; n < number; ++n) {
            const int64_t row = first_row + queries[n];
            const auto copy = [&](char* to, const char* from, size_t bytes) {
                std::memcpy(to + bytes / tile * (size_t)n, from + bytes / tile * (size_t)row, bytes / tile);
            };
            copy(one.query, all.query, size_.query);
            copy(one.output, all.output, size_.output);
            copy(one.largest, all.largest, size_.row_numbers);
            copy(one.log_sum, all.log_sum, size_.row_numbers);
            copy(one.delta, all.delta, size_.row_numbers);
            copy(s.grad_query, of_range, size_.grad_query);
        }
        Problem small = p_;
        small.batch = small.heads = small.key_heads = 1;
        small.queries = number, small.keys = keys, small.offset = 0;
        small.mask = Mask{};
        small.mask.high = high;
        const BackwardResults results = {s.grad_query, {0, 1}, {}, {}, {}, {}, false, false, {}};
        chosen_.add_query_tile(small, one, results, s.sums, s.rest);
        const size_t row_bytes = size_.grad_query / tile;
        for (int64_t n = 0; n < number; ++n)
            std::memcpy(of_range + row_bytes * (size_t)(first_row + queries[n]), s.grad_query + row_bytes * (size_t)n,
                        row_bytes);
    }

    static constexpr int64_t min_tasks = 32;
    static constexpr int64_t max_ranges = 8;

    const ChosenArguments& given_;
    const Problem& p_;
    const TokenGradients& gradients_;
    const TileKernels& tiles_;
    const ChosenKernels& chosen_;
    const BackwardLayout layout_;
    const BackwardSizes& size_;
    const ChosenLists lists_;
    int threads_;
    const BackwardInputs inputs_;
    int64_t block_tiles_, ranges_ = 1, blocks_in_range_ = 1;
    size_t grad_value_ = 0;  // bytes of the sums of dV of a tile
    size_t sums_bytes_ = 0, list_bytes_ = 0;
    ScratchParts memory_, scratch_;  // of each (batch, key head): its packed tokens, sums of dQ, and lists
};

}  // namespace

void chosen_blocks_backward(const ChosenArguments& given, const TokenGradients& gradients, int threads) {
    const Problem& p = given.problem;
    if (p.batch * p.heads * p.queries * p.keys > 0) ChosenBackward(given, gradients, threads).run();
}

}  // namespace regard

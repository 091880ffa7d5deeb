// Forward pass of causal attention to the own block and to chosen blocks of keys, by the tile kernels of attention.
//
// Attention to the keys of one block is one *part* of a query: its own block, up to its own position, or a block that
// it chose. A slice of the queries is computed at a time, so that its parts stay in a cache. Those of a head are rows:
//
//     0 .. queries - 1     the own blocks, tile by tile in the order of the queries
//     then                 for each block the queries that chose it, in tiles of up to 64
//
// A tile is a small call of the tile kernel: its queries, gathered side by side, and the packed keys of one block, which
// need no mask but the triangle of the own block. Then the parts of each query are joined (chosen_blocks.h). Keys and
// parts of some heads at a time are in memory that is reused. No sum depends on the threads.
#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/parallel.h"
#include "selection/chosen_lists.h"
#include "selection/selection_kernels.h"
#include "tables/kernel_table.h"
#include "tiles/pack_layout.h"

namespace regard {

namespace {

// One tile of queries with one block: the own block of the tile, or queries `first` .. of the list of a block.
struct Tile {
    int64_t unit, head_in_group;
    int64_t block;  // -1: the own one
    int64_t first;  // the tile, counted in keys; or a place in the list
};

// Queries, and the blocks that they chose.
struct Slice {
    int64_t first, stop;
    ChosenLists lists;
};

// What is kept of one head and slice.
struct Head {
    int64_t *list_start, *query, *start, *slot;
    ChosenParts parts;
};

class ChosenForward {
  public:
    ChosenForward(const ChosenArguments& given, int threads)
        : given_(given), p_(given.problem), tiles_(tile_kernels_in_use(p_)), k_(chosen_kernels_in_use(p_.query.dtype)),
          sizes_(p_, tiles_), threads_(threads), blocks_(ceil_div(p_.keys, given.block)) {
        value_row_ = k_.row(p_.value_dim), query_row_ = k_.row(p_.head_dim);
        const int64_t past = p_.offset + p_.queries;
        for (int64_t at = floor_div(p_.offset, slice) * slice; at < past; at += slice) {
            const int64_t first = std::max(at, p_.offset) - p_.offset, stop = std::min(at + slice, past) - p_.offset;
            slices_.push_back({first, stop, ChosenLists(given, first, stop, threads)});
            most_queries_ = std::max(most_queries_, stop - first);
            most_rows_ = std::max(most_rows_, slices_.back().lists.most_rows);
            most_chosen_ = std::max(most_chosen_, slices_.back().lists.most_chosen);
        }
    }

    void run() {
        const int64_t units = p_.batch * p_.key_heads, group = p_.group();
        head_bytes_ = bytes_of_parts([&](ScratchLayout& layout) { divide(layout); });
        const size_t each = sizes_.head_bytes() + head_bytes_ * (size_t)group;
        const int64_t round = heads_per_round(units, each, ceil_div(8 * (int64_t)threads_, group * p_.query_tiles()));
        memory_ = ScratchParts(round, each);
        gathered_bytes_ = align_up(k_.number * (size_t)(tile * query_row_));
        scratch_ = ScratchParts(threads_, std::max({gathered_bytes_ + tiles_.forward_scratch(p_), tiles_.pack_scratch(p_),
                                                    k_.scratch(given_, 1 + most_chosen_)}));
        for_rounds(units, round, [&](int64_t first, int64_t count) { process(first, count); });
    }

  private:
    Head divide(ScratchLayout& layout) const {
        const int64_t rows = most_queries_ + most_rows_, number = (int64_t)k_.number;
        Head h;
        h.parts.output = layout.take<char>(number * rows * value_row_);
        h.parts.normalizer = layout.take<char>(number * 2 * rows);
        h.list_start = layout.take<int64_t>(blocks_ + 1);
        h.start = layout.take<int64_t>(most_queries_ + 1);
        h.query = layout.take<int64_t>(most_rows_);
        h.slot = layout.take<int64_t>(most_rows_);
        return h;
    }
    Head head_at(const Slice& of, int64_t index, int64_t in_group) const {
        ScratchLayout layout{memory_[index] + sizes_.head_bytes() + head_bytes_ * (size_t)in_group};
        Head h = divide(layout);
        h.parts.first = of.first, h.parts.queries = of.stop - of.first;
        h.parts.start = h.start, h.parts.slot = h.slot;
        return h;
    }

    // Lists the queries of each block, and the place of each part of a query in these lists.
    void fill_lists(const Slice& of, const Head& h, int64_t batch, int64_t head) const {
        int64_t parts = 0, query = of.first;
        of.lists.fill(batch, head, h.list_start, h.query, [&](int64_t i, int64_t slot) {
            for (; query <= i; ++query) h.start[query - of.first] = parts;
            h.slot[parts++] = slot;
        });
        for (; query <= of.stop; ++query) h.start[query - of.first] = parts;
    }

    void process(int64_t first, int64_t count) {
        pack_heads(p_, tiles_, sizes_, first, count, memory_, scratch_, threads_);
        for (const Slice& of : slices_) process_slice(of, first, count);
    }

    void process_slice(const Slice& of, int64_t first, int64_t count) const {
        const int64_t group = p_.group();
        const auto batch_of = [&](int64_t index) { return (first + index) / p_.key_heads; };
        const auto head_of = [&](int64_t index, int64_t in_group) {
            return (first + index) % p_.key_heads * group + in_group;
        };
        parallel_for(count * group, threads_, [&](int64_t task, int) {
            const int64_t index = task / group, in_group = task % group;
            fill_lists(of, head_at(of, index, in_group), batch_of(index), head_of(index, in_group));
        });
        const std::vector<Tile> all = list_tiles(of, count);
        parallel_for((int64_t)all.size(), threads_, [&](int64_t task, int thread) {
            const Tile& one = all[(size_t)task];
            compute(of, one, batch_of(one.unit), head_of(one.unit, one.head_in_group), scratch_[thread]);
        });
        const int64_t query_tiles = ceil_div(of.stop - of.first, tile);
        parallel_for(count * group * query_tiles, threads_, [&](int64_t task, int thread) {
            const int64_t index = task / query_tiles / group, in_group = task / query_tiles % group;
            const int64_t from = of.first + task % query_tiles * tile;
            k_.join(given_, head_at(of, index, in_group).parts, batch_of(index), head_of(index, in_group), from,
                    std::min(from + tile, of.stop), scratch_[thread]);
        });
    }

    // The tiles of a slice of some units, those of own blocks first.
    std::vector<Tile> list_tiles(const Slice& of, int64_t count) const {
        std::vector<Tile> all;
        for (int64_t unit = 0; unit < count; ++unit)
            for (int64_t h = 0; h < p_.group(); ++h) {
                // Positions of queries before the first key are negative.
                const int64_t last = floor_div(p_.offset + of.stop - 1, tile);
                for (int64_t t = floor_div(p_.offset + of.first, tile); t <= last; ++t)
                    all.push_back({unit, h, -1, t * tile});
                const int64_t* start = head_at(of, unit, h).list_start;
                for (int64_t b = 0; b < blocks_; ++b)
                    for (int64_t at = start[b]; at < start[b + 1]; at += tile) all.push_back({unit, h, b, at});
            }
        return all;
    }
    static int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -ceil_div(-a, b); }

    void compute(const Slice& of, const Tile& one, int64_t batch, int64_t head, char* scratch) const {
        const Head h = head_at(of, one.unit, one.head_in_group);
        const int64_t visible = p_.mask.stop ? std::min(p_.mask.stop[batch], p_.keys) : p_.keys;
        Problem small = p_;
        small.batch = small.heads = small.key_heads = 1;
        small.mask = Mask{};
        small.offset = 0;
        int64_t first_key = 0, row = 0;
        if (one.block < 0) {
            const int64_t from = std::max(one.first, p_.offset + of.first);
            const int64_t stop = std::min(one.first + tile, p_.offset + of.stop), query = from - p_.offset;
            row = query - of.first;
            small.queries = stop - from;
            const int64_t place = p_.query.at(batch, head, query, 0);
            small.query.data = static_cast<char*>(p_.query.data) + (int64_t)k_.number * place;
            // Queries behind the last visible key have its block as their own.
            if (visible > 0 && stop > 0) first_key = std::min(one.first, visible - 1) / given_.block * given_.block;
            small.keys = std::max<int64_t>(0, std::min(visible, one.first + tile) - first_key);
            small.mask.high = from - first_key;
        } else {
            small.queries = std::min(tile, h.list_start[one.block + 1] - one.first);
            k_.gather(p_, batch, head, h.query + one.first, small.queries, scratch);
            small.query.data = scratch;
            small.query.stride[2] = query_row_;
            small.query.stride[3] = 1;
            first_key = one.block * given_.block;
            small.keys = std::clamp<int64_t>(visible - first_key, 0, given_.block);
            row = h.parts.queries + one.first;
        }
        PackedKeys keys = sizes_.at(memory_[one.unit]);
        keys.key += keys.key_bytes * (size_t)(first_key / tile);
        keys.value += keys.value_bytes * (size_t)(first_key / tile);
        keys.bad += first_key / tile;
        ForwardResults results;
        results.output = rows_of(h.parts.output, row, value_row_);
        results.normalizer = rows_of(h.parts.normalizer, row, 2);
        tiles_.forward(small, keys, 0, 0, 0, results, scratch + gathered_bytes_);
    }
    Array rows_of(char* data, int64_t row, int64_t stride) const {
        Array rows;
        rows.data = data + k_.number * (size_t)(row * stride);
        rows.dtype = p_.query.dtype;
        rows.stride[2] = stride, rows.stride[3] = 1;
        return rows;
    }

    static constexpr int64_t slice = 32 * tile;  // queries: 8 MB of parts, for 16 blocks and a value_dim of 64

    const ChosenArguments& given_;
    const Problem& p_;
    const TileKernels& tiles_;
    const ChosenKernels& k_;
    const PackedSizes sizes_;
    int threads_;
    int64_t blocks_, most_queries_ = 0, most_rows_ = 0, most_chosen_ = 0, value_row_ = 0, query_row_ = 0;
    std::vector<Slice> slices_;
    ScratchParts memory_, scratch_;  // of each (batch, key head): its packed keys, then its heads
    size_t head_bytes_ = 0, gathered_bytes_ = 0;
};

}  // namespace

void chosen_blocks_forward(const ChosenArguments& given, int threads) {
    const Problem& p = given.problem;
    if (p.batch * p.heads * p.queries > 0) ChosenForward(given, threads).run();
}

}  // namespace regard

// Memory layout of packed keys and values: sizes, and the packing of all tiles. For the drivers, compiled for any CPU.
#pragma once

#include <algorithm>

#include "runtime/parallel.h"
#include "runtime/scratch_layout.h"
#include "tiles/tile_kernels.h"

namespace regard {

// The packed form of one (batch, key head): keys, then values, then bits of tokens with NaN or Inf.
struct PackedSizes {
    size_t key, value;
    int64_t tiles;

    PackedSizes(const Problem& p, const TileKernels& k)
        : key(k.key_bytes(p)), value(k.value_bytes(p)), tiles(p.key_tiles()) {}

    size_t head_bytes() const {
        return bytes_of_parts([&](ScratchLayout& layout) { divide(layout); });
    }
    PackedKeys at(char* block) const {
        ScratchLayout layout{block};
        return divide(layout);
    }

  private:
    PackedKeys divide(ScratchLayout& layout) const {
        return {layout.take<char>((int64_t)key * tiles), layout.take<char>((int64_t)value * tiles),
                layout.take<uint64_t>(tiles), key, value};
    }
};

inline void pack_tile(const Problem& p, const TileKernels& k, int64_t batch, int64_t key_head, int64_t tile_index,
                      const PackedKeys& into, char* scratch) {
    k.pack_keys(p, batch, key_head, tile_index, into.key + into.key_bytes * (size_t)tile_index,
                into.value + into.value_bytes * (size_t)tile_index, into.bad + tile_index, scratch);
}

// Packs every tile of `count` (batch, key head)s, each into its part, with scratch memory for each thread.
inline void pack_heads(const Problem& p, const TileKernels& k, const PackedSizes& sizes, int64_t first, int64_t count,
                       const ScratchParts& packed, const ScratchParts& scratch, int threads) {
    int64_t tiles = p.key_tiles();
    parallel_for_owned(count * tiles, threads, [&](int64_t task, int thread) {
        int64_t unit = first + task / tiles;
        pack_tile(p, k, unit / p.key_heads, unit % p.key_heads, task % tiles, sizes.at(packed[task / tiles]),
                  scratch[thread]);
    });
}

// Long sequences: (batch, key head)s are processed in rounds, so that a round can reuse the memory of the previous one.
// New memory costs a page fault per 4 KiB, which takes longer than the arithmetic of windowed attention. for_rounds
// calls body(first, count) for each round.
inline constexpr int64_t round_bytes = (int64_t)32 << 20;
inline int64_t heads_per_round(int64_t all, size_t bytes_of_one, int64_t least) {
    int64_t fit = round_bytes / (int64_t)std::max<size_t>(bytes_of_one, 1);
    int64_t most = fit > least ? fit : least, rounds = ceil_div(all, most);
    return ceil_div(all, rounds);
}
template <class Body>
void for_rounds(int64_t all, int64_t round_heads, Body body) {
    for (int64_t first = 0; first < all; first += round_heads)
        body(first, all - first < round_heads ? all - first : round_heads);
}

// Short sequences: each (batch, key head) is computed by one thread. Heads are usually interleaved (batch, length,
// heads, head_dim), so rows of one head are far apart in memory, and slow to load. So some heads of one batch entry
// form a *set*, whose rows are prefetched together, in memory order, while the previous set is computed.
class HeadSets {
  public:
    HeadSets(const Problem& p, int threads) : p_(p) {
        const int64_t wanted = 8 * (int64_t)threads;  // tasks
        int64_t parts = ceil_div(wanted, p.batch);
        heads_ = p.key_heads / parts < 1 ? 1 : p.key_heads / parts;
        parts_ = ceil_div(p.key_heads, heads_);
        sets_ = p.batch * parts_;
        in_task_ = sets_ / wanted < 1 ? 1 : sets_ / wanted;
    }
    // Calls compute(batch, key_head, thread) for each (batch, key head). `of_keys` and `of_queries`, by key heads and
    // by query heads, are the arrays that it reads, which are prefetched.
    template <class Compute>
    void run(int threads, std::initializer_list<const Array*> of_keys, std::initializer_list<const Array*> of_queries,
             Compute compute) const {
        auto fetch_set = [&](int64_t set) {
            int64_t batch = set / parts_, first = set % parts_ * heads_, past = past_head(set);
            for (const Array* a : of_keys) fetch(*a, batch, first, past);
            for (const Array* a : of_queries) fetch(*a, batch, first * p_.group(), past * p_.group());
        };
        parallel_for_owned(ceil_div(sets_, in_task_), threads, [&](int64_t task, int thread) {
            int64_t stop = task * in_task_ + in_task_ < sets_ ? task * in_task_ + in_task_ : sets_;
            for (int64_t set = task * in_task_; set < stop; ++set) {
                if (set == task * in_task_) fetch_set(set);
                if (set + 1 < stop) fetch_set(set + 1);
                for (int64_t h = set % parts_ * heads_; h < past_head(set); ++h) compute(set / parts_, h, thread);
            }
        });
    }

  private:
    int64_t past_head(int64_t set) const {
        int64_t past = (set % parts_ + 1) * heads_;
        return past < p_.key_heads ? past : p_.key_heads;
    }
    static void fetch(const Array& a, int64_t batch, int64_t head, int64_t past) {
        if (!a || a.rows || a.stride[1] != a.shape[3] || a.stride[3] != 1) return;
        const int64_t item = (int64_t)dtype_size(a.dtype);
        const int64_t bytes = (past - head) * a.shape[3] * item;
        const char* row = (const char*)a.data + a.at(batch, head, 0, 0) * item;
        for (int64_t i = 0; i < a.shape[2]; ++i, row += a.stride[2] * item)
            for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
    }

    const Problem& p_;
    int64_t heads_, parts_, sets_, in_task_;
};

}  // namespace regard

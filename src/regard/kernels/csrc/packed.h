// Where packed keys and values lie: sizes, and the packing of all tiles. Baseline code, for the drivers.
#pragma once

#include "isa.h"
#include "parallel.h"

namespace regard {

inline size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }
inline size_t larger_of(size_t a, size_t b) { return a > b ? a : b; }

// The packed form of one (batch, key head): keys, values, bits of bad tokens, one after the other.
struct PackedSizes {
    size_t key, value, tiles;

    PackedSizes(const Problem& p, const Kernels& k)
        : key(k.key_bytes(p)), value(k.value_bytes(p)), tiles((size_t)p.key_tiles()) {}

    size_t one_head() const { return rounded(key * tiles) + rounded(value * tiles) + rounded(8 * tiles); }

    PackedKeys at(char* base, int64_t index) const {
        char* own = base + one_head() * (size_t)index;
        char* values = own + rounded(key * tiles);
        return {own, values, (uint64_t*)(values + rounded(value * tiles)), key, value};
    }
};

inline void pack_tile(const Problem& p, const Kernels& k, int64_t batch, int64_t key_head, int64_t tile_index,
                      const PackedKeys& into, char* scratch) {
    k.pack_keys(p, batch, key_head, tile_index, into.key + into.key_bytes * (size_t)tile_index,
                into.value + into.value_bytes * (size_t)tile_index, into.bad + tile_index, scratch);
}

// Every tile of every (batch, key head). `work` bytes of scratch a thread.
inline void pack_all(const Problem& p, const Kernels& k, const PackedSizes& sizes, char* packed, char* scratch,
                     size_t work, int threads) {
    int64_t tiles = p.key_tiles();
    parallel_for(p.batch * p.key_heads * tiles, threads, [&](int64_t task, int thread) {
        int64_t unit = task / tiles;
        pack_tile(p, k, unit / p.key_heads, unit % p.key_heads, task % tiles, sizes.at(packed, unit),
                  scratch + (size_t)thread * work);
    });
}

}  // namespace regard

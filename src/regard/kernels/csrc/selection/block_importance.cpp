// The choice of blocks by compressed attention: compressed keys are packed once for a (batch, key head), then each tile of
// queries is one task, for all heads that share the keys.
#include <algorithm>
#include <vector>

#include "runtime/parallel.h"
#include "selection/selection_kernels.h"
#include "tiles/pack_layout.h"

namespace regard {

void block_importance(const ImportanceArguments& given, int threads) {
    const ImportanceKernels& k = importance_kernels_in_use();
    const int64_t key_heads = given.key.shape[1], units = given.key.shape[0] * key_heads, width = given.key.shape[3];
    const int64_t tiles = ceil_div(given.key.shape[2], tile), query_tiles = ceil_div(given.query.shape[2], tile);
    if (units == 0 || query_tiles == 0) return;
    const size_t key = align_up(4 * (size_t)(tiles * width * tile)), flags = align_up(8 * (size_t)tiles);
    const size_t each = key + 2 * flags;
    const int64_t round = heads_per_round(units, each, ceil_div(8 * static_cast<int64_t>(threads), query_tiles));
    const Scratch packed = Scratch::of<char>({round, static_cast<int64_t>(each)});
    const size_t work = align_up(max_bytes(k.pack_scratch(given), k.scratch(given)));
    const Scratch scratch = Scratch::of<char>({threads, static_cast<int64_t>(work)});
    const auto keys_of = [&](int64_t index) {
        char* own = packed.as<char>() + each * static_cast<size_t>(index);
        return ChoiceKeys{reinterpret_cast<float*>(own), reinterpret_cast<uint64_t*>(own + key),
                          reinterpret_cast<double*>(own + key + flags)};
    };
    std::vector<int64_t> first_bad(static_cast<size_t>(round));
    std::vector<double> norm(static_cast<size_t>(round));
    for_rounds(units, round, [&](int64_t first, int64_t count) {
        parallel_for(count * tiles, threads, [&](int64_t task, int thread) {
            const int64_t unit = first + task / tiles;
            k.pack(given, unit / key_heads, unit % key_heads, task % tiles, keys_of(task / tiles),
                   scratch.as<char>() + static_cast<size_t>(thread) * work);
        });
        for (int64_t index = 0; index < count; ++index) {
            const ChoiceKeys keys = keys_of(index);
            int64_t bad = INT64_MAX;
            double most = 0;
            for (int64_t t = tiles; t-- > 0;) {
                if (keys.bad[t]) bad = t * tile + __builtin_ctzll(keys.bad[t]);
                most = std::max(most, keys.norm[t]);
            }
            first_bad[static_cast<size_t>(index)] = bad;
            norm[static_cast<size_t>(index)] = most;
        }
        parallel_for(count * query_tiles, threads, [&](int64_t task, int thread) {
            const int64_t index = task / query_tiles, unit = first + index;
            k.choose(given, keys_of(index), first_bad[static_cast<size_t>(index)], norm[static_cast<size_t>(index)],
                     unit / key_heads, unit % key_heads, query_tiles - 1 - task % query_tiles,
                     scratch.as<char>() + static_cast<size_t>(thread) * work);
        });
    });
}

}  // namespace regard

// The choice of keys by their scores, and of blocks by compressed attention: keys are packed once for a (batch, key head),
// then a task is a tile of queries of a head, or of all heads that share the keys.
#include <algorithm>
#include <cmath>

#include "runtime/parallel.h"
#include "selection/selection_kernels.h"
#include "tables/table_in_use.h"
#include "tiles/pack_layout.h"

namespace regard {

namespace {

const ChoiceKernels& choice_kernels_in_use() { REGARD_RETURN_TABLE(choice_kernels()); }

const ImportanceKernels& importance_kernels_in_use() { REGARD_RETURN_TABLE(importance_kernels()); }

// The score of a key in float64, rounded to float32. Products of two float32 numbers are exact in float64, so all
// processors round alike. What cannot be compared is the highest: NaN becomes Inf; -Inf becomes the lowest number.
float exact_score(const HighestArguments& given, const float* query, const float* weight, int64_t weight_step,
                  int64_t query_step, const float* key) {
    const int64_t head_dim = given.problem.head_dim;
    const auto multiply = [&](const float* one) {
        double sum = 0;
        for (int64_t k = 0; k < head_dim; ++k) sum += static_cast<double>(one[k]) * static_cast<double>(key[k * tile]);
        return sum;
    };
    double total = 0;
    if (given.summed) {
        for (int64_t h = 0; h < given.score_heads; ++h) {
            double product = multiply(query + h * query_step);
            if (product < 0) product = 0;  // NaN stays
            const double part = static_cast<double>(weight[h * weight_step]) * product;
            total = h == 0 ? part : total + part;
        }
    } else {
        total = multiply(query);
    }
    const auto rounded = static_cast<float>(total);
    if (std::isnan(rounded)) return HUGE_VALF;
    return std::max(rounded, -3.40282346638528859812e+38F);
}

void keep_lowest(uint64_t* codes, int64_t count, int64_t keep) {
    if (keep > 0 && keep < count) std::nth_element(codes, codes + keep - 1, codes + count);
}

// Packs the keys of some (batch, key head)s at a time, and then runs `tasks` tasks for each of them:
// choose(keys, batch, key head, task, scratch of the thread).
template <class Arguments, class Kernels, class Choose>
void for_packed_keys(const Arguments& given, const Kernels& k, const Array& key, int64_t tasks, int threads,
                     Choose choose) {
    const int64_t key_heads = key.shape[1], units = key.shape[0] * key_heads, tiles = ceil_div(key.shape[2], tile);
    if (units * tasks == 0) return;
    const auto divide = [&](ScratchLayout& layout) {
        return ChoiceKeys{layout.take<float>(tiles * key.shape[3] * tile), layout.take<uint64_t>(tiles),
                          layout.take<double>(tiles)};
    };
    const size_t each = bytes_of_parts(divide);
    const int64_t round = heads_per_round(units, each, ceil_div(8 * static_cast<int64_t>(threads), tasks));
    const ScratchParts packed(round, each), scratch(threads, std::max(k.pack_scratch(given), k.scratch(given)));
    const auto keys_of = [&](int64_t index) {
        ScratchLayout layout{packed[index]};
        return divide(layout);
    };
    for_rounds(units, round, [&](int64_t first, int64_t count) {
        parallel_for(count * tiles, threads, [&](int64_t task, int thread) {
            const int64_t unit = first + task / tiles;
            k.pack(given, unit / key_heads, unit % key_heads, task % tiles, keys_of(task / tiles), scratch[thread]);
        });
        parallel_for(count * tasks, threads, [&](int64_t task, int thread) {
            const int64_t unit = first + task / tasks;
            choose(keys_of(task / tasks), unit / key_heads, unit % key_heads, task % tasks, scratch[thread]);
        });
    });
}

}  // namespace

void highest_keys(const HighestArguments& given, int threads) {
    const Problem& p = given.problem;
    const ChoiceKernels& k = choice_kernels_in_use();
    const ExactChoice exact = {exact_score, keep_lowest};
    if (given.count == 0) return;
    // Heads of one key head are adjacent; the scores of a sum have one key head, for all heads.
    const int64_t heads = p.key_heads ? p.heads / p.key_heads : 0, query_tiles = p.query_tiles();
    for_packed_keys(given, k, p.key, heads * query_tiles, threads,
                    [&](const ChoiceKeys& keys, int64_t batch, int64_t key_head, int64_t task, char* scratch) {
                        k.choose(given, keys, exact, batch, key_head * heads + task / query_tiles,
                                 query_tiles - 1 - task % query_tiles, scratch);
                    });
}

void block_importance(const ImportanceArguments& given, int threads) {
    const ImportanceKernels& k = importance_kernels_in_use();
    const int64_t query_tiles = ceil_div(given.query.shape[2], tile), tiles = ceil_div(given.key.shape[2], tile);
    for_packed_keys(given, k, given.key, query_tiles, threads,
                    [&](const ChoiceKeys& keys, int64_t batch, int64_t key_head, int64_t task, char* scratch) {
                        int64_t first_bad = INT64_MAX;
                        double norm = 0;
                        for (int64_t t = tiles; t-- > 0;) {
                            if (keys.bad[t]) first_bad = t * tile + __builtin_ctzll(keys.bad[t]);
                            norm = std::max(norm, keys.norm[t]);
                        }
                        k.choose(given, keys, first_bad, norm, batch, key_head, query_tiles - 1 - task, scratch);
                    });
}

}  // namespace regard

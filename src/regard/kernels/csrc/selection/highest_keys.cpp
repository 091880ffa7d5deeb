// The choice of keys: keys are packed once for a (batch, key head), then each tile of queries of a head is one task.
#include <algorithm>
#include <cmath>

#include "runtime/parallel.h"
#include "selection/selection_kernels.h"
#include "tiles/pack_layout.h"

namespace regard {

namespace {

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

}  // namespace

void highest_keys(const HighestArguments& given, int threads) {
    const Problem& p = given.problem;
    const ChoiceKernels& k = choice_kernels_in_use();
    const ExactChoice exact = {exact_score, keep_lowest};
    // Heads of one key head are adjacent; the scores of a sum have one key head, for all heads.
    const int64_t units = p.batch * p.key_heads, heads = p.key_heads ? p.heads / p.key_heads : 0;
    const int64_t tiles = p.key_tiles(), query_tiles = p.query_tiles(), tasks = heads * query_tiles;
    if (units == 0 || tasks == 0 || given.count == 0) return;
    const size_t key = align_up(4 * (size_t)(tiles * p.head_dim * tile)), flags = align_up(8 * (size_t)tiles);
    const size_t each = key + 2 * flags;
    const int64_t round = heads_per_round(units, each, ceil_div(8 * threads, tasks));
    const Scratch packed = Scratch::of<char>({round, (int64_t)each});
    const size_t work = align_up(max_bytes(k.pack_scratch(given), k.scratch(given)));
    const Scratch scratch = Scratch::of<char>({threads, (int64_t)work});
    const auto keys_of = [&](int64_t index) {
        char* own = packed.as<char>() + each * (size_t)index;
        return ChoiceKeys{(float*)own, (uint64_t*)(own + key), (double*)(own + key + flags)};
    };
    for_rounds(units, round, [&](int64_t first, int64_t count) {
        parallel_for(count * tiles, threads, [&](int64_t task, int thread) {
            const int64_t unit = first + task / tiles;
            k.pack(given, unit / p.key_heads, unit % p.key_heads, task % tiles, keys_of(task / tiles),
                   scratch.as<char>() + (size_t)thread * work);
        });
        parallel_for(count * tasks, threads, [&](int64_t task, int thread) {
            const int64_t unit = first + task / tasks, head = unit % p.key_heads * heads + task % tasks / query_tiles;
            k.choose(given, keys_of(task / tasks), exact, unit / p.key_heads, head,
                     query_tiles - 1 - task % query_tiles, scratch.as<char>() + (size_t)thread * work);
        });
    });
}

}  // namespace regard

// Attention by features: where every query sees all keys, ranges of keys and of queries are tasks; causally, a head is one.
#include <algorithm>
#include <vector>

#include "runtime/parallel.h"
#include "scan/feature_kernels.h"
#include "tables/table_in_use.h"

namespace regard {

namespace {

const FeatureKernels& kernels_in_use(Dtype dtype) { REGARD_RETURN_TABLE(feature_kernels(dtype_of_sums(dtype))); }

// The ranges of tokens of a head that are summed on their own: by sizes alone, so that no sum depends on the threads.
struct TokenRanges {
    static constexpr int64_t least = 16 * feature_chunk, most_tasks = 128;
    int64_t length, tokens, count;

    TokenRanges(int64_t length, int64_t heads) : length(length) {
        const int64_t most = std::max<int64_t>(most_tasks / std::max<int64_t>(heads, 1), 1);
        const int64_t parts = std::clamp<int64_t>(ceil_div(length, least), 1, most);
        tokens = std::max<int64_t>(ceil_div(ceil_div(length, parts), feature_chunk), 1) * feature_chunk;
        count = std::max<int64_t>(ceil_div(length, tokens), 1);
    }
    int64_t first(int64_t range) const { return range * tokens; }
    int64_t stop(int64_t range) const { return std::min(range * tokens + tokens, length); }
};

constexpr int64_t query_tokens = 4 * feature_chunk;  // of a task whose results are not summed

std::vector<char*> blocks_of(const ScratchParts& parts, int64_t count) {
    std::vector<char*> blocks;
    for (int64_t i = 0; i < count; ++i) blocks.push_back(parts[i]);
    return blocks;
}

// A head is one task. If most threads would be idle, the keys of each head are summed first, two fifths of its products, and
// the sums before each range of tokens kept, so that the ranges are tasks. The same chunks are added in the same order, so
// no bit depends on that.
void attend_causally(const FeatureArguments& given, const FeatureResults& results, const FeatureKernels& k,
                     const char* projection, const ScratchParts& scratch, int threads) {
    const int64_t heads = given.heads, all = given.batch * heads;
    const int64_t most = ceil_div(given.keys, 8 * feature_chunk);
    const int64_t parts = threads >= 3 * all && most > 1 ? std::clamp<int64_t>(ceil_div(2 * threads, all), 2, most) : 1;
    const int64_t tokens = std::max<int64_t>(ceil_div(ceil_div(given.keys, parts), feature_chunk), 1) * feature_chunk;
    const int64_t ranges = std::max<int64_t>(ceil_div(given.keys, tokens), 1);
    const auto stop = [&](int64_t range) { return std::min(range * tokens + tokens, given.keys); };
    const ScratchParts sums(ranges > 1 ? all * ranges : threads, k.sums_bytes(given));
    in_one_region(threads, [&] {
        if (ranges > 1)
            parallel_for(all, threads, [&](int64_t unit, int thread) {
                k.clear(given, sums[unit * ranges]);
                for (int64_t range = 1; range < ranges; ++range) {
                    k.copy(given, sums[unit * ranges + range - 1], sums[unit * ranges + range]);
                    k.sum_keys(given, unit / heads, unit % heads, (range - 1) * tokens, stop(range - 1), projection,
                               sums[unit * ranges + range], scratch[thread]);
                }
            });
        parallel_for(all * ranges, threads, [&](int64_t task, int thread) {
            const int64_t unit = task / ranges, range = task % ranges;
            char* before = sums[ranges > 1 ? task : thread];
            if (ranges == 1) k.clear(given, before);
            k.attend_causally(given, results, unit / heads, unit % heads, range * tokens, stop(range), projection, before,
                              scratch[thread]);
        });
    });
}

}  // namespace

void feature_attention(const FeatureArguments& given, const FeatureResults& results, int threads) {
    const FeatureKernels& k = kernels_in_use(given.query.dtype);
    const ScratchParts projection(1, k.projection_bytes(given)), scratch(threads, k.scratch(given));
    k.pack_projection(given, projection[0]);
    const int64_t sum_heads = given.sum_heads(), all = given.batch * sum_heads;
    if (given.causal) return attend_causally(given, results, k, projection[0], scratch, threads);
    const TokenRanges ranges(given.keys, all);
    const ScratchParts sums(all * ranges.count, k.sums_bytes(given));
    const std::vector<char*> blocks = blocks_of(sums, all * ranges.count);
    const int64_t tasks = ceil_div(given.queries, query_tokens), group = given.heads / sum_heads;
    in_one_region(threads, [&] {
        parallel_for(all * ranges.count, threads, [&](int64_t task, int thread) {
            const int64_t unit = task / ranges.count, range = task % ranges.count;
            k.clear(given, blocks[task]);
            k.sum_keys(given, unit / sum_heads, unit % sum_heads, ranges.first(range), ranges.stop(range),
                       projection[0], blocks[task], scratch[thread]);
        });
        parallel_for(all, threads, [&](int64_t unit, int) {
            k.join(given, results, unit / sum_heads, unit % sum_heads, ranges.count, &blocks[unit * ranges.count]);
        });
        parallel_for(given.batch * given.heads * tasks, threads, [&](int64_t task, int thread) {
            const int64_t unit = task / tasks, head = unit % given.heads, first = task % tasks * query_tokens;
            const int64_t of_sums = unit / given.heads * sum_heads + head / group;
            k.attend(given, results, unit / given.heads, head, first, std::min(first + query_tokens, given.queries),
                     projection[0], blocks[of_sums * ranges.count], scratch[thread]);
        });
    });
}

void feature_attention_backward(const FeatureArguments& given, const FeatureGradients& gradients, int threads) {
    const FeatureKernels& k = kernels_in_use(given.query.dtype);
    const ScratchParts projection(1, k.projection_bytes(given)), scratch(threads, k.scratch(given));
    k.pack_projection(given, projection[0]);
    const int64_t sum_heads = given.sum_heads(), all = given.batch * sum_heads;
    if (given.causal) {
        const ScratchParts saved(threads, k.saved_bytes(given)), of_sums(threads, k.sums_bytes(given));
        parallel_for(all, threads, [&](int64_t task, int thread) {
            k.causal_gradients(given, gradients, task / sum_heads, task % sum_heads, projection[0], saved[thread],
                               of_sums[thread], scratch[thread]);
        });
        return;
    }
    const int64_t group = given.heads / sum_heads, copies = sum_heads / given.key_heads;
    const TokenRanges ranges(given.queries, all);
    const ScratchParts sums(all, k.sums_bytes(given)), parts(all * ranges.count, k.sums_bytes(given));
    const std::vector<char*> of_keys = blocks_of(sums, all), blocks = blocks_of(parts, all * ranges.count);
    std::vector<char*> joined;
    for (int64_t unit = 0; unit < all; ++unit) joined.push_back(blocks[unit * ranges.count]);
    const int64_t tasks = ceil_div(given.keys, query_tokens);
    in_one_region(threads, [&] {
        parallel_for(all, threads, [&](int64_t unit, int) {
            k.read_sums(given, gradients.results, unit / sum_heads, unit % sum_heads, of_keys[unit]);
        });
        parallel_for(all * ranges.count, threads, [&](int64_t task, int thread) {
            const int64_t unit = task / ranges.count, range = task % ranges.count;
            k.clear(given, blocks[task]);
            for (int64_t head = 0; head < group; ++head)
                k.query_gradients(given, gradients, unit / sum_heads, unit % sum_heads * group + head,
                                  ranges.first(range), ranges.stop(range), projection[0], of_keys[unit], blocks[task],
                                  scratch[thread]);
        });
        parallel_for(all, threads, [&](int64_t unit, int) {
            k.join_gradients(given, ranges.count, &blocks[unit * ranges.count]);
        });
        parallel_for(given.batch * given.key_heads * tasks, threads, [&](int64_t task, int thread) {
            const int64_t unit = task / tasks, first = task % tasks * query_tokens;
            k.key_gradients(given, gradients, unit / given.key_heads, unit % given.key_heads, first,
                            std::min(first + query_tokens, given.keys), projection[0], &of_keys[unit * copies],
                            &joined[unit * copies], scratch[thread]);
        });
    });
}

}  // namespace regard

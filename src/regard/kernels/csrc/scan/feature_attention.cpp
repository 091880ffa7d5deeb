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

}  // namespace

void feature_attention(const FeatureArguments& given, const FeatureResults& results, int threads) {
    const FeatureKernels& k = kernels_in_use(given.query.dtype);
    const ScratchParts projection(1, k.projection_bytes(given)), scratch(threads, k.scratch(given));
    k.pack_projection(given, projection[0]);
    const int64_t sum_heads = given.sum_heads(), all = given.batch * sum_heads;
    if (given.causal) {
        const ScratchParts sums(threads, k.sums_bytes(given));
        parallel_for(all, threads, [&](int64_t task, int thread) {
            k.attend_causally(given, results, task / sum_heads, task % sum_heads, projection[0], sums[thread],
                              scratch[thread]);
        });
        return;
    }
    const TokenRanges ranges(given.keys, all);
    const ScratchParts sums(all * ranges.count, k.sums_bytes(given));
    const std::vector<char*> blocks = blocks_of(sums, all * ranges.count);
    const int64_t tasks = ceil_div(given.queries, query_tokens), group = given.heads / sum_heads;
    in_one_region(threads, [&] {
        parallel_for(all * ranges.count, threads, [&](int64_t task, int thread) {
            const int64_t unit = task / ranges.count, range = task % ranges.count;
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

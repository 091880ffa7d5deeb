// The hash of tokens: rotations are packed once, then each block of tokens in a round is one task.
#include <algorithm>
#include <cmath>

#include "buckets/bucket_kernels.h"
#include "runtime/parallel.h"
#include "tables/table_in_use.h"

namespace regard {

namespace {

const HashKernels& hash_kernels_in_use() { REGARD_RETURN_TABLE(hash_kernels()); }

int64_t whole_block(int64_t columns) { return ceil_div(columns, column_block) * column_block; }

// Copies one rotation, with zeros behind the columns of each factor. Returns its largest absolute number.
float pack_rotation(const HashArguments& given, const float* from, int64_t width, float* to) {
    float largest = 0;
    std::fill_n(to, given.head_dim * width, 0.0F);
    for (int64_t row = 0; row < given.head_dim; ++row) {
        float* into = to + row * width;
        for (int64_t f = 0; f < given.factor_count; ++f) {
            for (int64_t c = 0; c < given.factors[f] / 2; ++c) {
                into[c] = *from++;
                largest = std::max(largest, std::fabs(into[c]));
            }
            into += whole_block(given.factors[f] / 2);
        }
    }
    return largest;
}

}  // namespace

void hash_tokens(const HashArguments& given, int threads) {
    const int64_t batch = given.tokens.shape[0], heads = given.tokens.shape[1], length = given.tokens.shape[2];
    if (batch * heads * length * given.rounds == 0) return;
    int64_t width = 0;
    for (int64_t f = 0; f < given.factor_count; ++f) width += whole_block(given.factors[f] / 2);
    const HashKernels& kernels = hash_kernels_in_use();
    const int64_t rotations = heads * given.rounds, each = given.head_dim * width;
    const Scratch packed = Scratch::of<float>({rotations, each}), largest = Scratch::of<float>({rotations});
    const Scratch products = Scratch::of<float>({threads, 4, width});
    parallel_for(rotations, threads, [&](int64_t task, int) {
        const float* from = given.rotations + task * given.head_dim * given.columns;
        largest.as<float>()[task] = pack_rotation(given, from, width, packed.as<float>() + task * each);
    });
    const int64_t blocks = ceil_div(length, hash_block);
    parallel_for(batch * heads * blocks, threads, [&](int64_t task, int thread) {
        const int64_t head = task / blocks % heads, first = task % blocks * hash_block;
        for (int64_t round = 0; round < given.rounds; ++round) {
            const int64_t number = head * given.rounds + round;
            const PackedRotation rotation = {packed.as<float>() + number * each, width, largest.as<float>()[number]};
            kernels.hash(given, rotation, task / blocks / heads, head, round, first,
                         std::min(first + hash_block, length), products.as<float>() + thread * 4 * width);
        }
    });
}

}  // namespace regard

// Division of the backward pass into tasks: the (batch, key head)s into chains, the key tiles into ranges.
//
// The division depends only on the shapes, and so does the order of all sums.
//
// If several (batch, key head)s share a bias, its gradient is a sum over them. They form a *chain*: its members are
// processed one after the other. If that gives fewer than min_tasks tasks, chains are split into several, with a copy
// of the gradient for each, and the copies are added in order at the end. If the bias is also the same for all keys,
// there is a copy for each range, too.
#pragma once

#include <algorithm>

#include "drivers.h"
#include "runtime/parallel.h"
#include "tiles/problem.h"

namespace regard {

struct BackwardSplit {
    bool over_batch = false, over_heads = false;  // whether the gradient of a bias is a sum over these
    int64_t chains = 1, members = 1, copies = 1, ranges = 1, tiles_in_range = 1;

    BackwardSplit(const Problem& p, const TokenGradients& g) {
        bool copies_by_range = false;
        int64_t bytes = 1;
        if (g.bias) {
            over_batch |= g.bias.shape[0] == 1 && p.batch > 1;
            over_heads |= g.bias.shape[1] == 1 && p.heads > 1;
            copies_by_range |= g.bias.shape[3] == 1;
            bytes = std::max(bytes, 8 * g.bias.shape[0] * g.bias.shape[1] * g.bias.shape[2] * g.bias.shape[3]);
        }
        if (g.table) {
            over_batch |= p.batch > 1;
            over_heads |= g.table.shape[2] == 1 && p.heads > 1;
            copies_by_range = true;
            bytes = std::max(bytes, 8 * g.table.shape[2] * g.table.shape[3]);
        }
        int64_t owners = (over_batch ? 1 : p.batch) * (over_heads ? 1 : p.key_heads);
        members = (over_batch ? p.batch : 1) * (over_heads ? p.key_heads : 1);
        ranges = std::min({ceil_div(min_tasks, owners), max_ranges, p.key_tiles() / min_range_tiles});
        ranges = std::max<int64_t>(1, ranges);
        tiles_in_range = ceil_div(p.key_tiles(), ranges);
        ranges = ceil_div(p.key_tiles(), tiles_in_range);
        int64_t cuts = 1;
        if (members > 1 && owners * ranges < min_tasks)
            cuts = std::min({members, ceil_div(min_tasks, owners * ranges), max_copies_bytes / bytes});
        cuts = std::max<int64_t>(1, cuts);
        chains = owners * cuts;
        members = ceil_div(members, cuts);
        cuts_ = cuts;
        copies = cuts * (copies_by_range ? ranges : 1);
        by_range_ = copies_by_range;
    }

    int64_t copy_index(int64_t chain, int64_t range) const {
        int64_t cut = chain % cuts_;
        return by_range_ ? cut * ranges + range : cut;
    }
    // Whether each (batch, key head) is a chain of its own, with the same index.
    bool has_own_gradients() const { return !over_batch && !over_heads; }
    // The n-th (batch, key head) of a chain; -1 if it has fewer.
    int64_t member(const Problem& p, int64_t chain, int64_t n) const {
        int64_t owner = chain / cuts_, index = chain % cuts_ * members + n;
        int64_t batch = owner, key_head = 0;
        if (over_batch && over_heads) {
            if (index >= p.batch * p.key_heads) return -1;
            return index;
        }
        if (over_batch) {
            key_head = owner, batch = index;
            if (batch >= p.batch) return -1;
        } else if (over_heads) {
            key_head = index;
            if (key_head >= p.key_heads) return -1;
        } else {
            return owner;
        }
        return batch * p.key_heads + key_head;
    }

  private:
    static constexpr int64_t min_tasks = 128;
    static constexpr int64_t max_ranges = 16;
    static constexpr int64_t min_range_tiles = 2;  // key tiles in a range
    static constexpr int64_t max_copies_bytes = (int64_t)64 << 20;
    int64_t cuts_ = 1;
    bool by_range_ = false;
};

}  // namespace regard

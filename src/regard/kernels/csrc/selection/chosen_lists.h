// Which queries chose each block of keys, and the kernels, for both passes of attention to chosen blocks.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "drivers.h"
#include "runtime/parallel.h"
#include "selection/selection_kernels.h"
#include "tables/table_in_use.h"

namespace regard {

inline const ChosenKernels& chosen_kernels_in_use(Dtype dtype) { REGARD_RETURN_TABLE(chosen_kernels(dtype)); }

// Of the queries first .. stop - 1. Lists are counted once, and filled head by head, into memory that is reused.
class ChosenLists {
  public:
    int64_t blocks;            // of keys
    int64_t most_rows = 0;     // queries in all lists of a head, at most
    int64_t most_chosen = 0;   // blocks that a query chose, at most

    ChosenLists(const ChosenArguments& given, int64_t first, int64_t stop, int threads)
        : blocks(ceil_div(given.problem.keys, given.block)), given_(&given), first_(first), stop_(stop) {
        const Problem& p = given.problem;
        const int64_t heads = p.batch * p.heads;
        counts_.resize((size_t)(heads * blocks));
        std::vector<int64_t> most((size_t)heads);
        parallel_for(heads, threads, [&](int64_t h, int) {
            int64_t of_query = 0, last = -1;
            for_chosen(h / p.heads, h % p.heads, [&](int64_t i, int64_t b) {
                ++counts_[(size_t)(h * blocks + b)];
                of_query = i == last ? of_query + 1 : 1;
                last = i;
                most[(size_t)h] = std::max(most[(size_t)h], of_query);
            });
        });
        for (int64_t h = 0; h < heads; ++h) {
            int64_t rows = 0;
            for (int64_t b = 0; b < blocks; ++b) rows += counts_[(size_t)(h * blocks + b)];
            most_rows = std::max(most_rows, rows);
            most_chosen = std::max(most_chosen, most[(size_t)h]);
        }
    }

    // Writes the queries of block b of a head to query[start[b]] .. query[start[b + 1] - 1], ascending, and calls
    // place(query, index in `query`) for each, query by query and block by block. Called in tasks, so it allocates nothing:
    // until the end start[b + 1] is the index of the next query of block b.
    template <class Place>
    void fill(int64_t batch, int64_t head, int64_t* start, int64_t* query, Place place) const {
        const int64_t* counts = counts_.data() + (batch * given_->problem.heads + head) * blocks;
        start[0] = 0;
        for (int64_t b = 0, rows = 0; b < blocks; ++b) {
            start[b + 1] = rows;
            rows += counts[b];
            REGARD_ASSERT(rows <= most_rows);
        }
        for_chosen(batch, head, [&](int64_t i, int64_t b) {
            const int64_t index = start[b + 1]++;
            REGARD_ASSERT(index < most_rows);
            query[index] = i;
            place(i, index);
        });
    }

  private:
    // Calls body(query, block) for each block that a query of a head chose, query by query.
    template <class Body>
    void for_chosen(int64_t batch, int64_t head, Body body) const {
        const Array& c = given_->chosen;
        for (int64_t i = first_; i < stop_; ++i) {
            const auto* row = static_cast<const uint8_t*>(c.data) + c.at(batch, head, i, 0);
            for (int64_t b = 0; b < blocks; ++b) {
                for (uint64_t eight; b + 8 <= blocks; b += 8) {
                    std::memcpy(&eight, row + b, 8);
                    if (eight) break;
                }
                if (b < blocks && row[b]) body(i, b);
            }
        }
    }

    const ChosenArguments* given_;
    int64_t first_, stop_;
    std::vector<int64_t> counts_;
};

}  // namespace regard

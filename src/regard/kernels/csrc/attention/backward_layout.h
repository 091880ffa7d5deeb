// Memory layout of the packed tokens of one (batch, key head) in the backward pass, and of its saved weights.
#pragma once

#include "tiles/pack_layout.h"
#include "tiles/tile_kernels.h"

namespace regard {

struct BackwardLayout {
    BackwardSizes size;
    size_t key_tiles, query_tiles;  // query tiles of all heads of the group
    size_t weight_tiles;            // key tiles of saved weights, of all heads of the group; 0: none are saved

    BackwardLayout(const Problem& p, const TileKernels& k, bool saves_weights)
        : size(k.backward_sizes(p)), key_tiles((size_t)p.key_tiles()),
          query_tiles((size_t)(p.group() * p.query_tiles())),
          weight_tiles(saves_weights ? (size_t)p.group() * key_tiles : 0) {}

    BackwardTiles at(char* block) const {
        ScratchLayout layout{block};
        return divide(layout);
    }
    size_t bytes() const {
        return bytes_of_parts([&](ScratchLayout& layout) { divide(layout); });
    }
    size_t grad_query_bytes() const { return size.grad_query * query_tiles; }

  private:
    BackwardTiles divide(ScratchLayout& layout) const {
        BackwardTiles t;
        const auto take = [&](size_t bytes) { return layout.take<char>((int64_t)bytes); };
        t.key = take(size.key * key_tiles);
        t.key_rows = take(size.key_rows * key_tiles);
        t.value = take(size.value * key_tiles);
        t.query = take(size.query * query_tiles);
        t.query_rows = size.query_rows ? take(size.query_rows * query_tiles) : t.query;
        t.output = take(size.output * query_tiles);
        t.output_rows = size.output_rows ? take(size.output_rows * query_tiles) : t.output;
        t.largest = take(size.row_numbers * query_tiles);
        t.log_sum = take(size.row_numbers * query_tiles);
        t.delta = take(size.row_numbers * query_tiles);
        t.active = take(8 * query_tiles);
        t.weights = weight_tiles ? take(size.weights * weight_tiles) : nullptr;
        t.size = &size;
        return t;
    }
};

}  // namespace regard

// Which pairs of tiles take part in a backward pass: those with a key that a query with a gradient may attend to.
#pragma once

#include "tiles/mask_tiles.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// Hides all keys of a tile from its queries without gradients; bit i of `active`: query i has one. Returns whether the
// tile is partial then. `bits` of a full tile are arbitrary before, and written if some query has no gradient.
REGARD_INLINE bool hide_inactive(uint64_t active, int64_t rows, bool partial, uint64_t* bits) {
    if (active == bit_range(0, rows)) return partial;
    for (int64_t r = 0; r < tile; ++r) bits[r] = active >> r & 1 ? (partial ? bits[r] : ~(uint64_t)0) : 0;
    return true;
}

// Calls body(query tile, rows, partial) for each tile of queries of a head that take part with a tile of keys. `active`
// has a word for each tile of queries. `bits` then has the visible keys of each query, if the pair of tiles is partial.
template <class Body>
REGARD_INLINE void for_active_queries(const Problem& p, int64_t batch, int64_t head, int64_t key_tile,
                                      const uint64_t* active, uint64_t* bits, Body body) {
    MaskView view(p, batch, head);
    const TileRange of_key = view.query_tile_range(key_tile);
    for (int64_t i = of_key.first; i < of_key.past; ++i) {
        if (!active[i]) continue;
        const int32_t bitmap = find_bitmap(view, i, key_tile);
        if (bitmap == -2) continue;
        const Fill fill = view.read_tile(i, key_tile, bitmap, bits);
        if (fill == Fill::empty) continue;
        const int64_t rows = p.queries_in(i);
        body(i, rows, hide_inactive(active[i], rows, fill == Fill::partial, bits));
    }
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

// Tiles of a mask: which tiles of 64 queries x 64 keys are not empty, and the bits of partial ones.
//
// A tile is empty (never visited), full (no test inside) or partial (64 words: bit j of word i says whether query i of
// the tile may attend to key j of the tile). Keys beyond the last one count as forbidden, so the last tile is often
// partial.
#pragma once

#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

enum class Fill { empty, partial, full };

REGARD_INLINE int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
REGARD_INLINE int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

// Bits first .. stop - 1, cut to 0 .. 64.
REGARD_INLINE uint64_t bit_range(int64_t first, int64_t stop) {
    first = max_of(first, 0);
    stop = min_of(stop, 64);
    if (stop <= first) return 0;
    return (~(uint64_t)0 >> (64 - (stop - first))) << first;
}

// Up to 64 bools of a row as bits.
REGARD_INLINE uint64_t dense_bits(const uint8_t* row, int64_t stride, int64_t count) {
    uint64_t bits = 0;
    int64_t j = 0;
    if (stride == 0) return row[0] ? bit_range(0, count) : 0;
    if (stride == 1)
        for (; j + 8 <= count; j += 8) {
            uint64_t eight;
            memcpy(&eight, row + j, 8);
            bits |= (eight * 0x0102040810204080u >> 56) << j;  // gathers the lowest bits of 8 bytes
        }
    for (; j < count; ++j) bits |= (uint64_t)(row[j * stride] != 0) << j;
    return bits;
}

// The mask of one head of one entry of the batch.
struct MaskView {
    const Mask* mask;
    int64_t queries, keys;
    int64_t start, stop;       // keys start .. stop - 1 exist and are in the interval
    const int64_t* row_start;  // of this batch and head in the tile map, or null
    const uint8_t* dense;      // of this batch and head, or null

    MaskView(const Problem& p, int64_t batch, int64_t head) : mask(&p.mask), queries(p.queries), keys(p.keys) {
        start = mask->start ? max_of(mask->start[batch], 0) : 0;
        stop = mask->stop ? min_of(mask->stop[batch], keys) : keys;
        row_start = nullptr;
        if (mask->row_start) {
            int64_t b = mask->tile_batch == 1 ? 0 : batch, h = mask->tile_heads == 1 ? 0 : head;
            row_start = mask->row_start + (b * mask->tile_heads + h) * (p.query_tiles() + 1);
        }
        dense = mask->dense ? (const uint8_t*)mask->dense.data + mask->dense.at(batch, head, 0, 0) : nullptr;
    }

    // The key tiles to which a tile of queries may attend by band and interval.
    REGARD_INLINE TileRange key_tile_range(int64_t query_tile) const {
        const int64_t q0 = query_tile * tile, q1 = q0 + count_in_tile(queries, query_tile) - 1;
        return tiles_with(max_of(start, q0 + mask->low), min_of(stop - 1, q1 + mask->high), keys);
    }
    // The query tiles that may attend to a tile of keys by band and interval.
    REGARD_INLINE TileRange query_tile_range(int64_t key_tile) const {
        const int64_t k0 = max_of(key_tile * tile, start), k1 = min_of(key_tile * tile + tile, stop) - 1;
        return k1 < k0 ? TileRange{} : tiles_with(k0 - mask->high, k1 - mask->low, queries);
    }

    // Reads the bits of one tile. `bitmap`: its entry in the tile map, -1 if it is full or there is no map.
    // Bits of queries beyond the last one are arbitrary.
    REGARD_INLINE Fill read_tile(int64_t query_tile, int64_t key_tile, int32_t bitmap, uint64_t bits[64]) const {
        REGARD_ASSERT(key_tile >= 0 && key_tile * tile < keys);
        int64_t q0 = query_tile * tile, k0 = key_tile * tile;
        const int64_t rows = count_in_tile(queries, query_tile);
        int64_t low = mask->low, high = mask->high;
        bool banded = q0 + rows - 1 + low > k0 || q0 + high < k0 + tile - 1;
        if (!banded && start <= k0 && stop >= k0 + tile && bitmap < 0 && !dense) return Fill::full;
        const uint64_t* map = bitmap < 0 ? nullptr : mask->bitmaps + (int64_t)bitmap * tile;
        uint64_t same = dense && mask->dense.stride[2] == 0 ? dense_row(0, k0) : ~(uint64_t)0;
        uint64_t interval = bit_range(start - k0, stop - k0);
        uint64_t any = 0, all = ~(uint64_t)0;
        if (!banded && !map && (!dense || mask->dense.stride[2] == 0)) {  // the same for all queries
            uint64_t word = interval & same;
            for (int64_t i = 0; i < tile; ++i) bits[i] = i < rows ? word : 0;
            return !word ? Fill::empty : ~word ? Fill::partial : Fill::full;
        }
        for (int64_t i = 0; i < rows; ++i) {
            uint64_t word = interval & same & bit_range(q0 + i + low - k0, q0 + i + high - k0 + 1);
            if (map) word &= map[i];
            if (dense && mask->dense.stride[2] != 0 && word) word &= dense_row(q0 + i, k0);
            bits[i] = word;
            any |= word;
            all &= word;
        }
        for (int64_t i = rows; i < tile; ++i) bits[i] = 0;
        if (!any) return Fill::empty;
        return ~all ? Fill::partial : Fill::full;
    }

    REGARD_INLINE uint64_t dense_row(int64_t query, int64_t first_key) const {
        const Array& d = mask->dense;
        return dense_bits(dense + query * d.stride[2] + first_key * d.stride[3], d.stride[3],
                          count_in_tile(keys, first_key / tile));
    }
};

struct KeyTile {
    int64_t index;
    bool is_partial;
    int64_t place;  // of its packed form in PackedKeys
};

// Iterates over the key tiles that a tile of queries may attend to, in ascending order, a few at a time.
class KeyTileIterator {
  public:
    KeyTileIterator(const MaskView& view, int64_t query_tile) : view_(view), query_tile_(query_tile) {
        const TileRange of_query = view.key_tile_range(query_tile);
        next_ = of_query.first, past_ = of_query.past;
        if (view.row_start) {
            entry_ = view.row_start[query_tile];
            entry_stop_ = view.row_start[query_tile + 1];
            while (entry_ < entry_stop_ && view.mask->key_tile[entry_] < next_) ++entry_;
        }
    }

    // Upper bound of the number of tiles.
    REGARD_INLINE int64_t max_tiles() const { return view_.row_start ? entry_stop_ - entry_ : past_ - next_; }

    // Writes up to `limit` tiles to `tiles`, and the bits of the n-th to bits + 64 n. Returns their number; 0 at the
    // end.
    REGARD_INLINE int next(int limit, KeyTile* tiles, uint64_t* bits) {
        int count = 0;
        while (count < limit) {
            int32_t bitmap = -1;
            int64_t index;
            if (view_.row_start) {
                if (entry_ >= entry_stop_ || view_.mask->key_tile[entry_] >= past_) break;
                index = view_.mask->key_tile[entry_];
                bitmap = view_.mask->bitmap[entry_];
                ++entry_;
            } else {
                if (next_ >= past_) break;
                index = next_++;
            }
            Fill fill = view_.read_tile(query_tile_, index, bitmap, bits + 64 * count);
            if (fill == Fill::empty) continue;
            tiles[count].index = tiles[count].place = index;
            tiles[count].is_partial = fill == Fill::partial;
            ++count;
        }
        return count;
    }

  private:
    const MaskView& view_;
    int64_t query_tile_, next_, past_, entry_ = 0, entry_stop_ = 0;
};

// Looks up a (query tile, key tile) in the tile map: its bitmap, -1 for full, -2 for empty. Binary search in the row.
REGARD_INLINE int32_t find_bitmap(const MaskView& view, int64_t query_tile, int64_t key_tile) {
    if (!view.row_start) return -1;
    int64_t first = view.row_start[query_tile], stop = view.row_start[query_tile + 1];
    while (first < stop) {
        int64_t middle = first + (stop - first) / 2;
        if (view.mask->key_tile[middle] < key_tile)
            first = middle + 1;
        else
            stop = middle;
    }
    if (first < view.row_start[query_tile + 1] && view.mask->key_tile[first] == key_tile)
        return view.mask->bitmap[first];
    return -2;
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

// Cells of attention over sorted tokens: which query may attend to which key, for each listed pair of tiles.
//
// Tokens are sorted by bucket, and a *place* is an index among the sorted ones. A place may be empty. A query attends to a
// key if both places hold a token, and
//
//     the key is not later than allowed, nor the query's own token;
//     no earlier round has both in one bucket, so that every pair counts once;
//     both are in one chunk of places, or the key in the chunk before, cyclically, if there are chunks.
//
// A task computes the cells of one tile of queries. It uses no vector instructions of its own: the loops over 64 keys are
// those that compilers vectorize for any processor.
#include "drivers.h"
#include "parallel.h"

namespace regard {

namespace {

// The keys of one tile: their tokens, and what is compared with each query.
struct TileOfKeys {
    int32_t token[tile];
    int64_t chunk[tile];
};

uint64_t pack_bits(const uint8_t* flags) {
    uint64_t word = 0;
    for (int j = 0; j < tile; ++j) word |= static_cast<uint64_t>(flags[j]) << j;
    return word;
}

void fill_tile(const BucketArguments& given, int64_t group, int64_t query_tile, int64_t entry, int32_t* earlier) {
    const int64_t first_key = given.key_tile[entry] * tile;
    const int32_t* key_token = given.key_token + group * given.key_places;
    const int32_t* query_token = given.query_token + group * given.query_places;
    const int64_t chunks = given.chunk ? ceil_div(given.key_places, given.chunk) : 1;
    TileOfKeys keys;
    for (int64_t j = 0; j < tile; ++j) {
        const int64_t place = first_key + j;
        keys.token[j] = place < given.key_places ? key_token[place] : -1;
        keys.chunk[j] = given.chunk ? place / given.chunk : 0;
        for (int64_t round = 0; round < given.round; ++round)
            earlier[round * tile + j] =
                keys.token[j] < 0 ? -1 : given.key_buckets[(group * given.keys + keys.token[j]) * given.rounds + round];
    }
    uint64_t* words = given.bitmaps + entry * tile;
    for (int64_t i = 0; i < tile; ++i) {
        const int64_t place = query_tile * tile + i;
        const int32_t token = place < given.query_places ? query_token[place] : -1;
        words[i] = 0;
        if (token < 0) continue;
        const int64_t last = token + given.high, own = given.except_self ? token + given.offset : -1;
        uint8_t flags[tile];
        for (int j = 0; j < tile; ++j)
            flags[j] = (keys.token[j] >= 0) & (keys.token[j] <= last) & (keys.token[j] != own);
        for (int64_t round = 0; round < given.round; ++round) {
            const int32_t bucket = given.query_buckets[(group * given.queries + token) * given.rounds + round];
            const int32_t* of_keys = earlier + round * tile;
            for (int j = 0; j < tile; ++j) flags[j] &= of_keys[j] != bucket;
        }
        if (given.chunk) {
            const int64_t chunk = place / given.chunk, before = chunk ? chunk - 1 : chunks - 1;
            for (int j = 0; j < tile; ++j) flags[j] &= (keys.chunk[j] == chunk) | (keys.chunk[j] == before);
        }
        words[i] = pack_bits(flags);
    }
}

}  // namespace

void bucket_cells(const BucketArguments& given, int threads) {
    const int64_t query_tiles = ceil_div(given.query_places, tile);
    const Scratch scratch = Scratch::of<int32_t>({threads, given.rounds, tile});
    parallel_for(given.groups * query_tiles, threads, [&](int64_t task, int thread) {
        const int64_t group = task / query_tiles, query_tile = task % query_tiles;
        const int64_t* row = given.row_start + group * (query_tiles + 1) + query_tile;
        for (int64_t entry = row[0]; entry < row[1]; ++entry)
            fill_tile(given, group, query_tile, entry, scratch.as<int32_t>() + thread * given.rounds * tile);
    });
}

}  // namespace regard

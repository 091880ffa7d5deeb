// Cells of attention over sorted tokens: which query may attend to which key, for each listed pair of tiles.
//
// Tokens are sorted by bucket, and a *place* is an index among the sorted ones. A place may be empty. A query attends to a
// key if both places hold a token, and
//
//     the key is not later than allowed, nor the query's own token;
//     no earlier round has both in one bucket, so that every pair counts once;
//     both are in one chunk of places, or the key in the chunk before, if there are chunks. Before the first chunk of a
//     round is the last one that the round before it uses, cyclically.
//
// Bucket -1 is none. A task computes the cells of one tile of queries. The keys of a tile are entered in tables, by bucket and by token, so
// that the cells of a query are a few words, not 64 comparisons; only a causal bound inside a tile is compared.
#include <algorithm>

#include "drivers.h"
#include "runtime/parallel.h"

namespace regard {

namespace {

// Tables of one thread, all 0 between tiles: the keys of each bucket, in each earlier round, and of each token.
struct KeyTables {
    uint64_t* by_bucket;  // (round, bucket + 1)
    uint64_t* by_token;   // (token): with chunks, a token may be in a tile once for each round

    uint64_t& keys(const BucketArguments& given, int64_t round, const int32_t* buckets, int64_t token) const {
        return by_bucket[round * (given.buckets + 1) + buckets[token * given.rounds + round] + 1];
    }
};

// The tile of keys of an entry.
struct KeysOfTile {
    int32_t token[tile];
    uint64_t present = 0;
    int32_t first = INT32_MAX, last = -1;  // the smallest and the largest token
    int64_t first_place;

    KeysOfTile(const BucketArguments& given, int64_t group, int64_t key_tile) : first_place(key_tile * tile) {
        const int32_t* all = given.key_token + group * given.key_places;
        for (int64_t j = 0; j < tile; ++j) {
            token[j] = first_place + j < given.key_places ? all[first_place + j] : -1;
            if (token[j] < 0) continue;
            present |= uint64_t{1} << j;
            first = std::min(first, token[j]);
            last = std::max(last, token[j]);
        }
    }
    template <class Take>
    void for_each(Take take) const {
        for (uint64_t left = present; left; left &= left - 1) take(__builtin_ctzll(left));
    }
    // The keys that are not later than `limit`.
    uint64_t up_to(int64_t limit) const {
        if (last <= limit) return present;
        if (first > limit) return 0;
        const auto bound = static_cast<int32_t>(limit);
        uint32_t low = 0, high = 0;
        for (int j = 0; j < 32; ++j) {
            low |= static_cast<uint32_t>(token[j] <= bound) << j;
            high |= static_cast<uint32_t>(token[j + 32] <= bound) << j;
        }
        return present & (static_cast<uint64_t>(high) << 32 | low);
    }
    // The keys at the places first .. stop - 1.
    uint64_t at_places(int64_t from, int64_t stop) const {
        from = std::clamp<int64_t>(from - first_place, 0, tile);
        stop = std::clamp<int64_t>(stop - first_place, 0, tile);
        return from >= stop ? 0 : (~uint64_t{0} >> (tile - (stop - from))) << from;
    }
};

// Index of the chunk before one. What lies behind the last used chunk of a round is hidden, and must not be met instead.
int64_t chunk_before(const BucketArguments& given, int64_t group, int64_t chunk) {
    const int64_t in_round = given.key_places / given.chunk / given.rounds;
    if (chunk % in_round) return chunk - 1;
    const int64_t round_before = (chunk / in_round + given.rounds - 1) % given.rounds;
    return round_before * in_round + given.last_chunk[group];
}

void fill_tile(const BucketArguments& given, int64_t group, int64_t query_tile, int64_t entry, const KeyTables& tables) {
    const KeysOfTile keys(given, group, given.key_tile[entry]);
    const int32_t* key_buckets = given.key_buckets + group * given.keys * given.rounds;
    const int32_t* query_buckets = given.query_buckets + group * given.queries * given.rounds;
    const int32_t* query_token = given.query_token + group * given.query_places;
    keys.for_each([&](int j) {
        const int32_t token = keys.token[j];
        if (given.except_self) tables.by_token[token] |= uint64_t{1} << j;
        for (int64_t round = 0; round < given.round; ++round)
            tables.keys(given, round, key_buckets, token) |= uint64_t{1} << j;
    });
    uint64_t* words = given.bitmaps + entry * tile;
    for (int64_t i = 0; i < tile; ++i) {
        const int64_t place = query_tile * tile + i;
        const int64_t token = place < given.query_places ? query_token[place] : -1;
        words[i] = 0;
        if (token < 0) continue;
        uint64_t word = keys.up_to(token + given.high);
        if (given.except_self) {
            const int64_t own = token + given.offset;
            if (own >= 0 && own < given.keys) word &= ~tables.by_token[own];
        }
        for (int64_t round = 0; round < given.round; ++round)
            if (query_buckets[token * given.rounds + round] >= 0)
                word &= ~tables.keys(given, round, query_buckets, token);
        if (given.chunk) {
            const int64_t chunk = place / given.chunk, before = chunk_before(given, group, chunk);
            word &= keys.at_places(chunk * given.chunk, (chunk + 1) * given.chunk) |
                    keys.at_places(before * given.chunk, (before + 1) * given.chunk);
        }
        words[i] = word;
    }
    keys.for_each([&](int j) {
        const int32_t token = keys.token[j];
        if (given.except_self) tables.by_token[token] = 0;
        for (int64_t round = 0; round < given.round; ++round)
            tables.keys(given, round, key_buckets, token) = 0;
    });
}

}  // namespace

void bucket_cells(const BucketArguments& given, int threads) {
    const int64_t query_tiles = ceil_div(given.query_places, tile);
    const int64_t of_buckets = given.round * (given.buckets + 1), of_tokens = given.except_self ? given.keys : 0;
    const Scratch buckets = Scratch::of<uint64_t>({threads, of_buckets});
    const Scratch tokens = Scratch::of<uint64_t>({threads, of_tokens});
    std::fill_n(buckets.as<uint64_t>(), threads * of_buckets, 0);
    std::fill_n(tokens.as<uint64_t>(), threads * of_tokens, 0);
    parallel_for(given.groups * query_tiles, threads, [&](int64_t task, int thread) {
        const int64_t group = task / query_tiles, query_tile = task % query_tiles;
        const int64_t* row = given.row_start + group * (query_tiles + 1) + query_tile;
        const KeyTables tables = {buckets.as<uint64_t>() + thread * of_buckets,
                                  tokens.as<uint64_t>() + thread * of_tokens};
        for (int64_t entry = row[0]; entry < row[1]; ++entry) fill_tile(given, group, query_tile, entry, tables);
    });
}

}  // namespace regard

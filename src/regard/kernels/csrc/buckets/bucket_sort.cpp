// The order of tokens by bucket, and which tiles of queries and keys share one. Tokens are sorted by counting: each
// group in each round is one task, which visits its tokens in order, so that the sort is stable.
#include <algorithm>
#include <atomic>

#include "buckets/sorted_tokens.h"
#include "runtime/parallel.h"

namespace regard {

namespace {

// The index of a token's count: its bucket, or one of the two behind the last bucket.
int64_t index_of(const BucketCounts& of, const int32_t* codes, int64_t round) {
    if (codes[round] >= 0) return codes[round];
    const bool hidden = std::all_of(codes, codes + of.rounds, [](int32_t code) { return code < 0; });
    return of.buckets + (hidden ? 1 : 0);
}

}  // namespace

void count_buckets(const BucketCounts& given, int threads) {
    parallel_for(given.groups * given.rounds, threads, [&](int64_t task, int) {
        const int64_t group = task / given.rounds, round = task % given.rounds;
        int64_t* sizes = given.sizes + task * (given.buckets + 2);
        std::fill_n(sizes, given.buckets + 2, 0);
        const int32_t* codes = given.buckets_of + group * given.tokens * given.rounds;
        for (int64_t token = 0; token < given.tokens; ++token, codes += given.rounds)
            ++sizes[index_of(given, codes, round)];
    });
}

bool sort_by_bucket(const BucketPlaces& given, int threads) {
    const BucketCounts& of = given.of;
    const int64_t counts = of.buckets + 2;
    const Scratch next = Scratch::of<int64_t>({of.groups, of.rounds, counts});
    std::copy_n(given.start, of.groups * of.rounds * counts, next.as<int64_t>());
    std::fill_n(given.token, of.groups * given.places, -1);
    std::atomic<bool> fits{true};
    parallel_for(of.groups * of.rounds, threads, [&](int64_t task, int) {
        const int64_t group = task / of.rounds, round = task % of.rounds;
        int64_t* next_place = next.as<int64_t>() + task * counts;
        int32_t *places = given.place + task * of.tokens, *tokens = given.token + group * given.places;
        const int32_t* codes = of.buckets_of + group * of.tokens * of.rounds;
        for (int64_t token = 0; token < of.tokens; ++token, codes += of.rounds) {
            int64_t& next_of = next_place[index_of(of, codes, round)];
            if (next_of < 0) {
                places[token] = -1;
            } else if (next_of >= given.places) {
                fits = false;
                places[token] = -1;
            } else {
                places[token] = static_cast<int32_t>(next_of);
                tokens[next_of++] = static_cast<int32_t>(token);
            }
        }
    });
    return fits;
}

int64_t list_bucket_tiles(const BucketTiles& given) {
    int64_t entries = 0;
    for (int64_t group = 0; group < given.groups; ++group) {
        const int32_t* queries = given.query_token + group * given.query_tiles * tile;
        const int32_t* keys = given.key_token + group * given.key_tiles * tile;
        const int64_t* query_start = given.query_start + group * (given.buckets + 1);
        const int64_t* key_start = given.key_start + group * (given.buckets + 1);
        int64_t* row_start = given.row_start + group * (given.query_tiles + 1);
        int64_t bucket = 0;
        for (int64_t query_tile = 0; query_tile < given.query_tiles; ++query_tile) {
            row_start[query_tile] = entries;
            while (bucket < given.buckets && query_start[bucket + 1] <= query_tile) ++bucket;
            if (bucket == given.buckets) continue;  // behind the last bucket
            const int32_t* of_tile = queries + query_tile * tile;
            const int64_t latest = *std::max_element(of_tile, of_tile + tile) + given.high;
            for (int64_t key_tile = key_start[bucket]; key_tile < key_start[bucket + 1]; ++key_tile) {
                if (keys[key_tile * tile] > latest) break;  // tokens of a bucket ascend
                if (entries == given.room) return -1;
                given.key_tile[entries++] = static_cast<int32_t>(key_tile);
            }
        }
        row_start[given.query_tiles] = entries;
    }
    return entries;
}

}  // namespace regard

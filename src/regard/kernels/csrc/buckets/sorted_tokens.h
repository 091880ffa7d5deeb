// Drivers of hash buckets, which the binding calls: the hash of tokens, their order by bucket, and copies between tokens
// and their places. As in drivers.h, they allocate scratch memory, split the work into tasks, and write every element of
// their results; their arguments must be valid.
#pragma once

#include "tiles/problem.h"

namespace regard {

// The bucket of each token in each round (see token_hash.h).
struct HashArguments {
    Array tokens;                         // (batch, heads, length, head_dim), float32, with contiguous rows
    const float* rotations = nullptr;     // (heads, rounds, head_dim, columns), contiguous
    const int64_t* factors = nullptr;     // even, and half their sum is `columns`
    int64_t factor_count = 0;
    Array buckets;                        // (batch, heads, length, rounds), int64, written
    int64_t rounds = 0, columns = 0, head_dim = 0;
};
void hash_tokens(const HashArguments& given, int threads);

// A counting sort of tokens by bucket, stable by token, for each of `groups` heads and each round. Of tokens without a
// bucket, -1, those without one in any round are counted apart, behind the others.
struct BucketCounts {
    const int32_t* buckets_of = nullptr;  // (groups, tokens, rounds), contiguous
    int64_t groups = 0, tokens = 0, rounds = 0;
    int64_t buckets = 0;                  // above all bucket numbers
    int64_t* sizes = nullptr;             // (groups, rounds, buckets + 2), written by count_buckets
};
void count_buckets(const BucketCounts& given, int threads);

struct BucketPlaces {
    BucketCounts of;                      // its sizes are not read
    const int64_t* start = nullptr;       // (groups, rounds, buckets + 2): the first place of each bucket, -1: none
    int32_t* token = nullptr;             // (groups, places), written: the token at each place, -1: none
    int32_t* place = nullptr;             // (groups, rounds, tokens), written: the place of each token, -1: none
    int64_t places = 0;
};
// Returns false if a place is not below `places`.
bool sort_by_bucket(const BucketPlaces& given, int threads);

// The tiles of keys that share a bucket with each tile of queries, where each bucket begins at a tile.
struct BucketTiles {
    const int32_t *query_token = nullptr, *key_token = nullptr;    // (groups, places)
    const int64_t *query_start = nullptr, *key_start = nullptr;    // (groups, buckets + 1): the first tile of each bucket
    int64_t groups = 0, query_tiles = 0, key_tiles = 0, buckets = 0;
    int64_t high = unbounded_high;        // of key - query, in indices of tokens
    int64_t* row_start = nullptr;         // (groups, query_tiles + 1), written
    int32_t* key_tile = nullptr;          // (room), written
    int64_t room = 0;
};
// Returns the number of entries; -1 if there are more than `room`.
int64_t list_bucket_tiles(const BucketTiles& given);

// Rows divided as keys are (see sorted_rows.h): both (batch, heads, tokens, size), with contiguous rows.
struct DividedRows {
    Array rows, divided;
};
void divide_rows(const DividedRows& given, int threads);

// What the backward pass of attention needs at places, besides the gradients of outputs. Arrays (batch, heads, ..) have
// contiguous rows; token and place are indices, -1: none.
struct SortedGradients {
    Array grad_output, output;            // (batch, heads, tokens, size)
    Array normalizer;                     // (batch, heads, tokens, 2)
    Array sorted_normalizer;              // (batch, heads, places, 2), written
    Array grad_lse;                       // (1, batch, heads, places), written: -dO . o, 0 where a row takes no part
    const int32_t* token = nullptr;
};
void sort_gradients(const SortedGradients& given, int threads);

// Results at the places of a token, in one or more rounds, merged into one softmax (see sorted_rows.h).
struct MergedRounds {
    Array sorted, sorted_normalizer;      // (batch, heads, places, size) and (.., 2)
    Array output, normalizer;             // (batch, heads, tokens, size) and (.., 2), written
    const int32_t* place = nullptr;       // (batch, heads, rounds, tokens)
    int64_t rounds = 0;
    double factor = 0;                    // scale log2 e
    bool first = false, last = false;     // whether earlier rounds, and later ones, are merged by other calls
};
void merge_rounds(const MergedRounds& given, int threads);

// Adds the rows at the places of a token to `into`, or writes their sum.
struct AddedRows {
    Array sorted;                         // (batch, heads, places, size)
    Array into;                           // (batch, heads, tokens, size)
    Array divided;                        // rows (batch, heads, tokens, size) that were divided, whose gradients are
                                          // added, of those of the quotients; or absent
    const int32_t* place = nullptr;       // (batch, heads, rounds, tokens)
    int64_t rounds = 0;
    bool first = false;                   // whether `into` is written, not added to
};
void add_rows(const AddedRows& given, int threads);

}  // namespace regard

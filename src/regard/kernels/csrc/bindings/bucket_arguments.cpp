// The arguments of the cells of buckets.
#include "bindings/arguments.h"

#include <algorithm>
#include <string>

#include "bindings/argument_checks.h"

namespace nb = nanobind;

namespace regard {

BucketArguments Call::read_buckets(nb::handle query_token, nb::handle key_token, nb::handle query_buckets,
                                   nb::handle key_buckets, nb::handle row_start, nb::handle key_tile, nb::handle bitmaps,
                                   int64_t round, int64_t buckets, int64_t chunk, nb::handle last_chunk) {
    BucketArguments given;
    const Array places = take(query_token, "query_token"), of_queries = take(query_buckets, "query_buckets");
    given.groups = places.shape[2];
    given.query_places = places.shape[3];
    given.key_places = take(key_token, "key_token").shape[3];
    given.queries = of_queries.shape[2];
    given.keys = take(key_buckets, "key_buckets").shape[2];
    given.rounds = of_queries.shape[3];
    given.round = round;
    given.buckets = buckets;
    given.chunk = chunk;
    require(given.query_places <= max_length && given.key_places <= max_length, "query_token and key_token: too long");
    require(round >= 0 && round < std::max<int64_t>(given.rounds, 1), "earlier: expected fewer than all rounds");
    require(chunk >= 0 && (chunk == 0 || (given.rounds > 0 && given.key_places % given.rounds == 0 &&
                                          given.key_places / given.rounds % chunk == 0)),
            "chunk: expected a divisor of the key places of a round");
    require(buckets >= 0 && buckets < INT32_MAX, "buckets: it is out of range");
    const int64_t query_tiles = ceil_div(given.query_places, tile), key_tiles = ceil_div(given.key_places, tile);
    check_countable({given.groups, given.query_places, given.rounds});
    check_countable({given.groups, query_tiles, key_tiles});
    given.query_token = copy_indices(query_token, "query_token", {given.groups, given.query_places}, given.queries);
    given.key_token = copy_indices(key_token, "key_token", {given.groups, given.key_places}, given.keys);
    check_countable({round, buckets});
    const auto read_codes = [&](nb::handle object, const char* name, int64_t tokens) {
        const Array codes = read_copy(object, name, {given.groups, tokens, given.rounds}, Dtype::int32);
        const auto* copied = static_cast<const int32_t*>(codes.data);
        for (int64_t i = 0; round > 0 && i < given.groups * tokens * given.rounds; ++i) {
            if (copied[i] < -1 || copied[i] >= buckets)
                throw_value_error(std::string(name) + ": a bucket is out of range");
        }
        return copied;
    };
    if (chunk > 0) {
        const Array last = read_copy(last_chunk, "last_chunk", {given.groups}, Dtype::int64);
        given.last_chunk = static_cast<const int64_t*>(last.data);
        const int64_t in_round = std::max<int64_t>(given.key_places / given.rounds / chunk, 1);
        for (int64_t group = 0; group < given.groups; ++group)
            require(given.last_chunk[group] >= 0 && given.last_chunk[group] < in_round,
                    "last_chunk: it is not a chunk of a round");
    }
    given.query_buckets = read_codes(query_buckets, "query_buckets", given.queries);
    given.key_buckets = read_codes(key_buckets, "key_buckets", given.keys);
    const int64_t entries = take(key_tile, "key_tile").shape[3];
    const Array rows = read_copy(row_start, "row_start", {given.groups, query_tiles + 1}, Dtype::int64);
    const Array tiles = read_copy(key_tile, "key_tile", {entries}, Dtype::int32);
    given.row_start = static_cast<const int64_t*>(rows.data);
    given.key_tile = static_cast<const int32_t*>(tiles.data);
    given.bitmaps =
        static_cast<uint64_t*>(write_contiguous(bitmaps, "bitmaps", {entries, tile}, Dtype::int64).data);
    for (int64_t group = 0; group < given.groups; ++group) {
        const int64_t* row = given.row_start + group * (query_tiles + 1);
        require(row[0] >= 0 && row[query_tiles] <= entries, "row_start: it reaches beyond key_tile");
        for (int64_t line = 0; line < query_tiles; ++line)
            require(row[line] <= row[line + 1], "row_start: expected no falling entries");
    }
    for (int64_t entry = 0; entry < entries; ++entry)
        require(given.key_tile[entry] >= 0 && given.key_tile[entry] < key_tiles,
                "key_tile: it names a tile that is not there");
    return given;
}

}  // namespace regard

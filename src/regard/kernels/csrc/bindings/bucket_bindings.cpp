// Hash buckets in the Python module: hashing, sorting, cells and merging.
#include <algorithm>
#include <string>

#include "bindings/bindings.h"
#include "buckets/bucket_kernels.h"
#include "buckets/sorted_tokens.h"
#include "drivers.h"

namespace regard {
namespace {

constexpr int64_t max_columns = 1 << 16;

void require_rows(const Array& array, const char* name) {
    if (array.shape[3] > 1 && array.stride[3] != 1 && !is_empty(array))
        throw_value_error(std::string(name) + ": expected contiguous rows");
}

Dtype require_wide(const Array& array, const char* name) {
    if (array.dtype != Dtype::float32 && array.dtype != Dtype::float64)
        throw_value_error(std::string(name) + ": expected float32 or float64");
    require_rows(array, name);
    return array.dtype;
}

Array with_rows(const Array& array, const char* name) {
    if (array) require_rows(array, name);
    return array;
}

int64_t clamp_distance(int64_t distance) { return std::clamp(distance, unbounded_low, unbounded_high); }

// Reads tokens at places (groups, places), buckets of tokens (groups, tokens, rounds), and a tile map whose bitmaps
// (entries, 64) are to be written.
BucketArguments read_cells(Call& call, nb::handle query_token, nb::handle key_token, nb::handle query_buckets,
                           nb::handle key_buckets, nb::handle row_start, nb::handle key_tile, nb::handle bitmaps,
                           int64_t round, int64_t buckets, std::optional<int64_t> high, std::optional<int64_t> own,
                           int64_t chunk, nb::handle last_chunk) {
    BucketArguments given;
    given.high = clamp_distance(high.value_or(unbounded_high));
    given.except_self = own.has_value();
    given.offset = clamp_distance(own.value_or(0));
    const Array places = call.take(query_token, "query_token"), of_queries = call.take(query_buckets, "query_buckets");
    given.groups = places.shape[2];
    given.query_places = places.shape[3];
    given.key_places = call.take(key_token, "key_token").shape[3];
    given.queries = of_queries.shape[2];
    given.keys = call.take(key_buckets, "key_buckets").shape[2];
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
    given.query_token = call.copy_indices(query_token, "query_token", {given.groups, given.query_places}, given.queries);
    given.key_token = call.copy_indices(key_token, "key_token", {given.groups, given.key_places}, given.keys);
    check_countable({round, buckets});
    const auto read_codes = [&](nb::handle object, const char* name, int64_t tokens) {
        const auto* copied = call.copy_numbers<int32_t>(object, name, {given.groups, tokens, given.rounds});
        for (int64_t i = 0; round > 0 && i < given.groups * tokens * given.rounds; ++i) {
            if (copied[i] < -1 || copied[i] >= buckets)
                throw_value_error(std::string(name) + ": a bucket is out of range");
        }
        return copied;
    };
    if (chunk > 0) {
        given.last_chunk = call.copy_numbers<int64_t>(last_chunk, "last_chunk", {given.groups});
        const int64_t in_round = std::max<int64_t>(given.key_places / given.rounds / chunk, 1);
        for (int64_t group = 0; group < given.groups; ++group)
            require(given.last_chunk[group] >= 0 && given.last_chunk[group] < in_round,
                    "last_chunk: it is not a chunk of a round");
    }
    given.query_buckets = read_codes(query_buckets, "query_buckets", given.queries);
    given.key_buckets = read_codes(key_buckets, "key_buckets", given.keys);
    const int64_t entries = call.take(key_tile, "key_tile").shape[3];
    given.row_start = call.copy_numbers<int64_t>(row_start, "row_start", {given.groups, query_tiles + 1});
    given.key_tile = call.copy_numbers<int32_t>(key_tile, "key_tile", {entries});
    given.bitmaps = call.write_numbers<uint64_t>(bitmaps, "bitmaps", {entries, tile});
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

// Reads the arguments of hash buckets (see sorted_tokens.h).
HashArguments read_hash(Call& call, nb::handle tokens, nb::handle rotations, nb::handle factors, nb::handle buckets) {
    HashArguments given;
    given.tokens = with_rows(call.take(tokens, "tokens"), "tokens");
    check_dtype(given.tokens, "tokens", Dtype::float32);
    const int64_t batch = given.tokens.shape[0], heads = given.tokens.shape[1], length = given.tokens.shape[2];
    given.head_dim = given.tokens.shape[3];
    const Array turned = call.take(rotations, "rotations");
    given.rounds = turned.shape[1];
    given.columns = turned.shape[3];
    check_countable({batch, heads, length, std::max(given.rounds, given.head_dim)});
    check_countable({heads, given.rounds, given.head_dim, given.columns});
    require(given.columns <= max_columns && given.head_dim <= max_columns, "rotations: they are too large");
    given.rotations =
        call.copy_numbers<float>(rotations, "rotations", {heads, given.rounds, given.head_dim, given.columns});
    given.factor_count = call.take(factors, "factors").shape[3];
    given.factors = call.copy_numbers<int64_t>(factors, "factors", {given.factor_count});
    int64_t columns = 0, product = 1;
    for (int64_t f = 0; f < given.factor_count; ++f) {
        const int64_t factor = given.factors[f];
        require(factor >= 2 && factor % 2 == 0 && factor <= 2 * max_columns, "factors: expected even numbers");
        require(!__builtin_mul_overflow(product, factor, &product), "factors: their product is too large");
        columns += factor / 2;
    }
    require(columns == given.columns, "factors: expected half as many columns of rotations as their sum");
    given.buckets = call.write(buckets, "buckets", {batch, heads, length, given.rounds}, Dtype::int64);
    return given;
}

BucketCounts read_codes_of(Call& call, nb::handle codes, int64_t buckets) {
    BucketCounts given;
    const Array shape = call.take(codes, "codes");
    given.groups = shape.shape[1], given.tokens = shape.shape[2], given.rounds = shape.shape[3];
    given.buckets = buckets;
    require(buckets >= 0 && buckets < INT32_MAX - 2, "sizes: there are too many buckets, or none");
    require(given.tokens <= INT32_MAX, "codes: there are too many tokens");
    check_countable({given.groups, given.tokens, given.rounds});
    check_countable({given.groups, given.rounds, buckets + 2});
    given.buckets_of = call.copy_indices(codes, "codes", {given.groups, given.tokens, given.rounds}, buckets);
    return given;
}

BucketCounts read_sizes(Call& call, nb::handle codes, nb::handle sizes) {
    BucketCounts given = read_codes_of(call, codes, call.take(sizes, "sizes").shape[3] - 2);
    given.sizes = call.write_numbers<int64_t>(sizes, "sizes", {given.groups, given.rounds, given.buckets + 2});
    return given;
}

BucketPlaces read_places(Call& call, nb::handle codes, nb::handle start, nb::handle token, nb::handle place) {
    BucketPlaces given;
    given.of = read_codes_of(call, codes, call.take(start, "start").shape[3] - 2);
    const BucketCounts& of = given.of;
    given.start = call.copy_numbers<int64_t>(start, "start", {of.groups, of.rounds, of.buckets + 2});
    given.places = call.take(token, "token").shape[3];
    require(given.places <= INT32_MAX, "token: there are too many places");
    given.token = call.write_numbers<int32_t>(token, "token", {of.groups, given.places});
    given.place = call.write_numbers<int32_t>(place, "place", {of.groups, of.rounds, of.tokens});
    return given;
}

void sort_or_raise(const BucketPlaces& given, int threads) {
    if (!sort_by_bucket(given, threads)) throw_value_error("start: a place is not there");
}

BucketTiles read_tiles(Call& call, nb::handle query_token, nb::handle key_token, nb::handle query_start,
                       nb::handle key_start, nb::handle row_start, nb::handle key_tile) {
    BucketTiles given;
    const Array of_queries = call.take(query_token, "query_token"), of_keys = call.take(key_token, "key_token");
    given.groups = of_queries.shape[2];
    require(of_queries.shape[3] % tile == 0 && of_keys.shape[3] % tile == 0,
            "query_token and key_token: expected whole tiles of places");
    given.query_tiles = of_queries.shape[3] / tile, given.key_tiles = of_keys.shape[3] / tile;
    given.buckets = call.take(query_start, "query_start").shape[3] - 1;
    require(given.buckets >= 0, "query_start: expected one number more than buckets");
    given.query_token = call.copy_indices(query_token, "query_token", {given.groups, given.query_tiles * tile}, INT32_MAX);
    given.key_token = call.copy_indices(key_token, "key_token", {given.groups, given.key_tiles * tile}, INT32_MAX);
    const auto read_starts = [&](nb::handle object, const char* name, int64_t tiles) {
        const int64_t* copied = call.copy_numbers<int64_t>(object, name, {given.groups, given.buckets + 1});
        for (int64_t group = 0; group < given.groups; ++group) {
            const int64_t* starts = copied + group * (given.buckets + 1);
            require(starts[0] >= 0 && starts[given.buckets] <= tiles, "query_start and key_start: a tile is not there");
            require(std::is_sorted(starts, starts + given.buckets + 1),
                    "query_start and key_start: expected no falling numbers");
        }
        return copied;
    };
    given.query_start = read_starts(query_start, "query_start", given.query_tiles);
    given.key_start = read_starts(key_start, "key_start", given.key_tiles);
    given.row_start = call.write_numbers<int64_t>(row_start, "row_start", {given.groups, given.query_tiles + 1});
    given.room = call.take(key_tile, "key_tile").shape[3];
    given.key_tile = call.write_numbers<int32_t>(key_tile, "key_tile", {given.room});
    return given;
}

int64_t list_tiles(nb::handle query_token, nb::handle key_token, nb::handle query_start, nb::handle key_start,
                   nb::handle row_start, nb::handle key_tile, std::optional<int64_t> high) {
    Call call(1);
    BucketTiles given = read_tiles(call, query_token, key_token, query_start, key_start, row_start, key_tile);
    given.high = clamp_distance(high.value_or(unbounded_high));
    const nb::gil_scoped_release unlocked;
    const int64_t entries = list_bucket_tiles(given);
    if (entries < 0) throw_value_error("key_tile: it has no room for all entries");
    return entries;
}

DividedRows read_divided_rows(Call& call, nb::handle rows, nb::handle divided) {
    DividedRows given;
    given.rows = with_rows(call.take(rows, "rows"), "rows");
    const Dtype dtype = require_wide(given.rows, "rows");
    const int64_t* shape = given.rows.shape;
    given.divided = with_rows(call.write(divided, "divided", {shape[0], shape[1], shape[2], shape[3]}, dtype), "divided");
    return given;
}

SortedGradients read_sorted_gradients(Call& call, nb::handle grad_output, nb::handle output, nb::handle normalizer,
                                      nb::handle token, nb::handle sorted_normalizer, nb::handle grad_lse) {
    SortedGradients given;
    given.output = call.take(output, "output");
    const Dtype dtype = require_wide(given.output, "output");
    const int64_t batch = given.output.shape[0], heads = given.output.shape[1], tokens = given.output.shape[2];
    const int64_t size = given.output.shape[3], places = call.take(token, "token").shape[3];
    check_countable({batch, heads, places, size});
    given.grad_output =
        with_rows(call.read(grad_output, "grad_output", {batch, heads, tokens, size}, dtype), "grad_output");
    given.normalizer = with_rows(call.read(normalizer, "normalizer", {batch, heads, tokens, 2}, dtype), "normalizer");
    given.token = call.copy_indices(token, "token", {batch * heads, places}, tokens);
    given.sorted_normalizer = with_rows(
        call.write(sorted_normalizer, "sorted_normalizer", {batch, heads, places, 2}, dtype), "sorted_normalizer");
    given.grad_lse = call.write(grad_lse, "grad_lse", {batch, heads, places}, dtype);
    return given;
}

MergedRounds read_merged_rounds(Call& call, nb::handle sorted, nb::handle sorted_normalizer, nb::handle place,
                                nb::handle output, nb::handle normalizer, double factor, bool first, bool last) {
    MergedRounds given;
    given.factor = factor, given.first = first, given.last = last;
    given.output = call.take(output, "output");
    const Dtype dtype = require_wide(given.output, "output");
    const int64_t batch = given.output.shape[0], heads = given.output.shape[1], tokens = given.output.shape[2];
    const int64_t size = given.output.shape[3], places = call.take(sorted, "sorted_rows").shape[2];
    given.rounds = call.take(place, "place").shape[2];
    check_countable({batch, heads, given.rounds, tokens});
    given.sorted = with_rows(call.read(sorted, "sorted_rows", {batch, heads, places, size}, dtype), "sorted_rows");
    given.sorted_normalizer = with_rows(
        call.read(sorted_normalizer, "sorted_normalizer", {batch, heads, places, 2}, dtype), "sorted_normalizer");
    given.place = call.copy_indices(place, "place", {batch * heads, given.rounds, tokens}, places);
    given.output = call.write(output, "output", {batch, heads, tokens, size}, dtype);
    given.normalizer = with_rows(call.write(normalizer, "normalizer", {batch, heads, tokens, 2}, dtype), "normalizer");
    return given;
}

AddedRows read_added_rows(Call& call, nb::handle sorted, nb::handle place, nb::handle into, nb::handle divided,
                          bool first) {
    AddedRows given;
    given.first = first;
    given.into = call.take(into, "into");
    const Dtype dtype = require_wide(given.into, "into");
    const int64_t batch = given.into.shape[0], heads = given.into.shape[1], tokens = given.into.shape[2];
    const int64_t size = given.into.shape[3], places = call.take(sorted, "sorted_rows").shape[2];
    require(size <= max_row, "into: its rows are too long");
    given.rounds = call.take(place, "place").shape[2];
    check_countable({batch, heads, given.rounds, tokens});
    given.sorted = with_rows(call.read(sorted, "sorted_rows", {batch, heads, places, size}, dtype), "sorted_rows");
    given.place = call.copy_indices(place, "place", {batch * heads, given.rounds, tokens}, places);
    given.into = call.write(into, "into", {batch, heads, tokens, size}, dtype);
    given.divided =
        with_rows(call.read(divided, "divided", {batch, heads, tokens, size}, dtype, accept), "divided");
    return given;
}

}  // namespace

void bind_buckets(nb::module_& module) {
    module.def("bucket_cells", operation(read_cells, bucket_cells), "query_token"_a, "key_token"_a, "query_buckets"_a,
               "key_buckets"_a, "row_start"_a, "key_tile"_a, "bitmaps"_a, nb::kw_only(), "earlier"_a = 0,
               "buckets"_a = 0, "high"_a = nb::none(), "own"_a = nb::none(), "chunk"_a = 0,
               "last_chunk"_a.none() = nb::none(), "threads"_a = 1,
               "Which queries may attend to which keys, over tokens that are sorted by bucket.");
    module.def("hash_tokens", operation(read_hash, hash_tokens), "tokens"_a, "rotations"_a, "factors"_a, "buckets"_a,
               nb::kw_only(), "threads"_a = 1, "The hash bucket of each token in each round.");
    module.def("count_buckets", operation(read_sizes, count_buckets), "codes"_a, "sizes"_a, nb::kw_only(),
               "threads"_a = 1, "The number of tokens of each bucket.");
    module.def("sort_by_bucket", operation(read_places, sort_or_raise), "codes"_a, "start"_a, "token"_a, "place"_a,
               nb::kw_only(), "threads"_a = 1, "Tokens sorted by bucket, in their order inside each.");
    module.def("list_bucket_tiles", &list_tiles, "query_token"_a, "key_token"_a, "query_start"_a, "key_start"_a,
               "row_start"_a, "key_tile"_a, nb::kw_only(), "high"_a = nb::none(),
               "The tiles of keys that share a bucket with each tile of queries.");
    module.def("divide_rows", operation(read_divided_rows, divide_rows), "rows"_a, "divided"_a, nb::kw_only(),
               "threads"_a = 1, "Divides rows as keys are.");
    module.def("sort_gradients", operation(read_sorted_gradients, sort_gradients), "grad_output"_a, "output"_a,
               "normalizer"_a, "token"_a, "sorted_normalizer"_a, "grad_lse"_a, nb::kw_only(), "threads"_a = 1,
               "Copies to places what the backward pass needs of the results.");
    module.def("merge_rounds", operation(read_merged_rounds, merge_rounds), "sorted_rows"_a, "sorted_normalizer"_a,
               "place"_a, "output"_a, "normalizer"_a, nb::kw_only(), "factor"_a = 1.0, "first"_a = true,
               "last"_a = true, "threads"_a = 1, "Merges results of rounds into one softmax.");
    module.def("add_rows", operation(read_added_rows, add_rows), "sorted_rows"_a, "place"_a, "into"_a, nb::kw_only(),
               "divided"_a.none() = nb::none(), "first"_a = true, "threads"_a = 1,
               "Adds rows at the places of each token.");
}

}  // namespace regard

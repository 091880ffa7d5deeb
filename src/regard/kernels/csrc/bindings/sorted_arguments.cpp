// The arguments of hash buckets: hashes, sorts, and copies between tokens and their places.
#include <algorithm>
#include <string>

#include "bindings/argument_checks.h"
#include "bindings/arguments.h"
#include "buckets/bucket_kernels.h"

namespace nb = nanobind;

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

}  // namespace

const int32_t* Call::copy_indices(nb::handle object, const char* name, Shape shape, int64_t stop) {
    const Array copied = read_copy(object, name, shape, Dtype::int32);
    const auto* indices = static_cast<const int32_t*>(copied.data);
    const int64_t count = copied.shape[0] * copied.shape[1] * copied.shape[2] * copied.shape[3];
    for (int64_t i = 0; i < count; ++i) {
        if (indices[i] < -1 || indices[i] >= stop)
            throw_value_error(std::string(name) + ": an index is out of range");
    }
    return indices;
}

HashArguments Call::read_hash(nb::handle tokens, nb::handle rotations, nb::handle factors, nb::handle buckets) {
    HashArguments given;
    given.tokens = with_rows(take(tokens, "tokens"), "tokens");
    check_dtype(given.tokens, "tokens", Dtype::float32);
    const int64_t batch = given.tokens.shape[0], heads = given.tokens.shape[1], length = given.tokens.shape[2];
    given.head_dim = given.tokens.shape[3];
    const Array turned = take(rotations, "rotations");
    given.rounds = turned.shape[1];
    given.columns = turned.shape[3];
    check_countable({batch, heads, length, std::max(given.rounds, given.head_dim)});
    check_countable({heads, given.rounds, given.head_dim, given.columns});
    require(given.columns <= max_columns && given.head_dim <= max_columns, "rotations: they are too large");
    given.rotations = static_cast<const float*>(
        read_copy(rotations, "rotations", {heads, given.rounds, given.head_dim, given.columns}, Dtype::float32).data);
    const Array sizes = take(factors, "factors");
    const Array copied = read_copy(factors, "factors", {sizes.shape[3]}, Dtype::int64);
    given.factors = static_cast<const int64_t*>(copied.data);
    given.factor_count = copied.shape[3];
    int64_t columns = 0, product = 1;
    for (int64_t f = 0; f < given.factor_count; ++f) {
        const int64_t factor = given.factors[f];
        require(factor >= 2 && factor % 2 == 0 && factor <= 2 * max_columns, "factors: expected even numbers");
        require(!__builtin_mul_overflow(product, factor, &product), "factors: their product is too large");
        columns += factor / 2;
    }
    require(columns == given.columns, "factors: expected half as many columns of rotations as their sum");
    given.buckets = write(buckets, "buckets", {batch, heads, length, given.rounds}, Dtype::int64);
    return given;
}

BucketCounts Call::read_bucket_counts(nb::handle codes, int64_t buckets) {
    BucketCounts given;
    const Array shape = take(codes, "codes");
    given.groups = shape.shape[1], given.tokens = shape.shape[2], given.rounds = shape.shape[3];
    given.buckets = buckets;
    require(buckets >= 0 && buckets < INT32_MAX - 2, "sizes: there are too many buckets, or none");
    require(given.tokens <= INT32_MAX, "codes: there are too many tokens");
    check_countable({given.groups, given.tokens, given.rounds});
    check_countable({given.groups, given.rounds, buckets + 2});
    given.buckets_of = copy_indices(codes, "codes", {given.groups, given.tokens, given.rounds}, buckets);
    return given;
}

BucketCounts Call::read_bucket_sizes(nb::handle codes, nb::handle sizes) {
    BucketCounts given = read_bucket_counts(codes, take(sizes, "sizes").shape[3] - 2);
    given.sizes = static_cast<int64_t*>(
        write_contiguous(sizes, "sizes", {given.groups, given.rounds, given.buckets + 2}, Dtype::int64).data);
    return given;
}

BucketPlaces Call::read_bucket_places(nb::handle codes, nb::handle start, nb::handle token, nb::handle place) {
    BucketPlaces given;
    given.of = read_bucket_counts(codes, take(start, "start").shape[3] - 2);
    const BucketCounts& of = given.of;
    given.start = static_cast<const int64_t*>(
        read_copy(start, "start", {of.groups, of.rounds, of.buckets + 2}, Dtype::int64).data);
    given.places = take(token, "token").shape[3];
    require(given.places <= INT32_MAX, "token: there are too many places");
    given.token = static_cast<int32_t*>(
        write_contiguous(token, "token", {of.groups, given.places}, Dtype::int32).data);
    given.place = static_cast<int32_t*>(
        write_contiguous(place, "place", {of.groups, of.rounds, of.tokens}, Dtype::int32).data);
    return given;
}

BucketTiles Call::read_bucket_tiles(nb::handle query_token, nb::handle key_token, nb::handle query_start,
                                    nb::handle key_start, nb::handle row_start, nb::handle key_tile) {
    BucketTiles given;
    const Array of_queries = take(query_token, "query_token"), of_keys = take(key_token, "key_token");
    given.groups = of_queries.shape[2];
    require(of_queries.shape[3] % tile == 0 && of_keys.shape[3] % tile == 0,
            "query_token and key_token: expected whole tiles of places");
    given.query_tiles = of_queries.shape[3] / tile, given.key_tiles = of_keys.shape[3] / tile;
    given.buckets = take(query_start, "query_start").shape[3] - 1;
    require(given.buckets >= 0, "query_start: expected one number more than buckets");
    given.query_token = copy_indices(query_token, "query_token", {given.groups, given.query_tiles * tile}, INT32_MAX);
    given.key_token = copy_indices(key_token, "key_token", {given.groups, given.key_tiles * tile}, INT32_MAX);
    const auto read_starts = [&](nb::handle object, const char* name, int64_t tiles) {
        const Array copied = read_copy(object, name, {given.groups, given.buckets + 1}, Dtype::int64);
        const auto* starts = static_cast<const int64_t*>(copied.data);
        for (int64_t group = 0; group < given.groups; ++group, starts += given.buckets + 1) {
            require(starts[0] >= 0 && starts[given.buckets] <= tiles, "query_start and key_start: a tile is not there");
            require(std::is_sorted(starts, starts + given.buckets + 1),
                    "query_start and key_start: expected no falling numbers");
        }
        return static_cast<const int64_t*>(copied.data);
    };
    given.query_start = read_starts(query_start, "query_start", given.query_tiles);
    given.key_start = read_starts(key_start, "key_start", given.key_tiles);
    given.row_start = static_cast<int64_t*>(
        write_contiguous(row_start, "row_start", {given.groups, given.query_tiles + 1}, Dtype::int64).data);
    given.room = take(key_tile, "key_tile").shape[3];
    given.key_tile = static_cast<int32_t*>(write_contiguous(key_tile, "key_tile", {given.room}, Dtype::int32).data);
    return given;
}

SortedRows Call::read_sorted_rows(nb::handle rows, nb::handle token, nb::handle sorted, nb::handle divided) {
    SortedRows given;
    given.rows = take(rows, "rows");
    const Dtype dtype = require_wide(given.rows, "rows");
    const int64_t batch = given.rows.shape[0], heads = given.rows.shape[1], size = given.rows.shape[3];
    const int64_t places = given.places = take(token, "token").shape[3];
    check_countable({batch, heads, places, size});
    given.token = copy_indices(token, "token", {batch * heads, places}, given.rows.shape[2]);
    require(!sorted.is_none() || !divided.is_none(), "sorted_rows and divided: expected one of them");
    given.sorted = with_rows(write(sorted, "sorted_rows", {batch, heads, places, size}, dtype, None::accept), "sorted_rows");
    given.divided = with_rows(write(divided, "divided", {batch, heads, places, size}, dtype, None::accept), "divided");
    return given;
}

SortedGradients Call::read_sorted_gradients(nb::handle grad_output, nb::handle output, nb::handle normalizer,
                                            nb::handle token, nb::handle sorted, nb::handle sorted_normalizer,
                                            nb::handle grad_lse) {
    SortedGradients given;
    given.output = take(output, "output");
    const Dtype dtype = require_wide(given.output, "output");
    const int64_t batch = given.output.shape[0], heads = given.output.shape[1], tokens = given.output.shape[2];
    const int64_t size = given.output.shape[3], places = take(token, "token").shape[3];
    check_countable({batch, heads, places, size});
    given.grad_output =
        with_rows(read(grad_output, "grad_output", {batch, heads, tokens, size}, dtype), "grad_output");
    given.normalizer = with_rows(read(normalizer, "normalizer", {batch, heads, tokens, 2}, dtype), "normalizer");
    given.token = copy_indices(token, "token", {batch * heads, places}, tokens);
    given.sorted = with_rows(write(sorted, "sorted_rows", {batch, heads, places, size}, dtype), "sorted_rows");
    given.sorted_normalizer = with_rows(
        write(sorted_normalizer, "sorted_normalizer", {batch, heads, places, 2}, dtype), "sorted_normalizer");
    given.grad_lse = write(grad_lse, "grad_lse", {batch, heads, places}, dtype);
    return given;
}

MergedRounds Call::read_merged_rounds(nb::handle sorted, nb::handle sorted_normalizer, nb::handle place,
                                      nb::handle output, nb::handle normalizer) {
    MergedRounds given;
    given.output = take(output, "output");
    const Dtype dtype = require_wide(given.output, "output");
    const int64_t batch = given.output.shape[0], heads = given.output.shape[1], tokens = given.output.shape[2];
    const int64_t size = given.output.shape[3], places = take(sorted, "sorted_rows").shape[2];
    given.rounds = take(place, "place").shape[2];
    check_countable({batch, heads, given.rounds, tokens});
    given.sorted = with_rows(read(sorted, "sorted_rows", {batch, heads, places, size}, dtype), "sorted_rows");
    given.sorted_normalizer = with_rows(
        read(sorted_normalizer, "sorted_normalizer", {batch, heads, places, 2}, dtype), "sorted_normalizer");
    given.place = copy_indices(place, "place", {batch * heads, given.rounds, tokens}, places);
    given.output = write(output, "output", {batch, heads, tokens, size}, dtype);
    given.normalizer = with_rows(write(normalizer, "normalizer", {batch, heads, tokens, 2}, dtype), "normalizer");
    return given;
}

AddedRows Call::read_added_rows(nb::handle sorted, nb::handle place, nb::handle into, nb::handle divided) {
    AddedRows given;
    given.into = take(into, "into");
    const Dtype dtype = require_wide(given.into, "into");
    const int64_t batch = given.into.shape[0], heads = given.into.shape[1], tokens = given.into.shape[2];
    const int64_t size = given.into.shape[3], places = take(sorted, "sorted_rows").shape[2];
    require(size <= max_row, "into: its rows are too long");
    given.rounds = take(place, "place").shape[2];
    check_countable({batch, heads, given.rounds, tokens});
    given.sorted = with_rows(read(sorted, "sorted_rows", {batch, heads, places, size}, dtype), "sorted_rows");
    given.place = copy_indices(place, "place", {batch * heads, given.rounds, tokens}, places);
    given.into = write(into, "into", {batch, heads, tokens, size}, dtype);
    given.divided =
        with_rows(read(divided, "divided", {batch, heads, tokens, size}, dtype, None::accept), "divided");
    return given;
}

}  // namespace regard

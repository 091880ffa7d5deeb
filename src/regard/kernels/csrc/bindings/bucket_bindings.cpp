// Hash buckets in the Python module: hashing, sorting, cells and merging.
#include <algorithm>

#include "bindings/bindings.h"
#include "buckets/sorted_tokens.h"
#include "drivers.h"

namespace regard {
namespace {

void bind_cells(nb::module_& module) {
    module.def(
        "bucket_cells",
        [](nb::handle query_token, nb::handle key_token, nb::handle query_buckets, nb::handle key_buckets,
           nb::handle row_start, nb::handle key_tile, nb::handle bitmaps, int64_t round, int64_t buckets,
           std::optional<int64_t> high, std::optional<int64_t> own, int64_t chunk, nb::handle last_chunk, int threads) {
            Options options;
            options.threads = threads;
            Call call(options);
            BucketArguments given = call.read_buckets(query_token, key_token, query_buckets, key_buckets, row_start,
                                                      key_tile, bitmaps, round, buckets, chunk, last_chunk);
            given.high = std::clamp(high.value_or(unbounded_high), unbounded_low, unbounded_high);
            given.except_self = own.has_value();
            given.offset = std::clamp(own.value_or(0), unbounded_low, unbounded_high);
            const nb::gil_scoped_release unlocked;
            bucket_cells(given, threads);
        },
        "query_token"_a, "key_token"_a, "query_buckets"_a, "key_buckets"_a, "row_start"_a, "key_tile"_a, "bitmaps"_a,
        nb::kw_only(), "earlier"_a = 0, "buckets"_a = 0, "high"_a = nb::none(), "own"_a = nb::none(), "chunk"_a = 0,
        "last_chunk"_a.none() = nb::none(), "threads"_a = 1,
        "Which queries may attend to which keys, over tokens that are sorted by bucket.");
}

void bind_sorted_tokens(nb::module_& module) {
    module.def(
        "hash_tokens",
        [](nb::handle tokens, nb::handle rotations, nb::handle factors, nb::handle buckets, int threads) {
            const Options options = threads_only(threads);
            Call call(options);
            const HashArguments given = call.read_hash(tokens, rotations, factors, buckets);
            const nb::gil_scoped_release unlocked;
            hash_tokens(given, threads);
        },
        "tokens"_a, "rotations"_a, "factors"_a, "buckets"_a, nb::kw_only(), "threads"_a = 1,
        "The hash bucket of each token in each round.");
    module.def(
        "count_buckets",
        [](nb::handle codes, nb::handle sizes, int threads) {
            const Options options = threads_only(threads);
            Call call(options);
            const BucketCounts given = call.read_bucket_sizes(codes, sizes);
            const nb::gil_scoped_release unlocked;
            count_buckets(given, threads);
        },
        "codes"_a, "sizes"_a, nb::kw_only(), "threads"_a = 1, "The number of tokens of each bucket.");
    module.def(
        "sort_by_bucket",
        [](nb::handle codes, nb::handle start, nb::handle token, nb::handle place, int threads) {
            const Options options = threads_only(threads);
            Call call(options);
            const BucketPlaces given = call.read_bucket_places(codes, start, token, place);
            bool fits = false;
            {
                const nb::gil_scoped_release unlocked;
                fits = sort_by_bucket(given, threads);
            }
            if (!fits) throw nb::value_error("start: a place is not there");
        },
        "codes"_a, "start"_a, "token"_a, "place"_a, nb::kw_only(), "threads"_a = 1,
        "Tokens sorted by bucket, in their order inside each.");
    module.def(
        "list_bucket_tiles",
        [](nb::handle query_token, nb::handle key_token, nb::handle query_start, nb::handle key_start,
           nb::handle row_start, nb::handle key_tile, std::optional<int64_t> high) {
            const Options options;
            Call call(options);
            BucketTiles given =
                call.read_bucket_tiles(query_token, key_token, query_start, key_start, row_start, key_tile);
            given.high = std::clamp(high.value_or(unbounded_high), unbounded_low, unbounded_high);
            int64_t entries = 0;
            {
                const nb::gil_scoped_release unlocked;
                entries = list_bucket_tiles(given);
            }
            if (entries < 0) throw nb::value_error("key_tile: it has no room for all entries");
            return entries;
        },
        "query_token"_a, "key_token"_a, "query_start"_a, "key_start"_a, "row_start"_a, "key_tile"_a, nb::kw_only(),
        "high"_a = nb::none(), "The tiles of keys that share a bucket with each tile of queries.");
    module.def(
        "sort_rows",
        [](nb::handle rows, nb::handle token, nb::handle sorted, nb::handle divided, int threads) {
            const Options options = threads_only(threads);
            Call call(options);
            const SortedRows given = call.read_sorted_rows(rows, token, sorted, divided);
            const nb::gil_scoped_release unlocked;
            sort_rows(given, threads);
        },
        "rows"_a, "token"_a, "sorted_rows"_a.none() = nb::none(), nb::kw_only(), "divided"_a.none() = nb::none(), "threads"_a = 1,
        "Copies rows of tokens to their places.");
    module.def(
        "sort_gradients",
        [](nb::handle grad_output, nb::handle output, nb::handle normalizer, nb::handle token, nb::handle sorted,
           nb::handle sorted_normalizer, nb::handle grad_lse, int threads) {
            const Options options = threads_only(threads);
            Call call(options);
            const SortedGradients given = call.read_sorted_gradients(grad_output, output, normalizer, token, sorted,
                                                                     sorted_normalizer, grad_lse);
            const nb::gil_scoped_release unlocked;
            sort_gradients(given, threads);
        },
        "grad_output"_a, "output"_a, "normalizer"_a, "token"_a, "sorted_rows"_a, "sorted_normalizer"_a, "grad_lse"_a,
        nb::kw_only(), "threads"_a = 1, "Copies to places what the backward pass needs of the results.");
    module.def(
        "merge_rounds",
        [](nb::handle sorted, nb::handle sorted_normalizer, nb::handle place, nb::handle output, nb::handle normalizer,
           double factor, bool first, bool last, int threads) {
            const Options options = threads_only(threads);
            Call call(options);
            MergedRounds given = call.read_merged_rounds(sorted, sorted_normalizer, place, output, normalizer);
            given.factor = factor, given.first = first, given.last = last;
            const nb::gil_scoped_release unlocked;
            merge_rounds(given, threads);
        },
        "sorted_rows"_a, "sorted_normalizer"_a, "place"_a, "output"_a, "normalizer"_a, nb::kw_only(), "factor"_a = 1.0,
        "first"_a = true, "last"_a = true, "threads"_a = 1, "Merges results of rounds into one softmax.");
    module.def(
        "add_rows",
        [](nb::handle sorted, nb::handle place, nb::handle into, nb::handle divided, bool first, int threads) {
            const Options options = threads_only(threads);
            Call call(options);
            AddedRows given = call.read_added_rows(sorted, place, into, divided);
            given.first = first;
            const nb::gil_scoped_release unlocked;
            add_rows(given, threads);
        },
        "sorted_rows"_a, "place"_a, "into"_a, nb::kw_only(), "divided"_a.none() = nb::none(), "first"_a = true,
        "threads"_a = 1, "Adds rows at the places of each token.");
}

}  // namespace

void bind_buckets(nb::module_& module) {
    bind_cells(module);
    bind_sorted_tokens(module);
}

}  // namespace regard

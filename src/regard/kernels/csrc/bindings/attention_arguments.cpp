#include "bindings/attention_arguments.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "decode/decode_kernels.h"
#include "decode/stored_rows.h"

namespace nb = nanobind;

namespace regard {
namespace {

void read_tile_map(Call& call) {
    const Options& options = call.options;
    if (options.row_start.is_none()) return;
    const Problem& p = call.problem;
    Mask& mask = call.problem.mask;
    const Array of_rows = call.take(options.row_start, "row_start");
    mask.tile_batch = of_rows.shape[1];
    mask.tile_heads = of_rows.shape[2];
    require(mask.tile_batch == 1 || mask.tile_batch == p.batch, "row_start: expected 1 or batch groups");
    require(mask.tile_heads == 1 || mask.tile_heads == p.heads, "row_start: expected 1 or heads groups");
    const int64_t query_tiles = p.query_tiles();
    mask.row_start =
        call.copy_numbers<int64_t>(options.row_start, "row_start", {mask.tile_batch, mask.tile_heads, query_tiles + 1});
    const int64_t entries = call.take(options.key_tile, "key_tile").shape[3];
    const int64_t distinct = call.take(options.bitmaps, "bitmaps").shape[2];
    mask.key_tile = call.copy_numbers<int32_t>(options.key_tile, "key_tile", {entries});
    mask.bitmap = call.copy_numbers<int32_t>(options.bitmap, "bitmap", {entries});
    const Array bitmaps = call.read_contiguous(options.bitmaps, "bitmaps", {distinct, tile}, Dtype::int64);
    mask.bitmaps = static_cast<const uint64_t*>(bitmaps.data);

    const int64_t key_tiles = p.key_tiles();
    for (int64_t group = 0; group < mask.tile_batch * mask.tile_heads; ++group) {
        const int64_t* row = mask.row_start + group * (query_tiles + 1);
        require(row[0] >= 0, "row_start: expected no negative entries");
        for (int64_t line = 0; line < query_tiles; ++line) {
            require(row[line] <= row[line + 1], "row_start: expected no falling entries");
            require(row[line + 1] <= entries, "row_start: it reaches beyond key_tile");
            int64_t before = -1;
            for (int64_t entry = row[line]; entry < row[line + 1]; ++entry) {
                require(mask.key_tile[entry] > before, "key_tile: expected rising tiles in each row");
                before = mask.key_tile[entry];
            }
            require(before < key_tiles, "key_tile: it names a tile that is not there");
        }
    }
    for (int64_t entry = 0; entry < entries; ++entry) {
        require(mask.bitmap[entry] >= -1 && mask.bitmap[entry] < distinct, "bitmap: it names one that is not there");
    }
}

// Copies the table to the memory layout that problem.h describes.
template <class Number>
void copy_table(Array& table, std::vector<char>& memory) {
    const int64_t heads = table.shape[2], distances = table.shape[3];
    memory.resize(sizeof(Number) * static_cast<size_t>(heads * distances + tile));
    auto* to = reinterpret_cast<Number*>(memory.data());
    for (int64_t head = 0; head < heads; ++head) {
        const Number* from = static_cast<const Number*>(table.data) + head * table.stride[2];
        for (int64_t d = 0; d < distances; ++d) *to++ = from[d * table.stride[3]];
    }
    table.data = memory.data();
    table.stride[2] = heads == 1 ? 0 : distances;
    table.stride[3] = 1;
}

void read_table(Call& call) {
    if (call.options.table.is_none()) return;
    Problem& p = call.problem;
    p.table = call.take(call.options.table, "table");
    const int64_t heads = p.table.shape[2], distances = p.table.shape[3], lowest = p.table_lowest;
    check_dtype(p.table, "table", call.accumulation_dtype());
    check_shape(p.table, "table", {heads == 1 ? 1 : p.heads, distances});
    if (p.queries > 0 && p.keys > 0)
        require(lowest <= 1 - p.keys && lowest >= -max_length && lowest + distances >= p.queries,
                "table: expected every distance from 1 - keys to queries - 1");
    with_type_of_sums(call.dtype(), [&](auto number) { copy_table<decltype(number)>(p.table, call.table_memory); });
}

// The queries of all sequences together are those of the problem.
void check_counts(const Problem& p, const Pages& pages) {
    if (!pages.counts) return;
    int64_t left = p.queries;
    for (int64_t sequence = 0; sequence < pages.sequences(); ++sequence) {
        const int64_t count = pages.count(p, sequence);
        require(count >= 0 && count <= left, "counts: expected as many queries as there are");
        left -= count;
    }
    require(p.batch == 1 && left == 0, "counts: expected as many queries as there are");
}

}  // namespace

void read_query(Call& call, nb::handle query) {
    Problem& p = call.problem;
    p.query = call.take(query, "query");
    check_floating(p.query, "query");
    p.batch = p.query.shape[0];
    p.heads = p.query.shape[1];
    p.queries = p.query.shape[2];
    p.head_dim = p.query.shape[3];
}

void check_stored(const Array& key, const char* name_of_key, const Array& value, const char* name_of_value, Dtype tokens) {
    const bool is_rounded = key.dtype == Dtype::int8;
    check_dtype(key, name_of_key, is_rounded ? Dtype::int8 : tokens);
    check_dtype(value, name_of_value, key.dtype);
    if (!is_rounded) return;
    require(tokens == Dtype::float32 || tokens == Dtype::bfloat16, "key: expected rows of int8 for float32 or bfloat16 alone");
    require(key.stride[3] == 1 && value.stride[3] == 1, "key and value: expected contiguous rows of int8");
    require(key.shape[3] > scale_bytes && value.shape[3] > scale_bytes, "key and value: expected a scale behind each row");
}

static void read_keys(Call& call, nb::handle query, nb::handle key, nb::handle value) {
    Problem& p = call.problem;
    read_query(call, query);
    p.key = call.take(key, "key");
    p.value = call.take(value, "value");
    p.key_heads = p.key.shape[1];
    p.keys = p.key.shape[2];
    p.value_dim = numbers_in_row(p.value.dtype, p.value.shape[3]);
}

static void check_keys(const Problem& p) {
    check_shape(p.key, "key", {p.batch, p.key_heads, p.keys, stored_width(p.key.dtype, p.head_dim)});
    check_shape(p.value, "value", {p.batch, p.key_heads, p.keys, stored_width(p.value.dtype, p.value_dim)});
}

void read_tokens(Call& call, nb::handle query, nb::handle key, nb::handle value, int64_t largest) {
    read_keys(call, query, key, value);
    Problem& p = call.problem;
    check_dtype(p.key, "key", call.dtype());
    check_dtype(p.value, "value", call.dtype());
    check_keys(p);
    check_sizes(p, largest);
}

static void read_terms(Call& call) {
    Problem& p = call.problem;
    read_mask(call);
    p.bias = call.broadcast(call.options.bias, "bias", p.keys);
    if (p.bias) check_floating(p.bias, "bias");
    read_table(call);
}

namespace {

// Lists the rows of an array of tokens.
void list_rows(Call& call, nb::handle rows, const char* name, int64_t heads, std::initializer_list<Array*> of) {
    const int64_t places = call.take(rows, name).shape[3], count = (*of.begin())->shape[2];
    const int32_t* list = call.copy_indices(rows, name, {call.problem.batch, heads, places}, count);
    for (Array* tokens : of) tokens->rows = list, tokens->row_count = count, tokens->shape[2] = places;
}

}  // namespace

void read_problem(Call& call, nb::handle query, nb::handle key, nb::handle value, int64_t largest, nb::handle query_rows,
                  nb::handle key_rows) {
    Problem& p = call.problem;
    read_tokens(call, query, key, value, largest);
    if (!query_rows.is_none()) {
        list_rows(call, query_rows, "query_rows", p.heads, {&p.query});
        p.queries = p.query.shape[2];
    }
    if (!key_rows.is_none()) {
        list_rows(call, key_rows, "key_rows", p.key_heads, {&p.key, &p.value});
        p.keys = p.key.shape[2];
    }
    check_sizes(p, largest);
    read_terms(call);
}

void read_problem_of_cache(Call& call, nb::handle query, nb::handle key, nb::handle value) {
    read_keys(call, query, key, value);
    Problem& p = call.problem;
    check_stored(p.key, "key", p.value, "value", call.dtype());
    check_keys(p);
    check_sizes(p);
    require(p.key.dtype != Dtype::int8 || p.group() * p.queries <= max_decode_rows,
            "query: expected at most 64 queries to one key head of rounded keys");
    read_terms(call);
}

void check_sizes(Problem& p, int64_t largest) {
    require(p.heads >= 1 && p.key_heads >= 1, "query and key: expected at least one head");
    require(p.heads % p.key_heads == 0, "query: expected a multiple of key's heads");
    require(p.head_dim >= 1 && p.head_dim <= largest, "query: head_dim is out of range");
    require(p.value_dim >= 1 && p.value_dim <= largest, "value: value_dim is out of range");
    require(p.queries <= max_length && p.keys <= max_length, "query and key: too long");
    const int64_t width = std::max(p.head_dim, p.value_dim);
    check_countable({p.batch, p.heads, p.queries, width});
    check_countable({p.batch, p.heads, p.keys, width});
    check_countable({p.batch, p.heads, p.query_tiles(), p.key_tiles()});
    p.offset = p.keys - p.queries;
}

void read_cap_and_sinks(Call& call, nb::handle softcap, nb::handle sinks) {
    Problem& p = call.problem;
    if (!softcap.is_none()) {
        p.softcap = nb::cast<double>(softcap);
        require(p.softcap > 0 && std::isfinite(p.softcap), "softcap: expected a finite number above 0");
    }
    p.sinks = call.broadcast(sinks, "sinks", 1);
    if (p.sinks) check_floating(p.sinks, "sinks");
}

void read_mask(Call& call) {
    const Options& options = call.options;
    Mask& mask = call.problem.mask;
    read_band(call.problem, options.low, options.high);
    mask.start = copy_bounds(call, options.start, "start");
    mask.stop = copy_bounds(call, options.stop, "stop");
    read_tile_map(call);
    mask.dense = call.broadcast(options.dense, "dense", call.problem.keys);
    if (mask.dense) check_dtype(mask.dense, "dense", Dtype::boolean);
}

void read_band(Problem& problem, std::optional<int64_t> low, std::optional<int64_t> high) {
    problem.mask.low = std::clamp(low.value_or(unbounded_low), unbounded_low, unbounded_high);
    problem.mask.high = std::clamp(high.value_or(unbounded_high), unbounded_low, unbounded_high);
}

const int64_t* copy_bounds(Call& call, nb::handle object, const char* name) {
    if (object.is_none()) return nullptr;
    const Problem& p = call.problem;
    auto* bounds = call.copy_numbers<int64_t>(object, name, {p.batch});
    for (int64_t entry = 0; entry < p.batch; ++entry) bounds[entry] = std::clamp<int64_t>(bounds[entry], 0, p.keys);
    return bounds;
}

void read_page_table(Call& call, Pages& pages, nb::handle page_table, nb::handle lengths, nb::handle counts) {
    Problem& p = call.problem;
    const Array table = call.take(page_table, "page_table");
    const int64_t count = pages.key.shape[0], page_size = pages.key.shape[2], most = table.shape[3];
    if (table.dtype != Dtype::int32) check_dtype(table, "page_table", Dtype::int64);
    const int64_t sequences = counts.is_none() ? p.batch : call.take(counts, "counts").shape[3];
    check_shape(table, "page_table", {sequences, most});
    pages.lengths = call.read_copy(lengths, "lengths", {sequences}, Dtype::int64);
    if (!counts.is_none()) pages.counts = call.read_copy(counts, "counts", {sequences}, Dtype::int64);
    check_counts(p, pages);
    require(page_size >= 1, "key_pages: expected pages of at least one key");
    require(!__builtin_mul_overflow(most, page_size, &p.keys), "page_table: too many keys to count");
    check_sizes(p);
    const auto* length = static_cast<const int64_t*>(pages.lengths.data);
    int64_t longest_one = 0;
    for (int64_t entry = 0; entry < sequences; ++entry) {
        require(length[entry] >= 0 && length[entry] <= p.keys, "lengths: expected no more keys than the pages hold");
        longest_one = std::max(longest_one, length[entry]);
    }
    Array in_use = table;  // only the entries in use: tables are often made for far more pages
    in_use.shape[3] = ceil_div(longest_one, page_size);
    pages.table = call.copy(in_use);
    for (int64_t entry = 0; entry < sequences; ++entry) {
        for (int64_t page = 0; page * page_size < length[entry]; ++page) {
            const int64_t index = page_index(pages.table, entry, page);
            require(index >= 0 && index < count, "page_table: it names a page that is not there");
        }
    }
}

Array read_output(Call& call, nb::handle object, const char* name, Call::None none) {
    const Problem& p = call.problem;
    return call.read(object, name, {p.batch, p.heads, p.queries, p.value_dim}, call.dtype(), none);
}

Array write_output(Call& call, nb::handle object, const char* name, Call::None none) {
    const Problem& p = call.problem;
    return call.write(object, name, {p.batch, p.heads, p.queries, p.value_dim}, call.dtype(), none);
}

Array write_lse(Call& call, nb::handle object) {
    const Problem& p = call.problem;
    return call.write(object, "lse", {p.batch, p.heads, p.queries}, call.accumulation_dtype(), accept);
}

Array write_normalizer(Call& call, nb::handle object) {
    const Problem& p = call.problem;
    return call.write(object, "normalizer", {p.batch, p.heads, p.queries, 2}, call.accumulation_dtype(), accept);
}

Array read_normalizer(Call& call, nb::handle object) {
    const Problem& p = call.problem;
    return call.read(object, "normalizer", {p.batch, p.heads, p.queries, 2}, call.accumulation_dtype());
}

TokenGradients read_gradients(Call& call, nb::handle grad_output, nb::handle grad_query, nb::handle grad_key,
                              nb::handle grad_value, nb::handle grad_bias, nb::handle grad_table,
                              const char* name_of_query, const char* name_of_key) {
    const Problem& p = call.problem;
    const Dtype dtype = call.dtype(), sums = call.accumulation_dtype();
    const auto none = Call::None::reject;
    Array of_output;
    if (p.query.rows) {  // listed as the queries are
        const int64_t count = p.query.row_count;
        of_output = call.read(grad_output, "grad_output", {p.batch, p.heads, count, p.value_dim}, dtype);
        of_output.rows = p.query.rows, of_output.row_count = count, of_output.shape[2] = p.queries;
    } else {
        of_output = read_output(call, grad_output, "grad_output");
    }
    return {of_output,
            call.write_gradient(grad_query, name_of_query, p.query, dtype, none),
            call.write_gradient(grad_key, name_of_key, p.key, dtype, none),
            call.write_gradient(grad_value, "grad_value", p.value, dtype, none),
            call.write_gradient(grad_bias, "grad_bias", p.bias, sums, accept),
            call.write_gradient(grad_table, "grad_table", p.table, sums, accept)};
}

}  // namespace regard

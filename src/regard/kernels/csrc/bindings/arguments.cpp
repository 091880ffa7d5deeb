// The arguments of attention: query, key and value, pages of them, the parts of a mask, and a bias.
#include "bindings/arguments.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "bindings/argument_checks.h"

namespace nb = nanobind;

namespace regard {

Call::Call(const Options& options) : options_(options) {
    require(options.threads >= 1, "threads: expected at least 1");
    require(options.dropout >= 0 && options.dropout < 1, "dropout: expected 0 <= dropout < 1");
    problem.scale = options.scale;
    problem.dropout = options.dropout;
    problem.seed = static_cast<uint64_t>(options.seed);
    problem.table_lowest = options.table_lowest;
}

Array Call::broadcast(nb::handle object, const char* name) { return broadcast(object, name, problem.keys); }

Array Call::broadcast(nb::handle object, const char* name, int64_t columns) {
    Array array = take(object, name, None::accept);
    if (!array) return array;
    const int64_t whole[4] = {problem.batch, problem.heads, problem.queries, columns};
    for (int axis = 0; axis < 4; ++axis) {
        if (array.shape[axis] == 1) {
            array.stride[axis] = 0;
        } else if (array.shape[axis] != whole[axis]) {
            throw_value_error(std::string(name) + ": expected a shape that broadcasts to " + shape_text(whole, 4) +
                              ", got " + shape_text(array.shape, 4));
        }
    }
    return array;
}

void Call::read_tokens(nb::handle query, nb::handle key, nb::handle value, int64_t largest) {
    problem.query = take(query, "query");
    check_floating(problem.query, "query");
    problem.key = take(key, "key");
    problem.value = take(value, "value");
    problem.batch = problem.query.shape[0];
    problem.heads = problem.query.shape[1];
    problem.queries = problem.query.shape[2];
    problem.head_dim = problem.query.shape[3];
    problem.key_heads = problem.key.shape[1];
    problem.keys = problem.key.shape[2];
    problem.value_dim = problem.value.shape[3];
    check_dtype(problem.key, "key", dtype());
    check_dtype(problem.value, "value", dtype());
    check_shape(problem.key, "key", {problem.batch, problem.key_heads, problem.keys, problem.head_dim});
    check_shape(problem.value, "value", {problem.batch, problem.key_heads, problem.keys, problem.value_dim});
    check_sizes(largest);
}

void Call::read_problem(nb::handle query, nb::handle key, nb::handle value, int64_t largest) {
    read_tokens(query, key, value, largest);
    read_mask();
    problem.bias = broadcast(options_.bias, "bias");
    if (problem.bias) check_floating(problem.bias, "bias");
    read_table();
}

void Call::read_cap_and_sinks(nb::handle softcap, nb::handle sinks) {
    if (!softcap.is_none()) {
        problem.softcap = nb::cast<double>(softcap);
        require(problem.softcap > 0 && std::isfinite(problem.softcap), "softcap: expected a finite number above 0");
    }
    problem.sinks = broadcast(sinks, "sinks", 1);
    if (problem.sinks) check_floating(problem.sinks, "sinks");
}

void Call::read_mask() {
    read_band(options_.low, options_.high);
    read_interval();
    read_tile_map();
    problem.mask.dense = broadcast(options_.dense, "dense");
    if (problem.mask.dense) check_dtype(problem.mask.dense, "dense", Dtype::boolean);
}

GatheredArguments Call::read_gathered(nb::handle query, nb::handle key, nb::handle value, nb::handle positions) {
    GatheredArguments given;
    read_tokens(query, key, value, max_head_dim);
    given.problem = problem;
    const Array chosen = take(positions, "positions");
    const int64_t heads = chosen.shape[1];
    require(heads == 1 || heads == problem.heads || heads == problem.key_heads,
            "positions: expected one head, or as many as key or query has");
    require(chosen.shape[3] < INT32_MAX && problem.keys < INT32_MAX, "positions: too many keys for 32 bits");
    check_countable({problem.batch, problem.heads, problem.queries, chosen.shape[3]});
    given.positions =
        read(positions, "positions", {problem.batch, heads, problem.queries, chosen.shape[3]}, Dtype::int32);
    given.count = chosen.shape[3];
    return given;
}

ChosenArguments Call::read_chosen(nb::handle query, nb::handle key, nb::handle value, nb::handle chosen,
                                  int64_t block) {
    ChosenArguments given;
    read_tokens(query, key, value, max_head_dim);
    require(dtype() == Dtype::float32 || dtype() == Dtype::float64, "query: expected float32 or float64");
    require(problem.scale > 0, "scale: expected a number above 0");
    require(block > 0 && block % tile == 0, "block: expected a multiple of 64");
    read_interval();
    require(problem.mask.start == nullptr, "start: expected None");
    const int64_t blocks = ceil_div(problem.keys, block);
    check_countable({problem.batch, problem.heads, problem.queries, blocks, std::max<int64_t>(problem.value_dim, 16)});
    given.chosen = read_copy(chosen, "chosen", {problem.batch, problem.heads, problem.queries, blocks}, Dtype::boolean);
    given.block = block;
    given.problem = problem;
    return given;
}

ImportanceArguments Call::read_importance(nb::handle query, nb::handle key, nb::handle visible, nb::handle chosen,
                                          nb::handle certain) {
    ImportanceArguments given;
    given.query = take(query, "query");
    check_floating(given.query, "query");
    require(given.query.dtype != Dtype::float64, "query: expected float32 or half precision");
    given.key = take(key, "key");
    problem.query = given.query;
    const int64_t batch = given.query.shape[0], heads = given.query.shape[1], queries = given.query.shape[2];
    const int64_t key_heads = given.key.shape[1], width = given.query.shape[3];
    given.key = read(key, "key", {batch, key_heads, given.key.shape[2], width}, Dtype::float32);
    require(heads >= 1 && key_heads >= 1 && heads % key_heads == 0, "query: expected a multiple of key's heads");
    require(width >= 1 && width <= max_head_dim, "query: head_dim is out of range");
    require(queries <= max_length && given.key.shape[2] < INT32_MAX, "query and key: too long");
    const Array counts = take(visible, "visible");
    require(counts.shape[2] == 1 || counts.shape[2] == batch, "visible: expected one row, or as many as the batch");
    given.visible = read_copy(visible, "visible", {counts.shape[2], queries}, Dtype::int64);
    given.chosen = take(chosen, "chosen");
    require(given.chosen.shape[3] < INT32_MAX, "chosen: too many blocks");
    given.chosen = write(chosen, "chosen", {batch, key_heads, queries, given.chosen.shape[3]}, Dtype::boolean);
    require(given.chosen.stride[3] == 1 || given.chosen.shape[3] <= 1, "chosen: expected contiguous blocks");
    given.certain = write(certain, "certain", {batch, key_heads, queries}, Dtype::boolean);
    return given;
}

HighestArguments Call::read_highest(nb::handle query, nb::handle key, nb::handle weight, nb::handle first,
                                    nb::handle positions, bool summed) {
    HighestArguments given;
    problem.query = take(query, "query");
    check_floating(problem.query, "query");
    require(problem.query.dtype != Dtype::float64, "query: expected float32 or half precision");
    problem.key = take(key, "key");
    check_dtype(problem.key, "key", dtype());
    const Array chosen = take(positions, "positions");
    problem.batch = problem.query.shape[0];
    problem.heads = chosen.shape[1];
    problem.queries = problem.query.shape[2];
    problem.head_dim = problem.query.shape[3];
    problem.key_heads = problem.key.shape[1];
    problem.keys = problem.key.shape[2];
    problem.value_dim = problem.head_dim;
    check_shape(problem.key, "key", {problem.batch, problem.key_heads, problem.keys, problem.head_dim});
    check_sizes(max_head_dim);
    given.score_heads = problem.query.shape[1];
    given.summed = summed;
    require(summed ? problem.key_heads == 1 : given.score_heads == problem.heads,
            "positions: expected a head for each one of query, or keys of one head for a sum");
    require(given.score_heads >= 1 && given.score_heads <= 4096, "query: too few or too many heads");
    require(problem.keys < INT32_MAX, "key: too many keys for 32 bits");
    given.count = chosen.shape[3];
    check_countable({problem.batch, problem.heads, problem.queries, given.count});
    require(given.count <= INT32_MAX / 8, "positions: too many keys of each query");
    read_mask();
    given.weight = read(weight, "weight", {problem.batch, given.score_heads, problem.queries, 1}, dtype(), None::accept);
    if (!first.is_none()) {
        const Array flags = take(first, "first");
        require(flags.shape[1] == 1 || flags.shape[1] == problem.heads, "first: expected one head, or as many as positions");
        given.first = read(first, "first", {problem.batch, flags.shape[1], 1, problem.keys}, Dtype::boolean);
    }
    given.positions = write(positions, "positions", {problem.batch, problem.heads, problem.queries, given.count}, Dtype::int32);
    given.problem = problem;
    return given;
}

Pages Call::read_paged_problem(nb::handle query, nb::handle key_pages, nb::handle value_pages, nb::handle page_table,
                       nb::handle lengths) {
    Pages pages;
    problem.query = take(query, "query");
    check_floating(problem.query, "query");
    pages.key = take(key_pages, "key_pages");
    pages.value = take(value_pages, "value_pages");
    const int64_t count = pages.key.shape[0], page_size = pages.key.shape[2];
    problem.batch = problem.query.shape[0];
    problem.heads = problem.query.shape[1];
    problem.queries = problem.query.shape[2];
    problem.head_dim = problem.query.shape[3];
    problem.key_heads = pages.key.shape[1];
    problem.value_dim = pages.value.shape[3];
    check_dtype(pages.key, "key_pages", dtype());
    check_dtype(pages.value, "value_pages", dtype());
    check_shape(pages.key, "key_pages", {count, problem.key_heads, page_size, problem.head_dim});
    check_shape(pages.value, "value_pages", {count, problem.key_heads, page_size, problem.value_dim});
    read_page_table(pages, page_table, lengths);
    read_band(options_.low, options_.high);
    return pages;
}

void Call::read_page_table(Pages& pages, nb::handle page_table, nb::handle lengths) {
    const Array table = take(page_table, "page_table");
    const int64_t count = pages.key.shape[0], page_size = pages.key.shape[2], most = table.shape[3];
    if (table.dtype != Dtype::int32) check_dtype(table, "page_table", Dtype::int64);
    check_shape(table, "page_table", {problem.batch, most});
    pages.lengths = read_copy(lengths, "lengths", {problem.batch}, Dtype::int64);
    require(page_size >= 1, "key_pages: expected pages of at least one key");
    require(!__builtin_mul_overflow(most, page_size, &problem.keys), "page_table: too many keys to count");
    check_sizes(max_head_dim);
    const auto* length = static_cast<const int64_t*>(pages.lengths.data);
    int64_t longest_one = 0;
    for (int64_t entry = 0; entry < problem.batch; ++entry) {
        require(length[entry] >= 0 && length[entry] <= problem.keys,
                "lengths: expected no more keys than the pages hold");
        longest_one = std::max(longest_one, length[entry]);
    }
    Array in_use = table;  // only the entries in use: tables are often made for far more pages
    in_use.shape[3] = ceil_div(longest_one, page_size);
    pages.table = borrowed_.copy(in_use, BorrowedArrays::Broadcast::expand);
    for (int64_t entry = 0; entry < problem.batch; ++entry) {
        for (int64_t page = 0; page * page_size < length[entry]; ++page) {
            const int64_t index = page_index(pages.table, entry, page);
            require(index >= 0 && index < count, "page_table: it names a page that is not there");
        }
    }
}

void Call::check_sizes(int64_t largest) {
    require(problem.heads >= 1 && problem.key_heads >= 1, "query and key: expected at least one head");
    require(problem.heads % problem.key_heads == 0, "query: expected a multiple of key's heads");
    require(problem.head_dim >= 1 && problem.head_dim <= largest, "query: head_dim is out of range");
    require(problem.value_dim >= 1 && problem.value_dim <= largest, "value: value_dim is out of range");
    require(problem.queries <= max_length && problem.keys <= max_length, "query and key: too long");
    const int64_t width = std::max(problem.head_dim, problem.value_dim);
    check_countable({problem.batch, problem.heads, problem.queries, width});
    check_countable({problem.batch, problem.heads, problem.keys, width});
    check_countable({problem.batch, problem.heads, problem.query_tiles(), problem.key_tiles()});
    problem.offset = problem.keys - problem.queries;
}

void Call::read_band(std::optional<int64_t> low, std::optional<int64_t> high) {
    problem.mask.low = std::clamp(low.value_or(unbounded_low), unbounded_low, unbounded_high);
    problem.mask.high = std::clamp(high.value_or(unbounded_high), unbounded_low, unbounded_high);
}

void Call::read_interval() {
    problem.mask.start = copy_bounds(options_.start, "start");
    problem.mask.stop = copy_bounds(options_.stop, "stop");
}

// Copies a bound for each entry of the batch, clamped to 0 .. keys; null for None.
const int64_t* Call::copy_bounds(nb::handle object, const char* name) {
    if (object.is_none()) return nullptr;
    auto* bounds = static_cast<int64_t*>(read_copy(object, name, {problem.batch}, Dtype::int64).data);
    for (int64_t entry = 0; entry < problem.batch; ++entry) {
        bounds[entry] = std::clamp<int64_t>(bounds[entry], 0, problem.keys);
    }
    return bounds;
}

void Call::read_tile_map() {
    if (options_.row_start.is_none()) return;
    Mask& mask = problem.mask;
    const Array of_rows = take(options_.row_start, "row_start");
    mask.tile_batch = of_rows.shape[1];
    mask.tile_heads = of_rows.shape[2];
    require(mask.tile_batch == 1 || mask.tile_batch == problem.batch, "row_start: expected 1 or batch groups");
    require(mask.tile_heads == 1 || mask.tile_heads == problem.heads, "row_start: expected 1 or heads groups");
    const int64_t query_tiles = problem.query_tiles();
    const Array row_start =
        read_copy(options_.row_start, "row_start", {mask.tile_batch, mask.tile_heads, query_tiles + 1}, Dtype::int64);
    const int64_t entries = take(options_.key_tile, "key_tile").shape[3];
    const int64_t distinct = take(options_.bitmaps, "bitmaps").shape[2];
    const Array key_tile = read_copy(options_.key_tile, "key_tile", {entries}, Dtype::int32);
    const Array bitmap = read_copy(options_.bitmap, "bitmap", {entries}, Dtype::int32);
    const Array bitmaps = read_contiguous(options_.bitmaps, "bitmaps", {distinct, tile}, Dtype::int64);
    mask.row_start = static_cast<const int64_t*>(row_start.data);
    mask.key_tile = static_cast<const int32_t*>(key_tile.data);
    mask.bitmap = static_cast<const int32_t*>(bitmap.data);
    mask.bitmaps = static_cast<const uint64_t*>(bitmaps.data);

    const int64_t key_tiles = problem.key_tiles();
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
void Call::copy_table() {
    Array& table = problem.table;
    const int64_t heads = table.shape[2], distances = table.shape[3];
    table_.resize(sizeof(Number) * static_cast<size_t>(heads * distances + tile));
    auto* to = reinterpret_cast<Number*>(table_.data());
    for (int64_t head = 0; head < heads; ++head) {
        const Number* from = static_cast<const Number*>(table.data) + head * table.stride[2];
        for (int64_t d = 0; d < distances; ++d) *to++ = from[d * table.stride[3]];
    }
    table.data = table_.data();
    table.stride[2] = heads == 1 ? 0 : distances;
    table.stride[3] = 1;
}

void Call::read_table() {
    if (options_.table.is_none()) return;
    problem.table = take(options_.table, "table");
    const int64_t heads = problem.table.shape[2], distances = problem.table.shape[3], lowest = problem.table_lowest;
    check_dtype(problem.table, "table", accumulation_dtype());
    check_shape(problem.table, "table", {heads == 1 ? 1 : problem.heads, distances});
    if (problem.queries > 0 && problem.keys > 0)
        require(lowest <= 1 - problem.keys && lowest >= -max_length && lowest + distances >= problem.queries,
                "table: expected every distance from 1 - keys to queries - 1");
    if (dtype() == Dtype::float64)
        copy_table<double>();
    else
        copy_table<float>();
}

}  // namespace regard

#include "arguments.h"

#include <algorithm>
#include <string>

namespace nb = nanobind;

namespace regard {
namespace {

std::string shape_text(const int64_t* shape, int dimensions) {
    std::string listed;
    for (int axis = 0; axis < dimensions; ++axis) listed += (axis ? ", " : "") + std::to_string(shape[axis]);
    return "(" + listed + ")";
}

[[noreturn]] void throw_value_error(const std::string& what) { throw nb::value_error(what.c_str()); }

void require(bool holds, const char* what) {
    if (!holds) throw_value_error(what);
}

void check_dtype(const Array& array, const char* name, Dtype dtype) {
    if (array.dtype == dtype) return;
    const std::string what =
        std::string(name) + ": expected dtype " + dtype_name(dtype) + ", got " + dtype_name(array.dtype);
    throw nb::type_error(what.c_str());
}

bool is_floating(Dtype dtype) {
    return dtype == Dtype::float32 || dtype == Dtype::float64 || dtype == Dtype::bfloat16 || dtype == Dtype::float16;
}

void check_floating(const Array& array, const char* name) {
    if (is_floating(array.dtype)) return;
    const std::string what = std::string(name) + ": expected a floating dtype, got " + dtype_name(array.dtype);
    throw nb::type_error(what.c_str());
}

void check_shape(const Array& array, const char* name, Call::Shape shape) {
    int64_t expected[4] = {1, 1, 1, 1};
    std::copy(shape.begin(), shape.end(), expected + 4 - shape.size());
    if (std::equal(expected, expected + 4, array.shape)) return;
    throw_value_error(std::string(name) + ": expected shape " + shape_text(expected, 4) + ", got " +
                      shape_text(array.shape, 4));
}

bool is_empty(const Array& array) {
    return std::any_of(array.shape, array.shape + 4, [](int64_t size) { return size == 0; });
}

bool is_contiguous(const Array& array) {
    int64_t stride = 1;
    for (int axis = 3; axis >= 0; --axis) {
        if (array.shape[axis] != 1 && array.stride[axis] != stride) return false;
        stride *= array.shape[axis];
    }
    return true;
}

// Raises if the product, times 64 for the padding that a kernel may add, overflows 64 bits.
void check_countable(Call::Shape sizes) {
    int64_t product = 64;
    for (int64_t size : sizes) {
        if (__builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product)) {
            throw_value_error("the sizes exceed what can be counted");
        }
    }
}

}  // namespace

Call::Call(const Options& options) : options_(options) {
    require(options.threads >= 1, "threads: expected at least 1");
    require(options.dropout >= 0 && options.dropout < 1, "dropout: expected 0 <= dropout < 1");
}

Array Call::take(nb::handle object, const char* name, None none) {
    if (object.is_none() && none == None::reject) throw_value_error(std::string(name) + ": expected an array, got None");
    return borrowed_.take(object, name);
}

Array Call::read(nb::handle object, const char* name, Shape shape, Dtype dtype, None none) {
    const Array array = take(object, name, none);
    if (!array) return array;
    check_dtype(array, name, dtype);
    check_shape(array, name, shape);
    return array;
}

Array Call::write(nb::handle object, const char* name, Shape shape, Dtype dtype, None none) {
    if (object.is_none() && none == None::reject) throw_value_error(std::string(name) + ": expected an array, got None");
    const Array array = borrowed_.take(object, name, BorrowedArrays::Access::write);
    if (!array) return array;
    check_dtype(array, name, dtype);
    check_shape(array, name, shape);
    for (int axis = 0; axis < 4; ++axis) {
        if (array.shape[axis] > 1 && array.stride[axis] == 0 && !is_empty(array)) {
            throw_value_error(std::string(name) + ": it is to be written and its elements share memory");
        }
    }
    return array;
}

Array Call::read_copy(nb::handle object, const char* name, Shape shape, Dtype dtype) {
    return borrowed_.copy(read(object, name, shape, dtype), BorrowedArrays::Broadcast::expand);
}

Array Call::read_indices(nb::handle object, const char* name, int64_t stop, None none) {
    const Array array = take(object, name, none);
    if (!array) return array;
    const Array indices = read_copy(object, name, {array.shape[3]}, Dtype::int64);
    for (int64_t i = 0; i < indices.shape[3]; ++i) {
        const int64_t index = static_cast<const int64_t*>(indices.data)[i];
        if (index < 0 || index >= stop) throw_value_error(std::string(name) + ": an index is out of range");
    }
    return indices;
}

void Call::require_pair(const Array& array, const char* name, const Array& needed, const char* name_of_needed) {
    if (array && !needed) throw_value_error(std::string(name) + ": expected " + name_of_needed + " as well");
}

Array Call::read_contiguous(nb::handle object, const char* name, Shape shape, Dtype dtype) {
    const Array array = read(object, name, shape, dtype);
    if (!is_empty(array) && !is_contiguous(array))
        throw_value_error(std::string(name) + ": expected contiguous elements");
    return array;
}

Array Call::write_contiguous(nb::handle object, const char* name, Shape shape, Dtype dtype) {
    read_contiguous(object, name, shape, dtype);
    return write(object, name, shape, dtype);
}

Array Call::broadcast(nb::handle object, const char* name) {
    Array array = take(object, name, None::accept);
    if (!array) return array;
    const int64_t whole[4] = {problem.batch, problem.heads, problem.queries, problem.keys};
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

void Call::read_problem(nb::handle query, nb::handle key, nb::handle value, int64_t largest) {
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
    read_band();
    read_interval();
    read_tile_map();
    problem.mask.dense = broadcast(options_.dense, "dense");
    if (problem.mask.dense) check_dtype(problem.mask.dense, "dense", Dtype::boolean);
    problem.bias = broadcast(options_.bias, "bias");
    if (problem.bias) check_floating(problem.bias, "bias");
    read_table();
}

Pages Call::read_paged_problem(nb::handle query, nb::handle key_pages, nb::handle value_pages, nb::handle page_table,
                       nb::handle lengths) {
    Pages pages;
    problem.query = take(query, "query");
    check_floating(problem.query, "query");
    pages.key = take(key_pages, "key_pages");
    pages.value = take(value_pages, "value_pages");
    const Array table = take(page_table, "page_table");
    const int64_t count = pages.key.shape[0], page_size = pages.key.shape[2], most = table.shape[3];
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
    if (table.dtype != Dtype::int32) check_dtype(table, "page_table", Dtype::int64);
    check_shape(table, "page_table", {problem.batch, most});
    pages.lengths = read_copy(lengths, "lengths", {problem.batch}, Dtype::int64);
    require(page_size >= 1, "key_pages: expected pages of at least one key");
    require(!__builtin_mul_overflow(most, page_size, &problem.keys), "page_table: too many keys to count");
    check_sizes(max_head_dim);
    read_band();
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
            const int64_t at = pages.table.at(0, 0, entry, page);
            const int64_t index = table.dtype == Dtype::int32 ? static_cast<const int32_t*>(pages.table.data)[at]
                                                              : static_cast<const int64_t*>(pages.table.data)[at];
            require(index >= 0 && index < count, "page_table: it names a page that is not there");
        }
    }
    return pages;
}

DropoutArguments Call::read_dropout(nb::handle tokens, nb::handle output) {
    DropoutArguments dropout_arguments;
    const Array array = take(tokens, "tokens");
    check_floating(array, "tokens");
    dropout_arguments.count = array.shape[3];
    dropout_arguments.tokens = read_contiguous(tokens, "tokens", {dropout_arguments.count}, array.dtype);
    dropout_arguments.output = write_contiguous(output, "output", {dropout_arguments.count}, array.dtype);
    dropout_arguments.probability = options_.dropout;
    dropout_arguments.seed = static_cast<uint64_t>(options_.seed);
    return dropout_arguments;
}

CrossEntropyArguments Call::read_cross_entropy(nb::handle logits, nb::handle targets, double smoothing, int64_t ignored) {
    require(smoothing >= 0 && smoothing <= 1, "smoothing: expected 0 <= smoothing <= 1");
    CrossEntropyArguments arguments;
    const Array scored = take(logits, "logits");
    check_floating(scored, "logits");
    arguments.rows = scored.shape[2];
    arguments.classes = scored.shape[3];
    require(arguments.classes >= 1, "logits: expected at least one class");
    arguments.logits = read_contiguous(logits, "logits", {arguments.rows, arguments.classes}, scored.dtype);
    arguments.targets = read_copy(targets, "targets", {arguments.rows}, Dtype::int64);
    for (int64_t row = 0; row < arguments.rows; ++row) {
        const int64_t target = static_cast<const int64_t*>(arguments.targets.data)[row];
        require((target >= 0 && target < arguments.classes) || target == ignored, "targets: one is out of range");
    }
    arguments.smoothing = smoothing;
    arguments.ignored = ignored;
    problem.query = arguments.logits;
    return arguments;
}

ScanArguments Call::read_scan(nb::handle query, nb::handle key, nb::handle value, nb::handle log_decay, nb::handle beta,
                              nb::handle state) {
    ScanArguments given;
    given.query = take(query, "query");
    check_floating(given.query, "query");
    problem.query = given.query;
    given.batch = given.query.shape[0];
    given.heads = given.query.shape[1];
    given.length = given.query.shape[2];
    given.head_dim = given.query.shape[3];
    given.value_dim = take(value, "value").shape[3];
    given.scale = options_.scale;
    require(given.head_dim >= 1 && given.head_dim <= max_scan_dim, "query: head_dim is out of range");
    require(given.value_dim >= 1 && given.value_dim <= max_scan_dim, "value: value_dim is out of range");
    require(given.length <= max_length, "query: too long");
    check_countable({given.batch, given.heads, given.length, std::max(given.head_dim, given.value_dim)});
    check_countable({given.batch, given.heads, ceil_div(given.length, tile), given.head_dim, given.value_dim});
    given.key = read(key, "key", {given.batch, given.heads, given.length, given.head_dim}, dtype());
    given.value = read(value, "value", {given.batch, given.heads, given.length, given.value_dim}, dtype());
    const auto read_wide = [&](nb::handle object, const char* name, Shape shape) {
        const Array array = take(object, name, None::accept);
        if (array && array.dtype != dtype()) check_dtype(array, name, accumulation_dtype());
        if (array) check_shape(array, name, shape);
        return array;
    };
    const Array decay = take(log_decay, "log_decay", None::accept);
    const int64_t channels = !decay || decay.shape[3] == 1 ? 1 : given.head_dim;
    given.log_decay = read_wide(log_decay, "log_decay", {given.batch, given.heads, given.length, channels});
    given.beta = read_wide(beta, "beta", {given.batch, given.heads, given.length, 1});
    given.state = read_wide(state, "state", {given.batch, given.heads, given.head_dim, given.value_dim});
    return given;
}

// Copies the tokens (groups, places) at each place, which must be indices of `tokens`, or -1.
const int32_t* Call::copy_tokens(nb::handle object, const char* name, int64_t groups, int64_t places, int64_t tokens) {
    const auto* copied = static_cast<const int32_t*>(read_copy(object, name, {groups, places}, Dtype::int32).data);
    for (int64_t place = 0; place < groups * places; ++place) {
        if (copied[place] < -1 || copied[place] >= tokens)
            throw_value_error(std::string(name) + ": an index is out of range");
    }
    return copied;
}

BucketArguments Call::read_buckets(nb::handle query_token, nb::handle key_token, nb::handle query_buckets,
                                   nb::handle key_buckets, nb::handle row_start, nb::handle key_tile, nb::handle bitmaps,
                                   int64_t round, int64_t buckets, int64_t chunk) {
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
    require(chunk >= 0 && (chunk == 0 || given.key_places % chunk == 0), "chunk: expected a divisor of the key places");
    require(buckets >= 0 && buckets < INT32_MAX, "buckets: it is out of range");
    const int64_t query_tiles = ceil_div(given.query_places, tile), key_tiles = ceil_div(given.key_places, tile);
    check_countable({given.groups, given.query_places, given.rounds});
    check_countable({given.groups, query_tiles, key_tiles});
    given.query_token = copy_tokens(query_token, "query_token", given.groups, given.query_places, given.queries);
    given.key_token = copy_tokens(key_token, "key_token", given.groups, given.key_places, given.keys);
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
    problem.scale = options_.scale;
    problem.dropout = options_.dropout;
    problem.seed = static_cast<uint64_t>(options_.seed);
    problem.table_lowest = options_.table_lowest;
}

void Call::read_band() {
    problem.mask.low = std::clamp(options_.low.value_or(unbounded_low), unbounded_low, unbounded_high);
    problem.mask.high = std::clamp(options_.high.value_or(unbounded_high), unbounded_low, unbounded_high);
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

// Drivers of the sublayers of decoders and encoders. Each linear layer is a stage of a region, and of few tokens each group
// of layers of the same tokens; then what lies between them is of few numbers, and computed by the calling thread.
#include <string.h>

#include <algorithm>
#include <vector>

#include "decode/int8_row_kernels.h"
#include "decode/stored_rows.h"
#include "decode/sublayer_kernels.h"
#include "drivers.h"
#include "linear/linear_kernels.h"
#include "linear/packed_projection.h"
#include "tables/table_in_use.h"

namespace regard {

namespace {

const SublayerKernels& sublayer_kernels_in_use(Dtype tokens) { REGARD_RETURN_TABLE_WITH_BF16(sublayer_kernels(tokens)); }

// Rows of `width` numbers each, contiguous.
class Rows {
public:
    Rows(void* data, int64_t width, Dtype dtype)
        : data_(static_cast<char*>(data)), each_(width * static_cast<int64_t>(dtype_size(dtype))) {}
    char* operator[](int64_t row) const { return data_ + row * each_; }
    size_t bytes_of_row() const { return static_cast<size_t>(each_); }

private:
    char* data_;
    int64_t each_;
};

Scratch make_rows(int64_t rows, int64_t width, Dtype dtype) {
    return Scratch(Scratch::bytes_of({rows, width}, dtype_size(dtype)));
}

ProjectionArguments with_tokens(ProjectionArguments layer, const Sublayer& of, void* tokens, void* output) {
    layer.rows = of.rows;
    layer.tokens.data = tokens;
    layer.output.data = output;
    layer.tokens.dtype = layer.output.dtype = of.tokens.dtype;
    return layer;
}

// Whether a layer is computed as one of few tokens, which has no activation: also where there is no kernel for many.
bool is_few(const ProjectionArguments& layer) {
    if (layer.rows <= few_tokens) return true;
    if (layer.weight.dtype != layer.tokens.dtype) return false;
    const int64_t unit = linear_unit(layer.tokens.dtype);
    return unit == 0 || layer.inputs % unit != 0;
}

void multiply(const ProjectionArguments& layer, int threads, Activation activation = Activation::identity) {
    if (is_few(layer)) return project(layer, threads);
    linear({layer, activation}, threads);
}

// Calls body(row) for each row.
template <class Body>
void for_rows(int64_t rows, int threads, Body body) {
    if (rows <= few_tokens) {
        for (int64_t row = 0; row < rows; ++row) body(row);
        return;
    }
    parallel_for_owned(ceil_div(rows, few_tokens), threads, [&](int64_t task, int) {
        for (int64_t row = task * few_tokens; row < std::min(task * few_tokens + few_tokens, rows); ++row) body(row);
    });
}

// Tokens after the norm before the sublayer.
class NormalizedTokens {
public:
    NormalizedTokens(const Sublayer& of, const SublayerKernels& kernels, int threads) : data_(of.tokens.data) {
        if (!of.before) return;
        const Dtype dtype = of.tokens.dtype;
        normalized_ = make_rows(of.rows, of.width, dtype);
        data_ = normalized_.as<char>();
        const Rows from(of.tokens.data, of.width, dtype), to(data_, of.width, dtype);
        for_rows(of.rows, threads, [&](int64_t row) { kernels.normalize(of.before, from[row], to[row], of.width); });
    }
    void* data() const { return data_; }

private:
    Scratch normalized_;
    void* data_;
};

// output = after(tokens + of_output(update))
void finish(const Sublayer& of, const SublayerKernels& kernels, void* update, int threads) {
    const Rows tokens(of.tokens.data, of.width, of.tokens.dtype), output(of.output.data, of.width, of.tokens.dtype);
    const Rows updates(update, of.width, of.tokens.dtype);
    for_rows(of.rows, threads, [&](int64_t row) {
        if (of.of_output) kernels.normalize(of.of_output, updates[row], updates[row], of.width);
        kernels.add(tokens[row], updates[row], output[row], of.width);
        if (of.after) kernels.normalize(of.after, output[row], output[row], of.width);
    });
}

// Computes layers of the same tokens.
void multiply_all(const std::vector<ProjectionArguments>& layers, int threads) {
    if (!std::all_of(layers.begin(), layers.end(), is_few)) {
        for (const ProjectionArguments& layer : layers) multiply(layer, threads);
        return;
    }
    std::vector<PackedProjection> packed;
    packed.reserve(layers.size());
    int64_t tasks = 0;
    for (const ProjectionArguments& layer : layers) {
        packed.emplace_back(layer, threads);
        tasks += packed.back().tasks();
    }
    parallel_for_owned(tasks, threads, [&](int64_t task, int) {
        size_t layer = 0;
        for (; task >= packed[layer].tasks(); ++layer) task -= packed[layer].tasks();
        packed[layer].run(task);
    });
}

// Normalizes and rotates the heads of tokens (batch, new tokens, heads, head_dim).
void prepare_heads(const AttentionSublayer& s, const SublayerKernels& kernels, const NormLayer& norm, void* tokens,
                   int64_t heads, const Problem& p, int threads) {
    if (!norm && !s.rotation.cosine) return;
    const Dtype dtype = s.tokens.dtype;
    const Rows all(tokens, p.head_dim, dtype);
    const Rows cosine(s.rotation.cosine.data, s.rotation.rotated, dtype);
    const Rows sine(s.rotation.sine.data, s.rotation.rotated, dtype);
    for_rows(s.rows, threads, [&](int64_t row) {
        for (int64_t head = 0; head < heads; ++head) {
            char* one = all[row * heads + head];
            if (norm) kernels.normalize(norm, one, one, p.head_dim);
            const int64_t token = row % s.rotation.cosine.shape[2];
            if (s.rotation.cosine) kernels.rotate(s.rotation, cosine[token], sine[token], one);
        }
    });
}

// Stores the heads of a new token, rows `row` and on of `from`, as row `place` of an entry, or of a page.
void store_token(const Array& all, int64_t entry, int64_t place, const Rows& from, int64_t row, Dtype dtype) {
    for (int64_t head = 0; head < all.shape[1]; ++head) {
        char* to = static_cast<char*>(all.data) +
                   all.at(entry, head, place, 0) * static_cast<int64_t>(dtype_size(all.dtype));
        if (all.dtype == Dtype::int8)
            int8_row_kernels_in_use(dtype).quantize(from[row + head], reinterpret_cast<int8_t*>(to),
                                                    numbers_in_row(all.dtype, all.shape[3]));
        else
            memcpy(to, from[row + head], from.bytes_of_row());
    }
}

// Stores new tokens (batch, new tokens, heads, size) at the end of `all` (batch, heads, tokens, size).
void append(const Array& all, void* tokens, Dtype dtype, int64_t added, int threads) {
    const Rows from(tokens, numbers_in_row(all.dtype, all.shape[3]), dtype);
    for_rows(all.shape[0] * added, threads, [&](int64_t row) {
        store_token(all, row / added, all.shape[2] - added + row % added, from, row * all.shape[1], dtype);
    });
}

// The same for pages: new tokens are the last of each sequence.
void append_to_pages(const Array& all, const Pages& pages, void* tokens, Dtype dtype, const Problem& p) {
    const Rows from(tokens, numbers_in_row(all.dtype, all.shape[3]), dtype);
    const int64_t page_size = all.shape[2];
    int64_t row = 0;
    for (int64_t sequence = 0; sequence < pages.sequences(); ++sequence)
        for (int64_t place = pages.length(sequence) - pages.count(p, sequence); place < pages.length(sequence); ++place) {
            const int64_t page = page_index(pages.table, sequence, place / page_size);
            store_token(all, page, place % page_size, from, row, dtype);
            row += all.shape[1];
        }
}

}  // namespace

void activate(const ActivationArguments& arguments, int threads) {
    constexpr int64_t block = 16384;  // elements, a multiple of every vector: smaller ones cost more than a thread saves
    const Dtype dtype = arguments.tokens.dtype;
    const SublayerKernels& kernels = sublayer_kernels_in_use(dtype);
    const auto each = static_cast<int64_t>(dtype_size(dtype));
    parallel_for(ceil_div(arguments.count, block), threads, [&](int64_t task, int) {
        const int64_t count = std::min(block, arguments.count - task * block), at = task * block * each;
        const char* from = static_cast<const char*>(arguments.tokens.data) + at;
        char* to = static_cast<char*>(arguments.output.data) + at;
        if (arguments.gradient)
            kernels.differentiate(arguments.activation, from, static_cast<const char*>(arguments.gradient.data) + at, to,
                                  count);
        else
            kernels.activate(arguments.activation, from, nullptr, to, count);
    });
}

void normalize_rows(const NormLayer& norm, const Array& tokens, int64_t rows, int64_t width) {
    const SublayerKernels& kernels = sublayer_kernels_in_use(tokens.dtype);
    const Rows each(tokens.data, width, tokens.dtype);
    for (int64_t row = 0; row < rows; ++row) kernels.normalize(norm, each[row], each[row], width);
}

static void run_feed_forward(const FeedForwardSublayer& s, int threads) {
    const Dtype dtype = s.tokens.dtype;
    const SublayerKernels& kernels = sublayer_kernels_in_use(dtype);
    const int64_t inner = s.up.outputs;
    const NormalizedTokens tokens(s, kernels, threads);
    const Scratch of_up = make_rows(s.rows, inner, dtype), of_gate = make_rows(s.gate.weight ? s.rows : 0, inner, dtype);
    const Scratch update = make_rows(s.rows, s.width, dtype);
    const Rows up(of_up.as<char>(), inner, dtype), gate(of_gate.as<char>(), inner, dtype);
    const ProjectionArguments up_layer = with_tokens(s.up, s, tokens.data(), of_up.as<char>());
    const ProjectionArguments gate_layer = with_tokens(s.gate, s, tokens.data(), of_gate.as<char>());
    // up = activation(up), or activation(gate) * up, of the numbers from `first` on
    const auto activate = [&](int64_t row, int64_t first, int64_t count) {
        const int64_t at = first * static_cast<int64_t>(dtype_size(dtype));
        char* own = up[row] + at;
        if (s.gate.weight)
            kernels.activate(s.activation, gate[row] + at, own, own, count);
        else
            kernels.activate(s.activation, own, nullptr, own, count);
    };
    if (is_few(up_layer)) {
        std::vector<PackedProjection> packed;
        packed.reserve(2);
        packed.emplace_back(up_layer, threads);
        if (s.gate.weight) packed.emplace_back(gate_layer, threads);
        REGARD_ASSERT(packed.front().tasks() == packed.back().tasks() && packed.front().stop(0) == packed.back().stop(0));
        parallel_for_owned(packed[0].tasks(), threads, [&](int64_t task, int) {
            for (const PackedProjection& layer : packed) layer.run(task);
            const int64_t first = packed[0].first(task), count = packed[0].stop(task) - first;
            for (int64_t row = 0; row < s.rows; ++row) activate(row, first, count);
        });
    } else if (s.gate.weight) {
        multiply_all({up_layer, gate_layer}, threads);
        for_rows(s.rows, threads, [&](int64_t row) { activate(row, 0, inner); });
    } else {
        multiply(up_layer, threads, s.activation);
    }
    multiply(with_tokens(s.down, s, of_up.as<char>(), update.as<char>()), threads);
    finish(s, kernels, update.as<char>(), threads);
}

static void run_attention(const AttentionSublayer& s, const Problem& p, int threads) {
    const Dtype dtype = s.tokens.dtype;
    const SublayerKernels& kernels = sublayer_kernels_in_use(dtype);
    const NormalizedTokens tokens(s, kernels, threads);
    const bool appends = static_cast<bool>(s.key_layer.weight);
    const Scratch keys = make_rows(appends ? s.rows : 0, s.key_layer.outputs, dtype);
    const Scratch values = make_rows(appends ? s.rows : 0, s.value_layer.outputs, dtype);
    const Scratch update = make_rows(s.rows, s.width, dtype);
    std::vector<ProjectionArguments> layers = {with_tokens(s.query_layer, s, tokens.data(), s.query.data)};
    if (appends) {
        layers.push_back(with_tokens(s.key_layer, s, tokens.data(), keys.as<char>()));
        layers.push_back(with_tokens(s.value_layer, s, tokens.data(), values.as<char>()));
    }
    multiply_all(layers, threads);
    prepare_heads(s, kernels, s.query_norm, s.query.data, p.heads, p, threads);
    const bool in_pages = static_cast<bool>(s.pages.key);
    if (appends) {
        prepare_heads(s, kernels, s.key_norm, keys.as<char>(), p.key_heads, p, threads);
        if (in_pages) {
            append_to_pages(s.pages.key, s.pages, keys.as<char>(), dtype, p);
            append_to_pages(s.pages.value, s.pages, values.as<char>(), dtype, p);
        } else {
            append(p.key, keys.as<char>(), dtype, p.queries, threads);
            append(p.value, values.as<char>(), dtype, p.queries, threads);
        }
    }
    const ForwardResults results = {s.mixed, {}, {}, {}};
    if (in_pages)
        paged(p, s.pages, results, threads);
    else
        forward(p, results, threads);
    multiply(with_tokens(s.output_layer, s, s.mixed.data, update.as<char>()), threads);
    finish(s, kernels, update.as<char>(), threads);
}

void feed_forward_sublayer(const FeedForwardSublayer& s, int threads) {
    if (s.rows > 0) in_one_region(threads, [&] { run_feed_forward(s, threads); });
}

void attention_sublayer(const AttentionSublayer& s, const Problem& p, int threads) {
    if (s.rows > 0) in_one_region(threads, [&] { run_attention(s, p, threads); });
}

}  // namespace regard

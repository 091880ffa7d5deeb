#include "decode/decoder_stack.h"

#include <algorithm>

#include "runtime/parallel.h"

namespace regard {
namespace {

// Heads (batch, heads, tokens, size) in memory, stored as (batch, tokens, heads, size).
Array heads_in(const Scratch& memory, const Problem& p, int64_t size, Dtype dtype) {
    Array array;
    array.data = memory.as<char>();
    array.dtype = dtype;
    const int64_t shape[4] = {p.batch, p.heads, p.queries, size};
    const int64_t stride[4] = {p.queries * p.heads * size, size, p.heads * size, 1};
    std::copy(shape, shape + 4, array.shape);
    std::copy(stride, stride + 4, array.stride);
    return array;
}

}  // namespace

static void run_layers(std::vector<DecoderLayer>& layers, const NormLayer& norm, const ProjectionArguments& output,
                       int threads) {
    if (layers.empty() || layers.front().attention.rows == 0) return;
    const Sublayer& first = layers.front().attention;
    const size_t each = dtype_size(first.tokens.dtype);
    int64_t of_queries = 0, of_mixed = 0;
    for (const DecoderLayer& layer : layers) {
        of_queries = std::max(of_queries, layer.problem.heads * layer.problem.head_dim);
        of_mixed = std::max(of_mixed, layer.problem.heads * layer.problem.value_dim);
    }
    const Scratch queries(Scratch::bytes_of({first.rows, of_queries}, each));
    const Scratch mixed(Scratch::bytes_of({first.rows, of_mixed}, each));
    const Scratch attended(Scratch::bytes_of({first.rows, first.width}, each));
    Array tokens = first.tokens;
    for (DecoderLayer& layer : layers) {
        Problem& p = layer.problem;
        layer.attention.query = p.query = heads_in(queries, p, p.head_dim, tokens.dtype);
        layer.attention.mixed = heads_in(mixed, p, p.value_dim, tokens.dtype);
        layer.attention.tokens = tokens;
        layer.attention.output = layer.feed_forward.tokens = tokens;
        layer.attention.output.data = layer.feed_forward.tokens.data = attended.as<char>();
        attention_sublayer(layer.attention, p, threads);
        feed_forward_sublayer(layer.feed_forward, threads);
        tokens = layer.feed_forward.output;
    }
    if (norm) normalize_rows(norm, tokens, first.rows, first.width);
    if (!output.weight) return;
    ProjectionArguments logits = output;
    logits.rows = first.rows;
    logits.tokens = tokens;
    project(logits, threads);
}

// A step has some six stages for each layer, of some ten microseconds of memory reads each with many cores: one team.
void decoder_stack(std::vector<DecoderLayer>& layers, const NormLayer& norm, const ProjectionArguments& output,
                   int threads) {
    in_one_region(threads, [&] { run_layers(layers, norm, output, threads); });
}

}  // namespace regard

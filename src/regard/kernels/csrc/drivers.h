// Drivers, which the binding calls: one function per operation. They allocate scratch memory (and may throw
// std::bad_alloc), split the work into tasks, and write every element of their results. Arguments were checked by
// arguments.h.
#pragma once

#include "problem.h"

namespace regard {

// Results of a forward pass. All but output may be absent. rounding is the rounding error of output, in half precision
// only. The backward pass needs their sum, see delta in backward.h, and the normalizer of each row, see normalizer.h.
struct ForwardResults {
    Array output, lse, rounding, normalizer;
};
void forward(const Problem& problem, const ForwardResults& results, int threads);

// Gradients of the results (output, and below the line those of the statistics) and, as outputs, of the arguments.
struct Gradients {
    Array output, query, key, value, bias, table;
    Array lse, log_weight, column, top_keys, top, rows, rows_weights;
    Array vector;  // additive attention: parts of it, (batch, heads, key_tiles, inner)
};
void backward(const Problem& problem, const ForwardResults& results, const Gradients& gradients, int threads);

struct Statistics {
    Array entropy, received, top_keys, top_weights, rows, rows_weights;
};
void observe(const Problem& problem, const ForwardResults& results, const Statistics& statistics, int threads);

// key (pages, key_heads, page_size, head_dim), value likewise, table (batch, max_pages), lengths (batch): keys in use.
struct Pages {
    Array key, value, table, lengths;
};
void paged(const Problem& problem, const Pages& pages, const ForwardResults& results, int threads);

// score_ij = vector . tanh(of_query_i + of_key_j), with vector (heads, inner).
struct Additive {
    Array of_query, of_key, vector;
};
void additive_forward(const Problem& problem, const Additive& additive, const ForwardResults& results, int threads);

struct AdditiveGradients {
    Array output, of_query, of_key, vector, value, bias, table, lse;
};
void additive_backward(
    const Problem& problem, const Additive& additive, const ForwardResults& results, const AdditiveGradients& gradients,
    int threads);

// tokens and output (count) of one dtype, contiguous.
struct DropoutArguments {
    Array tokens, output;
    int64_t count = 0;
    double probability = 0;
    uint64_t seed = 0;
};
void dropout(const DropoutArguments& dropout_arguments, int threads);

// logits (rows, classes) and targets (rows), contiguous. The loss of a row whose target is `ignored` is 0.
struct CrossEntropyArguments {
    Array logits, targets;
    int64_t rows = 0, classes = 0;
    double smoothing = 0;
    int64_t ignored = -1;
};
// In wide precision: loss (rows), and normalizer (rows, 2), the largest logit of a row and log2 of the sum.
struct CrossEntropyResults {
    Array loss, normalizer;
};
void cross_entropy(const CrossEntropyArguments& given, const CrossEntropyResults& results, int threads);

// The gradients of the losses, the normalizer of the forward pass, and, as output, the gradients of the logits.
struct CrossEntropyGradients {
    Array loss, normalizer, logits;
};
void cross_entropy_backward(const CrossEntropyArguments& given, const CrossEntropyGradients& gradients, int threads);

}  // namespace regard

// Drivers, which the binding calls: one function per operation. They allocate scratch memory (and may throw
// std::bad_alloc), split the work into tasks, and write every element of their results. Their arguments must be valid
// (see arguments.h).
#pragma once

#include "tiles/problem.h"

namespace regard {

// Results of a forward pass. All but output may be absent. rounding is the rounding error of output, in half precision
// only. The backward pass needs output + rounding (see delta in backward_pack.h), and normalizer (see normalizer.h).
struct ForwardResults {
    Array output, lse, rounding, normalizer;
};
void forward(const Problem& problem, const ForwardResults& results, int threads);

// Few queries and many keys, as in decoding with a cache (see decode_chunk.h). is_decode_suitable: whether `decode` computes
// the results of `forward` faster than packing keys and values first. It does not support dropout.
bool is_decode_suitable(const Problem& problem);
void decode(const Problem& problem, const ForwardResults& results, int threads);

// Gradients of the output, an input, and of query, key, value, the bias and its table, which are outputs. Those of the
// last two may be absent, and are in the dtype of sums.
struct TokenGradients {
    Array output, query, key, value, bias, table;
};

// Also gradients of the other results, which are inputs, and of other arguments, which are outputs.
struct Gradients : TokenGradients {
    explicit Gradients(const TokenGradients& of_tokens = {}) : TokenGradients(of_tokens) {}

    Array lse, log_weight, column, top_keys, top, rows, rows_weights;  // inputs: of lse and of the statistics
    Array vector;  // additive attention: parts of the gradient, (batch, heads, key_tiles, inner)
    Array sinks, sink_weight;  // output, of the shape of the sinks; input, of the statistic
};
void backward(const Problem& problem, const ForwardResults& results, const Gradients& gradients, int threads);

struct Statistics {
    Array entropy, received, top_keys, top_weights, rows, rows_weights, sink_weight;
};
void observe(const Problem& problem, const ForwardResults& results, const Statistics& statistics, int threads);

// key (pages, key_heads, page_size, head_dim), value likewise, table (sequences, max_pages), lengths (sequences): keys in use.
// The queries stand at the end of each sequence. Without counts, its queries are an entry of the batch; else the batch has
// one entry, in which the counts[i] queries of sequence i follow those of the sequences before it.
struct Pages {
    Array key, value, table, lengths;
    Array counts;  // (sequences), or absent

    REGARD_INLINE int64_t sequences() const { return lengths.shape[3]; }
    REGARD_INLINE int64_t length(int64_t sequence) const { return ((const int64_t*)lengths.data)[sequence]; }
    REGARD_INLINE int64_t count(const Problem& p, int64_t sequence) const {
        return counts ? ((const int64_t*)counts.data)[sequence] : p.queries;
    }
};
// The problem of a sequence, from one whose offset is counted from the end of each sequence, as its band is.
REGARD_INLINE Problem with_length(const Problem& p, int64_t length) {
    Problem own = p;
    own.keys = length;
    own.offset += length;
    own.mask.low += own.offset;
    own.mask.high += own.offset;
    return own;
}
void paged(const Problem& problem, const Pages& pages, const ForwardResults& results, int threads);
// `decode` with as many queries of each sequence, at an offset from its end.
void decode_in_pages(const Problem& problem, const Pages& pages, const ForwardResults& results, int threads);

// score_ij = vector . tanh(of_query_i + of_key_j), with vector (heads, inner).
struct Additive {
    Array of_query, of_key, vector;
};
void additive_forward(const Problem& problem, const Additive& additive, const ForwardResults& results, int threads);

struct AdditiveGradients : TokenGradients {
    Array vector, lse;
};
void additive_backward(
    const Problem& problem, const Additive& additive, const ForwardResults& results, const AdditiveGradients& gradients,
    int threads);

// Attention with weights sigmoid(score_ij + b_i) in place of the softmax. score_bias: b as one float64 number; absent:
// b_i is -log of the number of keys that query i may attend to. Results: output and normalizer.
void sigmoid_forward(const Problem& problem, const Array& score_bias, const ForwardResults& results, int threads);
void sigmoid_backward(const Problem& problem, const Array& normalizer, const TokenGradients& gradients, int threads);

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
// In the dtype of sums: loss (rows), and normalizer (rows, 2), the largest logit of a row and log2 of the sum.
struct CrossEntropyResults {
    Array loss, normalizer;
};
void cross_entropy(const CrossEntropyArguments& arguments, const CrossEntropyResults& results, int threads);

// The gradients of the losses, the normalizer of the forward pass, and, as output, the gradients of the logits.
struct CrossEntropyGradients {
    Array loss, normalizer, logits;
};
void cross_entropy_backward(const CrossEntropyArguments& arguments, const CrossEntropyGradients& gradients,
                            int threads);

// The most probable class of each row of logits (rows, classes), contiguous, without the banned ones, int64, and its
// log-probability: see likeliest_class.h.
struct LikeliestArguments {
    Array logits, banned;
    int64_t rows = 0, classes = 0, num_banned = 0;
};
// classes (rows), int64, and log_probability (rows) in the dtype of sums.
struct LikeliestResults {
    Array classes, log_probability;
};
void likeliest_class(const LikeliestArguments& arguments, const LikeliestResults& results, int threads);

// A state that decays and is updated token by token (see scan.h). query and key (batch, heads, length, head_dim), value
// (batch, heads, length, value_dim), log_decay (batch, heads, length, 1 or head_dim) or absent, beta (batch, heads,
// length, 1) for the delta rule or absent, state (batch, heads, head_dim, value_dim), the initial one, or absent.
struct ScanArguments {
    Array query, key, value, log_decay, beta, state;
    int64_t batch = 0, heads = 0, length = 0, head_dim = 0, value_dim = 0;
    double scale = 1;  // of the queries

    REGARD_INLINE bool by_channel() const { return log_decay && log_decay.shape[3] > 1; }
};
struct ScanResults {
    Array output, state;
};
// Returns whether no log_decay is above 0; else the results are undefined.
bool scan(const ScanArguments& given, const ScanResults& results, int threads);

// Gradients of the results (the state's may be absent) and, as outputs, of the arguments, absent where those are.
struct ScanGradients {
    Array output, final_state;
    Array query, key, value, log_decay, beta, state;
};
void scan_backward(const ScanArguments& given, const ScanGradients& gradients, int threads);

// Cells of attention over tokens that are sorted by bucket (see bucket_cells.cpp), for each of `groups` heads. All arrays
// are contiguous; tokens (groups, places) are indices, -1 for an empty place; buckets (groups, tokens, rounds).
struct BucketArguments {
    const int32_t *query_token = nullptr, *key_token = nullptr, *query_buckets = nullptr, *key_buckets = nullptr;
    const int64_t* row_start = nullptr;  // (groups, query_tiles + 1): entries of each row of tiles
    const int32_t* key_tile = nullptr;   // (entries)
    uint64_t* bitmaps = nullptr;         // (entries, 64), written
    int64_t groups = 0, query_places = 0, key_places = 0, queries = 0, keys = 0, rounds = 0;
    int64_t buckets = 0;  // of earlier rounds: above all of their bucket numbers
    int64_t round = 0;   // the present one; pairs of earlier rounds are left out
    int64_t high = unbounded_high;  // of key - query, in indices of tokens
    int64_t offset = 0;  // key - query of a token and itself
    bool except_self = false;
    int64_t chunk = 0;   // places in a chunk; 0: no chunks
    const int64_t* last_chunk = nullptr;  // (groups): the last chunk that is used, counted within each round
};
void bucket_cells(const BucketArguments& given, int threads);

// Attention to the keys at `positions` (batch, position_heads, queries, count), int32: for each query ascending, then -1.
// position_heads is 1, the number of key heads, or that of heads. Numbers that are no key are ignored.
struct GatheredArguments {
    Problem problem;  // its mask is not read
    Array positions;
    int64_t count = 0;
    Array output;              // written by the forward pass
    TokenGradients gradients;  // of the backward pass

    REGARD_INLINE int64_t position_head(int64_t head) const {
        const int64_t of = positions.shape[1];
        return of == problem.heads ? head : of == 1 ? 0 : head / problem.group();
    }
    // Whether all heads that share a key head have the same positions.
    REGARD_INLINE bool is_shared() const { return problem.group() == 1 || positions.shape[1] != problem.heads; }
};
void gathered_forward(const GatheredArguments& given, int threads);
void gathered_backward(const GatheredArguments& given, int threads);

// Causal attention to the own block of each query, and to complete blocks before it that `chosen` (batch, heads, queries,
// blocks), bool, marks. Keys from problem.mask.stop on are hidden. float32 and float64, without dropout.
struct ChosenArguments {
    Problem problem;  // of its mask only `stop` is read
    Array chosen;     // contiguous, and a copy: it is counted first, and read again
    int64_t block = 0;  // keys in a block, a multiple of 64
    Array output, normalizer;  // written by the forward pass, and read by the backward pass
};
void chosen_blocks_forward(const ChosenArguments& given, int threads);
void chosen_blocks_backward(const ChosenArguments& given, const TokenGradients& gradients, int threads);

// The blocks before the own one that each query chooses by weights of compressed attention (see block_importance.h).
struct ImportanceArguments {
    Array query;    // (batch, heads, queries, head_dim); not float64
    Array key;      // (batch, key_heads, compressed, head_dim) float32: compressed keys times the scale
    Array visible;  // (1, 1, batch or 1, queries) int64: the number of keys that each query may see
    Array chosen;   // (batch, key_heads, queries, blocks) bool, written; contiguous blocks
    Array certain;  // (1, batch, key_heads, queries) bool, written: whether the choice is that of exact weights
    int64_t block = 0, compressed_block = 0, stride = 0;  // in keys
    int64_t count = 0;  // blocks to be chosen
};
void block_importance(const ImportanceArguments& given, int threads);

// The positions of the `count` keys with the highest scores of each query, of equal ones the first, among those that the
// mask of the problem allows; ascending, then -1. The score is q . k; or, if `summed`, sum_h w_h relu(q_h . k) over the
// score heads, the same for all heads of the problem. It is summed in float64 and rounded to float32.
struct HighestArguments {
    Problem problem;    // query (batch, score_heads, queries, head_dim); heads are those of mask and positions
    int64_t score_heads = 0;
    bool summed = false;
    Array weight;       // (batch, score_heads, queries, 1) of a sum, or absent: 1
    Array first;        // bool (batch, heads or 1, 1, keys): keys that are chosen before all others; or absent
    Array positions;    // int32 (batch, heads, queries, count), written
    int64_t count = 0;
};
void highest_keys(const HighestArguments& given, int threads);

}  // namespace regard

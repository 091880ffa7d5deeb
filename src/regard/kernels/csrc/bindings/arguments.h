// The arguments of an operation, checked before any memory is allocated.
//
// The Python side has already checked the arguments of users. These checks catch errors in regard itself that would
// read or write outside of the arrays: in sizes, dtypes, and the contents of index arrays.
#pragma once

#include <nanobind/nanobind.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "bindings/array.h"
#include "buckets/sorted_tokens.h"
#include "decode/decoder_stack.h"
#include "decode/sublayer_kernels.h"
#include "drivers.h"
#include "linear/linear_kernels.h"
#include "linear/projection_kernels.h"
#include "linear/weight_gradient_kernels.h"
#include "runtime/floating_point.h"
#include "tiles/problem.h"

namespace regard {

inline constexpr int64_t max_head_dim = 640;
inline constexpr int64_t max_scan_dim = 1024;
inline constexpr int64_t max_length = int64_t{1} << 36;  // queries or keys: their tiles are counted in 32 bits

// Keyword arguments that operations share.
struct Options {
    std::optional<int64_t> low, high;
    nanobind::handle start, stop, row_start, key_tile, bitmap, bitmaps, dense;
    double scale = 1;
    nanobind::handle bias, table;
    int64_t table_lowest = 0;
    double dropout = 0;
    int64_t seed = 0;
    int threads = 1;
};

// The activation of this name. Raises ValueError for an unknown one.
Activation to_activation(const std::string& name);

// The layers and norms of an attention sublayer: see sublayer_arguments.cpp.
struct AttentionSublayerParts {
    nanobind::handle query_layer, key_layer, value_layer, output_layer;
    nanobind::handle before, of_output, after, query_norm, key_norm, rotation;
};

// One call: the problem, and the arrays that it borrows for its duration. Every method raises ValueError or TypeError,
// with the name of the argument, for invalid arguments.
//
// Index arrays are copied before they are checked, since another thread may write to the caller's array while the
// kernel reads it. The bits of masks and top_keys are not copied, since none of their values leads outside of the
// arrays: top_keys are compared with a range when they are read.
class Call {
public:
    using Shape = std::initializer_list<int64_t>;
    enum class None { reject, accept };  // accepted, None becomes an absent array

    explicit Call(const Options& options);

    // Reads query, key and value into the problem. For additive attention head_dim is its inner size, without a limit.
    void read_problem(nanobind::handle query, nanobind::handle key, nanobind::handle value,
                      int64_t largest = max_head_dim);
    // Reads what changes the scores or the sum of a softmax: a cap, a number, and sinks. Both may be None.
    void read_cap_and_sinks(nanobind::handle softcap, nanobind::handle sinks);
    // Reads a query and paged keys and values into the problem.
    Pages read_paged_problem(nanobind::handle query, nanobind::handle key_pages, nanobind::handle value_pages,
                     nanobind::handle page_table, nanobind::handle lengths);

    // Reads the arguments of dropout of a contiguous array into another one, with the options' dropout and seed.
    DropoutArguments read_dropout(nanobind::handle tokens, nanobind::handle output);
    // Reads the arguments of an activation of a contiguous array, or of its gradient, which may be None.
    ActivationArguments read_activation(nanobind::handle tokens, nanobind::handle gradient, nanobind::handle output,
                                        const std::string& activation);
    // Reads the arguments of cross-entropy of contiguous logits (rows, classes) with int64 targets (rows).
    CrossEntropyArguments read_cross_entropy(nanobind::handle logits, nanobind::handle targets, double smoothing,
                                             int64_t ignored);

    // Reads contiguous logits (rows, classes), and indices of classes, of which there may be none.
    LikeliestArguments read_likeliest(nanobind::handle logits, nanobind::handle banned);

    // Reads the arguments of a linear layer of few tokens. The scale of int8 weights, and the bias, may be None.
    ProjectionArguments read_projection(nanobind::handle tokens, nanobind::handle weight, nanobind::handle scale,
                                        nanobind::handle bias, nanobind::handle output);

    // Reads the arguments of a linear layer of many tokens. The bias may be None.
    LinearArguments read_linear(nanobind::handle tokens, nanobind::handle weight, nanobind::handle bias,
                                nanobind::handle output, const std::string& activation);

    // Reads the arguments of a decoder's sublayers: see sublayer_arguments.cpp. That of attention is a problem as well.
    FeedForwardSublayer read_feed_forward(nanobind::handle tokens, nanobind::handle up, nanobind::handle gate,
                                          nanobind::handle down, nanobind::handle output, const std::string& activation,
                                          nanobind::handle before, nanobind::handle of_output, nanobind::handle after);
    AttentionSublayer read_attention_sublayer(nanobind::handle tokens, nanobind::handle query, nanobind::handle key,
                                              nanobind::handle value, nanobind::handle mixed, nanobind::handle output,
                                              const AttentionSublayerParts& parts);

    // Reads a layer of a decoder for all steps, and what a step adds to it: see decoder_stack_arguments.cpp.
    DecoderLayer read_decoder_layer(nanobind::handle layer, int64_t width, Dtype dtype);
    NormLayer read_norm(nanobind::handle norm, const char* name, int64_t width, Dtype dtype);
    DecoderLayer with_step(const DecoderLayer& layer, nanobind::handle step, int64_t batch, int64_t length);
    DecoderLayer with_pages(const DecoderLayer& layer, nanobind::handle step, int64_t batch);

    // Reads the arguments of the gradient of a linear layer's weight. That of the bias may be None.
    WeightGradientArguments read_weight_gradient(nanobind::handle tokens, nanobind::handle gradient,
                                                 nanobind::handle of_weight, nanobind::handle of_bias);

    // Reads the arguments of a scan. The last three may be None, and in the dtype of the others or in wide precision.
    ScanArguments read_scan(nanobind::handle query, nanobind::handle key, nanobind::handle value,
                            nanobind::handle log_decay, nanobind::handle beta, nanobind::handle state);

    // Reads tokens at places (groups, places), buckets of tokens (groups, tokens, rounds), and a tile map whose bitmaps
    // (entries, 64) are to be written.
    BucketArguments read_buckets(nanobind::handle query_token, nanobind::handle key_token, nanobind::handle query_buckets,
                                 nanobind::handle key_buckets, nanobind::handle row_start, nanobind::handle key_tile,
                                 nanobind::handle bitmaps, int64_t round, int64_t buckets, int64_t chunk,
                                 nanobind::handle last_chunk);

    // Reads the arguments of hash buckets (see sorted_tokens.h). Those of rows are float32 or float64.
    HashArguments read_hash(nanobind::handle tokens, nanobind::handle rotations, nanobind::handle factors,
                            nanobind::handle buckets);
    BucketCounts read_bucket_sizes(nanobind::handle codes, nanobind::handle sizes);
    BucketPlaces read_bucket_places(nanobind::handle codes, nanobind::handle start, nanobind::handle token,
                                    nanobind::handle place);
    BucketTiles read_bucket_tiles(nanobind::handle query_token, nanobind::handle key_token,
                                  nanobind::handle query_start, nanobind::handle key_start,
                                  nanobind::handle row_start, nanobind::handle key_tile);
    SortedRows read_sorted_rows(nanobind::handle rows, nanobind::handle token, nanobind::handle sorted,
                                nanobind::handle divided);
    SortedGradients read_sorted_gradients(nanobind::handle grad_output, nanobind::handle output,
                                          nanobind::handle normalizer, nanobind::handle token, nanobind::handle sorted,
                                          nanobind::handle sorted_normalizer, nanobind::handle grad_lse);
    MergedRounds read_merged_rounds(nanobind::handle sorted, nanobind::handle sorted_normalizer,
                                    nanobind::handle place, nanobind::handle output, nanobind::handle normalizer);
    AddedRows read_added_rows(nanobind::handle sorted, nanobind::handle place, nanobind::handle into,
                              nanobind::handle divided);

    // Reads query, key and value into the problem, and the positions of the keys of each query.
    GatheredArguments read_gathered(nanobind::handle query, nanobind::handle key, nanobind::handle value,
                                    nanobind::handle positions);
    // Reads query, key and value into the problem, and which blocks of keys each query chose.
    ChosenArguments read_chosen(nanobind::handle query, nanobind::handle key, nanobind::handle value,
                                nanobind::handle chosen, int64_t block);
    // Reads queries and compressed keys in float32, the number of visible keys, and what is to be written.
    ImportanceArguments read_importance(nanobind::handle query, nanobind::handle key, nanobind::handle visible,
                                        nanobind::handle chosen, nanobind::handle certain);
    // Reads scores' queries and keys into the problem, whose heads are those of the positions to be written.
    HighestArguments read_highest(nanobind::handle query, nanobind::handle key, nanobind::handle weight,
                                  nanobind::handle first, nanobind::handle positions, bool summed);

    // Reads an array of any shape and dtype.
    Array take(nanobind::handle object, const char* name, None none = None::reject);
    // Reads an array of the given shape, whose leading sizes of 1 may be left out, and dtype.
    Array read(nanobind::handle object, const char* name, Shape shape, Dtype dtype, None none = None::reject);
    // Reads an array as `read` does, and copies it to contiguous memory.
    Array read_copy(nanobind::handle object, const char* name, Shape shape, Dtype dtype);
    // Copies an int64 array of one dimension, whose elements must be in 0 .. stop - 1.
    Array read_indices(nanobind::handle object, const char* name, int64_t stop, None none = None::reject);
    // Raises if `array` is present and `needed` is absent.
    static void require_pair(const Array& array, const char* name, const Array& needed, const char* name_of_needed);
    // Reads an array as `read` does, to be written: its elements must not overlap.
    Array write(nanobind::handle object, const char* name, Shape shape, Dtype dtype, None none = None::reject);
    // As `read` and `write`, for arrays that must be contiguous.
    Array read_contiguous(nanobind::handle object, const char* name, Shape shape, Dtype dtype);
    Array write_contiguous(nanobind::handle object, const char* name, Shape shape, Dtype dtype);

    // The dtype of sums and statistics: float64 for float64, else float32.
    Dtype accumulation_dtype() const { return problem.query.dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32; }
    Dtype dtype() const { return problem.query.dtype; }
    int threads() const { return options_.threads; }

    Problem problem;

private:
    // Reads contiguous logits (rows, classes) of one class or more.
    Array read_logits(nanobind::handle logits);
    Array broadcast(nanobind::handle object, const char* name);
    Array broadcast(nanobind::handle object, const char* name, int64_t columns);
    void check_sizes(int64_t largest);
    // Copies int32 indices, which must be in -1 .. stop - 1.
    const int32_t* copy_indices(nanobind::handle object, const char* name, Shape shape, int64_t stop);
    BucketCounts read_bucket_counts(nanobind::handle codes, int64_t buckets);
    void read_tokens(nanobind::handle query, nanobind::handle key, nanobind::handle value, int64_t largest);
    void read_mask();
    void read_band(std::optional<int64_t> low, std::optional<int64_t> high);
    void read_interval();
    void read_sublayer(Sublayer& sublayer, nanobind::handle tokens, nanobind::handle output, nanobind::handle before,
                       nanobind::handle of_output, nanobind::handle after);
    void read_norms(Sublayer& sublayer, nanobind::handle before, nanobind::handle of_output, nanobind::handle after);
    void read_feed_forward_layers(FeedForwardSublayer& given, nanobind::handle up, nanobind::handle gate,
                                  nanobind::handle down, const std::string& activation);
    void read_attention_layers(AttentionSublayer& given, const AttentionSublayerParts& parts);
    // Reads rows of the storage of keys or values, to be written.
    Array read_stored(nanobind::handle object, const char* name, int64_t size, int64_t begin, int64_t end, Dtype dtype);
    // Reads a linear layer, whose outputs are of any number if `outputs` is negative.
    ProjectionArguments read_layer(nanobind::handle layer, const char* name, int64_t inputs, int64_t outputs, Dtype dtype);
    // Reads the factors of `count` tokens.
    RotationFactors read_rotation(nanobind::handle rotation, Dtype dtype, int64_t count);
    // Reads the pages of each sequence, and their lengths, for pages that were read.
    void read_page_table(Pages& pages, nanobind::handle page_table, nanobind::handle lengths);
    Array read_pages(nanobind::handle object, const char* name, int64_t page_size, int64_t size, Dtype dtype);
    const int64_t* copy_bounds(nanobind::handle object, const char* name);
    void read_tile_map();
    void read_table();
    template <class Number>
    void copy_table();

    const DefaultFloatingPoint arithmetic_;  // for the duration of the call
    const Options& options_;
    BorrowedArrays borrowed_;
    std::vector<char> table_;
};

}  // namespace regard

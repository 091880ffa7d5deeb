// The arguments of attention that several families read: query, key and value, the parts of a mask, biases, a cap, sinks,
// pages of keys and values, and the arrays of results and gradients.
#pragma once

#include "bindings/arguments.h"
#include "drivers.h"

namespace regard {

// Reads the query into the problem, and with it the numbers of entries, heads and queries, and head_dim.
void read_query(Call& call, nanobind::handle query);
// Reads query, key and value into the problem, whose head_dim and value_dim are `largest` at most.
void read_tokens(Call& call, nanobind::handle query, nanobind::handle key, nanobind::handle value,
                 int64_t largest = max_head_dim);
// The same, and of the options the mask, the bias and the table. The queries, and the keys with their values, may be lists
// of rows, int32 (batch, heads, places), with -1 for a row of zeros.
void read_problem(Call& call, nanobind::handle query, nanobind::handle key, nanobind::handle value,
                  int64_t largest = max_head_dim, nanobind::handle query_rows = nanobind::none(),
                  nanobind::handle key_rows = nanobind::none());
// The same, of keys and values that may be rounded.
void read_problem_of_cache(Call& call, nanobind::handle query, nanobind::handle key, nanobind::handle value);
// Checks the dtypes of keys and values of a cache, for tokens of `tokens`: the same, or both rounded to int8
// (decode/stored_rows.h), with contiguous rows.
void check_stored(const Array& key, const char* name_of_key, const Array& value, const char* name_of_value, Dtype tokens);
// Checks the sizes of the problem, and completes it.
void check_sizes(Problem& problem, int64_t largest = max_head_dim);

// Reads what changes the scores or the sum of a softmax: a cap, a number, and sinks. Both may be None.
void read_cap_and_sinks(Call& call, nanobind::handle softcap, nanobind::handle sinks);

// Reads the mask of the options into the problem.
void read_mask(Call& call);
void read_band(Problem& problem, std::optional<int64_t> low, std::optional<int64_t> high);
// Copies a bound for each entry of the batch, clamped to 0 .. keys; null for None.
const int64_t* copy_bounds(Call& call, nanobind::handle object, const char* name);

// Reads the pages of each sequence, its length and, unless they are None, the number of its queries in the one entry of the
// batch, for pages that were read. Sets the number of keys of the problem.
void read_page_table(Call& call, Pages& pages, nanobind::handle page_table, nanobind::handle lengths,
                     nanobind::handle counts);

// An array of outputs (batch, heads, queries, value_dim), to be read or written.
Array read_output(Call& call, nanobind::handle object, const char* name = "output", Call::None none = Call::None::reject);
Array write_output(Call& call, nanobind::handle object, const char* name = "output", Call::None none = Call::None::reject);
Array write_lse(Call& call, nanobind::handle object);
Array write_normalizer(Call& call, nanobind::handle object);
Array read_normalizer(Call& call, nanobind::handle object);

// The arrays of gradients by the tokens, the bias and the table, of which the last two may be None. The gradients of the
// biases are in the dtype of sums.
TokenGradients read_gradients(Call& call, nanobind::handle grad_output, nanobind::handle grad_query,
                              nanobind::handle grad_key, nanobind::handle grad_value,
                              nanobind::handle grad_bias = nanobind::none(),
                              nanobind::handle grad_table = nanobind::none(),
                              const char* name_of_query = "grad_query", const char* name_of_key = "grad_key");

}  // namespace regard

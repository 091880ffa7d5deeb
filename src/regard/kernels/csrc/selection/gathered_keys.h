// Attention to chosen keys: the rows of each query's keys are read where they are, by their positions.
//
//     s_ij = q_i . k_j,   w_ij = exp(scale (s_ij - max_j s_ij)) / sum_j,   o_i = sum_j w_ij v_j      over the chosen j
//
// and backward, with D_ij = dO_i . v_j and the dropout factor r_ij (1 without dropout):
//
//     dS_ij = scale w_ij (r_ij D_ij - sum_j w_ij r_ij D_ij),   dQ_i = sum_j dS_ij k_j,   dK_j = sum_i dS_ij q_i,
//     dV_j = sum_i w_ij r_ij dO_i
//
// Scores and weights are computed again in the backward pass, so nothing is kept from the forward pass. Positions are
// ascending, so the keys of a range are adjacent among those of a query: a task adds up dK and dV of a range of keys, over
// the queries in order, and no sum depends on how keys are divided into ranges.
//
// Heads that share a key head and its positions are computed together, so that a row is loaded once for up to four.
//
// A row is NaN if its query, or a chosen key or value, has NaN or Inf, and then has no gradient. A query without keys
// has the output 0, and no gradient.
#pragma once

#include <math.h>

#include "decode/decode_products.h"
#include "selection/selection_kernels.h"
#include "tiles/random.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// Rows of chosen keys or values; those further on are prefetched.
template <class T>
struct ChosenRows {
    typedef T storage;
    static constexpr bool in_tiles = false;
    static constexpr int64_t ahead = 12;
    const T* base;
    const int32_t* position;  // `ahead` more than are used
    int64_t row;

    REGARD_INLINE const T* operator[](int64_t j) const { return base + (int64_t)position[j] * row; }
    REGARD_INLINE const T* next(const T*, int64_t j) const {
        const char* later = (const char*)(base + (int64_t)position[j + ahead] * row);
#pragma GCC unroll 4
        for (int64_t b = 0; b < 256; b += 64) __builtin_prefetch(later + b);  // a row of 64 float32 numbers
        return (*this)[j + 1];
    }
    REGARD_INLINE void fetch(const T*, int64_t, int64_t) const {}
};

template <class A>
struct Gathered {
    typedef typename A::number number;
    typedef vec<number> numbers;
    static constexpr int64_t n = lanes<number>;
    static constexpr number infinity = (number)HUGE_VAL;

    static int64_t row(int64_t width) { return padded_width<A>(width); }

    static void pack(const Problem& p, int64_t batch, int64_t key_head, int64_t key_tile, const GatheredTokens& tokens) {
        const int64_t first = key_tile * tile, count = p.keys_in(key_tile);
        const int64_t key_row = row(p.head_dim), value_row = row(p.value_dim);
        number *key = (number*)tokens.key + first * key_row, *value = (number*)tokens.value + first * value_row;
        uint64_t bad = read_rows(p.key, p.key.at(batch, key_head, first, 0), count, count, p.head_dim, key, key_row);
        bad |= read_rows(p.value, p.value.at(batch, key_head, first, 0), count, count, p.value_dim, value, value_row);
        if (bad) {
            clear_rows(bad, p.head_dim, key, key_row);
            clear_rows(bad, p.value_dim, value, value_row);
        }
        tokens.bad[key_tile] = bad;
    }

    struct Memory {
        int32_t* position;
        number *query, *output, *gradient, *scores, *derivatives, *result;
        int64_t width, key_row, value_row;  // width: chosen keys, in whole vectors

        REGARD_INLINE Memory(const GatheredArguments& given, ScratchLayout& layout) {
            const int64_t group = given.problem.group();
            width = (given.count + n - 1) / n * n;
            key_row = row(given.problem.head_dim), value_row = row(given.problem.value_dim);
            position = layout.template take<int32_t>(width + ChosenRows<number>::ahead + 1);
            query = layout.template take<number>(group * key_row);
            gradient = layout.template take<number>(group * value_row);
            output = layout.template take<number>(4 * value_row);
            result = layout.template take<number>(4 * key_row);
            scores = layout.template take<number>(4 * width);
            derivatives = layout.template take<number>(4 * width);
        }
    };
    static size_t scratch(const GatheredArguments& given) {
        return bytes_of_parts([&](ScratchLayout& layout) { Memory(given, layout); });
    }

    // Copies the positions of a query that name a key, so that no other thread can change them meanwhile. Returns their number.
    static REGARD_INLINE int64_t read_positions(const GatheredArguments& given, int64_t batch, int64_t head,
                                                int64_t query, Memory& m) {
        const Array& from = given.positions;
        const int32_t* at = (const int32_t*)from.data + from.at(batch, given.position_head(head), query, 0);
        const uint32_t keys = (uint32_t)min_of(given.problem.keys, INT32_MAX);
        int64_t found = 0, j = 0;
        if (from.stride[3] == 1)
            for (; j + 16 <= given.count; j += 16, found += 16) {
                uint32_t outside = 0;
                for (int i = 0; i < 16; ++i) {
                    const int32_t position = at[j + i];
                    m.position[found + i] = position;
                    outside |= (uint32_t)position >= keys;
                }
                if (outside) break;
            }
        for (; j < given.count; ++j) {
            const int32_t position = at[j * from.stride[3]];
            if ((uint32_t)position >= keys) {
                if (position == -1) break;
                continue;
            }
            m.position[found++] = position;
        }
        for (int64_t j = found; j < m.width + ChosenRows<number>::ahead + 1; ++j) m.position[j] = found ? m.position[0] : 0;
        return found;
    }

    static REGARD_INLINE bool any_bad(const GatheredTokens& tokens, const Memory& m, int64_t found) {
        if (!tokens.any_bad) return false;
        for (int64_t j = 0; j < found; ++j)
            if (tokens.bad[m.position[j] / 64] >> (m.position[j] % 64) & 1) return true;
        return false;
    }

    // Calls body(query, first head of the group, number of heads, found, bad) with the positions read, for each query
    // and each set of heads that share them.
    template <class Body>
    static REGARD_INLINE void for_queries(const GatheredArguments& given, const GatheredTokens& tokens, int64_t batch,
                                          int64_t key_head, int64_t first, int64_t stop, Memory& m, Body body) {
        const int64_t group = given.problem.group(), together = given.is_shared() ? group : 1;
        for (int64_t query = first; query < stop; ++query)
            for (int64_t member = 0; member < group; member += together) {
                const int64_t found = read_positions(given, batch, key_head * group + member, query, m);
                body(query, member, together, found, any_bad(tokens, m, found));
            }
    }

    // The weights of `rows` queries in `scores`, before division by the sums, which are returned. Returns which rows are
    // NaN.
    template <int rows>
    static REGARD_INLINE uint32_t weigh(const GatheredArguments& given, const GatheredTokens& tokens, const Memory& m,
                                        const number* query, int64_t found, number* sums) {
        const number times = (number)(given.problem.scale * log2_e);
        const int64_t stop = (found + n - 1) / n * n;
        score_rows<rows>(ChosenRows<number>{(const number*)tokens.key, m.position, m.key_row}, 0, stop, m.key_row, query,
                         m.key_row, m.scores, m.width);
        uint32_t broken = 0;
        for (int r = 0; r < rows; ++r) {
            number* score = m.scores + r * m.width;
            for (int64_t j = found; j < stop; ++j) score[j] = -infinity;
            numbers most = broadcast(-infinity), sum = {};
            for (int64_t j = 0; j < stop; j += n) most = maximum(most, load(score + j));
            const number largest = max_lane<number>(most);
            for (int64_t j = 0; j < stop; j += n) {
                const numbers w = softmax_weight<A::degree>((load(score + j) - broadcast(largest)) * broadcast(times));
                sum += w;
                store(score + j, w);
            }
            sums[r] = sum_lanes<number>(sum);
            broken |= (uint32_t)!(sums[r] - sums[r] == 0 && largest - largest == 0) << r;
        }
        return broken;
    }

    // Multiplies weights by the factors of dropout.
    static REGARD_INLINE void drop(const GatheredArguments& given, int64_t batch, int64_t head, int64_t query,
                                   int64_t found, number* weights) {
        const Problem& p = given.problem;
        const DropoutMask mask(p.seed, (uint64_t)(batch * p.heads + head), (uint64_t)query);
        const uint32_t threshold = drop_threshold(p.dropout);
        const numbers times = broadcast((number)(1 / (1 - p.dropout)));
        for (int64_t j = 0; j < found; j += n)
            store(weights + j, apply_dropout(mask, (uint32_t)j, threshold, load(weights + j)) * times);
    }

    static void forward(const GatheredArguments& given, const GatheredTokens& tokens, int64_t batch, int64_t key_head,
                        int64_t first, int64_t stop, char* scratch) {
        ScratchLayout layout{scratch};
        Memory m(given, layout);
        const Problem& p = given.problem;
        for_queries(given, tokens, batch, key_head, first, stop, m,
                    [&](int64_t query, int64_t member, int64_t together, int64_t found, bool bad) {
            const int64_t head = key_head * p.group() + member;
            for (int64_t h = 0; h < together; ++h)
                if (read_row(p.query, p.query.at(batch, head + h, query, 0), p.head_dim, m.query + h * m.key_row, m.key_row))
                    m.query[h * m.key_row] = (number)NAN;
            for_row_groups<number>(together, [&](int64_t r0, auto few) {
                constexpr int rows = decltype(few)::value;
                memset((void*)m.output, 0, sizeof(number) * (size_t)(rows * m.value_row));
                number sums[rows] = {};
                uint32_t broken = 0;
                if (bad) {
                    broken = ~0u;
                } else if (found) {
                    broken = weigh<rows>(given, tokens, m, m.query + r0 * m.key_row, found, sums);
                    if (p.dropout > 0)
                        for (int r = 0; r < rows; ++r)
                            drop(given, batch, head + r0 + r, query, found, m.scores + r * m.width);
                    mix_rows<rows>(ChosenRows<number>{(const number*)tokens.value, m.position, m.value_row}, 0,
                                   (found + 1) / 2 * 2, m.value_row, m.scores, m.width, m.output, m.value_row);
                }
                for (int r = 0; r < rows; ++r) {
                    const number times = broken >> r & 1 ? (number)NAN : found ? 1 / sums[r] : 0;
                    write_scaled_row(m.output + r * m.value_row, p.value_dim, times, given.output,
                                     given.output.at(batch, head + r0 + r, query, 0));
                }
            });
        });
    }

    // ---- backward ----

    static void backward(const GatheredArguments& given, const GatheredTokens& tokens, const GatheredGradients& parts,
                         int64_t batch, int64_t key_head, int64_t first, int64_t stop, char* scratch) {
        ScratchLayout layout{scratch};
        Memory m(given, layout);
        const Problem& p = given.problem;
        for_queries(given, tokens, batch, key_head, first, stop, m,
                    [&](int64_t query, int64_t member, int64_t together, int64_t found, bool bad) {
            const int64_t head = key_head * p.group() + member;
            bool is_nan[4];
            for_row_groups<number>(together, [&](int64_t r0, auto few) {
                constexpr int rows = decltype(few)::value;
                const int64_t whole = (found + n - 1) / n * n;
                number sums[rows] = {};
                number* of_query[rows];
                for (int r = 0; r < rows; ++r) {
                    const int64_t h = member + r0 + r, at = h * parts.count + query - parts.first;
                    of_query[r] = (number*)parts.query + at * m.key_row;
                    is_nan[r] = read_row(p.query, p.query.at(batch, head + r0 + r, query, 0), p.head_dim, of_query[r],
                                         m.key_row);
                    number* row_of = (number*)parts.output + at * m.value_row;
                    const Array& given_row = given.gradients.output;
                    read_row(given_row, given_row.at(batch, head + r0 + r, query, 0), p.value_dim, row_of, m.value_row);
                    memcpy((void*)(m.gradient + r * m.value_row), row_of, sizeof(number) * (size_t)m.value_row);
                    memcpy((void*)(m.query + r * m.key_row), of_query[r], sizeof(number) * (size_t)m.key_row);
                }
                uint32_t broken = bad || !found ? ~0u : weigh<rows>(given, tokens, m, m.query, found, sums);
                for (int r = 0; r < rows; ++r) broken |= (uint32_t)is_nan[r] << r;
                memset((void*)m.result, 0, sizeof(number) * (size_t)(rows * m.key_row));
                if ((broken & ((1u << rows) - 1)) != (1u << rows) - 1) {
                    score_rows<rows>(ChosenRows<number>{(const number*)tokens.value, m.position, m.value_row}, 0, whole,
                                     m.value_row, m.gradient, m.value_row, m.derivatives, m.width);
                    for (int r = 0; r < rows; ++r) {
                        const int64_t at = (member + r0 + r) * parts.count + query - parts.first;
                        number *weight = m.scores + r * m.width, *of = m.derivatives + r * m.width;
                        number *kept = (number*)parts.weight + at * m.width, *kept_score = (number*)parts.score + at * m.width;
                        differentiate(given, batch, head + r0 + r, query, found, whole,
                                      broken >> r & 1 ? 0 : 1 / sums[r], weight, of, kept);
                        memcpy((void*)kept_score, of, sizeof(number) * (size_t)whole);
                    }
                    mix_rows<rows>(ChosenRows<number>{(const number*)tokens.key, m.position, m.key_row}, 0,
                                   (found + 1) / 2 * 2, m.key_row, m.derivatives, m.width, m.result, m.key_row);
                }
                for (int r = 0; r < rows; ++r) {
                    write_scaled_row(m.result + r * m.key_row, p.head_dim, (number)1, given.gradients.query,
                                     given.gradients.query.at(batch, head + r0 + r, query, 0));
                    const int64_t at = (member + r0 + r) * parts.count + query - parts.first;
                    memcpy((void*)(parts.position + at * m.width), m.position, sizeof(int32_t) * (size_t)found);
                    find_ranges(parts, m.position, broken >> r & 1 ? 0 : found, parts.start + at * (parts.ranges + 1));
                }
            });
        });
    }

    // dS in place of D, and the weights of values; all 0 for rows that take no part, where `inverse` is 0.
    static REGARD_INLINE void differentiate(const GatheredArguments& given, int64_t batch, int64_t head, int64_t query,
                                            int64_t found, int64_t whole, number inverse, number* weight, number* of,
                                            number* kept) {
        if (inverse == 0) {
            memset((void*)of, 0, sizeof(number) * (size_t)whole);
            memset((void*)kept, 0, sizeof(number) * (size_t)whole);
            return;
        }
        for (int64_t j = 0; j < whole; j += n) {
            const numbers w = load(weight + j) * broadcast(inverse);
            store(weight + j, w);
            store(kept + j, w);
        }
        if (given.problem.dropout > 0) {
            drop(given, batch, head, query, found, kept);
            drop(given, batch, head, query, found, of);
        }
        for (int64_t j = found; j < whole; ++j) of[j] = 0;  // those of a repeated key, perhaps NaN
        numbers sum = {};
        for (int64_t j = 0; j < whole; j += n) sum = multiply_add(load(weight + j), load(of + j), sum);
        const numbers delta = broadcast(sum_lanes<number>(sum)), scale = broadcast((number)given.problem.scale);
        for (int64_t j = 0; j < whole; j += n) store(of + j, load(weight + j) * (load(of + j) - delta) * scale);
        for (int64_t j = found; j < whole; ++j) of[j] = 0;
    }

    // Where each range of keys begins among the positions.
    static REGARD_INLINE void find_ranges(const GatheredGradients& parts, const int32_t* position, int64_t found,
                                          int32_t* start) {
        int64_t j = 0;
        for (int64_t range = 0; range < parts.ranges; ++range) {
            start[range] = (int32_t)j;
            const int64_t end = (range + 1) * parts.step;
            while (j + 16 < found && position[j + 15] < end) j += 16;
            while (j < found && position[j] < end) ++j;
        }
        start[parts.ranges] = (int32_t)j;
    }

    static void accumulate(const GatheredArguments& given, const GatheredGradients& parts, int64_t range) {
        const Problem& p = given.problem;
        const int64_t group = p.group(), width = (given.count + n - 1) / n * n;
        const int64_t key_row = row(p.head_dim), value_row = row(p.value_dim);
        for (int64_t query = parts.first; query < parts.first + parts.count; ++query)
            for (int64_t member = 0; member < group; ++member) {
                const int64_t at = member * parts.count + query - parts.first;
                const int32_t* start = parts.start + at * (parts.ranges + 1) + range;
                if (start[0] >= start[1]) continue;
                const int32_t* position = parts.position + at * width;
                const number *score = (const number*)parts.score + at * width, *weight = (const number*)parts.weight + at * width;
                const number* of_query = (const number*)parts.query + at * key_row;
                const number* of_output = (const number*)parts.output + at * value_row;
                for (int64_t j = start[0]; j < start[1]; ++j) {
                    const int64_t key = position[j];
                    if (key < range * parts.step || key >= (range + 1) * parts.step) continue;  // they do not ascend
                    add_row((number*)parts.grad_key + key * key_row, of_query, score[j], key_row);
                    add_row((number*)parts.grad_value + key * value_row, of_output, weight[j], value_row);
                }
            }
    }
    static REGARD_INLINE void add_row(number* to, const number* from, number times, int64_t width) {
        const numbers all = broadcast(times);
        for (int64_t k = 0; k < width; k += n) store(to + k, multiply_add(load(from + k), all, load(to + k)));
    }

    static void finish(const GatheredArguments& given, const GatheredGradients& parts, int64_t batch, int64_t key_head,
                       int64_t first, int64_t stop) {
        const Problem& p = given.problem;
        const int64_t key_row = row(p.head_dim), value_row = row(p.value_dim);
        for (int64_t key = first; key < stop; ++key) {
            write_scaled_row((const number*)parts.grad_key + key * key_row, p.head_dim, (number)1, given.gradients.key,
                             given.gradients.key.at(batch, key_head, key, 0));
            write_scaled_row((const number*)parts.grad_value + key * value_row, p.value_dim, (number)1, given.gradients.value,
                             given.gradients.value.at(batch, key_head, key, 0));
        }
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

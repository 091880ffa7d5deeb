// One chunk of a scan: its tokens in memory, and what follows from them and not from the state before it. See scan.h.
//
// With b_i the sum of the logarithms of the decays from the chunk's first token to token i, one number or one for each
// channel of the key, a chunk needs
//
//     query_start_i = exp(b_i) q_i         key_start_i = -exp(b_i) k_i        key_end_j = exp(b_last - b_j) k_j
//     pairs_ij = q_i . exp(b_i - b_j) k_j    for j <= i
//     erase_ij = -k_i . exp(b_i - b_j) k_j   for j < i, in the delta rule
//
// Only decays over an interval are computed, exp(b_i - b_j) with j <= i, which are at most 1: exp(-b_j) overflows. With
// one decay a token and head that is a matrix, `between`. With one a channel it would be an array of chunk x chunk x
// head_dim numbers. There a chunk is cut into blocks of 16 tokens: pairs of two blocks are a product of queries decayed
// from the start of theirs and keys decayed up to there, and pairs within a block are computed one by one; Yang et al.
// 2024, "Gated linear attention transformers with hardware-efficient training", section 4.3.
#pragma once

#include <initializer_list>

#include "runtime/scratch_layout.h"
#include "scan/scan_kernels.h"
#include "tiles/gemm_microkernel.h"
#include "tiles/pack.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// Rows of arrays that are fetched into the cache a few at a time, while other ones are computed. Rows of one head are often
// far apart in memory, where the processor does not expect them, and to fetch many at once takes as long as to wait for
// them.
struct RowFetch {
    static constexpr int most = 8;
    const char* at[most];
    int64_t step[most], bytes[most], left = 0;
    int arrays = 0;

    REGARD_INLINE void start(int64_t rows) {
        left = rows < scan_chunk ? rows : scan_chunk;
        arrays = 0;
    }
    REGARD_INLINE void add(const Array& rows, int64_t batch, int64_t head, int64_t first) {
        if (!rows || rows.stride[3] != 1 || rows.shape[3] == 1) return;
        const int64_t item = rows.dtype == Dtype::float64 ? 8 : rows.dtype == Dtype::float32 ? 4 : 2;
        at[arrays] = (const char*)rows.data + rows.at(batch, head, first, 0) * item;
        step[arrays] = rows.stride[2] * item;
        bytes[arrays] = rows.shape[3] * item;
        ++arrays;
    }
    // The next two rows of each.
    REGARD_INLINE void advance() {
        for (int turn = 0; turn < 2 && left > 0; ++turn, --left)
            for (int i = 0; i < arrays; ++i) {
                for (int64_t byte = 0; byte < bytes[i]; byte += 64) __builtin_prefetch(at[i] + byte, 0, 2);
                at[i] += step[i];
            }
    }
};

// The products of rows and columns of numbers in a chunk.
template <class A>
struct ScanProducts {
    typedef typename A::number number;
    typedef vec<number> numbers;
    static constexpr int64_t n = lanes<number>;

    enum class Depth { whole, to_row, from_row };  // of row i: all, those up to i, those from i on

    // to_iv = start_iv + sum_k left_ik right_kv for `rows` rows and vectors first .. stop, with left_ik at left[i row + k
    // step]. start is 0 if it is null, has rows as `to` has, and may be `to`. It is added last, once for all
    // products: a state is far larger than each of them after many tokens, and would round one by one. The numbers of a
    // triangle beyond the diagonal must be 0: they are multiplied for rows of one register tile.
    static __attribute__((noinline)) void multiply_rows(const number* left, int64_t row, int64_t step,
                                                        const number* right, int64_t width, int64_t depth, Depth range,
                                                        const number* start, number* to, int64_t to_row,
                                                        int64_t rows, int64_t first, int64_t stop,
                                                        RowFetch* fetch = nullptr) {
        for_panels(first, stop, [&](int64_t v, auto panel) {
            for_strips(rows, [&](int64_t i, auto strip) {
                if (fetch) fetch->advance();
                const int64_t from = range == Depth::from_row ? i : 0;
                const int64_t end = range == Depth::to_row && i + strip.value < depth ? i + strip.value : depth;
                Sums<A, decltype(strip)::value, decltype(panel)::value> sums;
                sums.clear();
                multiply(sums, left + i * row + from * step, row, step, right + from * width + v * n, width, end - from);
                if (start) sums.add_from(start + i * to_row + v * n, to_row);
                sums.store_to(to + i * to_row + v * n, to_row);
            });
        });
    }

    // The same from 0 over the whole depth, only for the vectors that hold columns up to the last row of a strip; `to`
    // and `right` are 64 columns wide.
    static __attribute__((noinline)) void multiply_triangle(const number* left, int64_t row, const number* right,
                                                            int64_t depth, number* to, int64_t rows) {
        for_strips(rows, [&](int64_t i, auto strip) {
            for_panels(0, ceil_div(i + strip.value, n), [&](int64_t v, auto panel) {
                Sums<A, decltype(strip)::value, decltype(panel)::value> sums;
                sums.clear();
                multiply(sums, left + i * row, row, 1, right + v * n, tile, depth);
                sums.store_to(to + i * tile + v * n, tile);
            });
        });
    }

    // x_i = r_i + sum_(j<i) erase_ij u_j and u_i = beta_i x_i, from the first row to the last, with r in x.
    static __attribute__((noinline)) void solve_down(const number* erase, const number* beta, number* x, number* u,
                                                     int64_t width, int64_t rows, int64_t first, int64_t stop) {
        for_panels(first, stop, [&](int64_t v, auto panel) {
            for_strips(rows, [&](int64_t i, auto strip) {
                Sums<A, decltype(strip)::value, decltype(panel)::value> sums;
                number *own_x = x + i * width + v * n, *own_u = u + i * width + v * n;
                sums.load_from(own_x, width);
                multiply(sums, erase + i * tile, tile, 1, u + v * n, width, i);
                sums.each([&](int r, int p, numbers& sum) {
                    for (int s = 0; s < r; ++s)
                        sum = A::multiply_add(erase[(i + r) * tile + i + s], load(own_u + s * width + p * n), sum);
                    store(own_x + r * width + p * n, sum);
                    store(own_u + r * width + p * n, sum * broadcast(beta[i + r]));
                });
            });
        });
    }

    // The transposed system: z_i = r_i + sum_(j>i) erase_ji y_j and y_i = beta_i z_i, from the last row to the first.
    static __attribute__((noinline)) void solve_up(const number* erase, const number* beta, number* z, number* y,
                                                   int64_t width, int64_t rows, int64_t first, int64_t stop) {
        for_panels(first, stop, [&](int64_t v, auto panel) {
            for_strips(rows, [&](int64_t turn, auto strip) {
                const int64_t i = rows - turn - strip.value;
                Sums<A, decltype(strip)::value, decltype(panel)::value> sums;
                number *own_z = z + i * width + v * n, *own_y = y + i * width + v * n;
                sums.load_from(own_z, width);
                const int64_t below = i + strip.value;
                multiply(sums, erase + below * tile + i, 1, tile, y + below * width + v * n, width, rows - below);
                sums.store_to(own_z, width);
                for (int r = strip.value - 1; r >= 0; --r)
                    for (int p = 0; p < panel.value; ++p) {
                        numbers sum = load(own_z + r * width + p * n);
                        for (int s = r + 1; s < strip.value; ++s)
                            sum = A::multiply_add(erase[(i + s) * tile + i + r], load(own_y + s * width + p * n), sum);
                        store(own_z + r * width + p * n, sum);
                        store(own_y + r * width + p * n, sum * broadcast(beta[i + r]));
                    }
            });
        });
    }

    static REGARD_INLINE number dot(const number* a, const number* b, int64_t width) {
        numbers sum = {};
        for (int64_t c = 0; c < width; c += n) sum = A::multiply_add_vectors(load(a + c), load(b + c), sum);
        return sum_lanes<number>(sum);
    }
    // to = from * by, or to += from * by, for a row of whole vectors.
    static REGARD_INLINE void scale_row(const number* from, number by, int64_t width, number* to) {
        for (int64_t c = 0; c < width; c += n) store(to + c, load(from + c) * broadcast(by));
    }
    static REGARD_INLINE void add_scaled_row(const number* from, number by, int64_t width, number* to) {
        for (int64_t c = 0; c < width; c += n)
            store(to + c, A::multiply_add(by, load(from + c), load(to + c)));
    }
    static REGARD_INLINE void multiply_row(const number* from, const number* by, int64_t width, number* to) {
        for (int64_t c = 0; c < width; c += n) store(to + c, load(from + c) * load(by + c));
    }
    // The lanes of vector `v` that hold the first `count` numbers of a row.
    static REGARD_INLINE uint32_t first_lanes(int64_t v, int64_t count) {
        const int64_t left = count - v * n;
        return left <= 0 ? 0 : left >= n ? ~0u : (1u << left) - 1;
    }
};

template <class A>
struct ScanChunk {
    typedef typename A::number number;
    typedef vec<number> numbers;
    typedef ScanProducts<A> Products;
    static constexpr int64_t n = lanes<number>, block = 16, blocks = scan_chunk / block;
    static constexpr bool wide = sizeof(number) == 8;
    // exp of the first is 0, and a decay of 2^x is taken for 0 below the second: products with smaller numbers would be
    // subnormal, and slow.
    static constexpr number lowest_log = wide ? -1000 : -200, lowest_exponent = wide ? -900 : -100;

    RowFetch fetch;
    int64_t count = 0;  // tokens
    uint64_t bad_queries = 0;  // bits of the queries with NaN or Inf, which are 0 here
    int64_t key_width, value_width;  // of rows in memory: whole vectors, of which the last numbers are 0
    number *query, *key, *value, *log_decay, *beta;
    number *query_start, *key_start, *key_end, *pairs, *erase;
    number* whole;  // decays of the channels over the whole chunk
    number* columns;  // the keys, transposed (head_dim x 64)
    // One decay a token and head.
    number *from_start, *to_end, *between;  // exp(b_i), exp(b_last - b_i), exp(b_i - b_j)
    number *high, *low;  // b_i, in two parts
    // One decay a channel, for each token: over its block up to the token, over the block behind it, of the token
    // itself; queries and keys decayed as by the first; and for each block the decay over it.
    number *block_start, *block_end, *step, *block_query, *block_key, *over_block;

    REGARD_INLINE ScanChunk(const ScanArguments& given, ScratchLayout& layout)
        : key_width(padded_width<A>(given.head_dim)), value_width(padded_width<A>(given.value_dim)) {
        const int64_t keys = scan_chunk * key_width, square = scan_chunk * tile;
        query = layout.template take<number>(keys);
        key = layout.template take<number>(keys);
        value = layout.template take<number>(scan_chunk * value_width);
        beta = layout.template take<number>(scan_chunk);
        whole = layout.template take<number>(key_width);
        columns = layout.template take<number>(key_width * tile);
        pairs = layout.template take<number>(square);
        erase = layout.template take<number>(square);
        query_start = query, key_start = key, key_end = key;
        if (given.log_decay) {
            query_start = layout.template take<number>(keys);
            key_end = layout.template take<number>(keys);
        }
        if (given.beta) key_start = layout.template take<number>(keys);
        log_decay = from_start = to_end = between = high = low = nullptr;
        block_start = block_end = step = block_query = block_key = over_block = nullptr;
        if (given.by_channel()) {
            for (number** rows : {&log_decay, &from_start, &to_end, &block_start, &block_end, &step, &block_query})
                *rows = layout.template take<number>(keys);
            block_key = given.beta ? layout.template take<number>(keys) : nullptr;
            over_block = layout.template take<number>(blocks * key_width);
        } else if (given.log_decay) {
            for (number** row : {&log_decay, &from_start, &to_end, &high, &low})
                *row = layout.template take<number>(scan_chunk);
            between = layout.template take<number>(square);
        }
    }

    // Reads the tokens from `first` on. A token with NaN or Inf in key, value, log_decay or beta ends the sequence: `count`
    // is then smaller than the number of tokens. Returns whether a log_decay is above 0.
    bool load_tokens(const ScanArguments& given, int64_t batch, int64_t head, int64_t first) {
        REGARD_ASSERT(0 <= first && first < given.length);
        const int64_t there = given.length - first < scan_chunk ? given.length - first : scan_chunk;
        const int64_t height = ceil_div(there, block) * block;
        bad_queries = read_rows(given.query, given.query.at(batch, head, first, 0), there, height, given.head_dim, query,
                                key_width);
        if (bad_queries) clear_rows(bad_queries, key_width, query, key_width);
        uint64_t bad = read_rows(given.key, given.key.at(batch, head, first, 0), there, height, given.head_dim, key,
                                 key_width);
        bad |= read_rows(given.value, given.value.at(batch, head, first, 0), there, height, given.value_dim, value,
                         value_width);
        if (given.beta) bad |= read_rows(given.beta, given.beta.at(batch, head, first, 0), there, there, 1, beta, 1);
        bool above = false;
        if (given.log_decay) {
            const int64_t channels = given.log_decay.shape[3], width = given.by_channel() ? key_width : 1;
            read_rows(given.log_decay, given.log_decay.at(batch, head, first, 0), there, height, channels, log_decay,
                      width);
            bad |= check_decays(there, width, &above);
        }
        if (bad) {
            clear_rows(bad, key_width, key, key_width);
            clear_rows(bad, value_width, value, value_width);
        }
        count = bad ? __builtin_ctzll(bad) : there;
        if (given.scale != 1)
            for (int64_t i = 0; i < there; ++i)
                Products::scale_row(query + i * key_width, (number)given.scale, key_width, query + i * key_width);
        return above;
    }

    // Everything else, with the tokens loaded and at least one of them. The states need neither `pairs` nor query_start.
    void prepare(const ScanArguments& given, bool with_pairs = true) {
        if (given.by_channel())
            prepare_by_channel(given, with_pairs);
        else
            prepare_by_head(given, with_pairs);
    }

    // The tokens from `first` on are loaded next, and fetched before.
    REGARD_INLINE void fetch_tokens(const ScanArguments& given, int64_t batch, int64_t head, int64_t first) {
        fetch.start(first < 0 ? 0 : first < given.length ? given.length - first : 0);
        for (const Array* rows : {&given.query, &given.key, &given.value, &given.log_decay})
            fetch.add(*rows, batch, head, first);
    }

    REGARD_INLINE int64_t block_stop(int64_t first) const { return first + block < count ? first + block : count; }

private:
    // Brings the decays to lowest_log .. 0. Returns the bits of the tokens with a NaN, which -Inf is not: it resets.
    REGARD_INLINE uint64_t check_decays(int64_t there, int64_t width, bool* above) {
        uint64_t bad = 0;
        if (width == 1) {
            for (int64_t i = 0; i < there; ++i) {
                const number x = log_decay[i];
                bad |= (uint64_t)(x != x) << i;
                *above |= x > 0;
                log_decay[i] = x > lowest_log ? (x > 0 ? 0 : x) : lowest_log;
            }
            return bad;
        }
        for (int64_t i = 0; i < there; ++i) {
            numbers unordered = {};
            number* row = log_decay + i * width;
            for (int64_t c = 0; c < width; c += n) {
                const numbers x = load(row + c);
                *above |= compare_greater(x, numbers{}) != 0;
                const numbers inside = minimum(broadcast((number)0), maximum(broadcast(lowest_log), x));
                unordered += inside * 0;
                store(row + c, inside * broadcast((number)log2_e));
            }
            const number sum = sum_lanes<number>(unordered);
            if (sum != sum) {
                bad |= (uint64_t)1 << i;
                memset((void*)row, 0, sizeof(number) * (size_t)width);
            }
        }
        return bad;
    }

    // 2^x of a sum of logarithms.
    static REGARD_INLINE numbers decay_of(numbers x) {
        return select(compare_greater(x, broadcast(lowest_exponent)), exp2<A::degree>(x), numbers{});
    }

    // ---- one decay a token and head, or none ----

    void prepare_by_head(const ScanArguments& given, bool with_pairs) {
        const bool decays = (bool)given.log_decay, delta = (bool)given.beta;
        if (decays) {
            sum_decays(with_pairs || delta);
            for (int64_t i = 0; i < count; ++i) {
                if (with_pairs)
                    Products::scale_row(query + i * key_width, from_start[i], key_width, query_start + i * key_width);
                Products::scale_row(key + i * key_width, to_end[i], key_width, key_end + i * key_width);
            }
        }
        const numbers over = broadcast(decays ? from_start[count - 1] : (number)1);
        for (int64_t c = 0; c < key_width; c += n) store(whole + c, over);
        if (!with_pairs && !delta) return;
        transpose(key, key_width, ceil_div(count, n) * n, given.head_dim, columns);
        if (with_pairs) {
            Products::multiply_triangle(query, key_width, columns, given.head_dim, pairs, count);
            decay_triangle(pairs, 1, (number)1);
        }
        if (!delta) return;
        for (int64_t i = 0; i < count; ++i)
            Products::scale_row(key + i * key_width, decays ? -from_start[i] : (number)-1, key_width,
                                key_start + i * key_width);
        Products::multiply_triangle(key, key_width, columns, given.head_dim, erase, count);
        decay_triangle(erase, 0, (number)-1);
    }

    // b_i is summed with its rounding errors and kept in two parts, so that differences of b are exact to the last digits of
    // the difference: after a token that resets the state b is large.
    void sum_decays(bool with_pairs) {
        double sum = 0, error = 0;
        for (int64_t i = 0; i < count; ++i) {
            const double own = (double)log_decay[i], before = sum;
            sum += own;
            const double added = sum - before;  // Knuth's two-sum
            error += (before - (sum - added)) + (own - added);
            high[i] = (number)sum;
            low[i] = (number)((sum - (double)high[i]) + error);
        }
        for (int64_t i = count; i < ceil_div(count, n) * n; ++i) high[i] = high[count - 1], low[i] = low[count - 1];
        const numbers to_log2 = broadcast((number)log2_e);
        const numbers last_high = broadcast(high[count - 1]), last_low = broadcast(low[count - 1]);
        for (int64_t i = 0; i < count; i += n) {
            store(from_start + i, decay_of((load(high + i) + load(low + i)) * to_log2));
            store(to_end + i, decay_of(((last_high - load(high + i)) + (last_low - load(low + i))) * to_log2));
        }
        for (int64_t i = 0; with_pairs && i < count; ++i) {
            const numbers own_high = broadcast(high[i]), own_low = broadcast(low[i]);
            for (int64_t j = 0; j <= i; j += n)
                store(between + i * tile + j,
                      decay_of(((own_high - load(high + j)) + (own_low - load(low + j))) * to_log2));
        }
    }

public:
    // Whether the decay of a token is 0, by `decay_of`; for one decay a token and head.
    REGARD_INLINE bool resets(int64_t i) const { return !(log_decay[i] * (number)log2_e > lowest_exponent); }

    // Multiplies the first i + `more` numbers of row i by `by` and their decays, and makes the others of a row 0.
    REGARD_INLINE void decay_triangle(number* square, int64_t more, number by) const {
        const int64_t vectors = ceil_div(count, n);
        for (int64_t i = 0; i < count; ++i)
            for (int64_t v = 0; v < vectors; ++v) {
                number* at = square + i * tile + v * n;
                const uint32_t bits = Products::first_lanes(v, i + more);
                if (!bits) {
                    store(at, numbers{});
                    continue;
                }
                numbers x = load(at) * broadcast(by);
                if (between) x = x * load(between + i * tile + v * n);
                store(at, select(bits, x, numbers{}));
            }
    }

private:
    // ---- one decay a channel ----

    void prepare_by_channel(const ScanArguments& given, bool with_pairs) {
        const bool delta = (bool)given.beta;
        const int64_t width = key_width;
        memset((void*)pairs, 0, sizeof(number) * (size_t)(scan_chunk * tile));
        if (delta) memset((void*)erase, 0, sizeof(number) * (size_t)(scan_chunk * tile));
        for (int64_t c = 0; c < width; c += n) store(whole + c, broadcast((number)1));
        for (int64_t first = 0, index = 0; first < count; first += block, ++index) {
            const int64_t stop = block_stop(first);
            number* over = over_block + index * width;
            decay_block(first, stop, over);
            for (int64_t i = first; i < stop; ++i) {
                Products::multiply_row(query + i * width, block_start + i * width, width, block_query + i * width);
                if (delta) Products::multiply_row(key + i * width, block_start + i * width, width, block_key + i * width);
                Products::multiply_row(whole, block_start + i * width, width, from_start + i * width);
                Products::multiply_row(query + i * width, from_start + i * width, width, query_start + i * width);
                if (delta)
                    for (int64_t c = 0; c < width; c += n)
                        store(key_start + i * width + c, -(load(key + i * width + c) * load(from_start + i * width + c)));
                // key_end holds keys decayed to the end of their block until all blocks are known
                Products::multiply_row(key + i * width, block_end + i * width, width, key_end + i * width);
            }
            Products::multiply_row(whole, over, width, whole);
            if (first > 0) {  // pairs with the blocks before
                if (with_pairs)
                    Products::multiply_rows(block_query + first * width, width, 1, columns, tile, given.head_dim,
                                        Products::Depth::whole, nullptr, pairs + first * tile, tile, stop - first, 0,
                                        ceil_div(first, n));
                if (delta)
                    Products::multiply_rows(block_key + first * width, width, 1, columns, tile, given.head_dim,
                                            Products::Depth::whole, nullptr, erase + first * tile, tile, stop - first, 0,
                                            ceil_div(first, n));
            }
            if (with_pairs || delta) pair_within(first, stop, delta);
            if (stop == count) break;
            if (!with_pairs && !delta) continue;
            for (int64_t c = 0; c < given.head_dim; ++c)
                Products::scale_row(columns + c * tile, over[c], first, columns + c * tile);
            transpose(key_end + first * width, width, block, given.head_dim, columns + first);
        }
        if (delta)
            for (int64_t i = 0; i < count; ++i)
                for (int64_t v = 0; v <= i / n; ++v) store(erase + i * tile + v * n, -load(erase + i * tile + v * n));
        finish_key_end();
    }

    // The decays of one block.
    REGARD_INLINE void decay_block(int64_t first, int64_t stop, number* over) {
        const int64_t width = key_width;
        for (int64_t c = 0; c < width; c += n) {
            numbers sum = {};
            for (int64_t i = first; i < stop; ++i) {
                const numbers own = load(log_decay + i * width + c);
                sum += own;
                store(step + i * width + c, decay_of(own));
                store(block_start + i * width + c, decay_of(sum));
            }
            store(over + c, decay_of(sum));
            sum = numbers{};
            for (int64_t i = stop - 1; i >= first; --i) {
                store(block_end + i * width + c, decay_of(sum));
                sum += load(log_decay + i * width + c);
            }
        }
    }

    // The pairs of one block: each key decays by one token after the other.
    REGARD_INLINE void pair_within(int64_t first, int64_t stop, bool delta) {
        const int64_t width = key_width;
        for (int64_t j = first; j < stop; ++j) {
            numbers of_pairs[block] = {}, of_erase[block] = {};
            for (int64_t c = 0; c < width; c += n) {
                numbers decayed = load(key + j * width + c);
                of_pairs[0] += decayed * load(query + j * width + c);
                for (int64_t i = j + 1; i < stop; ++i) {
                    decayed *= load(step + i * width + c);
                    of_pairs[i - j] = A::multiply_add_vectors(load(query + i * width + c), decayed, of_pairs[i - j]);
                    if (delta)
                        of_erase[i - j] = A::multiply_add_vectors(load(key + i * width + c), decayed, of_erase[i - j]);
                }
            }
            for (int64_t i = j; i < stop; ++i) {
                pairs[i * tile + j] = sum_lanes<number>(of_pairs[i - j]);
                if (delta && i > j) erase[i * tile + j] = sum_lanes<number>(of_erase[i - j]);
            }
        }
    }

    // Decays of the blocks behind that of each token.
    REGARD_INLINE void finish_key_end() {
        const int64_t width = key_width, last = (count - 1) / block;
        for (int64_t c = 0; c < width; c += n) {
            numbers behind = broadcast((number)1);
            for (int64_t index = last; index >= 0; --index) {
                for (int64_t i = index * block; i < block_stop(index * block); ++i) {
                    store(key_end + i * width + c, load(key_end + i * width + c) * behind);
                    store(to_end + i * width + c, load(block_end + i * width + c) * behind);
                }
                behind *= load(over_block + index * width + c);
            }
        }
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

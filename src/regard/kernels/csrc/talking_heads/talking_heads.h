// Talking-heads attention: packed tokens of all heads, and numbers of pairs that are mixed across heads.
//
//     s_h = scale q_h . k_h      l_g = sum_h s_h P_hg + bias_g      u_g = softmax(l_g)      w_f = sum_g u_g R_gf
//     o_f = sum_j w_fj v_fj                                         Shazeer et al. 2020, section 4
//
// Numbers of pairs are in blocks [head][row][64 keys] of a few rows and one tile of keys. Mixing a block is a product for
// each row: of the matrix (heads x heads) and the row's numbers (heads x 64).
//
// NaN and Inf: a query or a key affects its row in all heads, a value its own head alone. So keys and values have
// separate bits.
#pragma once

#include "attention/forward.h"
#include "talking_heads/talking_heads_kernels.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// Packed tokens of one entry of the batch. Tokens with NaN or Inf are zeros, with their bit set.
template <class A>
struct TalkingTokens {
    typedef typename A::number number;

    int64_t key_tiles, query_tiles, depth, value_depth, key_stride, value_stride;
    number *key_columns_, *value_rows_;     // (key_heads, key_tiles) of [head_dim][64] and [64][padded value_dim]
    uint64_t *bad_keys_, *bad_values_;      // (key_heads, key_tiles)
    // For the backward pass alone; queries are multiplied by the scale.
    number *key_rows_, *value_columns_;     // (key_heads, key_tiles) of [64][padded head_dim] and [value_dim][64]
    number *query_rows_, *grad_output_;     // (heads, query_tiles) of [64][padded head_dim], [64][padded value_dim]
    number *largest_, *log_sum_, *delta_;   // (heads, query_tiles) of [64]: normalizers; sum_j u du
    uint64_t* active;                       // (query_tiles): bit i: query i has gradients
    size_t used_bytes;

    TalkingTokens(const Problem& p, char* block, bool backward) {
        key_tiles = p.key_tiles(), query_tiles = p.query_tiles(), depth = p.head_dim, value_depth = p.value_dim;
        key_stride = padded_width<A>(depth), value_stride = padded_width<A>(value_depth);
        const int64_t of_keys = p.key_heads * key_tiles, of_queries = backward ? p.heads * query_tiles : 0;
        const int64_t of_rows = backward ? of_keys : 0;
        ScratchLayout c{block};
        key_columns_ = c.take<number>(of_keys * depth * tile);
        value_rows_ = c.take<number>(of_keys * tile * value_stride);
        bad_keys_ = c.take<uint64_t>(of_keys), bad_values_ = c.take<uint64_t>(of_keys);
        key_rows_ = c.take<number>(of_rows * tile * key_stride);
        value_columns_ = c.take<number>(of_rows * value_depth * tile);
        query_rows_ = c.take<number>(of_queries * tile * key_stride);
        grad_output_ = c.take<number>(of_queries * tile * value_stride);
        largest_ = c.take<number>(of_queries * tile), log_sum_ = c.take<number>(of_queries * tile);
        delta_ = c.take<number>(of_queries * tile);
        active = c.take<uint64_t>(backward ? query_tiles : 0);
        used_bytes = c.used_bytes;
    }
    static size_t bytes(const Problem& p, bool backward) { return TalkingTokens(p, nullptr, backward).used_bytes; }

    REGARD_INLINE number* key_columns(int64_t key_head, int64_t t) const {
        return key_columns_ + (key_head * key_tiles + t) * depth * tile;
    }
    REGARD_INLINE number* value_rows(int64_t key_head, int64_t t) const {
        return value_rows_ + (key_head * key_tiles + t) * tile * value_stride;
    }
    REGARD_INLINE number* key_rows(int64_t key_head, int64_t t) const {
        return key_rows_ + (key_head * key_tiles + t) * tile * key_stride;
    }
    REGARD_INLINE number* value_columns(int64_t key_head, int64_t t) const {
        return value_columns_ + (key_head * key_tiles + t) * value_depth * tile;
    }
    REGARD_INLINE uint64_t& bad_keys(int64_t key_head, int64_t t) const { return bad_keys_[key_head * key_tiles + t]; }
    REGARD_INLINE uint64_t& bad_values(int64_t key_head, int64_t t) const { return bad_values_[key_head * key_tiles + t]; }
    // Of head 0; those of the next head are `query_heads` numbers further, or `output_heads`, or `row_heads`.
    REGARD_INLINE number* query_rows(int64_t t) const { return query_rows_ + t * tile * key_stride; }
    REGARD_INLINE number* grad_output(int64_t t) const { return grad_output_ + t * tile * value_stride; }
    REGARD_INLINE int64_t query_heads() const { return query_tiles * tile * key_stride; }
    REGARD_INLINE int64_t output_heads() const { return query_tiles * tile * value_stride; }
    REGARD_INLINE int64_t row_heads() const { return query_tiles * tile; }

    static size_t pack_scratch(const Problem& p) {
        return sizeof(number) * (size_t)(tile * padded_width<A>(max_of(p.head_dim, p.value_dim)));
    }

    static void pack_keys(const Problem& p, int64_t batch, int64_t key_head, int64_t t, bool backward, char* block,
                          char* scratch) {
        const TalkingTokens tokens(p, block, backward);
        const int64_t first = t * tile, count = p.keys_in(t);
        const auto read = [&](const Array& from, int64_t width_of, number* rows, int64_t stride) {
            const uint64_t bad = read_rows(from, from.at(batch, key_head, first, 0), count, tile, width_of, rows, stride);
            if (bad) clear_rows(bad, width_of, rows, stride);
            return bad;
        };
        number* keys = backward ? tokens.key_rows(key_head, t) : (number*)scratch;
        tokens.bad_keys(key_head, t) = read(p.key, tokens.depth, keys, tokens.key_stride);
        transpose(keys, tokens.key_stride, tile, tokens.depth, tokens.key_columns(key_head, t));
        number* values = tokens.value_rows(key_head, t);
        tokens.bad_values(key_head, t) = read(p.value, tokens.value_depth, values, tokens.value_stride);
        if (backward)
            transpose(values, tokens.value_stride, tile, tokens.value_depth, tokens.value_columns(key_head, t));
    }

    // Reads a tile of queries of one head, times the scale; rows after the last are zeros. Returns the bits of bad ones.
    static uint64_t read_queries(const Problem& p, int64_t batch, int64_t head, int64_t t, number* rows) {
        const int64_t first = t * tile, count = p.queries_in(t), stride = padded_width<A>(p.head_dim);
        const uint64_t bad =
            read_rows(p.query, p.query.at(batch, head, first, 0), count, tile, p.head_dim, rows, stride);
        if (bad) clear_rows(bad, p.head_dim, rows, stride);
        const vec<number> scale = broadcast((number)p.scale);
        for (int64_t k = 0; k < count * stride; k += lanes<number>) store(rows + k, load(rows + k) * scale);
        return bad;
    }
};

// The rows of a tile of queries whose result is NaN because of a token with NaN or Inf.
struct BadRows {
    uint64_t in_all = 0;        // in all heads
    uint64_t* in_head;          // by the head of values
    uint64_t have_key = 0;      // rows with an allowed key

    template <class A>
    REGARD_INLINE void see(const Problem& p, const TalkingTokens<A>& tokens, const KeyTile& t, const uint64_t* allowed,
                           uint64_t bad_queries) {
        uint64_t keys = 0, values = 0;
        for (int64_t h = 0; h < p.key_heads; ++h)
            keys |= tokens.bad_keys(h, t.index), values |= tokens.bad_values(h, t.index);
        for (int64_t i = 0; i < tile; ++i) {
            const uint64_t bit = (uint64_t)1 << i, seen = t.is_partial ? allowed[i] : ~(uint64_t)0;
            if (!seen) continue;
            have_key |= bit;
            if ((seen & keys) || (bad_queries & bit)) in_all |= bit;
            if (seen & values)
                for (int64_t h = 0; h < p.heads; ++h)
                    if (seen & tokens.bad_values(h / p.group(), t.index)) in_head[h] |= bit;
        }
    }
};

// A strip of rows of a tile of queries, and the vectors from .. stop - 1 of a tile of keys that any of them may attend to.
struct TalkingStrip {
    int64_t query, key_tile;  // the first query; the tile
    const uint64_t* allowed;  // the bits of the first row
    bool partial;
    int32_t from, stop;
};

// Splits heads into strips: 8, the most common number, as 4 and 4, since 6 and 2 would leave too few sums in the second.
template <class Body>
REGARD_INLINE void for_head_strips(int64_t heads, Body body) {
    int64_t first = 0;
    for (; heads - first >= 6 && heads - first != 8; first += 6) body(first, Constant<6>{});
    for (; heads - first >= 4; first += 4) body(first, Constant<4>{});
    for_strips(heads - first, [&](int64_t at, auto n) { body(first + at, n); });
}

// Blocks of `together` rows.
template <class A, int together>
struct TalkingBlock {
    typedef typename A::number number;
    static constexpr int width = lanes<number>;
    static constexpr int64_t head_stride = together * tile;

    static REGARD_INLINE vec<number> hide(const TalkingStrip& s, int r, int64_t column, vec<number> x, vec<number> hidden) {
        return s.partial ? select((uint32_t)(s.allowed[r] >> column), x, hidden) : x;
    }

    // to[h][r] = rows_h[r] . columns_h, and 0 where hidden; rows of heads are `row_heads` numbers apart, columns_of(h) are
    // those of a head. `nonfinite`, if any, becomes NaN for rows with NaN or Inf.
    template <int n, class Columns>
    static REGARD_INLINE void multiply_tokens(const TalkingStrip& s, int64_t heads, const number* rows, int64_t row_heads,
                                              int64_t stride, int64_t depth, Columns columns_of, number* to,
                                              vec<number>* nonfinite = nullptr) {
        for (int64_t h = 0; h < heads; ++h, rows += row_heads, to += head_stride) {
            const number* columns = columns_of(h);
            for_panels(s.from, s.stop, [&](int64_t v0, auto panel) {
                Sums<A, n, decltype(panel)::value> sums;
                sums.clear();
                multiply_in_parts(sums, rows, stride, 1, columns + v0 * width, tile, depth);
                if (s.partial)
                    sums.each([&](int r, int v, vec<number>& x) { x = hide(s, r, (v0 + v) * width, x, vec<number>{}); });
                if (nonfinite) sums.each([&](int r, int, vec<number>& x) { nonfinite[r] += x * 0; });
                sums.store_to(to + v0 * width, tile);
            });
        }
    }

    // to[b][r] = sum_a from[a][r] M_ab for n rows, where M_ab is matrix[a * step + b * row].
    template <int n>
    static REGARD_INLINE void mix(const TalkingStrip& s, int64_t heads, const number* matrix, int64_t row, int64_t step,
                                  const number* from, number* to) {
        for (int r = 0; r < n; ++r, from += tile, to += tile)
            for_head_strips(heads, [&](int64_t first, auto count) {
                for_panels(s.from, s.stop, [&](int64_t v0, auto panel) {
                    Sums<A, decltype(count)::value, decltype(panel)::value> sums;
                    sums.clear();
                    multiply_in_parts(sums, matrix + first * row, row, step, from + v0 * width, head_stride, heads);
                    sums.store_to(to + first * head_stride + v0 * width, head_stride);
                });
            });
    }
    // From heads of scores to those of softmaxes (P), and from those to heads of values (R): rows to columns.
    template <int n>
    static REGARD_INLINE void mix_forward(const TalkingStrip& s, int64_t heads, const Array& matrix, const number* from,
                                          number* to) {
        mix<n>(s, heads, (const number*)matrix.data, matrix.stride[3], matrix.stride[2], from, to);
    }
    // Gradients: columns to rows.
    template <int n>
    static REGARD_INLINE void mix_backward(const TalkingStrip& s, int64_t heads, const Array& matrix, const number* from,
                                           number* to) {
        mix<n>(s, heads, (const number*)matrix.data, matrix.stride[2], matrix.stride[3], from, to);
    }

    // Calls body(head, row, numbers of the row) for the rows of a strip.
    template <int n, class Body>
    static REGARD_INLINE void for_rows(int64_t heads, number* block, Body body) {
        for (int64_t h = 0; h < heads; ++h)
            for (int r = 0; r < n; ++r) body(h, r, block + h * head_stride + r * tile);
    }

    template <int n>
    static REGARD_INLINE void add_bias(const Problem& p, int64_t batch, const TalkingStrip& s, number* mixed,
                                       number* bias_row) {
        if (!p.bias && !p.table) return;
        for_rows<n>(p.heads, mixed, [&](int64_t h, int r, number* row) {
            const number* added = BiasRows<number>{p, batch, h}.read(s.query + r, s.key_tile * tile, bias_row);
            for (int64_t c = s.from * width; c < s.stop * width; c += width) store(row + c, load(row + c) + load(added + c));
        });
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

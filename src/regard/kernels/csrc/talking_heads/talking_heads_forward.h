// Forward pass of talking-heads attention: a tile of 64 queries of all heads, in two passes over the keys.
//
//     first pass     m_g = max_j l_gj,   z_g = sum_j exp(l_gj - m_g)
//     second pass    u_g = exp(l_g - m_g) / z_g,   w_f = sum_g u_g R_gf,   o_f = sum_j w_fj v_fj
//
// A running softmax in one pass would need the weighted values of every pair of heads g and f. So l (see talking_heads.h)
// is kept from the first pass to the second: even from main memory, reading it takes less time than the products. If the
// keys are so many that it would need more than `most_kept_bytes`, it is computed twice.
#pragma once

#include "talking_heads/talking_heads.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

inline constexpr int64_t most_kept_bytes = (int64_t)16 << 20;  // of a thread

template <class A>
struct TalkingHeadsForward {
    typedef typename A::number number;
    typedef TalkingBlock<A, strip> Block;
    static constexpr int width = lanes<number>;
    static constexpr number infinity = (number)HUGE_VAL;

    const Problem& p;
    const TalkingHeads& mixing;
    const TalkingTokens<A> tokens;
    int64_t batch, query_tile, rows;
    uint32_t threshold;
    number *query, *output;    // (heads) of [64][padded head_dim], [64][padded value_dim]
    number* scores;            // a block
    number* mixed;             // l: a block, or a block for each strip of each tile of keys
    bool is_kept;
    number *bias_row, *largest, *sums;  // sums: (heads) of [64], of weights; then factors of the second pass
    uint64_t* bits;
    uint64_t bad_queries = 0;
    BadRows bad;

    static size_t scratch(const Problem& p) {
        return bytes_of_parts([&](ScratchLayout& c) { carve(c, p, nullptr); });
    }

    static constexpr int64_t strips = (tile + strip - 1) / strip + 1;  // most strips of a tile: 63 rows have 10 of six, 2 and 1
    static bool keeps(const Problem& p) {
        const int64_t block = (int64_t)sizeof(number) * p.heads * Block::head_stride;
        return p.key_tiles() <= most_kept_bytes / (block * strips);
    }

    static void carve(ScratchLayout& c, const Problem& p, TalkingHeadsForward* f) {
        c.take(f, &TalkingHeadsForward::query, p.heads * tile * padded_width<A>(p.head_dim));
        c.take(f, &TalkingHeadsForward::output, p.heads * tile * padded_width<A>(p.value_dim));
        c.take(f, &TalkingHeadsForward::scores, p.heads * Block::head_stride);
        c.take(f, &TalkingHeadsForward::mixed, p.heads * Block::head_stride * (keeps(p) ? p.key_tiles() * strips : 1));
        c.take(f, &TalkingHeadsForward::bias_row, tile);
        c.take(f, &TalkingHeadsForward::largest, p.heads * tile);
        c.take(f, &TalkingHeadsForward::sums, p.heads * tile);
        c.take(f, &TalkingHeadsForward::bits, tile);
        uint64_t* in_head = c.take<uint64_t>(p.heads);
        if (f) f->bad.in_head = in_head;
    }

    TalkingHeadsForward(const Problem& p, const TalkingHeads& mixing, int64_t batch, int64_t query_tile, char* block,
                        char* scratch)
        : p(p), mixing(mixing), tokens(p, block, false), batch(batch), query_tile(query_tile) {
        rows = p.queries_in(query_tile);
        threshold = p.dropout > 0 ? drop_threshold(p.dropout) : 0;
        is_kept = keeps(p);
        ScratchLayout c{scratch};
        carve(c, p, this);
    }

    static void run(const Problem& p, const TalkingHeads& mixing, int64_t batch, int64_t query_tile, char* block,
                    const ForwardResults& results, char* scratch) {
        TalkingHeadsForward f(p, mixing, batch, query_tile, block, scratch);
        f.start();
        f.for_key_strips([&](const KeyTile& t) { f.bad.see(p, f.tokens, t, f.bits, f.bad_queries); },
                         [&](int64_t first, auto n, const TalkingStrip& s, number* l) {
                             f.template normalize<decltype(n)::value>(first, s, l);
                         });
        f.finish_normalizers(results);
        f.for_key_strips([](const KeyTile&) {},
                         [&](int64_t first, auto n, const TalkingStrip& s, number* l) {
                             f.template add_values<decltype(n)::value>(first, s, l);
                         });
        f.finish(results);
    }

    void start() {
        for (int64_t h = 0; h < p.heads; ++h) {
            bad_queries |= TalkingTokens<A>::read_queries(p, batch, h, query_tile, query + h * tile * tokens.key_stride);
            bad.in_head[h] = 0;
        }
        for (int64_t i = 0; i < p.heads * tile; ++i) largest[i] = -infinity, sums[i] = 0;
        memset(output, 0, sizeof(number) * (size_t)(p.heads * tile * tokens.value_stride));
    }

    // Calls see(key tile) for each tile of keys, then body(first row, Constant, TalkingStrip, block of l) for each strip
    // that sees a key.
    template <class See, class Body>
    REGARD_INLINE void for_key_strips(See see, Body body) {
        MaskView view(p, batch, 0);  // the mask is the same for all heads
        KeyTileIterator of_query(view, query_tile);
        KeyTile t;
        number* l = mixed;
        while (of_query.next(1, &t, bits)) {
            see(t);
            for_strips(rows, [&](int64_t first, auto n) {
                TalkingStrip s{query_tile * tile + first, t.index, bits + first, t.is_partial, 0, 0};
                Forward<A>::template find_visible_vectors<decltype(n)::value>(t.is_partial, s.allowed, &s.from, &s.stop);
                if (s.from >= s.stop) return;
                body(first, n, s, l);
                if (is_kept) l += p.heads * Block::head_stride;
            });
        }
    }

    // Computes l of a strip, with the bits of the backward pass.
    template <int n>
    REGARD_INLINE void score(int64_t first, const TalkingStrip& s, number* l, vec<number>* nonfinite) {
        Block::template multiply_tokens<n>(
            s, p.heads, query + first * tokens.key_stride, tile * tokens.key_stride, tokens.key_stride, p.head_dim,
            [&](int64_t h) { return tokens.key_columns(h / p.group(), s.key_tile); }, scores, nonfinite);
        Block::template mix_forward<n>(s, p.heads, mixing.score_mixing, scores, l);
        Block::template add_bias<n>(p, batch, s, l, bias_row);
    }

    template <int n>
    REGARD_INLINE void normalize(int64_t first, const TalkingStrip& s, number* l) {
        vec<number> nonfinite[n] = {};
        score<n>(first, s, l, nonfinite);
        for (int r = 0; r < n; ++r)  // also a score of -infinity, whose weight would be 0
            if (has_nonfinite(nonfinite[r])) bad.in_all |= (uint64_t)1 << (first + r);
        Block::template for_rows<n>(p.heads, l, [&](int64_t h, int r, number* row) {
            vec<number> highest = broadcast(-infinity);
            for (int64_t c = s.from * width; c < s.stop * width; c += width) {
                const vec<number> x = Block::hide(s, r, c, load(row + c), broadcast(-infinity));
                store(row + c, x);
                highest = maximum(highest, x);
            }
            number &most = largest[h * tile + first + r], &total = sums[h * tile + first + r];
            const number old = most, found = max_lane<number>(highest);
            most = found > old ? found : old;
            const number base = most == -infinity ? 0 : most;  // no allowed key yet
            vec<number> sum = {};
            for (int64_t c = s.from * width; c < s.stop * width; c += width)
                sum += weight(load(row + c), base);
            const number shrink = weight(broadcast(old), base)[0];
            total = total * shrink + sum_lanes<number>(sum);
        });
    }
    static REGARD_INLINE vec<number> weight(vec<number> score, number base) {
        return softmax_weight<A::degree>((score - broadcast(base)) * broadcast((number)log2_e));
    }

    // Writes the normalizers, and replaces `largest` and `sums` by the base and the factor of weights.
    void finish_normalizers(const ForwardResults& results) {
        for (int64_t h = 0; h < p.heads; ++h)
            for (int64_t i = 0; i < rows; ++i) {
                const number sum = sums[h * tile + i];
                if (sum != sum || largest[h * tile + i] == infinity) bad.in_all |= (uint64_t)1 << i;
            }
        for (int64_t h = 0; h < p.heads; ++h)
            for (int64_t i = 0; i < rows; ++i) {
                number &most = largest[h * tile + i], &sum = sums[h * tile + i];
                const bool broken = bad.in_all >> i & 1, empty = most == -infinity;
                if (results.normalizer) {
                    const double log_sum = broken ? NAN : log((double)sum) * log2_e;
                    Normalizer<number>{most, (number)log_sum}.write(results.normalizer, batch, h, query_tile * tile + i);
                }
                if (empty || broken) most = 0;
                sum = empty || broken ? 0 : (number)(1 / ((double)sum * (1 - p.dropout)));
            }
    }

    template <int n>
    REGARD_INLINE void add_values(int64_t first, const TalkingStrip& s, number* l) {
        if (!is_kept) score<n>(first, s, l, nullptr);
        Block::template for_rows<n>(p.heads, l, [&](int64_t h, int r, number* row) {
            const number base = largest[h * tile + first + r];
            const vec<number> factor = broadcast(sums[h * tile + first + r]);
            const DropoutMask drop_mask(p.seed, (uint64_t)(batch * p.heads + h), (uint64_t)(s.query + r));
            for (int64_t c = s.from * width; c < s.stop * width; c += width) {
                const vec<number> x = Block::hide(s, r, c, load(row + c), broadcast(-infinity));
                vec<number> u = weight(x, base) * factor;
                if (threshold) u = apply_dropout(drop_mask, (uint32_t)(s.key_tile * tile + c), threshold, u);
                store(row + c, u);
            }
        });
        Block::template mix_forward<n>(s, p.heads, mixing.weight_mixing, l, scores);
        const int64_t stride = tokens.value_stride, k0 = s.from * width, depth = (s.stop - s.from) * width;
        for (int64_t h = 0; h < p.heads; ++h) {
            const number* value = tokens.value_rows(h / p.group(), s.key_tile) + k0 * stride;
            number* to = output + (h * tile + first) * stride;
            for_panels(0, stride / width, [&](int64_t v0, auto panel) {
                Sums<A, n, decltype(panel)::value> o;
                o.load_from(to + v0 * width, stride);
                multiply(o, scores + h * Block::head_stride + k0, tile, 1, value + v0 * width, stride, depth);
                o.store_to(to + v0 * width, stride);
            });
        }
    }

    void finish(const ForwardResults& results) {
        const Array& out = results.output;
        for (int64_t h = 0; h < p.heads; ++h)
            for (int64_t i = 0; i < rows; ++i) {
                number* row = output + (h * tile + i) * tokens.value_stride;
                const bool broken = (bad.in_all | bad.in_head[h]) >> i & 1;
                if (!(bad.have_key >> i & 1)) memset(row, 0, sizeof(number) * (size_t)p.value_dim);
                write_scaled_row(row, p.value_dim, broken ? (number)NAN : (number)1, out,
                                 out.at(batch, h, query_tile * tile + i, 0));
            }
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

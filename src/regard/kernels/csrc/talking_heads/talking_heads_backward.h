// Backward pass of talking-heads attention. With dw_f = dO_f . v_f for each key:
//
//     du_g = sum_f R_gf dw_f        dl_g = u_g (du_g - delta_g)       delta_g = sum_j u_g du_g
//     ds_h = sum_g P_hg dl_g        dR_gf = sum u_g dw_f              dP_hg = sum s_h dl_g
//     dQ_h = scale ds_h K_h         dK_h = ds_h^T scale Q_h           dV_f = w_f^T dO_f
//
// With dropout, u_g in dR and w is the one that is kept and scaled, and du_g is scaled likewise. delta_g is not dO . o, as
// in dot-product attention, since o_f holds all u_g: prepare_queries computes it in a pass of its own over the keys. A
// task then computes a range of key tiles of all heads (see backward.cpp).
#pragma once

#include "attention/active_queries.h"
#include "talking_heads/talking_heads_forward.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

inline constexpr int talking_rows = 4 * strip;  // rows of a block: a product over rows has as many terms

template <class A>
struct TalkingHeadsBackward {
    typedef typename A::number number;
    typedef TalkingBlock<A, talking_rows> Block;
    static constexpr int width = lanes<number>;

    const Problem& p;
    const TalkingHeads& mixing;
    const TalkingTokens<A> tokens;
    int64_t batch;
    uint32_t threshold;
    vec<number> keep_scale;
    number *scores, *weights, *grad_weights, *inner, *products;  // blocks: s; u; dw; du, then dl; others
    number* bias_row;
    uint64_t *bits, *in_head;
    // Of a range of key tiles:
    number *grad_key, *grad_value;              // (key_heads) of [64][padded head_dim], [64][padded value_dim]
    number *of_score_mixing, *of_weight_mixing;  // (heads, heads) of one vector

    static size_t prepare_scratch(const Problem& p) {
        return bytes_of_parts([&](ScratchLayout& c) { carve(c, p, nullptr); });
    }
    static size_t scratch(const Problem& p) {
        return bytes_of_parts([&](ScratchLayout& c) {
            carve(c, p, nullptr);
            carve_sums(c, p, nullptr);
        });
    }
    static void carve(ScratchLayout& c, const Problem& p, TalkingHeadsBackward* b) {
        c.take(b, &TalkingHeadsBackward::scores, p.heads * Block::head_stride);
        c.take(b, &TalkingHeadsBackward::weights, p.heads * Block::head_stride);
        c.take(b, &TalkingHeadsBackward::grad_weights, p.heads * Block::head_stride);
        c.take(b, &TalkingHeadsBackward::inner, p.heads * Block::head_stride);
        c.take(b, &TalkingHeadsBackward::products, p.heads * Block::head_stride);
        c.take(b, &TalkingHeadsBackward::bias_row, tile);
        c.take(b, &TalkingHeadsBackward::bits, tile);
        c.take(b, &TalkingHeadsBackward::in_head, p.heads);
    }
    static void carve_sums(ScratchLayout& c, const Problem& p, TalkingHeadsBackward* b) {
        c.take(b, &TalkingHeadsBackward::grad_key, p.key_heads * tile * padded_width<A>(p.head_dim));
        c.take(b, &TalkingHeadsBackward::grad_value, p.key_heads * tile * padded_width<A>(p.value_dim));
        c.take(b, &TalkingHeadsBackward::of_score_mixing, p.heads * p.heads * width);
        c.take(b, &TalkingHeadsBackward::of_weight_mixing, p.heads * p.heads * width);
    }

    TalkingHeadsBackward(const Problem& p, const TalkingHeads& mixing, int64_t batch, char* block)
        : p(p), mixing(mixing), tokens(p, block, true), batch(batch) {
        threshold = p.dropout > 0 ? drop_threshold(p.dropout) : 0;
        keep_scale = broadcast((number)(1 / (1 - p.dropout)));
    }

    // ---- weights and their gradients: what both passes over the keys compute ----

    // Calls body(first row, Constant, TalkingStrip) for the strips of rows first .. stop - 1 that have a visible key.
    template <class Body>
    REGARD_INLINE void for_key_strips(int64_t query_tile, int64_t key_tile, bool partial, int64_t first, int64_t stop,
                                      Body body) {
        for_strips(stop - first, [&](int64_t row, auto n) {
            row += first;
            TalkingStrip s{query_tile * tile + row, key_tile, bits + row, partial, 0, 0};
            Forward<A>::template find_visible_vectors<decltype(n)::value>(partial, s.allowed, &s.from, &s.stop);
            body(row, n, s);
        });
    }

    // Computes s, u, dw, and dl with delta, or du without, of a strip, from row `at` of the blocks on. All are 0 where
    // hidden. With dropout u becomes the kept ones, scaled.
    template <int n>
    REGARD_INLINE void differentiate(int64_t query_tile, int64_t row, int64_t at, const TalkingStrip& s, bool has_delta) {
        number *s_to = scores + at * tile, *u_to = weights + at * tile, *dw_to = grad_weights + at * tile;
        number* du_to = inner + at * tile;
        Block::template multiply_tokens<n>(
            s, p.heads, tokens.query_rows(query_tile) + row * tokens.key_stride, tokens.query_heads(), tokens.key_stride,
            p.head_dim, [&](int64_t h) { return tokens.key_columns(h / p.group(), s.key_tile); }, s_to);
        Block::template mix_forward<n>(s, p.heads, mixing.score_mixing, s_to, u_to);
        Block::template add_bias<n>(p, batch, s, u_to, bias_row);
        Block::template multiply_tokens<n>(
            s, p.heads, tokens.grad_output(query_tile) + row * tokens.value_stride, tokens.output_heads(),
            tokens.value_stride, p.value_dim,
            [&](int64_t h) { return tokens.value_columns(h / p.group(), s.key_tile); }, dw_to);
        Block::template mix_backward<n>(s, p.heads, mixing.weight_mixing, dw_to, du_to);
        Block::template for_rows<n>(p.heads, u_to, [&](int64_t h, int r, number* u_row) {
            const int64_t row_of = h * tokens.row_heads() + query_tile * tile + row + r;
            const number base = tokens.largest_[row_of];
            const vec<number> log_sum = broadcast(tokens.log_sum_[row_of]);
            const vec<number> delta = broadcast(has_delta ? tokens.delta_[row_of] : 0);
            number* du_row = du_to + (u_row - u_to);
            const DropoutMask drop_mask(p.seed, (uint64_t)(batch * p.heads + h), (uint64_t)(s.query + r));
            for (int64_t c = s.from * width; c < s.stop * width; c += width) {
                const vec<number> x = multiply_add(load(u_row + c) - broadcast(base), broadcast((number)log2_e), -log_sum);
                const vec<number> u = Block::hide(s, r, c, softmax_weight<A::degree>(x), vec<number>{});
                vec<number> kept = u, du = load(du_row + c);
                if (threshold) {
                    const uint32_t key = (uint32_t)(s.key_tile * tile + c);
                    kept = apply_dropout(drop_mask, key, threshold, u * keep_scale);
                    du = apply_dropout(drop_mask, key, threshold, du * keep_scale);
                }
                store(u_row + c, has_delta ? kept : u);
                const vec<number> dl = has_delta ? u * (du - delta) : du;
                store(du_row + c, Block::hide(s, r, c, dl, vec<number>{}));
            }
        });
    }

    // ---- one tile of queries: its tokens, and delta ----

    static void prepare_queries(const Problem& p, const TalkingHeads& mixing, const Array& grad_output,
                                const Array& normalizer, int64_t batch, int64_t query_tile, char* block, char* scratch) {
        TalkingHeadsBackward b(p, mixing, batch, block);
        ScratchLayout c{scratch};
        carve(c, p, &b);
        b.read_queries(grad_output, normalizer, query_tile);
        if (b.tokens.active[query_tile]) b.add_up_delta(query_tile);
    }

    void read_queries(const Array& grad_output, const Array& normalizer, int64_t query_tile) {
        const int64_t first = query_tile * tile, rows = p.queries_in(query_tile);
        uint64_t broken = 0, some = 0;
        for (int64_t h = 0; h < p.heads; ++h) {
            TalkingTokens<A>::read_queries(p, batch, h, query_tile,
                                           tokens.query_rows(query_tile) + h * tokens.query_heads());
            read_rows(grad_output, grad_output.at(batch, h, first, 0), rows, tile, p.value_dim,
                      tokens.grad_output(query_tile) + h * tokens.output_heads(), tokens.value_stride);
            for (int64_t i = 0; i < tile; ++i) {
                const int64_t at = h * tokens.row_heads() + first + i;
                Normalizer<number> of_row{0, (number)HUGE_VAL};  // weights of 0
                if (i < rows) {
                    const auto read = Normalizer<number>::read(normalizer, batch, h, first + i);
                    if (read.log_sum != read.log_sum) broken |= (uint64_t)1 << i;
                    if (read.is_active()) of_row = read, some |= (uint64_t)1 << i;
                }
                tokens.largest_[at] = of_row.largest, tokens.log_sum_[at] = of_row.log_sum, tokens.delta_[at] = 0;
            }
        }
        const uint64_t active = tokens.active[query_tile] = some & ~broken;
        // Rows without gradients, or whose output is NaN in a head because of a value.
        find_bad_values(query_tile);
        for (int64_t h = 0; h < p.heads; ++h)
            clear_rows(in_head[h] | (bit_range(0, rows) & ~active), p.value_dim,
                       tokens.grad_output(query_tile) + h * tokens.output_heads(), tokens.value_stride);
    }

    // Sets in_head to the rows that may attend to a value with NaN or Inf.
    void find_bad_values(int64_t query_tile) {
        uint64_t any = 0;
        for (int64_t k = 0; k < p.key_heads * tokens.key_tiles; ++k) any |= tokens.bad_values_[k];
        for (int64_t h = 0; h < p.heads; ++h) in_head[h] = 0;
        if (!any) return;
        BadRows bad;
        bad.in_head = in_head;
        MaskView view(p, batch, 0);
        KeyTileIterator of_query(view, query_tile);
        KeyTile t;
        while (of_query.next(1, &t, bits)) bad.see(p, tokens, t, bits, 0);
    }

    void add_up_delta(int64_t query_tile) {
        const int64_t rows = p.queries_in(query_tile);
        MaskView view(p, batch, 0);
        KeyTileIterator of_query(view, query_tile);
        KeyTile t;
        while (of_query.next(1, &t, bits)) {
            const bool partial = hide_inactive(tokens.active[query_tile], rows, t.is_partial, bits);
            for_key_strips(query_tile, t.index, partial, 0, rows, [&](int64_t row, auto n, const TalkingStrip& s) {
                if (s.from >= s.stop) return;
                differentiate<decltype(n)::value>(query_tile, row, 0, s, false);
                Block::template for_rows<decltype(n)::value>(p.heads, weights, [&](int64_t h, int r, number* u_row) {
                    const number* du_row = inner + (u_row - weights);
                    vec<number> sum = {};
                    for (int64_t c = s.from * width; c < s.stop * width; c += width)
                        sum = multiply_add(load(u_row + c), load(du_row + c), sum);
                    tokens.delta_[h * tokens.row_heads() + query_tile * tile + row + r] += sum_lanes<number>(sum);
                });
            });
        }
    }

    // ---- one range of key tiles ----

    static void run(const Problem& p, const TalkingHeads& mixing, const TalkingHeadsGradients& gradients,
                    const TalkingHeadsSums& sums, int64_t batch, int64_t first, int64_t stop, char* block, char* scratch) {
        TalkingHeadsBackward b(p, mixing, batch, block);
        ScratchLayout c{scratch};
        carve(c, p, &b);
        carve_sums(c, p, &b);
        const size_t of_matrix = sizeof(number) * (size_t)(p.heads * p.heads);
        memset(b.of_score_mixing, 0, of_matrix * (size_t)width);
        memset(b.of_weight_mixing, 0, of_matrix * (size_t)width);
        memset(sums.grad_query, 0, grad_query_bytes(p));
        for (int64_t t = first; t < stop; ++t) {
            memset(b.grad_key, 0, sizeof(number) * (size_t)(p.key_heads * tile * b.tokens.key_stride));
            memset(b.grad_value, 0, sizeof(number) * (size_t)(p.key_heads * tile * b.tokens.value_stride));
            b.process_queries(t, sums);
            b.finish_keys(t, gradients);
        }
        number* to = (number*)sums.mixing;
        for (int64_t i = 0; i < p.heads * p.heads; ++i) {
            to[i] = sum_lanes<number>(load(b.of_score_mixing + i * width));
            to[p.heads * p.heads + i] = sum_lanes<number>(load(b.of_weight_mixing + i * width));
        }
    }

    static size_t grad_query_bytes(const Problem& p) {
        return sizeof(number) * (size_t)(p.heads * p.query_tiles() * tile * padded_width<A>(p.head_dim));
    }

    void process_queries(int64_t key_tile, const TalkingHeadsSums& sums) {
        for_active_queries(p, batch, 0, key_tile, tokens.active, bits, [&](int64_t i, int64_t rows, bool partial) {
            for (int64_t row = 0; row < rows; row += talking_rows)
                process_block(i, key_tile, partial, row, min_of(rows, row + talking_rows), sums);
        });
    }

    // Rows first .. past - 1 of a tile of queries, and a tile of keys.
    void process_block(int64_t query_tile, int64_t key_tile, bool partial, int64_t first, int64_t past,
                       const TalkingHeadsSums& sums) {
        TalkingStrip all{query_tile * tile + first, key_tile, bits + first, partial, 0, 0};
        Forward<A>::find_visible_vectors(partial, all.allowed, past - first, &all.from, &all.stop);
        if (all.from >= all.stop) return;
        for_key_strips(query_tile, key_tile, partial, first, past, [&](int64_t row, auto n, const TalkingStrip& s) {
            constexpr int rows = decltype(n)::value;
            const int64_t at = row - first;
            if (s.from < s.stop) {
                differentiate<rows>(query_tile, row, at, s, true);
                add_to_biases<rows>(at, s, sums);
                add_to_mixing<rows>(s, weights + at * tile, grad_weights + at * tile, of_weight_mixing);
                add_to_mixing<rows>(s, scores + at * tile, inner + at * tile, of_score_mixing);
                Block::template mix_forward<rows>(s, p.heads, mixing.weight_mixing, weights + at * tile,
                                                  products + at * tile);
            }
            clear_outside<rows>(s, all, products + at * tile);
        });
        for (int64_t h = 0; h < p.heads; ++h)
            add_to_keys(all, past - first, products + h * Block::head_stride,
                        tokens.grad_output(query_tile) + h * tokens.output_heads() + first * tokens.value_stride,
                        tokens.value_stride, grad_value + h / p.group() * tile * tokens.value_stride);
        for_key_strips(query_tile, key_tile, partial, first, past, [&](int64_t row, auto n, const TalkingStrip& s) {
            constexpr int rows = decltype(n)::value;
            const int64_t at = row - first;
            if (s.from < s.stop) {
                Block::template mix_backward<rows>(s, p.heads, mixing.score_mixing, inner + at * tile, products + at * tile);
                add_to_queries<rows>(query_tile, row, s, products + at * tile, (number*)sums.grad_query);
            }
            clear_outside<rows>(s, all, products + at * tile);
        });
        for (int64_t h = 0; h < p.heads; ++h)
            add_to_keys(all, past - first, products + h * Block::head_stride,
                        tokens.query_rows(query_tile) + h * tokens.query_heads() + first * tokens.key_stride,
                        tokens.key_stride, grad_key + h / p.group() * tile * tokens.key_stride);
    }

    // Sets the numbers of a strip to 0 at the vectors of the block that the strip does not see.
    template <int n>
    static REGARD_INLINE void clear_outside_row(const TalkingStrip& s, const TalkingStrip& all, number* row) {
        for (int64_t c = all.from * width; c < all.stop * width; c += width)
            if (c < s.from * width || c >= s.stop * width) store(row + c, vec<number>{});
    }
    template <int n>
    REGARD_INLINE void clear_outside(const TalkingStrip& s, const TalkingStrip& all, number* block) {
        if (s.from == all.from && s.stop == all.stop) return;
        Block::template for_rows<n>(p.heads, block, [&](int64_t, int, number* row) { clear_outside_row<n>(s, all, row); });
    }

    // sums[a][b] += the products of numbers of head a of one block and head b of another, as a vector of partial sums.
    template <int n>
    REGARD_INLINE void add_to_mixing(const TalkingStrip& s, const number* left, const number* right, number* sums) {
        for (int64_t a = 0; a < p.heads; ++a, left += Block::head_stride)
            for_strips(p.heads, [&](int64_t b, auto count) {
                constexpr int columns = decltype(count)::value;
                Sums<A, 1, columns> total;
                number* to = sums + (a * p.heads + b) * width;
                total.load_from(to, 0);
                for (int r = 0; r < n; ++r)
                    for (int64_t c = s.from * width; c < s.stop * width; c += width) {
                        const vec<number> x = load(left + r * tile + c);
                        total.each([&](int, int v, vec<number>& sum) {
                            sum = multiply_add(x, load(right + (b + v) * Block::head_stride + r * tile + c), sum);
                        });
                    }
                total.store_to(to, 0);
            });
    }

    // to[j] += sum_r block[r][j] rows[r], for the visible keys j of `count` rows.
    REGARD_INLINE void add_to_keys(const TalkingStrip& all, int64_t count, const number* block, const number* rows,
                                   int64_t stride, number* to) {
        const int64_t first = all.from * width, keys = (all.stop - all.from) * width;
        for_panels(0, stride / width, [&](int64_t v0, auto panel) {
            for_strips(keys, [&](int64_t j, auto n) {
                Sums<A, decltype(n)::value, decltype(panel)::value> sums;
                number* of_keys = to + (first + j) * stride + v0 * width;
                sums.load_from(of_keys, stride);
                multiply(sums, block + first + j, 1, tile, rows + v0 * width, stride, count);
                sums.store_to(of_keys, stride);
            });
        });
    }

    template <int n>
    REGARD_INLINE void add_to_queries(int64_t query_tile, int64_t row, const TalkingStrip& s, const number* block,
                                      number* grad_query) {
        const int64_t stride = tokens.key_stride, k0 = s.from * width, depth = (s.stop - s.from) * width;
        for (int64_t h = 0; h < p.heads; ++h) {
            const number* keys = tokens.key_rows(h / p.group(), s.key_tile) + k0 * stride;
            number* to = grad_query + h * tokens.query_heads() + (query_tile * tile + row) * stride;
            for_panels(0, stride / width, [&](int64_t v0, auto panel) {
                Sums<A, n, decltype(panel)::value> sums;
                sums.load_from(to + v0 * width, stride);
                multiply(sums, block + h * Block::head_stride + k0, tile, 1, keys + v0 * width, stride, depth);
                sums.store_to(to + v0 * width, stride);
            });
        }
    }

    // dl is the gradient of the biases.
    template <int n>
    REGARD_INLINE void add_to_biases(int64_t at, const TalkingStrip& s, const TalkingHeadsSums& sums) {
        if (!sums.grad_bias && !sums.grad_table) return;
        const int64_t first = s.key_tile * tile, count = min_of(p.keys - first, s.stop * width);
        Block::template for_rows<n>(p.heads, inner + at * tile, [&](int64_t h, int r, number* dl) {
            if (const Array& b = sums.bias; sums.grad_bias) {
                number* to = (number*)b.data + b.at(batch, h, s.query + r, first);
                for (int64_t j = s.from * width; j < count; ++j) to[j * b.stride[3]] += dl[j];
            }
            if (const Array& t = sums.table; sums.grad_table) {
                const int64_t distance = first - (s.query + r + p.offset) - p.table_lowest;
                REGARD_ASSERT(0 <= distance && distance + count <= t.shape[3]);
                number* to = (number*)t.data + (t.shape[2] == 1 ? 0 : h) * t.stride[2] + distance;
                for (int64_t j = s.from * width; j < count; ++j) to[j] += dl[j];
            }
        });
    }

    void finish_keys(int64_t key_tile, const TalkingHeadsGradients& g) {
        const int64_t first = key_tile * tile, count = p.keys_in(key_tile);
        const auto write = [&](const number* sums, int64_t stride, int64_t width_of, const Array& to) {
            for (int64_t h = 0; h < p.key_heads; ++h)
                for (int64_t j = 0; j < count; ++j)
                    write_scaled_row(sums + (h * tile + j) * stride, width_of, (number)1, to,
                                     to.at(batch, h, first + j, 0));
        };
        write(grad_key, tokens.key_stride, p.head_dim, g.key);
        write(grad_value, tokens.value_stride, p.value_dim, g.value);
    }

    // Writes dQ of one tile: the sums of `count` ranges, `step` bytes apart, in order, times the scale.
    static void finish_queries(const Problem& p, int64_t batch, int64_t head, int64_t query_tile, const char* sums,
                               size_t step, int64_t count, const Array& grad_query) {
        const int64_t stride = padded_width<A>(p.head_dim), first = query_tile * tile;
        const int64_t rows = p.queries_in(query_tile);
        number row[1024];
        for (int64_t i = 0; i < rows; ++i) {
            const char* of_row = sums + sizeof(number) * (size_t)(((head * p.query_tiles() * tile) + first + i) * stride);
            for (int64_t k0 = 0; k0 < p.head_dim; k0 += 1024) {
                const int64_t columns = min_of(p.head_dim - k0, 1024);
                for (int64_t k = 0; k < columns; ++k) row[k] = ((const number*)of_row)[k0 + k];
                for (int64_t n = 1; n < count; ++n)
                    for (int64_t k = 0; k < columns; ++k)
                        row[k] += ((const number*)(of_row + step * (size_t)n))[k0 + k];
                write_scaled_row(row, columns, (number)p.scale, grad_query, grad_query.at(batch, head, first + i, k0));
            }
        }
    }
};

template <class A>
constexpr TalkingHeadsKernels talking_heads_kernels() {
    TalkingHeadsKernels k = {};
    k.number = sizeof(typename A::number);
    k.bytes = TalkingTokens<A>::bytes;
    k.pack_scratch = TalkingTokens<A>::pack_scratch;
    k.pack_keys = TalkingTokens<A>::pack_keys;
    k.forward_scratch = TalkingHeadsForward<A>::scratch;
    k.forward = TalkingHeadsForward<A>::run;
    k.prepare_scratch = TalkingHeadsBackward<A>::prepare_scratch;
    k.prepare_queries = TalkingHeadsBackward<A>::prepare_queries;
    k.backward_scratch = TalkingHeadsBackward<A>::scratch;
    k.grad_query_bytes = TalkingHeadsBackward<A>::grad_query_bytes;
    k.backward = TalkingHeadsBackward<A>::run;
    k.finish_queries = TalkingHeadsBackward<A>::finish_queries;
    return k;
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

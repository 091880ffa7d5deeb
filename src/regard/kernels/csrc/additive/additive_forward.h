// Additive attention, forward: one tile of 64 queries of one head, with all its keys.
//
// The scores come from additive.h; Forward computes the softmax and the output from them.
#pragma once

#include "additive/additive.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class A>
struct AdditiveForward {
    typedef typename A::number number;
    static constexpr int width = lanes<number>;

    const Problem& p;
    Forward<A> softmax;
    ScoreVector<A> vector;
    ExactPair<A> pair;
    number *pull, *exact;
    uint64_t large = 0;  // bits of the large queries

    static size_t scratch(const Problem& p) {
        ScratchLayout c{nullptr};
        carve(c, p, nullptr);
        return align_up(Forward<A>::scratch(p)) + c.used_bytes;
    }

    static void carve(ScratchLayout& c, const Problem& p, AdditiveForward* f) {
        ScoreVector<A> vector;
        vector.carve(c, p);
        ExactPair<A> pair;
        pair.carve(c, p);
        c.take(f, &AdditiveForward::pull, tile * padded_width<A>(p.head_dim));
        c.take(f, &AdditiveForward::exact, rows_per_group * tile);
        if (f) f->vector = vector, f->pair = pair;
    }

    AdditiveForward(const Problem& p, const PackedKeys& keys, int64_t batch, int64_t head, int64_t query_tile,
                    char* scratch)
        : p(p), softmax(p, keys, batch, head, query_tile, scratch) {
        ScratchLayout c{scratch + align_up(Forward<A>::scratch(p))};
        carve(c, p, this);
        vector.read(p, head);
    }

    static void run(const Problem& p, const PackedKeys& keys, int64_t batch, int64_t head, int64_t query_tile,
                    const ForwardResults& results, char* scratch) {
        AdditiveForward f(p, keys, batch, head, query_tile, scratch);
        f.process_keys(query_tile);
        f.softmax.finish(results);
    }

    void process_keys(int64_t query_tile) {
        Forward<A>& f = softmax;
        uint64_t bad_queries = read_queries();
        memset(f.output, 0, sizeof(number) * (size_t)(f.rows * f.value_stride));
        memset(f.sums, 0, sizeof(number) * (size_t)(f.rows * width));
        for (int64_t i = 0; i < f.rows; ++i) f.largest[i] = -f.infinity;
        MaskView view(p, f.batch, f.head);
        KeyTileIterator of_query(view, query_tile);
        KeyTile tiles[Forward<A>::group];
        while (int count = of_query.next(f.group, tiles, f.bits)) {
            for (int t = 0; t < count; ++t) f.mark_broken(tiles[t], f.bits + t * tile, bad_queries);
            for_rows(f.rows, [&](int64_t first, auto n) { process_strip<decltype(n)::value>(first, tiles, count); });
        }
    }

    // Computes decay (in Forward's buffer for queries) and pull. Queries with NaN or Inf count as zeros; their bits are
    // returned.
    uint64_t read_queries() {
        uint64_t bad = 0;
        int64_t stride = softmax.query_stride;
        for (int64_t i = 0; i < softmax.rows; ++i) {
            number* decay = softmax.query + i * stride;
            int64_t at = p.query.at(softmax.batch, softmax.head, softmax.first_query + i, 0);
            if (read_row(p.query, at, p.head_dim, decay, stride)) {
                bad |= (uint64_t)1 << i;
                memset(decay, 0, sizeof(number) * (size_t)stride);
            }
            large |= (uint64_t)PackAdditive<A>::pack_query(p, vector.scaled_values, decay, pull + i * stride) << i;
        }
        return bad;
    }

    template <int n>
    REGARD_INLINE void process_strip(int64_t first, const KeyTile* tiles, int count) {
        Forward<A>& f = softmax;
        int32_t from[Forward<A>::group], stop[Forward<A>::group];
        uint64_t visible[Forward<A>::group];
        vec<number> highest[n];
        for (int r = 0; r < n; ++r) highest[r] = broadcast(-f.infinity);
        for (int t = 0; t < count; ++t) {
            const uint64_t* allowed = f.bits + t * tile + first;
            visible[t] = f.template find_visible_vectors<n>(tiles[t].is_partial, allowed, &from[t], &stop[t]);
            if (from[t] < stop[t]) score_tile<n>(first, t, tiles[t], from[t], stop[t], highest);
        }
        number shrink[n];
        f.template weigh<n>(first, 0, tiles, count, from, stop, highest, shrink);
        f.template mix<n>(first, tiles, count, visible, shrink);
    }

    // Computes the final scores; -infinity where the mask forbids.
    template <int n>
    REGARD_INLINE void score_tile(int64_t first, int t, const KeyTile& keys_of, int32_t from, int32_t stop,
                                  vec<number>* highest) {
        Forward<A>& f = softmax;
        char* key = f.keys.key + f.keys.key_bytes * (size_t)keys_of.index;
        number* to = f.scores + t * tile;
        const number* added[n];
        const uint64_t* allowed = f.bits + t * tile + first;
        if (f.bias.has_bias())
            for (int r = 0; r < n; ++r)
                added[r] = f.bias.read(f.first_query + first + r, keys_of.index * tile, f.bias_rows + r * tile);
        Scores<A> scores = {p,
                            vector,
                            pair,
                            exact,
                            f.query + first * f.query_stride,
                            pull + first * f.query_stride,
                            (const number*)key,
                            f.batch,
                            f.head,
                            f.first_query + first,
                            keys_of.index * tile,
                            large >> first,
                            *PackAdditive<A>::large_keys(p, key)};
        scores.template prepare<n>();
        for_score_panels(from, stop, [&](int64_t v0, auto panel) {
            Sums<A, n, decltype(panel)::value> s;
            scores.sum(v0, s);
            s.each([&](int r, int v, vec<number>& x) {
                vec<number> plus = {};
                if (f.bias.has_bias()) plus = load(added[r] + (v0 + v) * width);
                x = multiply_add(x, broadcast(vector.unit), plus);
                if (keys_of.is_partial)
                    x = select((uint32_t)(allowed[r] >> ((v0 + v) * width)), x, broadcast(-f.infinity));
                highest[r] = maximum(highest[r], x);
            });
            s.store_to(to + v0 * width, f.row);
        });
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

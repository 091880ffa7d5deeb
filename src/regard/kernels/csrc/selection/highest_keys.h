// The keys with the highest scores of each query, by float32 products with an error bound, and few in float64.
//
// The choice is defined by r = float32(float64 sum): see regard/mechanisms/highest_scores.py. A float32 product a of a
// query and a key differs from r by at most
//
//     E = c B K,   c = (d + H + 4) 2^-24,   B = sum_h |w_h| |q_h|,   K = the largest norm of the keys so far
//
// in any order of summation, with or without fused operations (Higham 2002, "Accuracy and stability of numerical
// algorithms", section 3.1; relu does not increase an error, and H products are added; without a sum H = 1, w = 1). With
// A between the bounds low <= A <= high of the `count`-th highest product:
//
//     a > high + 2 E   is among the highest by r;      a < low - 2 E   is not;      others are scored in float64
//
// Keys are compared tile by tile, the last ones first, since these are often the most alike. A row keeps the keys that
// may be among the highest in a buffer; when that is full, the threshold rises. Where many keys are equal, it stays full,
// and the buffer is decided in float64. So is a whole row whose bound could overflow, or whose query has NaN or Inf.
#pragma once

#include <math.h>

#include "runtime/scratch_layout.h"
#include "selection/selection_kernels.h"
#include "tiles/gemm_microkernel.h"
#include "tiles/mask_tiles.h"
#include "tiles/pack.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// Numbers of a row that may be among the highest, and their keys.
struct Candidates {
    float* score;
    int32_t* position;
    int64_t count;
    float threshold;  // keys with a smaller or equal product are left out
};

// Scores > bound among count numbers, which are followed by a vector of -Inf.
REGARD_INLINE int64_t count_greater(const float* score, int64_t count, float bound) {
    int64_t found = 0;
    const vfloat all = broadcast(bound);
    for (int64_t j = 0; j < count; j += lanes<float>) found += __builtin_popcount(compare_greater(load(score + j), all));
    return found;
}

// Writes the lanes whose bits are set side by side; a whole vector may be written.
REGARD_INLINE void append_lanes(uint32_t bits, vfloat score, int32_t first, float* scores, int32_t* positions) {
#if defined(__AVX512F__)
    const __m512i at = _mm512_add_epi32(_mm512_set1_epi32(first),
                                        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    _mm512_storeu_ps(scores, _mm512_maskz_compress_ps((__mmask16)bits, score));
    _mm512_storeu_si512(positions, _mm512_maskz_compress_epi32((__mmask16)bits, at));
#else
    float own[lanes<float>];
    store(own, score);
    for (int n = 0; bits; bits &= bits - 1, ++n) {
        const int lane = __builtin_ctz(bits);
        scores[n] = own[lane];
        positions[n] = first + lane;
    }
#endif
}

// Bounds of the `wanted`-th highest of count scores, no further apart than `near` or than one number. `slack`: enough
// to find a lower bound that at most so many more reach.
struct Bounds {
    float low, high;
};
REGARD_INLINE float middle_of(float low, float high, int step) {
    const float half = low / 2 + high / 2;
    if (step < 40 && half - half == 0 && half >= low && half < high) return half;
    const auto order = [](float x) {
        int32_t bits;
        memcpy(&bits, &x, 4);
        return bits < 0 ? (int64_t)INT32_MIN - bits : (int64_t)bits;
    };
    const int64_t sum = order(low) + order(high), at = (sum - (sum & 1)) / 2;
    const int32_t bits = (int32_t)(at < 0 ? (int64_t)INT32_MIN - at : at);
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
REGARD_INLINE Bounds bound_rank(const float* score, int64_t count, int64_t wanted, float near, int64_t slack) {
    float low = score[0];
    vfloat most = broadcast(low), least = broadcast(low);
    for (int64_t j = 0; j < count; j += lanes<float>) most = maximum(load(score + j), most);
    int64_t j = 0;
    for (; j + lanes<float> <= count; j += lanes<float>) least = minimum(load(score + j), least);
    for (; j < count; ++j) low = score[j] < low ? score[j] : low;
    const float lowest = -max_lane<float>(-least);
    low = lowest < low ? lowest : low;
    float high = max_lane<float>(most);
    for (int step = 0; low < high && !(high - low <= near); ++step) {
        const float middle = middle_of(low, high, step);
        const int64_t above = count_greater(score, count, middle);
        if (above < wanted) {
            high = middle;
        } else {
            if (middle == low) break;  // the two are neighbours
            low = middle;
            if (above <= wanted + slack) break;
        }
    }
    return {low, high};
}

struct Choice {
    static constexpr int64_t group = 4;  // tiles that are read together
    static constexpr int64_t room = tile + lanes<float>;

    const HighestArguments& given;
    const ChoiceKeys& keys;
    const ExactChoice& exact;
    const Problem& p;
    int64_t batch, head, first_query, rows, stride, score_heads, tiles = 0;
    int64_t capacity;
    int32_t* tile_index;
    uint64_t** tile_bits;  // null for a full tile
    uint64_t *bits, *marks, *codes;
    float *query, *weight, *scores, *buffers;
    float* margin;  // of each query of a sum: a product below minus this is negative
    int32_t* positions;
    double *size, *floor_of;   // B of each row, and what may be lost to numbers below the normal ones
    int64_t* visible;
    Candidates row_of[tile];
    uint64_t is_exact = 0, is_whole = 0;  // rows that are compared in float64; rows whose visible keys are all chosen
    double norm = 0;
    uint64_t may_count[strip];  // of the present tile, in a sum: keys with a product that may be above 0

    static int64_t buffer_size(const HighestArguments& g) {
        const int64_t wanted = 4 * g.count < 1024 ? 1024 : g.count < 512 ? 4 * g.count : 2 * g.count + 1024;
        const int64_t all = g.problem.key_tiles() * tile;
        return wanted < all ? wanted : all;
    }
    REGARD_INLINE void carve(ScratchLayout& c) {
        capacity = buffer_size(given);
        stride = padded_width<Float32>(p.head_dim);
        score_heads = given.summed ? given.score_heads : 1;
        const int64_t all = p.key_tiles();
        tile_index = c.take<int32_t>(all);
        tile_bits = c.take<uint64_t*>(all);
        bits = c.take<uint64_t>(all * tile);
        marks = c.take<uint64_t>(all);
        codes = c.take<uint64_t>(all * tile);
        query = c.take<float>(score_heads * tile * stride);
        weight = c.take<float>(score_heads * tile);
        scores = c.take<float>(strip * tile);
        margin = c.take<float>(score_heads * tile);
        buffers = c.take<float>(tile * (capacity + room));
        positions = c.take<int32_t>(tile * (capacity + room));
        size = c.take<double>(tile);
        floor_of = c.take<double>(tile);
        visible = c.take<int64_t>(tile);
    }
    REGARD_INLINE Choice(const HighestArguments& given, const ChoiceKeys& keys, const ExactChoice& exact, int64_t batch,
                         int64_t head, int64_t query_tile, ScratchLayout& c)
        : given(given), keys(keys), exact(exact), p(given.problem), batch(batch), head(head) {
        first_query = query_tile * tile;
        rows = p.queries_in(query_tile);
        carve(c);
    }

    static size_t scratch(const HighestArguments& given) {
        return bytes_of_parts([&](ScratchLayout& layout) { Choice(given, {}, {}, 0, 0, 0, layout); });
    }

    static size_t pack_scratch(const HighestArguments& given) {
        return sizeof(float) * (size_t)(tile * padded_width<Float32>(given.problem.head_dim));
    }
    static void pack(const HighestArguments& given, int64_t batch, int64_t key_head, int64_t key_tile,
                     const ChoiceKeys& into, char* scratch) {
        const Problem& p = given.problem;
        const int64_t first = key_tile * tile, count = p.keys_in(key_tile), stride = padded_width<Float32>(p.head_dim);
        float *rows = (float*)scratch, *to = into.key + key_tile * p.head_dim * tile;
        const uint64_t bad =
            read_rows(p.key, p.key.at(batch, key_head, first, 0), count, tile, p.head_dim, rows, stride);
        if (bad) clear_rows(bad, p.head_dim, rows, stride);
        transpose(rows, stride, tile, p.head_dim, to);
        double most = 0;
        for (int64_t j = 0; j < count; ++j) {
            double sum = 0;
            for (int64_t k = 0; k < p.head_dim; ++k) sum += (double)rows[j * stride + k] * (double)rows[j * stride + k];
            most = sum > most ? sum : most;
        }
        into.bad[key_tile] = bad;
        into.norm[key_tile] = sqrt(most);
    }

    static void choose(const HighestArguments& given, const ChoiceKeys& keys, const ExactChoice& exact, int64_t batch,
                       int64_t head, int64_t query_tile, char* scratch) {
        ScratchLayout layout{scratch};
        Choice c(given, keys, exact, batch, head, query_tile, layout);
        c.find_visible(query_tile);
        if (c.is_whole != bit_range(0, c.rows)) {
            c.read_queries();
            c.compare_tiles();
        }
        for (int64_t i = 0; i < c.rows; ++i) c.write_row(i);
    }

    // The tiles, their bits, and which rows see no more keys than are chosen.
    void find_visible(int64_t query_tile) {
        MaskView view(p, batch, head);
        KeyTileIterator of_query(view, query_tile);
        KeyTile one;
        for (int64_t i = 0; i < rows; ++i) visible[i] = 0;
        uint64_t* next = bits;
        while (of_query.next(1, &one, next)) {
            tile_index[tiles] = (int32_t)one.index;
            tile_bits[tiles] = one.is_partial ? next : nullptr;
            for (int64_t i = 0; i < rows; ++i) visible[i] += one.is_partial ? __builtin_popcountll(next[i]) : tile;
            if (one.is_partial) next += tile;
            ++tiles;
        }
        for (int64_t i = 0; i < rows; ++i) is_whole |= (uint64_t)(visible[i] <= given.count) << i;
    }

    void read_queries() {
        for (int64_t i = 0; i < rows; ++i) size[i] = floor_of[i] = 0;
        for (int64_t h = 0; h < score_heads; ++h) {
            const int64_t of = given.summed ? h : head;
            float* to = query + h * tile * stride;
            is_exact |= read_rows(p.query, p.query.at(batch, of, first_query, 0), rows, rows, p.head_dim, to, stride);
            for (int64_t i = 0; i < rows; ++i) {
                float w = 1;
                if (given.weight) read_row(given.weight, given.weight.at(batch, of, first_query + i, 0), 1, &w, 1);
                weight[h * tile + i] = w;
                double sum = 0;
                for (int64_t k = 0; k < p.head_dim; ++k) sum += (double)to[i * stride + k] * (double)to[i * stride + k];
                size[i] += fabs((double)w) * sqrt(sum);
                floor_of[i] += fabs((double)w) + 1;
                margin[h * tile + i] = (float)(1.01 * 5.9604644775390625e-08 * (double)(p.head_dim + 4) * sqrt(sum));
            }
        }
        for (int64_t i = 0; i < rows; ++i) {
            if (!(size[i] < 1e300)) is_exact |= (uint64_t)1 << i;
            row_of[i] = {buffers + i * (capacity + room), positions + i * (capacity + room), 0, (float)-HUGE_VAL};
        }
    }

    // E of a row, for the keys so far.
    REGARD_INLINE float error_of(int64_t i) const {
        const double terms = (double)(p.head_dim + score_heads + 4);
        return (float)(1.01 * terms * (5.9604644775390625e-08 * size[i] * norm + 1.2e-38 + 1.5e-45 * floor_of[i]));
    }

    void compare_tiles() {
        const uint64_t active = bit_range(0, rows) & ~is_whole;
        for (int64_t stop = tiles; stop > 0; stop -= group) {
            const int64_t from = max_of(stop - group, 0);
            for (int64_t t = from; t < stop; ++t) norm = max_of_double(norm, keys.norm[tile_index[t]]);
            for (int64_t i = 0; i < rows; ++i)
                if (!(size[i] * norm < 1e30)) is_exact |= (uint64_t)1 << i;
            if (!(active & ~is_exact)) return;
            for_strips(rows, [&](int64_t first, auto n) {
                constexpr int rows_of = decltype(n)::value;
                if (!(active & ~is_exact & bit_range(first, first + rows_of))) return;
                for (int64_t t = stop - 1; t >= from; --t) {
                    multiply_tile<rows_of>(first, tile_index[t]);
                    for (int64_t i = first; i < first + rows_of; ++i)
                        if (active & ~is_exact & (uint64_t)1 << i) take_row(i, i - first, t, scores + (i - first) * tile);
                }
            });
        }
    }
    static REGARD_INLINE double max_of_double(double a, double b) { return a > b ? a : b; }

    // The scores of a strip of queries and a tile of keys.
    template <int n>
    REGARD_INLINE void multiply_tile(int64_t first, int64_t key_tile) {
        const float* key = keys.key + key_tile * p.head_dim * tile;
        for_panels(0, tile / lanes<float>, [&](int64_t v0, auto panel) {
            float* to = scores + v0 * lanes<float>;
            for (int64_t h = 0; h < score_heads; ++h) {
                Sums<Float32, n, decltype(panel)::value> s;
                s.clear();
                multiply(s, query + (h * tile + first) * stride, stride, 1, key + v0 * lanes<float>, tile, p.head_dim);
                if (given.summed) {
                    const float *of = weight + h * tile + first, *error = margin + h * tile + first;
                    if (h == 0 && v0 == 0)
                        for (int r = 0; r < n; ++r) may_count[r] = 0;
                    s.each([&](int r, int v, vfloat& x) {
                        const float least = -(error[r] * (float)norm * 1.001f + 1e-38f);
                        may_count[r] |= (uint64_t)compare_greater(x, broadcast(least)) << ((v0 + v) * lanes<float>);
                    });
                    s.each([&](int r, int v, vfloat& x) {
                        const vfloat before = h ? load(to + r * tile + v * lanes<float>) : vfloat{};
                        x = multiply_add(maximum(x, vfloat{}), broadcast(of[r]), before);
                    });
                }
                s.store_to(to, tile);
            }
        });
    }

    REGARD_INLINE uint64_t bad_keys(int64_t key_tile) const {
        uint64_t bad = keys.bad[key_tile];
        if (given.first) {
            const Array& a = given.first;
            bad |= dense_bits((const uint8_t*)a.data + a.at(batch, a.shape[1] == 1 ? 0 : head, 0, key_tile * tile),
                              a.stride[3], p.keys_in(key_tile));
        }
        return bad;
    }

    // A sum is 0 exactly if every product is certainly negative, and only then a score is 0: an uncertain 0 becomes the
    // smallest normal number, a difference far below E. So the many keys that relu makes equal are not scored again.
    static REGARD_INLINE vfloat mark_zeros(vfloat x, uint32_t may_count) {
        const vfloat tiny = broadcast(1.17549435e-38f);
        const vbits is_zero = (vbits)(x == vfloat{});
        const vfloat nudged = (vfloat)(((vbits)x & ~is_zero) | ((vbits)tiny & is_zero));
        return select(may_count, nudged, x);
    }

    // Adds the keys of a tile that may be among the highest.
    REGARD_INLINE void take_row(int64_t i, int64_t row, int64_t t, const float* score) {
        Candidates& c = row_of[i];
        const uint64_t bad = bad_keys(tile_index[t]), seen = tile_bits[t] ? tile_bits[t][i] : ~(uint64_t)0;
        const vfloat bound = broadcast(c.threshold);
        for (int v = 0; v < tile / lanes<float>; ++v) {
            vfloat x = load(score + v * lanes<float>);
            if (given.summed) x = mark_zeros(x, (uint32_t)(may_count[row] >> (v * lanes<float>)));
            if (bad) x = select((uint32_t)(bad >> (v * lanes<float>)), broadcast((float)HUGE_VAL), x);
            const uint32_t all = lanes<float> == 32 ? ~0u : ((1u << lanes<float>) - 1);
            const uint32_t found = compare_greater(x, bound) & (uint32_t)(seen >> (v * lanes<float>)) & all;
            if (!found) continue;
            append_lanes(found, x, (int32_t)(tile_index[t] * tile + v * lanes<float>), c.score + c.count, c.position + c.count);
            c.count += __builtin_popcount(found);
        }
        if (c.count > capacity - tile) reduce(i, false);
    }

    // Raises the threshold of a row; if `last`, or if too many keys are left, leaves exactly the highest ones.
    __attribute__((noinline)) void reduce(int64_t i, bool last) {
        Candidates& c = row_of[i];
        if (c.count <= given.count) return;
        float high = raise(c, given.count / 8 + 16, error_of(i));
        if (!last && c.count <= (capacity - tile) / 2 + given.count / 2) return;
        if (c.count > given.count) high = raise(c, 0, error_of(i));
        decide(i, high);
    }
    // Raises the threshold, so that about `slack` too many keys are left. Returns a number above which keys are chosen.
    REGARD_INLINE float raise(Candidates& c, int64_t slack, float error) {
        store(c.score + c.count, broadcast((float)-HUGE_VAL));
        const Bounds bounds = bound_rank(c.score, c.count, given.count, error, slack);
        const float low = below(bounds.low - 2 * error), high = bounds.high + 2 * error;
        if (low == low && low > c.threshold) c.threshold = low;
        keep_above(c, c.threshold);
        return high == high ? high : (float)HUGE_VAL;
    }
    static REGARD_INLINE float below(float x) {  // a smaller number, with room for the rounding of the difference
        return x - fabsf(x) * 1.2e-7f - 1e-45f;
    }
    static REGARD_INLINE void keep_above(Candidates& c, float bound) {
        int64_t kept = 0, j = 0;
#if defined(__AVX512F__)
        for (; j + lanes<float> <= c.count; j += lanes<float>) {
            const vfloat x = load(c.score + j);
            const __m512i at = _mm512_loadu_si512(c.position + j);
            const uint32_t found = compare_greater(x, broadcast(bound));
            _mm512_storeu_ps(c.score + kept, _mm512_maskz_compress_ps((__mmask16)found, x));
            _mm512_storeu_si512(c.position + kept, _mm512_maskz_compress_epi32((__mmask16)found, at));
            kept += __builtin_popcount(found);
        }
#endif
        for (; j < c.count; ++j) {
            const float x = c.score[j];
            c.score[kept] = x, c.position[kept] = c.position[j];
            kept += x > bound;
        }
        c.count = kept;
    }

    // Keeps the highest keys: those whose product is above `sure` + a rounding, and the best others in float64.
    void decide(int64_t i, float sure) {
        Candidates& c = row_of[i];
        sure = sure + fabsf(sure) * 1.2e-7f + 1e-45f;
        int64_t kept = 0, left = 0;
        for (int64_t j = 0; j < c.count; ++j) {
            if (c.score[j] > sure) {
                c.score[kept] = c.score[j], c.position[kept++] = c.position[j];
            } else {
                codes[left++] = code_of(exact_score(i, c.position[j], c.score[j]), c.position[j]);
            }
        }
        const int64_t wanted = min_of(given.count - kept, left);
        if (wanted < left) exact.keep_lowest(codes, left, wanted);
        const float error = error_of(i);
        for (int64_t j = 0; j < wanted; ++j) {
            c.position[kept] = (int32_t)(uint32_t)codes[j];
            c.score[kept++] = score_of(codes[j]);
        }
        c.count = kept;
        // Later keys compete with the lowest that is kept: their products may differ by E from what is compared.
        float lowest = (float)HUGE_VAL;
        for (int64_t j = 0; j < kept; ++j) lowest = c.score[j] < lowest ? c.score[j] : lowest;
        const float bound = below(lowest - 2 * error);
        if (bound == bound && bound > c.threshold) c.threshold = bound;
    }

    float exact_score(int64_t i, int64_t position, float product) const {
        if (product == (float)HUGE_VAL || (given.summed && product == 0)) return product;
        const float* key = keys.key + position / tile * p.head_dim * tile + position % tile;
        return exact.score(given, query + i * stride, weight + i, tile, tile * stride, key);
    }
    // A higher score has a lower code; of equal scores the first key has.
    static REGARD_INLINE uint64_t code_of(float score, int64_t position) {
        if (score == 0) score = 0;  // -0 is equal to 0
        uint32_t bits;
        memcpy(&bits, &score, 4);
        const uint32_t ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
        return (uint64_t)~ascending << 32 | (uint32_t)position;
    }
    static REGARD_INLINE float score_of(uint64_t code) {
        const uint32_t ascending = ~(uint32_t)(code >> 32), bits = ascending >> 31 ? ascending & 0x7fffffffu : ~ascending;
        float score;
        memcpy(&score, &bits, 4);
        return score;
    }

    // Compares all visible keys of a row in float64.
    void choose_exactly(int64_t i) {
        int64_t left = 0;
        for (int64_t t = 0; t < tiles; ++t) {
            const uint64_t bad = bad_keys(tile_index[t]);
            for (uint64_t seen = tile_bits[t] ? tile_bits[t][i] : ~(uint64_t)0; seen; seen &= seen - 1) {
                const int64_t j = __builtin_ctzll(seen), position = (int64_t)tile_index[t] * tile + j;
                const float score = bad >> j & 1 ? (float)HUGE_VAL : exact_score(i, position, 1);
                codes[left++] = code_of(score, position);
            }
        }
        exact.keep_lowest(codes, left, given.count);
        for (int64_t j = 0; j < given.count; ++j) mark((int32_t)(uint32_t)codes[j]);
    }

    REGARD_INLINE void mark(int32_t position) { marks[position / 64] |= (uint64_t)1 << (position % 64); }

    // Writes the positions of a row, ascending.
    void write_row(int64_t i) {
        const int64_t all = p.key_tiles();
        memset((void*)marks, 0, 8 * (size_t)all);
        if (is_whole >> i & 1) {
            for (int64_t t = 0; t < tiles; ++t) marks[tile_index[t]] = tile_bits[t] ? tile_bits[t][i] : ~(uint64_t)0;
        } else if (is_exact >> i & 1) {
            choose_exactly(i);
        } else {
            reduce(i, true);
            for (int64_t j = 0; j < row_of[i].count; ++j) mark(row_of[i].position[j]);
        }
        const Array& to = given.positions;
        int32_t* out = (int32_t*)to.data + to.at(batch, head, first_query + i, 0);
        int64_t written = 0;
        for (int64_t t = 0; t < tiles && written < given.count; ++t)
            for (uint64_t word = marks[tile_index[t]]; word && written < given.count; word &= word - 1)
                out[written++ * to.stride[3]] = (int32_t)(tile_index[t] * tile + __builtin_ctzll(word));
        for (; written < given.count; ++written) out[written * to.stride[3]] = -1;
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

// The blocks with the highest weights of compressed attention, in float32 with an error bound (Yuan et al. 2025, "Native
// sparse attention", equations 8 to 10; see regard/mechanisms/nsa.py).
//
//     p_hc = softmax over the complete compressed keys c of q_h . k~_c          per query head h
//     g_c  = sum over the heads that share keys of p_hc
//     I_b  = sum of g_c over the compressed keys c of block b, times the strides that they share with it
//
// A query has the first block, the one before its own, and the others with the highest I. A product of d numbers differs
// from the exact one by at most e = (d + 8) u |q| |k~|, u = 2^-24, with the roundings of k~, of the difference from the
// largest product and of its factor log2 e (Higham 2002, section 3.1); a weight is a quotient of exponentials, so it has a
// relative error of at most exp(2 e) - 1, and the number of all terms of the sums, + 64, times u, beside 1e-30. If the lowest
// chosen I and the highest other one are closer than their errors, the query is not certain, and left to the caller.
#pragma once

#include <math.h>

#include "runtime/scratch_layout.h"
#include "selection/selection_kernels.h"
#include "tiles/gemm_microkernel.h"
#include "tiles/mask_tiles.h"
#include "tiles/pack.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

struct BlockImportance {
    const ImportanceArguments& given;
    int64_t key_heads, group, keys, blocks, strides, shared, stride, row, front;
    float *query, *scores, *sums, *best;
    double* error;  // of each query, relative
    int64_t *own, *complete;  // the number of the own block, and of complete compressed keys, of each query
    uint64_t bad = 0;  // queries with NaN or Inf, in any head of the group

    REGARD_INLINE BlockImportance(const ImportanceArguments& given, ScratchLayout& c) : given(given) {
        key_heads = given.key.shape[1], keys = given.key.shape[2];
        group = given.query.shape[1] / key_heads;
        blocks = given.chosen.shape[3];
        strides = given.block / given.stride, shared = given.compressed_block / given.stride;
        stride = padded_width<Float32>(given.query.shape[3]);
        // Numbers of a row: those of all compressed keys in whole tiles, and of all strides of all blocks.
        row = padded_width<Float32>(max_of(ceil_div(keys, tile) * tile, blocks * strides)) + lanes<float>;
        query = c.take<float>(group * tile * stride);
        scores = c.take<float>(strip * row);
        front = padded_width<Float32>(shared);
        sums = c.take<float>(strip * (front + row));
        best = c.take<float>(given.count + 1);
        error = c.take<double>(tile);
        own = c.take<int64_t>(tile);
        complete = c.take<int64_t>(tile);
    }

    static size_t scratch(const ImportanceArguments& given) {
        return bytes_of_parts([&](ScratchLayout& layout) { BlockImportance(given, layout); });
    }

    // Packs one tile of compressed keys, as Choice::pack does: [head_dim][64], and the bits of those with NaN or Inf.
    static size_t pack_scratch(const ImportanceArguments& given) {
        return sizeof(float) * (size_t)(tile * padded_width<Float32>(given.key.shape[3]));
    }
    static void pack(const ImportanceArguments& given, int64_t batch, int64_t key_head, int64_t key_tile,
                     const ChoiceKeys& into, char* scratch) {
        const int64_t width = given.key.shape[3], row_of = padded_width<Float32>(width), first = key_tile * tile;
        const int64_t count = count_in_tile(given.key.shape[2], key_tile);
        float* rows = (float*)scratch;
        const uint64_t bad = read_rows(given.key, given.key.at(batch, key_head, first, 0), count, tile, width, rows, row_of);
        if (bad) clear_rows(bad, width, rows, row_of);
        transpose(rows, row_of, tile, width, into.key + key_tile * width * tile);
        double most = 0;
        for (int64_t j = 0; j < count; ++j) {
            double sum = 0;
            for (int64_t k = 0; k < width; ++k) sum += (double)rows[j * row_of + k] * (double)rows[j * row_of + k];
            most = sum > most ? sum : most;
        }
        into.bad[key_tile] = bad;
        into.norm[key_tile] = sqrt(most);
    }

    // Chooses for one tile of queries. `first_bad`: the first compressed key with NaN or Inf; `norm`: the largest norm.
    static void choose(const ImportanceArguments& given, const ChoiceKeys& packed, int64_t first_bad, double norm,
                       int64_t batch, int64_t key_head, int64_t query_tile, char* scratch) {
        ScratchLayout layout{scratch};
        BlockImportance b(given, layout);
        const int64_t first = query_tile * tile, rows = count_in_tile(given.query.shape[2], query_tile);
        b.read_queries(batch, key_head, first, rows, norm);
        for_strips(rows, [&](int64_t at, auto n) {
            b.choose_strip<decltype(n)::value>(packed, first_bad, batch, key_head, first, at);
        });
    }

  private:
    void read_queries(int64_t batch, int64_t key_head, int64_t first, int64_t rows, double norm) {
        const int64_t width = given.query.shape[3];
        const double unit = 5.9604644775390625e-08, terms = (double)(keys + group + strides + shared + 64);
        for (int64_t i = 0; i < rows; ++i) error[i] = 0;
        for (int64_t h = 0; h < group; ++h) {
            float* to = query + h * tile * stride;
            const int64_t at = given.query.at(batch, key_head * group + h, first, 0);
            bad |= read_rows(given.query, at, rows, rows, width, to, stride);
            for (int64_t i = 0; i < rows; ++i) {
                double sum = 0;
                for (int64_t k = 0; k < width; ++k) sum += (double)to[i * stride + k] * (double)to[i * stride + k];
                const double of_scores = (double)(width + 8) * unit * sqrt(sum) * norm;
                error[i] = of_scores > error[i] ? of_scores : error[i];
            }
        }
        for (int64_t i = 0; i < rows; ++i) {
            error[i] = expm1(2 * error[i]) + terms * unit;
            const int64_t at = given.visible.at(0, 0, given.visible.shape[2] == 1 ? 0 : batch, first + i);
            const int64_t visible = ((const int64_t*)given.visible.data)[at];
            own[i] = visible > 0 ? min_of((visible - 1) / given.block, blocks) : 0;
            complete[i] = visible < given.compressed_block
                              ? 0
                              : min_of((visible - given.compressed_block) / given.stride + 1, keys);
        }
    }

    template <int n>
    REGARD_INLINE void choose_strip(const ChoiceKeys& packed, int64_t first_bad, int64_t batch, int64_t key_head,
                                    int64_t first, int64_t at) {
        int64_t stop = 0;
        for (int r = 0; r < n; ++r)
            if (own[at + r] > given.count) stop = max_of(stop, complete[at + r]);
        for (int r = 0; r < n; ++r) memset(sums_of(r) - front, 0, sizeof(float) * (size_t)front);
        for (int64_t h = 0; h < group && stop; ++h) {
            multiply_strip<n>(packed, h, at, stop);
            for (int r = 0; r < n; ++r)
                if (own[at + r] > given.count) add_weights(r, complete[at + r], own[at + r] * strides, h);
        }
        for (int r = 0; r < n; ++r) {
            const bool is_broken = (bad >> (at + r) & 1) || first_bad < complete[at + r];
            write_row(batch, key_head, first + at + r, at + r, sums_of(r), scores + r * row, is_broken);
        }
    }

    template <int n>
    REGARD_INLINE void multiply_strip(const ChoiceKeys& packed, int64_t h, int64_t at, int64_t stop) {
        const int64_t width = given.query.shape[3];
        for (int64_t t = 0; t * tile < stop; ++t)
            for_panels(0, tile / lanes<float>, [&](int64_t v0, auto panel) {
                Sums<Float32, n, decltype(panel)::value> s;
                s.clear();
                multiply(s, query + (h * tile + at) * stride, stride, 1,
                         packed.key + t * width * tile + v0 * lanes<float>, tile, width);
                s.store_to(scores + t * tile + v0 * lanes<float>, row);
            });
    }

    // Adds the softmax of `count` scores of a row to its sums, which are 0 from there to `stop`.
    REGARD_INLINE void add_weights(int r, int64_t count, int64_t stop, int64_t h) {
        float *x = scores + r * row, *to = sums_of(r);
        const int64_t past = padded_width<Float32>(count);
        for (int64_t c = count; c < past; ++c) x[c] = (float)-HUGE_VAL;
        vfloat most = load(x), total = {};
        for (int64_t c = lanes<float>; c < past; c += lanes<float>) most = maximum(load(x + c), most);
        const vfloat largest = broadcast(max_lane<float>(most)), factor = broadcast((float)log2_e);
        for (int64_t c = 0; c < past; c += lanes<float>) {
            const vfloat w = exp2<6>((load(x + c) - largest) * factor);
            store(x + c, w);
            total += w;
        }
        const vfloat inverse = broadcast(1 / sum_lanes<float>(total));
        for (int64_t c = 0; c < past; c += lanes<float>)
            store(to + c, h ? multiply_add(load(x + c), inverse, load(to + c)) : load(x + c) * inverse);
        if (h == 0)
            for (int64_t c = past; c < stop; ++c) to[c] = 0;
    }

    // The sums of compressed keys of a row, with zeros in front of them.
    REGARD_INLINE float* sums_of(int r) const { return sums + r * (front + row) + front; }

    // Adds up the sums of compressed keys: over those that have a stride, then over the strides of each block.
    REGARD_INLINE void sum_over_blocks(const float* g, int64_t count, float* to) const {
        for (int64_t s = 0; s < count * strides; s += lanes<float>) {
            vfloat sum = load(g + s);
            for (int64_t k = 1; k < shared; ++k) sum += load(g + s - k);
            store(to + s, sum);
        }
        for (int64_t b = 0; b < count; ++b) {
            float sum = 0;
            for (int64_t s = 0; s < strides; ++s) sum += to[b * strides + s];
            to[b] = sum;
        }
    }

    REGARD_INLINE void write_row(int64_t batch, int64_t key_head, int64_t at, int64_t i, const float* sums_of_keys,
                                 float* g, bool is_broken) {
        uint8_t* to = (uint8_t*)given.chosen.data + given.chosen.at(batch, key_head, at, 0);
        uint8_t* certain = (uint8_t*)given.certain.data + given.certain.at(0, batch, key_head, at);
        const int64_t before = own[i];
        memset(to, 0, (size_t)blocks);
        *certain = 1;
        if (before <= given.count) {
            memset(to, 1, (size_t)before);
            return;
        }
        if (given.count == 0) return;
        *certain = 0;
        if (is_broken || given.count == 1) return;
        sum_over_blocks(sums_of_keys, before, g);
        const int64_t wanted = given.count - 2;  // beside the first one and the one before the own
        const float next = find_highest(g + 1, before - 2, wanted + 1);
        to[0] = to[before - 1] = 1;
        if (wanted > 0) {
            const float last = best[wanted - 1];
            for (int64_t b = 1; b < before - 1; ++b) to[b] = g[b] >= last;
            *certain = (double)last * (1 - error[i]) - 1e-30 > (double)next * (1 + error[i]) + 1e-30;
        } else {
            *certain = next < (float)HUGE_VAL;
        }
    }

    // Writes the `wanted` highest numbers to `best`, descending, and returns the last of them. There are as many.
    REGARD_INLINE float find_highest(const float* from, int64_t count, int64_t wanted) {
        int64_t kept = 0;
        for (int64_t j = 0; j < count; ++j) {
            if (kept == wanted && !(from[j] > best[kept - 1])) {
                if (from[j] != from[j]) return (float)NAN;
                continue;
            }
            int64_t place = kept < wanted ? kept++ : kept - 1;
            for (; place > 0 && best[place - 1] < from[j]; --place) best[place] = best[place - 1];
            best[place] = from[j];
        }
        return best[wanted - 1];
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

// Attention to chosen keys: keys and values are packed once, then some queries of a (batch, key head) are one task. In the
// backward pass a range of keys is a task as well, which adds up its dK and dV over the queries in order.
#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/parallel.h"
#include "selection/selection_kernels.h"
#include "tables/table_in_use.h"
#include "tiles/pack_layout.h"

namespace regard {

namespace {

constexpr int64_t part_bytes = (int64_t)64 << 20;  // of dS and weights at once, or one query's
constexpr int64_t range_bytes = (int64_t)256 << 10;  // of dK and dV of a range, which stay in a cache

const GatheredKernels& gathered_kernels_in_use(Dtype dtype) { REGARD_RETURN_TABLE(gathered_kernels(dtype)); }

// Packed keys and values of some (batch, key head)s.
class PackedUnits {
  public:
    PackedUnits(const GatheredArguments& given, const GatheredKernels& k, int64_t most)
        : p_(given.problem), k_(k), memory_(most, bytes(given, k)), tokens_((size_t)most) {
        for (int64_t i = 0; i < most; ++i) {
            ScratchLayout layout{memory_[i]};
            tokens_[(size_t)i] = divide(p_, k_, layout);
        }
    }
    void pack(int64_t first, int64_t count, int threads) {
        const int64_t tiles = p_.key_tiles();
        parallel_for(count * tiles, threads, [&](int64_t task, int) {
            const int64_t unit = first + task / tiles;
            k_.pack(p_, unit / p_.key_heads, unit % p_.key_heads, task % tiles, tokens_[(size_t)(task / tiles)]);
        });
        for (int64_t i = 0; i < count; ++i) {
            GatheredTokens& tokens = tokens_[(size_t)i];
            tokens.any_bad = std::any_of(tokens.bad, tokens.bad + tiles, [](uint64_t bits) { return bits != 0; });
        }
    }
    const GatheredTokens& operator[](int64_t index) const { return tokens_[(size_t)index]; }
    static size_t bytes(const GatheredArguments& given, const GatheredKernels& k) {
        return bytes_of_parts([&](ScratchLayout& layout) { divide(given.problem, k, layout); });
    }

  private:
    static GatheredTokens divide(const Problem& p, const GatheredKernels& k, ScratchLayout& layout) {
        const int64_t number = (int64_t)k.number;
        return {layout.take<char>(number * k.row(p.head_dim) * p.keys), layout.take<char>(number * k.row(p.value_dim) * p.keys),
                layout.take<uint64_t>(p.key_tiles()), false};
    }

    const Problem& p_;
    const GatheredKernels& k_;
    ScratchParts memory_;
    std::vector<GatheredTokens> tokens_;
};

}  // namespace

void gathered_forward(const GatheredArguments& given, int threads) {
    const Problem& p = given.problem;
    const GatheredKernels& k = gathered_kernels_in_use(p.query.dtype);
    const int64_t units = p.batch * p.key_heads, blocks = ceil_div(p.queries, gathered_block);
    if (units == 0 || blocks == 0) return;
    const int64_t round = heads_per_round(units, PackedUnits::bytes(given, k), ceil_div(8 * threads, blocks));
    PackedUnits packed(given, k, round);
    const ScratchParts scratch(threads, k.scratch(given));
    for_rounds(units, round, [&](int64_t first, int64_t count) {
        packed.pack(first, count, threads);
        parallel_for(count * blocks, threads, [&](int64_t task, int thread) {
            const int64_t unit = first + task / blocks, from = task % blocks * gathered_block;
            k.forward(given, packed[task / blocks], unit / p.key_heads, unit % p.key_heads, from,
                      std::min(from + gathered_block, p.queries), scratch[thread]);
        });
    });
}

void gathered_backward(const GatheredArguments& given, int threads) {
    const Problem& p = given.problem;
    const GatheredKernels& k = gathered_kernels_in_use(p.query.dtype);
    const int64_t units = p.batch * p.key_heads, group = units ? p.group() : 1;
    if (units == 0) return;
    const int64_t key_row = k.row(p.head_dim), value_row = k.row(p.value_dim), chosen = k.row(given.count);
    const int64_t number = (int64_t)k.number;
    const int64_t step = std::max<int64_t>(range_bytes / ((key_row + value_row) * number), 64);
    const int64_t ranges = std::max<int64_t>(ceil_div(p.keys, step), 1);
    // Queries of one head group at a time, and units at a time, so that memory is bounded.
    const int64_t row_bytes = group * ((2 * chosen + key_row + value_row) * number + (chosen + ranges + 1) * 4);
    const int64_t fit = std::max<int64_t>(part_bytes / row_bytes / gathered_block * gathered_block, gathered_block);
    const int64_t at_once = std::max<int64_t>(std::min(fit, p.queries), 1);
    const int64_t of_unit = at_once * row_bytes + (key_row + value_row) * number * p.keys * 2;
    const int64_t round = std::clamp<int64_t>(part_bytes / std::max<int64_t>(of_unit, 1), 1, units);

    PackedUnits packed(given, k, round);
    const auto divide = [&](ScratchLayout& layout) {
        const int64_t rows = group * at_once;
        GatheredGradients parts;
        parts.ranges = ranges, parts.step = step;
        parts.query = layout.take<char>(rows * key_row * number);
        parts.output = layout.take<char>(rows * value_row * number);
        parts.score = layout.take<char>(rows * chosen * number);
        parts.weight = layout.take<char>(rows * chosen * number);
        parts.position = layout.take<int32_t>(rows * chosen);
        parts.start = layout.take<int32_t>(rows * (ranges + 1));
        parts.grad_key = layout.take<char>(p.keys * key_row * number);
        parts.grad_value = layout.take<char>(p.keys * value_row * number);
        return parts;
    };
    const ScratchParts memory(round, bytes_of_parts(divide)), scratch(threads, k.scratch(given));
    const auto parts_of = [&](int64_t index, int64_t first) {
        ScratchLayout layout{memory[index]};
        GatheredGradients parts = divide(layout);
        parts.first = first, parts.count = std::min(at_once, p.queries - first);
        return parts;
    };
    for_rounds(units, round, [&](int64_t first_unit, int64_t count) {
        packed.pack(first_unit, count, threads);
        parallel_for(count * ranges, threads, [&](int64_t task, int) {
            const GatheredGradients parts = parts_of(task / ranges, 0);
            const int64_t from = std::min(task % ranges * step, p.keys), keys = std::min(step, p.keys - from);
            std::memset(parts.grad_key + from * key_row * number, 0, (size_t)(keys * key_row * number));
            std::memset(parts.grad_value + from * value_row * number, 0, (size_t)(keys * value_row * number));
        });
        for (int64_t first = 0; first < p.queries; first += at_once) {
            const int64_t here = std::min(at_once, p.queries - first), blocks = ceil_div(here, gathered_block);
            parallel_for(count * blocks, threads, [&](int64_t task, int thread) {
                const int64_t index = task / blocks, unit = first_unit + index;
                const int64_t from = first + task % blocks * gathered_block;
                k.backward(given, packed[index], parts_of(index, first), unit / p.key_heads, unit % p.key_heads, from,
                           std::min(from + gathered_block, first + here), scratch[thread]);
            });
            parallel_for(count * ranges, threads, [&](int64_t task, int) {
                k.accumulate(given, parts_of(task / ranges, first), task % ranges);
            });
        }
        parallel_for(count * ranges, threads, [&](int64_t task, int) {
            const int64_t unit = first_unit + task / ranges, from = std::min(task % ranges * step, p.keys);
            k.finish(given, parts_of(task / ranges, 0), unit / p.key_heads, unit % p.key_heads, from,
                     std::min(from + step, p.keys));
        });
    });
}

}  // namespace regard

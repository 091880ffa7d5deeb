// Bias rows: the terms that are added to scores before the softmax.
#pragma once

#include "tiles/mask_tiles.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class Number>
struct BiasRows {
    const Problem& p;
    int64_t batch, head;

    REGARD_INLINE bool has_bias() const { return (bool)p.bias || (bool)p.table; }

    // Returns the bias of 64 keys from `first`: a pointer into the table if there is no other bias, else `to`, with the
    // sum. Values for keys after the last are arbitrary.
    REGARD_INLINE const Number* read(int64_t query, int64_t first, Number* to) const {
        const Number* row = p.table ? table_row(first - (query + p.offset)) : nullptr;
        if (!p.bias && row) return row;
        int64_t count = p.bias ? p.keys_in(first / tile) : 0;
        if (p.bias) {
            const Array& b = p.bias;
            int64_t at = b.at(batch, head, query, first);
            switch (b.dtype) {
                case Dtype::float32: copy((const float*)b.data + at, b.stride[3], count, to); break;
                case Dtype::bfloat16: copy((const bfloat16*)b.data + at, b.stride[3], count, to); break;
                case Dtype::float16: copy((const float16*)b.data + at, b.stride[3], count, to); break;
                default: copy((const double*)b.data + at, b.stride[3], count, to); break;
            }
        }
        for (int64_t j = count; j < tile; ++j) to[j] = 0;
        if (row)
            for (int64_t j = 0; j < tile; j += n) store(to + j, load(to + j) + load(row + j));
        return to;
    }

  private:
    static constexpr int n = lanes<Number>;

    REGARD_INLINE const Number* table_row(int64_t distance) const {
        REGARD_ASSERT(0 <= distance - p.table_lowest && distance - p.table_lowest < p.table.shape[3]);
        return (const Number*)p.table.data + p.table.at(0, 0, head, distance - p.table_lowest);
    }

    template <class T>
    static REGARD_INLINE void copy(const T* from, int64_t step, int64_t count, Number* to) {
        int64_t j = 0;
        if constexpr (sizeof(T) <= sizeof(Number) && (sizeof(Number) == 4 || sizeof(T) == 8))
            if (step == 1)
                for (; j + n <= count; j += n) store(to + j, load_wide(from + j));
        for (; j < count; ++j) to[j] = (Number)widen(from[j * step]);
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

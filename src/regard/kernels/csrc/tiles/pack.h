// Packing of tokens into the layout of the kernels (see PackedKeys in tile_kernels.h).
//
// A token with NaN or Inf is packed as zeros and its bit is set: 0 * NaN is NaN, so its numbers must not be multiplied,
// not even with a weight of 0. The results of queries that may attend to such a token become NaN by these bits.
#pragma once

#include "tiles/compute_types.h"
#include "tiles/mask_tiles.h"
#include "tiles/right_operand.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// A list of column numbers, for shuffles.
template <int... column>
struct Columns {};
template <int n, int... column>
struct ColumnsUpTo : ColumnsUpTo<n - 1, n - 1, column...> {};
template <int... column>
struct ColumnsUpTo<0, column...> {
    typedef Columns<column...> type;
};

// ---- reading rows of an array, and detecting tokens with NaN or Inf ----

// Copies one vector, widened. `nonfinite` becomes NaN in lanes where a number is NaN or Inf.
template <class T, class Number>
REGARD_INLINE void copy_vector(const T* from, Number* to, vec<Number>* nonfinite) {
    vec<Number> x = load_wide(from);
    store(to, x);
    *nonfinite += x * 0;
}

// Copies bfloat16 unchanged. `nonfinite` becomes nonzero in lanes where all exponent bits are set.
REGARD_INLINE void copy_vector(const bfloat16* from, bfloat16* to, vec<uint16_t>* nonfinite) {
    const vec<uint16_t> exponent = broadcast<uint16_t>(0x7f80);
    vec<uint16_t> x = load((const uint16_t*)from);
    store((uint16_t*)to, x);
    *nonfinite |= (vec<uint16_t>)((x & exponent) == exponent);
}

// Copies one row of `width` numbers, `step` apart, widened, and pads it with zeros to `stride` numbers.
template <class T, class Number>
REGARD_INLINE vec<Number> copy_row(const T* from, int64_t step, int64_t width, Number* to, int64_t stride) {
    constexpr int n = lanes<Number>;
    vec<Number> nonfinite = {};
    int64_t k = 0;
    if (step == 1)
        for (; k + n <= width; k += n) copy_vector(from + k, to + k, &nonfinite);
    for (; k < width; ++k) {
        Number x = widen(from[k * step]);
        to[k] = x;
        nonfinite[0] += x * 0;
    }
    for (; k < stride; ++k) to[k] = 0;
    return nonfinite;
}

REGARD_INLINE vec<uint16_t> copy_row(const bfloat16* from, int64_t step, int64_t width, bfloat16* to, int64_t stride) {
    constexpr int n = lanes<uint16_t>;
    vec<uint16_t> nonfinite = {};
    int64_t k = 0;
    if (step == 1)
        for (; k + n <= width; k += n) copy_vector(from + k, to + k, &nonfinite);
    for (; k < width; ++k) {
        to[k] = from[k * step];
        nonfinite[0] |= (uint16_t)((to[k].bits & 0x7f80) == 0x7f80);
    }
    for (; k < stride; ++k) to[k].bits = 0;
    return nonfinite;
}

REGARD_INLINE bool has_nonfinite(vfloat nonfinite) {
    float sum = sum_lanes<float>(nonfinite);
    return sum != sum;
}
REGARD_INLINE bool has_nonfinite(vdouble nonfinite) {
    double sum = sum_lanes<double>(nonfinite);
    return sum != sum;
}
REGARD_INLINE bool has_nonfinite(vec<uint16_t> nonfinite) {
    uint64_t words[sizeof nonfinite / 8], any = 0;
    memcpy(words, &nonfinite, sizeof nonfinite);
    for (size_t i = 0; i < sizeof nonfinite / 8; ++i) any |= words[i];
    return any != 0;
}
REGARD_INLINE void merge_nonfinite(vfloat* all, vfloat nonfinite) { *all += nonfinite; }
REGARD_INLINE void merge_nonfinite(vdouble* all, vdouble nonfinite) { *all += nonfinite; }
REGARD_INLINE void merge_nonfinite(vec<uint16_t>* all, vec<uint16_t> nonfinite) { *all |= nonfinite; }

// Copies rows that consist of `vectors` whole vectors.
template <int vectors, class NonfiniteFlags, class T, class Stored>
REGARD_INLINE NonfiniteFlags copy_whole_rows(const T* from, int64_t row_step, int64_t count, Stored* to) {
    constexpr int n = sizeof(NonfiniteFlags) / sizeof(Stored);
    NonfiniteFlags nonfinite[vectors] = {};
    for (int64_t i = 0; i < count; ++i, from += row_step, to += vectors * n)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; ++v) copy_vector(from + v * n, to + v * n, &nonfinite[v]);
#pragma GCC unroll 8
    for (int v = 1; v < vectors; ++v) merge_nonfinite(&nonfinite[0], nonfinite[v]);
    return nonfinite[0];
}

// Copies `count` rows, `row_step` apart, to rows `stride` apart. Returns the bits of the rows with NaN or Inf. All rows
// are checked together, and one by one only if some row has NaN or Inf.
template <class T, class Stored>
REGARD_INLINE uint64_t read_rows(const T* from, int64_t row_step, int64_t step, int64_t count, int64_t width,
                                 Stored* to, int64_t stride) {
    typedef decltype(copy_row(from, step, width, to, stride)) NonfiniteFlags;
    constexpr int64_t n = sizeof(NonfiniteFlags) / sizeof(Stored);
    NonfiniteFlags all = {};
    if (step == 1 && stride == width && width == n)
        all = copy_whole_rows<1, NonfiniteFlags>(from, row_step, count, to);
    else if (step == 1 && stride == width && width == 2 * n)
        all = copy_whole_rows<2, NonfiniteFlags>(from, row_step, count, to);
    else if (step == 1 && stride == width && width == 4 * n)
        all = copy_whole_rows<4, NonfiniteFlags>(from, row_step, count, to);
    else
        for (int64_t i = 0; i < count; ++i)
            merge_nonfinite(&all, copy_row(from + i * row_step, step, width, to + i * stride, stride));
    if (!has_nonfinite(all)) return 0;
    uint64_t bad = 0;
    for (int64_t i = 0; i < count; ++i)
        bad |= (uint64_t)has_nonfinite(copy_row(from + i * row_step, step, width, to + i * stride, stride)) << i;
    return bad;
}

// The same for an array of any dtype, from element `at` on: the dtype is dispatched here, so that the kernels need not
// be compiled for each. Rows count .. height - 1 are set to 0.
template <class Stored>
__attribute__((noinline)) uint64_t read_rows(const Array& from, int64_t at, int64_t count, int64_t height,
                                             int64_t width, Stored* to, int64_t stride) {
    int64_t row_step = from.stride[2], step = from.stride[3];
    for (int64_t i = count; i < height; ++i) memset(to + i * stride, 0, sizeof(Stored) * (size_t)stride);
    if constexpr (sizeof(Stored) == 8)
        return read_rows((const double*)from.data + at, row_step, step, count, width, to, stride);
    else if constexpr (sizeof(Stored) == 2)
        return read_rows((const bfloat16*)from.data + at, row_step, step, count, width, to, stride);
    else
        switch (from.dtype) {
            case Dtype::bfloat16:
                return read_rows((const bfloat16*)from.data + at, row_step, step, count, width, to, stride);
            case Dtype::float16:
                return read_rows((const float16*)from.data + at, row_step, step, count, width, to, stride);
            default: return read_rows((const float*)from.data + at, row_step, step, count, width, to, stride);
        }
}

// Copies listed rows, of which `left` follow, widened; those that come next are fetched. A row that is -1 is 0.
template <class T, class Stored>
REGARD_INLINE uint64_t gather_rows(const T* from, const int32_t* rows, int64_t left, int64_t row_step, int64_t step,
                                   int64_t count, int64_t width, Stored* to, int64_t stride) {
    typedef decltype(copy_row(from, step, width, to, stride)) NonfiniteFlags;
    constexpr int64_t ahead = 16;
    const auto fetch = [&](int64_t i) {
        if (i >= left || rows[i] < 0) return;
        const char* row = (const char*)(from + rows[i] * row_step);
        for (int64_t byte = 0; byte < width * (int64_t)sizeof(T); byte += 64) __builtin_prefetch(row + byte);
    };
    NonfiniteFlags all = {};
    for (int64_t i = 0; i < ahead; ++i) fetch(i);
    for (int64_t i = 0; i < count; ++i) {
        fetch(i + ahead);
        if (rows[i] < 0)
            memset((void*)(to + i * stride), 0, sizeof(Stored) * (size_t)stride);
        else
            merge_nonfinite(&all, copy_row(from + rows[i] * row_step, step, width, to + i * stride, stride));
    }
    if (!has_nonfinite(all)) return 0;
    uint64_t bad = 0;
    for (int64_t i = 0; i < count; ++i)
        if (rows[i] >= 0 && has_nonfinite(copy_row(from + rows[i] * row_step, step, width, to + i * stride, stride)))
            bad |= (uint64_t)1 << i;
    return bad;
}

// Reads rows of a (batch, head) from row `first` on, as `read_rows` does; they may be listed.
template <class Stored>
__attribute__((noinline)) uint64_t read_tokens(const Array& from, int64_t batch, int64_t head, int64_t first,
                                               int64_t count, int64_t height, int64_t width, Stored* to, int64_t stride) {
    if (!from.rows) return read_rows(from, from.at(batch, head, first, 0), count, height, width, to, stride);
    for (int64_t i = count; i < height; ++i) memset((void*)(to + i * stride), 0, sizeof(Stored) * (size_t)stride);
    const int32_t* rows = from.rows_from(batch, head, first);
    const int64_t row_step = from.stride[2], step = from.stride[3], left = from.shape[2] - first;
    const auto gather = [&](const auto* numbers) {
        return gather_rows(numbers + from.at(batch, head, 0, 0), rows, left, row_step, step, count, width, to, stride);
    };
    if constexpr (sizeof(Stored) == 8)
        return gather((const double*)from.data);
    else if constexpr (sizeof(Stored) == 2)
        return gather((const bfloat16*)from.data);
    else
        switch (from.dtype) {
            case Dtype::bfloat16: return gather((const bfloat16*)from.data);
            case Dtype::float16: return gather((const float16*)from.data);
            default: return gather((const float*)from.data);
        }
}

// Copies one row of an array, from element `at` on. Returns whether it contains NaN or Inf.
template <class Stored>
REGARD_INLINE bool read_row(const Array& from, int64_t at, int64_t width, Stored* to, int64_t stride) {
    return read_rows(from, at, 1, 1, width, to, stride) != 0;
}

template <class Stored>
REGARD_INLINE void clear_rows(uint64_t bad, int64_t width, Stored* rows, int64_t stride) {
    for (int64_t i = 0; bad; ++i, bad >>= 1)
        if (bad & 1) memset(rows + i * stride, 0, sizeof(Stored) * (size_t)width);
}

REGARD_INLINE void negate(float* row, int64_t count) {
    for (int64_t k = 0; k < count; ++k) row[k] = -row[k];
}
REGARD_INLINE void negate(double* row, int64_t count) {
    for (int64_t k = 0; k < count; ++k) row[k] = -row[k];
}
REGARD_INLINE void negate(bfloat16* row, int64_t count) {
    for (int64_t k = 0; k < count; ++k) row[k].bits ^= 0x8000;
}

// ---- writing rows ----

template <class T, class Number>
REGARD_INLINE void write_row(const Number* from, int64_t width, Number times, T* to, int64_t step) {
    int64_t k = 0;
    if (step == 1)
        for (; k + lanes<Number> <= width; k += lanes<Number>) store_narrow(to + k, load(from + k) * times);
    for (; k < width; ++k) narrow(from[k] * times, to + k * step);
}

// Calls write(data) with the numbers of an array in their type. The sums of float64 are written as float64.
template <class Number, class Write>
REGARD_INLINE void as_stored(const Array& to, Write write) {
    if constexpr (sizeof(Number) == 8)
        write((double*)to.data);
    else if (to.dtype == Dtype::bfloat16)
        write((bfloat16*)to.data);
    else if (to.dtype == Dtype::float16)
        write((float16*)to.data);
    else
        write((float*)to.data);
}

// Writes a row of numbers, multiplied by `times` and rounded, to an array from element `at` on.
template <class Number>
__attribute__((noinline)) void write_scaled_row(const Number* from, int64_t width, Number times, const Array& to,
                                            int64_t at) {
    as_stored<Number>(to, [&](auto* data) { write_row(from, width, times, data + at, to.stride[3]); });
}

// The same for rows `stride` apart, row i multiplied by times[i].
template <class Number>
__attribute__((noinline)) void write_scaled_rows(const Number* from, int64_t stride, int64_t rows, int64_t width,
                                             const Number* times, const Array& to, int64_t at) {
    const int64_t row_step = to.stride[2], step = to.stride[3];
    as_stored<Number>(to, [&](auto* data) {
        for (int64_t i = 0; i < rows; ++i)
            write_row(from + i * stride, width, times[i], data + at + i * row_step, step);
    });
}

// Writes such a row in half precision, and its rounding errors to `cut`: 0 where rounding overflowed.
template <class T>
REGARD_INLINE void store_row_and_residual(const float* from, int64_t width, float times, T* to, int64_t step, T* cut,
                                     int64_t cut_step) {
    constexpr int n = lanes<float>;
    int64_t k = 0;
    if (step == 1 && cut_step == 1)
        for (; k + n <= width; k += n) {
            vfloat x = load(from + k) * times;
            T rounded[n];
            store_narrow(rounded, x);
            memcpy((void*)(to + k), rounded, sizeof rounded);
            vfloat lost = x - load_wide((const T*)rounded), finite = lost - lost;
            store_narrow(cut + k, select(compare_greater(broadcast(1.0f), finite), lost, vfloat{}));
        }
    for (; k < width; ++k) {
        float x = from[k] * times;
        T rounded;
        narrow(x, &rounded);
        to[k * step] = rounded;
        float lost = x - widen(rounded);
        narrow(lost - lost < 1 ? lost : 0, cut + k * cut_step);
    }
}

// As write_scaled_row, with the rounding errors; only for half precision.
template <class Number>
__attribute__((noinline)) void write_row_and_residual(const Number* from, int64_t width, Number times, const Array& to,
                                                    int64_t at, const Array& cut, int64_t cut_at) {
    if constexpr (sizeof(Number) == 4) {
        auto write = [&](auto* rows, auto* cuts) {
            store_row_and_residual(from, width, times, rows + at, to.stride[3], cuts + cut_at, cut.stride[3]);
        };
        if (to.dtype == Dtype::bfloat16) return write((bfloat16*)to.data, (bfloat16*)cut.data);
        if (to.dtype == Dtype::float16) return write((float16*)to.data, (float16*)cut.data);
    }
}

// ---- numbers to units ----

// Interleaves two rows into one row of units (first, second). If a unit is one number, it is the first row.
template <class A>
struct Pair {
    typedef typename A::number number;
    static REGARD_INLINE vec<number> interleave(const number* first, const number*) { return load(first); }
};
#if defined(__AVX512BF16__)
template <>
struct Pair<Bfloat16> {
    static REGARD_INLINE vbits interleave(const bfloat16* first, const bfloat16* second) {
        __m256i low, high;
        memcpy(&low, first, sizeof low);
        memcpy(&high, second, sizeof high);
        return (vbits)_mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
    }
    // The same for float, which is rounded.
    static REGARD_INLINE vbits interleave(vfloat first, vfloat second) {
        __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(first));
        __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(second));
        return (vbits)_mm512_or_si512(low, _mm512_slli_epi32(high, 16));
    }
};
#endif

// Exchanges the off-diagonal blocks of `half` x `half` units of a square: one round of its transposition.
template <int half, class U, int... column>
REGARD_INLINE void exchange_blocks(vec<U>* rows, Columns<column...>) {
    constexpr int n = lanes<U>;
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) {
        if (i & half) continue;
        vec<U> a = rows[i], b = rows[i + half];
        rows[i] = shuffle<(column & half ? n + column - half : column)...>(a, b);
        rows[i + half] = shuffle<(column & half ? n + column : column + half)...>(a, b);
    }
}

// Transposes lanes x lanes units, in log2(lanes) rounds.
template <class U>
REGARD_INLINE void transpose_square(vec<U>* rows) {
    typedef typename ColumnsUpTo<lanes<U>>::type All;
    if constexpr (lanes<U> > 8) exchange_blocks<8, U>(rows, All{});
    if constexpr (lanes<U> > 4) exchange_blocks<4, U>(rows, All{});
    if constexpr (lanes<U> > 2) exchange_blocks<2, U>(rows, All{});
    exchange_blocks<1, U>(rows, All{});
}

// Transposes rows of units (height x depth, `stride` apart) to (depth x height), with rows `to_stride` apart. The height is
// rounded up to whole vectors, so the rows up to there must be readable; `stride` is whole vectors, too.
template <class U>
REGARD_INLINE void transpose(const U* rows, int64_t stride, int64_t height, int64_t depth, U* to,
                             int64_t to_stride = tile) {
    constexpr int n = lanes<U>;
    for (int64_t r = 0; r < height; r += n)
        for (int64_t k = 0; k < depth; k += n) {
            vec<U> square[n];
#pragma GCC unroll 16
            for (int i = 0; i < n; ++i) square[i] = load(rows + (r + i) * stride + k);
            transpose_square<U>(square);
            if (depth - k >= n) {
#pragma GCC unroll 16
                for (int i = 0; i < n; ++i) store(to + (k + i) * to_stride + r, square[i]);
            } else {
                for (int i = 0; i < depth - k; ++i) store(to + (k + i) * to_stride + r, square[i]);
            }
        }
}

// Packed keys and values of one tile.
template <class A>
struct PackKeys {
    typedef typename A::storage storage;
    typedef typename A::unit unit;

    // Length of a row of `width` numbers, rounded up to whole vectors: in units, and in storage numbers.
    static REGARD_INLINE int64_t unit_stride(int64_t width) { return padded_width<A>(count_units<A>(width)); }
    static REGARD_INLINE int64_t number_stride(int64_t width) { return A::per_unit * unit_stride(width); }

    // Rows of units in the columns of a matrix with rows of `width` numbers.
    static REGARD_INLINE int64_t column_units(int64_t width) {
        return A::has_matrix_unit ? unit_stride(width) : count_units<A>(width);
    }

    static size_t key_bytes(const Problem& p) { return sizeof(unit) * (size_t)(column_units(p.head_dim) * tile); }
    static size_t value_bytes(const Problem& p) {
        return sizeof(unit) * (size_t)(tile / A::per_unit * padded_width<A>(p.value_dim));
    }
    static size_t scratch(const Problem& p) {
        return sizeof(storage) * (size_t)(tile * (number_stride(p.head_dim) + number_stride(p.value_dim)));
    }

    static void pack(const Problem& p, int64_t batch, int64_t key_head, int64_t key_tile, char* key, char* value,
                     uint64_t* bad, char* scratch) {
        int64_t first = key_tile * tile, count = p.keys_in(key_tile), height = padded_height(count);
        int64_t key_stride = number_stride(p.head_dim), value_stride = number_stride(p.value_dim);
        storage* key_rows = (storage*)scratch;
        storage* value_rows = key_rows + tile * key_stride;
        *bad = read(p, batch, key_head, first, count, height, key_rows, value_rows);
        write_columns(key_rows, key_stride, height, p.head_dim, (unit*)key);
        write_rows(value_rows, value_stride, height, padded_width<A>(p.value_dim), (unit*)value);
    }

    // Packed tiles as right operands.
    static REGARD_INLINE Panels<A> columns(int64_t width, const char* packed) {
        return {(const unit*)packed, column_units(width), tile};
    }
    static REGARD_INLINE Panels<A> keys(const Problem& p, const char* packed) { return columns(p.head_dim, packed); }
    static REGARD_INLINE Panels<A> rows(int64_t width, const char* packed) {
        return {(const unit*)packed, tile / A::per_unit, padded_width<A>(width)};
    }
    static REGARD_INLINE Panels<A> values(const Problem& p, const char* packed) { return rows(p.value_dim, packed); }

    // `count` rows, rounded up to whole vectors; at most a tile. The matrix unit multiplies whole tiles.
    static REGARD_INLINE int64_t padded_height(int64_t count) {
        if (A::has_matrix_unit) return tile;
        return min_of((count + lanes<unit> - 1) / lanes<unit> * lanes<unit>, tile);
    }

    // Copies keys and values in the storage type; a token with NaN or Inf in key or value becomes zeros in both. Rows
    // count .. height - 1 are set to 0.
    static REGARD_INLINE uint64_t read(const Problem& p, int64_t batch, int64_t key_head, int64_t first, int64_t count,
                                       int64_t height, storage* key_rows, storage* value_rows) {
        int64_t key_stride = number_stride(p.head_dim), value_stride = number_stride(p.value_dim);
        uint64_t bad = read_keys(p, p.key, batch, key_head, first, count, height, p.head_dim, key_rows, key_stride);
        bad |= read_keys(p, p.value, batch, key_head, first, count, height, p.value_dim, value_rows, value_stride);
        if (bad) {
            clear_rows(bad, p.head_dim, key_rows, key_stride);
            clear_rows(bad, p.value_dim, value_rows, value_stride);
        }
        return bad;
    }

    // Copies rows of keys, or of values, page by page if they are in pages.
    static REGARD_INLINE uint64_t read_keys(const Problem& p, const Array& from, int64_t batch, int64_t key_head,
                                            int64_t first, int64_t count, int64_t height, int64_t width, storage* to,
                                            int64_t stride) {
        if (!p.page_table) return read_tokens(from, batch, key_head, first, count, height, width, to, stride);
        const int64_t size = from.shape[2];
        uint64_t bad = 0;
        for (int64_t done = 0; done < count;) {
            const int64_t slot = (first + done) % size, here = min_of(count - done, size - slot);
            const int64_t page = page_index(p.page_table, 0, (first + done) / size);
            const int64_t rows = done + here == count ? height - done : here;
            bad |= read_rows(from, from.at(page, key_head, slot, 0), here, rows, width, to + done * stride, stride) << done;
            done += here;
        }
        return bad;
    }

    // Transposes rows to columns of units, for the product of scores. Adjacent stored numbers form a unit.
    static REGARD_INLINE void write_columns(const storage* rows, int64_t stride, int64_t height, int64_t width,
                                            unit* to) {
        const Panels<A> panels = {to, column_units(width), tile};
        for (int64_t first = 0; first < height; first += panels.width)
            transpose((const unit*)(rows + first * stride), stride / A::per_unit, min_of(height - first, panels.width),
                      panels.rows, to + first * panels.rows, panels.panel_width(first));
    }

    // Combines adjacent rows into rows of units in panels, the right operand of products with weights. `columns` is whole
    // vectors.
    static REGARD_INLINE void write_rows(const storage* rows, int64_t stride, int64_t height, int64_t columns, unit* to) {
        const Panels<A> panels = {to, tile / A::per_unit, columns};
        for (int64_t first = 0; first < columns; first += panels.width)
            write_paired_rows(rows + first, stride, height, panels.panel_width(first), to + first * panels.rows);
    }

    // The same, row after row.
    static REGARD_INLINE void write_paired_rows(const storage* rows, int64_t stride, int64_t height, int64_t columns,
                                          unit* to) {
        for (int64_t i = 0; i < height; i += A::per_unit)
            for (int64_t c = 0; c < columns; c += lanes<typename A::number>)
                store(to + i / A::per_unit * columns + c,
                      Pair<A>::interleave(rows + i * stride + c, rows + (i + A::per_unit - 1) * stride + c));
    }
};

// Adds pairs of lanes of two vectors: lane c of the result is b[c] + b[c ^ half] if c has the bit `half`, else
// a[c] + a[c ^ half].
template <int half, class U, int... column>
REGARD_INLINE vec<U> add_halves(vec<U> a, vec<U> b, Columns<column...>) {
    constexpr int n = lanes<U>;
    return shuffle<(column & half ? n + column : column)...>(a, b) +
           shuffle<(column & half ? n + column - half : column + half)...>(a, b);
}

// Lane i of the result is the sum of the lanes of v[i].
template <class U>
REGARD_INLINE vec<U> sum_each_vector(vec<U>* v) {
    typedef typename ColumnsUpTo<lanes<U>>::type All;
    if constexpr (lanes<U> > 8)
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) v[i] = add_halves<8, U>(v[i], v[i + 8], All{});
    if constexpr (lanes<U> > 4)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) v[i] = add_halves<4, U>(v[i], v[i + 4], All{});
    if constexpr (lanes<U> > 2)
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) v[i] = add_halves<2, U>(v[i], v[i + 2], All{});
    return add_halves<1, U>(v[0], v[1], All{});
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

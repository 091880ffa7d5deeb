// Rows of keys and values in the caller's memory: their addresses, and how their numbers are loaded.
//
// The rows of a tile are StridedRows, one address and a step, if they are evenly spaced and all of them may be read.
// Otherwise they are GatheredRows: 64 addresses, for any strides or pages. A row that is hidden from every query is
// never read: its address is replaced by that of a row of zeros, as is the address of a row in which NaN or Inf was
// found.
//
// A *unit* is the result of one load: `unit_size` storage numbers, which widen to `parts` vectors. Two adjacent
// bfloat16, or int8, widen to the same lane of two vectors, so that no lanes need to be permuted; outputs are stored in the
// same order (`unit_position`). Queries are stored as `factor`s, the operands of a unit's dot product.
#pragma once

#include <type_traits>

#include "decode/stored_rows.h"
#include "drivers.h"
#include "runtime/scratch_layout.h"
#include "tiles/mask_tiles.h"
#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// ---- numbers ----

template <class T>
struct Unit;
template <>
struct Unit<float> {
    typedef float number;
    typedef vec<uint32_t> bits;
    static constexpr int parts = 1, unit_size = lanes<float>;
    static constexpr uint32_t infinity = 0x7f800000;
    static REGARD_INLINE void widen(bits x, vfloat* to) { to[0] = (vfloat)x; }
    typedef float factor;
    static constexpr bool pairs = false;
};
template <>
struct Unit<double> {
    typedef double number;
    typedef vec<uint64_t> bits;
    static constexpr int parts = 1, unit_size = lanes<double>;
    static constexpr uint64_t infinity = 0x7ff0000000000000;
    static REGARD_INLINE void widen(bits x, vdouble* to) { to[0] = (vdouble)x; }
    typedef double factor;
    static constexpr bool pairs = false;
};
template <>
struct Unit<bfloat16> {
    typedef float number;
    typedef vec<uint16_t> bits;
    static constexpr int parts = 2, unit_size = 2 * lanes<float>;
    static constexpr uint16_t infinity = 0x7f80;
    static REGARD_INLINE void widen(bits x, vfloat* to) {  // every processor here is little-endian
        to[0] = (vfloat)((vbits)x << 16);
        to[1] = (vfloat)((vbits)x & broadcast<uint32_t>(0xffff0000));
    }
#if defined(__AVX512BF16__)
    typedef bfloat16 factor;
    static constexpr bool pairs = true;  // there is an instruction that adds the products of pairs
#else
    typedef float factor;
    static constexpr bool pairs = false;
#endif
};
template <>
struct Unit<float16> {
    typedef float number;
    typedef uint16_t bits __attribute__((vector_size(vector_bytes / 2)));
    static constexpr int parts = 1, unit_size = lanes<float>;
    static constexpr uint16_t infinity = 0x7c00;
    static REGARD_INLINE void widen(bits x, vfloat* to) { to[0] = load_wide((const float16*)&x); }
    typedef float factor;
    static constexpr bool pairs = false;
};

// Numbers of rows that end with a scale (stored_rows.h), by which sums of their products are multiplied.
template <>
struct Unit<int8_t> {
    typedef float number;
    typedef int8_t bits __attribute__((vector_size(vector_bytes / 2)));
    static constexpr int parts = 2, unit_size = 2 * lanes<float>;
    static REGARD_INLINE void widen(bits x, vfloat* to) {
#if defined(__AVX512F__)  // for __builtin_convertvector the compiler converts halves, and joins them
        const vbits pairs = (vbits)_mm512_cvtepi8_epi16((__m256i)x);
#elif defined(__AVX2__)
        const vbits pairs = (vbits)_mm256_cvtepi8_epi16((__m128i)x);
#else
        const vbits pairs = (vbits)__builtin_convertvector(x, vec<int16_t>);
#endif
        to[0] = __builtin_convertvector((vec<int32_t>)(pairs << 16) >> 16, vfloat);
        to[1] = __builtin_convertvector((vec<int32_t>)pairs >> 16, vfloat);
    }
    typedef float factor;
    static constexpr bool pairs = false;
};
template <class T>
inline constexpr bool has_scale = std::is_same_v<T, int8_t>;

template <class T>
REGARD_INLINE typename Unit<T>::bits load_unit(const T* from) {
    typename Unit<T>::bits x;
    memcpy(&x, from, sizeof x);
    return x;
}

// The first `count` numbers of a unit, and zeros. Nothing beyond them is read.
template <class T>
REGARD_INLINE typename Unit<T>::bits load_part(const T* from, int64_t count) {
    typename Unit<T>::bits x = {};
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    uint64_t bytes = bit_range(0, count * (int64_t)sizeof(T));
    if constexpr (sizeof x == 64)
        x = (typename Unit<T>::bits)_mm512_maskz_loadu_epi8(bytes, from);
    else
        x = (typename Unit<T>::bits)_mm256_maskz_loadu_epi8((__mmask32)bytes, from);
#else
    memcpy(&x, from, (size_t)count * sizeof(T));
#endif
    return x;
}

// Returns sum plus the products of a unit of a key and a unit of a query, not reduced over lanes.
template <class T>
REGARD_INLINE vec<typename Unit<T>::number> add_products(typename Unit<T>::bits x, const typename Unit<T>::factor* query,
                                                         vec<typename Unit<T>::number> sum) {
    typedef typename Unit<T>::number number;
#if defined(__AVX512BF16__)
    if constexpr (Unit<T>::pairs) return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)load_unit(query));
#endif
    if constexpr (!Unit<T>::pairs) {
        vec<number> wide[Unit<T>::parts];
        Unit<T>::widen(x, wide);
#pragma GCC unroll 2
        for (int p = 0; p < Unit<T>::parts; ++p)
            sum = multiply_add(wide[p], load(query + p * lanes<number>), sum);
        return sum;
    }
}

// Stores a unit as factors.
template <class T>
REGARD_INLINE void store_factors(typename Unit<T>::bits x, typename Unit<T>::factor* to) {
    typedef typename Unit<T>::number number;
    if constexpr (Unit<T>::pairs) {
        memcpy((void*)to, &x, sizeof x);
    } else {
        vec<number> wide[Unit<T>::parts];
        Unit<T>::widen(x, wide);
        for (int p = 0; p < Unit<T>::parts; ++p) store(to + p * lanes<number>, wide[p]);
    }
}

// Position of number k of a row among its widened numbers.
template <class T>
REGARD_INLINE int64_t unit_position(int64_t k) {
    constexpr int unit_size = Unit<T>::unit_size, parts = Unit<T>::parts;
    int64_t in = k % unit_size;
    return k - in + in % parts * (unit_size / parts) + in / parts;
}

// The length of a row, rounded up to whole units.
template <class T>
REGARD_INLINE int64_t pad_to_units(int64_t width) {
    return (width + Unit<T>::unit_size - 1) / Unit<T>::unit_size * Unit<T>::unit_size;
}

// The number of elements in a row of `width` numbers.
template <class T>
REGARD_INLINE int64_t row_elements(int64_t width) {
    return has_scale<T> ? width + scale_bytes : width;
}

// Whether a row contains NaN or Inf: a number with the largest exponent, or a scale of NaN.
REGARD_INLINE bool is_nonfinite_row(const int8_t* row, int64_t width) {
    const float scale = read_scale(row + width);
    return scale - scale != 0;
}
template <class T>
REGARD_INLINE bool is_nonfinite_row(const T* row, int64_t width) {
    typedef typename Unit<T>::bits bits;
    constexpr int unit_size = Unit<T>::unit_size;
    bits nonfinite = {};
    auto see = [&](bits x) { nonfinite |= (bits)((x & Unit<T>::infinity) == Unit<T>::infinity); };
    int64_t k = 0;
    for (; k + unit_size <= width; k += unit_size) see(load_unit(row + k));
    if (k < width) see(load_part(row + k, width - k));
#if defined(__AVX512F__)
    if constexpr (sizeof nonfinite == 64) return _mm512_test_epi64_mask((__m512i)nonfinite, (__m512i)nonfinite) != 0;
#endif
    uint64_t words[sizeof nonfinite / 8], found = 0;
    memcpy(words, &nonfinite, sizeof nonfinite);
    for (uint64_t word : words) found |= word;
    return found != 0;
}

// ---- addresses of rows ----

inline constexpr int64_t prefetch_bytes = 4096;  // ahead of the current row, where the rows of all tiles are adjacent

// Row j starts j steps after the first. If the array's rows are adjacent, memory `ahead` bytes further on is prefetched into
// the second cache while a row is used; otherwise prefetching costs more than it gains.
template <class T, bool is_contiguous>
struct StridedRows {
    typedef T storage;
    static constexpr bool in_tiles = true, is_prefetched_in_shares = is_contiguous;
    const T* first;
    int64_t step, ahead;
    const T* next_tile;  // its first row

    REGARD_INLINE const T* operator[](int64_t j) const { return first + j * step; }
    REGARD_INLINE const T* next(const T* row, int64_t) const {
        row += step;
        // Otherwise the compiler keeps a pointer to each of many rows, too many for the registers.
        asm volatile("" : "+r"(row));
        return row;
    }
    REGARD_INLINE void fetch(const T* from, int64_t, int64_t) const {
        if constexpr (is_contiguous) __builtin_prefetch((const char*)from + ahead, 0, 2);
    }
};

// While a row is used, its successor in the next tile is prefetched.
template <class T>
struct GatheredRows {
    typedef T storage;
    static constexpr bool in_tiles = true, is_prefetched_in_shares = false;
    const T* const* at;
    const T* const* next_tile;

    REGARD_INLINE const T* operator[](int64_t j) const { return at[j]; }
    REGARD_INLINE const T* next(const T*, int64_t j) const { return at[j + 1]; }
    REGARD_INLINE void fetch(const T*, int64_t j, int64_t column) const {
        __builtin_prefetch((const char*)(next_tile[j] + column), 0, 2);
    }
};

// Keys, or values, of one call.
template <class T>
struct Rows {
    const Array* array;       // (batch, key_heads, keys, width), or in pages (pages, key_heads, page_size, width)
    const Array* page_table;  // (batch, pages of a sequence), or null
    int64_t width;
    T* copies;  // 64 rows, for arrays whose last stride is not 1; or null
    const T* zeros;

    // Address of row `first` of a tile if the rows from .. stop - 1 are evenly spaced from there; else null.
    REGARD_INLINE const T* first_row(int64_t batch, int64_t head, int64_t first, int64_t from, int64_t stop) const {
        const T* data = (const T*)array->data;
        if (copies) return nullptr;
        if (!page_table) return data + array->at(batch, head, first, 0);
        int64_t size = array->shape[2], entry = (first + from) / size;
        if ((first + stop - 1) / size != entry) return nullptr;
        return data + array->at(page_index(*page_table, batch, entry), head, first - entry * size, 0);
    }

    REGARD_INLINE bool is_contiguous() const { return array->stride[2] == row_elements<T>(width); }
    // Prefetches the first rows, which StridedRows::fetch does not.
    REGARD_INLINE void prefetch_first(const T* first) const {
        if (!is_contiguous()) return;
        for (int64_t b = 0; b < prefetch_bytes; b += 64) __builtin_prefetch((const char*)first + b);
    }

    // Writes the addresses of the rows of one tile that are in `visible_keys`, and of zeros for other rows.
    REGARD_INLINE void find(int64_t batch, int64_t head, int64_t first, uint64_t visible_keys, int64_t from, int64_t stop,
                            const T** at) const {
        int64_t count = 64 - __builtin_clzll(visible_keys);
        if (page_table)
            find_in_pages(batch, head, first, count, at);
        else
            find_in_array((const T*)array->data + array->at(batch, head, first, 0), array->stride[2], count, at);
        replace_by_zeros(~visible_keys, from, stop, at);
        at[stop] = zeros;
    }

    // Bits of the rows from .. stop - 1 that contain NaN or Inf.
    REGARD_INLINE uint64_t find_nonfinite_rows(int64_t from, int64_t stop, const T* const* at) const {
        uint64_t nonfinite = 0;
        for (int64_t j = from; j < stop; ++j) nonfinite |= (uint64_t)is_nonfinite_row(at[j], width) << j;
        return nonfinite;
    }

    REGARD_INLINE void replace_by_zeros(uint64_t rows, int64_t from, int64_t stop, const T** at) const {
        for (rows &= bit_range(from, stop); rows; rows &= rows - 1) at[__builtin_ctzll(rows)] = zeros;
    }

    // Copies the visible rows to contiguous memory, which vectors can load, and replaces their addresses.
    void copy(uint64_t visible_keys, const T** at) const {
        for (; visible_keys; visible_keys &= visible_keys - 1) {
            int j = __builtin_ctzll(visible_keys);
            T* to = copies + j * width;
            for (int64_t k = 0; k < width; ++k) to[k] = at[j][k * array->stride[3]];
            at[j] = to;
        }
    }

  private:
    static REGARD_INLINE void find_in_array(const T* from, int64_t stride, int64_t count, const T** at) {
        constexpr int n = lanes<uint64_t>;
        const uint64_t step = (uint64_t)stride * sizeof(T);
        vlong address;
        for (int i = 0; i < n; ++i) address[i] = (uint64_t)i;
        address = broadcast((uint64_t)(uintptr_t)from) + address * broadcast(step);
        int64_t j = 0;
        for (; j + n <= count; j += n, address += broadcast(n * step)) memcpy(at + j, &address, sizeof address);
        for (; j < count; ++j) at[j] = from + j * stride;
    }
    REGARD_INLINE void find_in_pages(int64_t batch, int64_t head, int64_t first, int64_t count, const T** at) const {
        int64_t size = array->shape[2], entry = first / size, slot = first % size;
        for (int64_t j = 0; j < count;) {
            int64_t here = min_of(count - j, size - slot);
            const T* from = (const T*)array->data + array->at(page_index(*page_table, batch, entry), head, slot, 0);
            find_in_array(from, array->stride[2], here, at + j);
            j += here;
            ++entry;
            slot = 0;
        }
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

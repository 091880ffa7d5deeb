// Copies between tokens and their places among tokens sorted by bucket, and what is computed on the way.
//
// Keys may be queries divided by the root of their mean square (Kitaev et al. 2020, as in the authors' code):
//
//     k = x / r,    r = sqrt(mean(x^2) + 10^-6),        dx = (dk - k mean(k dk)) / r
//
// Squares of rows with a norm from 2^60 on (float64: 2^500) could overflow, so these are divided by their largest number
// first. Rows with NaN or Inf become NaN, and have no gradient.
//
// Rounds are merged by their normalizers (normalizer.h): with the largest score m_r, the sum l_r and the output o_r of a
// row in each round,
//
//     m = max_r m_r,    l = sum_r l_r 2^((m_r - m) factor),    o = sum_r o_r l_r 2^((m_r - m) factor) / l
//
// A row is computed by one task from its places in the order of rounds, so no bit depends on the threads.
#pragma once

#include <math.h>

#include "buckets/bucket_kernels.h"
#include "tiles/prefetch_row.h"
#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

REGARD_INLINE float power_of_two(float x) { return exp2f(x); }
REGARD_INLINE double power_of_two(double x) { return ::exp2(x); }
REGARD_INLINE float logarithm(float x) { return log2f(x); }
REGARD_INLINE double logarithm(double x) { return ::log2(x); }
REGARD_INLINE float root(float x) { return sqrtf(x); }
REGARD_INLINE double root(double x) { return ::sqrt(x); }

template <class T>
struct TokenRows {
    typedef vec<T> numbers;
    static constexpr int64_t n = lanes<T>;
    static constexpr int64_t ahead = 8;  // rows that are prefetched
    static constexpr T infinity = (T)HUGE_VAL;
    static constexpr T largest_square = sizeof(T) == 8 ? (T)0x1p1000 : (T)0x1p120f;
    static constexpr T epsilon = (T)1e-6;

    static REGARD_INLINE const T* row(const Array& array, int64_t batch, int64_t head, int64_t at) {
        return (const T*)array.data + array.at(batch, head, at, 0);
    }
    static REGARD_INLINE T* row_to_write(const Array& array, int64_t batch, int64_t head, int64_t at) {
        return (T*)array.data + array.at(batch, head, at, 0);
    }
    static REGARD_INLINE T dot(const T* a, const T* b, int64_t size) {
        numbers sum = {};
        int64_t k = 0;
        for (; k + n <= size; k += n) sum = multiply_add(load(a + k), load(b + k), sum);
        T total = sum_lanes<T>(sum);
        for (; k < size; ++k) total += a[k] * b[k];
        return total;
    }
    static REGARD_INLINE void scale(const T* from, int64_t size, T times, T* to) {
        int64_t k = 0;
        for (; k + n <= size; k += n) store(to + k, load(from + k) * broadcast(times));
        for (; k < size; ++k) to[k] = from[k] * times;
    }
    static REGARD_INLINE void fill(T* to, int64_t size, T with) {
        int64_t k = 0;
        for (; k + n <= size; k += n) store(to + k, broadcast(with));
        for (; k < size; ++k) to[k] = with;
    }
    static REGARD_INLINE void add_to(T* to, const T* from, int64_t size) {
        int64_t k = 0;
        for (; k + n <= size; k += n) store(to + k, load(to + k) + load(from + k));
        for (; k < size; ++k) to[k] += from[k];
    }

    // Writes x / r to `to`. Returns 1 / r; 0 for a row with NaN or Inf.
    static REGARD_INLINE T divide(const T* x, int64_t size, T* to) {
        const T square = dot(x, x, size);
        if (square < largest_square) {
            const T inverse = 1 / root(square / (T)size + epsilon);
            scale(x, size, inverse, to);
            return inverse;
        }
        return divide_large(x, size, to);
    }
    static __attribute__((noinline)) T divide_large(const T* x, int64_t size, T* to) {
        T largest = 1;
        bool finite = true;
        for (int64_t k = 0; k < size; ++k) {
            finite &= x[k] - x[k] == 0;
            const T magnitude = x[k] < 0 ? -x[k] : x[k];
            largest = magnitude > largest ? magnitude : largest;
        }
        if (!finite) {
            fill(to, size, (T)NAN);
            return 0;
        }
        T square = 0;
        for (int64_t k = 0; k < size; ++k) {
            to[k] = x[k] / largest;
            square += to[k] * to[k];
        }
        const T inverse = 1 / root(square / (T)size + epsilon / largest / largest);
        scale(to, size, inverse, to);
        return inverse / largest;
    }

    static void divide_rows(const DividedRows& given, int64_t batch, int64_t head, int64_t first, int64_t stop) {
        const int64_t size = given.rows.shape[3], tokens = given.rows.shape[2];
        for (int64_t token = first; token < stop; ++token) {
            if (token + ahead < tokens) prefetch_row(row(given.rows, batch, head, token + ahead), size);
            divide(row(given.rows, batch, head, token), size, row_to_write(given.divided, batch, head, token));
        }
    }

    static void sort_gradients(const SortedGradients& given, int64_t batch, int64_t head, int64_t first, int64_t stop) {
        const int64_t size = given.output.shape[3], places = given.sorted_normalizer.shape[2];
        const int32_t* token = given.token + (batch * given.output.shape[1] + head) * places;
        for (int64_t place = first; place < stop; ++place) {
            if (place + ahead < places && token[place + ahead] >= 0) {
                prefetch_row(row(given.output, batch, head, token[place + ahead]), size);
                prefetch_row(row(given.grad_output, batch, head, token[place + ahead]), size);
            }
            T* lse = (T*)given.grad_lse.data + given.grad_lse.at(0, batch, head, place);
            T* normalizer = row_to_write(given.sorted_normalizer, batch, head, place);
            if (token[place] < 0) {
                *lse = 0;
                normalizer[0] = normalizer[1] = -infinity;
                continue;
            }
            const T* gradient = row(given.grad_output, batch, head, token[place]);
            const T* own = row(given.normalizer, batch, head, token[place]);
            normalizer[0] = own[0], normalizer[1] = own[1];
            *lse = own[1] - own[1] == 0 ? -dot(gradient, row(given.output, batch, head, token[place]), size) : 0;
        }
    }

    static void merge(const MergedRounds& given, int64_t batch, int64_t head, int64_t first, int64_t stop) {
        const int64_t size = given.output.shape[3], tokens = given.output.shape[2];
        const int32_t* place = given.place + (batch * given.output.shape[1] + head) * given.rounds * tokens;
        for (int64_t token = first; token < stop; ++token) {
            T *output = row_to_write(given.output, batch, head, token),
              *normalizer = row_to_write(given.normalizer, batch, head, token);
            // While rounds are left, normalizer[1] holds the sum itself.
            T largest = given.first ? -infinity : normalizer[0], total = given.first ? 0 : normalizer[1];
            const T factor = (T)given.factor;
            T only = -infinity;  // log_sum of the only round
            int64_t merged = given.first ? 0 : 2;
            for (int64_t r = 0; r < given.rounds; ++r) {
                const int32_t at = place[r * tokens + token];
                if (token + ahead < tokens && place[r * tokens + token + ahead] >= 0)
                    prefetch_row(row(given.sorted, batch, head, place[r * tokens + token + ahead]), size);
                if (at < 0) continue;
                const T* found = row(given.sorted, batch, head, at);
                const T* own = row(given.sorted_normalizer, batch, head, at);
                if (own[1] == -infinity) continue;  // no key
                const T highest = own[0] > largest || own[0] != own[0] ? own[0] : largest;
                const T before = total == 0 ? 0 : total * power_of_two((largest - highest) * factor);
                const T weight = power_of_two((own[0] - highest) * factor + own[1]);
                only = own[1];
                if (total == 0) {
                    scale(found, size, 1, output);
                } else {
                    const T old_share = before / (before + weight), share = weight / (before + weight);
                    int64_t k = 0;
                    for (; k + n <= size; k += n)
                        store(output + k, multiply_add(load(found + k), broadcast(share),
                                                       load(output + k) * broadcast(old_share)));
                    for (; k < size; ++k) output[k] = output[k] * old_share + found[k] * share;
                }
                largest = highest, total = before + weight, ++merged;
            }
            if (given.first && merged == 0) fill(output, size, 0);
            normalizer[0] = largest;
            normalizer[1] = !given.last ? total : merged == 1 ? only : total == 0 ? -infinity : logarithm(total);
        }
    }

    // dx from the gradient of x / r, in place.
    static REGARD_INLINE void differentiate_quotient(const T* x, int64_t size, T* gradient) {
        T quotient[max_row];
        const T inverse = divide(x, size, quotient);
        if (inverse == 0) return fill(gradient, size, 0);
        const T mean = dot(quotient, gradient, size) / (T)size;
        int64_t k = 0;
        for (; k + n <= size; k += n)
            store(gradient + k, (load(gradient + k) - load(quotient + k) * broadcast(mean)) * broadcast(inverse));
        for (; k < size; ++k) gradient[k] = (gradient[k] - quotient[k] * mean) * inverse;
    }

    static void add(const AddedRows& given, int64_t batch, int64_t head, int64_t first, int64_t stop) {
        const int64_t size = given.into.shape[3], tokens = given.into.shape[2];
        const int32_t* place = given.place + (batch * given.into.shape[1] + head) * given.rounds * tokens;
        T sum[max_row];
        for (int64_t token = first; token < stop; ++token) {
            const T* only = nullptr;  // the row itself, as long as it is the only one
            bool many = false;
            for (int64_t r = 0; r < given.rounds; ++r) {
                const int32_t at = place[r * tokens + token];
                if (token + ahead < tokens && place[r * tokens + token + ahead] >= 0)
                    prefetch_row(row(given.sorted, batch, head, place[r * tokens + token + ahead]), size);
                if (at < 0) continue;
                const T* found = row(given.sorted, batch, head, at);
                if (many) {
                    add_to(sum, found, size);
                } else if (only) {
                    scale(only, size, 1, sum);
                    add_to(sum, found, size);
                    many = true;
                } else {
                    only = found;
                }
            }
            T* to = row_to_write(given.into, batch, head, token);
            if (!only) {
                if (given.first) fill(to, size, 0);
                continue;
            }
            const T* total = many ? sum : only;
            if (given.divided) {
                if (!many) scale(only, size, 1, sum);
                differentiate_quotient(row(given.divided, batch, head, token), size, sum);
                total = sum;
            }
            if (given.first)
                scale(total, size, 1, to);
            else
                add_to(to, total, size);
        }
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

// Rounds a row of keys or values to int8, with its scale: see stored_rows.h.
#pragma once

#include <float.h>
#include <math.h>

#include "decode/stored_rows.h"
#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class T>
struct QuantizeRow {
    static constexpr int64_t step = lanes<float>;

    static void run(const void* given, int8_t* to, int64_t width) {
        const T* from = (const T*)given;
        const float scale = scale_of_row(from, width);
        memcpy(to + width, &scale, sizeof scale);
        if (!(scale > 0)) {
            memset(to, 0, (size_t)width);
            return;
        }
        // 1.5 * 2^23 leaves the rounded number in the low bits of the sum.
        constexpr float magic = 12582912.0f;
        typedef int8_t bytes __attribute__((vector_size(vector_bytes / 4)));
        int64_t k = 0;
        for (; k + step <= width; k += step) {
            const vfloat shifted = load_wide(from + k) / broadcast(scale) + broadcast(magic);
            const bytes rounded = __builtin_convertvector((vec<int32_t>)shifted, bytes);
            memcpy(to + k, &rounded, sizeof rounded);
        }
        for (; k < width; ++k) to[k] = (int8_t)nearbyintf(widen(from[k]) / scale);
    }

private:
    static REGARD_INLINE float scale_of_row(const T* from, int64_t width) {
        vfloat most = {}, nonfinite = {};
        int64_t k = 0;
        for (; k + step <= width; k += step) {
            const vfloat x = load_wide(from + k);
            most = maximum(most, (vfloat)((vbits)x & broadcast<uint32_t>(0x7fffffff)));
            nonfinite = multiply_add(x, vfloat{}, nonfinite);
        }
        float largest = max_lane<float>(most), other = sum_lanes<float>(nonfinite);
        for (; k < width; ++k) {
            const float x = fabsf(widen(from[k]));
            largest = x > largest ? x : largest;
            other += x * 0;
        }
        if (other != 0) return NAN;
        const float scale = largest / 127;
        return largest == 0 ? 0 : scale > FLT_MIN ? scale : FLT_MIN;
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

// Rows of keys and values in a cache: numbers in the dtype of the tokens, or rounded to int8.
//
//     int8    a byte b for each number x, then the scale s of the row, float32:  x ~ s b
//     s       max |x| / 127, and at least the smallest normal number; 0 for a row of zeros; NaN, with bytes of 0, for a
//             row with NaN or Inf
//
// So the error of a number is at most s / 2, whatever other rows contain.
#pragma once

#include <string.h>

#include "tiles/problem.h"

namespace regard {

inline constexpr int64_t scale_bytes = sizeof(float);

// The number of elements in a row of `width` numbers.
REGARD_INLINE int64_t stored_width(Dtype dtype, int64_t width) {
    return dtype == Dtype::int8 ? width + scale_bytes : width;
}
// The number of numbers in a row of so many elements.
REGARD_INLINE int64_t numbers_in_row(Dtype dtype, int64_t elements) {
    return dtype == Dtype::int8 ? elements - scale_bytes : elements;
}

// The scale behind the numbers of a row.
REGARD_INLINE float read_scale(const int8_t* behind) {
    float scale;
    memcpy(&scale, behind, sizeof scale);
    return scale;
}

}  // namespace regard

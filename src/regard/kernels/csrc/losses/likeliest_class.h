// The most probable class of each row of logits x that is not banned, and its log-probability:
//
//     c = argmax x_v over the v that are not banned,    log p_c = x_c - m - ln sum_v exp(x_v - m),    m = max_v x_v
//
// Banned classes count in the sum: probabilities are those of the model. Of equal logits the first is chosen. A row
// with a NaN has a log-probability of NaN, and one in which no class is allowed of -infinity.
#pragma once

#include <math.h>

#include "drivers.h"
#include "losses/logits.h"
#include "tiles/compute_types.h"
#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// T: the dtype of the logits.
template <class T>
struct LikeliestClass : private Logits<T> {
    using typename Logits<T>::number;
    using typename Logits<T>::numbers;
    using Logits<T>::width;
    using Logits<T>::degree;
    using Logits<T>::largest;
    using Logits<T>::compute_weight;

    static void find(const LikeliestArguments& arguments, const LikeliestResults& results, int64_t row) {
        const int64_t classes = arguments.classes;
        const T* x = (const T*)arguments.logits.data + row * classes;
        const int64_t first = find_largest(x, classes);
        const number top = widen(x[first]);
        const int64_t chosen = is_banned(arguments, first) ? find_allowed(x, arguments) : first;
        const bool is_any = chosen >= 0;
        const number score = is_any ? widen(x[chosen]) : (number)-INFINITY;
        ((int64_t*)results.classes.data)[row] = is_any ? chosen : 0;
        ((number*)results.log_probability.data)[row] = score - top - (number)log((double)sum_weights(x, classes, top));
    }

private:
    static constexpr int64_t block = 1024;  // the first pass compares blocks; one is searched

    static REGARD_INLINE bool is_banned(const LikeliestArguments& arguments, int64_t v) {
        const int64_t* banned = (const int64_t*)arguments.banned.data;
        for (int64_t i = 0; i < arguments.num_banned; ++i)
            if (banned[i] == v) return true;
        return false;
    }

    // The first index of the largest number; NaN is smaller than any.
    static REGARD_INLINE int64_t find_largest(const T* x, int64_t classes) {
        number top = (number)-INFINITY;
        int64_t begin = 0;
        for (int64_t at = 0; at < classes; at += block) {
            const number most = largest(x + at, classes - at < block ? classes - at : block);
            if (most > top) top = most, begin = at;
        }
        for (int64_t v = begin; v < classes; ++v)
            if (widen(x[v]) == top) return v;
        return 0;
    }

    // The first index of the largest number above -infinity that is not banned; -1 if there is none.
    static int64_t find_allowed(const T* x, const LikeliestArguments& arguments) {
        number top = (number)-INFINITY;
        int64_t found = -1;
        for (int64_t v = 0; v < arguments.classes; ++v)
            if (widen(x[v]) > top && !is_banned(arguments, v)) top = widen(x[v]), found = v;
        return found;
    }

    static REGARD_INLINE number sum_weights(const T* x, int64_t classes, number top) {
        numbers weights = {};
        int64_t v = 0;
        for (; v + width <= classes; v += width)
            weights += exp2<degree>((load_wide(x + v) - broadcast(top)) * broadcast((number)log2_e));
        number sum = sum_lanes<number>(weights);
        for (; v < classes; ++v) sum += compute_weight(x[v], top, 0);
        return sum;
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

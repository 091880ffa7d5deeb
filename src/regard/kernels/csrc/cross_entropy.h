// Cross-entropy of logits x with a target t whose share is smoothed over all classes, a row at a time:
//
//     lse  = ln sum_v exp x_v
//     loss = (1 - smoothing) (lse - x_t) + smoothing (lse - mean_v x_v)      Szegedy et al. 2016, section 7
//
//     d loss / d x_v = exp(x_v - lse) - smoothing / classes - (1 - smoothing) [v = t]
//
// A row stays in the first cache while it is gone over. An ignored row has a loss and gradients of 0, whatever its logits.
#pragma once

#include <math.h>

#include "arithmetic.h"
#include "isa.h"
#include "simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// T: the dtype of the logits and their gradients.
template <class T>
struct CrossEntropy {
    typedef decltype(widen(T())) number;
    typedef vec<number> numbers;
    static constexpr int width = lanes<number>, degree = sizeof(number) == 8 ? Float64::degree : Float32::degree;

    static void forward(const Entropies& given, const EntropyResults& results, int64_t row) {
        const int64_t target = ((const int64_t*)given.targets.data)[row], classes = given.classes;
        number loss = 0, lse = 0;
        if (target != given.ignored) {
            const T* x = (const T*)given.logits.data + row * classes;
            const number top = largest(x, classes);
            number sum, below;
            sums(x, classes, top, &sum, &below);
            const number log_sum = (number)log((double)sum), smoothing = (number)given.smoothing;
            lse = top + log_sum;
            loss = log_sum - (widen(x[target]) - top);
            if (smoothing != 0) loss = (1 - smoothing) * loss + smoothing * (log_sum - below / (number)classes);
        }
        ((number*)results.loss.data)[row] = loss;
        ((number*)results.lse.data)[row] = lse;
    }

    static void backward(const Entropies& given, const EntropyGradients& gradients, int64_t row) {
        const int64_t target = ((const int64_t*)given.targets.data)[row], classes = given.classes;
        const T* x = (const T*)given.logits.data + row * classes;
        T* to = (T*)gradients.logits.data + row * classes;
        if (target == given.ignored) {
            memset((void*)to, 0, sizeof(T) * (size_t)classes);
            return;
        }
        const number whole = ((const number*)gradients.loss.data)[row], lse = ((const number*)gradients.lse.data)[row];
        const number smoothing = (number)given.smoothing, everywhere = whole * smoothing / (number)classes;
        int64_t v = 0;
        for (; v + width <= classes; v += width) {
            const numbers weight = exp2<degree>((load_wide(x + v) - broadcast(lse)) * broadcast((number)log2_e));
            store_rounded(to + v, broadcast(whole) * weight - broadcast(everywhere));
        }
        for (; v < classes; ++v) narrow(whole * weight_of(x[v], lse) - everywhere, to + v);
        narrow(whole * weight_of(x[target], lse) - everywhere - whole * (1 - smoothing), to + target);
    }

private:
    static REGARD_INLINE number weight_of(T logit, number lse) { return (number)exp((double)(widen(logit) - lse)); }

    static REGARD_INLINE number largest(const T* x, int64_t classes) {
        numbers most = broadcast((number)-INFINITY);
        int64_t v = 0;
        for (; v + width <= classes; v += width) most = maximum(most, load_wide(x + v));
        number top = largest_lane<number>(most);
        for (; v < classes; ++v) top = widen(x[v]) > top ? widen(x[v]) : top;
        return top;
    }

    // sum_v exp(x_v - top), and sum_v (x_v - top).
    static REGARD_INLINE void sums(const T* x, int64_t classes, number top, number* sum, number* below) {
        numbers weights = {}, differences = {};
        int64_t v = 0;
        for (; v + width <= classes; v += width) {
            const numbers difference = load_wide(x + v) - broadcast(top);
            weights += exp2<degree>(difference * broadcast((number)log2_e));
            differences += difference;
        }
        *sum = sum_of_lanes<number>(weights);
        *below = sum_of_lanes<number>(differences);
        for (; v < classes; ++v) {
            *sum += weight_of(x[v], top);
            *below += widen(x[v]) - top;
        }
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

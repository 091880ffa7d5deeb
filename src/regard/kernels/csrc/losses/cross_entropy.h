// Cross-entropy of logits x with a target t and label smoothing, one row at a time:
//
//     lse  = ln sum_v exp x_v
//     loss = (1 - smoothing) (lse - x_t) + smoothing (lse - mean_v x_v)      Szegedy et al. 2016, section 7
//
//     d loss / d x_v = w_v - smoothing / classes - (1 - smoothing) [v = t],    w_v = 2^((x_v - m) log2 e - log2 l)
//
// m is the largest logit and l = sum_v exp(x_v - m). The forward pass stores m and log2 l separately, (rows, 2), as in
// attention: see normalizer.h.
//
// A row stays in the L1 cache for all passes over it. An ignored row has a loss and gradients of 0, whatever its
// logits.
#pragma once

#include <math.h>

#include "losses/logits.h"
#include "tables/kernel_table.h"
#include "tiles/compute_types.h"
#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// T: the dtype of the logits and their gradients.
template <class T>
struct CrossEntropy : private Logits<T> {
    using typename Logits<T>::number;
    using typename Logits<T>::numbers;
    using Logits<T>::width;
    using Logits<T>::degree;
    using Logits<T>::largest;
    using Logits<T>::compute_weight;

    static void forward(const CrossEntropyArguments& arguments, const CrossEntropyResults& results, int64_t row) {
        const int64_t target = ((const int64_t*)arguments.targets.data)[row], classes = arguments.classes;
        number loss = 0, top = 0;
        double of_sum = 0;  // ln l
        if (target != arguments.ignored) {
            const T* x = (const T*)arguments.logits.data + row * classes;
            top = largest(x, classes);
            number sum, below;
            sums(x, classes, top, &sum, &below);
            of_sum = log((double)sum);
            const number log_sum = (number)of_sum, smoothing = (number)arguments.smoothing;
            loss = log_sum - (widen(x[target]) - top);
            if (smoothing != 0) loss = (1 - smoothing) * loss + smoothing * (log_sum - below / (number)classes);
        }
        ((number*)results.loss.data)[row] = loss;
        number* normalizer = (number*)results.normalizer.data + 2 * row;
        normalizer[0] = top, normalizer[1] = (number)(of_sum * log2_e);
    }

    static void backward(const CrossEntropyArguments& arguments, const CrossEntropyGradients& gradients, int64_t row) {
        const int64_t target = ((const int64_t*)arguments.targets.data)[row], classes = arguments.classes;
        const T* x = (const T*)arguments.logits.data + row * classes;
        T* to = (T*)gradients.logits.data + row * classes;
        if (target == arguments.ignored) {
            memset((void*)to, 0, sizeof(T) * (size_t)classes);
            return;
        }
        const number* normalizer = (const number*)gradients.normalizer.data + 2 * row;
        const number whole = ((const number*)gradients.loss.data)[row], top = normalizer[0], log_sum = normalizer[1];
        const number smoothing = (number)arguments.smoothing, everywhere = whole * smoothing / (number)classes;
        int64_t v = 0;
        for (; v + width <= classes; v += width) {
            const numbers below = load_wide(x + v) - broadcast(top);  // before scaling: see normalizer.h
            const numbers weight = exp2<degree>(below * broadcast((number)log2_e) - broadcast(log_sum));
            store_rounded(to + v, broadcast(whole) * weight - broadcast(everywhere));
        }
        for (; v < classes; ++v) narrow(whole * compute_weight(x[v], top, log_sum) - everywhere, to + v);
        narrow(whole * compute_weight(x[target], top, log_sum) - everywhere - whole * (1 - smoothing), to + target);
    }

private:
    // sum_v exp(x_v - top), and sum_v (x_v - top).
    static REGARD_INLINE void sums(const T* x, int64_t classes, number top, number* sum, number* below) {
        numbers weights = {}, differences = {};
        int64_t v = 0;
        for (; v + width <= classes; v += width) {
            const numbers difference = load_wide(x + v) - broadcast(top);
            weights += exp2<degree>(difference * broadcast((number)log2_e));
            differences += difference;
        }
        *sum = sum_lanes<number>(weights);
        *below = sum_lanes<number>(differences);
        for (; v < classes; ++v) {
            *sum += compute_weight(x[v], top, 0);
            *below += widen(x[v]) - top;
        }
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

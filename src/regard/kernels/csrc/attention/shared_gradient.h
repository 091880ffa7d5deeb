// The gradient of a bias or a table to which several tasks add: each adds to a copy of its own, and the copies are
// summed in order, so that the bits do not depend on the number of threads.
#pragma once

#include <string.h>

#include "runtime/parallel.h"
#include "tiles/problem.h"

namespace regard {

class SharedGradient {
  public:
    SharedGradient(const Array& into, int64_t copies) : into_(into), copies_(copies) {
        if (!into) return;
        elements_ = into.shape[0] * into.shape[1] * into.shape[2] * into.shape[3];
        item_ = (int64_t)dtype_size(into.dtype);
        memory_ = Scratch::of<char>({copies, elements_, item_});
        memset(memory_.as<char>(), 0, (size_t)(copies * elements_ * item_));
    }
    // A copy, as an array that broadcasts like the gradient.
    Array copy(int64_t index) const {
        Array a = into_;
        if (!into_) return a;
        a.data = memory_.as<char>() + index * elements_ * item_;
        int64_t step = 1;
        for (int d = 3; d >= 0; --d) {
            a.stride[d] = into_.shape[d] == 1 ? 0 : step;
            step *= into_.shape[d];
        }
        return a;
    }
    void finish() const {
        if (into_) with_type_of_sums(into_.dtype, [&](auto number) { add<decltype(number)>(); });
    }

  private:
    template <class Number>
    void add() const {
        const Number* from = memory_.as<Number>();
        Number* to = (Number*)into_.data;
        int64_t at = 0;
        for (int64_t a = 0; a < into_.shape[0]; ++a)
            for (int64_t b = 0; b < into_.shape[1]; ++b)
                for (int64_t c = 0; c < into_.shape[2]; ++c)
                    for (int64_t d = 0; d < into_.shape[3]; ++d, ++at) {
                        Number sum = from[at];
                        for (int64_t n = 1; n < copies_; ++n) sum += from[n * elements_ + at];
                        to[into_.at(a, b, c, d)] = sum;
                    }
    }

    Array into_;
    int64_t copies_ = 1, elements_ = 0, item_ = 4;
    Scratch memory_;
};

}  // namespace regard

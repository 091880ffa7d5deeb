// Few queries against many keys, as in decoding with a cache: drivers. See chunk.h for the mathematics.
#pragma once

#include "drivers.h"

namespace regard {

// Whether `decode` computes this faster than packing keys and values first.
bool decode_suits(const Problem& problem);

// What `forward` gives. lse may be absent. No dropout.
void decode(const Problem& problem, const Array& output, const Array& lse, int threads);

}  // namespace regard

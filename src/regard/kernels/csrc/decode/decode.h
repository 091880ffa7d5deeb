// Drivers for few queries and many keys, as in decoding with a cache. See decode_chunk.h for the mathematics.
#pragma once

#include "drivers.h"

namespace regard {

// Whether `decode` computes this faster than packing keys and values first.
bool is_decode_suitable(const Problem& problem);

// Computes the results of `forward`. Does not support dropout.
void decode(const Problem& problem, const ForwardResults& results, int threads);

}  // namespace regard

// Random numbers of dropout: a pure function of (seed, batch and head, query, key), so that the backward pass can draw
// the same ones again.
//
// Each row has two 32-bit keys from splitmix64 (Steele, Lea and Flood 2014); each number is the key's index through two
// rounds of multiply and xor-shift (Wellons 2018) with a row key before each. Integers only: the same on every machine.
#pragma once

#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

REGARD_INLINE uint64_t splitmix64(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

struct DropoutMask {
    uint32_t first = 0, second = 0;

    DropoutMask() = default;
    DropoutMask(uint64_t seed, uint64_t batch_head, uint64_t query) {
        uint64_t key = splitmix64(splitmix64(splitmix64(seed) + batch_head) + query);
        first = (uint32_t)key;
        second = (uint32_t)(key >> 32);
    }
    REGARD_INLINE uint32_t number(uint32_t key) const {
        uint32_t x = key ^ first;
        x = (x ^ x >> 16) * 0x7feb352du;
        x ^= second;
        x = (x ^ x >> 15) * 0x846ca68bu;
        return x ^ x >> 16;
    }
    // Keys key .. key + lanes - 1, as many as a vector of uint32 holds.
    REGARD_INLINE vbits numbers(uint32_t key) const {
        vbits x;
        for (int i = 0; i < lanes<uint32_t>; ++i) x[i] = (uint32_t)i;
        x = (x + broadcast(key)) ^ broadcast(first);
        x = (x ^ x >> 16) * broadcast<uint32_t>(0x7feb352du);
        x ^= broadcast(second);
        x = (x ^ x >> 15) * broadcast<uint32_t>(0x846ca68bu);
        return x ^ x >> 16;
    }
};

// A weight is kept if its random number is at least this.
REGARD_INLINE uint32_t drop_threshold(double dropout) {
    double t = dropout * 4294967296.0;
    return t >= 4294967295.0 ? 4294967295u : (uint32_t)t;
}

// Returns `weight` for kept keys and 0 for dropped ones. The lanes are the keys from `key` on.
REGARD_INLINE vfloat apply_dropout(const DropoutMask& drop_mask, uint32_t key, uint32_t threshold, vfloat weight) {
    vbits numbers = drop_mask.numbers(key);
#if defined(__AVX512F__)
    return _mm512_maskz_mov_ps(_mm512_cmpge_epu32_mask((__m512i)numbers, _mm512_set1_epi32((int)threshold)), weight);
#else
    vbits kept = (vbits)(numbers >= broadcast(threshold));
    return (vfloat)((vbits)weight & kept);
#endif
}
REGARD_INLINE vdouble apply_dropout(const DropoutMask& drop_mask, uint32_t key, uint32_t threshold, vdouble weight) {
    for (int i = 0; i < lanes<double>; ++i)
        if (drop_mask.number(key + (uint32_t)i) < threshold) weight[i] = 0;
    return weight;
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

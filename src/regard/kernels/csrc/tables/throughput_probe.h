// Throughput probe: the GEMM microkernel alone, on numbers in the L1 cache, to measure how fast an instruction set
// multiplies (see select_isa.cpp).
#pragma once

#include "tiles/gemm_microkernel.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class A>
struct ThroughputProbe {
    typedef typename A::unit unit;
    static constexpr int depth = 64, columns = panel_vectors * lanes<unit>;
    static constexpr int64_t numbers = strip * depth + depth * columns;  // both operands; the sums overwrite them
    static constexpr size_t bytes = sizeof(unit) * numbers;
    static constexpr int64_t products = strip * columns * depth * A::per_unit;

    static void run(char* scratch) {
        unit* left = (unit*)scratch;
        Sums<A, strip, panel_vectors> sums;
        sums.clear();
        multiply(sums, left, depth, 1, left + strip * depth, columns, depth);
        sums.store_to((typename A::number*)scratch, columns);
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

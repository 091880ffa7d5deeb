// Selection of the instruction set in use: the one that REGARD_ISA names, else the last one that runs here and is not
// slower than the previous one.
//
// An instruction set can be slower than the one before it: a product of bfloat16 pairs takes as long as a single
// product on AMD's Zen 5, but four times as long on a core of Intel's Xeon of 2023, where widening first is faster. No
// feature flag tells, so it is measured once per process. The times per product, relative to AVX-512, are 0.5 and 2:
// both are far from max_slowdown, so other load does not change the choice.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "runtime/cpu.h"
#include "tables/kernel_table.h"
#include "tables/table_in_use.h"

namespace regard {
namespace {

#if REGARD_HAS_avx512_bf16

constexpr int tries = 40;  // of a microsecond each; during the first ones the wide units power up
constexpr double max_slowdown = 1.4;

double measure_seconds(const ProbeKernels& k, char* scratch) {
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < 3; ++i) k.multiply(scratch);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() / (3.0 * (double)k.products);
}

bool has_fast_bfloat16() {
    const ProbeKernels &pairs = avx512_bf16::kernels(Dtype::bfloat16)->probe;
    const ProbeKernels &single = avx512::kernels(Dtype::bfloat16)->probe;
    std::vector<double> scratch(std::max(pairs.bytes, single.bytes) / sizeof(double) + 1);
    double of_pairs = std::numeric_limits<double>::infinity(), of_single = of_pairs;
    for (int i = 0; i < tries; ++i) {
        of_pairs = std::min(of_pairs, measure_seconds(pairs, (char*)scratch.data()));
        of_single = std::min(of_single, measure_seconds(single, (char*)scratch.data()));
    }
    return of_pairs < max_slowdown * of_single;
}

#else

bool has_fast_bfloat16() { return true; }

#endif

Isa fastest_isa(Isa best) { return best == Isa::avx512_bf16 && !has_fast_bfloat16() ? Isa::avx512 : best; }

Isa select_isa() {
    const std::vector<Isa> runnable = runnable_isas();
    const char* wanted = std::getenv("REGARD_ISA");
    if (wanted == nullptr || *wanted == '\0') return fastest_isa(runnable.front());
    std::string names;
    for (Isa isa : runnable) {
        if (std::strcmp(wanted, isa_name(isa)) == 0) return isa;
        names += (names.empty() ? "" : ", ") + std::string(isa_name(isa));
    }
    throw IsaError("REGARD_ISA is '" + std::string(wanted) + "'; this processor runs " + names);
}

}  // namespace

Isa chosen_isa() {
    static const Isa chosen = select_isa();  // after an exception the next call tries again
    return chosen;
}

bool uses_vnni() {
    static const bool is_there = has_vnni();
    if (!is_there || chosen_isa() < Isa::avx512) return false;
    const char* wanted = std::getenv("REGARD_ISA");
    return wanted == nullptr || std::strcmp(wanted, isa_name(Isa::avx512)) != 0;
}

const KernelTable& kernels_in_use(Dtype dtype) {
    const auto table = [&] { REGARD_RETURN_TABLE_WITH_AMX(kernels(dtype)); };
    return *table();
}

}  // namespace regard

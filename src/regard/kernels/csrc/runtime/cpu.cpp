// Features of the processor: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2 (CPUID) and
// volume 1, section 14.3 (the operating system must save a register's state: XCR0, read by XGETBV). Linux gives the
// registers of the matrix unit to processes that ask for them: Documentation/arch/x86/xstate.rst of its sources.
#include "runtime/cpu.h"

#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>
#define REGARD_X86_64 1
#endif
#if REGARD_X86_64 && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace regard {
namespace {

#if REGARD_X86_64

struct Registers {
    uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// All zeros (no features) if the leaf does not exist.
Registers cpuid(uint32_t leaf, uint32_t subleaf) {
    Registers found;
    if (!__get_cpuid_count(leaf, subleaf, &found.eax, &found.ebx, &found.ecx, &found.edx)) return {};
    return found;
}

uint64_t saved_states() {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t{high} << 32) | low;
}

bool has_bit(uint32_t bits, int bit) { return (bits >> bit) & 1u; }

#if REGARD_HAS_avx512_amx

// Asks for the registers of the matrix unit, for all threads of the process. Torch asks, too. Linux refuses if a thread
// handles signals on a stack too small for them, and afterwards refuses such stacks.
bool is_matrix_unit_permitted() {
#if defined(__linux__)
    constexpr long request = 0x1023, matrix_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request, matrix_data) == 0;
#elif defined(_WIN32)
    return true;  // it gives them at the first use
#else
    return false;
#endif
}

#endif

Isa best_isa() {
    const Registers basic = cpuid(1, 0), extended = cpuid(7, 0), more = cpuid(7, 1);
    const bool xgetbv = has_bit(basic.ecx, 27);
    if (!xgetbv) return Isa::portable;
    const uint64_t states = saved_states();
    const bool ymm = (states & 0x06) == 0x06;  // SSE, AVX
    const bool zmm = (states & 0xe6) == 0xe6;  // also mask registers, upper halves, upper 16 registers
    const bool avx = has_bit(basic.ecx, 28), fma = has_bit(basic.ecx, 12), f16c = has_bit(basic.ecx, 29);
    const bool avx2 = ymm && avx && fma && f16c && has_bit(extended.ebx, 5);
    if (!avx2) return Isa::portable;
    const bool f = has_bit(extended.ebx, 16), dq = has_bit(extended.ebx, 17), bw = has_bit(extended.ebx, 30),
               vl = has_bit(extended.ebx, 31);
    if (!(zmm && f && dq && bw && vl)) return Isa::avx2;
    if (!has_bit(more.eax, 5)) return Isa::avx512;
#if REGARD_HAS_avx512_amx
    const bool matrices = (states & 0x60000) == 0x60000 && has_bit(extended.edx, 22) && has_bit(extended.edx, 24);
    if (matrices && is_matrix_unit_permitted()) return Isa::avx512_amx;
#endif
    return Isa::avx512_bf16;
}

#else

Isa best_isa() { return Isa::portable; }

#endif

}  // namespace

const char* isa_name(Isa isa) {
    switch (isa) {
        case Isa::avx512_amx: return "avx512_amx";
        case Isa::avx512_bf16: return "avx512_bf16";
        case Isa::avx512: return "avx512";
        case Isa::avx2: return "avx2";
        case Isa::portable: break;
    }
#if defined(__aarch64__) || defined(_M_ARM64)
    return "neon";
#else
    return "portable";
#endif
}

bool has_vnni() {
#if REGARD_X86_64
    return best_isa() >= Isa::avx512 && has_bit(cpuid(7, 0).ecx, 11);
#else
    return false;
#endif
}

std::vector<Isa> runnable_isas() {
    static const Isa best = best_isa();
    std::vector<Isa> isas;
    for (int isa = static_cast<int>(best); isa >= 0; --isa) isas.push_back(static_cast<Isa>(isa));
    return isas;
}

}  // namespace regard

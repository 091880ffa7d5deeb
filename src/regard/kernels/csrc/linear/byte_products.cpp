// Features of processors: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2 (CPUID), and
// Documentation/arch/arm64/elf_hwcaps.rst of Linux.
#include "linear/byte_products.h"

#include <cstdlib>

#include "runtime/cpu.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace regard {
namespace {

bool has_byte_matrices() {
#if defined(__x86_64__) || defined(_M_X64)
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx >> 25 & 1u) != 0;
#else
    return false;
#endif
}

bool has_dot_products() {
#if defined(__aarch64__) && defined(__linux__)
    constexpr unsigned long asimddp = 1ul << 20;
    return (getauxval(AT_HWCAP) & asimddp) != 0;
#elif defined(__aarch64__) && defined(__APPLE__)
    return true;  // all that run macOS have them
#else
    return false;
#endif
}

}  // namespace

bool uses_byte_matrices() {
    static const bool is_there = has_byte_matrices() && has_vnni();
    return is_there && chosen_isa() == Isa::avx512_amx;
}

bool uses_dot_products() {
    static const bool is_there = has_dot_products();
    const char* wanted = std::getenv("REGARD_ISA");
    return is_there && (wanted == nullptr || *wanted == '\0');
}

}  // namespace regard

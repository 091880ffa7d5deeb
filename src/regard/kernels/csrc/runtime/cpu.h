// Which instruction sets this processor and its operating system can run, and which one is in use.
//
// The environment variable REGARD_ISA selects one; without it the fastest that runs here is used (see select_isa.cpp).
// It is read at the first use and not at import, so that a wrong name raises an error in a call, with the valid names.
#pragma once

#include <stdexcept>
#include <vector>

namespace regard {

// In ascending order: a processor that runs one also runs all before it.
// What has no kernels for the matrix unit of avx512_amx computes with those of avx512: its name is to say which code runs,
// and on the processors that have one, all Intel's, products of pairs of bfloat16 are slow.
enum class Isa : int { portable, avx2, avx512, avx512_bf16, avx512_amx };

// REGARD_ISA names an unknown instruction set, or one that cannot run here.
struct IsaError : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

// "portable" ("neon" on arm64), "avx2", "avx512", "avx512_bf16", "avx512_amx".
const char* isa_name(Isa isa);

// Whether the processor has AVX512_VNNI, and AVX-512.
bool has_vnni();

// The instruction sets that run here, best first.
std::vector<Isa> runnable_isas();

// The instruction set in use. Throws IsaError.
Isa chosen_isa();

// Whether products of bytes are those of AVX512_VNNI: where the processor has it, unless REGARD_ISA names avx512 or less.
bool uses_vnni();

}  // namespace regard

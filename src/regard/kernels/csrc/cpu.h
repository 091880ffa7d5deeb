// Which instruction sets this processor and its operating system can run, and which one is in use.
//
// The environment variable REGARD_ISA names one; without it the fastest that runs here is taken (see select_isa.cpp).
// It is read at the first use and not at import, so that a wrong name is an error of a call, with the valid names in
// it.
#pragma once

#include <stdexcept>
#include <vector>

namespace regard {

// In rising order: each runs wherever the next one runs.
enum class Isa : int { portable, avx2, avx512, avx512_bf16 };

inline constexpr int isa_count = 4;

// REGARD_ISA names something unknown, or something that cannot run here.
struct IsaError : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

// "portable" ("neon" on arm64), "avx2", "avx512", "avx512_bf16".
const char* isa_name(Isa isa);

// Those that run here, last first.
std::vector<Isa> runnable_isas();

// The one in use. Throws IsaError.
Isa chosen_isa();

}  // namespace regard

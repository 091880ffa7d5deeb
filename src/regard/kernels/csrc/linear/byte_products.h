// Which instructions multiply bytes on this processor, beside those of the instruction set in use. They came to
// processors with and without products of bfloat16 pairs, so they are no instruction sets of their own.
#pragma once

namespace regard {

// The matrix unit's (AMX-INT8), beside VNNI: where avx512_amx is in use.
bool uses_byte_matrices();

// Those of Arm (FEAT_DotProd): unless REGARD_ISA names an instruction set.
bool uses_dot_products();

}  // namespace regard

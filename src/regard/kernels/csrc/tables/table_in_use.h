// Returns the table of kernels of the instruction set in use, from a function whose last statement is one of these macros.
// `table` is an expression such as hash_kernels(dtype), which each of the namespaces portable, avx2, avx512.. has.
#pragma once

#include "runtime/cpu.h"

#if REGARD_HAS_avx2
#define REGARD_TABLE_OF_avx2(table) if (chosen_isa() == Isa::avx2) return avx2::table;
#else
#define REGARD_TABLE_OF_avx2(table)
#endif
#if REGARD_HAS_avx512
#define REGARD_TABLE_OF_avx512(table) if (chosen_isa() >= Isa::avx512) return avx512::table;
#else
#define REGARD_TABLE_OF_avx512(table)
#endif
#if REGARD_HAS_avx512_bf16
#define REGARD_TABLE_OF_avx512_bf16(table) if (chosen_isa() == Isa::avx512_bf16) return avx512_bf16::table;
#else
#define REGARD_TABLE_OF_avx512_bf16(table)
#endif
#if REGARD_HAS_avx512_amx
#define REGARD_TABLE_OF_avx512_amx(table) if (chosen_isa() == Isa::avx512_amx) return avx512_amx::table;
#else
#define REGARD_TABLE_OF_avx512_amx(table)
#endif

// For kernels to which products of pairs of bfloat16 and the matrix unit add nothing.
#define REGARD_RETURN_TABLE(table) \
    REGARD_TABLE_OF_avx512(table) REGARD_TABLE_OF_avx2(table) return portable::table
#define REGARD_RETURN_TABLE_WITH_BF16(table) REGARD_TABLE_OF_avx512_bf16(table) REGARD_RETURN_TABLE(table)
#define REGARD_RETURN_TABLE_WITH_AMX(table) REGARD_TABLE_OF_avx512_amx(table) REGARD_RETURN_TABLE_WITH_BF16(table)

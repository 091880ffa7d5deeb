// The registers of the matrix unit of the processor, Intel's AMX, and its instructions.
//
// Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18: eight registers of 16 rows of 64
// bytes. A product adds to C (16, 16), of 32 bits each, rows of A (16, 64 bytes) times B (16, 64 bytes), in which the
// numbers that one element of C sums are side by side in 32 bits.
#pragma once

#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

inline constexpr int matrix_rows = 16, matrix_units = 16;  // of a register

struct alignas(64) MatrixShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Until the end of its scope the thread can use the registers.
struct MatrixUnit {
    REGARD_INLINE MatrixUnit() {
        const MatrixShapes shapes;
        __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
    }
    REGARD_INLINE ~MatrixUnit() { __asm__ volatile("tilerelease"); }
    MatrixUnit(const MatrixUnit&) = delete;
    MatrixUnit& operator=(const MatrixUnit&) = delete;
};

// Numbers of registers are constants of the instructions. `row` is the distance of rows, in numbers of 4 bytes.
template <int number>
REGARD_INLINE void clear_matrix() {
    __asm__ volatile("tilezero %%tmm%c0" ::"i"(number));
}
template <int number>
REGARD_INLINE void load_matrix(const void* from, int64_t row) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(4 * row), "i"(number) : "memory");
}
template <int number>
REGARD_INLINE void store_matrix(void* to, int64_t row) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(4 * row), "i"(number) : "memory");
}
// Of pairs of bfloat16 numbers, and of fours of signed bytes.
template <int sum, int a, int b>
REGARD_INLINE void multiply_matrices() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(a), "i"(b));
}
template <int sum, int a, int b>
REGARD_INLINE void multiply_byte_matrices() {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(a), "i"(b));
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

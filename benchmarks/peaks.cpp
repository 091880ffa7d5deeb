// Measures the machine's peak rates, the denominators of every "share of peak".
//
//     multiply_add    fp32 fused multiply-adds on registers alone           GFLOP/s
//     dot_bf16        pairs of bf16 products added to fp32 (vdpbf16ps)      GFLOP/s; 0 where the CPU has no such instruction
//     matrix_bf16     products of matrices of bf16 added to fp32 (tdpbf16ps)  GFLOP/s; 0 where the CPU has no matrix unit
//     read            bytes of a buffer, each read once in a pass           GB/s
//
// Compiled when the benchmarks start, for any CPU; the instructions are chosen at run time. A multiply-add counts as
// two operations. Sixteen independent chains of multiply-adds keep the units of current CPUs busy: that takes latency
// times units chains.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <chrono>

#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#define TARGET(isa) __attribute__((target(isa)))
#endif

namespace {

constexpr int chains = 16;
constexpr int64_t steps = 1 << 16;  // operations per chain between two readings of the clock

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

volatile float sink;

// An empty asm that "changes" a register keeps the compiler from folding the chains into fewer operations.
#if defined(__x86_64__)
#define UNKNOWN(register) asm volatile("" : "+v"(register))
#elif defined(__aarch64__)
#define UNKNOWN(register) asm volatile("" : "+w"(register))
#else
#define UNKNOWN(register)
#endif

#if defined(__x86_64__)

TARGET("avx512f") double multiply_add_avx512() {
    __m512 sum[chains], factor = _mm512_set1_ps(0.999f), term = _mm512_set1_ps(0.001f);
    for (int c = 0; c < chains; c++) sum[c] = _mm512_set1_ps(float(c));
    for (int64_t s = 0; s < steps; s++) {
        UNKNOWN(factor);
        UNKNOWN(term);
#pragma GCC unroll 16
        for (int c = 0; c < chains; c++) sum[c] = _mm512_fmadd_ps(sum[c], factor, term);
    }
#pragma GCC unroll 16
    for (int c = 1; c < chains; c++) sum[0] = _mm512_add_ps(sum[0], sum[c]);
    sink = sum[0][0];
    return 2.0 * 16 * chains * steps;
}

TARGET("avx2,fma") double multiply_add_avx2() {
    __m256 sum[12], factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(0.001f);  // 16 registers in all
    for (int c = 0; c < 12; c++) sum[c] = _mm256_set1_ps(float(c));
    for (int64_t s = 0; s < steps; s++) {
        UNKNOWN(factor);
        UNKNOWN(term);
#pragma GCC unroll 12
        for (int c = 0; c < 12; c++) sum[c] = _mm256_fmadd_ps(sum[c], factor, term);
    }
#pragma GCC unroll 12
    for (int c = 1; c < 12; c++) sum[0] = _mm256_add_ps(sum[0], sum[c]);
    sink = sum[0][0];
    return 2.0 * 8 * 12 * steps;
}

TARGET("avx512f,avx512bf16") double dot_bf16_avx512() {
    __m512 sum[chains];
    for (int c = 0; c < chains; c++) sum[c] = _mm512_set1_ps(float(c));
    __m512i left = _mm512_set1_epi32(0x3a833a83), right = left;  // pairs of bf16 0.001
    for (int64_t s = 0; s < steps; s++) {
        UNKNOWN(left);
        UNKNOWN(right);
#pragma GCC unroll 16
        for (int c = 0; c < chains; c++) sum[c] = _mm512_dpbf16_ps(sum[c], (__m512bh)left, (__m512bh)right);
    }
#pragma GCC unroll 16
    for (int c = 1; c < chains; c++) sum[0] = _mm512_add_ps(sum[0], sum[c]);
    sink = sum[0][0];
    return 4.0 * 16 * chains * steps;
}

#if defined(__linux__)

// The processor has the unit, and Linux lets this process use it: ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA.
bool has_matrix_unit() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d >> 22 & 1) == 0 || (d >> 24 & 1) == 0) return false;
    static const bool permitted = syscall(SYS_arch_prctl, 0x1023, 18) == 0;
    return permitted;
}

// Four sums of 16 x 16 numbers, from 16 x 32 and 32 x 16.
TARGET("amx-tile,amx-bf16") double matrix_bf16_amx() {
    alignas(64) uint8_t shapes[64] = {1};
    for (int i = 0; i < 8; i++) shapes[16 + 2 * i] = 64, shapes[48 + i] = 16;
    asm volatile("ldtilecfg %0" ::"m"(shapes));
    asm volatile("tilezero %tmm0\n tilezero %tmm1\n tilezero %tmm2\n tilezero %tmm3");
    asm volatile("tilezero %tmm4\n tilezero %tmm5\n tilezero %tmm6\n tilezero %tmm7");
    for (int64_t s = 0; s < steps; s++)
        asm volatile(
            "tdpbf16ps %tmm6, %tmm4, %tmm0\n tdpbf16ps %tmm7, %tmm4, %tmm1\n"
            "tdpbf16ps %tmm6, %tmm5, %tmm2\n tdpbf16ps %tmm7, %tmm5, %tmm3");
    asm volatile("tilerelease");
    return 2.0 * 16 * 16 * 32 * 4 * steps;
}

#endif

// Reading four pieces of a buffer in parallel, with prefetching, is faster than reading one piece from some memories, and
// slower from a cache. So both variants exist.
template <int pieces, int ahead>
TARGET("avx512f") void read_avx512(const char* from, int64_t bytes) {
    int64_t piece = bytes / pieces / 256 * 256;
    __m512i sum[4 * pieces];
#pragma GCC unroll 16
    for (int c = 0; c < 4 * pieces; c++) sum[c] = _mm512_setzero_si512();
    for (int64_t at = 0; at < piece; at += 256)
#pragma GCC unroll 16
        for (int c = 0; c < 4 * pieces; c++) {
            const char* here = from + (c / 4) * piece + at + 64 * (c % 4);
            if (ahead != 0) _mm_prefetch(here + ahead, _MM_HINT_T0);
            sum[c] = _mm512_xor_si512(sum[c], _mm512_loadu_si512(here));
        }
#pragma GCC unroll 16
    for (int c = 1; c < 4 * pieces; c++) sum[0] = _mm512_xor_si512(sum[0], sum[c]);
    sink = float(sum[0][0]);
}

template <int pieces, int ahead>
TARGET("avx2") void read_avx2(const char* from, int64_t bytes) {
    int64_t piece = bytes / pieces / 64 * 64;
    __m256i sum[2 * pieces];
#pragma GCC unroll 8
    for (int c = 0; c < 2 * pieces; c++) sum[c] = _mm256_setzero_si256();
    for (int64_t at = 0; at < piece; at += 64)
#pragma GCC unroll 8
        for (int c = 0; c < 2 * pieces; c++) {
            const char* here = from + (c / 2) * piece + at + 32 * (c % 2);
            if (ahead != 0) _mm_prefetch(here + ahead, _MM_HINT_T0);
            sum[c] = _mm256_xor_si256(sum[c], _mm256_loadu_si256((const __m256i*)here));
        }
#pragma GCC unroll 8
    for (int c = 1; c < 2 * pieces; c++) sum[0] = _mm256_xor_si256(sum[0], sum[c]);
    sink = float(sum[0][0]);
}

#endif

typedef float Four __attribute__((vector_size(16)));
typedef uint64_t Two __attribute__((vector_size(16)));

double multiply_add_portable() {
    Four sum[12], factor = {0.999f, 0.999f, 0.999f, 0.999f}, term = {0.001f, 0.001f, 0.001f, 0.001f};
    for (int c = 0; c < 12; c++) sum[c] = factor * float(c);
    for (int64_t s = 0; s < steps; s++) {
        UNKNOWN(factor);
        UNKNOWN(term);
#pragma GCC unroll 12
        for (int c = 0; c < 12; c++) sum[c] = sum[c] * factor + term;
    }
    float total = 0;
    for (int c = 0; c < 12; c++) total += sum[c][0] + sum[c][1] + sum[c][2] + sum[c][3];
    sink = total;
    return 2.0 * 4 * 12 * steps;
}

void read_portable(const char* from, int64_t bytes) {
    Two sum[8] = {}, now;
    for (int64_t at = 0; at + 128 <= bytes; at += 128)
#pragma GCC unroll 8
        for (int c = 0; c < 8; c++) {
            memcpy(&now, from + at + 16 * c, 16);
            sum[c] ^= now;
        }
    for (int c = 1; c < 8; c++) sum[0] ^= sum[c];
    sink = float(sum[0][0] ^ sum[0][1]);
}

double multiply_add() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return multiply_add_avx512();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return multiply_add_avx2();
#endif
    return multiply_add_portable();
}

double dot_bf16() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bf16")) return dot_bf16_avx512();
#endif
    return 0;
}

double matrix_bf16() {
#if defined(__x86_64__) && defined(__linux__)
    if (has_matrix_unit()) return matrix_bf16_amx();
#endif
    return 0;
}

void read(const char* from, int64_t bytes, bool in_pieces) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return in_pieces ? read_avx512<4, 1024>(from, bytes) : read_avx512<1, 0>(from, bytes);
    if (__builtin_cpu_supports("avx2"))
        return in_pieces ? read_avx2<4, 1024>(from, bytes) : read_avx2<1, 0>(from, bytes);
#endif
    (void)in_pieces;
    read_portable(from, bytes);
}

// Repeats `work` on all threads for about `seconds`; returns the work per second, in units of 1e9.
template <class Work>
double rate(int threads, double seconds, const Work& work) {
    double done = 0, start = seconds_now(), stop = start;
#pragma omp parallel num_threads(threads) reduction(+ : done) reduction(max : stop)
    {
#ifdef _OPENMP
        int thread = omp_get_thread_num();
#else
        int thread = 0;
#endif
        do {
            done += work(thread);
            stop = seconds_now();
        } while (stop - start < seconds);
    }
    return done / (stop - start) / 1e9;
}

}  // namespace

extern "C" {

double regard_peak_multiply_add(int threads, double seconds) {
    return rate(threads, seconds, [](int) { return multiply_add(); });
}

double regard_peak_dot_bf16(int threads, double seconds) {
    return rate(threads, seconds, [](int) { return dot_bf16(); });
}

double regard_peak_matrix_bf16(int threads, double seconds) {
    return rate(threads, seconds, [](int) { return matrix_bf16(); });
}

// Each thread reads its own part of the buffer repeatedly, in one piece or in several in parallel.
double regard_peak_read(int threads, double seconds, const char* buffer, int64_t bytes, int in_pieces) {
    int64_t part = bytes / threads / 1024 * 1024;
    return rate(threads, seconds, [=](int thread) {
        read(buffer + thread * part, part, in_pieces != 0);
        return double(part);
    });
}
}

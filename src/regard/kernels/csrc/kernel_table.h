// What one instruction set offers for one dtype: a small table of functions for each family of kernels. `kernels.cpp` is
// compiled once for each instruction set and fills them; the drivers, compiled for any CPU, call through them. A new
// family (a scan, say) is a table of its own here, and shares nothing with the others.
#pragma once

#include "decode_kernels.h"
#include "drivers.h"
#include "observe_kernels.h"
#include "problem.h"
#include "tile_kernels.h"

namespace regard {

inline constexpr int64_t dropout_block = 16384;  // numbers in a block: fewer would not be worth another thread

struct DropoutKernels {
    void (*block)(const DropoutArguments&, int64_t block);
};

struct CrossEntropyKernels {  // one row of logits
    void (*forward)(const CrossEntropyArguments&, const CrossEntropyResults&, int64_t row);
    void (*backward)(const CrossEntropyArguments&, const CrossEntropyGradients&, int64_t row);
};

struct ProbeKernels {  // the register tile by itself, as many products as that: see throughput_probe.h
    size_t bytes;
    int64_t products;
    void (*multiply)(char* scratch);
};

struct KernelTable {
    TileKernels dot_product, additive;
    DecodeKernels decode;
    ObserveKernels observe;
    DropoutKernels dropout;
    CrossEntropyKernels cross_entropy;
    ProbeKernels probe;
};

// The tables: null where this build has none for the instruction set. Dtype is that of query, key and value.
namespace avx512_bf16 { const KernelTable* kernels(Dtype); }
namespace avx512 { const KernelTable* kernels(Dtype); }
namespace avx2 { const KernelTable* kernels(Dtype); }
namespace portable { const KernelTable* kernels(Dtype); }

// The table of the instruction set in use (see cpu.h).
const KernelTable& kernels_for(Dtype);
REGARD_INLINE const TileKernels& tile_kernels_for(const Problem& p) {
    const KernelTable& table = kernels_for(p.query.dtype);
    return p.vector ? table.additive : table.dot_product;
}

}  // namespace regard

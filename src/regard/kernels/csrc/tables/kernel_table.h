// The kernels of one instruction set for one dtype: a table of functions for each kind of kernels. `kernels.cpp` is
// compiled once for each instruction set (for the matrix unit, matrix_kernels.cpp) and fills the tables; the drivers,
// compiled for any CPU, call through them. A new kind of kernels gets a table of its own here.
#pragma once

#include "decode/decode_kernels.h"
#include "drivers.h"
#include "observe/observe_kernels.h"
#include "scan/scan_kernels.h"
#include "talking_heads/talking_heads_kernels.h"
#include "tiles/problem.h"
#include "tiles/tile_kernels.h"

namespace regard {

inline constexpr int64_t dropout_block = 16384;  // elements; smaller blocks would cost more than a thread saves

struct DropoutKernels {
    void (*block)(const DropoutArguments&, int64_t block);
};

struct CrossEntropyKernels {  // one row of logits
    void (*forward)(const CrossEntropyArguments&, const CrossEntropyResults&, int64_t row);
    void (*backward)(const CrossEntropyArguments&, const CrossEntropyGradients&, int64_t row);
};

struct LikeliestKernels {  // one row of logits
    void (*find)(const LikeliestArguments&, const LikeliestResults&, int64_t row);
};

struct ProbeKernels {  // the GEMM microkernel alone, `products` products per call: see throughput_probe.h
    size_t bytes;
    int64_t products;
    void (*multiply)(char* scratch);
};

struct KernelTable {
    TileKernels dot_product, sigmoid, additive;
    DecodeKernels decode, sigmoid_decode;
    // Writes the number of keys that each query of a tile may attend to by the mask.
    void (*count_visible_keys)(const Problem&, int64_t batch, int64_t head, int64_t query_tile, int64_t* counts);
    ObserveKernels observe;
    DropoutKernels dropout;
    CrossEntropyKernels cross_entropy;
    LikeliestKernels likeliest;
    ScanKernels scan;
    TalkingHeadsKernels talking_heads;
    ProbeKernels probe;
};

// The tables, by the dtype of query, key and value; null if this build has none.
namespace avx512_amx { const KernelTable* kernels(Dtype); }
namespace avx512_bf16 { const KernelTable* kernels(Dtype); }
namespace avx512 { const KernelTable* kernels(Dtype); }
namespace avx2 { const KernelTable* kernels(Dtype); }
namespace portable { const KernelTable* kernels(Dtype); }

// The table of the instruction set in use (see cpu.h).
const KernelTable& kernels_in_use(Dtype);
REGARD_INLINE const TileKernels& tile_kernels_in_use(const Problem& p) {
    const KernelTable& table = kernels_in_use(p.query.dtype);
    if (p.vector) return table.additive;
    return p.weight_function == WeightFunction::sigmoid ? table.sigmoid : table.dot_product;
}
REGARD_INLINE const DecodeKernels& decode_kernels_in_use(const Problem& p) {
    const KernelTable& table = kernels_in_use(p.query.dtype);
    return p.weight_function == WeightFunction::sigmoid ? table.sigmoid_decode : table.decode;
}

}  // namespace regard

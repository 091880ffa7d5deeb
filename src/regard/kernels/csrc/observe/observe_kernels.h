// The kernels of one instruction set for attention with statistics of its weights. Driver: observe.cpp.
//
// `forward` is the forward pass with statistics for one tile of queries, `received` computes the received weights of
// key tiles first .. stop - 1 (at most `received_tiles`), and `row` the weights of one requested row. See observe.h.
#pragma once

#include "drivers.h"
#include "tiles/problem.h"
#include "tiles/tile_kernels.h"

namespace regard {

// Outputs of observe. The first pass writes `normals` for the others: normal_bytes for each (batch, head, query).
struct ObserveOutputs {
    ForwardResults results;
    Statistics statistics;
    char* normals;
};

struct ObserveKernels {
    size_t normal_bytes;
    int64_t received_tiles;
    size_t (*scratch)(const Problem&, int64_t top);
    void (*forward)(const Problem&, const PackedKeys& keys, int64_t batch, int64_t head, int64_t query_tile,
                    const ObserveOutputs&, char* scratch);
    size_t (*received_scratch)(const Problem&);
    void (*received)(const Problem&, const PackedKeys& keys, int64_t batch, int64_t head, int64_t first_key_tile,
                     int64_t stop_key_tile, const ObserveOutputs&, char* scratch);
    size_t (*row_scratch)(const Problem&);
    void (*row)(const Problem&, const PackedKeys& keys, int64_t batch, int64_t head, int64_t index,
                const ObserveOutputs&, char* scratch);
};

}  // namespace regard

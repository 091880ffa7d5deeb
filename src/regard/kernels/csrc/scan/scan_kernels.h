// The scan family, a state that decays and is updated token by token: what one instruction set offers for it. The driver
// is scan.cpp, the equations are in scan.h.
//
// A range of value columns is a task of its own: no column of the state, of the output or of their gradients depends on
// another one. The gradients of query, key, log_decay and beta sum over all columns; each chunk of tokens is a task there.
#pragma once

#include "drivers.h"
#include "tiles/problem.h"

namespace regard {

inline constexpr int64_t scan_chunk = 64;  // tokens

struct ScanKernels {
    int64_t columns;  // ranges start at multiples of it
    size_t (*forward_scratch)(const ScanArguments&);
    // Value columns first .. stop of the output and the final state. Returns whether a log_decay is above 0.
    bool (*forward)(const ScanArguments&, const ScanResults&, int64_t batch, int64_t head, int64_t first, int64_t stop,
                    char* scratch);

    // What the passes below leave to each other for one (batch, head); with `all`, for every chunk at a time.
    size_t (*saved_bytes)(const ScanArguments&, bool all);
    size_t (*backward_scratch)(const ScanArguments&);
    // The states between chunks, from the first chunk to the last.
    void (*states)(const ScanArguments&, int64_t batch, int64_t head, int64_t first, int64_t stop, bool all,
                   char* saved, char* scratch);
    // Gradients of the states, from the last chunk to the first, and those of value and of the initial state. Without
    // `all` (which needs all columns) also those of `gradients`, chunk by chunk.
    void (*reverse)(const ScanArguments&, const ScanGradients&, int64_t batch, int64_t head, int64_t first,
                    int64_t stop, bool all, char* saved, char* scratch);
    // Gradients of query, key, log_decay and beta for the tokens of one chunk.
    void (*gradients)(const ScanArguments&, const ScanGradients&, int64_t batch, int64_t head, int64_t chunk,
                      char* saved, char* scratch);
};

}  // namespace regard

// The kernels of one instruction set for decoding, which is attention of few queries to many keys. Driver: decode.cpp.
//
// `chunk` computes attention of all queries of one key head to one chunk of its keys, the key tiles first .. stop - 1.
// Its partial results take `partial_bytes` bytes; those of one (batch, key head) are adjacent, and `join` merges them.
// If pages is null, the keys are the problem's. See decode_chunk.h.
#pragma once

#include "drivers.h"
#include "tiles/problem.h"

namespace regard {

inline constexpr int64_t max_decode_rows = 64;  // of a chunk: a word has one bit for each
inline constexpr int64_t max_chunk_tiles = 64;  // maximum of key tiles in a chunk

struct DecodeKernels {
    size_t (*partial_bytes)(const Problem&);
    size_t (*scratch)(const Problem&);
    void (*chunk)(const Problem&, const Pages* pages, int64_t batch, int64_t key_head, int64_t first_tile,
                  int64_t stop_tile, char* partials, char* scratch);
    void (*join)(const Problem&, char* partials, int64_t count, int64_t batch, int64_t key_head,
                 const ForwardResults& results);
};

}  // namespace regard

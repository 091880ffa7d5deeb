// Decoding, few queries against many keys: what one instruction set offers for it. The driver is decode.cpp.
//
// All queries of one key head meet one chunk of its keys, the key tiles first .. stop - 1; then chunks are joined. What a
// chunk leaves takes `partial_bytes` bytes, those of one (batch, key head) one after the other. Without pages (null) the
// keys are the problem's. See decode_chunk.h.
#pragma once

#include "drivers.h"
#include "problem.h"

namespace regard {

inline constexpr int64_t max_decode_rows = 64;  // of a chunk, at most: they are counted in the bits of a word
inline constexpr int64_t max_chunk_tiles = 64;  // key tiles in a chunk, at most

struct DecodeKernels {
    size_t (*partial_bytes)(const Problem&);
    size_t (*scratch)(const Problem&);
    void (*chunk)(const Problem&, const Pages* pages, int64_t batch, int64_t key_head, int64_t first_tile,
                  int64_t stop_tile, char* partials, char* scratch);
    void (*join)(const Problem&, char* partials, int64_t count, int64_t batch, int64_t key_head,
                 const ForwardResults& results);
};

}  // namespace regard

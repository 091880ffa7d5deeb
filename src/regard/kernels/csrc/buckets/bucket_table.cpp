// The tables of the instruction set in use, for hash buckets.
#include "buckets/bucket_kernels.h"
#include "tables/table_in_use.h"

namespace regard {

// Compared with AVX-512, AVX512_BF16 adds nothing here: numbers are float32 or float64.
const HashKernels& hash_kernels_in_use() { REGARD_RETURN_TABLE(hash_kernels()); }

const RowKernels& row_kernels_for(Dtype dtype) { REGARD_RETURN_TABLE(row_kernels(dtype)); }

}  // namespace regard

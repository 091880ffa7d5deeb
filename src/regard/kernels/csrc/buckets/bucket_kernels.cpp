// The kernels of hash buckets, compiled once for each instruction set, as kernels.cpp is.
#include "buckets/bucket_kernels.h"

#include "buckets/sorted_rows.h"
#include "buckets/token_hash.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

static constexpr HashKernels hash_table = {Hash::hash};

const HashKernels& hash_kernels() { return hash_table; }

template <class T>
static constexpr RowKernels row_table = {TokenRows<T>::divide_rows, TokenRows<T>::sort_gradients, TokenRows<T>::merge, TokenRows<T>::add};

const RowKernels& row_kernels(Dtype dtype) { return dtype == Dtype::float64 ? row_table<double> : row_table<float>; }

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

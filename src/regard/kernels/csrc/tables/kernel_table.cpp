// The table of kernels of the instruction set in use.
#include "tables/kernel_table.h"

#include "tables/table_in_use.h"

namespace regard {

namespace {

const KernelTable* table_in_use(Dtype dtype) { REGARD_RETURN_TABLE_WITH_AMX(kernels(dtype)); }

}  // namespace

const KernelTable& kernels_for(Dtype dtype) { return *table_in_use(dtype); }

}  // namespace regard

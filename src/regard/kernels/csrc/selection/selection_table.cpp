// The tables of the instruction set in use, for attention to chosen keys.
#include "selection/selection_kernels.h"
#include "tables/table_in_use.h"

namespace regard {

// Compared with AVX-512, AVX512_BF16 adds nothing here: products are in float32 or float64.
const GatheredKernels& gathered_kernels_for(Dtype dtype) { REGARD_RETURN_TABLE(gathered_kernels(dtype)); }

const ChoiceKernels& choice_kernels_in_use() { REGARD_RETURN_TABLE(choice_kernels()); }

const ChosenKernels& chosen_kernels_for(Dtype dtype) { REGARD_RETURN_TABLE(chosen_kernels(dtype)); }

const ImportanceKernels& importance_kernels_in_use() { REGARD_RETURN_TABLE(importance_kernels()); }

}  // namespace regard

// The kernels of attention to chosen keys, compiled once for each instruction set, as kernels.cpp is.
#include "selection/selection_kernels.h"

#include "selection/block_importance.h"
#include "selection/chosen_blocks.h"
#include "selection/gathered_keys.h"
#include "selection/highest_keys.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class A>
static constexpr GatheredKernels gathered_table = {sizeof(typename A::number), Gathered<A>::row,      Gathered<A>::pack,
                                                   Gathered<A>::scratch,       Gathered<A>::forward,  Gathered<A>::backward,
                                                   Gathered<A>::accumulate,    Gathered<A>::finish};

const GatheredKernels& gathered_kernels(Dtype dtype) {
    return dtype == Dtype::float64 ? gathered_table<Float64> : gathered_table<Float32>;
}

template <class A>
static constexpr ChosenKernels chosen_table = {sizeof(typename A::number), ChosenBlocks<A>::row, ChosenBlocks<A>::scratch,
                                               ChosenBlocks<A>::gather, ChosenBlocks<A>::join,
                                               ChosenBlocks<A>::add_query_tile, ChosenBlocks<A>::write_keys};

const ChosenKernels& chosen_kernels(Dtype dtype) {
    return dtype == Dtype::float64 ? chosen_table<Float64> : chosen_table<Float32>;
}

static constexpr ChoiceKernels choice_table = {Choice::pack, Choice::pack_scratch, Choice::scratch, Choice::choose};

const ChoiceKernels& choice_kernels() { return choice_table; }

static constexpr ImportanceKernels importance_table = {BlockImportance::pack, BlockImportance::pack_scratch,
                                                       BlockImportance::scratch, BlockImportance::choose};

const ImportanceKernels& importance_kernels() { return importance_table; }

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

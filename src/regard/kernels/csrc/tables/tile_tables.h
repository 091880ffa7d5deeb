// The tables of softmax and other attention by tiles, and of its statistics: for the number types of the vector units and
// for that of the matrix unit.
#pragma once

#include "attention/backward.h"
#include "observe/observe.h"
#include "tables/kernel_table.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

// A kernel that holds a unit of the processor while it runs.
template <class Unit, auto kernel>
struct Holding;
template <class Unit, class... Arguments, void (*kernel)(Arguments...)>
struct Holding<Unit, kernel> {
    static void run(Arguments... arguments) {
        const Unit held;
        kernel(arguments...);
    }
};

template <class A, auto kernel>
constexpr auto with_unit() {
    if constexpr (A::has_matrix_unit)
        return Holding<typename A::Unit, kernel>::run;
    else
        return kernel;
}

// A: the type in which products are computed. Packed values, and the last step of dQ, are the same for all mechanisms.
template <class A, class PackTokens, class ForwardPass, class BackwardPass>
constexpr TileKernels tile_kernels() {
    TileKernels k = {};
    k.key_bytes = PackTokens::key_bytes;
    k.value_bytes = PackKeys<A>::value_bytes;
    k.pack_scratch = PackTokens::scratch;
    k.pack_keys = PackTokens::pack;
    k.group = A::group;
    k.forward_scratch = ForwardPass::scratch;
    k.forward = with_unit<A, ForwardPass::run>();
    k.backward_sizes = BackwardPass::sizes;
    k.backward_pack_keys = BackwardPass::pack_keys;
    k.backward_pack_queries = with_unit<A, BackwardPass::pack_queries>();
    k.backward_prepare_queries = with_unit<A, BackwardPass::prepare_queries>();
    k.backward = with_unit<A, BackwardPass::run>();
    k.backward_finish_queries = Backward<A>::finish_queries;
    return k;
}

template <class A, template <class, class> class ForwardPass = Forward>
constexpr ObserveKernels observe_kernels() {
    typedef Observe<A, ForwardPass> Observing;
    ObserveKernels k = {};
    k.normal_bytes = Observing::normal_bytes;
    k.received_tiles = Observing::received_tiles;
    k.scratch = Observing::scratch;
    k.forward = with_unit<A, Observing::run>();
    k.received_scratch = Observing::received_scratch;
    k.received = with_unit<A, Observing::received>();
    k.row_scratch = Observing::row_scratch;
    k.row = with_unit<A, Observing::row>();
    return k;
}

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

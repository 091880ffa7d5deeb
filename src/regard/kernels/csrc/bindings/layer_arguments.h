// The layers and norms of a decoder's sublayers for few tokens. They are tuples, or None for an absent one:
//
//     linear layer    (weight, scale, bias, outputs), of which scale and bias may be None
//     norm            (weight, bias, epsilon, offset, subtracts_mean), of which bias may be None
//     rotation        (cosine, sine, pairs)
#pragma once

#include <string>

#include "bindings/arguments.h"
#include "decode/sublayer_kernels.h"

namespace regard {

// The activation of this name. Raises ValueError for an unknown one.
Activation to_activation(const std::string& name);

// Reads the weight of a linear layer. The bias may be None, and so may the scale, but for weights of few bits.
ProjectionArguments read_weight(Call& call, nanobind::handle weight, nanobind::handle scale, nanobind::handle bias,
                                const char* name, int64_t inputs, int64_t outputs, Dtype dtype);
// Reads a linear layer, absent if it is None; of any number of outputs if `outputs` is negative.
ProjectionArguments read_layer(Call& call, nanobind::handle layer, const char* name, int64_t inputs, int64_t outputs,
                               Dtype dtype);
NormLayer read_norm(Call& call, nanobind::handle norm, const char* name, int64_t width, Dtype dtype);
// Reads the factors of `count` tokens, for heads of the problem.
RotationFactors read_rotation(Call& call, nanobind::handle rotation, Dtype dtype, int64_t count);

// The layers and norms of an attention sublayer.
struct AttentionLayers {
    nanobind::handle query_layer, output_layer, key_layer, value_layer, query_norm, key_norm;
};

// The following read parts of a sublayer whose width and dtype are known, for heads and sizes of the problem.
void read_norms(Call& call, Sublayer& sublayer, nanobind::handle before, nanobind::handle of_output,
                nanobind::handle after);
void read_feed_forward_layers(Call& call, FeedForwardSublayer& given, nanobind::handle up, nanobind::handle gate,
                              nanobind::handle down, const std::string& activation);
void read_attention_layers(Call& call, AttentionSublayer& given, const AttentionLayers& layers);

}  // namespace regard

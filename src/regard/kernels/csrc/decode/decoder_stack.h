// All layers of a decoder for few tokens, as in a decoding step: their sublayers (sublayer_kernels.h) one after the other,
// without Python between them.
//
//     a_l = attention_l(h_l-1),    h_l = feed_forward_l(a_l)        h_0 the embedded tokens (batch, length, width)
//     h_L = norm(feed_forward_L(a_L))                               the last one; the norm may be absent
//     logits = h_L W^T + b                                          if they are asked for
#pragma once

#include <vector>

#include "decode/sublayer_kernels.h"

namespace regard {

// Of the problem of attention, what belongs to the layer is set: heads, sizes, scale, softcap and sinks.
struct DecoderLayer {
    AttentionSublayer attention;
    FeedForwardSublayer feed_forward;
    Problem problem;
};

// Layers with the keys, values, masks and rotations of a step. The tokens of the first layer are those of the step; the
// output of each feed-forward sublayer is set, and what lies between sublayers is not. Changes the layers. `output` may be
// absent; its output is set, its tokens are not.
void decoder_stack(std::vector<DecoderLayer>& layers, const NormLayer& norm, const ProjectionArguments& output,
                   int threads);

}  // namespace regard

// Sublayers of a decoder for few tokens, as in a decoding step: what one instruction set offers for what lies between
// their linear layers, compiled with those (projection_kernels.cpp). The equations are in sublayer.h, the drivers in
// sublayer.cpp.
#pragma once

#include "drivers.h"
#include "linear/projection_kernels.h"
#include "tiles/problem.h"

namespace regard {

enum class Activation : int32_t { identity, relu, gelu, gelu_tanh, silu, sigmoid, relu_squared, quick_gelu };

// A norm of tokens, absent without a weight. weight and bias (width) are in the dtype of the tokens.
struct NormLayer {
    Array weight, bias;  // bias may be absent
    float epsilon = 0;
    float offset = 0;             // is added to the weight
    bool subtracts_mean = false;  // a layer norm, else a root mean square norm

    explicit operator bool() const { return static_cast<bool>(weight); }
};

// Rotates the first `rotated` elements of a head by the factors of its token: see positions/rotary.py.
struct RotationFactors {
    Array cosine, sine;  // (new tokens, or all rows, rotated) in the dtype of the tokens; absent: no rotation
    int64_t rotated = 0;
    bool pairs = false;  // the other element of a pair is its neighbour, else the one `rotated / 2` away
};

// tokens (rows, width) -> output (rows, width), contiguous, of one dtype, float32 or bfloat16.
struct Sublayer {
    Array tokens, output;
    int64_t rows = 0, width = 0;
    NormLayer before, of_output, after;
};

// `tokens` and `output` of linear layers are not set in these.
struct FeedForwardSublayer : Sublayer {
    ProjectionArguments up, gate, down;  // gate may be absent
    Activation activation = Activation::identity;
};

// Without the layers of keys and values, all keys of the problem are known; else those of the new tokens are its last.
// query and mixed (batch, heads, new tokens, head_dim or value_dim), stored as (batch, new tokens, heads, ..), are
// memory for the queries and for the results of attention. With pages, keys and values are there, those of the new tokens
// at the end of each sequence, and the problem has none.
struct AttentionSublayer : Sublayer {
    ProjectionArguments query_layer, key_layer, value_layer, output_layer;
    NormLayer query_norm, key_norm;  // of each head
    RotationFactors rotation;
    Array query, mixed;
    Pages pages;  // may be absent
};

// Normalizes rows of numbers, contiguous, in place.
void normalize_rows(const NormLayer& norm, const Array& tokens, int64_t rows, int64_t width);
void feed_forward_sublayer(const FeedForwardSublayer& sublayer, int threads);
void attention_sublayer(const AttentionSublayer& sublayer, const Problem& problem, int threads);

// Activations of an array, and gradients times their derivative, for arrays of any size. Without a gradient it is the
// activation that is computed.
struct ActivationArguments {
    Array tokens, gradient, output;  // contiguous, of one dtype, float32 or bfloat16; the gradient may be absent
    int64_t count = 0;
    Activation activation = Activation::identity;
};

void activate(const ActivationArguments& arguments, int threads);

// Each function is of one row or block of numbers; `to` may be `from`.
struct SublayerKernels {
    void (*normalize)(const NormLayer& norm, const void* from, void* to, int64_t width);
    // activation(from), times `factors` unless they are null
    void (*activate)(Activation activation, const void* from, const void* factors, void* to, int64_t count);
    // gradient times the derivative of an activation at `from`: of gelu, gelu_tanh, quick_gelu or silu
    void (*differentiate)(Activation activation, const void* from, const void* gradient, void* to, int64_t count);
    void (*add)(const void* a, const void* b, void* to, int64_t count);
    // A head of a token, with the factors of the token.
    void (*rotate)(const RotationFactors& rotation, const void* cosine, const void* sine, void* head);
};

// The tables, by the dtype of the tokens.
namespace avx512_bf16 { const SublayerKernels& sublayer_kernels(Dtype tokens); }
namespace avx512 { const SublayerKernels& sublayer_kernels(Dtype tokens); }
namespace avx2 { const SublayerKernels& sublayer_kernels(Dtype tokens); }
namespace portable { const SublayerKernels& sublayer_kernels(Dtype tokens); }

}  // namespace regard

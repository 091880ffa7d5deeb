// What lies between the linear layers of a decoder's sublayers, for few tokens:
//
//     layer norm     y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * w + b     Ba et al. 2016, equation 4
//     RMS norm       y = x / sqrt(mean(x^2) + epsilon) * (offset + w)                      Zhang and Sennrich 2019
//     activations    gelu.h, and sigmoid, relu and its square
//
// Each function computes in float32 and rounds where layers do that are called one after the other: its result, and the
// two products of a rotation. Sums are one for each lane, then by halves, then the numbers behind the last whole vector:
// so the bits of a row depend on the row alone.
#pragma once

#include <math.h>

#include <type_traits>

#include "decode/sublayer_kernels.h"
#include "linear/gelu.h"
#include "tiles/simd.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class T>
struct SublayerFunctions {
    static constexpr int64_t step = lanes<float>;

    static REGARD_INLINE float round(float x) {
        T narrowed;
        narrow(x, &narrowed);
        return widen(narrowed);
    }
    static REGARD_INLINE vfloat round(vfloat x) {
        T narrowed[step];
        store_rounded(narrowed, x);
        return load_wide(narrowed);
    }

    // The sum of (x - center)^power over a row.
    template <int power>
    static REGARD_INLINE float sum(const T* from, int64_t width, float center) {
        vfloat total = {};
        int64_t k = 0;
        for (; k + step <= width; k += step) {
            const vfloat x = load_wide(from + k) - broadcast(center);
            total = power == 1 ? total + x : multiply_add(x, x, total);
        }
        float rest = 0;
        for (; k < width; ++k) {
            const float x = widen(from[k]) - center;
            rest += power == 1 ? x : x * x;
        }
        return sum_lanes<float>(total) + rest;
    }

    static void normalize(const NormLayer& norm, const void* given, void* result, int64_t width) {
        const T* from = (const T*)given;
        const T* weight = (const T*)norm.weight.data;
        const T* bias = norm.bias ? (const T*)norm.bias.data : nullptr;
        T* to = (T*)result;
        const float mean = norm.subtracts_mean ? sum<1>(from, width, 0) / (float)width : 0;
        const float factor = 1 / sqrtf(sum<2>(from, width, mean) / (float)width + norm.epsilon);
        int64_t k = 0;
        for (; k + step <= width; k += step) {
            const vfloat x = (load_wide(from + k) - broadcast(mean)) * broadcast(factor);
            const vfloat gain = load_wide(weight + k) + broadcast(norm.offset);
            store_rounded(to + k, bias ? multiply_add(x, gain, load_wide(bias + k)) : x * gain);
        }
        for (; k < width; ++k) {
            const float x = (widen(from[k]) - mean) * factor;
            narrow(x * (widen(weight[k]) + norm.offset) + (bias ? widen(bias[k]) : 0), to + k);
        }
    }

    // Calls body with the activation as a type, so that loops contain one alone.
    template <class Body>
    static REGARD_INLINE void with_activation(Activation activation, Body body) {
        switch (activation) {
            case Activation::relu: return body(std::integral_constant<Activation, Activation::relu>());
            case Activation::relu_squared: return body(std::integral_constant<Activation, Activation::relu_squared>());
            case Activation::silu: return body(std::integral_constant<Activation, Activation::silu>());
            case Activation::sigmoid: return body(std::integral_constant<Activation, Activation::sigmoid>());
            case Activation::gelu_tanh: return body(std::integral_constant<Activation, Activation::gelu_tanh>());
            case Activation::quick_gelu: return body(std::integral_constant<Activation, Activation::quick_gelu>());
            case Activation::gelu: return body(std::integral_constant<Activation, Activation::gelu>());
            case Activation::identity: return body(std::integral_constant<Activation, Activation::identity>());
        }
    }

    template <Activation activation>
    static REGARD_INLINE vfloat apply(vfloat x) {
        if constexpr (activation == Activation::relu) return maximum(vfloat{}, x);
        if constexpr (activation == Activation::relu_squared) {
            const vfloat positive = round(maximum(vfloat{}, x));
            return positive * positive;
        }
        if constexpr (activation == Activation::silu) return Gelu::silu(x);
        if constexpr (activation == Activation::sigmoid) return Gelu::sigmoid(x);
        if constexpr (activation == Activation::gelu_tanh) return Gelu::gelu_tanh(x);
        if constexpr (activation == Activation::quick_gelu) return Gelu::quick_gelu(x);
        if constexpr (activation == Activation::gelu) return Gelu::gelu(x);
        return x;
    }

    static void activate(Activation activation, const void* given, const void* others, void* result, int64_t count) {
        const T* from = (const T*)given;
        const T* factors = (const T*)others;
        T* to = (T*)result;
        with_activation(activation, [=](auto kind) {
            int64_t k = 0;
            for (; k + step <= count; k += step) {
                const vfloat active = apply<kind.value>(load_wide(from + k));
                store_rounded(to + k, factors ? round(active) * load_wide(factors + k) : active);
            }
            if (k == count) return;
            T last[step] = {};
            memcpy((void*)last, from + k, sizeof(T) * (size_t)(count - k));
            const vfloat active = round(apply<kind.value>(load_wide(last)));
            Lanes<float> each(active);
            for (int i = 0; k < count; ++k, ++i)
                narrow(factors ? each.x[i] * widen(factors[k]) : each.x[i], to + k);
        });
    }

    template <Activation activation>
    static REGARD_INLINE vfloat derivative(vfloat x) {
        if constexpr (activation == Activation::silu) return Gelu::silu_derivative(x);
        if constexpr (activation == Activation::gelu_tanh) return Gelu::gelu_tanh_derivative(x);
        if constexpr (activation == Activation::quick_gelu) return Gelu::quick_gelu_derivative(x);
        if constexpr (activation == Activation::gelu) return Gelu::gelu_derivative(x);
        return broadcast(1.0f);  // callers ask for no other
    }

    static void differentiate(Activation activation, const void* given, const void* gradient, void* result,
                              int64_t count) {
        const T* from = (const T*)given;
        const T* by = (const T*)gradient;
        T* to = (T*)result;
        with_activation(activation, [=](auto kind) {
            int64_t k = 0;
            for (; k + step <= count; k += step)
                store_rounded(to + k, load_wide(by + k) * derivative<kind.value>(load_wide(from + k)));
            if (k == count) return;
            T last[step] = {};
            memcpy((void*)last, from + k, sizeof(T) * (size_t)(count - k));
            const Lanes<float> each(derivative<kind.value>(load_wide(last)));
            for (int i = 0; k < count; ++k, ++i) narrow(widen(by[k]) * each.x[i], to + k);
        });
    }

    static void add(const void* one, const void* other, void* result, int64_t count) {
        const T* a = (const T*)one;
        const T* b = (const T*)other;
        T* to = (T*)result;
        int64_t k = 0;
        for (; k + step <= count; k += step) store_rounded(to + k, load_wide(a + k) + load_wide(b + k));
        for (; k < count; ++k) narrow(widen(a[k]) + widen(b[k]), to + k);
    }

    static void rotate(const RotationFactors& rotation, const void* cosines, const void* sines, void* tokens) {
        const T* cosine = (const T*)cosines;
        const T* sine = (const T*)sines;
        T* head = (T*)tokens;
        const int64_t half = rotation.rotated / 2;
        if (rotation.pairs) {
            for (int64_t i = 0; i < rotation.rotated; i += 2) turn(cosine, sine, head, i, i + 1);
            return;
        }
        int64_t i = 0;
        for (; i + step <= half; i += step) {
            const vfloat x = load_wide(head + i), y = load_wide(head + half + i);
            store_rounded(head + i, round(x * load_wide(cosine + i)) + round(y * load_wide(sine + i)));
            store_rounded(head + half + i,
                          round(y * load_wide(cosine + half + i)) + round(x * load_wide(sine + half + i)));
        }
        for (; i < half; ++i) turn(cosine, sine, head, i, half + i);
    }

    // Rotates the pair of elements i and j.
    static REGARD_INLINE void turn(const T* cosine, const T* sine, T* head, int64_t i, int64_t j) {
        const float x = widen(head[i]), y = widen(head[j]);
        narrow(round(x * widen(cosine[i])) + round(y * widen(sine[i])), head + i);
        narrow(round(y * widen(cosine[j])) + round(x * widen(sine[j])), head + j);
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard

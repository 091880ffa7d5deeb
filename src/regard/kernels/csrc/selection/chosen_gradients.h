// Backward pass of attention to chosen blocks: see chosen_blocks_backward.cpp.
#pragma once

#include "drivers.h"

namespace regard {

// Gradients of chosen_blocks_forward, whose output and normalizer are inputs here.
struct ChosenGradients {
    Array output;             // an input
    Array query, key, value;  // written
};
void chosen_blocks_backward(const ChosenArguments& given, const ChosenGradients& gradients, int threads);

}  // namespace regard

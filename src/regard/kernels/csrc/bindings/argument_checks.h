// Checks of single arguments. Each raises ValueError or TypeError, with the name of the argument.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "bindings/array.h"

namespace regard {

std::string shape_text(const int64_t* shape, int dimensions);

[[noreturn]] void throw_value_error(const std::string& what);
void require(bool holds, const char* what);
nanobind::tuple take_tuple(nanobind::handle object, const char* name, size_t size);

void check_dtype(const Array& array, const char* name, Dtype dtype);
void check_floating(const Array& array, const char* name);
void check_shape(const Array& array, const char* name, std::initializer_list<int64_t> shape);
// Raises if the product, times 64 for the padding that a kernel may add, overflows 64 bits.
void check_countable(std::initializer_list<int64_t> sizes);

bool is_empty(const Array& array);
bool is_contiguous(const Array& array);

}  // namespace regard

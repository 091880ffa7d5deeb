// Checks of single arguments, and a call of an operation, which reads arrays from Python objects. What the operations of
// several families read is in attention_arguments.h and layer_arguments.h, and the rest with the bindings of its family.
//
// The Python side has already checked the arguments of users. These checks catch errors in regard itself that would
// read or write outside of the arrays: in sizes, dtypes, and the contents of index arrays. Every function here raises
// ValueError or TypeError, with the name of the argument, before any memory is allocated for results.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "bindings/array.h"
#include "runtime/floating_point.h"
#include "tiles/problem.h"

namespace regard {

inline constexpr int64_t max_head_dim = 640;
inline constexpr int64_t max_length = int64_t{1} << 36;  // queries or keys: their tiles are counted in 32 bits

std::string shape_text(const int64_t* shape, int dimensions);

[[noreturn]] void throw_value_error(const std::string& what);
void require(bool holds, const char* what);
// Raises if `array` is present and `needed` is absent.
void require_pair(const Array& array, const char* name, const Array& needed, const char* name_of_needed);
nanobind::tuple take_tuple(nanobind::handle object, const char* name, size_t size);

void check_dtype(const Array& array, const char* name, Dtype dtype);
void check_floating(const Array& array, const char* name);
void check_shape(const Array& array, const char* name, std::initializer_list<int64_t> shape);
// Raises if the product, times 64 for the padding that a kernel may add, overflows 64 bits.
void check_countable(std::initializer_list<int64_t> sizes);

bool is_empty(const Array& array);

// Words of bits are arrays of int64.
template <class Number>
constexpr Dtype dtype_of = sizeof(Number) == 8 ? Dtype::int64 : std::is_integral_v<Number> ? Dtype::int32 : Dtype::float32;

// Keyword arguments that operations share.
struct Options {
    std::optional<int64_t> low, high;
    nanobind::handle start, stop, row_start, key_tile, bitmap, bitmaps, dense;
    double scale = 1;
    nanobind::handle bias, table;
    int64_t table_lowest = 0;
    double dropout = 0;
    int64_t seed = 0;
};
inline const Options default_options;

// One call: its options, the problem, and the arrays that it borrows for its duration.
//
// Index arrays are copied before they are checked, since another thread may write to the caller's array while the
// kernel reads it. The bits of masks and top_keys are not copied, since none of their values leads outside of the
// arrays: top_keys are compared with a range when they are read.
class Call {
public:
    using Shape = std::initializer_list<int64_t>;
    enum class None { reject, accept };  // accepted, None becomes an absent array

    // The options outlive the call.
    explicit Call(int threads, const Options& options = default_options);

    // Sets the dropout of the problem.
    void set_dropout(double dropout, int64_t seed);

    // Reads an array of any shape and dtype.
    Array take(nanobind::handle object, const char* name, None none = None::reject);
    // Reads an array of the given shape, whose leading sizes of 1 may be left out, and dtype.
    Array read(nanobind::handle object, const char* name, Shape shape, Dtype dtype, None none = None::reject);
    // Reads an array as `read` does, and copies it to contiguous memory.
    Array read_copy(nanobind::handle object, const char* name, Shape shape, Dtype dtype);
    // Copies an int64 array of one dimension, whose elements must be in 0 .. stop - 1.
    Array read_indices(nanobind::handle object, const char* name, int64_t stop, None none = None::reject);
    // Copies int32 indices, which must be in -1 .. stop - 1.
    const int32_t* copy_indices(nanobind::handle object, const char* name, Shape shape, int64_t stop);
    // Reads an array as `read` does, to be written: its elements must not overlap.
    Array write(nanobind::handle object, const char* name, Shape shape, Dtype dtype, None none = None::reject);
    // Reads the gradient of an argument, to be written: of its shape. An absent argument has none.
    Array write_gradient(nanobind::handle object, const char* name, const Array& of, Dtype dtype, None none);
    Array write_gradient(nanobind::handle object, const char* name, const Array& of) {
        return write_gradient(object, name, of, of.dtype, None::reject);
    }
    // As `read` and `write`, for arrays that must be contiguous.
    Array read_contiguous(nanobind::handle object, const char* name, Shape shape, Dtype dtype, None none = None::reject);
    Array write_contiguous(nanobind::handle object, const char* name, Shape shape, Dtype dtype, None none = None::reject);
    // The numbers of an array that `read_copy` copies, or `write_contiguous` reads, in the dtype of their type.
    template <class Number>
    Number* copy_numbers(nanobind::handle object, const char* name, Shape shape) {
        return static_cast<Number*>(read_copy(object, name, shape, dtype_of<Number>).data);
    }
    template <class Number>
    Number* write_numbers(nanobind::handle object, const char* name, Shape shape) {
        return static_cast<Number*>(write_contiguous(object, name, shape, dtype_of<Number>).data);
    }
    // Reads an array that broadcasts to (batch, heads, queries, columns) of the problem, or None. Its strides of axes of
    // size 1 become 0.
    Array broadcast(nanobind::handle object, const char* name, int64_t columns);
    // Copies an array to contiguous memory.
    Array copy(const Array& array) { return borrowed_.copy(array, BorrowedArrays::Broadcast::expand); }

    Dtype accumulation_dtype() const { return dtype_of_sums(problem.query.dtype); }
    Dtype dtype() const { return problem.query.dtype; }

    const Options& options;
    const int threads;
    Problem problem;
    std::vector<char> table_memory;  // of the table of the problem

private:
    const DefaultFloatingPoint arithmetic_;  // for the duration of the call
    BorrowedArrays borrowed_;
};

inline constexpr auto accept = Call::None::accept;

}  // namespace regard

#include "bindings/array.h"

#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <new>
#include <string>
#include <utility>

namespace nb = nanobind;

namespace regard {
namespace {

// ------------------------------------------------------------------ the parts of DLPack's layout that are read here

struct DlpackVersion {
    uint32_t major, minor;
};
struct DlpackDevice {
    int32_t type, index;
};
struct DlpackDtype {
    uint8_t code, bits;
    uint16_t lanes;
};
struct DlpackTensor {
    void* data;
    DlpackDevice device;
    int32_t dimensions;
    DlpackDtype dtype;
    int64_t* shape;
    int64_t* strides;  // in elements; null where the array is contiguous
    uint64_t byte_offset;
};
struct DlpackManaged {  // capsule "dltensor"
    DlpackTensor tensor;
    void* context;
    void (*deleter)(DlpackManaged*);
};
struct DlpackVersioned {  // capsule "dltensor_versioned"
    DlpackVersion version;
    void* context;
    void (*deleter)(DlpackVersioned*);
    uint64_t flags;
    DlpackTensor tensor;
};
struct DlpackExchange {  // capsule "dlpack_exchange_api" of a type
    DlpackVersion version;
    DlpackExchange* previous;
    void* allocate;
    void* export_managed;
    void* import_managed;
    int (*borrow)(void* object, DlpackTensor* tensor);  // may be null
    void* current_stream;
};

constexpr uint32_t major_version = 1;
constexpr int32_t device_cpu = 1;
constexpr uint64_t flag_read_only = 1, flag_copied = 2;
enum Code : uint8_t { code_int = 0, code_uint = 1, code_float = 2, code_bfloat = 4, code_bool = 6 };

// ------------------------------------------------------------------------------------- from DLPack to Array

[[noreturn]] void throw_value_error(const char* name, const std::string& what) {
    throw nb::value_error((std::string(name) + ": " + what).c_str());
}

[[noreturn]] void throw_type_error(const char* name, const std::string& what) {
    throw nb::type_error((std::string(name) + ": " + what).c_str());
}

Dtype to_dtype(DlpackDtype dtype) {
    if (dtype.lanes != 1) return Dtype::absent;
    switch (dtype.code * 256 + dtype.bits) {
        case code_float * 256 + 32: return Dtype::float32;
        case code_float * 256 + 64: return Dtype::float64;
        case code_float * 256 + 16: return Dtype::float16;
        case code_bfloat * 256 + 16: return Dtype::bfloat16;
        case code_bool * 256 + 8: return Dtype::boolean;
        case code_int * 256 + 8: return Dtype::int8;
        case code_uint * 256 + 8: return Dtype::uint8;
        case code_int * 256 + 32: return Dtype::int32;
        case code_int * 256 + 64: return Dtype::int64;
        default: return Dtype::absent;
    }
}

// Raises if the distance in bytes from the lowest to the highest element exceeds the range of pointers.
void check_extent(const Array& array, const char* name) {
    int64_t extent = static_cast<int64_t>(dtype_size(array.dtype));
    for (int axis = 0; axis < 4; ++axis) {
        if (array.shape[axis] == 0) return;
        int64_t reach = 0;
        const int64_t bytes = static_cast<int64_t>(dtype_size(array.dtype));
        const int64_t stride = array.stride[axis];
        const bool fits = stride != INT64_MIN && !__builtin_mul_overflow(stride < 0 ? -stride : stride, bytes, &reach) &&
                          !__builtin_mul_overflow(reach, array.shape[axis] - 1, &reach) &&
                          !__builtin_add_overflow(extent, reach, &extent);
        if (!fits) throw_value_error(name, "its sizes and strides exceed what memory can hold");
    }
}

Array to_array(const DlpackTensor& tensor, const char* name) {
    if (tensor.device.type != device_cpu) throw_value_error(name, "expected an array in the CPU's memory");
    const int dimensions = tensor.dimensions;
    if (dimensions < 0 || dimensions > 4) {
        throw_value_error(name, "expected up to 4 dimensions, got " + std::to_string(dimensions));
    }
    Array array;
    array.dtype = to_dtype(tensor.dtype);
    if (array.dtype == Dtype::absent) {
        throw_type_error(name, "expected float32, float64, bfloat16, float16, bool, int32 or int64");
    }
    int64_t contiguous = 1;
    bool empty = false;
    for (int axis = dimensions - 1; axis >= 0; --axis) {
        const int64_t size = tensor.shape[axis];
        if (size < 0) throw_value_error(name, "a size is negative");
        empty = empty || size == 0;
        array.shape[4 - dimensions + axis] = size;
        array.stride[4 - dimensions + axis] = tensor.strides != nullptr ? tensor.strides[axis] : contiguous;
        if (tensor.strides == nullptr && __builtin_mul_overflow(contiguous, size, &contiguous) && !empty) {
            throw_value_error(name, "its sizes exceed what memory can hold");
        }
    }
    if (empty) return array;
    if (tensor.data == nullptr) throw_value_error(name, "it has no memory");
    array.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
    check_extent(array, name);
    return array;
}

bool is_same(const Array& one, const Array& other) {
    return one.data == other.data && one.dtype == other.dtype && std::equal(one.shape, one.shape + 4, other.shape) &&
           std::equal(one.stride, one.stride + 4, other.stride);
}

// Whether several elements follow each other in memory without gaps.
bool is_packed(const Array& array) {
    int64_t stride = 1;
    for (int axis = 3; axis >= 0; --axis) {
        if (array.stride[axis] != stride && array.shape[axis] != 1) return false;
        stride *= array.shape[axis];
    }
    return stride > 1;
}

bool is_aligned(const Array& array) { return reinterpret_cast<uintptr_t>(array.data) % dtype_size(array.dtype) == 0; }

// Whether a tensor has elements but no memory, as torch's zero tensors (gradients that were not computed).
bool has_no_memory(const DlpackTensor& tensor) {
    if (tensor.data != nullptr) return false;
    for (int axis = 0; axis < tensor.dimensions; ++axis) {
        if (tensor.shape[axis] == 0) return false;
    }
    return true;
}

void check_writable(uint64_t flags, const char* name) {
    if (flags & flag_read_only) throw_value_error(name, "it is to be written and is read-only");
    if (flags & flag_copied) throw_value_error(name, "it is to be written and was given as a copy");
}

// ------------------------------------------------------------------------------ fast access: exchange table of a type

// The exchange table of a type, or null. Raises nothing.
const DlpackExchange* find_exchange_table(PyObject* type) {
    nb::object capsule = nb::steal(PyObject_GetAttrString(type, "__dlpack_c_exchange_api__"));
    const char* const capsule_name = "dlpack_exchange_api";
    if (!capsule.is_valid() || !PyCapsule_IsValid(capsule.ptr(), capsule_name)) {
        PyErr_Clear();
        return nullptr;
    }
    auto* table = static_cast<const DlpackExchange*>(PyCapsule_GetPointer(capsule.ptr(), capsule_name));
    while (table != nullptr && table->version.major != major_version) table = table->previous;
    return table != nullptr && table->borrow != nullptr ? table : nullptr;
}

// A type's exchange table, or null, and its method is_neg, if it has one.
struct ArrayType {
    nb::object type;
    const DlpackExchange* exchange = nullptr;
    nb::object is_neg;
};

ArrayType make_array_type(PyObject* type) {
    ArrayType found{nb::borrow(type), find_exchange_table(type), nb::steal(PyObject_GetAttrString(type, "is_neg"))};
    if (!found.is_neg.is_valid()) PyErr_Clear();
    return found;
}

// Caches the first few types. Each is held, so that no other type can get its address.
ArrayType array_type(PyObject* type) {
    constexpr int most = 8;
    static ArrayType* const seen = new ArrayType[most];  // never destroyed: the interpreter ends first
    static int count = 0;
    for (int index = 0; index < count; ++index) {
        if (seen[index].type.ptr() == type) return seen[index];
    }
    const ArrayType found = make_array_type(type);
    if (count < most) seen[count++] = found;
    return found;
}

void borrow(const DlpackExchange& exchange, nb::handle object, const char* name, DlpackTensor* tensor) {
    if (exchange.borrow(object.ptr(), tensor) == 0) return;
    nb::python_error reason;
    nb::raise_from(reason, PyExc_ValueError, "%s: its memory cannot be reached", name);
}

// Whether an array to read may have torch's negative bit. Only views of complex tensors have it, whose imaginary part
// is floating. (Arrays to write are new tensors, without it.)
bool may_be_negative(const Array& array) {
    return array.dtype == Dtype::float32 || array.dtype == Dtype::float64 || array.dtype == Dtype::float16 ||
           array.dtype == Dtype::bfloat16;
}

// Whether the values are the negated contents of memory, as for the imaginary part of a conjugate tensor.
bool is_negative(const ArrayType& type, nb::handle object) {
    if (!type.is_neg.is_valid()) return false;
    PyObject* const arguments[] = {object.ptr()};
    const nb::object answer = nb::steal(PyObject_Vectorcall(type.is_neg.ptr(), arguments, 1, nullptr));
    if (!answer.is_valid()) throw nb::python_error();
    return answer.ptr() == Py_True;
}

// ---------------------------------------------------------------------------------- slow access: a __dlpack__ capsule

nb::object make_capsule(nb::handle object, const char* name) {
    if (!nb::hasattr(object, "__dlpack__")) {
        throw_type_error(name,
                         "expected an array with __dlpack__, got " + std::string(nb::type_name(object.type()).c_str()));
    }
    nb::object source = nb::borrow(object);
    // Older versions of torch do not export tensors that require grad.
    if (nb::hasattr(source, "requires_grad") && nb::cast<bool>(nb::bool_(source.attr("requires_grad")))) {
        source = source.attr("detach")();
    }
    try {
        return source.attr("__dlpack__")(nb::arg("max_version") = nb::make_tuple(major_version, 0));
    } catch (nb::python_error& error) {
        if (!error.matches(PyExc_TypeError)) throw;
    }
    return source.attr("__dlpack__")();  // before DLPack 1.0, without max_version
}

Array capsule_to_array(nb::handle capsule, const char* name, BorrowedArrays::Access use) {
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
        auto* managed = static_cast<DlpackVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
        if (managed->version.major != major_version) throw_value_error(name, "expected DLPack of version 1");
        if (use == BorrowedArrays::Access::write) check_writable(managed->flags, name);
        return to_array(managed->tensor, name);
    }
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
        return to_array(static_cast<DlpackManaged*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor, name);
    }
    throw_type_error(name, "its __dlpack__ gave no DLPack capsule");
}

}  // namespace

const char* dtype_name(Dtype dtype) {
    switch (dtype) {
        case Dtype::float32: return "float32";
        case Dtype::float64: return "float64";
        case Dtype::bfloat16: return "bfloat16";
        case Dtype::float16: return "float16";
        case Dtype::boolean: return "bool";
        case Dtype::int8: return "int8";
        case Dtype::uint8: return "uint8";
        case Dtype::int32: return "int32";
        case Dtype::int64: return "int64";
        case Dtype::absent: break;
    }
    return "nothing";
}

Array BorrowedArrays::take(nb::handle object, const char* name, Access use) {
    if (object.is_none()) return {};
    const ArrayType type = array_type(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
    Array array;
    if (type.exchange != nullptr) {
        DlpackTensor tensor;
        borrow(*type.exchange, object, name, &tensor);
        if (use == Access::read && has_no_memory(tensor)) {
            held_.push_back(object.attr("detach")().attr("clone")());
            borrow(*type.exchange, held_.back(), name, &tensor);
        }
        array = to_array(tensor, name);  // sizes and strides are copied: the tensor owns them
        // Calling is_neg takes as long as borrowing, so it is called only if the result can be true.
        if (use == Access::read && may_be_negative(array) && is_negative(type, object)) {
            held_.push_back(object.attr("detach")().attr("resolve_neg")());
            borrow(*type.exchange, held_.back(), name, &tensor);
            array = to_array(tensor, name);
        }
    } else {
        if (use == Access::read && is_negative(type, object)) {
            held_.push_back(object.attr("detach")().attr("resolve_neg")());
            object = held_.back();
        }
        nb::object capsule = make_capsule(object, name);
        array = capsule_to_array(capsule, name, use);
        held_.push_back(std::move(capsule));
    }
    if (is_aligned(array)) return array;
    if (use == Access::write)
        throw_value_error(name, "it is to be written and its memory is not aligned to its elements");
    return copy(array, Broadcast::keep);
}

bool BorrowedArrays::is_still(nb::handle object, const Array& array) {
    const ArrayType type = array_type(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
    if (type.exchange == nullptr || !is_packed(array)) return is_same(take(object, "array"), array) && is_in_place();
    DlpackTensor tensor;
    borrow(*type.exchange, object, "array", &tensor);
    return is_same(to_array(tensor, "array"), array);
}

const char* BorrowedArrays::find_sizes(nb::handle object) {
    const ArrayType type = array_type(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
    if (type.exchange == nullptr) return nullptr;
    DlpackTensor tensor;
    borrow(*type.exchange, object, "array", &tensor);
    return reinterpret_cast<const char*>(tensor.shape);
}

Array BorrowedArrays::copy(const Array& array, Broadcast broadcast) {
    const size_t bytes = dtype_size(array.dtype);
    Array result = array;
    int64_t count[4], numbers = 1;
    for (int axis = 3; axis >= 0; --axis) {
        const bool kept = array.stride[axis] == 0 && broadcast == Broadcast::keep && array.shape[axis] > 0;
        count[axis] = kept ? 1 : array.shape[axis];
        result.stride[axis] = kept ? 0 : numbers;
        if (__builtin_mul_overflow(numbers, count[axis], &numbers)) throw std::bad_alloc();
    }
    if (numbers == 0) return result;
    copies_.push_back(Scratch(Scratch::bytes_of({numbers}, bytes)));
    result.data = copies_.back().as<char>();
    const char* from = static_cast<const char*>(array.data);
    char* to = static_cast<char*>(result.data);
    const auto place = [&](int64_t a, int64_t b, int64_t c, int64_t d) {
        return from + array.at(a, b, c, d) * static_cast<int64_t>(bytes);
    };
    for (int64_t a = 0; a < count[0]; ++a)
        for (int64_t b = 0; b < count[1]; ++b)
            for (int64_t c = 0; c < count[2]; ++c) {
                if (array.stride[3] == 1) {
                    const size_t row = bytes * static_cast<size_t>(count[3]);
                    memcpy(to, place(a, b, c, 0), row);
                    to += row;
                    continue;
                }
                for (int64_t d = 0; d < count[3]; ++d, to += bytes) memcpy(to, place(a, b, c, d), bytes);
            }
    return result;
}

}  // namespace regard

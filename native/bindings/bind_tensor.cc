#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/dlpack.h"

namespace nb = nanobind;

namespace hvd::bindings {
namespace {

nb::object interned(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }

// Of PyTorch from 2.10 on; null before.
const DlpackExchange* exchange_of(nb::handle type) {
  if (!nb::hasattr(type, "__dlpack_c_exchange_api__")) return nullptr;
  const nb::object capsule = type.attr("__dlpack_c_exchange_api__");
  if (PyCapsule_IsValid(capsule.ptr(), kDlpackExchangeName) == 0) return nullptr;
  const auto* exchange = static_cast<const DlpackExchange*>(PyCapsule_GetPointer(capsule.ptr(), kDlpackExchangeName));
  return exchange->major == 1 && exchange->minor >= 3 ? exchange : nullptr;
}

bool is_contiguous(const nb::dlpack::dltensor& tensor) {
  int64_t expected = 1;
  bool dense = true;
  for (int32_t d = tensor.ndim - 1; d >= 0; --d) {
    if (tensor.shape[d] == 0) return true;
    if (tensor.shape[d] != 1 && tensor.strides != nullptr && tensor.strides[d] != expected) dense = false;
    expected *= tensor.shape[d];
  }
  return dense;
}

// Views of PyTorch's tensors on the CPU. To ask for their attributes in Python takes as long as a third of a short
// operation, so those of PyTorch's own classes are asked by DLPack, and others from here.
class TensorViews {
 public:
  TensorViews(const nb::dict& dtypes, nb::object strided, std::vector<nb::object> types)
      : strided_(std::move(strided)), types_(std::move(types)) {
    for (const auto& [dtype, name] : dtypes) {
      const auto known = dtype_from_name(nb::cast<std::string>(name));
      if (!known) throw Error(ErrorKind::kUsage, "dtype " + nb::cast<std::string>(name) + " is not supported");
      dtypes_.emplace_back(nb::borrow(dtype), *known);
    }
    if (types_.empty()) throw Error(ErrorKind::kUsage, "there is no class of tensors");
    exchange_ = exchange_of(types_.front());
    is_neg_of_class_ = types_.front().attr("is_neg");
  }

  // Nothing for what this cannot view, among that what is no tensor.
  [[nodiscard]] std::optional<Buffer> view(nb::handle tensor) const {
    std::optional<Buffer> buffer = exchanged(tensor);
    if (!buffer) buffer = by_attributes(tensor);
    if (buffer && buffer->data == nullptr && buffer->bytes() > 0) {
      throw Error(ErrorKind::kUsage, "a tensor of " + to_string(buffer->shape) + " has no address");
    }
    return buffer;
  }

 private:
  [[nodiscard]] std::optional<Buffer> exchanged(nb::handle tensor) const {
    const auto is_type_of = [&](const nb::object& type) { return type.ptr() == tensor.type().ptr(); };
    if (exchange_ == nullptr || !std::any_of(types_.begin(), types_.end(), is_type_of)) return std::nullopt;
    nb::dlpack::dltensor found{};
    if (exchange_->view_object(tensor.ptr(), &found) != 0) {
      PyErr_Clear();  // such as a sparse one; what follows says what it is
      return std::nullopt;
    }
    const std::optional<DType> dtype = dtype_of(found.dtype);
    if (!dtype || found.device.device_type != kDlpackCpu || !is_contiguous(found)) return std::nullopt;
    PyObject* arguments[] = {tensor.ptr()};
    const nb::object negative = attribute_of(PyObject_Vectorcall(is_neg_of_class_.ptr(), arguments, 1, nullptr));
    if (negative.ptr() != Py_False) return std::nullopt;
    return Buffer{static_cast<std::byte*>(found.data) + found.byte_offset, *dtype,
                  Shape(found.shape, found.shape + found.ndim)};
  }

  [[nodiscard]] std::optional<Buffer> by_attributes(nb::handle tensor) const {
    const std::optional<DType> dtype = dtype_named(attribute(tensor, dtype_));
    const bool is_plain = dtype && attribute(tensor, is_cpu_).ptr() == Py_True &&
                          attribute(tensor, layout_).ptr() == strided_.ptr() &&
                          call(tensor, is_contiguous_).ptr() == Py_True && call(tensor, is_neg_).ptr() == Py_False;
    if (!is_plain) return std::nullopt;
    const nb::object address = call(tensor, data_ptr_);
    const nb::object shape = attribute(tensor, shape_);
    if (!address.is_valid() || !shape.is_valid()) return std::nullopt;
    Buffer buffer{static_cast<std::byte*>(PyLong_AsVoidPtr(address.ptr())), *dtype,
                  nb::cast<std::vector<int64_t>>(shape)};
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    return buffer;
  }

  // Invalid if there is no such attribute.
  static nb::object attribute_of(PyObject* found) {
    if (found != nullptr) return nb::steal(found);
    if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) throw nb::python_error();
    PyErr_Clear();
    return {};
  }

  static nb::object attribute(nb::handle tensor, const nb::object& name) {
    return attribute_of(PyObject_GetAttr(tensor.ptr(), name.ptr()));
  }

  static nb::object call(nb::handle tensor, const nb::object& name) {
    PyObject* arguments[] = {tensor.ptr()};
    return attribute_of(PyObject_VectorcallMethod(name.ptr(), arguments, 1, nullptr));
  }

  [[nodiscard]] std::optional<DType> dtype_named(const nb::object& dtype) const {
    for (const auto& [object, known] : dtypes_) {
      if (object.ptr() == dtype.ptr()) return known;
    }
    return std::nullopt;
  }

  nb::object strided_;
  std::vector<nb::object> types_;
  std::vector<std::pair<nb::object, DType>> dtypes_;
  const DlpackExchange* exchange_ = nullptr;
  nb::object is_neg_of_class_;
  nb::object dtype_ = interned("dtype"), is_cpu_ = interned("is_cpu"), layout_ = interned("layout"),
             is_contiguous_ = interned("is_contiguous"), is_neg_ = interned("is_neg"), data_ptr_ = interned("data_ptr"),
             shape_ = interned("shape");
};

}  // namespace

void bind_tensor(nb::module_& module) {
  nb::class_<TensorViews>(module, "TensorViews", "Views of PyTorch's tensors on the CPU.")
      .def(nb::init<nb::dict, nb::object, std::vector<nb::object>>(), nb::arg("dtypes"), nb::arg("strided"),
           nb::arg("types"),
           nb::sig("def __init__(self, dtypes: collections.abc.Mapping[typing.Any, str], strided: object, types: "
                   "list[type]) -> None"),
           "`dtypes` are the names of PyTorch's dtypes, `strided` is its layout of dense tensors, and `types` are its "
           "own classes of tensors, the base of all first.")
      .def("view", &TensorViews::view, nb::arg("tensor").none(),
           "View a dense, contiguous tensor on the CPU, which the caller keeps alive; return None for all else.");
}

}  // namespace hvd::bindings

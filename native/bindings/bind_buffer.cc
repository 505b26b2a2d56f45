#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "base/buffer.h"
#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/dlpack.h"
#include "engine/devices/devices.h"

namespace nb = nanobind;

namespace hvd::bindings {
namespace {

nb::tuple shape_tuple(const Shape& shape) {
  nb::list list;
  for (const int64_t extent : shape) list.append(extent);
  return nb::tuple(list);
}

DType dtype_from(const std::string& name) {
  const auto dtype = dtype_from_name(name);
  if (!dtype) throw Error(ErrorKind::kUsage, "dtype " + name + " is not supported");
  return *dtype;
}

void construct_buffer(Buffer* self, uintptr_t address, const std::string& dtype, const std::vector<int64_t>& shape,
                      int device, uintptr_t stream) {
  for (const int64_t extent : shape) {
    if (extent < 0) throw Error(ErrorKind::kUsage, "a shape holds the negative extent " + std::to_string(extent));
  }
  if (device < kCpuDevice) throw Error(ErrorKind::kUsage, "there is no device " + std::to_string(device));
  new (self)
      Buffer{reinterpret_cast<std::byte*>(address), dtype_from(dtype), shape, device, reinterpret_cast<void*>(stream)};
  if (address == 0 && self->bytes() > 0) {
    self->~Buffer();
    throw Error(ErrorKind::kUsage, "an array of " + to_string(shape) + " has no address");
  }
}

Buffer buffer_from_array(const nb::ndarray<nb::device::cpu, nb::c_contig>& array) {
  const Shape shape(array.shape_ptr(), array.shape_ptr() + array.ndim());
  const std::optional<DType> dtype = dtype_of(array.dtype());
  if (!dtype) {
    throw Error(ErrorKind::kUsage, "the array has a dtype that is not supported (complex, quantized or sub-byte)");
  }
  return {static_cast<std::byte*>(array.data()), *dtype, shape};
}

nb::dlpack::dtype dlpack_of(DType dtype) {
  using Code = nb::dlpack::dtype_code;
  const auto bits = static_cast<uint8_t>(size_of(dtype) * 8);
  Code code = Code::UInt;
  if (dtype == DType::kBool) code = Code::Bool;
  if (dtype == DType::kBFloat16) code = Code::Bfloat;
  if (dtype == DType::kFloat16 || dtype == DType::kFloat32 || dtype == DType::kFloat64) code = Code::Float;
  if (dtype == DType::kInt8 || dtype == DType::kInt16 || dtype == DType::kInt32 || dtype == DType::kInt64)
    code = Code::Int;
  return {static_cast<uint8_t>(code), bits, 1};
}

// A DLPack capsule that shares the memory and keeps it alive.
nb::object export_array(const OwnedArray& array) {
  if (array.gpu != nullptr) {
    throw Error(ErrorKind::kUsage, "a result on " + array.gpu->where() + " is not exported, but copied with copy_to()");
  }
  auto* owner = new std::shared_ptr<std::byte[]>(array.data);
  const nb::capsule capsule(owner,
                            [](void* pointer) noexcept { delete static_cast<std::shared_ptr<std::byte[]>*>(pointer); });
  std::vector<size_t> shape(array.shape.begin(), array.shape.end());
  return nb::cast(
      nb::ndarray<>(array.data.get(), shape.size(), shape.data(), capsule, nullptr, dlpack_of(array.dtype)));
}

// Another view of the same memory, which it keeps alive.
OwnedArray part_of(const OwnedArray& array, size_t offset, const std::string& dtype,
                   const std::vector<int64_t>& shape) {
  OwnedArray part = array;
  part.dtype = dtype_from(dtype);
  part.shape = shape;
  const bool negative = std::any_of(part.shape.begin(), part.shape.end(), [](int64_t extent) { return extent < 0; });
  const size_t total = array.bytes();
  const size_t bytes = negative ? 0 : part.bytes();
  if (negative || offset > total || bytes > total - offset || offset % size_of(part.dtype) != 0) {
    throw Error(ErrorKind::kUsage, "an array of " + std::to_string(total) + " bytes has no part of " + dtype + " " +
                                       to_string(part.shape) + " at byte " + std::to_string(offset));
  }
  part.data = std::shared_ptr<std::byte[]>(array.data, array.data.get() + offset);
  return part;
}

}  // namespace

std::optional<DType> dtype_of(nb::dlpack::dtype type) {
  struct Row {
    nb::dlpack::dtype_code code;
    uint8_t bits;
    DType dtype;
  };
  using Code = nb::dlpack::dtype_code;
  static constexpr Row kRows[] = {
      {Code::Bool, 8, DType::kBool},      {Code::UInt, 8, DType::kUInt8},       {Code::Int, 8, DType::kInt8},
      {Code::UInt, 16, DType::kUInt16},   {Code::Int, 16, DType::kInt16},       {Code::UInt, 32, DType::kUInt32},
      {Code::Int, 32, DType::kInt32},     {Code::UInt, 64, DType::kUInt64},     {Code::Int, 64, DType::kInt64},
      {Code::Float, 16, DType::kFloat16}, {Code::Bfloat, 16, DType::kBFloat16}, {Code::Float, 32, DType::kFloat32},
      {Code::Float, 64, DType::kFloat64}};
  for (const Row& row : kRows) {
    if (static_cast<uint8_t>(row.code) == type.code && row.bits == type.bits && type.lanes == 1) return row.dtype;
  }
  return std::nullopt;
}

void bind_buffer(nb::module_& module) {
  const nb::sig shape_signature("def shape(self) -> tuple[int, ...]");
  nb::class_<Buffer>(
      module, "Buffer",
      "A view of a contiguous array on the CPU (device -1) or a GPU, where `stream` is the driver's handle; "
      "it does not keep the memory alive.")
      .def("__init__", &construct_buffer, nb::arg("address"), nb::arg("dtype"), nb::arg("shape"),
           nb::arg("device") = kCpuDevice, nb::arg("stream") = 0)
      .def_static("from_array", &buffer_from_array, nb::arg("array").noconvert(),
                  nb::sig("def from_array(array: object) -> Buffer"),
                  "View an object with `__dlpack__` or the buffer protocol (CPU, C-contiguous).")
      .def_prop_ro("address", [](const Buffer& self) { return reinterpret_cast<uintptr_t>(self.data); })
      .def_prop_ro("dtype", [](const Buffer& self) { return std::string(name_of(self.dtype)); })
      .def_prop_ro(
          "shape", [](const Buffer& self) { return shape_tuple(self.shape); }, shape_signature)
      .def_prop_ro("num_bytes", &Buffer::bytes)
      .def_prop_ro("device", [](const Buffer& self) { return self.device; })
      .def_prop_ro("stream", [](const Buffer& self) { return reinterpret_cast<uintptr_t>(self.stream); });
  nb::class_<OwnedArray>(module, "NativeArray", "Memory that the engine allocated for a result.")
      .def(
          "__dlpack__", [](const OwnedArray& self, const nb::kwargs&) { return export_array(self); },
          nb::sig("def __dlpack__(self, **options: object) -> object"),
          "Export the array without a copy; on the CPU only, as frameworks do not know the stream of the memory.")
      .def("__dlpack_device__",
           [](const OwnedArray& self) {
             return self.gpu == nullptr ? std::pair(kDlpackCpu, 0) : std::pair(kDlpackCuda, self.device());
           })
      .def("copy_to", &copy_to, nb::arg("buffer"),
           "Start a copy into memory of the same GPU, in the order of the buffer's stream. The array may go away at "
           "once; Handle.order() is not needed before.")
      .def_prop_ro("device", &OwnedArray::device)
      .def("part", &part_of, nb::arg("offset"), nb::arg("dtype"), nb::arg("shape"),
           "Return another array in the same memory, which it keeps alive; `offset` is in bytes.")
      .def_prop_ro("dtype", [](const OwnedArray& self) { return std::string(name_of(self.dtype)); })
      .def_prop_ro(
          "shape", [](const OwnedArray& self) { return shape_tuple(self.shape); }, shape_signature)
      .def_prop_ro("address", [](const OwnedArray& self) { return reinterpret_cast<uintptr_t>(self.data.get()); });
  module.def(
      "private_array", [](size_t num_bytes) { return make_array(DType::kUInt8, {static_cast<int64_t>(num_bytes)}); },
      nb::arg("num_bytes"), "Return an array of bytes in ordinary memory, with any values.");
}

}  // namespace hvd::bindings

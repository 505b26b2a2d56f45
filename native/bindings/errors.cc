// Maps the native error tree on the classes of horovod.errors: the one place that does.
#include <nanobind/nanobind.h>  // first, as it brings Python.h, which sets what headers of the C library show

#include <string_view>

#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/interpreter_lock.h"

namespace nb = nanobind;

namespace hvd::bindings {
namespace {

const char* class_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kUsage:
      return "UsageError";
    case ErrorKind::kDuplicateName:
      return "DuplicateNameError";
    case ErrorKind::kUnsupported:
      return "UnsupportedError";
    case ErrorKind::kMismatch:
      return "MismatchError";
    case ErrorKind::kPeerLost:
      return "PeerLostError";
    case ErrorKind::kShutDown:
      return "ShutDownError";
    case ErrorKind::kStalled:
      return "StalledError";
    case ErrorKind::kInternal:
      return "HorovodInternalError";
  }
  return "HorovodInternalError";
}

}  // namespace

void register_errors() {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      StaysIfUnwound stays;
      const nb::object module = nb::steal(PyImport_ImportModule("horovod.errors"));
      stays.end();
      if (!module.is_valid()) return;  // that error stands
      const nb::object type = module.attr(class_of(error.kind()));
      // Names and texts of peers may stand in it, which need not be UTF-8.
      const std::string_view text = error.what();
      const nb::object message =
          nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
      if (message.is_valid()) PyErr_SetObject(type.ptr(), message.ptr());
    }
  });
}

}  // namespace hvd::bindings

#include "bindings/submit_request.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>

#include "bindings/kept_objects.h"
#include "bindings/keywords.h"

namespace nb = nanobind;

namespace hvd::bindings {
namespace {

// The name of the user's file may be of any bytes.
std::string call_site_from(nb::handle call_site) {
  if (PyUnicode_Check(call_site.ptr())) {  // kept in the string from the first time on
    Py_ssize_t size = 0;
    if (const char* text = PyUnicode_AsUTF8AndSize(call_site.ptr(), &size)) return {text, static_cast<size_t>(size)};
    PyErr_Clear();
  }
  const nb::object bytes = nb::steal(PyUnicode_AsEncodedString(call_site.ptr(), "utf-8", "surrogateescape"));
  if (bytes.is_valid()) return {PyBytes_AsString(bytes.ptr()), static_cast<size_t>(PyBytes_Size(bytes.ptr()))};
  PyErr_Clear();
  return {};
}

ReduceOp reduce_op_from(int number) {
  if (number < 0 || number > static_cast<int>(ReduceOp::kProduct)) {
    throw Error(ErrorKind::kUsage, "unknown reduce operation " + std::to_string(number));
  }
  return static_cast<ReduceOp>(number);
}

using Field = Keyword<SubmitRequest>;

// Those that a training step gives come first.
constexpr std::array kFields{
    Field{"prefix", "str", [](SubmitRequest& r, nb::handle v) { r.prefix = name_from(nb::cast<nb::str>(v)); }},
    Field{"reduce_op", "int", [](SubmitRequest& r, nb::handle v) { r.reduce_op = reduce_op_from(nb::cast<int>(v)); }},
    Field{"prescale", "float", [](SubmitRequest& r, nb::handle v) { r.prescale = nb::cast<double>(v); }},
    Field{"postscale", "float", [](SubmitRequest& r, nb::handle v) { r.postscale = nb::cast<double>(v); }},
    Field{"weight", "float | None",
          [](SubmitRequest& r, nb::handle v) {
            if (!v.is_none()) r.weight = nb::cast<double>(v);
          }},
    Field{"process_set", "int", [](SubmitRequest& r, nb::handle v) { r.process_set = nb::cast<uint32_t>(v); }},
    Field{"waits_next", "bool", [](SubmitRequest& r, nb::handle v) { r.waits_next = nb::cast<bool>(v); }},
    Field{"call_site", "str", [](SubmitRequest& r, nb::handle v) { r.call_site = call_site_from(v); }},
    Field{"keep_alive", "object", [](SubmitRequest& r, nb::handle v) { r.keeper = keep(nb::borrow(v)); }},
    Field{"priority", "int", [](SubmitRequest& r, nb::handle v) { r.priority = nb::cast<int32_t>(v); }},
    Field{"quantization", "int",
          [](SubmitRequest& r, nb::handle v) { r.quantization = quantization_of(nb::cast<int>(v)); }},
    Field{"residuals", "collections.abc.Sequence[Buffer]",
          [](SubmitRequest& r, nb::handle v) { r.residuals = nb::cast<std::vector<Buffer>>(v); }},
    Field{"root", "int", [](SubmitRequest& r, nb::handle v) { r.root = nb::cast<int32_t>(v); }},
    Field{"splits", "collections.abc.Sequence[int] | None",
          [](SubmitRequest& r, nb::handle v) {
            if (!v.is_none()) r.splits = nb::cast<std::vector<int64_t>>(v);
          }},
    Field{"received_splits", "collections.abc.Sequence[int] | None",
          [](SubmitRequest& r, nb::handle v) {
            if (!v.is_none()) r.received_splits = nb::cast<std::vector<int64_t>>(v);
          }},
    Field{"ranks", "collections.abc.Sequence[int]",
          [](SubmitRequest& r, nb::handle v) { r.ranks = nb::cast<std::vector<int64_t>>(v); }},
    Field{"divide_by_initial_world_size", "bool",
          [](SubmitRequest& r, nb::handle v) { r.divide_by_initial_world_size = nb::cast<bool>(v); }},
    Field{"tag", "int", [](SubmitRequest& r, nb::handle v) { r.tag = nb::cast<int32_t>(v); }},
    Field{"by_members", "bool", [](SubmitRequest& r, nb::handle v) { r.by_members = nb::cast<bool>(v); }},
    Field{"device", "int", [](SubmitRequest& r, nb::handle v) { r.device = nb::cast<int>(v); }},
};

}  // namespace

std::string name_from(const nb::str& name) {
  Py_ssize_t size = 0;
  if (const char* text = PyUnicode_AsUTF8AndSize(name.ptr(), &size)) return {text, static_cast<size_t>(size)};
  PyErr_Clear();
  throw Error(ErrorKind::kUsage,
              "the name " + std::string(nb::repr(name).c_str()) +
                  " holds lone surrogates, which cannot be sent: it was made of bytes that are not UTF-8. Replace "
                  "them, for example with name.encode(errors='replace').decode()");
}

std::string signature_of_submit() {
  return signature_of(
      "def submit(self, kind: int, name: str | None, inputs: collections.abc.Sequence[Buffer], "
      "outputs: collections.abc.Sequence[Buffer], *",
      kFields, "Handle");
}

SubmitRequest request_from(const nb::kwargs& options) {
  SubmitRequest request;
  read_keywords("submit", kFields, options, request);
  return request;
}

PlainReduction plain_reduction(const nb::str& prefix, int reduce_op, uint32_t process_set) {
  return {name_from(prefix), reduce_op_from(reduce_op), process_set};
}

void fill(SubmitRequest& request, const PlainReduction& reduction, nb::handle name, const Buffer& input,
          const Buffer& output, nb::handle call_site) {
  if (!name.is_none()) request.name = name_from(nb::cast<nb::str>(name));
  request.prefix = reduction.prefix;
  request.inputs.push_back(input);
  request.outputs.push_back(output);
  request.reduce_op = reduction.reduce_op;
  request.process_set = reduction.process_set;
  request.call_site = call_site_from(call_site);
}

}  // namespace hvd::bindings

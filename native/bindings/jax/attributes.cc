#include "bindings/jax/attributes.h"

#include <sstream>
#include <string>
#include <string_view>

namespace hvd::jax {
namespace {

class Reader {
 public:
  explicit Reader(const XlaAttributes& attributes) : attributes_(attributes) {}

  [[nodiscard]] std::string text(std::string_view name) const {
    const auto* found = static_cast<const XlaText*>(find(name, kXlaText));
    return found == nullptr ? "" : std::string(found->data, found->size);
  }
  [[nodiscard]] int64_t integer(std::string_view name) const { return scalar<int64_t>(name); }
  [[nodiscard]] double number(std::string_view name) const { return scalar<double>(name); }

 private:
  template <class Value>
  [[nodiscard]] Value scalar(std::string_view name) const {
    const auto* found = static_cast<const XlaScalar*>(find(name, kXlaScalar));
    return found == nullptr ? Value{} : *static_cast<const Value*>(found->value);
  }

  [[nodiscard]] const void* find(std::string_view name, int32_t type) const {
    for (int64_t i = 0; i < attributes_.size; ++i) {
      const XlaText& found = *attributes_.names[i];
      if (std::string_view(found.data, found.size) == name && attributes_.types[i] == type) {
        return attributes_.values[i];
      }
    }
    return nullptr;
  }

  const XlaAttributes& attributes_;
};

}  // namespace

Attributes attributes_of(const XlaCallFrame& frame) {
  const Reader reader(frame.attributes);
  Attributes found;
  kernels::Call& call = found.call;
  call.kind = static_cast<OpKind>(reader.integer("kind"));
  call.grouped = reader.integer("grouped") != 0;
  call.name = reader.text("name");
  call.job = reader.integer("job");
  call.process_set = reader.integer("process_set");
  call.waits = kernels::Waits::kBriefly;
  call.call_site = reader.text("call_site");
  call.reduce_op = static_cast<ReduceOp>(reader.integer("reduce_op"));
  call.quantization = static_cast<int32_t>(reader.integer("quantization"));
  call.num_residuals = reader.integer("num_residuals");
  call.prescale = reader.number("prescale");
  call.postscale = reader.number("postscale");
  call.root = static_cast<int>(reader.integer("root"));
  found.size = reader.integer("size");
  found.is_weighted = reader.integer("weighted") != 0;
  if (call.kind == OpKind::kAlltoall) {
    std::istringstream table(reader.text("table"));
    for (int64_t rows = 0; table >> rows;) found.table.push_back(rows);
  }
  call.equal_splits = found.table.empty();
  return found;
}

}  // namespace hvd::jax

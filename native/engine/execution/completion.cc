#include "engine/execution/completion.h"

namespace hvd {

void Completion::finish(Operation& operation, const std::optional<Error>& error) {
  observer_.record_end(operation);
  if (!operation.state.stands_in) submission_.release(operation, error.has_value());
  complete(operation, error);
}

void Completion::fail(Operation& operation, const Error& error) {
  complete(operation, Error(error.kind(), operation.spec.name + " failed: " + error.what()));
}

// The callback leaves the operation first: a caller of another thread may destroy the operation as soon as it is done.
// The keeper goes before that, too, so that whoever sees the end sees the memory free.
void Completion::complete(Operation& operation, const std::optional<Error>& error) {
  if (operation.state.executions_unended == 0) operation.gpu.settle();  // no device has to do with it
  if (operation.device_has_ended()) operation.request.keeper.reset();
  if (operation.request.on_done) callbacks_.push_back(std::exchange(operation.request.on_done, nullptr));
  if (error) {
    note_cause_of(operation, *error);
    operation.fail(*error);
  } else {
    operation.complete();
  }
}

void Completion::note_cause_of(const Operation& operation, const Error& error) {
  if (failed_ || error.kind() != ErrorKind::kShutDown) return;
  const std::string text = error.what();
  const std::string prefix = operation.spec.name + " failed: ";
  note_cause(text.starts_with(prefix) ? text.substr(prefix.size()) : text);
}

}  // namespace hvd

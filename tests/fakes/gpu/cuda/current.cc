#include "cuda/current.h"

#include "cuda/settings.h"

namespace fake_cuda {

std::vector<SharedContext>& context_stack() {
  thread_local std::vector<SharedContext> stack;
  return stack;
}

Result find_current(const char* call, SharedContext& context) {
  if (context_stack().empty()) {
    note_wrong_use(std::string(call) + " was called on a thread without a context");
    return kInvalidContext;
  }
  context = context_stack().back();
  if (!context->alive) {
    note_wrong_use(std::string(call) + " was called in a context that was released");
    return kContextIsDestroyed;
  }
  return context->device.error;
}

Result find_stream(const char* call, const void* handle, bool any_context, SharedContext& context,
                   std::shared_ptr<Stream>& stream) {
  if (const Result failed = find_current(call, context)) return failed;
  constexpr uintptr_t kLegacy = 1;  // another name of the default stream
  const bool is_default = handle == nullptr || reinterpret_cast<uintptr_t>(handle) == kLegacy;
  stream = is_default ? Driver::get().default_stream(context) : Driver::get().stream(handle);
  if (stream == nullptr) {
    note_wrong_use(std::string(call) + " was given a stream that does not exist");
    return kInvalidHandle;
  }
  if (stream->context() != context.get()) {
    if (!any_context) {
      note_wrong_use(std::string(call) + " was given a stream of another device than the current one");
      return kInvalidHandle;
    }
    return stream->device().error;
  }
  return kSuccess;
}

}  // namespace fake_cuda

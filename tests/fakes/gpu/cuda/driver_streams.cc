// The functions of the driver: streams and events.
#include <algorithm>

#include "cuda/exported.h"

namespace fake_cuda {
namespace {

Result make_stream(const char* call, void** stream, unsigned flags, int priority) {
  SharedContext context;
  RETURN_IF_FAILED(find_current(call, context));
  if (stream == nullptr || flags > 1) return kInvalidValue;
  *stream = Driver::get().make_stream(context, flags, std::clamp(priority, -5, 0));
  return kSuccess;
}

// Where the event was recorded last.
Point point_of(Event& event) {
  const std::lock_guard lock(event.mutex);
  return event.point;
}

// Destroys even if the device has failed, and says so, as the driver may.
Result find_event(const char* call, const void* handle, std::shared_ptr<Event>& event) {
  event = Driver::get().event(handle);
  if (event != nullptr) return event->context->device.error;
  note_wrong_use(std::string(call) + " was given an event that does not exist");
  return kInvalidHandle;
}

}  // namespace

EXPORTED Result cuStreamCreate(void** stream, unsigned flags) {
  BEGIN_CALL(cuStreamCreate);
  return make_stream(call.name(), stream, flags, 0);
}

EXPORTED Result cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  BEGIN_CALL(cuStreamCreateWithPriority);
  return make_stream(call.name(), stream, flags, priority);
}

EXPORTED Result cuStreamDestroy_v2(void* handle) {
  BEGIN_CALL(cuStreamDestroy_v2);
  SharedContext context;
  std::shared_ptr<Stream> stream;
  const Result failed = find_stream(call.name(), handle, false, context, stream);
  const bool device_failed = context != nullptr && context->alive && context->device.error != kSuccess;
  if (failed != kSuccess && !device_failed) return failed;
  RETURN_IF_FAILED(Driver::get().destroy_stream(handle));
  return failed;
}

EXPORTED Result cuStreamQuery(void* handle) {
  BEGIN_CALL(cuStreamQuery);
  SharedContext context;
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_stream(call.name(), handle, true, context, stream));
  return stream->reached(stream->last()) ? kSuccess : kNotReady;
}

EXPORTED Result cuStreamSynchronize(void* handle) {
  BEGIN_CALL(cuStreamSynchronize);
  SharedContext context;
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_stream(call.name(), handle, true, context, stream));
  const bool reached = stream->wait_until_reached(stream->last(), nullptr);
  RETURN_IF_FAILED(stream->device().error);
  return reached ? kSuccess : kLaunchTimeout;
}

EXPORTED Result cuStreamWaitEvent(void* handle, void* event, unsigned flags) {
  BEGIN_CALL(cuStreamWaitEvent);
  SharedContext context;
  std::shared_ptr<Stream> stream;
  std::shared_ptr<Event> found;
  RETURN_IF_FAILED(find_stream(call.name(), handle, true, context, stream));
  RETURN_IF_FAILED(find_event(call.name(), event, found));
  if (flags > 1) return kInvalidValue;
  const Point point = point_of(*found);
  if (point.stream == nullptr || point.stream == stream) return kSuccess;
  const SharedContext its_context = Driver::get().context_of(*stream);
  if (its_context == nullptr) return kContextIsDestroyed;
  Driver::get().add(its_context, stream, Driver::waits_for(point, stream));
  return kSuccess;
}

EXPORTED Result cuLaunchHostFunc(void* handle, void (*function)(void*), void* data) {
  BEGIN_CALL(cuLaunchHostFunc);
  SharedContext context;
  std::shared_ptr<Stream> stream;
  RETURN_IF_FAILED(find_stream(call.name(), handle, false, context, stream));
  if (function == nullptr) return kInvalidValue;
  Driver::get().add(context, stream, [function, data] {
    in_host_function() = true;
    function(data);
    in_host_function() = false;
  });
  return kSuccess;
}

EXPORTED Result cuEventCreate(void** event, unsigned flags) {
  BEGIN_CALL(cuEventCreate);
  SharedContext context;
  RETURN_IF_FAILED(find_current(call.name(), context));
  if (event == nullptr || flags > 7) return kInvalidValue;
  *event = Driver::get().make_event(context);
  return kSuccess;
}

EXPORTED Result cuEventRecord(void* handle, void* stream_handle) {
  BEGIN_CALL(cuEventRecord);
  SharedContext context;
  std::shared_ptr<Stream> stream;
  std::shared_ptr<Event> event;
  RETURN_IF_FAILED(find_stream(call.name(), stream_handle, false, context, stream));
  RETURN_IF_FAILED(find_event(call.name(), handle, event));
  if (event->context != context) {
    note_wrong_use("cuEventRecord was given an event and a stream of different devices");
    return kInvalidHandle;
  }
  const uint64_t place = Driver::get().add(context, stream, [] {});
  const std::lock_guard lock(event->mutex);
  event->point = {stream, place};
  return kSuccess;
}

EXPORTED Result cuEventQuery(void* handle) {
  BEGIN_CALL(cuEventQuery);
  std::shared_ptr<Event> event;
  RETURN_IF_FAILED(find_event(call.name(), handle, event));
  const Point point = point_of(*event);
  if (point.stream == nullptr || point.stream->reached(point.place)) return event->context->device.error;
  return kNotReady;
}

EXPORTED Result cuEventSynchronize(void* handle) {
  BEGIN_CALL(cuEventSynchronize);
  std::shared_ptr<Event> event;
  RETURN_IF_FAILED(find_event(call.name(), handle, event));
  const Point point = point_of(*event);
  if (point.stream == nullptr) return kSuccess;
  const bool reached = point.stream->wait_until_reached(point.place, nullptr);
  RETURN_IF_FAILED(event->context->device.error);
  return reached ? kSuccess : kLaunchTimeout;
}

EXPORTED Result cuEventDestroy_v2(void* handle) {
  BEGIN_CALL(cuEventDestroy_v2);
  std::shared_ptr<Event> event;
  const Result failed = find_event(call.name(), handle, event);
  Driver::get().destroy_event(handle);
  return failed;
}

}  // namespace fake_cuda

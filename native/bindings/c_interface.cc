#include "bindings/c_interface.h"

#include <string>
#include <utility>

#include "bindings/c_reference.h"
#include "bindings/waiting_threads.h"
#include "engine/submission/operation.h"

struct HvdEngine {
  std::shared_ptr<hvd::Engine> engine;
};

struct HvdOperation {
  std::shared_ptr<hvd::Operation> operation;
  std::optional<hvd::Error> refusal;
};

namespace hvd::bindings {
namespace {

bool (*is_interrupted)() = nullptr;

std::vector<Buffer> buffers_of(const HvdBuffer* buffers, int32_t count) {
  std::vector<Buffer> list;
  list.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    const HvdBuffer& buffer = buffers[i];
    list.push_back({static_cast<std::byte*>(buffer.data), static_cast<DType>(buffer.dtype),
                    Shape(buffer.shape, buffer.shape + buffer.num_dims),
                    buffer.device_type == kHvdGpu ? buffer.device_index : kCpuDevice, buffer.stream});
  }
  return list;
}

// They have one name each, whatever a library calls them.
bool one_at_a_time(OpKind kind) { return kind == OpKind::kBarrier || kind == OpKind::kJoin; }

std::shared_ptr<Operation> operation_of(const HvdRequest& request) {
  SubmitRequest wanted;
  wanted.kind = static_cast<OpKind>(request.kind);
  wanted.prefix = request.prefix;
  const bool named = request.name != nullptr && *request.name != '\0' && !one_at_a_time(wanted.kind);
  if (named) wanted.name = request.name;
  wanted.reduce_op = static_cast<ReduceOp>(request.reduce_op);
  wanted.quantization = quantization_of(request.quantization);
  wanted.residuals = buffers_of(request.residuals, request.num_residuals);
  wanted.prescale = request.prescale;
  wanted.postscale = request.postscale;
  wanted.root = request.root;
  if (request.weighted != 0) wanted.weight = request.weight;
  wanted.priority = request.priority;
  wanted.process_set = request.process_set;
  wanted.inputs = buffers_of(request.inputs, request.num_inputs);
  wanted.outputs = buffers_of(request.outputs, request.num_outputs);
  if (request.splits != nullptr) wanted.splits.emplace(request.splits, request.splits + request.num_splits);
  if (request.call_site != nullptr) wanted.call_site = request.call_site;
  if (request.done != nullptr) wanted.on_done = [done = request.done, context = request.context] { done(context); };
  wanted.waits_next = request.waits != 0;
  return std::make_shared<Operation>(std::move(wanted));
}

HvdOperation* prepare(const HvdRequest* request) {
  auto prepared = std::make_unique<HvdOperation>();
  try {
    prepared->operation = operation_of(*request);
  } catch (const Error& error) {  // submit() says so
    prepared->refusal = error;
  }
  return prepared.release();
}

int32_t submit(HvdEngine* reference, HvdOperation* prepared) {
  if (prepared->refusal) return 0;
  // Kept here: `done` may release the prepared one before submit() returns.
  const std::shared_ptr<Operation> operation = prepared->operation;
  try {
    reference->engine->submit(operation);
    return 1;
  } catch (const Error& error) {
    prepared->refusal = error;
  } catch (const std::exception& error) {
    prepared->refusal = Error(ErrorKind::kInternal, error.what());
  }
  return 0;
}

const Error* error_of(const HvdOperation* submitted) {
  if (submitted->refusal) return &*submitted->refusal;
  const auto& error = submitted->operation->error();
  return error ? &*error : nullptr;
}

int32_t wait(HvdEngine* reference, HvdOperation* submitted) {
  const Waiting waiting(*submitted->operation);
  WaitsLong waits_long;
  while (!reference->engine->wait(*submitted->operation, kSignalCheckPeriod)) {
    waits_long.begin();
    if (is_interrupted != nullptr && is_interrupted()) return 0;
  }
  // A peer that ended on the same Ctrl-C must not hide it.
  if (error_of(submitted) != nullptr && is_interrupted != nullptr && is_interrupted()) return 0;
  return 1;
}

void wait_once(HvdEngine* reference, HvdOperation* submitted, int64_t microseconds) {
  reference->engine->wait_once(*submitted->operation, std::chrono::microseconds(microseconds));
}

int32_t error_kind(const HvdOperation* submitted) {
  const Error* error = error_of(submitted);
  return error == nullptr ? -1 : static_cast<int32_t>(error->kind());
}

const char* error_text(const HvdOperation* submitted) {
  const Error* error = error_of(submitted);
  return error == nullptr ? nullptr : error->what();
}

void* take_result(const HvdOperation* submitted, int32_t index, HvdBuffer* result) {
  const OwnedArray& array = submitted->operation->result.arrays.at(static_cast<size_t>(index));
  const bool on_gpu = array.device() != kCpuDevice;
  *result = {.data = array.data.get(),
             .dtype = static_cast<int32_t>(array.dtype),
             .num_dims = static_cast<int32_t>(array.shape.size()),
             .shape = array.shape.data(),
             .device_type = on_gpu ? kHvdGpu : kHvdCpu,
             .device_index = on_gpu ? array.device() : 0,
             .stream = array.stream};
  return new std::shared_ptr<std::byte[]>(array.data);
}

const int64_t* received_splits(const HvdOperation* submitted, int32_t* count) {
  const std::vector<int64_t>& splits = submitted->operation->result.received_splits;
  *count = static_cast<int32_t>(splits.size());
  return splits.data();
}

int32_t order(HvdEngine* reference, HvdOperation* submitted, int32_t device_index, void* stream) {
  try {
    reference->engine->order(*submitted->operation, device_index, static_cast<device::Stream>(stream));
    return 1;
  } catch (const Error& error) {
    submitted->refusal = error;
  }
  return 0;
}

constexpr HvdInterface kInterface = {
    .version = kHvdInterfaceVersion,
    .size = sizeof(HvdInterface),
    .request_size = sizeof(HvdRequest),
    .buffer_size = sizeof(HvdBuffer),
    .prepare = &prepare,
    .submit = &submit,
    .wait = &wait,
    .wait_once = &wait_once,
    .error_kind = &error_kind,
    .error_text = &error_text,
    .num_results = [](const HvdOperation* submitted) -> int32_t {
      return static_cast<int32_t>(submitted->operation->result.arrays.size());
    },
    .take_result = &take_result,
    .received_splits = &received_splits,
    .last_joined = [](const HvdOperation* submitted) -> int32_t { return submitted->operation->result.last_joined; },
    .order = &order,
    .release_memory = [](void* reference) { delete static_cast<std::shared_ptr<std::byte[]>*>(reference); },
    .release_operation = [](HvdOperation* submitted) { delete submitted; },
    .release_engine = [](HvdEngine* engine) { delete engine; },
};

}  // namespace

const HvdInterface* c_interface() { return &kInterface; }

HvdEngine* refer_to(std::shared_ptr<Engine> engine) { return new HvdEngine{std::move(engine)}; }

void look_for_signals_with(bool (*interrupted)()) { is_interrupted = interrupted; }

}  // namespace hvd::bindings

// What horovod.mxnet.native_ops calls, by ctypes.
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "bindings/mxnet/ledger.h"
#include "bindings/mxnet/operation.h"

namespace hvd::mxnet {
namespace {

// Valid until the thread calls again; null for an empty text.
const char* lend_text(std::string text) {
  thread_local std::string lent;
  lent = std::move(text);
  return lent.empty() ? nullptr : lent.c_str();
}

const OnComplete& completion_of(void* on_complete) { return *static_cast<const OnComplete*>(on_complete); }

void run_pushed(void* /*run_context*/, void* on_complete, void* param) {
  const OnComplete completion = completion_of(on_complete);
  try {
    execute(*static_cast<Pushed*>(param), completion);
  } catch (const std::exception& error) {  // nothing has been submitted
    ledger().failed({kernels::Trouble::kEngine, error.what(), ErrorKind::kInternal});
    complete(completion, error.what());
  }
}

// The operation has ended, and its arrays hold the error if it failed.
void delete_pushed(void* param) {
  delete static_cast<Pushed*>(param);
  ledger().ended();
}

// An operation that does nothing: MXNet skips it if an array that it would read holds an error.
struct Probe {
  const std::thread::id pushed_by = std::this_thread::get_id();
  int result = 0;
  std::promise<int> end;
};

void run_probe(void* /*run_context*/, void* on_complete, void* param) {
  auto* probe = static_cast<Probe*>(param);
  probe->result = probe->pushed_by == std::this_thread::get_id() ? 2 : 1;
  complete(completion_of(on_complete), "");
}

void delete_probe(void* param) {
  const std::unique_ptr<Probe> probe(static_cast<Probe*>(param));
  probe->end.set_value(probe->result);
}

}  // namespace
}  // namespace hvd::mxnet

using hvd::mxnet::lend_text;

extern "C" {

#define HVD_EXPORT __attribute__((visibility("default")))

// As in horovod/mxnet/native_ops.py.
struct HvdMxnetRequest {
  int32_t kind;
  int32_t grouped;
  const char* name;
  int64_t job;
  int64_t process_set;
  const char* call_site;
  int32_t reduce_op;
  double prescale;
  double postscale;
  int32_t root;
  int32_t priority;
  void* const* arrays;  // different ones, which do not share memory
  const int32_t* dtypes;
  int32_t num_arrays;
  int32_t quantization;
};

// Why this library does not work with the MXNet of this path, or null. Before anything else is called.
HVD_EXPORT const char* horovod_mxnet_look_up(const char* path) { return lend_text(hvd::mxnet::look_up(path)); }

// Starts a collective in place. Returns why MXNet refuses it, or null.
HVD_EXPORT const char* horovod_mxnet_push(const HvdMxnetRequest* request) {
  using namespace hvd;  // NOLINT(google-build-using-namespace)
  auto pushed = std::make_unique<mxnet::Pushed>();
  kernels::Call& call = pushed->call;
  call.kind = static_cast<OpKind>(request->kind);
  call.grouped = request->grouped != 0;
  call.name = request->name;
  call.job = request->job;
  call.process_set = request->process_set;
  call.call_site = request->call_site;
  call.reduce_op = static_cast<ReduceOp>(request->reduce_op);
  call.quantization = request->quantization;
  call.prescale = request->prescale;
  call.postscale = request->postscale;
  call.root = request->root;
  call.priority = request->priority;
  std::vector<void*> arrays;
  for (int32_t i = 0; i < request->num_arrays; ++i) {
    void* copy = nullptr;
    if (mxnet::mx.ShallowCopyNDArray(request->arrays[i], &copy) != 0) return lend_text(mxnet::mx.GetLastError());
    pushed->arrays.emplace_back(copy);
    pushed->dtypes.push_back(static_cast<DType>(request->dtypes[i]));
    arrays.push_back(copy);
  }
  pushed->name = kernels::prefix_of(call) + "." + call.name;
  const char* const name = pushed->name.c_str();
  mxnet::ledger().begun();
  return lend_text(mxnet::push({.body = &mxnet::run_pushed,
                                .deleter = &mxnet::delete_pushed,
                                .param = pushed.release(),
                                .inputs = {},
                                .outputs = std::move(arrays),
                                .priority = request->priority,
                                .name = name}));
}

// Asks whether an array holds an error, once what was pushed on it has ended. The error stays, while those waits of
// MXNet that raise it clear it, also for arrays that were to be computed from this one.
HVD_EXPORT void* horovod_mxnet_begin_probe(void* array) {
  constexpr int kFirst = 1 << 30;
  auto* probe = new hvd::mxnet::Probe();
  auto* end = new std::future<int>(probe->end.get_future());
  static_cast<void>(hvd::mxnet::push({.body = &hvd::mxnet::run_probe,
                                      .deleter = &hvd::mxnet::delete_probe,  // also if it is refused
                                      .param = probe,
                                      .inputs = {array},
                                      .outputs = {},
                                      .priority = kFirst,
                                      .name = "horovod.wait"}));
  return end;
}

// Returns -1 if that is not known after so long, and may be asked again; 0 if there is an error, 2 if MXNet runs
// operations where they are pushed (NaiveEngine), 1 otherwise.
HVD_EXPORT int horovod_mxnet_end_probe(void* begun, int milliseconds) {
  auto* end = static_cast<std::future<int>*>(begun);
  if (end->wait_for(std::chrono::milliseconds(milliseconds)) != std::future_status::ready) return -1;
  const int result = end->get();
  delete end;
  return result;
}

HVD_EXPORT int horovod_mxnet_in_flight() { return hvd::mxnet::ledger().in_flight(); }
// Waits until no operation is in flight; returns 0 if that takes longer.
HVD_EXPORT int horovod_mxnet_drain(int milliseconds) {
  return hvd::mxnet::ledger().wait_until_none_is_in_flight(std::chrono::milliseconds(milliseconds)) ? 1 : 0;
}
HVD_EXPORT int horovod_mxnet_num_failures() { return hvd::mxnet::ledger().num_failures(); }
HVD_EXPORT int horovod_mxnet_is_over() { return hvd::mxnet::ledger().is_over() ? 1 : 0; }
// Null if none failed.
HVD_EXPORT const char* horovod_mxnet_failure() { return lend_text(hvd::mxnet::ledger().failure()); }
HVD_EXPORT void horovod_mxnet_forget() { hvd::mxnet::ledger().forget(); }
}

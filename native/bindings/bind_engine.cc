#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/eventfd.h>

#include "backend/mpi/mpi_process.h"
#include "base/recycling.h"
#include "bindings/bindings.h"
#include "bindings/c_reference.h"
#include "bindings/completions.h"
#include "bindings/interpreter_lock.h"
#include "bindings/kept_objects.h"
#include "bindings/submit_request.h"
#include "bindings/waiting_threads.h"
#include "engine/engine.h"

namespace nb = nanobind;

namespace hvd::bindings {
namespace {

// This rank's inbox, made before the peers are known.
struct LocalPort {
  LocalPort(int num_local, int local_index)
      : num_local(num_local),
        local_index(local_index),
        segment(Segment::create_shared(num_local)),
        doorbell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!doorbell.valid()) throw_errno("cannot make an eventfd");
  }
  int num_local;
  int local_index;
  std::shared_ptr<Segment> segment;
  Fd doorbell;
};

class PyEngine {
 public:
  PyEngine(TransportParts parts, const EngineOptions& options)
      : engine_(std::make_shared<Engine>(std::move(parts), options)) {}

  [[nodiscard]] const std::shared_ptr<Engine>& engine() const { return engine_; }

  void close(const std::string& reason) {
    if (abandoned_ != nullptr) return;
    {
      const InterpreterUnlocked unlocked;
      engine_->close(reason);
    }
    drop_ended();
  }

  // The engine is leaked: its locks may be held by threads that do not exist in this process.
  void abandon() {
    engine_->abandon();
    abandoned_ = new std::shared_ptr<Engine>(engine_);
    forget_pending_drop();
  }

 private:
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Engine>* abandoned_ = nullptr;
};

// A wait that may take longer is one that its thread goes on from in no other way: a library that gives each operation
// half an hour must not hide a deadlock.
constexpr double kEndlessWaitSeconds = 120.0;

// Wakes the engine's thread when a caller that promised to wait goes away without having waited.
struct Promise {
  explicit Promise(std::shared_ptr<Engine> engine) : engine(std::move(engine)) {}
  Promise(const Promise&) = delete;
  Promise& operator=(const Promise&) = delete;
  ~Promise() {
    if (!kept) engine->wake();
  }
  std::shared_ptr<Engine> engine;
  bool kept = false;
};

void throw_error_of(const Operation& operation) {
  if (operation.error()) throw Error(*operation.error());
}

// Waits in slices, so that Ctrl-C and other Python signal handlers come through. Returns false when the time is over.
bool wait_for(Engine& engine, Operation& operation, std::optional<double> timeout_s) {
  const bool forever = !timeout_s || *timeout_s > 1e8;
  const bool is_endless = forever || *timeout_s > kEndlessWaitSeconds;
  std::optional<Waiting> waiting;
  if (is_endless) waiting.emplace(operation);
  const TimePoint until =
      std::chrono::steady_clock::now() +
      (forever ? Duration::zero() : std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*timeout_s)));
  WaitsLong waits_long;
  while (!operation.done()) {
    Duration slice = kSignalCheckPeriod;
    if (!forever) slice = std::min<Duration>(slice, until - std::chrono::steady_clock::now());
    if (slice <= Duration::zero()) return false;
    {
      const InterpreterUnlocked unlocked;
      if (engine.wait(operation, slice)) break;
      if (is_endless) waits_long.begin();
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    drop_ended();
  }
  // A peer that ended on the same Ctrl-C must not hide it from a caller who wants to save now.
  if (operation.error() && PyErr_CheckSignals() != 0) throw nb::python_error();
  throw_error_of(operation);
  return true;
}

struct PyHandle {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Operation> operation;
  std::shared_ptr<Promise> promise;  // if the caller said that it waits next

  void order(int device, uintptr_t stream) const {
    if (operation->done()) throw_error_of(*operation);
    engine->order(*operation, device, reinterpret_cast<device::Stream>(stream));
  }

  [[nodiscard]] bool done() const {
    drop_ended();
    return operation->done();
  }

  [[nodiscard]] bool finished() const {
    drop_ended();
    if (!operation->done()) return false;
    throw_error_of(*operation);
    if (const auto error = operation->gpu.error()) throw Error(*error);
    return operation->settled();
  }

  bool wait(std::optional<double> timeout_s) const {
    const DropEnded drops;
    if (promise != nullptr) promise->kept = true;
    return wait_for(*engine, *operation, timeout_s);
  }

  void notify(const std::shared_ptr<Completions>& completions, nb::object token) const {
    // A function has to be copied, and so has what it keeps.
    auto kept = std::make_shared<Keeper>(keep(std::move(token)));
    if (operation->notify([completions, kept] { completions->put(std::move(*kept)); })) return;
    throw Error(ErrorKind::kUsage, operation->spec.name + ": the end of this operation is told to somebody already");
  }

  [[nodiscard]] std::vector<OwnedArray> results() const {
    if (!operation->done()) throw Error(ErrorKind::kUsage, operation->spec.name + " is still in flight");
    throw_error_of(*operation);
    return operation->result.arrays;
  }
};

// The first operation of a device loads libraries.
void submit_to(Engine& engine, const std::shared_ptr<Operation>& operation) {
  const SubmitRequest& request = operation->request;
  const int device = request.inputs.empty() ? request.device : request.inputs.front().device;
  if (device == kCpuDevice || engine.knows_device(device)) {
    engine.submit(operation);
    return;
  }
  const InterpreterUnlocked unlocked;
  engine.submit(operation);
}

PyHandle start(PyEngine& self, std::shared_ptr<Operation> operation) {
  const bool waits_next = operation->request.waits_next;
  operation->request.gathers = !waits_next;
  submit_to(*self.engine(), operation);
  return {self.engine(), std::move(operation), waits_next ? std::make_shared<Promise>(self.engine()) : nullptr};
}

PyHandle submit(PyEngine& self, int kind, nb::handle name, std::vector<Buffer> inputs, std::vector<Buffer> outputs,
                const nb::kwargs& options) {
  const DropEnded drops;
  SubmitRequest request = request_from(options);
  if (!name.is_none()) request.name = name_from(nb::cast<nb::str>(name));
  if (kind < 0 || kind >= kNumOpKinds) {
    throw Error(ErrorKind::kUsage, "unknown kind of operation");
  }
  request.kind = static_cast<OpKind>(kind);
  request.inputs = std::move(inputs);
  request.outputs = std::move(outputs);
  return start(self, std::make_shared<Operation>(std::move(request)));
}

std::shared_ptr<Operation> plain_allreduce(const PlainReduction& reduction, nb::handle name, const Buffer& input,
                                           const Buffer& output, nb::handle call_site, nb::object keep_alive) {
  constexpr size_t kMostKept = 1024;  // as many as a large model has gradients; 1.3 MiB
  auto operation = std::allocate_shared<Operation>(Recycling<Operation, kMostKept>());
  fill(operation->request, reduction, name, input, output, call_site);
  operation->request.keeper = keep(std::move(keep_alive));
  return operation;
}

// Without keywords: to read them takes a tenth of a short operation.
PyHandle allreduce(PyEngine& self, const PlainReduction& reduction, nb::handle name, const Buffer& input,
                   const Buffer& output, bool waits_next, nb::handle call_site, nb::object keep_alive) {
  const DropEnded drops;
  auto operation = plain_allreduce(reduction, name, input, output, call_site, std::move(keep_alive));
  operation->request.waits_next = waits_next;
  return start(self, std::move(operation));
}

// In one crossing, and without an object of Python for what is over when it returns.
void allreduce_now(PyEngine& self, const PlainReduction& reduction, nb::handle name, const Buffer& input,
                   const Buffer& output, nb::handle call_site, nb::object keep_alive) {
  const DropEnded drops;
  const auto operation = plain_allreduce(reduction, name, input, output, call_site, std::move(keep_alive));
  operation->request.waits_next = true;
  submit_to(*self.engine(), operation);
  wait_for(*self.engine(), *operation, std::nullopt);
}

using LocalPeerTuple = std::tuple<int, int, int, int, int>;
using RemotePeerTuple = std::tuple<int, int, std::vector<int>>;

void construct_engine(PyEngine* self, int rank, int size, const EngineOptions& options, LocalPort* port,
                      const std::vector<LocalPeerTuple>& local_peers, const std::vector<RemotePeerTuple>& remote_peers,
                      std::vector<int> hosts) {
  TransportParts parts;
  parts.rank = rank;
  parts.size = size;
  parts.hosts = std::move(hosts);
  for (const auto& [peer, control, data] : remote_peers) {
    RemotePeer& added = parts.remote_peers.emplace_back(RemotePeer{peer, Fd(control), {}});
    for (const int socket : data) added.data.emplace_back(socket);
    if (added.data.empty()) throw Error(ErrorKind::kUsage, "a peer on another host needs a data connection");
  }
  for (const auto& [peer, index, segment, doorbell, liveness] : local_peers) {
    const Fd segment_fd(segment);
    LocalPeer& added = parts.local_peers.emplace_back(LocalPeer{peer, index, nullptr, Fd(doorbell), Fd(liveness)});
    if (port == nullptr) throw Error(ErrorKind::kUsage, "ranks on this host need a port");
    added.segment = Segment::open(segment_fd.get(), port->num_local);
  }
  if (port != nullptr) {
    if (!port->doorbell.valid()) throw Error(ErrorKind::kUsage, "the port belongs to another engine already");
    parts.num_local = port->num_local;
    parts.local_index = port->local_index;
    parts.segment = std::exchange(port->segment, nullptr);
    parts.doorbell = std::move(port->doorbell);
  }
  if (static_cast<int>(local_peers.size() + remote_peers.size()) != size - 1) {
    throw Error(ErrorKind::kUsage, "an engine needs a connection to each other rank");
  }
  new (self) PyEngine(std::move(parts), options);
}

nb::dict statistics(const PyEngine& self) {
  const EngineStatistics numbers = self.engine()->statistics();
  nb::dict dict;
  dict["submitted"] = numbers.submitted;
  dict["announced_by_id"] = numbers.announced_by_id;
  dict["batches"] = numbers.batches;
  dict["fused_operations"] = numbers.fused_operations;
  dict["passes"] = numbers.passes;
  dict["direct_batches"] = numbers.direct_batches;
  dict["gpu_batches"] = numbers.gpu_batches;
  dict["nccl_batches"] = numbers.nccl_batches;
  dict["tuned_threshold"] = numbers.tuned_threshold;
  dict["waited_ns"] = numbers.waited_ns;
  dict["process_sets"] = numbers.process_sets;
  return dict;
}

nb::list make_world(int size, const EngineOptions& options, const std::vector<int>& hosts) {
  if (size < 1) throw Error(ErrorKind::kUsage, "a world needs at least one rank");
  if (!hosts.empty() && hosts.size() != static_cast<size_t>(size)) {
    throw Error(ErrorKind::kUsage, "a world needs the host of each rank");
  }
  nb::list engines;
  for (TransportParts& parts : hosts.empty() ? make_memory_transports(size) : make_socket_transports(size, hosts)) {
    engines.append(nb::cast(new PyEngine(std::move(parts), options), nb::rv_policy::take_ownership));
  }
  return engines;
}

// For a library that waits with the interpreter's lock not held. The exception of the handler cannot pass through the
// library, which is told to end its wait instead.
bool interrupted() {
  if (Py_IsInitialized() == 0) return false;
  StaysIfUnwound stays;
  const nb::gil_scoped_acquire lock;
  const bool raised = PyErr_CheckSignals() != 0;
  if (raised) PyErr_Clear();
  stays.end();
  return raised;
}

// ALLREDUCE, ADD_PROCESS_SET, ...: the numbers of what can be submitted.
void bind_constants(nb::module_& module) {
  for (int number = 0; number < kNumOpKinds; ++number) {
    std::string name = name_of(static_cast<OpKind>(number));
    for (char& letter : name) {
      if (letter != '_') letter = static_cast<char>(letter - 'a' + 'A');
    }
    module.attr(name.c_str()) = number;
  }
}

void bind_port(nb::module_& module) {
  nb::class_<LocalPort>(
      module, "LocalPort",
      "This rank's inbox in shared memory: a memfd with rings from each rank of the host, and an eventfd.")
      .def(nb::init<int, int>(), nb::arg("num_local"), nb::arg("local_index"))
      .def_prop_ro("segment_fd", [](const LocalPort& self) { return self.segment ? self.segment->fd() : -1; })
      .def_prop_ro("doorbell_fd", [](const LocalPort& self) { return self.doorbell.get(); });
}

void bind_plain_reduction(nb::module_& module) {
  nb::class_<PlainReduction>(module, "PlainReduction",
                             "What allreduces without factors, weight and priority have in common.")
      .def(nb::new_(&plain_reduction), nb::arg("prefix"), nb::arg("reduce_op"), nb::arg("process_set"));
}

void bind_handle(nb::module_& module) {
  nb::class_<PyHandle>(module, "Handle", "One submitted operation; it holds the result or the exception.")
      .def_prop_ro("name", [](const PyHandle& self) { return self.operation->spec.name; })
      .def("done", &PyHandle::done, "Return whether the operation ended, also with an error. Never blocks or raises.")
      .def("wait", &PyHandle::wait, nb::arg("timeout_s") = nb::none(),
           "Wait without the GIL, and run Python's signal handlers meanwhile; return False when the time is over. "
           "Raises the error of the operation.")
      .def("results", &PyHandle::results, "Return the arrays that the engine allocated, after a successful wait.")
      .def("order", &PyHandle::order, nb::arg("device"), nb::arg("stream"),
           "Make a stream of a GPU continue behind the result, after a successful wait: wait() returns as soon as the "
           "work is on the device. Does nothing for tensors on the CPU.")
      .def("finished", &PyHandle::finished,
           "Return whether the operation ended on the device, too. Never blocks; raises the error of the operation.")
      .def(
          "received_splits", [](const PyHandle& self) { return self.operation->result.received_splits; },
          "After an alltoall: return the rows received from each member, in the order of set ranks.")
      .def(
          "new_process_set", [](const PyHandle& self) { return self.operation->result.new_process_set; },
          "After ADD_PROCESS_SET: return the engine's number of the set, which is never used again.")
      .def(
          "last_joined", [](const PyHandle& self) { return self.operation->result.last_joined; },
          "After a JOIN: return the global rank that joined last, the same on all ranks.")
      .def(
          "source", [](const PyHandle& self) { return self.operation->result.source; },
          "After a RECV: return the set rank of the sender.")
      .def(
          "give_up", [](const PyHandle& self, const std::string& text) { self.engine->give_up(self.operation, text); },
          nb::arg("text"),
          "Fail everything on all ranks with a StalledError that begins with the text and names the ranks that the "
          "operation lacks. Return at once; do nothing if the operation ends first.")
      .def("notify", &PyHandle::notify, nb::arg("completions"), nb::arg("token").none(),
           "Put an object into a list when the operation has ended, also with an error; at once if it has. Refuse a "
           "second one while the operation is in flight.");
}

// Where this rank is, for the stall reports of others; and what it did, for the timeline.
void bind_observation(nb::class_<PyEngine>& engine) {
  engine
      .def(
          "wait_for_position_request",
          [](const PyEngine& self, double timeout_s) {
            Engine& engine = *self.engine();
            const InterpreterUnlocked unlocked;
            return engine.position().wait_for_request(from_seconds(timeout_s));
          },
          nb::arg("timeout_s"),
          "Wait without the GIL until another rank asks where this one is; return False when the time is over or the "
          "engine was closed.")
      .def(
          "answer_position",
          [](const PyEngine& self, std::string stacks,
             const std::vector<std::tuple<uint64_t, bool, int, bool>>& threads) {
            std::vector<InterpreterThread> told;
            for (const auto& [id, idle, native, in_framework] : threads) {
              told.push_back(
                  {.id = id, .idle = idle || waits_long(id), .native = native, .in_framework = in_framework});
            }
            self.engine()->position().answer(std::move(stacks), std::move(told));
          },
          nb::arg("stacks"), nb::arg("threads"),
          "Answer with the stacks of this process. `threads` are, for each: its ident, whether it only waits for work "
          "within the process, its native id or 0, and whether it is in a call of a framework.")
      .def(
          "start_timeline",
          [](const PyEngine& self, const std::string& path, bool mark_cycles) {
            Engine& engine = *self.engine();
            const InterpreterUnlocked unlocked;
            engine.start_timeline(path, mark_cycles);
          },
          nb::arg("path"), nb::arg("mark_cycles") = false,
          "On rank 0, write what all ranks do into a file from now on; do nothing on other ranks.")
      .def(
          "stop_timeline",
          [](const PyEngine& self) {
            Engine& engine = *self.engine();
            const InterpreterUnlocked unlocked;
            engine.stop_timeline();
          },
          "On rank 0, return when all records are in the file; do nothing on other ranks.")
      .def(
          "start_trace",
          [](const PyEngine& self, const std::string& path) {
            Engine& engine = *self.engine();
            const InterpreterUnlocked unlocked;
            engine.start_trace(path);
          },
          nb::arg("path"),
          "Start a timeline that gives way to one of the program. Raise UsageError if there is one already.")
      .def(
          "stop_trace",
          [](const PyEngine& self) {
            Engine& engine = *self.engine();
            const InterpreterUnlocked unlocked;
            return engine.stop_trace();
          },
          "Return whether the trace ran until now, when all its records are in the file.");
}

}  // namespace

void bind_engine(nb::module_& module) {
  bind_constants(module);
  bind_port(module);
  bind_completions(module);
  bind_handle(module);
  bind_plain_reduction(module);
  nb::class_<PyEngine> engine(
      module, "Engine",
      "The engine of one rank; owns one thread. `port` is None if no other rank is on this host. `local_peers` are "
      "rank, local index, and the descriptors of segment, doorbell and liveness socket of each other rank of this "
      "host; `remote_peers` are rank, control socket and data sockets of each rank of another host. The engine owns "
      "all descriptors. `hosts`, the host of each rank, may be left out if all ranks are on one host, or each on its "
      "own.");
  bind_observation(engine);
  const std::string signature = signature_of_submit();
  engine
      .def("__init__", &construct_engine, nb::arg("rank"), nb::arg("size"), nb::arg("options"), nb::arg("port").none(),
           nb::arg("local_peers"), nb::arg("remote_peers"), nb::arg("hosts") = std::vector<int>())
      .def_prop_ro("rank", [](const PyEngine& self) { return self.engine()->rank(); })
      .def_prop_ro("size", [](const PyEngine& self) { return self.engine()->size(); })
      .def_prop_ro("all_local", [](const PyEngine& self) { return self.engine()->all_local(); })
      .def(
          "submit", &submit, nb::arg("kind"), nb::arg("name").none(), nb::arg("inputs"), nb::arg("outputs"),
          nb::arg("options"), nb::sig(signature.c_str()),
          "Submit an operation; all inputs of one call form a group on one device. Options and names: SubmitRequest in "
          "native/engine/submission/operation.h. `outputs` is one buffer per input of an allreduce, broadcast or "
          "reducescatter (of the shape that this rank receives). "
          "An allgather and an alltoall may have one per tensor, or one per tensor and member; without, the engine "
          "allocates. `keep_alive` is referenced until nothing "
          "touches the memory any more, then dropped by the next thread that calls the engine, or the main thread.")
      .def("allreduce", &allreduce, nb::arg("reduction"), nb::arg("name").none(), nb::arg("input"), nb::arg("output"),
           nb::arg("waits_next"), nb::arg("call_site"), nb::arg("keep_alive").none(),
           "Submit the allreduce of one tensor as `submit` does, but faster: with positional arguments.")
      .def("allreduce_now", &allreduce_now, nb::arg("reduction"), nb::arg("name").none(), nb::arg("input"),
           nb::arg("output"), nb::arg("call_site"), nb::arg("keep_alive").none(),
           "Do as `allreduce` and wait for it as `Handle.wait` does. For tensors on the CPU: nobody can order the "
           "caller's stream behind the result.")
      .def(
          "automatic_quantization",
          [](const PyEngine& self, uint32_t set) {
            return static_cast<int>(self.engine()->automatic_quantization(set));
          },
          nb::arg("set"), nb::call_guard<nb::gil_scoped_release>(),
          "Return what `quantization` 4, auto, means for tensors on the CPU in a process set of this rank: 1 or 0.")
      .def(
          "leave_process_set",
          [](const PyEngine& self, uint32_t set, std::string call_site) {
            self.engine()->leave_process_set(set, std::move(call_site));
          },
          nb::arg("set"), nb::arg("call_site") = "",
          "Submit nothing more to a process set, which ends when all its members have left it; wait for nobody. What "
          "other members submit later fails. Do nothing if the engine has ended.")
      .def(
          "c_reference", [](const PyEngine& self) { return reinterpret_cast<uintptr_t>(refer_to(self.engine())); },
          "Return the address of a new `HvdEngine` of native/bindings/c_interface.h.")
      .def("closed", [](const PyEngine& self) { return self.engine()->position().closed(); })
      .def(
          "error",
          [](const PyEngine& self) {
            const auto error = self.engine()->error();
            return error ? std::string(error->what()) : std::string();
          },
          "Return why the engine can no longer work, or an empty string.")
      .def("statistics", &statistics, nb::sig("def statistics(self) -> dict[str, int]"))
      .def("abandon", &PyEngine::abandon, "In the child of a fork, drop the engine without telling the peers.")
      .def("close", &PyEngine::close, nb::arg("reason") = "it closed its engine",
           "Tell the peers, fail what is pending, join the thread and release everything. May be called again.");
  look_for_signals_with(&interrupted);
  module.def(
      "check_name", [](const nb::str& name) { static_cast<void>(name_from(name)); }, nb::arg("name"),
      "Refuse a name with lone surrogates; for names that do not reach the engine through `Engine.submit`.");
  module.def(
      "c_interface", [] { return reinterpret_cast<uintptr_t>(c_interface()); },
      "Return the address of the `HvdInterface` of native/bindings/c_interface.h.");
  module.def("make_world", &make_world, nb::arg("size"), nb::arg("options") = EngineOptions(),
             nb::arg("hosts") = std::vector<int>(),
             nb::sig("def make_world(size: int, options: EngineOptions = ..., hosts: collections.abc.Sequence[int] = "
                     "...) -> list[Engine]"),
             "Return engines of ranks that are threads of this process, over the memory transport; over sockets "
             "between ranks whose `hosts` differ, if these are given.");
}

}  // namespace hvd::bindings

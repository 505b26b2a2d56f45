#include "bindings/kept_objects.h"

#include <atomic>
#include <utility>

#include "bindings/interpreter_lock.h"

namespace nb = nanobind;

namespace hvd::bindings {
namespace {

struct Kept {
  PyObject* object;
  Kept* next = nullptr;
};

// Threads put one object in front, or take the whole list, so nobody sees what another one drops. It has no lock that
// a thread could hold while the process forks.
std::atomic<Kept*> ended{nullptr};
std::atomic<bool> main_thread_is_asked{false};
thread_local int scopes_of_this_thread = 0;  // of DropEnded

// Takes no interpreter's lock. An interpreter that ends, or that has too many such calls, leaves the objects to others.
void ask_main_thread() noexcept {
  if (main_thread_is_asked.exchange(true)) return;
  const auto drop = [](void*) {
    main_thread_is_asked.store(false);
    drop_ended();
    return 0;
  };
  if (Py_IsInitialized() == 0 || Py_AddPendingCall(drop, nullptr) != 0) main_thread_is_asked.store(false);
}

void let_go(void* pointer) {
  auto* kept = static_cast<Kept*>(pointer);
  kept->next = ended.load(std::memory_order_relaxed);
  while (!ended.compare_exchange_weak(kept->next, kept, std::memory_order_release, std::memory_order_relaxed)) {
  }
  if (scopes_of_this_thread == 0) ask_main_thread();
}

}  // namespace

Keeper keep(nb::object object) {
  if (object.is_none()) return {nullptr, nullptr};
  auto* kept = new Kept{object.ptr()};
  static_cast<void>(object.release());
  return {kept, &let_go};
}

nb::object take_kept(Keeper keeper) {
  if (keeper == nullptr) return nb::none();
  const std::unique_ptr<Kept> kept(static_cast<Kept*>(keeper.release()));
  return nb::steal(kept->object);
}

void drop_ended() noexcept {
  thread_local bool drops = false;
  if (drops) return;  // an object that dies calls the engine: what ended meanwhile can wait, however many do so
  drops = true;
  StaysIfUnwound stays;
  Kept* list = ended.exchange(nullptr, std::memory_order_acquire);
  while (list != nullptr) {
    Kept* first = std::exchange(list, list->next);
    PyObject* object = first->object;
    delete first;
    Py_DECREF(object);
  }
  stays.end();
  drops = false;
  if (ended.load(std::memory_order_relaxed) != nullptr) ask_main_thread();
}

DropEnded::DropEnded() noexcept { ++scopes_of_this_thread; }

DropEnded::~DropEnded() {
  --scopes_of_this_thread;
  drop_ended();
}

void forget_pending_drop() { main_thread_is_asked.store(false); }

}  // namespace hvd::bindings

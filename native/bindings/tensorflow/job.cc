#include "bindings/tensorflow/job.h"

#include <mutex>
#include <utility>

#include "bindings/tensorflow/tf_interface.h"

namespace hvd::tensorflow {
namespace {

struct Slot {
  std::mutex mutex;
  std::shared_ptr<const Job> job;
  std::map<int64_t, Members> process_sets;  // by public number
};

// Never destroyed: kernels may run until the process ends.
Slot& slot() {
  static auto* made = new Slot();
  return *made;
}

}  // namespace

std::shared_ptr<const Job> current_job() {
  const std::lock_guard lock(slot().mutex);
  return slot().job;
}

std::optional<Members> find_process_set(int64_t number) {
  const std::lock_guard lock(slot().mutex);
  const auto found = slot().process_sets.find(number);
  if (found == slot().process_sets.end()) return std::nullopt;
  return found->second;
}

}  // namespace hvd::tensorflow

// What horovod.tensorflow.native_ops calls.
extern "C" {

#define HVD_EXPORT __attribute__((visibility("default")))

HVD_EXPORT const char* horovod_tensorflow_problem() { return hvd::tensorflow::problem().c_str(); }

HVD_EXPORT void horovod_tensorflow_begin_job(const HvdInterface* interface, HvdEngine* engine, int rank, int local_rank,
                                             int local_size) {
  auto job = std::make_shared<const hvd::tensorflow::Job>(interface, engine, rank, local_rank, local_size);
  hvd::tensorflow::Slot& slot = hvd::tensorflow::slot();
  const std::lock_guard lock(slot.mutex);
  slot.job.swap(job);
  slot.process_sets.clear();
}

HVD_EXPORT void horovod_tensorflow_end_job() {
  std::shared_ptr<const hvd::tensorflow::Job> ended;  // is destroyed without the lock
  hvd::tensorflow::Slot& slot = hvd::tensorflow::slot();
  const std::lock_guard lock(slot.mutex);
  slot.job.swap(ended);
  slot.process_sets.clear();
}

HVD_EXPORT void horovod_tensorflow_set_process_set(int64_t number, uint32_t engine_id, const int* ranks, int size,
                                                   int set_rank) {
  hvd::tensorflow::Slot& slot = hvd::tensorflow::slot();
  const std::lock_guard lock(slot.mutex);
  slot.process_sets[number] = {engine_id, std::vector<int>(ranks, ranks + size), set_rank};
}

HVD_EXPORT void horovod_tensorflow_forget_process_set(int64_t number) {
  hvd::tensorflow::Slot& slot = hvd::tensorflow::slot();
  const std::lock_guard lock(slot.mutex);
  slot.process_sets.erase(number);
}
}

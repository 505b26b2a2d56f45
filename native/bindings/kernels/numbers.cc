#include "bindings/kernels/numbers.h"

#include "bindings/kernels/call.h"
#include "bindings/kernels/jobs.h"

namespace hvd::kernels {
namespace {

int included(int64_t number, int64_t process_set) {
  const auto job = jobs().find(number);
  if (job == nullptr) return kNotInitialized;
  const auto members = job->find_process_set(process_set);
  if (!members) return kUnknownSet;
  return members->set_rank >= 0 ? 1 : 0;
}

}  // namespace

std::variant<int, Failure> answer(Question question, int64_t number, int64_t process_set) {
  if (question == Question::kIncluded) return included(number, process_set);
  const auto job = jobs().find(number);
  if (job == nullptr) return not_initialized(number);
  if (question == Question::kLocalRank) return job->local_rank;
  if (question == Question::kLocalSize) return job->local_size;
  const auto members = job->find_process_set(process_set);
  const std::string set = "process set " + std::to_string(process_set);
  if (!members) return Failure{Trouble::kUnknownProcessSet, set + " is not registered"};
  if (question == Question::kSize) return static_cast<int>(members->ranks.size());
  if (members->set_rank >= 0) return members->set_rank;
  return Failure{Trouble::kNotMember, "rank " + std::to_string(job->rank) + " does not belong to " + set};
}

}  // namespace hvd::kernels

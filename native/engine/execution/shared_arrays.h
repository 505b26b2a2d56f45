// Arrays that all ranks of a host see. They are made by agreement, so that each rank has its own at the same offset.
//
// An allreduce in place whose values lie at the same place on all members needs no copies. Each member says with its
// announcement where its values lie; the coordinator's answer tells whether they are the same.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "engine/messages/job_info.h"
#include "engine/submission/operation.h"
#include "transport/transport.h"

namespace hvd {

class SharedArrays {
 public:
  // `used`: whether the backend reduces in shared memory.
  SharedArrays(const JobInfo& job, Transport& transport, bool used) : job_(job), transport_(transport), used_(used) {}

  // The ranks have agreed on an array. Memory of this rank alone does too, only slower: then an allreduce takes the way
  // that it always has.
  void make(Operation& operation);
  // Notes where the values of an operation lie, if in such an array.
  void find_place(Operation& operation) const;
  // Where the values of all members lie. Throws Error (kInternal) if this rank's do not lie in such an array.
  static void add_reachable(const Operation& operation, const Extent& input, Batch& batch);
  // Peers that have not heard of a failure yet may still write into memory whose operation is about to fail here.
  void detach(const Operation& operation) const;

 private:
  const JobInfo& job_;
  Transport& transport_;
  const bool used_;
  std::vector<std::weak_ptr<SharedRegion>> regions_;  // that somebody uses
  size_t next_offset_ = 0;                            // never used again
};

}  // namespace hvd

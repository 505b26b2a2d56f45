// A batch that NCCL's thread works on, as the engine sees it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "backend/nccl/nccl_thread.h"

namespace hvd::nccl {

class NcclExecution final : public Execution {
 public:
  NcclExecution(std::shared_ptr<NcclThread> thread, std::shared_ptr<Communicator> communicator,
                std::shared_ptr<Task> task, std::vector<int> members)
      : thread_(std::move(thread)),
        communicator_(std::move(communicator)),
        task_(std::move(task)),
        members_(std::move(members)) {}
  NcclExecution(const NcclExecution&) = delete;
  NcclExecution& operator=(const NcclExecution&) = delete;
  // Waits a moment for what is on the device, and gives NCCL up if that does not end: the memory goes away now.
  ~NcclExecution() override;

  // Throws Error if NCCL or the device failed, or NCCL was given up.
  bool advance() override;
  [[nodiscard]] bool done() const override;
  [[nodiscard]] bool handed_over() const override { return seen_ >= Task::Stage::kHandedOver; }
  [[nodiscard]] device::SharedEvent finished() const override;
  [[nodiscard]] bool waits_for(int rank) override;
  [[nodiscard]] bool gives_up_on(int rank) override;

 private:
  std::shared_ptr<NcclThread> thread_;
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<Task> task_;
  std::vector<int> members_;
  Task::Stage seen_ = Task::Stage::kQueued;  // up to kDone
  std::optional<TimePoint> first_gone_;      // when a member was first said to have left
};

}  // namespace hvd::nccl

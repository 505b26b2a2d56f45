// A task that MPI's thread works on, as the engine sees it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "backend/mpi/mpi_process.h"

namespace hvd {

class MpiExecution final : public Execution {
 public:
  MpiExecution(std::shared_ptr<mpi::MpiProcess> process, std::shared_ptr<mpi::Ticket> ticket, std::vector<int> members)
      : process_(std::move(process)), ticket_(std::move(ticket)), members_(std::move(members)) {}
  MpiExecution(const MpiExecution&) = delete;
  MpiExecution& operator=(const MpiExecution&) = delete;
  // If it is not done, its memory goes away while MPI has it: from then on nobody calls MPI.
  ~MpiExecution() override;

  // Throws Error if MPI failed.
  bool advance() override;
  [[nodiscard]] bool done() const override { return done_; }
  [[nodiscard]] bool waits_for(int rank) override;
  [[nodiscard]] bool gives_up_on(int rank) override;

 private:
  std::shared_ptr<mpi::MpiProcess> process_;
  std::shared_ptr<mpi::Ticket> ticket_;
  std::vector<int> members_;
  std::optional<TimePoint> first_gone_;  // when a member was first said to have left
  bool done_ = false;
};

}  // namespace hvd

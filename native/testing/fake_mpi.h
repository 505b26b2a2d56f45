// An MPI whose ranks are threads of this process: the thread that initializes it becomes a rank, in order. Checks that
// the calls of the ranks fit together, as a library does not.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/mpi/abi.h"

namespace hvd::testing {

// One at a time; ranks must have ended before it does.
class FakeMpi {
 public:
  explicit FakeMpi(int size, int provided = mpi::kThreadMultiple);
  FakeMpi(const FakeMpi&) = delete;
  FakeMpi& operator=(const FakeMpi&) = delete;
  ~FakeMpi();

  [[nodiscard]] static mpi::Functions functions();

  // From now on nothing is ever complete.
  void freeze();
  // What is in flight on any rank fails from now on.
  void break_down();
  // As if the program had initialized MPI.
  void initialize_elsewhere();

  // Calls that did not fit together.
  [[nodiscard]] std::vector<std::string> wrong_uses() const;
  [[nodiscard]] int num_finalized() const;
  [[nodiscard]] int num_communicators() const;  // that were made and not freed by all
  [[nodiscard]] int num_calls(const std::string& what) const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace hvd::testing

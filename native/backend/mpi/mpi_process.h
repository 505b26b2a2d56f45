// MPI in this process: found, initialized, and ended.
//
// MPI can be initialized once in the life of a process, so this is the one object of the core that engines follow one
// after the other share. Whoever makes it decides that; there is no global here.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "backend/mpi/library.h"
#include "backend/mpi/mpi_thread.h"

namespace hvd::mpi {

struct Operators;

// A communicator that is yet to be made, by a task that was submitted before those that use it. Only the thread that
// calls MPI may look into it.
struct Communicator {
  Comm handle = kCommNull;
  std::optional<Error> error;  // why it could not be made

  [[nodiscard]] Comm get() const {
    if (error) throw Error(*error);
    return handle;
  }
};
using SharedComm = std::shared_ptr<Communicator>;

class MpiProcess {
 public:
  // Starts to initialize MPI, unless somebody did; see wait(). `all_threads`: asks for MPI_THREAD_MULTIPLE, so that the
  // program may call MPI too; otherwise only for what Horovod's own thread needs.
  MpiProcess(Library library, bool all_threads);
  MpiProcess(const MpiProcess&) = delete;
  MpiProcess& operator=(const MpiProcess&) = delete;
  ~MpiProcess();

  // Returns whether MPI is ready; waits at most for `timeout`. Throws Error (kUsage) if it cannot be used, kInternal if
  // it failed. What follows is only known when it is ready.
  [[nodiscard]] bool wait(Duration timeout);
  [[nodiscard]] const Library& library() const { return library_; }
  [[nodiscard]] int rank() const;  // of MPI_COMM_WORLD, as the next one
  [[nodiscard]] int size() const;
  [[nodiscard]] bool all_threads() const;  // whether any thread may call MPI at any time
  [[nodiscard]] const Operators& operators() const;

  [[nodiscard]] MpiThread& thread() { return thread_; }

  // At the end of the process: ends MPI if it was initialized here, and nothing was left in it. Returns whether that
  // is done; waits at most for `timeout`, since it waits for the other ranks.
  bool finish(Duration timeout);
  void abandon() { thread_.abandon(); }

 private:
  struct Facts;
  Library library_;
  std::shared_ptr<Facts> facts_;
  MpiThread thread_;
  std::shared_ptr<Ticket> initialized_;
};

// The ranks of one engine as MPI knows them: a communicator of their own, in which they have the ranks of the job.
class MpiWorld {
 public:
  // Starts to make it; see wait(). All ranks of MPI_COMM_WORLD do, in the same order.
  // Throws Error (kUsage) if `size` is not that of MPI_COMM_WORLD.
  MpiWorld(std::shared_ptr<MpiProcess> process, int rank, int size);

  // Returns whether all ranks have met; waits at most for `timeout`. Throws Error if that failed.
  [[nodiscard]] bool wait(Duration timeout);
  [[nodiscard]] const std::shared_ptr<MpiProcess>& process() const { return process_; }
  [[nodiscard]] const SharedComm& comm() const { return comm_; }

 private:
  std::shared_ptr<MpiProcess> process_;
  SharedComm comm_ = std::make_shared<Communicator>();
  std::shared_ptr<Ticket> made_;
};

}  // namespace hvd::mpi

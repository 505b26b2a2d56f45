#include "backend/mpi/mpi_process.h"

#include <utility>

#include "backend/mpi/operators.h"

namespace hvd::mpi {

struct MpiProcess::Facts {
  int rank = 0;
  int size = 1;
  int provided = 0;
  bool initialized_here = false;
  Operators operators;
};

namespace {

// Calls that wait for other ranks, or for nobody: done when they return.
template <class Call>
class CallTask final : public Task {
 public:
  explicit CallTask(Call call) : call_(std::move(call)) {}
  bool go_on(Context& context, std::vector<Request>& /*requests*/) override {
    call_(context);
    return false;
  }

 private:
  Call call_;
};

template <class Call>
std::unique_ptr<Task> task_of(Call call) {
  return std::make_unique<CallTask<Call>>(std::move(call));
}

bool wait_for(MpiThread& thread, const Ticket& ticket, Duration timeout) {
  if (!thread.wait(ticket, timeout)) return false;
  if (ticket.error()) throw Error(*ticket.error());
  return true;
}

// What the thread that calls MPI needs, or the program's own calls.
void check_threads(int provided, bool initialized_here) {
  if (provided >= (initialized_here ? kThreadFunneled : kThreadMultiple)) return;
  throw Error(
      ErrorKind::kUsage,
      initialized_here
          ? "this MPI library supports one thread only (MPI_THREAD_SINGLE); Horovod calls it from a thread of "
            "its own"
          : "MPI was initialized before hvd.init() without MPI_THREAD_MULTIPLE; Horovod calls MPI from a thread "
            "of its own: call hvd.init() first, or initialize MPI with MPI_THREAD_MULTIPLE");
}

}  // namespace

MpiProcess::MpiProcess(Library library, bool all_threads)
    : library_(std::move(library)), facts_(std::make_shared<Facts>()), thread_(library_.functions) {
  initialized_ = thread_.submit(task_of([facts = facts_, all_threads](Context& context) {
    const Functions& mpi = context.functions;
    int flag = 0;
    context.check(mpi.finalized(&flag), "MPI_Finalized");
    if (flag != 0) throw Error(ErrorKind::kUsage, "MPI was finalized in this process; it cannot be used again");
    context.check(mpi.initialized(&flag), "MPI_Initialized");
    facts->initialized_here = flag == 0;
    if (facts->initialized_here) {
      const int required = all_threads ? kThreadMultiple : kThreadFunneled;
      context.check(mpi.init_thread(nullptr, nullptr, required, &facts->provided), "MPI_Init_thread");
      context.check(mpi.comm_set_errhandler(kCommWorld, kErrorsReturn), "MPI_Comm_set_errhandler");
    } else {
      context.check(mpi.query_thread(&facts->provided), "MPI_Query_thread");
    }
    check_threads(facts->provided, facts->initialized_here);
    context.check(mpi.comm_rank(kCommWorld, &facts->rank), "MPI_Comm_rank");
    context.check(mpi.comm_size(kCommWorld, &facts->size), "MPI_Comm_size");
    context.who = "MPI on rank " + std::to_string(facts->rank);
    facts->operators = make_operators(context);
  }));
}

MpiProcess::~MpiProcess() = default;

bool MpiProcess::wait(Duration timeout) { return wait_for(thread_, *initialized_, timeout); }
int MpiProcess::rank() const { return facts_->rank; }
int MpiProcess::size() const { return facts_->size; }
bool MpiProcess::all_threads() const { return facts_->provided >= kThreadMultiple; }
const Operators& MpiProcess::operators() const { return facts_->operators; }

bool MpiProcess::finish(Duration timeout) {
  thread_.submit(task_of([facts = facts_](Context& context) {
    if (facts->initialized_here) context.check(context.functions.finalize(), "MPI_Finalize");
  }));
  return thread_.stop(timeout) && !thread_.given_up();
}

MpiWorld::MpiWorld(std::shared_ptr<MpiProcess> process, int rank, int size) : process_(std::move(process)) {
  if (size != process_->size()) {
    throw Error(ErrorKind::kUsage, "rank " + std::to_string(rank) + ": the job has " + std::to_string(size) +
                                       " ranks, but MPI_COMM_WORLD " + std::to_string(process_->size()) +
                                       ". Start the job with the mpirun that belongs to " + process_->library().path +
                                       " (" + process_->library().version + ")");
  }
  made_ = process_->thread().submit(task_of([comm = comm_, rank](Context& context) {
    const Functions& mpi = context.functions;
    context.check(mpi.comm_split(kCommWorld, 0, rank, &comm->handle), "MPI_Comm_split");
    context.check(mpi.comm_set_errhandler(comm->handle, kErrorsReturn), "MPI_Comm_set_errhandler");
    int made_rank = -1;
    context.check(mpi.comm_rank(comm->handle, &made_rank), "MPI_Comm_rank");
    if (made_rank == rank) return;
    throw Error(ErrorKind::kUsage, "rank " + std::to_string(rank) + " of the job got rank " +
                                       std::to_string(made_rank) + " in MPI: another process has the same rank");
  }));
}

bool MpiWorld::wait(Duration timeout) { return wait_for(process_->thread(), *made_, timeout); }

}  // namespace hvd::mpi

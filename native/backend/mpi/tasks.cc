#include "backend/mpi/tasks.h"

#include <algorithm>
#include <utility>

#include "backend/mpi/packing.h"

namespace hvd::mpi {
namespace {

bool lies_in_one_piece(const std::vector<Extent>& extents) { return extents.size() == 1; }

// One round of requests, and what comes before and after it.
class Round : public Task {
 public:
  Round(Batch batch, SharedComm comm) : batch_(std::move(batch)), comm_(std::move(comm)), wire_(wire_of(batch_)) {}

  bool go_on(Context& context, std::vector<Request>& requests) final {
    if (started_) {
      finish(context);
      return false;
    }
    started_ = true;
    Request request = kRequestNull;
    start(context, request);
    requests.push_back(request);
    return true;
  }

 protected:
  virtual void start(Context& context, Request& request) = 0;
  virtual void finish(Context& /*context*/) {}

  [[nodiscard]] const Batch& batch() const { return batch_; }
  [[nodiscard]] Comm comm() const { return comm_->get(); }
  [[nodiscard]] bool is_converted() const { return wire_.dtype != batch_.dtype || wire_.words != 1; }
  [[nodiscard]] const Wire& wire() const { return wire_; }
  [[nodiscard]] size_t wire_bytes(int64_t count) const {
    return static_cast<size_t>(count * wire_.words) * size_of(wire_.dtype);
  }

 private:
  Batch batch_;
  SharedComm comm_;
  Wire wire_;
  bool started_ = false;
};

class Allreduce final : public Round {
 public:
  Allreduce(Batch batch, SharedComm comm, const Operators& operators)
      : Round(std::move(batch), std::move(comm)), reduction_(reduction_of(wire().dtype, this->batch().op, operators)) {}

 private:
  void start(Context& context, Request& request) override {
    const Batch& its = batch();
    const int64_t count = total_of(its.inputs) * wire().words;
    const bool packed = is_converted() || !lies_in_one_piece(its.inputs);
    if (packed) staging_ = context.staging.take(wire_bytes(total_of(its.inputs)));
    result_ = packed ? staging_.data() : its.outputs.front().data;
    const std::byte* given = its.inputs.front().data;
    const bool as_it_is = !packed && its.prescale == 1.0 && given != result_;
    if (!as_it_is) pack(its, result_);
    context.check(context.functions.iallreduce(as_it_is ? given : in_place(), result_, count, reduction_.datatype,
                                               reduction_.op, comm(), &request),
                  "MPI_Iallreduce");
  }

  void finish(Context& context) override {
    unpack(batch(), result_);
    context.staging.give_back(std::move(staging_));
  }

  Reduction reduction_;
  Staging staging_;
  std::byte* result_ = nullptr;
};

class Reducescatter final : public Round {
 public:
  Reducescatter(Batch batch, SharedComm comm, const Operators& operators)
      : Round(std::move(batch), std::move(comm)),
        reduction_(reduction_of(wire().dtype, this->batch().op, operators)),
        counts_(this->batch().counts.begin(), this->batch().counts.end()) {
    for (Count& count : counts_) count *= wire().words;
  }

 private:
  void start(Context& context, Request& request) override {
    const Batch& its = batch();
    const std::byte* given = its.inputs.front().data;
    if (is_converted() || its.prescale != 1.0 || !lies_in_one_piece(its.inputs)) {
      input_ = context.staging.take(wire_bytes(total_of(its.inputs)));
      pack(its, input_.data());
      given = input_.data();
    }
    if (is_converted() || !lies_in_one_piece(its.outputs)) {
      output_ = context.staging.take(wire_bytes(total_of(its.outputs)));
    }
    result_ = output_.bytes > 0 ? output_.data() : its.outputs.front().data;
    context.check(context.functions.ireduce_scatter(given, result_, counts_.data(), reduction_.datatype, reduction_.op,
                                                    comm(), &request),
                  "MPI_Ireduce_scatter");
  }

  void finish(Context& context) override {
    unpack(batch(), result_);
    context.staging.give_back(std::move(input_));
    context.staging.give_back(std::move(output_));
  }

  Reduction reduction_;
  std::vector<Count> counts_;
  Staging input_;
  Staging output_;
  std::byte* result_ = nullptr;
};

class Broadcast final : public Round {
 public:
  Broadcast(Batch batch, SharedComm comm)
      : Round(std::move(batch), std::move(comm)), is_root_(this->batch().root == this->batch().set_rank) {}

 private:
  void start(Context& context, Request& request) override {
    const Batch& its = batch();
    const bool packed = !lies_in_one_piece(its.inputs);
    if (packed) staging_ = context.staging.take(wire_bytes(total_of(its.inputs)));
    value_ = packed ? staging_.data() : (is_root_ ? its.inputs : its.outputs).front().data;
    if (is_root_) pack(its, value_);
    context.check(context.functions.ibcast(value_, total_of(its.inputs), kByte, its.root, comm(), &request),
                  "MPI_Ibcast");
  }

  void finish(Context& context) override {
    unpack(batch(), value_);
    context.staging.give_back(std::move(staging_));
  }

  bool is_root_;
  Staging staging_;
  std::byte* value_ = nullptr;
};

// What every rank gives, or gets, one after the other.
struct Parts {
  std::vector<Count> counts;
  std::vector<Aint> offsets;

  void add(int64_t count) {
    offsets.push_back(counts.empty() ? 0 : offsets.back() + counts.back());
    counts.push_back(count);
  }
};

class Allgather final : public Round {
 public:
  Allgather(Batch batch, SharedComm comm) : Round(std::move(batch), std::move(comm)) {
    for (const int64_t count : this->batch().counts) parts_.add(count);
  }

 private:
  void start(Context& context, Request& request) override {
    const Extent& input = batch().inputs.front();
    if (!lies_in_one_piece(batch().outputs)) output_ = context.staging.take(wire_bytes(total_of(batch().outputs)));
    result_ = output_.bytes > 0 ? output_.data() : batch().outputs.front().data;
    context.check(context.functions.iallgatherv(input.data, input.count, kByte, result_, parts_.counts.data(),
                                                parts_.offsets.data(), kByte, comm(), &request),
                  "MPI_Iallgatherv");
  }

  void finish(Context& context) override {
    if (output_.bytes > 0) unpack(batch(), result_);
    context.staging.give_back(std::move(output_));
  }

  Parts parts_;
  Staging output_;
  std::byte* result_ = nullptr;
};

class Alltoall final : public Round {
 public:
  Alltoall(Batch batch, SharedComm comm) : Round(std::move(batch), std::move(comm)) {
    const Batch& its = this->batch();
    const auto me = static_cast<size_t>(its.set_rank);
    for (const int64_t count : its.splits[me]) sent_.add(count);
    for (const auto& row : its.splits) received_.add(row[me]);
  }

 private:
  void start(Context& context, Request& request) override {
    const Batch& its = batch();
    const std::byte* given = its.inputs.front().data;
    if (!lies_in_one_piece(its.inputs)) {
      input_ = context.staging.take(wire_bytes(total_of(its.inputs)));
      pack(its, input_.data());
      given = input_.data();
    }
    if (!lies_in_one_piece(its.outputs)) output_ = context.staging.take(wire_bytes(total_of(its.outputs)));
    result_ = output_.bytes > 0 ? output_.data() : its.outputs.front().data;
    context.check(
        context.functions.ialltoallv(given, sent_.counts.data(), sent_.offsets.data(), kByte, result_,
                                     received_.counts.data(), received_.offsets.data(), kByte, comm(), &request),
        "MPI_Ialltoallv");
  }

  void finish(Context& context) override {
    if (output_.bytes > 0) unpack(batch(), result_);
    context.staging.give_back(std::move(input_));
    context.staging.give_back(std::move(output_));
  }

  Staging input_;
  Staging output_;
  std::byte* result_ = nullptr;
  Parts sent_;
  Parts received_;
};

class MakeCommunicator final : public Task {
 public:
  MakeCommunicator(SharedComm world, std::vector<int> members, int tag, SharedComm made)
      : world_(std::move(world)), members_(std::move(members)), tag_(tag), made_(std::move(made)) {}

  bool go_on(Context& context, std::vector<Request>& /*requests*/) override {
    try {
      make(context);
    } catch (const Error& error) {
      made_->error = error;
    }
    return false;
  }

 private:
  void make(Context& context) {
    const Functions& mpi = context.functions;
    Group all = kGroupNull;
    Group group = kGroupNull;
    context.check(mpi.comm_group(world_->get(), &all), "MPI_Comm_group");
    context.check(mpi.group_incl(all, static_cast<int>(members_.size()), members_.data(), &group), "MPI_Group_incl");
    context.check(mpi.comm_create_group(world_->get(), group, tag_, &made_->handle), "MPI_Comm_create_group");
    context.check(mpi.comm_set_errhandler(made_->get(), kErrorsReturn), "MPI_Comm_set_errhandler");
    context.check(mpi.group_free(&group), "MPI_Group_free");
    context.check(mpi.group_free(&all), "MPI_Group_free");
  }

  SharedComm world_;
  std::vector<int> members_;
  int tag_;
  SharedComm made_;
};

class FreeCommunicator final : public Task {
 public:
  explicit FreeCommunicator(SharedComm comm) : comm_(std::move(comm)) {}
  bool go_on(Context& context, std::vector<Request>& /*requests*/) override {
    if (comm_->handle != kCommNull) context.check(context.functions.comm_free(&comm_->handle), "MPI_Comm_free");
    return false;
  }

 private:
  SharedComm comm_;
};

}  // namespace

std::unique_ptr<Task> make_task(Collective collective, Batch batch, SharedComm comm, const Operators& operators) {
  switch (collective) {
    case Collective::kAllreduce:
      return std::make_unique<Allreduce>(std::move(batch), std::move(comm), operators);
    case Collective::kAdasum:
      return make_adasum(std::move(batch), std::move(comm));
    case Collective::kReducescatter:
      return std::make_unique<Reducescatter>(std::move(batch), std::move(comm), operators);
    case Collective::kAllgather:
      return std::make_unique<Allgather>(std::move(batch), std::move(comm));
    case Collective::kBroadcast:
      return std::make_unique<Broadcast>(std::move(batch), std::move(comm));
    case Collective::kAlltoall:
      return std::make_unique<Alltoall>(std::move(batch), std::move(comm));
  }
  throw Error(ErrorKind::kInternal, batch.what + ": MPI was given an unknown collective");
}

std::unique_ptr<Task> make_communicator(SharedComm world, std::vector<int> members, int tag, SharedComm made) {
  return std::make_unique<MakeCommunicator>(std::move(world), std::move(members), tag, std::move(made));
}

std::unique_ptr<Task> free_communicator(SharedComm comm) { return std::make_unique<FreeCommunicator>(std::move(comm)); }

}  // namespace hvd::mpi

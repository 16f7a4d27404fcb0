// The pipeline of one agreed operation: find the memory, prescale, hand it to the backend, postscale, complete. The only place where
// requests become calls of a backend.
#pragma once
#include <string>
#include <vector>

#include "backends/backend.h"
#include "engine/observers.h"
#include "engine/operation.h"
#include "engine/world.h"

namespace hvd {

class Executor {
 public:
  // number: place in the common order of what is carried out, see Execution::number.
  Executor(World* world, Backend* backend, const Observers* observers, const uint64_t* number)
      : world_(world), backend_(backend), observers_(observers), number_(number) {}

  // Carries out `response` with this rank's operations (in the order of response.names; null: this rank has joined and contributes
  // what changes no result: zeros to sums, see neutral()). The caller completes them. An error means that the job is over.
  Status run(const Response& response, const std::vector<Operation*>& operations);

  // An allreduce in halves, for one that the engine guards (engine/guard.h). stage() writes the values that this rank contributes to
  // `values` (staged_count() of the accumulation type), deliver() the callers' results from their reduction. Of a barrier nothing is
  // staged, and deliver() only tells of it.
  size_t staged_count(const Response& response) const;
  void stage(const Response& response, const std::vector<Operation*>& operations, std::byte* values);
  void deliver(const Response& response, const std::vector<Operation*>& operations, std::byte* values);

 private:
  void enter(Phase phase) const { observers_->tell(&Observer::entered, *current_, phase); }
  void hand_out(Comm& comm, const Response& r, const std::vector<Operation*>& ops, std::byte* values);
  Status dispatch(Comm& comm, const Response& r, const std::vector<Operation*>& ops);
  Status allreduce(Comm&, const Response&, const std::vector<Operation*>&);
  Status allreduce_exactly(Comm& among, const Response&, const Scale& after);
  const std::byte* neutral(Comm&, const Response&);
  Status allgather(Comm&, const Response&, const std::vector<Operation*>&);
  Status allgather_packed(Comm&, const Response&, const std::vector<Operation*>&);
  Status broadcast(Comm&, const Response&, Operation&);
  Status alltoall(Comm&, const Response&, Operation&);
  Status reducescatter(Comm&, const Response&, const std::vector<Operation*>&);
  Status reducescatter_packed(Comm&, const Response&, const std::vector<Operation*>&);
  Status reducescatter_exactly(Comm&, const Response&, const Operation&, const std::vector<size_t>& counts);

  World* world_;
  Backend* backend_;
  const Observers* observers_;
  const uint64_t* number_;
  const Execution* current_ = nullptr;  // while it is carried out
  std::vector<Segments::Piece> pieces_;
  std::vector<float*> residuals_;
  std::vector<size_t> sizes_, more_sizes_;
  // How several allgathers or reducescatters are carried out together: indices of tensors.
  struct Parts {
    std::vector<size_t> packed, alone;
    size_t packed_bytes = 0;
    void clear() { packed.clear(), alone.clear(), packed_bytes = 0; }
    void add(size_t index, size_t bytes);
    void settle();
  } parts_;
};

// For messages: "allreduce 'a' and 2 fused with it".
std::string described(const Response& response);

// Of the dimensions from `from` on.
size_t elements_of(const std::vector<int64_t>& shape, size_t from = 0);

// Execution::bytes, see there.
size_t bytes_of(const Response& response, const Comm& comm);

// What the backend is asked for: Average is a sum that is divided at the end.
ReduceOp backend_op(ReduceOp op);
// What follows the reduction over n ranks.
Scale scale_after(const Response& response, int n);

// True if the response sums integers that are averaged or scaled, whose sum must not wrap (collectives/exact_sum.h). Only the host does
// that.
bool sums_exactly(const Response& response);
// True if a rank that has joined must contribute other values than zeros.
bool needs_neutral(const Response& response);

// Elements of rank `index`'s part when `rows` rows of `row` elements are cut among n ranks: the first (rows mod n) get one row more.
size_t scattered_elements(int64_t rows, size_t row, int n, int index);

}  // namespace hvd

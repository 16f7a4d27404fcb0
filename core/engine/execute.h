// Executor of agreed operations: find the memory, prescale, call the backend, postscale. Only this class turns requests into backend calls.
#pragma once
#include <string>
#include <vector>

#include "backends/backend.h"
#include "engine/connections.h"
#include "engine/observers.h"
#include "engine/operation.h"

namespace hvd {

class Executor {
 public:
  // `number` points to the number of the current operation (Execution::number).
  Executor(Connections* connections, Backend* backend, const Observers* observers, const uint64_t* number)
      : connections_(connections), backend_(backend), observers_(observers), number_(number) {}

  // Execute `response` with this rank's operations, in the order of response.names. A null operation means that this rank has called
  // join(), and contributes values that do not change the result, such as zeros for sums (neutral()). The caller completes the operations.
  // An error ends the job.
  Status run(const Response& response, const std::vector<Operation*>& operations);

  // Store this rank's contribution to an allreduce in shared memory before it is certain that the allreduce runs, so that other ranks need
  // not wait for it later. Return false if nothing was stored. Call this only for responses for which may_stage() is true.
  static bool may_stage(const Response& response);
  bool stage_early(const Response& response, const std::vector<Operation*>& operations);

  // The steps of a guarded allreduce (engine/schedule_sync.h) before and after the reduction. stage() writes this rank's contribution to
  // `values`: staged_count() elements of the accumulation type. deliver() distributes the reduced values. For a barrier, there are no
  // values, and deliver() only notifies the observers.
  static size_t staged_count(const Response& response);
  void stage(const Response& response, const std::vector<Operation*>& operations, std::byte* values);
  void deliver(const Response& response, const std::vector<Operation*>& operations, std::byte* values);

 private:
  void enter(Phase phase) const { observers_->notify(&Observer::entered, *current_, phase); }
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

  Connections* connections_;
  Backend* backend_;
  const Observers* observers_;
  const uint64_t* number_;
  const Execution* current_ = nullptr;
  std::vector<Segments::Piece> pieces_;
  std::vector<float*> residuals_;
  std::vector<size_t> sizes_, more_sizes_;
  // Indices of the allgathers or reducescatters of a response that are packed together, and of those that are executed alone.
  struct Parts {
    std::vector<size_t> packed, alone;
    size_t packed_bytes = 0;
    void clear() { packed.clear(), alone.clear(), packed_bytes = 0; }
    void add(size_t index, size_t bytes);
    void settle();
  } parts_;
};

// Return a description for error messages, for example "allreduce 'a' and 2 fused with it".
std::string described(const Response& response);

// Return the product of the dimensions, starting at index `from`.
size_t elements_of(const std::vector<int64_t>& shape, size_t from = 0);

// Return the size of the response in bytes, as in Execution::bytes.
size_t bytes_of(const Response& response, const Comm& comm);

// Return the reduction that the backend must perform. An average is computed as a sum and divided afterwards.
ReduceOp backend_op(ReduceOp op);
// Return the scaling to apply after the reduction over n ranks.
Scale scale_after(const Response& response, int n);

// True if the response averages or scales integers, so that their sum must not overflow (collectives/exact_sum.h). Only
// the host path supports this.
bool sums_exactly(const Response& response);
// True if a rank that has called join() must contribute values other than zeros to this response.
bool needs_neutral(const Response& response);

// Return the number of elements that rank `index` gets when `rows` rows of `row` elements are split among n ranks. The first (rows mod n)
// ranks get one row more.
size_t scattered_elements(int64_t rows, size_t row, int n, int index);

}  // namespace hvd

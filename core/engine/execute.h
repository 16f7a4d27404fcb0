// The pipeline of one agreed operation: find the memory, prescale, hand it to the backend, postscale, complete. The only place where
// requests become calls of a backend.
#pragma once
#include <atomic>
#include <vector>

#include "backends/backend.h"
#include "engine/operation.h"
#include "engine/world.h"

namespace hvd {

class Executor {
 public:
  Executor(World* world, Backend* backend) : world_(world), backend_(backend) {}

  // Carries out `response` with this rank's operations (in the order of response.names; null: this rank has joined and contributes
  // zeros). The caller completes them. An error means that the job is over.
  Status run(const Response& response, const std::vector<Operation*>& operations);

  struct Counters {
    std::atomic<uint64_t> operations{0}, fused{0}, bytes{0};
  };
  const Counters& counters() const { return counters_; }

 private:
  Status dispatch(Comm& comm, const Response& r, const std::vector<Operation*>& ops);
  Status allreduce(Comm&, const Response&, const std::vector<Operation*>&);
  Status allgather(Comm&, const Response&, Operation&);
  Status broadcast(Comm&, const Response&, Operation&);
  Status alltoall(Comm&, const Response&, Operation&);
  Status reducescatter(Comm&, const Response&, Operation&);

  World* world_;
  Backend* backend_;
  Counters counters_;
  std::vector<Segments::Piece> pieces_;
  std::vector<float*> residuals_;
  std::vector<size_t> sizes_, more_sizes_;
};

// Elements of rank `index`'s part when `rows` rows of `row` elements are cut among n ranks: the first (rows mod n) get one row more.
size_t scattered_elements(int64_t rows, size_t row, int n, int index);

}  // namespace hvd

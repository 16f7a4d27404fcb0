// Fuzz target for the engine's driver, with control messages from peers. The first byte selects the role: rank 0 with
// two children, or rank 1 with parent 0. The bytes of the links follow. Operations have memory of exactly the required
// size, and the backend accesses all memory of an operation, so that the address sanitizer reports sizes that were not
// checked.
#include "engine/driver.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "fuzz.h"

// Allocator for the results of operations, which are in aligned memory. Large allocations throw, as they do when memory
// is exhausted. The address sanitizer would abort instead.
void* operator new(size_t bytes, std::align_val_t alignment) {
  constexpr size_t kMax = 64u << 20;
  const auto multiple = static_cast<size_t>(alignment);
  void* memory = bytes > kMax ? nullptr : std::aligned_alloc(multiple, (bytes + multiple - 1) / multiple * multiple);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

using namespace hvd;
using namespace hvd::fuzz;

namespace {

constexpr int kRanks = 3;

class TouchingBackend final : public Backend {
 public:
  const char* name() const override { return "touching"; }
  Status allreduce(Comm&, const Segments& segments, DType dtype, ReduceOp, const Scale&) override {
    for (const auto& piece : segments.pieces) {
      if (piece.out) std::memmove(piece.out, piece.in, piece.count * size_of(dtype));
    }
    return {};
  }
  Status allreduce_compressed(Comm& comm, const Segments& segments, std::span<float* const>, WireFormat, const Scale& scale) override {
    return allreduce(comm, segments, DType::float32, ReduceOp::sum, scale);
  }
  bool may_be_guarded(const Comm&, size_t, DType) const override { return false; }
  Status broadcast(Comm&, std::byte* data, size_t bytes, int root) override {
    if (root < 0) abort();
    if (bytes) std::memset(data, 1, bytes);
    return {};
  }
  Status allgather(Comm& comm, const std::byte* in, std::byte* out, std::span<const size_t> bytes) override {
    size_t at = 0;
    for (size_t r = 0; r < bytes.size(); ++r) {
      if (static_cast<int>(r) == comm.rank) std::memcpy(out + at, in, bytes[r]);
      at += bytes[r];
    }
    return {};
  }
  Status alltoall(Comm&, const std::byte* in, std::span<const size_t> send, std::byte* out, std::span<const size_t> receive) override {
    size_t sum = 0, room = 0;
    for (size_t n : send) {
      for (size_t i = 0; i < n; ++i) sum += static_cast<size_t>(in[room + i]);
      room += n;
    }
    size_t filled = 0;
    for (size_t n : receive) filled += n;
    if (filled) std::memset(out, static_cast<int>(sum), std::min<size_t>(filled, 4096));
    return {};
  }
  Status reducescatter(Comm& comm, const std::byte* in, std::byte* out, std::span<const size_t> counts, DType dtype, ReduceOp,
                       const Scale&) override {
    size_t before = 0;
    for (int r = 0; r < comm.rank; ++r) before += counts[r];
    std::memcpy(out, in + before * size_of(dtype), counts[comm.rank] * size_of(dtype));
    return {};
  }
  Status barrier(Comm&) override { return {}; }
};

struct Task {
  OperationPtr op = std::make_shared<Operation>();
  std::vector<std::byte> in, out;
  Task(Request q, size_t in_bytes, size_t out_bytes) : in(in_bytes), out(out_bytes) {
    op->request = std::move(q);
    op->in = in.data();
    op->out = out.data();
  }
};

Request request(Kind kind, const char* name, std::vector<int64_t> shape) {
  Request q;
  q.kind = kind;
  q.name = name;
  q.unnamed = !*name;
  q.shape = std::move(shape);
  return q;
}

std::vector<Task> tasks(int rank) {
  std::vector<Task> out;
  out.emplace_back(request(Kind::allreduce, "a", {2, 3}), 24, 24);
  out.emplace_back(request(Kind::allreduce, "b", {5}), 20, 20);
  out.emplace_back(request(Kind::allgather, "g", {rank + 1, 2}), 8u * (rank + 1), 0);
  Request q = request(Kind::alltoall, "t", {6});
  q.splits = {1, 2, 3};
  out.emplace_back(std::move(q), 24, 0);
  out.emplace_back(request(Kind::broadcast, "c", {3}), 12, 12);
  out.emplace_back(request(Kind::reducescatter, "r", {4}), 16, rank == 0 ? 8u : 4u);
  out.emplace_back(request(Kind::barrier, "", {}), 0, 0);
  return out;
}

std::unique_ptr<Link> feed(ConstBytes data) { return std::make_unique<FeedLink>(data); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const int rank = data[0] % 2;
  const ConstBytes bytes(reinterpret_cast<const std::byte*>(data) + 2, size - 2);
  EngineOptions o;
  o.rank = rank;
  o.size = kRanks;
  o.node_of = {0, 1, 2};
  o.labels = {"rank 0", "rank 1", "rank 2"};
  o.event_fds = {::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  o.backend = std::make_unique<TouchingBackend>();
  o.settings.timeout = 1;
  o.settings.cache_capacity = 64;
  for (int r = 0; r < kRanks; ++r) {
    if (r != rank) o.data[r] = feed({});
  }
  if (rank == 0) {
    const size_t cut = bytes.size() * data[1] / 256;
    o.children[1] = feed(bytes.first(cut));
    o.children[2] = feed(bytes.subspan(cut));
  } else {
    o.parent = feed(bytes);
  }
  Submissions submissions(rank, kRanks);
  std::vector<Task> mine = tasks(rank);
  Observers observers;
  MessageBus message_bus;
  const AbortRequest abort_request;
  Driver driver(o, &submissions, &observers, &message_bus, &abort_request);
  for (int round = 0; round < 3; ++round) {
    for (Task& task : mine) {
      bool wake = false;
      if (round == 0 || task.op->done()) {
        if (round > 0) task.op->reuse();
        (void)submissions.submit(task.op, &wake).ok();
      }
    }
    submissions.fence();
    for (int turn = 0; turn < 8 && driver.step(true); ++turn) {
    }
  }
  // End the job, because operations hold references to themselves until they are complete.
  const Status over(Code::shutdown, "the input has ended");
  for (const OperationPtr& op : submissions.end(over)) op->complete(over);
  for (Task& task : mine) {
    if (!task.op->done()) task.op->complete(over);
  }
  return 0;
}

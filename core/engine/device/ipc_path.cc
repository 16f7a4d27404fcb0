#include "engine/device/ipc_path.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/deadline.h"
#include "engine/execute.h"

namespace hvd {

// Response that is being executed, with this rank's operations.
struct IpcPath::Job {
  const Response& response;
  Comm& comm;
  const std::vector<OperationPtr>& operations;
  Sharing sharing;
  // Number of the response's first window, counted over all responses of the process set.
  uint64_t first;
  std::vector<Window> windows;
  size_t element;

  bool joined() const { return operations.empty(); }
  bool broadcasts() const { return response.kind == Kind::broadcast; }
  bool is_root() const { return broadcasts() && comm.rank_of(response.root) == comm.rank; }
  uint64_t number(size_t window) const { return first + window; }
  size_t elements(size_t window) const { return windows[window].bytes / element; }
};

// Return the copies between the tensors and the shared slot for one window (a part of the tensors that fits in a slot). A rank that has
// called join() has no tensors and contributes zeros.
template <class Memory>
std::vector<Compute::Move> moves_of(const Window& window, std::byte* slot, size_t element, bool into_slot, const Memory& memory) {
  std::vector<Compute::Move> moves;
  moves.reserve(window.parts.size());
  for (const Window::Part& part : window.parts) {
    std::byte* const own = memory(part.tensor) ? memory(part.tensor) + part.first * element : nullptr;
    std::byte* const shared = slot + part.at;
    moves.push_back(into_slot ? Compute::Move{own, shared, part.count} : Compute::Move{shared, own, part.count});
  }
  return moves;
}

Status IpcPath::start(const Response& r, Comm& comm, const std::vector<OperationPtr>& operations) {
  Set& set = sets_[r.set];
  std::vector<size_t> elements;
  for (const auto& shape : r.shapes) elements.push_back(elements_of(shape));
  const size_t element = size_of(r.dtype);
  const Job job{r, comm, operations, set.sharing, set.windows, windows_of(elements, element, set.window), element};
  set.windows += job.windows.size();
  const Device::Turn turn(*device_);
  HVD_RETURN_IF_ERROR(turn.status().with(device_->description()));
  const Status status = carry_out(job);
  // Record the completion even after a partial failure, because the device might still use the tensors.
  std::shared_ptr<const Completion> completion;
  const Status recorded = Completion::record(device_, exchange_->stream(), &completion);
  if (recorded.ok()) {
    for (const OperationPtr& op : operations) op->on_device->completion = completion;
    pending_.add(completion, described(r));
    if (!last_) next_look_ = Clock::now() + std::chrono::milliseconds(1);
    last_ = completion;
  }
  return status.ok() ? recorded : status;
}

Status IpcPath::carry_out(const Job& job) {
  HVD_RETURN_IF_ERROR(begin(job).with(device_->description()));
  const size_t windows = job.windows.size();
  for (size_t round = 0; windows > 0 && round < windows + 2; ++round) {
    Status status;
    if (round >= 2) status = take(job, round - 2);
    if (status.ok() && round < windows) status = put(job, round);
    if (status.ok() && round >= 1 && round <= windows) status = work(job, round - 1);
    HVD_RETURN_IF_ERROR(status.with(device_->description()));
    if (round <= windows) HVD_RETURN_IF_ERROR(host_->barrier(job.comm));
  }
  return {};
}

Status IpcPath::begin(const Job& job) {
  for (const OperationPtr& op : job.operations) HVD_RETURN_IF_ERROR(device_->wait(exchange_->stream(), op->on_device->ready));
  if (job.is_root() && !job.joined()) {
    const Operation& op = *job.operations.front();
    if (op.in != op.out) return device_->copy(op.out, op.in, elements_of(job.response.shapes[0]) * job.element, exchange_->stream());
  }
  return {};
}

Status IpcPath::put(const Job& job, size_t window) {
  if (job.broadcasts() && !job.is_root()) return {};
  const uint64_t number = job.number(window);
  std::byte* const slot = exchange_->slot(exchange_->me(), number);
  if (job.joined()) {
    HVD_RETURN_IF_ERROR(device_->zero(slot, job.windows[window].bytes, exchange_->stream()));
  } else {
    const auto in = [&](size_t tensor) { return const_cast<std::byte*>(job.operations[tensor]->in); };
    const auto moves = moves_of(job.windows[window], slot, job.element, true, in);
    const Scale before{job.broadcasts() ? 1.0 : job.response.prescale, 1};
    HVD_RETURN_IF_ERROR(compute_->pack(job.response.dtype, job.response.dtype, moves, before, exchange_->stream()));
  }
  return exchange_->tell(Exchange::kReady, number);
}

Status IpcPath::work(const Job& job, size_t window) {
  const uint64_t number = job.number(window);
  const Device::Stream stream = exchange_->stream();
  const auto wait_for = [&](int rank) {
    const int global = job.comm.global_ranks[static_cast<size_t>(rank)];
    return rank == job.comm.rank ? Status() : exchange_->await(exchange_->peer(global), Exchange::kReady, number);
  };
  if (job.broadcasts()) {
    if (job.is_root()) return {};
    const int root = job.comm.rank_of(job.response.root);
    HVD_RETURN_IF_ERROR(wait_for(root));
    if (!job.joined()) {
      std::byte* const from = exchange_->slot(exchange_->peer(job.response.root), number);
      const auto out = [&](size_t tensor) { return job.operations[tensor]->out; };
      const auto moves = moves_of(job.windows[window], from, job.element, false, out);
      HVD_RETURN_IF_ERROR(compute_->pack(job.response.dtype, job.response.dtype, moves, {}, stream));
    }
  } else {
    for (int rank = 0; rank < job.comm.size; ++rank) HVD_RETURN_IF_ERROR(wait_for(rank));
    HVD_RETURN_IF_ERROR(job.response.kind == Kind::allreduce ? reduce(job, window) : scatter(job, window));
  }
  return exchange_->tell(Exchange::kDone, number);
}

Status IpcPath::reduce(const Job& job, size_t window) {
  const uint64_t number = job.number(window);
  const kernels::Slice local = reduced_by(job.sharing, job.comm.rank, job.comm.size, number, job.elements(window), job.element);
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> destinations;
  for (int global : job.comm.global_ranks) destinations.push_back(exchange_->slot(exchange_->peer(global), number));
  sources.assign(destinations.begin(), destinations.end());
  const Response& r = job.response;
  return compute_->reduce(r.dtype, r.op, sources, destinations, local.begin, local.end, scale_after(r, job.comm.size), exchange_->stream());
}

// Reduce this rank's part of each tensor directly to its output.
Status IpcPath::scatter(const Job& job, size_t window) {
  if (job.joined()) return {};
  const Response& r = job.response;
  const uint64_t number = job.number(window);
  std::vector<const std::byte*> sources;
  for (int global : job.comm.global_ranks) sources.push_back(exchange_->slot(exchange_->peer(global), number));
  for (const Window::Part& part : job.windows[window].parts) {
    const auto& shape = r.shapes[part.tensor];
    const size_t row = elements_of(shape, 1);
    size_t begin = 0;
    for (int rank = 0; rank < job.comm.rank; ++rank) begin += scattered_elements(shape[0], row, job.comm.size, rank);
    const size_t end = begin + scattered_elements(shape[0], row, job.comm.size, job.comm.rank);
    const size_t from = std::max(begin, part.first), to = std::min(end, part.first + part.count);
    if (from >= to) continue;
    // The kernel uses one element index for sources and output. Pass an output address shifted back by the index of the first source
    // element.
    const size_t first = part.at / job.element + from - part.first;
    const uintptr_t out = reinterpret_cast<uintptr_t>(job.operations[part.tensor]->out) + (from - begin) * job.element;
    std::byte* const destination[] = {reinterpret_cast<std::byte*>(out - first * job.element)};
    HVD_RETURN_IF_ERROR(compute_->reduce(r.dtype, r.op, sources, destination, first, first + to - from, scale_after(r, job.comm.size),
                                         exchange_->stream()));
  }
  return {};
}

Status IpcPath::take(const Job& job, size_t window) {
  const uint64_t number = job.number(window);
  // No other rank accesses this rank's buffer, so there is nothing to wait for.
  if (job.broadcasts() && !job.is_root()) return {};
  const bool one = job.response.kind == Kind::allreduce && job.sharing == Sharing::by_turns;
  for (int rank = 0; rank < job.comm.size; ++rank) {
    if (rank == job.comm.rank || (one && number % static_cast<uint64_t>(job.comm.size) != static_cast<uint64_t>(rank))) continue;
    const int global = job.comm.global_ranks[static_cast<size_t>(rank)];
    HVD_RETURN_IF_ERROR(exchange_->await(exchange_->peer(global), Exchange::kDone, number));
  }
  if (job.response.kind != Kind::allreduce || job.joined()) return {};
  const auto out = [&](size_t tensor) { return job.operations[tensor]->out; };
  const auto moves = moves_of(job.windows[window], exchange_->slot(exchange_->me(), number), job.element, false, out);
  return compute_->pack(job.response.dtype, job.response.dtype, moves, {}, exchange_->stream());
}

void IpcPath::end(const Status& why, bool well) {
  sets_.clear();
  if (!exchange_) return;
  if (!well) pending_.fail(why);
  last_.reset();
  exchange_->retire(!well);
}

Status IpcPath::look() {
  const auto now = Clock::now();
  if (!last_ || now < next_look_) return {};
  next_look_ = now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(kLook));
  bool there = false;
  const Status status = last_->passed(&there);
  if (there) last_.reset();
  return status.with(device_->description());
}

void IpcPath::await_end() {
  constexpr double kWithin = 2;
  if (!exchange_) return;
  for (const Deadline deadline = Deadline::after(kWithin); Exchange::sweep() && !deadline.passed();) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace hvd

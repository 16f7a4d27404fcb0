// The early staging of an allreduce, and the steps of a guarded allreduce before and after the reduction. The latter match those of
// allreduce() and the backend in order and types, so the results are bitwise identical.
#include <cstring>

#include "collectives/reduce.h"
#include "engine/execute.h"

namespace hvd {
namespace {

// Scratch slot for 16-bit floats, which are converted to float32 for the reduction and back.
constexpr int kNarrowSlot = 8;

}  // namespace

size_t Executor::staged_count(const Response& r) {
  // A barrier has the shape of a scalar, but no elements.
  if (r.kind != Kind::allreduce) return 0;
  size_t total = 0;
  for (const auto& shape : r.shapes) total += elements_of(shape);
  return total;
}

bool Executor::may_stage(const Response& r) {
  // Maximum size in bytes. Tuning::direct_bytes usually sets a lower limit.
  constexpr size_t kMax = 64u << 10;
  if (r.kind != Kind::allreduce || r.device != DeviceKind::host || r.across_hosts || r.op == ReduceOp::adasum) return false;
  if (r.wire != WireFormat::none || r.prescale != 1.0 || sums_exactly(r)) return false;
  const size_t total = staged_count(r);
  return total > 0 && total * size_of(r.dtype) <= kMax;
}

bool Executor::stage_early(const Response& r, const std::vector<Operation*>& ops) {
  pieces_.clear();
  size_t total = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (!ops[i]) return false;
    const size_t count = elements_of(r.shapes[i]);
    total += count;
    pieces_.push_back({ops[i]->in, ops[i]->out, count});
  }
  return backend_->stage_allreduce(*connections_->comm(r.set), {pieces_, total}, r.dtype);
}

void Executor::stage(const Response& r, const std::vector<Operation*>& ops, std::byte* values) {
  const size_t total = staged_count(r), element = size_of(r.dtype);
  const bool half = accumulator(r.dtype) != r.dtype;
  std::byte* narrow = half ? connections_->comm(r.set)->scratch->get(kNarrowSlot, total * element) : values;
  std::byte* to = narrow;
  for (size_t i = 0; i < ops.size(); ++i) {
    const size_t bytes = elements_of(r.shapes[i]) * element;
    if (bytes) std::memcpy(to, ops[i]->in, bytes);
    to += bytes;
  }
  if (r.prescale != 1.0) scale(r.dtype, narrow, narrow, total, {r.prescale, 1});
  if (half) widen(r.dtype, reinterpret_cast<float*>(values), narrow, total);
}

void Executor::deliver(const Response& r, const std::vector<Operation*>& ops, std::byte* values) {
  Comm& comm = *connections_->comm(r.set);
  const Execution execution{r, ops, comm, *backend_, bytes_of(r, comm), true, *number_};
  observers_->notify(&Observer::started, execution);
  observers_->notify(&Observer::entered, execution, Phase::copy_out);
  hand_out(comm, r, ops, values);
  observers_->notify(&Observer::finished, execution, Status());
}

void Executor::hand_out(Comm& comm, const Response& r, const std::vector<Operation*>& ops, std::byte* values) {
  const size_t total = staged_count(r), element = size_of(r.dtype);
  if (total == 0) return;
  std::byte* data = values;
  if (accumulator(r.dtype) != r.dtype) {
    data = comm.scratch->get(kNarrowSlot, total * element);
    hvd::narrow(r.dtype, data, reinterpret_cast<const float*>(values), total);
  }
  const Scale after = scale_after(r, comm.size);
  if (!after.identity()) scale(r.dtype, data, data, total, after);
  for (size_t i = 0; i < ops.size(); ++i) {
    const size_t bytes = elements_of(r.shapes[i]) * element;
    if (bytes) std::memcpy(ops[i]->out, data, bytes);
    data += bytes;
  }
}

}  // namespace hvd

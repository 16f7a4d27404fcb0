// Allgather and reducescatter of one or several tensors. Small tensors are packed into one operation to reduce latency. Large tensors are
// executed alone, because packing and unpacking would cost more than the latency saved.
#include <cstring>
#include <numeric>

#include "collectives/reduce.h"
#include "engine/execute.h"

namespace hvd {
namespace {

// Maximum size in bytes of a tensor to pack: the result of an allgather, or the input of a reducescatter. All ranks know these sizes, so
// they pack the same tensors.
constexpr size_t kSmall = 128u << 10;
// Maximum total size in bytes of the packed tensors. This bounds the memory, which is kept between operations.
constexpr size_t kMaxPacked = 4u << 20;
// Slots of Comm::scratch that no backend or algorithm uses.
constexpr int kSlotIn = 7, kSlotOut = 9;

}  // namespace

size_t scattered_elements(int64_t rows, size_t row, int n, int index) {
  return static_cast<size_t>(rows / n + (index < rows % n ? 1 : 0)) * row;
}

// Add tensor `index` with `bytes` bytes either to the packed tensors or to those executed alone.
void Executor::Parts::add(size_t index, size_t bytes) {
  const bool fits = bytes <= kSmall && packed_bytes + bytes <= kMaxPacked;
  (fits ? packed : alone).push_back(index);
  if (fits) packed_bytes += bytes;
}

void Executor::Parts::settle() {
  // A single small tensor is executed alone, because it has nothing to be packed with.
  if (packed.size() != 1) return;
  alone.push_back(packed.front());
  packed.clear();
}

Status Executor::allgather(Comm& comm, const Response& r, const std::vector<Operation*>& ops) {
  const size_t n = static_cast<size_t>(comm.size);
  parts_.clear();
  enter(Phase::allocate_output);
  for (size_t i = 0; i < ops.size(); ++i) {
    ops[i]->sizes.assign(r.sizes.begin() + static_cast<ptrdiff_t>(i * n), r.sizes.begin() + static_cast<ptrdiff_t>((i + 1) * n));
    const auto rows = std::accumulate(ops[i]->sizes.begin(), ops[i]->sizes.end(), int64_t{0});
    const size_t total = static_cast<size_t>(rows) * elements_of(r.shapes[i], 1) * size_of(r.dtype);
    ops[i]->make_output(total);
    parts_.add(i, total);
  }
  parts_.settle();
  if (!parts_.packed.empty()) HVD_RETURN_IF_ERROR(allgather_packed(comm, r, ops));
  for (size_t i : parts_.alone) {
    const size_t row = elements_of(r.shapes[i], 1) * size_of(r.dtype);
    sizes_.clear();
    for (int64_t rows : ops[i]->sizes) sizes_.push_back(static_cast<size_t>(rows) * row);
    enter(Phase::carry);
    HVD_RETURN_IF_ERROR(backend_->allgather(comm, ops[i]->in, ops[i]->output->data(), sizes_));
  }
  return {};
}

// Execute several allgathers as one. In the message, a rank's contributions to all tensors are contiguous.
Status Executor::allgather_packed(Comm& comm, const Response& r, const std::vector<Operation*>& ops) {
  const size_t n = static_cast<size_t>(comm.size), me = static_cast<size_t>(comm.rank);
  const auto part = [&](size_t i, size_t rank) {
    return static_cast<size_t>(ops[i]->sizes[rank]) * elements_of(r.shapes[i], 1) * size_of(r.dtype);
  };
  sizes_.assign(n, 0);
  for (size_t i : parts_.packed) {
    for (size_t rank = 0; rank < n; ++rank) sizes_[rank] += part(i, rank);
  }
  enter(Phase::copy_in);
  std::byte* own = comm.scratch->get(kSlotIn, sizes_[me]);
  for (size_t at = 0; size_t i : parts_.packed) {
    if (part(i, me) > 0) std::memcpy(own + at, ops[i]->in, part(i, me));
    at += part(i, me);
  }
  const std::byte* all = comm.scratch->get(kSlotOut, std::accumulate(sizes_.begin(), sizes_.end(), size_t{0}));
  enter(Phase::carry);
  HVD_RETURN_IF_ERROR(backend_->allgather(comm, own, const_cast<std::byte*>(all), sizes_));
  enter(Phase::copy_out);
  // Number of bytes unpacked so far for each tensor.
  more_sizes_.assign(ops.size(), 0);
  for (size_t rank = 0; rank < n; ++rank) {
    for (size_t i : parts_.packed) {
      const size_t bytes = part(i, rank);
      if (bytes > 0) std::memcpy(ops[i]->output->data() + more_sizes_[i], all, bytes);
      more_sizes_[i] += bytes;
      all += bytes;
    }
  }
  return {};
}

Status Executor::reducescatter(Comm& comm, const Response& r, const std::vector<Operation*>& ops) {
  const bool exact = sums_exactly(r);
  parts_.clear();
  for (size_t i = 0; i < ops.size(); ++i) {
    const size_t total = elements_of(r.shapes[i]) * size_of(r.dtype);
    if (exact) {
      parts_.alone.push_back(i);
    } else {
      parts_.add(i, total);
    }
  }
  parts_.settle();
  if (!parts_.packed.empty()) HVD_RETURN_IF_ERROR(reducescatter_packed(comm, r, ops));
  for (size_t i : parts_.alone) {
    const size_t row = elements_of(r.shapes[i], 1), total = elements_of(r.shapes[i]);
    sizes_.clear();
    for (int rank = 0; rank < comm.size; ++rank) sizes_.push_back(scattered_elements(r.shapes[i][0], row, comm.size, rank));
    if (exact) {
      HVD_RETURN_IF_ERROR(reducescatter_exactly(comm, r, *ops[i], sizes_));
      continue;
    }
    const std::byte* in = ops[i]->in;
    if (r.prescale != 1.0) {
      // The output is smaller than the input, so the scaled input needs separate memory.
      enter(Phase::copy_in);
      std::byte* scaled = comm.scratch->get(kSlotIn, total * size_of(r.dtype));
      scale(r.dtype, scaled, in, total, {r.prescale, 1});
      in = scaled;
    }
    enter(Phase::carry);
    HVD_RETURN_IF_ERROR(backend_->reducescatter(comm, in, ops[i]->out, sizes_, r.dtype, backend_op(r.op), scale_after(r, comm.size)));
  }
  return {};
}

// Execute several reducescatters as one. In the message, the parts of all tensors for one rank are contiguous.
Status Executor::reducescatter_packed(Comm& comm, const Response& r, const std::vector<Operation*>& ops) {
  const int n = comm.size;
  const size_t element = size_of(r.dtype);
  const auto part = [&](size_t i, int rank) { return scattered_elements(r.shapes[i][0], elements_of(r.shapes[i], 1), n, rank); };
  size_t total = 0;
  for (size_t i : parts_.packed) total += elements_of(r.shapes[i]);
  enter(Phase::copy_in);
  std::byte* packed = comm.scratch->get(kSlotIn, total * element);
  sizes_.assign(static_cast<size_t>(n), 0);
  // Number of elements packed so far for each tensor.
  more_sizes_.assign(ops.size(), 0);
  std::byte* to = packed;
  for (int rank = 0; rank < n; ++rank) {
    for (size_t i : parts_.packed) {
      const size_t count = part(i, rank);
      if (count > 0) std::memcpy(to, ops[i]->in + more_sizes_[i] * element, count * element);
      to += count * element;
      more_sizes_[i] += count;
      sizes_[static_cast<size_t>(rank)] += count;
    }
  }
  if (r.prescale != 1.0) scale(r.dtype, packed, packed, total, {r.prescale, 1});
  std::byte* own = comm.scratch->get(kSlotOut, sizes_[static_cast<size_t>(comm.rank)] * element);
  enter(Phase::carry);
  HVD_RETURN_IF_ERROR(backend_->reducescatter(comm, packed, own, sizes_, r.dtype, backend_op(r.op), scale_after(r, n)));
  enter(Phase::copy_out);
  for (const std::byte* from = own; size_t i : parts_.packed) {
    const size_t bytes = part(i, comm.rank) * element;
    if (bytes > 0) std::memcpy(ops[i]->out, from, bytes);
    from += bytes;
  }
  return {};
}

}  // namespace hvd

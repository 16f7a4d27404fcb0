#include "collectives/flow.h"

#include <algorithm>

namespace hvd {
namespace {

// Number of bytes combined at a time. Two operands of this size fit in a 256 KiB cache.
constexpr size_t kBlock = 64 << 10;

void combine_into(const Combine& c, std::byte* own, const std::byte* remote, size_t bytes) {
  if (bytes > 0) reduce2(c.dtype, c.op, own, c.theirs_first ? remote : own, c.theirs_first ? own : remote, bytes / size_of(c.dtype));
}

}  // namespace

Inflow::Inflow(Comm& comm, int from, const Combine* combine) : comm_(comm), from_(from), combine_(combine) {}

void Inflow::start(Bytes target) { start(target, combine_); }

void Inflow::start(Bytes target, const Combine* combine) {
  combine_ = combine;
  target_ = target;
  ready_ = 0;
  open_window();
}

void Inflow::open_window() {
  const size_t left = target_.size() - ready_;
  if (combine_) {
    const size_t n = std::min(left, kBlock);
    window_ = Bytes(comm_.scratch->get(kSlotTheirs, kBlock), n / size_of(combine_->dtype) * size_of(combine_->wire));
  } else {
    window_ = target_.subspan(ready_);
  }
  rest_ = window_;
}

Status Inflow::advance(bool& moved) {
  if (done()) return {};
  const size_t before = rest_.size();
  HVD_RETURN_IF_ERROR(advance_in(comm_, from_, rest_, moved));
  if (!combine_) {
    ready_ += before - rest_.size();
    return {};
  }
  if (!rest_.empty()) return {};
  const size_t count = window_.size() / size_of(combine_->wire), bytes = count * size_of(combine_->dtype);
  const std::byte* remote = window_.data();
  if (combine_->wire != combine_->dtype) {
    std::byte* wide = comm_.scratch->get(kSlotTheirsWide, kBlock);
    widen(combine_->wire, reinterpret_cast<float*>(wide), remote, count);
    remote = wide;
  }
  combine_into(*combine_, target_.data() + ready_, remote, bytes);
  ready_ += bytes;
  open_window();
  return {};
}

Status exchange_combine(Comm& comm, int to, ConstBytes out, int from, Bytes own, const Combine& combine) {
  Inflow in(comm, from, &combine);
  in.start(own);
  auto text = [&] { return pending_text(comm, to, !out.empty(), from, !in.done()); };
  return pump(comm, text, [&](bool& moved, bool& done) -> Status {
    HVD_RETURN_IF_ERROR(advance_out(comm, to, out, moved));
    HVD_RETURN_IF_ERROR(in.advance(moved));
    done = out.empty() && in.done();
    return {};
  });
}

Status swap_combine(Comm& comm, int peer, Bytes own, std::byte* remote, const Combine& combine) {
  ConstBytes out = own;
  Bytes in(remote, own.size());
  size_t combined = 0;
  auto text = [&] { return pending_text(comm, peer, !out.empty(), peer, !in.empty()); };
  return pump(comm, text, [&](bool& moved, bool& done) -> Status {
    HVD_RETURN_IF_ERROR(advance_out(comm, peer, out, moved));
    HVD_RETURN_IF_ERROR(advance_in(comm, peer, in, moved));
    const bool all = out.empty() && in.empty();
    const size_t both = own.size() - std::max(out.size(), in.size());
    const size_t bytes = all ? own.size() - combined : (both - combined) / kBlock * kBlock;
    combine_into(combine, own.data() + combined, remote + combined, bytes);
    combined += bytes;
    done = all;
    return {};
  });
}

namespace {

// Make one pass around the ring (see ring_pass()). If `raw` is not null, the first slice is sent from the 16-bit floats at `raw`, not from
// `base`.
Status pass(Comm& comm, std::byte* base, std::span<const size_t> offsets, int first, const Combine* combine, const std::byte* raw,
            DType d) {
  const int n = comm.size, next = (comm.rank + 1) % n, previous = (comm.rank + n - 1) % n;
  auto slice = [&](int step) {
    const int i = ((first - step) % n + n) % n;
    return Bytes(base + offsets[i], offsets[i + 1] - offsets[i]);
  };
  auto sent_in = [&](int step) -> ConstBytes {
    const Bytes whole = slice(step);
    if (!raw || step > 0) return whole;
    const size_t ratio = sizeof(float) / size_of(d);
    return {raw + (whole.data() - base) / ratio, whole.size() / ratio};
  };
  Combine halves{};
  if (raw) {
    halves = *combine;
    halves.wire = d;
  }
  Inflow in(comm, previous, combine);
  // Step of receiving, in which slice(step + 1) arrives, and step of sending, in which slice(step) is sent.
  int receiving = 0, sending = 0;
  // Bytes of the current slice that have been sent.
  size_t sent = 0;
  in.start(slice(1), raw ? &halves : combine);
  auto text = [&] { return pending_text(comm, next, sending < n - 1, previous, receiving < n - 1); };
  return pump(comm, text, [&](bool& moved, bool& done) -> Status {
    if (receiving < n - 1) {
      HVD_RETURN_IF_ERROR(in.advance(moved));
      if (in.done() && ++receiving < n - 1) {
        in.start(slice(receiving + 1), combine);
        // An empty slice is complete immediately, which counts as progress.
        moved = true;
      }
    }
    if (sending < n - 1) {
      const ConstBytes whole = sent_in(sending);
      const size_t sendable = sending <= receiving ? whole.size() : in.ready();
      ConstBytes out = whole.first(sendable).subspan(sent);
      const size_t before = out.size();
      HVD_RETURN_IF_ERROR(advance_out(comm, next, out, moved));
      sent += before - out.size();
      if (sent == whole.size() && sendable == whole.size()) {
        ++sending;
        sent = 0;
        moved = true;
      }
    }
    done = sending >= n - 1 && receiving >= n - 1;
    return {};
  });
}

}  // namespace

Status ring_pass(Comm& comm, std::byte* base, std::span<const size_t> offsets, int first, const Combine* combine) {
  return pass(comm, base, offsets, first, combine, nullptr, DType::uint8);
}

Status ring_pass_halves(Comm& comm, const std::byte* data, DType d, std::byte* base, std::span<const size_t> offsets, int first,
                        ReduceOp op) {
  const Combine combine{DType::float32, op, true};
  return pass(comm, base, offsets, first, &combine, data, d);
}

Status relay(Comm& comm, int from, int to, Bytes data) {
  Inflow in(comm, from, nullptr);
  in.start(data);
  size_t sent = 0;
  auto have = [&] { return from < 0 ? data.size() : in.ready(); };
  auto text = [&] { return pending_text(comm, to, to >= 0 && sent < have(), from, have() < data.size()); };
  return pump(comm, text, [&](bool& moved, bool& done) -> Status {
    if (from >= 0) HVD_RETURN_IF_ERROR(in.advance(moved));
    if (to >= 0) {
      ConstBytes out = data.first(have()).subspan(sent);
      const size_t before = out.size();
      HVD_RETURN_IF_ERROR(advance_out(comm, to, out, moved));
      sent += before - out.size();
    }
    done = have() == data.size() && (to < 0 || sent == data.size());
    return {};
  });
}

std::byte* widened(Comm& comm, int slot, std::byte* data, size_t count, DType d) {
  if (!is_half(d)) return data;
  std::byte* wide = comm.scratch->get(slot, count * sizeof(float));
  widen(d, reinterpret_cast<float*>(wide), data, count);
  return wide;
}

void narrowed(std::byte* data, const std::byte* wide, size_t first, size_t count, DType d) {
  if (!is_half(d)) return;
  narrow(d, data + first * size_of(d), reinterpret_cast<const float*>(wide) + first, count);
}

}  // namespace hvd

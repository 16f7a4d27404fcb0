#include "collectives/guarded.h"

#include <poll.h>

#include <algorithm>
#include <cstring>

#include "collectives/flow.h"

namespace hvd {
namespace {

// Offset of the data in a message. The data start on a cache line, directly after the header.
constexpr size_t kDataAt = 64;
constexpr size_t kHeaderAt = kDataAt - sizeof(GuardHeader);
// Step number of the additional step that combines pairs of ranks (Fold in flow.h). All other steps have lower numbers.
constexpr uint32_t kFoldStep = 1u << 31;

}  // namespace

GuardHeader& GuardedAllreduce::header() const { return *reinterpret_cast<GuardHeader*>(own_ + kHeaderAt); }

std::byte* GuardedAllreduce::begin(Comm& comm, uint64_t schedule, uint64_t position, uint64_t ready, size_t count, DType acc, ReduceOp op) {
  comm_ = &comm;
  schedule_ = schedule;
  position_ = position;
  count_ = count;
  bytes_ = count * size_of(acc);
  acc_ = acc;
  op_ = op;
  own_ = comm.scratch->get(kSlotGuardMine, kDataAt + bytes_);
  remote_ = comm.scratch->get(kSlotGuardTheirs, kDataAt + bytes_);
  header() = {schedule, position, ready, static_cast<uint32_t>(bytes_), 0};
  plan();
  at_ = 0;
  start_step();
  return own_ + kDataAt;
}

void GuardedAllreduce::plan() {
  const Fold fold = Fold::of(comm_->rank, comm_->size);
  steps_.clear();
  if (fold.place < 0) {
    steps_.push_back({comm_->rank - 1, kFoldStep, true, Then::take});
    return;
  }
  if (fold.pairs(comm_->rank)) steps_.push_back({comm_->rank + 1, kFoldStep, false, Then::combine_mine_first});
  for (int distance = 1; distance < fold.places; distance *= 2) {
    const int place = fold.place ^ distance;
    const Then then = fold.place < place ? Then::combine_mine_first : Then::combine_theirs_first;
    steps_.push_back({fold.rank_at(place), static_cast<uint32_t>(distance), true, then});
  }
  if (fold.pairs(comm_->rank)) steps_.push_back({comm_->rank + 1, kFoldStep, true, Then::nothing});
}

void GuardedAllreduce::start_step() {
  if (!under_way()) return;
  const Step& step = steps_[at_];
  const size_t bytes = sizeof(GuardHeader) + bytes_;
  header().step = step.number;
  out_ = step.sends ? ConstBytes(own_ + kHeaderAt, bytes) : ConstBytes();
  in_ = step.then != Then::nothing ? Bytes(remote_ + kHeaderAt, bytes) : Bytes();
}

Status GuardedAllreduce::advance(bool* moved) {
  while (under_way()) {
    const int peer = steps_[at_].peer;
    HVD_RETURN_IF_ERROR(advance_out(*comm_, peer, out_, *moved));
    HVD_RETURN_IF_ERROR(advance_in(*comm_, peer, in_, *moved));
    if (!out_.empty() || !in_.empty()) return {};
    HVD_RETURN_IF_ERROR(finish_step());
    ++at_;
    *moved = true;
    start_step();
  }
  return {};
}

Status GuardedAllreduce::finish_step() {
  const Step& step = steps_[at_];
  if (step.then == Then::nothing) return {};
  GuardHeader remote;
  std::memcpy(&remote, remote_ + kHeaderAt, sizeof remote);
  HVD_RETURN_IF_ERROR(check(remote));
  if (step.then == Then::take) {
    std::memcpy(own_ + kHeaderAt, remote_ + kHeaderAt, sizeof remote + bytes_);
    return {};
  }
  header().ready = std::min(header().ready, remote.ready);
  // If a rank is not ready, the operation will not take place, so do not combine the data.
  if (header().ready <= position_ || count_ == 0) return {};
  std::byte* own = own_ + kDataAt;
  const std::byte* other = remote_ + kDataAt;
  // Both ranks combine the same operands in the same order, so their results are bitwise identical.
  const bool mine_first = step.then == Then::combine_mine_first;
  reduce2(acc_, op_, own, mine_first ? own : other, mine_first ? other : own, count_);
  return {};
}

Status GuardedAllreduce::check(const GuardHeader& remote) const {
  if (remote.schedule == schedule_ && remote.position == position_ && remote.bytes == bytes_ && remote.step == steps_[at_].number)
    return {};
  const std::string peer = peer_name(*comm_, steps_[at_].peer);
  const std::string here = " at position " + std::to_string(position_) + " of schedule " + std::to_string(schedule_);
  if (remote.schedule != schedule_ || remote.position != position_) {
    return Status(Code::internal, peer + " is at position " + std::to_string(remote.position) + " of schedule " +
                                      std::to_string(remote.schedule) + ", this rank" + here);
  }
  return Status(Code::internal, peer + " is out of step" + here + ": " + std::to_string(remote.bytes) + " bytes in step " +
                                    std::to_string(remote.step) + ", expected " + std::to_string(bytes_) + " in step " +
                                    std::to_string(steps_[at_].number));
}

void GuardedAllreduce::poll_fds(std::vector<std::pair<int, short>>& fds) const {
  if (!under_way()) return;
  const Link* link = comm_->links[steps_[at_].peer];
  const int events = (in_.empty() ? 0 : POLLIN) | (out_.empty() ? 0 : POLLOUT);
  if (link && link->fd() >= 0) fds.emplace_back(link->fd(), static_cast<short>(events));
}

std::string GuardedAllreduce::waits_for() const {
  return under_way() ? pending_text(*comm_, steps_[at_].peer, !out_.empty(), steps_[at_].peer, !in_.empty()) : "";
}

}  // namespace hvd

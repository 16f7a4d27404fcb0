#include "engine/steady.h"

#include <algorithm>

#include "base/wire.h"

namespace hvd {
namespace {

// A word: 25 bits of schedule id, the frozen bit, 38 bits of position.
constexpr uint64_t kPositionBits = 38;
constexpr uint64_t kFrozen = uint64_t{1} << kPositionBits;
constexpr uint64_t kPositionMask = kFrozen - 1;

}  // namespace

Steady::Steady(std::shared_ptr<const Schedule> schedule, std::vector<std::vector<int>> members, World* world, Control* control)
    : schedule_(std::move(schedule)), members_(std::move(members)), world_(world), control_(control), way_(way_for(*world, *schedule_)) {}

// The same on every rank.
Steady::Way Steady::way_for(const World& world, const Schedule& schedule) {
  if (world.one_node()) return Way::shared;
  const bool everybody = std::all_of(schedule.buckets.begin(), schedule.buckets.end(), [](const auto& b) { return b.response.set == 0; });
  return world.flat() && everybody ? Way::guarded : Way::coordinated;
}

std::atomic<uint64_t>& Steady::word(int local_rank) const { return world_->segment().set_line(0, local_rank).schedule; }

uint64_t Steady::pack(uint64_t position, bool frozen) const {
  return schedule_->id << (kPositionBits + 1) | (frozen ? kFrozen : 0) | (position & kPositionMask);
}

void Steady::publish(uint64_t position) {
  if (!must_publish(position)) return;
  published_ = true;
  position_ = position;
  if (way_ == Way::coordinated) {
    std::string payload;
    Writer w(&payload);
    w.put(schedule_->id);
    w.put(position);
    control_->send_up(FrameType::ready, payload);
    return;
  }
  word(world_->local_rank()).store(pack(position, false), std::memory_order_seq_cst);
  for (int l = 0; l < world_->local_size(); ++l) {
    if (l != world_->local_rank()) world_->bell_of(l).wake(Mood::waiting);
  }
}

bool Steady::may_run(uint64_t position) const {
  if (way_ != Way::shared) return position < go_;
  for (int rank : members_[position % members_.size()]) {
    if (rank == world_->rank()) continue;
    // One node: a local rank is a global rank.
    const uint64_t w = word(rank).load(std::memory_order_seq_cst);
    if (w >> (kPositionBits + 1) != schedule_->id || (w & kPositionMask) <= position) return false;
  }
  return position < position_;
}

void Steady::revoke(bool stuck) {
  if (frozen_) return;
  frozen_ = true;
  if (told_) return;
  if (way_ != Way::shared) {
    std::string payload;
    Writer w(&payload);
    w.put(schedule_->id);
    w.put(stuck);
    control_->send_up(FrameType::revoke, payload);
    return;
  }
  word(world_->local_rank()).store(pack(position_, true), std::memory_order_seq_cst);
  for (int l = 0; l < world_->local_size(); ++l) {
    if (l != world_->local_rank()) world_->bell_of(l).wake(Mood::idle);
  }
}

bool Steady::leaving_elsewhere() const {
  if (frozen_ || way_ != Way::shared) return told_ && !frozen_;
  for (int l = 0; l < world_->local_size(); ++l) {
    const uint64_t w = word(l).load(std::memory_order_seq_cst);
    if (w >> (kPositionBits + 1) == schedule_->id && (w & kFrozen)) return true;
  }
  return false;
}

void Steady::on_revoked(uint64_t position) {
  if (guarded()) {
    told_ = true;
  } else {
    final_ = static_cast<int64_t>(position);
  }
}

void Steady::on_vote(uint64_t position, uint64_t agreed) {
  if (agreed > position) {
    go_ = agreed;
  } else {
    final_ = static_cast<int64_t>(position);
  }
}

bool Steady::final_position(uint64_t* position) const {
  if (way_ != Way::shared) {
    if (final_ < 0) return false;
    *position = static_cast<uint64_t>(final_);
    return true;
  }
  if (!frozen_) return false;
  std::vector<uint64_t> positions(world_->local_size());
  for (int l = 0; l < world_->local_size(); ++l) {
    const uint64_t w = word(l).load(std::memory_order_seq_cst);
    if (w >> (kPositionBits + 1) != schedule_->id || !(w & kFrozen)) return false;
    positions[l] = w & kPositionMask;
  }
  // The first position for which some member was not ready. At most one round past the slowest, so the search is short; a schedule in
  // which nobody takes part cannot exist.
  uint64_t least = kNoPart;
  for (uint64_t p : positions) least = std::min(least, p);
  for (uint64_t at = least;; ++at) {
    for (int rank : members_[at % members_.size()]) {
      if (positions[rank] <= at) {
        *position = at;
        return true;
      }
    }
  }
}

}  // namespace hvd

#include "engine/steady.h"

#include <algorithm>

#include "engine/protocol.h"

namespace hvd {

Steady::Steady(std::shared_ptr<const Schedule> schedule, std::vector<std::vector<int>> members, World* world, Control* control)
    : schedule_(std::move(schedule)), members_(std::move(members)), world_(world), control_(control), way_(way_for(*world, *schedule_)) {}

// Choose the implementation; the same on every rank.
Steady::Way Steady::way_for(const World& world, const Schedule& schedule) {
  if (world.one_node()) return Way::shared;
  const bool everybody = std::all_of(schedule.buckets.begin(), schedule.buckets.end(), [](const auto& b) { return b.set() == 0; });
  return world.flat() && everybody ? Way::guarded : Way::coordinated;
}

SteadyWord Steady::word(int local_rank) const {
  return {world_->segment().set_line(0, local_rank).schedule.load(std::memory_order_seq_cst)};
}

// Store this rank's word and wake ranks that sleep in that mood.
void Steady::tell(bool frozen, Mood mood) {
  world_->segment()
      .set_line(0, world_->local_rank())
      .schedule.store(SteadyWord::of(id(), position_, frozen).bits, std::memory_order_seq_cst);
  for (int l = 0; l < world_->local_size(); ++l) {
    if (l != world_->local_rank()) world_->bell_of(l).wake(mood);
  }
}

void Steady::publish(uint64_t position) {
  if (!must_publish(position)) return;
  published_ = true;
  position_ = position;
  if (way_ == Way::coordinated) {
    send_up(*control_, ReadyUpTo{schedule_->id, position});
    return;
  }
  tell(false, Mood::waiting);
}

bool Steady::may_run(uint64_t position) const {
  if (way_ != Way::shared) return position < go_;
  for (int rank : members_[position % members_.size()]) {
    if (rank == world_->rank()) continue;
    // On one node, local and global ranks are equal.
    if (!word(rank).ready(id(), position)) return false;
  }
  return position < position_;
}

void Steady::revoke(bool stuck) {
  if (frozen_) return;
  frozen_ = true;
  frozen_since_ = Clock::now();
  if (told_) return;
  if (way_ != Way::shared) {
    send_up(*control_, Revoke{schedule_->id, stuck});
    return;
  }
  tell(true, Mood::idle);
}

bool Steady::leaving_elsewhere() const {
  if (frozen_ || way_ != Way::shared) return told_ && !frozen_;
  for (int l = 0; l < world_->local_size(); ++l) {
    if (word(l).frozen(id())) return true;
  }
  return false;
}

std::vector<int> Steady::silent() const {
  std::vector<int> ranks;
  if (way_ != Way::shared || !frozen_) return ranks;
  for (int l = 0; l < world_->local_size(); ++l) {
    if (!word(l).frozen(id())) ranks.push_back(l);  // on one node, local and global ranks are equal
  }
  return ranks;
}

std::string Steady::waits_for() const {
  std::string ranks;
  for (int rank : silent()) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  return ranks.empty() ? "" : "They wait for an answer from the engine of rank " + ranks + "; check whether that process is stopped.";
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
  std::vector<SteadyWord> words(world_->local_size());
  for (int l = 0; l < world_->local_size(); ++l) {
    words[l] = word(l);
    if (!words[l].frozen(id())) return false;
  }
  *position = last_position(words, members_);
  return true;
}

}  // namespace hvd

// Ranks as threads that share a Segment: the harness of tests of shared-memory collectives.
#pragma once
#include <sys/eventfd.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "collectives/collectives.h"

namespace hvd::testing {

inline constexpr size_t kSmallStaging = 64 << 10;  // halves of 32 KiB: many rounds with little data

inline Segments segments_of(const std::vector<Segments::Piece>& pieces) {
  Segments s{pieces, 0};
  for (auto& p : pieces) s.total += p.count;
  return s;
}

// The state of one rank: wakeup, waiter, ledger, scratch. Groups (process sets) are separate.
struct ShmRank {
  int rank;
  WakeupEvent wakeup;
  Waiter waiter;
  StagingLedger ledger;
  Scratch scratch;

  ShmRank(int r, WakeupEvent b) : rank(r), wakeup(b), waiter(b, SpinPolicy{50, 5}) {}
};

// One process set as seen by one member.
struct ShmGroup {
  NodeGroup node;
  Comm comm;

  ShmGroup(std::shared_ptr<Segment> segment, ShmRank& rank, const std::vector<WakeupEvent>& wakeups, int slot, uint32_t generation,
           const std::vector<int>& members, int me, double timeout)
      : node(std::move(segment), slot, generation, members, me, select(wakeups, members), &rank.ledger, &rank.waiter, timeout) {
    comm.rank = me;
    comm.size = static_cast<int>(members.size());
    comm.links.assign(members.size(), nullptr);
    comm.node = &node;
    comm.waiter = &rank.waiter;
    comm.scratch = &rank.scratch;
    comm.timeout = timeout;
    comm.global_ranks = members;
  }

 private:
  static std::vector<WakeupEvent> select(const std::vector<WakeupEvent>& wakeups, const std::vector<int>& members) {
    std::vector<WakeupEvent> some;
    for (int m : members) some.push_back(wakeups[m]);
    return some;
  }
};

class ShmWorld {
 public:
  explicit ShmWorld(int size, size_t staging_bytes = 8 << 20, double timeout = 60, size_t arena_bytes = 0) : timeout_(timeout) {
    segment_ = Segment::in_process({size, 4 << 10, staging_bytes, arena_bytes});
    for (int r = 0; r < size; ++r) {
      fds_.push_back(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
      wakeups_.emplace_back(fds_.back(), &segment_->wakeup(r));
      ranks_.push_back(std::make_unique<ShmRank>(r, wakeups_.back()));
    }
    for (int r = 0; r < size; ++r) everybody_.push_back(r);
  }
  ~ShmWorld() {
    for (int fd : fds_) ::close(fd);
  }
  ShmWorld(const ShmWorld&) = delete;

  int size() const { return static_cast<int>(ranks_.size()); }
  const std::shared_ptr<Segment>& segment() const { return segment_; }
  // The process set `members` (global ranks) in `slot`, for a rank with its own thread; null if this rank is
  // not in it.
  std::unique_ptr<ShmGroup> group(int rank, int slot, const std::vector<int>& members, uint32_t generation = 1) {
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i] == rank) {
        return std::make_unique<ShmGroup>(segment_, *ranks_[rank], wakeups_, slot, generation, members, static_cast<int>(i), timeout_);
      }
    }
    return nullptr;
  }

  // Runs `body(rank)` on a thread for each rank.
  void threads(const std::function<void(int)>& body) {
    std::vector<std::thread> all;
    for (int r = 0; r < size(); ++r) all.emplace_back([&body, r] { body(r); });
    for (auto& t : all) t.join();
  }
  // Runs `body(comm)` on a thread for each rank, all in one process set; returns each rank's status.
  // Generations increase from run to run.
  std::vector<Status> run(const std::function<Status(Comm&)>& body) {
    std::vector<Status> results(ranks_.size());
    ++generation_;
    std::vector<std::unique_ptr<ShmGroup>> groups;
    for (int r = 0; r < size(); ++r) groups.push_back(group(r, 0, everybody_, generation_));
    threads([&](int r) { results[r] = body(groups[r]->comm); });
    return results;
  }

 private:
  double timeout_;
  uint32_t generation_ = 0;
  std::shared_ptr<Segment> segment_;
  std::vector<int> fds_, everybody_;
  std::vector<WakeupEvent> wakeups_;
  std::vector<std::unique_ptr<ShmRank>> ranks_;
};

}  // namespace hvd::testing

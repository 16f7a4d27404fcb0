#include "agree/coordinator.h"

namespace hvd {

// Maximum size of a bucket in bytes. A bucket should fit in the last-level cache, and smaller buckets overlap better
// with computation.
constexpr size_t kBucketBytes = 16u << 20;

uint64_t identity_of(const Ready& ready) {
  const Response& r = ready.response;
  Request q = request_like(r);
  q.name = r.names.front();
  q.unnamed = ready.unnamed;
  q.shape = r.shapes.front();
  q.splits = r.sizes;
  q.group_size = ready.group_size;
  return q.signature_hash() | 1;
}

Coordinator::Coordinator(int world, std::vector<std::string> labels, FuseOptions options, size_t cache_capacity)
    : negotiator_(world, std::move(labels)), options_(options), detector_(cache_capacity), settled_(world, 0) {}

void Coordinator::add_requests(int rank, uint64_t epoch, std::vector<Request> requests, double now) {
  if (epoch < epoch_) return;
  if (epoch > epoch_) {
    early_.push_back({rank, epoch, std::move(requests)});
    return;
  }
  for (Request& q : requests) negotiator_.add_request(rank, std::move(q), now);
}

std::vector<Response> Coordinator::decide() {
  std::vector<Ready> ready = negotiator_.take_ready();
  if (ready.empty()) return {};
  for (const Ready& r : ready) {
    const bool schedulable = r.response.error.ok() && r.response.kind <= Kind::barrier;
    if (schedulable) {
      detector_.feed(r, identity_of(r));
    } else {
      detector_.reset();
    }
  }
  std::vector<Response> responses = fuse(std::move(ready), options_);
  propose(&responses);
  return responses;
}

bool Coordinator::everybody_settled() const {
  for (uint64_t e : settled_) {
    if (e != epoch_) return false;
  }
  return true;
}

bool Coordinator::propose(std::vector<Response>* responses) {
  if (negotiator_.anyone_joined() || !everybody_settled()) return false;
  std::vector<Ready> period = detector_.period();
  if (period.empty() || !negotiator_.may_be_scheduled(period)) return false;
  FuseOptions options = options_;
  options.threshold = std::min(options.threshold, kBucketBytes);
  const Schedule schedule = make_schedule(++last_schedule_, std::move(period), options);
  Response r;
  r.kind = Kind::adopt_schedule;
  encode(schedule, &r.payload);
  r.sizes = tuning_;
  responses->push_back(std::move(r));
  // Drop the requests that have no response yet. Each rank submits them again as part of the new schedule.
  negotiator_.clear_pending();
  detector_.reset();
  operations_ = schedule.entries.size();
  members_.clear();
  for (const auto& bucket : schedule.buckets) members_.push_back(negotiator_.sets().sets.at(bucket.set()));
  positions_.assign(settled_.size(), 0);
  go_ = 0;
  ready_ = 0;
  revoked_ = false;
  ++epoch_;
  return true;
}

void Coordinator::fall_back(uint64_t rounds, double now) {
  ++epoch_;
  if (retuned_) {
    detector_.reset();
  } else {
    detector_.note_revoked(rounds, operations_);
  }
  retuned_ = false;
  std::deque<Early> early;
  early.swap(early_);
  for (Early& e : early) add_requests(e.rank, e.epoch, std::move(e.requests), now);
}

bool Coordinator::on_ready(int rank, uint64_t id, uint64_t position, uint64_t* go) {
  if (id != last_schedule_ || revoked_ || members_.empty()) return false;
  positions_[rank] = position;
  const uint64_t before = go_;
  // Advance the position that all ranks have reached (go_). Ranks already counted for this position (ready_) are skipped, so that a message
  // costs the same for any number of ranks.
  for (;; ++go_, ready_ = 0) {
    const std::vector<int>& members = members_[go_ % members_.size()];
    while (ready_ < members.size() && positions_[members[ready_]] > go_) ++ready_;
    if (ready_ < members.size()) break;
  }
  *go = go_;
  return go_ != before;
}

bool Coordinator::on_revoke(uint64_t id, uint64_t* final) {
  if (id != last_schedule_ || revoked_) return false;
  revoked_ = true;
  *final = go_;
  return true;
}

}  // namespace hvd

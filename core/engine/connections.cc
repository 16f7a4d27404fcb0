#include "engine/connections.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "transport/node_control_link.h"
#include "transport/shm_link.h"

namespace hvd {
namespace {

int index_of(const std::vector<int>& v, int x) { return static_cast<int>(std::find(v.begin(), v.end(), x) - v.begin()); }

SpinPolicy spin_policy(const Settings& settings) {
  SpinPolicy policy;
  policy.spins = settings.spins;
  // With more ranks than cores, yield instead of spinning, which takes CPU time from the peer that this rank waits for.
  if (settings.spins == 0) policy.yields = 200;
  return policy;
}

// Interval between checks for silent hosts, as a fraction of the heartbeat timeout. A host can be declared lost one interval early.
constexpr double kLook = 0.1;

}  // namespace

std::string check(const EngineOptions& o) {
  if (o.size < 1 || o.rank < 0 || o.rank >= o.size)
    return "rank must be 0 to " + std::to_string(o.size - 1) + ", got " + std::to_string(o.rank);
  if (static_cast<int>(o.node_of.size()) != o.size)
    return "node_of must have one entry per rank (" + std::to_string(o.size) + "), got " + std::to_string(o.node_of.size());
  if (static_cast<int>(o.labels.size()) != o.size)
    return "labels must have one entry per rank (" + std::to_string(o.size) + "), got " + std::to_string(o.labels.size());
  const auto locals = std::count(o.node_of.begin(), o.node_of.end(), o.node_of[o.rank]);
  if (static_cast<long>(o.event_fds.size()) != locals)
    return "event_fds must have one entry per rank of this node (" + std::to_string(locals) + "), got " +
           std::to_string(o.event_fds.size());
  if (locals > 1 && !o.segment) return "no shared memory for " + std::to_string(locals) + " ranks of this node";
  for (int r = 0; r < o.size; ++r) {
    if (o.node_of[r] != o.node_of[o.rank] && !o.data.count(r)) return "no data link to rank " + std::to_string(r);
  }
  if (!o.backend) return "no backend";
  if ((o.rank == 0) == static_cast<bool>(o.parent)) return o.rank == 0 ? "rank 0 has a parent" : "no control link to the parent";
  return "";
}

std::vector<int> descriptors(const EngineOptions& o) {
  std::vector<int> fds = o.event_fds;
  auto add = [&fds](const Link* link) {
    if (link && link->fd() >= 0) fds.push_back(link->fd());
  };
  add(o.parent.get());
  for (const auto& [rank, link] : o.children) add(link.get());
  for (const auto& [rank, link] : o.data) add(link.get());
  return fds;
}

void talk_through_memory(EngineOptions& o) {
  if (!o.segment) return;
  std::vector<int> locals;
  for (int r = 0; r < o.size; ++r) {
    if (o.node_of[r] == o.node_of[o.rank]) locals.push_back(r);
  }
  const int me = index_of(locals, o.rank);
  auto wrap = [&](std::unique_ptr<Link>& link, int rank) {
    const int peer = index_of(locals, rank);
    if (!link || peer == static_cast<int>(locals.size())) return;
    link =
        std::make_unique<NodeControlLink>(std::move(link), o.segment, me, peer, WakeupEvent(o.event_fds[peer], &o.segment->wakeup(peer)));
  };
  // The first rank of a node keeps the socket to its parent, because the parent is on another node.
  if (me != 0) wrap(o.parent, locals.front());
  for (auto& [rank, link] : o.children) wrap(link, rank);
}

Connections::Connections(EngineOptions& options)
    : rank_(options.rank), node_of_(options.node_of), labels_(options.labels), timeout_(options.settings.timeout),
      heartbeat_(options.settings.heartbeat), look_every_(heartbeat_ * kLook), tuning_(options.settings.tuning),
      segment_(std::move(options.segment)), event_fds_(std::move(options.event_fds)), links_(std::move(options.data)),
      waiter_({}, spin_policy(options.settings)) {
  for (int r = 0; r < size(); ++r) {
    if (node_of_[r] == node_of_[rank_]) locals_.push_back(r);
    if (node_of_[r] != node_of_[0]) one_node_ = false;
  }
  flat_ = size() > 1 && std::set<int>(node_of_.begin(), node_of_.end()).size() == node_of_.size();
  local_rank_ = index_of(locals_, rank_);
  if (!segment_) segment_ = Segment::in_process({local_size(), 4096, 1 << 20});
  for (int l = 0; l < local_size(); ++l) wakeups_.emplace_back(event_fds_[l], &segment_->wakeup(l));
  for (auto& [rank, link] : links_) waiter_.watch(link.get());
  if (!links_.empty()) waiter_.set_longest_sleep(look_every_);
  waiter_.set_wakeup(wakeups_[local_rank_]);
  waiter_.set_abort_flag(&segment_->header().abort);
  std::vector<int> all(size());
  for (int r = 0; r < size(); ++r) all[r] = r;
  add_set(0, 1, all);
}

int Connections::below_root(int rank) const { return node_of_[rank] == node_of_[0] ? rank : index_of(node_of_, node_of_[rank]); }

Connections::~Connections() {
  sets_.clear();
  for (int fd : event_fds_) ::close(fd);
}

Status Connections::look_for_silence() {
  if (look_every_ <= 0 || one_node_) return {};
  const auto present = Clock::now();
  if (std::chrono::duration<double>(present - looked_).count() < look_every_ / 2) return {};
  looked_ = present;
  for (auto& [rank, link] : links_) {
    if (link->unanswered() < heartbeat_ - look_every_) continue;
    char seconds[32];
    snprintf(seconds, sizeof seconds, "%g", heartbeat_);
    return Status(Code::peer_lost,
                  labels_[rank] + " was lost: its host has not answered that of " + labels_[rank_] + " for " + seconds + " s", rank);
  }
  return {};
}

Link* Connections::link_to(int rank) {
  if (rank == rank_) return nullptr;
  auto& link = links_[rank];
  if (!link) {
    const int peer = index_of(locals_, rank);
    link = std::make_unique<ShmLink>(segment_, local_rank_, peer, wakeups_[peer]);
  }
  return link.get();
}

Comm Connections::sub_comm(const std::vector<int>& ranks, bool links) {
  Comm c;
  c.rank = index_of(ranks, rank_);
  c.size = static_cast<int>(ranks.size());
  c.waiter = &waiter_;
  c.scratch = &scratch_;
  c.traffic = &traffic_;
  c.timeout = timeout_;
  c.tuning = tuning_;
  c.global_ranks = ranks;
  for (int r : ranks) c.labels.push_back(labels_[r]);
  c.links.assign(ranks.size(), nullptr);
  for (size_t i = 0; links && i < ranks.size(); ++i) c.links[i] = link_to(ranks[i]);
  return c;
}

void Connections::add_set(uint32_t id, uint32_t generation, const std::vector<int>& ranks) {
  if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) return;
  std::vector<int> here, local_indices;
  std::vector<WakeupEvent> wakeups;
  for (int r : ranks) {
    if (node_of_[r] != node_of_[rank_]) continue;
    here.push_back(r);
    local_indices.push_back(index_of(locals_, r));
    wakeups.push_back(wakeups_[local_indices.back()]);
  }
  const bool all_here = here.size() == ranks.size();
  auto set = std::make_unique<SetComms>();
  set->comm = sub_comm(ranks, !all_here);
  set->group = std::make_unique<NodeGroup>(segment_, static_cast<int>(id), generation, local_indices, index_of(here, rank_), wakeups,
                                           &ledger_, &waiter_, timeout_);
  if (all_here) {
    set->comm.node = set->group.get();
  } else {
    build_hierarchy(set.get(), ranks);
  }
  sets_[id] = std::move(set);
}

void Connections::build_hierarchy(SetComms* set, const std::vector<int>& ranks) {
  // Ranks of each node. Nodes are ordered by their first rank.
  std::vector<std::vector<int>> by_node;
  std::vector<int> nodes;
  for (int r : ranks) {
    const int i = index_of(nodes, node_of_[r]);
    if (i == static_cast<int>(nodes.size())) {
      nodes.push_back(node_of_[r]);
      by_node.emplace_back();
    }
    by_node[i].push_back(r);
  }
  size_t least = ranks.size(), most = 0;
  for (const auto& members : by_node) {
    least = std::min(least, members.size());
    most = std::max(most, members.size());
  }
  if (most == 1) return;
  const auto& own = by_node[index_of(nodes, node_of_[rank_])];
  set->local = sub_comm(own, false);
  set->local.node = set->group.get();
  set->comm.local = &set->local;
  set->comm.slices = static_cast<int>(least);
  const size_t index = static_cast<size_t>(index_of(own, rank_));
  if (index >= least) return;
  std::vector<int> across;
  for (const auto& members : by_node) across.push_back(members[index]);
  set->cross = sub_comm(across, true);
  set->comm.cross = &set->cross;
}

void Connections::remove_set(uint32_t id) { sets_.erase(id); }

void Connections::set_tuning(const Tuning& tuning) {
  tuning_ = tuning;
  for (auto& [id, set] : sets_) set->comm.tuning = set->local.tuning = set->cross.tuning = tuning;
}

Comm* Connections::comm(uint32_t set) {
  auto it = sets_.find(set);
  return it == sets_.end() ? nullptr : &it->second->comm;
}

}  // namespace hvd

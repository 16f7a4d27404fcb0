// Engines on many simulated hosts in one process, for measuring their control messages. The control tree is real, with
// sockets between hosts and rings in shared memory within hosts. No data are sent (idle_backend.h). The only data links
// are those between ranks that are alone on their hosts: such ranks use them for readiness votes
// (engine/schedule_sync.h).
#pragma once
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/options.h"
#include "idle_backend.h"
#include "transport/tcp_link.h"

namespace hvd {

[[noreturn]] inline void give_up(const std::string& why) {
  fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}

// Link without a peer. All calls on it fail.
class AbsentLink final : public Link {
 public:
  int64_t try_send(ConstBytes) override { return -1; }
  int64_t try_recv(Bytes) override { return -1; }
  const Status& error() const override {
    static const Status absent(Code::internal, "this benchmark has no link there");
    return absent;
  }
};

struct Votes {
  std::atomic<uint64_t> messages{0}, bytes{0};
};

// Link that counts messages and bytes sent. Messages are small enough to be sent in one piece.
class CountedLink final : public Link {
 public:
  CountedLink(std::unique_ptr<Link> inner, Votes* votes) : inner_(std::move(inner)), votes_(votes) {}
  int64_t try_send(ConstBytes data) override {
    const int64_t sent = inner_->try_send(data);
    if (sent > 0) {
      votes_->messages.fetch_add(1, std::memory_order_relaxed);
      votes_->bytes.fetch_add(static_cast<uint64_t>(sent), std::memory_order_relaxed);
    }
    return sent;
  }
  int64_t try_recv(Bytes data) override { return inner_->try_recv(data); }
  const Status& error() const override { return inner_->error(); }
  int fd() const override { return inner_->fd(); }
  short wanted() const override { return inner_->wanted(); }
  void clear_wanted() override { inner_->clear_wanted(); }
  void before_sleep() override { inner_->before_sleep(); }
  void hang_up() override { inner_->hang_up(); }

 private:
  std::unique_ptr<Link> inner_;
  Votes* votes_;
};

inline std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> connected() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) give_up("socketpair: too many descriptors (ulimit -n)?");
  std::unique_ptr<TcpLink> ends[2];
  for (int i : {0, 1}) {
    if (Status s = TcpLink::adopt(fds[i], &ends[i]); !s.ok()) give_up(s.message());
  }
  return {std::move(ends[0]), std::move(ends[1])};
}

struct Layout {
  int ranks, per_host;
  int host_of(int rank) const { return rank / per_host; }
  int hosts() const { return (ranks + per_host - 1) / per_host; }
  int leader_of(int rank) const { return host_of(rank) * per_host; }
  // Returns a rank's parent in the control tree (engine/control.h).
  int parent_of(int rank) const { return leader_of(rank) == rank ? 0 : leader_of(rank); }
};

// Returns the options of each rank's engine, with connected links.
inline std::vector<EngineOptions> wire(const Layout& layout, const Settings& settings, Votes* votes) {
  std::vector<EngineOptions> all(static_cast<size_t>(layout.ranks));
  std::vector<int> hosts, wakeups;
  std::vector<std::string> labels;
  for (int r = 0; r < layout.ranks; ++r) {
    hosts.push_back(layout.host_of(r));
    labels.push_back("rank " + std::to_string(r));
    wakeups.push_back(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  }
  for (int r = 0; r < layout.ranks; ++r) {
    EngineOptions& o = all[static_cast<size_t>(r)];
    o.rank = r;
    o.size = layout.ranks;
    o.node_of = hosts;
    o.labels = labels;
    o.settings = settings;
    o.backend = std::make_unique<IdleBackend>();
    o.log = [](LogLevel, const std::string& text) { fprintf(stderr, "%s\n", text.c_str()); };
    const int leader = layout.leader_of(r);
    for (int l = leader; l < layout.ranks && layout.host_of(l) == layout.host_of(r); ++l) {
      o.event_fds.push_back(::dup(wakeups[static_cast<size_t>(l)]));
      if (o.event_fds.back() < 0) give_up("too many descriptors (ulimit -n)");
    }
    const int locals = static_cast<int>(o.event_fds.size());
    o.segment = leader == r ? Segment::in_process({locals, 4096, 64 << 10}) : all[static_cast<size_t>(leader)].segment;
    if (r > 0) {
      const int parent = layout.parent_of(r);
      std::tie(o.parent, all[static_cast<size_t>(parent)].children[r]) = connected();
    }
    for (int peer = 0; peer < layout.ranks; ++peer) {
      if (layout.host_of(peer) != layout.host_of(r) && !o.data.count(peer)) o.data[peer] = std::make_unique<AbsentLink>();
    }
    // Create links for recursive doubling, which requires a power of two as the number of ranks.
    for (int distance = 1; layout.per_host == 1 && distance < layout.ranks; distance *= 2) {
      const int peer = r ^ distance;
      if (peer < r || peer >= layout.ranks) continue;
      auto [near, far] = connected();
      o.data[peer] = std::make_unique<CountedLink>(std::move(near), votes);
      all[static_cast<size_t>(peer)].data[r] = std::make_unique<CountedLink>(std::move(far), votes);
    }
  }
  for (int fd : wakeups) ::close(fd);
  return all;
}

}  // namespace hvd

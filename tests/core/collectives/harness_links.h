// Ranks as threads joined by links of any kind, on one or several simulated hosts: the harness of tests of
// collectives over links.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <deque>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/collectives.h"
#include "plan/topology.h"
#include "transport/faulty_link.h"
#include "transport/inproc_link.h"
#include "transport/shm_link.h"
#include "transport/tcp_link.h"

namespace hvd::testing {

enum class Wire { inproc, unix_socket, tcp, shm, mixed };
inline const char* name_of(Wire w) {
  constexpr const char* names[] = {"inproc", "unix", "tcp", "shm", "mixed"};
  return names[static_cast<int>(w)];
}

inline void require(bool ok, const char* what) {
  if (!ok) throw std::runtime_error(what);
}

// Small buffers, so that no message fits into one call. 1 requests the smallest that the kernel allows.
inline void shrink_buffers(int fd, int bytes) {
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

// TCP needs a window of several packets: below one packet, each is sent only by a 200 ms timer (silly window
// avoidance).
inline void shrink_tcp(int fd) {
  const int packet = 1024;
  setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &packet, sizeof packet);
  shrink_buffers(fd, 8 << 10);
}

inline std::pair<int, int> unix_pair() {
  int fds[2];
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0, "socketpair");
  for (int fd : fds) shrink_buffers(fd, 1);
  return {fds[0], fds[1]};
}

inline std::pair<int, int> tcp_pair() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  shrink_tcp(listener);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  require(bind(listener, generic, length) == 0 && listen(listener, 1) == 0, "listen");
  require(getsockname(listener, generic, &length) == 0, "getsockname");
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  shrink_tcp(client);
  require(connect(client, generic, length) == 0, "connect");
  const int server = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  require(server >= 0, "accept");
  ::close(listener);
  return {client, server};
}

inline std::unique_ptr<Link> adopt(int fd) {
  std::unique_ptr<TcpLink> link;
  require(TcpLink::adopt(fd, &link).ok(), "TcpLink::adopt");
  return link;
}

struct Options {
  Wire wire = Wire::inproc;
  size_t capacity = 2048;  // of inproc and shm links: small, so that both sides often wait
  SpinPolicy spin{20, 3};
  double timeout = 120;  // seconds without progress
  std::function<FaultScript(int rank, int peer)> faults = {};  // null: none
  // Wraps the rank's link to `peer`; gets the faults of the inner link.
  std::function<std::unique_ptr<Link>(std::unique_ptr<Link> inner, int rank, int peer)> wrap = {};
  std::function<FaultScript(int rank, int peer)> faults_below = {};
  std::vector<int> host_of = {};  // by rank; empty: one host. Gives comms their local and cross parts
};

class LinkWorld {
 public:
  explicit LinkWorld(int size, Options options = {}) : options_(std::move(options)), ranks_(size) {
    segment_ = Segment::in_process({size, options_.capacity, 4096});
    for (auto& rank : ranks_) {
      rank.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
      rank.wakeup = WakeupEvent(rank.fd, &rank.word);
      rank.waiter = std::make_unique<Waiter>(rank.wakeup, options_.spin);
      rank.links.resize(size);
    }
    for (int a = 0; a < size; ++a) {
      for (int b = a + 1; b < size; ++b) join(a, b);
    }
    for (int r = 0; r < size; ++r) {
      for (auto& link : ranks_[r].links) {
        if (link) ranks_[r].waiter->watch(link.get());
      }
      fill(ranks_[r].comm, r, r, all_ranks());
    }
    if (!options_.host_of.empty()) make_hosts();
  }
  ~LinkWorld() {
    for (auto& rank : ranks_) {
      rank.node.reset();
      rank.links.clear();
      ::close(rank.fd);
    }
  }
  LinkWorld(const LinkWorld&) = delete;

  int size() const { return static_cast<int>(ranks_.size()); }
  Comm& comm(int rank) { return ranks_[rank].comm; }

  // Runs body(comm) on a thread for each rank.
  std::vector<Status> run(const std::function<Status(Comm&)>& body) {
    std::vector<Status> results(ranks_.size());
    std::vector<std::thread> threads;
    for (int r = 0; r < size(); ++r) threads.emplace_back([&, r] { results[r] = body(ranks_[r].comm); });
    for (auto& t : threads) t.join();
    return results;
  }

 private:
  struct Rank {
    int fd = -1;
    WakeupWord word;
    WakeupEvent wakeup;
    std::unique_ptr<Waiter> waiter;
    std::vector<std::unique_ptr<Link>> links;
    Scratch scratch;
    StagingLedger ledger;
    std::unique_ptr<NodeGroup> node;
    Comm comm, local, cross;
  };

  std::vector<int> all_ranks() const {
    std::vector<int> all;
    for (int r = 0; r < size(); ++r) all.push_back(r);
    return all;
  }

  void join(int a, int b) {
    Wire wire = options_.wire;
    if (wire == Wire::mixed) wire = static_cast<Wire>((a + b) % 4);
    auto& first = ranks_[a];
    auto& second = ranks_[b];
    auto& to_b = first.links[b];
    auto& to_a = second.links[a];
    switch (wire) {
      case Wire::shm:
        to_b = std::make_unique<ShmLink>(segment_, a, b, second.wakeup);
        to_a = std::make_unique<ShmLink>(segment_, b, a, first.wakeup);
        break;
      case Wire::tcp:
      case Wire::unix_socket: {
        auto [x, y] = wire == Wire::tcp ? tcp_pair() : unix_pair();
        to_b = adopt(x);
        to_a = adopt(y);
        break;
      }
      default: {
        auto pair = InprocLink::make_pair(first.wakeup, second.wakeup, options_.capacity);
        to_b = std::move(pair.first);
        to_a = std::move(pair.second);
      }
    }
    auto misbehave = [&](const auto& faults) {
      if (!faults) return;
      to_b = std::make_unique<FaultyLink>(std::move(to_b), faults(a, b), first.wakeup);
      to_a = std::make_unique<FaultyLink>(std::move(to_a), faults(b, a), second.wakeup);
    };
    misbehave(options_.faults_below);
    if (options_.wrap) {
      to_b = options_.wrap(std::move(to_b), a, b);
      to_a = options_.wrap(std::move(to_a), b, a);
    }
    misbehave(options_.faults);
  }

  // Fills `comm` of world rank `rank`, which is number `me` of `members`.
  void fill(Comm& comm, int rank, int me, const std::vector<int>& members) {
    comm.rank = me;
    comm.size = static_cast<int>(members.size());
    comm.waiter = ranks_[rank].waiter.get();
    comm.scratch = &ranks_[rank].scratch;
    comm.timeout = options_.timeout;
    comm.global_ranks = members;
    comm.links.clear();
    for (int m : members) comm.links.push_back(ranks_[rank].links[m].get());
  }

  void make_hosts() {
    std::vector<std::shared_ptr<Segment>> segments;
    for (int r = 0; r < size(); ++r) {
      auto& rank = ranks_[r];
      Topology t;
      require(Topology::make(r, options_.host_of, &t).ok(), "Topology::make");
      while (segments.size() < t.members.size()) {
        segments.push_back(Segment::in_process({static_cast<int>(t.members[segments.size()].size()), 4096, 64 << 10}));
      }
      std::vector<int> locals;
      std::vector<WakeupEvent> wakeups;
      for (int m : t.local_members()) {
        locals.push_back(static_cast<int>(locals.size()));
        wakeups.push_back(ranks_[m].wakeup);
      }
      rank.node = std::make_unique<NodeGroup>(segments[t.host[r]], 0, 1, locals, t.local_rank, wakeups, &rank.ledger, rank.waiter.get(),
                                              options_.timeout);
      fill(rank.local, r, t.local_rank, t.local_members());
      rank.local.node = rank.node.get();
      rank.local.links.assign(locals.size(), nullptr);
      rank.comm.local = &rank.local;
      rank.comm.slices = t.slices;
      const auto cross = t.cross_members();
      if (cross.empty()) continue;
      fill(rank.cross, r, t.cross_rank, cross);
      rank.comm.cross = &rank.cross;
    }
  }

  Options options_;
  std::shared_ptr<Segment> segment_;
  std::deque<Rank> ranks_;  // stable addresses: wakeups are referenced
};

}  // namespace hvd::testing

// Parts of a world of engines in one process: the ranks of a simulated node share one segment, nodes are
// joined by socket pairs, and the control links form the tree described in engine/control.h.
#pragma once
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "backends/host.h"
#include "engine/options.h"
#include "transport/tcp_link.h"

namespace hvd::testing {

enum class Layout { one_node, apart, pairs };  // all on one node; each rank its own node; two ranks a node
inline constexpr Layout kLayouts[] = {Layout::one_node, Layout::apart, Layout::pairs};
inline const char* name_of(Layout l) {
  constexpr const char* names[] = {"one_node", "apart", "pairs"};
  return names[static_cast<int>(l)];
}
inline std::vector<int> nodes_of(Layout layout, int size) {
  std::vector<int> nodes;
  for (int r = 0; r < size; ++r) nodes.push_back(layout == Layout::one_node ? 0 : layout == Layout::apart ? r : r / 2);
  return nodes;
}
inline int leader_of(int rank, const std::vector<int>& nodes) {
  return static_cast<int>(std::find(nodes.begin(), nodes.end(), nodes[rank]) - nodes.begin());
}
inline int parent_of(int rank, const std::vector<int>& nodes) {
  const int leader = leader_of(rank, nodes);
  return leader == rank ? 0 : leader;
}

inline void require(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error(what);
}
inline std::pair<int, int> socket_pair() {
  int fds[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0, "socketpair");
  return {fds[0], fds[1]};
}
inline std::unique_ptr<Link> adopt_socket(int fd) {
  std::unique_ptr<TcpLink> link;
  require(TcpLink::adopt(fd, &link).ok(), "TcpLink::adopt");
  return link;
}

struct Setup {
  Layout layout = Layout::one_node;
  Settings settings{};
  LogSink log{};
  std::vector<int> victims{};  // ranks without an engine: the test holds their sockets
  size_t staging = 256 << 10;
  size_t arena = 0;
  std::vector<int> nodes{};  // by rank, instead of the layout
  // Wraps an engine's link to `peer`; `data`: not of the control tree.
  std::function<std::unique_ptr<Link>(std::unique_ptr<Link> link, int rank, int peer, bool data)> wrap{};
  bool cuttable = false;  // see EngineWorld::cut
  IpcOptions ipc{};
  NcclOptions nccl{.kinds = {}, .library = {}, .candidates = {}};  // none
};

// Settings of worlds with more ranks than cores.
inline Settings crowded() {
  Settings s;
  s.spins = 0;
  s.timeout = 20;
  return s;
}

// A link that forwards to the one inside it; tests override what they need.
class PassingLink : public Link {
 public:
  explicit PassingLink(std::unique_ptr<Link> inner) : inner_(std::move(inner)) {}
  int64_t try_send(ConstBytes data) override { return inner_->try_send(data); }
  int64_t try_recv(Bytes data) override { return inner_->try_recv(data); }
  const Status& error() const override { return inner_->error(); }
  int fd() const override { return inner_->fd(); }
  short wanted() const override { return inner_->wanted(); }
  void clear_wanted() override { inner_->clear_wanted(); }
  void hang_up() override { inner_->hang_up(); }

 private:
  std::unique_ptr<Link> inner_;
};

// Does nothing while it is muted.
class CuttableLink final : public PassingLink {
 public:
  CuttableLink(std::unique_ptr<Link> inner, const std::atomic<bool>* muted) : PassingLink(std::move(inner)), muted_(muted) {}
  int64_t try_send(ConstBytes data) override { return *muted_ ? 0 : PassingLink::try_send(data); }
  int64_t try_recv(Bytes data) override { return *muted_ ? 0 : PassingLink::try_recv(data); }

 private:
  const std::atomic<bool>* muted_;
};

// Options of a world's engines, and the link ends that a test holds.
class Wiring {
 public:
  Wiring(int size, const Setup& setup)
      : size(size), nodes(setup.nodes.empty() ? nodes_of(setup.layout, size) : setup.nodes), options(size) {
    make_nodes(setup);
    for (int r = 1; r < size; ++r) {
      const int parent = parent_of(r, nodes);
      auto [near, far] = socket_pair();
      hand(setup, r, parent, false, near, [&](auto link) { options[r].parent = std::move(link); });
      hand(setup, parent, r, false, far, [&](auto link) { options[parent].children[r] = std::move(link); });
    }
    for (int a = 0; a < size; ++a) {
      for (int b = a + 1; b < size; ++b) {
        if (nodes[a] == nodes[b]) continue;
        auto [x, y] = socket_pair();
        hand(setup, a, b, true, x, [&](auto link) { options[a].data[b] = std::move(link); });
        hand(setup, b, a, true, y, [&](auto link) { options[b].data[a] = std::move(link); });
      }
    }
    for (int r : setup.victims) {
      for (int fd : options[r].event_fds) ::close(fd);
    }
    for (int r = 0; r < size; ++r) {
      if (!is_victim(setup, r)) require(check(options[r]).empty(), check(options[r]));
    }
  }
  ~Wiring() {
    kill_victims();
    for (auto& [rank, fds] : cut_fds_) {
      for (int fd : fds) ::close(fd);
    }
  }
  Wiring(const Wiring&) = delete;

  static bool is_victim(const Setup& setup, int rank) {
    return std::find(setup.victims.begin(), setup.victims.end(), rank) != setup.victims.end();
  }
  // Closes the victims' sockets, as the kernel does when a process dies.
  void kill_victims() {
    for (auto& [rank, fds] : victim_fds) {
      for (int fd : fds) ::close(fd);
    }
    victim_fds.clear();
  }
  // Simulates the death of a rank with an engine: all of its connections end at once.
  void cut(int rank) {
    muted_[rank] = true;  // so that it cannot report its connections ending one by one
    for (int fd : cut_fds_[rank]) ::shutdown(fd, SHUT_RDWR);
    muted_[rank] = false;
  }

  const int size;
  const std::vector<int> nodes;
  std::vector<EngineOptions> options;  // by rank; a victim's must not be used
  std::map<int, std::vector<int>> victim_fds;

 private:
  template <class F>
  void hand(const Setup& setup, int rank, int peer, bool data, int fd, F to) {
    if (is_victim(setup, rank)) {
      victim_fds[rank].push_back(fd);
      return;
    }
    auto link = adopt_socket(fd);
    if (setup.cuttable) {
      cut_fds_[rank].push_back(::dup(fd));
      link = std::make_unique<CuttableLink>(std::move(link), &muted_[rank]);
    }
    if (setup.wrap) link = setup.wrap(std::move(link), rank, peer, data);
    to(std::move(link));
  }
  void make_nodes(const Setup& setup) {
    std::vector<int> wakeups;
    for (int r = 0; r < size; ++r) wakeups.push_back(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    std::map<int, std::shared_ptr<Segment>> segments;
    for (int r = 0; r < size; ++r) {
      EngineOptions& o = options[r];
      o.rank = r;
      o.size = size;
      o.node_of = nodes;
      for (int i = 0; i < size; ++i) o.labels.push_back("rank " + std::to_string(i));
      for (int i = 0; i < size; ++i) {
        if (nodes[i] == nodes[r]) o.event_fds.push_back(::dup(wakeups[i]));
      }
      auto& segment = segments[nodes[r]];
      if (!segment) segment = Segment::in_process({static_cast<int>(o.event_fds.size()), 4096, setup.staging, setup.arena});
      o.segment = segment;
      require(make_host_backend(setup.settings.algorithm, &o.backend).ok(), "backend");
      o.settings = setup.settings;
      o.nccl = setup.nccl;
      o.ipc = setup.ipc;
      o.log = setup.log;
    }
    for (int fd : wakeups) ::close(fd);
  }

  std::map<int, std::vector<int>> cut_fds_;
  std::map<int, std::atomic<bool>> muted_;
};

}  // namespace hvd::testing

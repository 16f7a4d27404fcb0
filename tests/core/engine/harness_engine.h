// A world of engines in one process, a thread for each rank: the ranks of a pretended node share one segment, nodes are joined by
// socket pairs, and the control links form the tree that engine/control.h describes.
#pragma once
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "backends/host.h"
#include "base/wire.h"
#include "engine/control.h"
#include "engine/schedule.h"
#include "engine/engine.h"
#include "transport/tcp_link.h"

namespace hvd::testing {

enum class Layout { one_node, apart, pairs };  // all together; each rank its own node; two ranks a node
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

struct Given {
  Layout layout = Layout::one_node;
  Settings settings{};
  LogSink log{};
  std::vector<int> victims{};  // ranks without an engine: the test holds their sockets
  size_t staging = 256 << 10;
  size_t arena = 0;
  std::vector<int> nodes{};  // by rank, instead of the layout
  // Puts something between an engine and its link to `peer`; `data`: not of the control tree.
  std::function<std::unique_ptr<Link>(std::unique_ptr<Link> link, int rank, int peer, bool data)> wrap{};
  bool cuttable = false;  // see EngineWorld::cut
};

// Settings of worlds with more ranks than cores.
inline Settings crowded() {
  Settings s;
  s.spins = 0;
  s.timeout = 20;
  return s;
}

// A link like the one inside it; tests change what they need.
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

// Takes part in nothing while it is muted.
class CuttableLink final : public PassingLink {
 public:
  CuttableLink(std::unique_ptr<Link> inner, const std::atomic<bool>* muted) : PassingLink(std::move(inner)), muted_(muted) {}
  int64_t try_send(ConstBytes data) override { return *muted_ ? 0 : PassingLink::try_send(data); }
  int64_t try_recv(Bytes data) override { return *muted_ ? 0 : PassingLink::try_recv(data); }

 private:
  const std::atomic<bool>* muted_;
};

// What a root whose part the test plays says: here is schedule `id`, of one barrier, and it ends before its first round.
inline void announce_and_revoke(Control& root, uint64_t id) {
  Schedule schedule;
  schedule.id = id;
  schedule.entries.push_back({0, Kind::barrier, "b", false});
  Response barrier, adopt;
  barrier.kind = Kind::barrier;
  barrier.names = {"b"};
  barrier.shapes = {{}};
  schedule.buckets.push_back({barrier, {0}});
  adopt.kind = Kind::adopt_schedule;
  encode(schedule, &adopt.payload);
  std::string first, second;
  Writer(&first).put(uint64_t{0});
  encode(std::vector<Response>{adopt}, &first);
  Writer w(&second);
  w.put(id);
  w.put(uint64_t{0});
  root.broadcast(FrameType::responses, first);
  root.broadcast(FrameType::revoked, second);
}

// CPU time of this process so far.
inline double cpu_seconds() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

// True once half a second has passed in which this process used next to no CPU time: on a busy machine threads may still have been about to
// fall asleep in the one before.
inline bool sleeps(int tries) {
  while (tries-- > 0) {
    const double before = cpu_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    if (cpu_seconds() - before < 0.005) return true;
  }
  return false;
}

class EngineWorld {
 public:
  explicit EngineWorld(int size, Given given = {}) : size_(size), nodes_(given.nodes.empty() ? nodes_of(given.layout, size) : given.nodes) {
    std::vector<EngineOptions> all(size);
    make_nodes(&all, given);
    for (int r = 1; r < size; ++r) {
      const int parent = parent_of(r, nodes_);
      auto [mine, theirs] = socket_pair();
      hand(given, r, parent, false, mine, [&](auto link) { all[r].parent = std::move(link); });
      hand(given, parent, r, false, theirs, [&](auto link) { all[parent].children[r] = std::move(link); });
    }
    for (int a = 0; a < size; ++a) {
      for (int b = a + 1; b < size; ++b) {
        if (nodes_[a] == nodes_[b]) continue;
        auto [x, y] = socket_pair();
        hand(given, a, b, true, x, [&](auto link) { all[a].data[b] = std::move(link); });
        hand(given, b, a, true, y, [&](auto link) { all[b].data[a] = std::move(link); });
      }
    }
    engines_.resize(size);
    for (int r = 0; r < size; ++r) {
      if (is_victim(given, r)) {
        for (int fd : all[r].event_fds) ::close(fd);
        continue;
      }
      require(check(all[r]).empty(), check(all[r]));
      engines_[r] = std::make_unique<Engine>(std::move(all[r]));
    }
  }
  // Leaving together, as programs do: each for itself would wait for the others' answers.
  ~EngineWorld() {
    std::vector<std::thread> threads;
    for (auto& e : engines_) {
      if (e) threads.emplace_back([&e] { e.reset(); });
    }
    for (auto& t : threads) t.join();
    kill_victims();
    for (auto& [rank, fds] : cut_fds_) {
      for (int fd : fds) ::close(fd);
    }
  }
  EngineWorld(const EngineWorld&) = delete;

  int size() const { return size_; }
  Engine& engine(int rank) { return *engines_[rank]; }
  const std::vector<int>& victim_fds(int rank) { return victim_fds_[rank]; }
  // What the kernel does when a process dies.
  void kill_victims() {
    for (auto& [rank, fds] : victim_fds_) {
      for (int fd : fds) ::close(fd);
    }
    victim_fds_.clear();
  }
  // What others see when a rank with an engine dies: all of its connections end at once.
  void cut(int rank) {
    muted_[rank] = true;  // it must not see one end after the other and tell of it
    for (int fd : cut_fds_[rank]) ::shutdown(fd, SHUT_RDWR);
    muted_[rank] = false;
  }
  Engine::Stats stats(int rank = 0) { return engines_[rank]->stats(); }
  std::atomic<int> marks{0};  // see Program::mark

 private:
  static bool is_victim(const Given& given, int rank) {
    return std::find(given.victims.begin(), given.victims.end(), rank) != given.victims.end();
  }
  template <class F>
  void hand(const Given& given, int rank, int peer, bool data, int fd, F to) {
    if (is_victim(given, rank)) {
      victim_fds_[rank].push_back(fd);
      return;
    }
    auto link = adopt_socket(fd);
    if (given.cuttable) {
      cut_fds_[rank].push_back(::dup(fd));
      link = std::make_unique<CuttableLink>(std::move(link), &muted_[rank]);
    }
    if (given.wrap) link = given.wrap(std::move(link), rank, peer, data);
    to(std::move(link));
  }
  void make_nodes(std::vector<EngineOptions>* all, const Given& given) {
    std::vector<int> bells;
    for (int r = 0; r < size_; ++r) bells.push_back(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    std::map<int, std::shared_ptr<Segment>> segments;
    for (int r = 0; r < size_; ++r) {
      EngineOptions& o = (*all)[r];
      o.rank = r;
      o.size = size_;
      o.node_of = nodes_;
      for (int i = 0; i < size_; ++i) o.labels.push_back("rank " + std::to_string(i));
      for (int i = 0; i < size_; ++i) {
        if (nodes_[i] == nodes_[r]) o.event_fds.push_back(::dup(bells[i]));
      }
      auto& segment = segments[nodes_[r]];
      if (!segment) segment = Segment::in_process({static_cast<int>(o.event_fds.size()), 4096, given.staging, given.arena});
      o.segment = segment;
      require(make_host_backend(given.settings.algorithm, &o.backend).ok(), "backend");
      o.settings = given.settings;
      o.log = given.log;
    }
    for (int fd : bells) ::close(fd);
  }

  int size_;
  std::vector<int> nodes_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::map<int, std::vector<int>> victim_fds_, cut_fds_;
  std::map<int, std::atomic<bool>> muted_;
};

// One operation and its memory, on one rank.
struct Task {
  OperationPtr op;
  std::string name;  // the engine may still change op->request
  std::vector<std::byte> in, out;
  template <class T>
  T at(size_t i) const {
    T x;
    std::memcpy(&x, out.data() + i * sizeof(T), sizeof(T));
    return x;
  }
};
using TaskPtr = std::shared_ptr<Task>;

// One rank's program. What it does not expect becomes an exception, which run() turns into that rank's result.
class Program {
 public:
  Program(EngineWorld& world, int rank) : rank(rank), size(world.size()), engine(world.engine(rank)), marks_(world.marks) {}
  const int rank, size;
  Engine& engine;
  double patience = 20;

  Status try_submit(Request q, std::vector<std::byte> in, TaskPtr* out, bool blocking = false) {
    auto task = std::make_shared<Task>();
    task->name = q.name;
    task->in = std::move(in);
    task->out.resize(std::max<size_t>(task->in.size(), 1));
    Status s = blocking ? engine.submit_blocking(std::move(q), task->in.data(), task->out.data(), &task->op)
                        : engine.submit(std::move(q), task->in.data(), task->out.data(), &task->op);
    *out = std::move(task);
    return s;
  }
  TaskPtr submit(Request q, std::vector<std::byte> in, bool blocking = false) {
    TaskPtr task;
    const std::string what = q.name;
    const Status s = try_submit(std::move(q), std::move(in), &task, blocking);
    require(s.ok(), "submitting '" + what + "': " + s.message());
    return task;
  }
  // The status of a finished operation; allgather's and alltoall's output is copied to task.out.
  Status finish(Task& task) {
    require(engine.wait(*task.op, Deadline::after(patience)), "'" + task.name + "' does not end");
    if (task.op->output) task.out.assign(task.op->output->data(), task.op->output->data() + task.op->output->bytes());
    return task.op->status();
  }
  void wait(Task& task) {
    const Status s = finish(task);
    require(s.ok(), "'" + task.name + "': " + s.message());
  }

  template <class T>
  static std::vector<std::byte> bytes_of(const std::vector<T>& v) {
    std::vector<std::byte> b(v.size() * sizeof(T));
    if (!v.empty()) std::memcpy(b.data(), v.data(), b.size());
    return b;
  }
  static Request request(Kind kind, const std::string& name, std::vector<int64_t> shape = {}, DType dtype = DType::int32) {
    Request q;
    q.kind = kind;
    q.name = name;
    q.shape = std::move(shape);
    q.dtype = dtype;
    return q;
  }
  // Sum of n int32 that are all `value`.
  TaskPtr sum_async(const std::string& name, int32_t value, size_t n = 1, uint32_t set = 0, bool blocking = false) {
    Request q = request(Kind::allreduce, name, {static_cast<int64_t>(n)});
    q.set = set;
    return submit(std::move(q), bytes_of(std::vector<int32_t>(n, value)), blocking);
  }
  int32_t sum(const std::string& name, int32_t value, size_t n = 1, uint32_t set = 0) {
    TaskPtr t = sum_async(name, value, n, set, true);
    wait(*t);
    if (n == 0) return 0;
    require(t->at<int32_t>(0) == t->at<int32_t>(n - 1), "'" + name + "': first and last element differ");
    return t->at<int32_t>(0);
  }
  // An order between ranks that the engine has no part in: who awaits `n` marks goes on once the ranks have made so many, in all.
  void mark() { ++marks_; }
  void await_marks(int n) const {
    for (const Deadline deadline = Deadline::after(patience); marks_ < n; std::this_thread::sleep_for(std::chrono::microseconds(100))) {
      require(!deadline.passed(), "another rank does not come as far as it should");
    }
  }
  void barrier(uint32_t set = 0) {
    Request q = request(Kind::barrier, "");
    q.set = set;
    wait(*submit(std::move(q), {}));
  }
  int last_joined() {
    TaskPtr t = submit(request(Kind::join, ""), {});
    wait(*t);
    return static_cast<int>(t->op->sizes.at(0));
  }
  uint32_t add_set(const std::vector<int>& ranks) {
    Request q = request(Kind::add_set, "");
    q.splits.assign(ranks.begin(), ranks.end());
    TaskPtr t = submit(std::move(q), {});
    wait(*t);
    return static_cast<uint32_t>(t->op->sizes.at(0));
  }
  bool remove_set(uint32_t id) {
    Request q = request(Kind::remove_set, "");
    q.splits = {id};
    TaskPtr t = submit(std::move(q), {});
    wait(*t);
    return t->op->sizes.at(0) != 0;
  }
  void expect(bool ok, const std::string& what) const { require(ok, what); }
  template <class A, class B>
  void equal(const A& a, const B& b, const std::string& what) const {
    require(a == b, what + ": " + std::to_string(a) + " instead of " + std::to_string(b));
  }

 private:
  std::atomic<int>& marks_;
};

// body(program) on a thread for each rank; one line for each rank that went wrong, "" if none did.
inline std::string run(EngineWorld& world, const std::function<void(Program&)>& body, std::vector<int> ranks = {}) {
  if (ranks.empty()) {
    for (int r = 0; r < world.size(); ++r) ranks.push_back(r);
  }
  std::mutex mutex;
  std::string wrong;
  std::vector<std::thread> threads;
  for (int r : ranks) {
    threads.emplace_back([&, r] {
      try {
        Program program(world, r);
        body(program);
      } catch (const std::exception& e) {
        std::lock_guard lock(mutex);
        wrong += "rank " + std::to_string(r) + ": " + e.what() + "\n";
      }
    });
  }
  for (auto& t : threads) t.join();
  return wrong;
}

// The sum over ranks 0..n-1 of rank + 1.
inline int32_t total(int n) { return n * (n + 1) / 2; }

}  // namespace hvd::testing

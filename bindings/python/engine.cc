// Engine, EngineConfig and Work for Python. Waiting releases the GIL and lets signals (Ctrl-C) through.
#include "engine/engine.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <mutex>
#include <set>

#include "agree/validate.h"
#include "backends/host.h"
#include "buffer.h"
#include "face.h"
#include "glue.h"
#include "transport/secure_link.h"
#include "transport/tcp_link.h"

namespace hvd::python {
namespace {

constexpr double kSignalSlice = 0.2;  // seconds between two looks for Ctrl-C
constexpr double kForever = 1e8;

struct Config {
  int rank = 0, size = 1;
  std::vector<int> node_of{0};
  std::vector<std::string> labels{"rank 0"};
  int segment_fd = -1;
  std::vector<int> event_fds;
  int parent_fd = -1;
  std::map<int, int> child_fds, data_fds;
  size_t staging_bytes = 8 << 20, ring_bytes = 64 << 10;
  size_t fusion_threshold = 128u << 20;
  double cycle_time_ms = 1;
  size_t cache_capacity = 1024;
  bool groups_apart = false;
  double timeout = 30, heartbeat = 0, stall_warning = 60, stall_shutdown = 0;
  std::string algorithm, tuning;
  int spins = 2000, cpu = -1, log_level = 3;
  std::string cipher_library, cipher;
  std::map<int, SecureLink::Keys> link_keys;  // by descriptor

  ~Config() {
    for (auto& [fd, keys] : link_keys) wipe(&keys, sizeof keys);
  }
  void encrypt(int fd, const nb::bytes& send_key, const nb::bytes& receive_key) {
    link_keys[fd] = {cipher_key("send_key", send_key), cipher_key("receive_key", receive_key)};
  }
};

// Messages of the engine's thread reach Python through one callable.
std::mutex sink_mutex;
PyObject* sink_object = nullptr;

void log_to_python(LogLevel level, const std::string& message) {
  if (!nb::is_alive()) return;
  nb::gil_scoped_acquire gil;
  nb::object sink;
  {
    std::lock_guard lock(sink_mutex);
    sink = nb::borrow(sink_object);
  }
  if (!sink.is_valid() || sink.is_none()) return;
  try {
    sink(static_cast<int>(level), message);
  } catch (nb::python_error& e) {
    e.discard_as_unraisable("horovod log sink");
  } catch (...) {  // a message is not worth the engine's thread
  }
}

struct Work {
  std::shared_ptr<Engine> engine;
  OperationPtr op;
  std::string name;  // as submitted; the engine's own copy may change while it is being announced

  Work(std::shared_ptr<Engine> e, OperationPtr o, std::string n) : engine(std::move(e)), op(std::move(o)), name(std::move(n)) {}
  Work(Work&&) = default;
  ~Work() {
    // The last reference ends the engine, whose thread may want the GIL for a message.
    if (engine.use_count() != 1) return;
    nb::gil_scoped_release nogil;
    engine.reset();
  }

  bool wait(double timeout) {
    const OperationPtr mine = op;  // without the GIL, another thread may submit the work again
    if (!mine->done() && !wait_for(mine, timeout)) return false;
    check(mine->status());
    return true;
  }
  bool wait_for(const OperationPtr& mine, double timeout) {
    const Deadline deadline = Deadline::after(timeout >= 0 && timeout < kForever ? timeout : kForever);
    for (;;) {
      bool done;
      {
        nb::gil_scoped_release nogil;
        const Deadline slice = Deadline::after(kSignalSlice);
        done = engine->wait(*mine, slice.when() < deadline.when() ? slice : deadline);
      }
      if (done) return true;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (deadline.passed()) return false;
    }
  }

  template <bool kBlocking>
  void again(uintptr_t in, uintptr_t out) {
    check(engine->submit_again(&op, reinterpret_cast<const std::byte*>(in), reinterpret_cast<std::byte*>(out), kBlocking));
    if constexpr (kBlocking) {
      const OperationPtr mine = op;
      nb::gil_scoped_release nogil;
      engine->wait(*mine, Deadline::after(kSignalSlice));
    }
  }
};

std::unique_ptr<Link> link_over(int fd) {
  std::unique_ptr<TcpLink> link;
  check(TcpLink::adopt(fd, &link));
  return link;
}

// What the links with keys are encrypted by.
class Encryption {
 public:
  explicit Encryption(const Config& c) : keys_(c.link_keys) {
    if (keys_.empty()) return;
    check(CryptoLibrary::load(c.cipher_library, &library_));
    check(cipher_of(c.cipher, &cipher_));
  }
  std::unique_ptr<Link> around(std::unique_ptr<Link> link, int fd) const {
    const auto keys = keys_.find(fd);
    if (keys == keys_.end()) return link;
    std::unique_ptr<Link> made;
    check(SecureLink::make(std::move(link), library_, cipher_, keys->second, &made));
    return made;
  }

 private:
  const std::map<int, SecureLink::Keys>& keys_;
  std::shared_ptr<const CryptoLibrary> library_;
  Cipher cipher_{};
};

// Descriptors that have not become somebody's yet: closed when making an engine fails halfway.
class Unclaimed {
 public:
  explicit Unclaimed(const Config& c) : fds_(c.event_fds.begin(), c.event_fds.end()) {
    for (int fd : {c.segment_fd, c.parent_fd}) fds_.insert(fd);
    for (const auto* map : {&c.child_fds, &c.data_fds}) {
      for (auto [rank, fd] : *map) fds_.insert(fd);
    }
    fds_.erase(-1);
  }
  ~Unclaimed() {
    for (int fd : fds_) ::close(fd);
  }
  std::unique_ptr<Link> link(int fd, const Encryption& encryption) {
    std::unique_ptr<Link> made = link_over(fd);
    fds_.erase(fd);
    return encryption.around(std::move(made), fd);
  }
  void claim_all() { fds_.clear(); }

 private:
  std::set<int> fds_;
};

EngineOptions make_options(const Config& c) {
  Unclaimed unclaimed(c);
  const Encryption encryption(c);
  EngineOptions o;
  o.rank = c.rank;
  o.size = c.size;
  o.node_of = c.node_of;
  o.labels = c.labels;
  o.event_fds = c.event_fds;
  int locals = 0;
  for (int n : c.node_of) locals += n == c.node_of.at(static_cast<size_t>(c.rank));
  if (c.segment_fd >= 0) {
    check(Segment::map(c.segment_fd, {locals, c.ring_bytes, c.staging_bytes}, &o.segment));
  }
  if (c.parent_fd >= 0) o.parent = unclaimed.link(c.parent_fd, encryption);
  for (auto [rank, fd] : c.child_fds) o.children[rank] = unclaimed.link(fd, encryption);
  for (auto [rank, fd] : c.data_fds) o.data[rank] = unclaimed.link(fd, encryption);
  Tuning tuning;
  check(Tuning::parse(c.tuning, &tuning));
  o.settings = {c.fusion_threshold, c.cycle_time_ms * 1e-3, c.cache_capacity, c.groups_apart, c.timeout, c.heartbeat,
                c.stall_warning,    c.stall_shutdown,       c.algorithm,      tuning,         c.spins,   c.cpu};
  check(make_host_backend(c.algorithm, &o.backend));
  const int least = c.log_level;
  o.log = [least](LogLevel level, const std::string& text) {
    if (static_cast<int>(level) >= least) log_to_python(level, text);
  };
  if (const std::string wrong = hvd::check(o); !wrong.empty())
    throw nb::value_error(("inconsistent engine configuration: " + wrong).c_str());
  unclaimed.claim_all();
  if (c.segment_fd >= 0) ::close(c.segment_fd);  // the mapping stays
  return o;
}

struct PyEngine {
  std::shared_ptr<Engine> engine;

  explicit PyEngine(const Config& config) {
    EngineOptions options = make_options(config);
    engine = std::make_shared<Engine>(std::move(options));
  }
  ~PyEngine() {
    if (!engine) return;
    nb::gil_scoped_release nogil;
    engine.reset();
  }
  // In a forked child the threads do not exist, so nothing may be destroyed: the memory stays behind.
  void abandon() {
    abandon_current();
    if (!engine) return;
    engine->abandon_in_child();
    new std::shared_ptr<Engine>(std::move(engine));
  }

  Engine& live() {
    if (!engine) raise(Status(Code::shutdown, "the engine belongs to the parent process; a forked child cannot use it"));
    return *engine;
  }
  Work wrap(OperationPtr op, std::string name) { return Work(engine, std::move(op), std::move(name)); }
};

int64_t integer(nb::handle h) {
  const int64_t v = PyLong_AsLongLong(h.ptr());
  if (v == -1 && PyErr_Occurred()) throw nb::python_error();
  return v;
}

std::vector<int64_t> integers(nb::handle sequence) {
  std::vector<int64_t> out;
  if (sequence.is_none()) return out;
  for (nb::handle item : nb::iter(sequence)) out.push_back(integer(item));
  return out;
}

// Not every str has a UTF-8 form (lone surrogates); those raise UnicodeEncodeError, a ValueError.
const char* text(const nb::str& s) {
  const char* utf8 = PyUnicode_AsUTF8AndSize(s.ptr(), nullptr);
  if (!utf8) throw nb::python_error();
  return utf8;
}

template <class Enum>
Enum code(const char* argument, int value, Enum last) {
  if (value < 0 || value > static_cast<int>(last)) {
    throw nb::value_error(
        (std::string(argument) + " " + std::to_string(value) + " is unknown; accepted: 0 to " + std::to_string(static_cast<int>(last)))
            .c_str());
  }
  return static_cast<Enum>(value);
}

template <bool kBlocking>
Work submit(PyEngine& self, int kind, nb::str name, uintptr_t in, uintptr_t out, nb::handle shape, int dtype, int op, int root,
            double prescale, double postscale, int process_set, nb::handle splits, nb::str group, int group_size, int wire,
            uintptr_t residual, int face) {
  Engine& engine = self.live();
  Request q;
  q.kind = code("kind", kind, Kind::barrier);
  q.set = static_cast<uint32_t>(process_set);
  q.face = code("face", face, uint8_t{UINT8_MAX});
  q.name = text(name);
  q.dtype = code("dtype", dtype, DType::bfloat16);
  q.op = code("op", op, ReduceOp::product);
  q.wire = code("wire", wire, WireFormat::int8);
  if (residual && q.wire == WireFormat::none) throw nb::value_error("residual is given without a wire format; accepted: 0");
  q.root = root;
  q.prescale = prescale;
  q.postscale = postscale;
  q.shape = integers(shape);
  q.splits = integers(splits);
  if (!splits.is_none() && q.splits.empty()) throw nb::value_error("splits is empty; accepted: one entry for each rank of the set");
  q.group = text(group);
  q.group_size = static_cast<uint32_t>(group_size);
  const auto* source = reinterpret_cast<const std::byte*>(in);
  auto* target = reinterpret_cast<std::byte*>(out);
  auto* carried = reinterpret_cast<float*>(residual);
  OperationPtr operation;
  check(kBlocking ? engine.submit_blocking(std::move(q), source, target, &operation, carried)
                  : engine.submit(std::move(q), source, target, &operation, carried));
  Work work = self.wrap(std::move(operation), text(name));
  if constexpr (kBlocking) {
    nb::gil_scoped_release nogil;
    engine.wait(*work.op, Deadline::after(kSignalSlice));
  }
  return work;
}

Work submit_special(PyEngine& self, Kind kind, const std::string& name, std::vector<int64_t> numbers, int face) {
  Request q;
  q.kind = kind;
  q.face = code("face", face, uint8_t{UINT8_MAX});
  q.name = name;
  q.splits = std::move(numbers);
  OperationPtr op;
  check(self.live().submit(std::move(q), nullptr, nullptr, &op));
  return self.wrap(std::move(op), name);
}

nb::dict stats(PyEngine& self) {
  Engine& engine = self.live();
  Engine::Stats s;
  {
    nb::gil_scoped_release nogil;  // shutdown() on another thread may hold the engine's lock until a log message is through
    s = engine.stats();
  }
  nb::dict d;
  for_each(s, [&d](const char* name, uint64_t value) { d[name] = value; });
  d["control_seconds"] = static_cast<double>(s.control_ns) * 1e-9;
  d["unstaged_bytes"] = s.unstaged_bytes;
  d["arena_bytes"] = s.arena_bytes;
  d["scratch_bytes"] = s.scratch_bytes;
  d["wire_bytes"] = s.wire_bytes;
  return d;
}

void define_config(nb::module_& m) {
  nb::class_<Config>(m, "EngineConfig")
      .def(nb::init<>())
      .def_rw("rank", &Config::rank)
      .def_rw("size", &Config::size)
      .def_rw("node_of", &Config::node_of)
      .def_rw("labels", &Config::labels)
      .def_rw("segment_fd", &Config::segment_fd)
      .def_rw("event_fds", &Config::event_fds)
      .def_rw("parent_fd", &Config::parent_fd)
      .def_rw("child_fds", &Config::child_fds)
      .def_rw("data_fds", &Config::data_fds)
      .def_rw("staging_bytes", &Config::staging_bytes)
      .def_rw("ring_bytes", &Config::ring_bytes)
      .def_rw("fusion_threshold", &Config::fusion_threshold)
      .def_rw("cycle_time_ms", &Config::cycle_time_ms)
      .def_rw("cache_capacity", &Config::cache_capacity)
      .def_rw("groups_apart", &Config::groups_apart)
      .def_rw("timeout", &Config::timeout)
      .def_rw("heartbeat", &Config::heartbeat)
      .def_rw("stall_warning", &Config::stall_warning)
      .def_rw("stall_shutdown", &Config::stall_shutdown)
      .def_rw("algorithm", &Config::algorithm)
      .def_rw("tuning", &Config::tuning)
      .def_rw("spins", &Config::spins)
      .def_rw("cpu", &Config::cpu)
      .def_rw("log_level", &Config::log_level)
      .def_rw("cipher_library", &Config::cipher_library)
      .def_rw("cipher", &Config::cipher)
      .def("encrypt", &Config::encrypt, nb::arg("fd"), nb::arg("send_key"), nb::arg("receive_key"));
}

}  // namespace

void define_engine(nb::module_& m) {
  define_config(m);
  nb::class_<Work>(m, "Work")
      .def_prop_ro("name", [](const Work& w) { return w.name; })
      .def("done", [](Work& w) { return w.engine->poll(*w.op); })
      .def("wait", &Work::wait, nb::arg("timeout") = -1.0)
      .def("submit_again", &Work::again<false>, nb::arg("in_ptr"), nb::arg("out_ptr"))
      .def("run_again", &Work::again<true>, nb::arg("in_ptr"), nb::arg("out_ptr"))
      .def_prop_ro("sizes", [](const Work& w) {
    return w.op->done() ? w.op->sizes : std::vector<int64_t>();
  }).def_prop_ro("output", [](const Work& w) -> nb::object {
    if (!w.op->done() || !w.op->output) return nb::none();
    return nb::cast(Buffer(w.op->output));
  });
  using namespace nb::literals;
  nb::class_<PyEngine>(m, "Engine")
      .def(nb::init<const Config&>(), "config"_a)
      .def("submit", &submit<false>, "kind"_a, "name"_a, "in_ptr"_a, "out_ptr"_a, "shape"_a, "dtype"_a, "op"_a, "root"_a, "prescale"_a,
           "postscale"_a, "process_set"_a, "splits"_a.none(), "group"_a, "group_size"_a, "wire"_a = 0, "residual"_a = 0, "face"_a = 0)
      .def("run", &submit<true>, "kind"_a, "name"_a, "in_ptr"_a, "out_ptr"_a, "shape"_a, "dtype"_a, "op"_a, "root"_a, "prescale"_a,
           "postscale"_a, "process_set"_a, "splits"_a.none(), "group"_a, "group_size"_a, "wire"_a = 0, "residual"_a = 0, "face"_a = 0)
      .def("join", [](PyEngine& self, int face) { return submit_special(self, Kind::join, "join.noname", {}, face); }, "face"_a = 0)
      .def("add_process_set",
           [](PyEngine& self, std::vector<int64_t> ranks) { return submit_special(self, Kind::add_set, "", std::move(ranks), 0); },
           "ranks"_a)
      .def("remove_process_set", [](PyEngine& self, int id) { return submit_special(self, Kind::remove_set, "", {id}, 0); },
           "process_set"_a)
      .def("allocate",
           [](PyEngine& self, size_t nbytes) -> nb::object {
    const auto block = self.live().allocate(nbytes);
    return block ? nb::cast(Buffer(block)) : nb::none();
  }, "nbytes"_a)
      .def("process_sets", [](PyEngine& self) { return self.live().process_sets(); })
      .def("ended",
           [](PyEngine& self) -> nb::object {
    const Status why = self.live().ended();
    if (why.ok() || (why.code() == Code::shutdown && why.rank() < 0)) return nb::none();
    const char* how = why.rank() < 0 ? "failed" : why.code() == Code::shutdown ? "left" : "lost";
    return nb::make_tuple(how, why.rank());
  })
      .def("shutdown",
           [](PyEngine& self, const std::string& reason) {
    if (!self.engine) return;
    nb::gil_scoped_release nogil;
    self.engine->shutdown(reason);
  }, "reason"_a = "")
      .def("abandon", &PyEngine::abandon)
      .def("serve_faces",
           [](PyEngine& self, int rank, int size, int local_rank, int local_size) {
    self.live();
    nb::gil_scoped_release nogil;
    set_current(self.engine, rank, size, local_rank, local_size);
  }, "rank"_a, "size"_a, "local_rank"_a, "local_size"_a)
      .def("stats", &stats);
  m.def("face_api", &face_api);
  m.def("serve_face", [](int face, bool in) { serve_face(code("face", face, uint8_t{UINT8_MAX}), in); }, "face"_a, "in_job"_a);
  m.def("serve_no_faces", [] {
    nb::gil_scoped_release nogil;
    set_current(nullptr, 0, 1, 0, 1);
  });
  m.def("set_log_sink", [](nb::object sink) {
    PyObject* old;
    {
      std::lock_guard lock(sink_mutex);
      old = sink_object;
      sink_object = sink.is_none() ? nullptr : sink.release().ptr();
    }
    Py_XDECREF(old);
  }, nb::arg("sink").none());
}

}  // namespace hvd::python

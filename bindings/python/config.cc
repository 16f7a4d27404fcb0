#include "config.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <mutex>
#include <set>

#include "backends/host.h"
#include "backends/mpi.h"
#include "transport/tcp_link.h"

namespace hvd::python {
namespace {

// Python callable that receives log messages from the engine's thread.
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
    // Ignore errors, because a message that cannot be logged must not terminate the engine's thread.
  } catch (...) {
  }
}

std::unique_ptr<Link> link_over(int fd) {
  std::unique_ptr<TcpLink> link;
  check(TcpLink::adopt(fd, &link));
  return link;
}

// Decorator that encrypts the links for which Python has passed a key.
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

// File descriptors that are not yet owned by the engine. They are closed if the creation of the engine fails halfway.
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

}  // namespace

void Config::encrypt(int fd, const nb::bytes& send_key, const nb::bytes& receive_key) {
  link_keys[fd] = {cipher_key("send_key", send_key), cipher_key("receive_key", receive_key)};
}

LogSink log_from(int least) {
  return [least](LogLevel level, const std::string& text) {
    if (static_cast<int>(level) >= least) log_to_python(level, text);
  };
}

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
  if (!c.cuda_library.empty()) o.settings.cuda_library = c.cuda_library;
  o.nccl.kinds = {};
  for (int kind : c.nccl_kinds) o.nccl.kinds.at(static_cast<size_t>(kind)) = true;
  o.nccl.by_hosts = c.nccl_by_hosts;
  o.nccl.sharing_is_meant = c.shared_gpu;
  o.nccl.library = c.nccl_library;
  o.nccl.candidates = c.nccl_candidates;
  o.ipc.wanted = c.cuda_ipc;
  check(make_host_backend(c.algorithm, &o.backend));
  if (!c.mpi_ranks.empty()) {
    mpi::Session* session = mpi::Session::current();
    if (!session || static_cast<int>(c.mpi_ranks.size()) != c.size)
      throw nb::value_error("inconsistent engine configuration: mpi_ranks without mpi_start, or not one for each rank");
    o.backend = make_mpi_backend(session, c.mpi_ranks, c.mpi_reduces, std::move(o.backend));
  }
  o.log = log_from(c.log_level);
  if (const std::string wrong = hvd::check(o); !wrong.empty())
    throw nb::value_error(("inconsistent engine configuration: " + wrong).c_str());
  unclaimed.claim_all();
  // Close the descriptor of the shared memory, which stays mapped.
  if (c.segment_fd >= 0) ::close(c.segment_fd);
  return o;
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
      .def_rw("cuda_library", &Config::cuda_library)
      .def_rw("cuda_ipc", &Config::cuda_ipc)
      .def_rw("nccl_kinds", &Config::nccl_kinds)
      .def_rw("nccl_by_hosts", &Config::nccl_by_hosts)
      .def_rw("shared_gpu", &Config::shared_gpu)
      .def_rw("nccl_library", &Config::nccl_library)
      .def_rw("nccl_candidates", &Config::nccl_candidates)
      .def_rw("mpi_ranks", &Config::mpi_ranks)
      .def_rw("mpi_reduces", &Config::mpi_reduces)
      .def_rw("tuning", &Config::tuning)
      .def_rw("spins", &Config::spins)
      .def_rw("cpu", &Config::cpu)
      .def_rw("log_level", &Config::log_level)
      .def_rw("recorder_entries", &Config::recorder_entries)
      .def_rw("report_dir", &Config::report_dir)
      .def_rw("cipher_library", &Config::cipher_library)
      .def_rw("cipher", &Config::cipher)
      .def("encrypt", &Config::encrypt, nb::arg("fd"), nb::arg("send_key"), nb::arg("receive_key"));
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

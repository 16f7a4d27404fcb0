// EngineConfig: the configuration of an engine as set from Python, and the functions that create its options from it.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "engine/options.h"
#include "glue.h"
#include "transport/secure_link.h"

namespace hvd::python {

// Fields that Python sets; see EngineConfig in src/horovod/_core.pyi.
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
  bool cuda_ipc = true;  // True if ranks of one host may access each other's GPU memory.
  std::string cuda_library;  // Path of the CUDA driver library; empty for the loader's default.
  std::vector<int> nccl_kinds;  // Operations that NCCL may execute.
  bool nccl_by_hosts = false;
  bool shared_gpu = false;  // true to log no warning when ranks share GPUs
  std::string nccl_library;
  std::vector<std::string> nccl_candidates;
  std::vector<int> mpi_ranks;  // Rank in MPI_COMM_WORLD of each rank; empty if MPI is not used.
  bool mpi_reduces = false;     // True to let MPI reduce where it can, in an order of its choice.
  int spins = 2000, cpu = -1, log_level = 3;
  size_t recorder_entries = 1000;  // Number of entries in the flight recorder; 0 disables it.
  std::string report_dir;          // Folder of the job's reports and dumps; if empty, none are written automatically.
  std::string cipher_library, cipher;
  std::map<int, SecureLink::Keys> link_keys;  // key: descriptor

  ~Config() {
    for (auto& [fd, keys] : link_keys) wipe(&keys, sizeof keys);
  }
  void encrypt(int fd, const nb::bytes& send_key, const nb::bytes& receive_key);
};

// Create the options. This takes the descriptors: they are moved to the options or closed. Raises ValueError for an
// inconsistent configuration.
EngineOptions make_options(const Config& config);

// Return a sink that passes messages of this severity (LogLevel) or above to Python's sink. Callable from any thread
// that may take the GIL.
LogSink log_from(int least);

}  // namespace hvd::python

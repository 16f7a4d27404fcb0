// EngineConfig is the engine configuration as set from Python. The functions below create the engine's options from it.
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
  // True if ranks of one host can access each other's GPU memory.
  bool cuda_ipc = true;
  // Path of the CUDA driver library, or an empty string for the loader's default.
  std::string cuda_library;
  // Kinds of operations that NCCL can execute.
  std::vector<int> nccl_kinds;
  bool nccl_by_hosts = false;
  // True to suppress the warning about ranks that share a GPU.
  bool shared_gpu = false;
  std::string nccl_library;
  std::vector<std::string> nccl_candidates;
  // Rank in MPI_COMM_WORLD of each rank. Empty if MPI is not used.
  std::vector<int> mpi_ranks;
  // True to let MPI perform reductions where it can. MPI can add the ranks' values in any order.
  bool mpi_reduces = false;
  int spins = 2000, cpu = -1, log_level = 3;
  // Number of entries in the flight recorder; 0 disables it.
  size_t recorder_entries = 1000;
  // Folder for the job's reports and dumps. If empty, none are written automatically.
  std::string report_dir;
  std::string cipher_library, cipher;
  // Keys of the encrypted links, keyed by descriptor.
  std::map<int, SecureLink::Keys> link_keys;

  ~Config() {
    for (auto& [fd, keys] : link_keys) wipe(&keys, sizeof keys);
  }
  void encrypt(int fd, const nb::bytes& send_key, const nb::bytes& receive_key);
};

// Create the options. File descriptors are moved to the options or, on an error, closed. Raises ValueError for an
// inconsistent configuration.
EngineOptions make_options(const Config& config);

// Return a log sink that passes messages of this severity (LogLevel) or above to the logger in Python. The sink can be
// called from any thread that can take the GIL.
LogSink log_from(int least);

}  // namespace hvd::python

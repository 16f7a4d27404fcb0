// Configuration and resources of an engine. Its creator (Python or a test) has already opened and authenticated all
// connections.
#pragma once
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "base/log.h"
#include "transport/link.h"
#include "transport/segment.h"

namespace hvd {

// Settings of an engine. Where they must be equal on all ranks, those of rank 0 apply.
struct Settings {
  // Maximum size of a fused operation in bytes; 0 disables fusion.
  size_t fusion_threshold = 128u << 20;
  // Maximum number of seconds for which requests are batched.
  double cycle_time = 1e-3;
  // Maximum number of operations in a schedule; 0 disables schedules.
  size_t cache_capacity = 1024;
  bool groups_apart = false;
  // Seconds without progress after which a collective fails.
  double timeout = 30;
  // Seconds without an acknowledgement after which a peer's host is considered lost; 0 disables the check.
  double heartbeat = 0;
  // Seconds until a stall warning; 0 disables warnings.
  double stall_warning = 60;
  // Seconds until a stall ends the job; 0 disables this.
  double stall_shutdown = 0;
  // Algorithms requested by the user; they override the table (plan/algorithms.h).
  std::string algorithm;
  // Size thresholds, which must be equal on all ranks.
  Tuning tuning;
  int spins = 2000;
  // Core for the engine's thread, or -1 to leave the choice to the system.
  int cpu = -1;
  // CUDA driver library, loaded when the first GPU tensor is submitted.
  std::string cuda_library = "libcuda.so.1";
  // Size in bytes of the pinned memory for staging device tensors (engine/device/host_staged_path.h).
  size_t staged_memory = 256u << 20;
};

// Settings for NCCL: the kinds of operations that it may execute, and where to find its library (nccl::Search).
struct NcclOptions {
  // True for each Kind that NCCL may execute.
  std::array<bool, 6> kinds{true, true, true, true, true, true};
  std::string library;
  std::vector<std::string> candidates;
  // Seconds for creating a communicator, until a warning is logged (slow) and until the creation fails (patience).
  double slow = 10, patience = 120;
  // True to suppress the warning about ranks that share a GPU.
  bool sharing_is_meant = false;
  // True to use hierarchical allreduce even where NCCL could connect the hosts
  // (engine/device/hierarchical_nccl_path.h).
  bool by_hosts = false;
  bool wanted() const { return std::find(kinds.begin(), kinds.end(), true) != kinds.end(); }
};

// Settings for CUDA IPC, with which ranks on one host access each other's GPU memory.
struct IpcOptions {
  bool wanted = true;
  // Number of bytes of tensors that are exchanged at a time; a multiple of 2 MiB. Each rank's GPU buffer has twice this size.
  size_t window = 32u << 20;
};

struct EngineOptions {
  int rank = 0;
  int size = 1;
  // The node of each rank. Nodes are numbered in the order of their first ranks.
  std::vector<int> node_of;
  // Label of each rank, for error messages.
  std::vector<std::string> labels;
  // Shared memory of the node. Null on a rank that is alone on its node; the engine then allocates private memory.
  std::shared_ptr<Segment> segment;
  // Wakeup eventfd of each rank on this node. The engine owns these descriptors.
  std::vector<int> event_fds;
  // Control link to the parent in the control tree.
  std::unique_ptr<Link> parent;
  std::map<int, std::unique_ptr<Link>> children;
  // Data links to ranks on other nodes, keyed by rank.
  std::map<int, std::unique_ptr<Link>> data;
  std::unique_ptr<Backend> backend;
  Settings settings;
  NcclOptions nccl;
  IpcOptions ipc;
  LogSink log;
};

// Return all file descriptors in the options.
std::vector<int> descriptors(const EngineOptions& options);

// Replace the control links between ranks of one node with links through shared memory (NodeControlLink).
void talk_through_memory(EngineOptions& options);

// Return an error message if the options are inconsistent, or an empty string.
std::string check(const EngineOptions& options);

}  // namespace hvd

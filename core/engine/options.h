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

// Tunable settings of an engine. Where ranks must agree, the settings of rank 0 apply.
struct Settings {
  size_t fusion_threshold = 128u << 20;  // Maximum bytes of a fused operation; 0 disables fusion.
  double cycle_time = 1e-3;              // Maximum seconds of the batching window.
  size_t cache_capacity = 1024;          // Maximum number of operations in a schedule; 0 disables schedules.
  bool groups_apart = false;
  double timeout = 30;                   // Seconds without progress after which a collective fails.
  double heartbeat = 0;  // Seconds without an acknowledgement after which a peer's host counts as lost; 0 disables the check.
  double stall_warning = 60;             // Seconds until a stall warning; 0 disables it.
  double stall_shutdown = 0;             // Seconds until a stall ends the job; 0 disables it.
  std::string algorithm;                 // Algorithms requested by the user, which override the table (plan/algorithms.h).
  Tuning tuning;                         // Size thresholds, which must be equal on all ranks.
  int spins = 2000;
  int cpu = -1;                          // Core for the engine's thread; -1 leaves the choice to the system.
  std::string cuda_library = "libcuda.so.1";  // CUDA driver library, loaded when the first GPU tensor is submitted.
  size_t staged_memory = 256u << 20;  // Bytes of pinned memory for staging device tensors (engine/device/host_staged_path.h).
};

// Which operations NCCL may execute, and where to find its library (see nccl::Search).
struct NcclOptions {
  std::array<bool, 6> kinds{true, true, true, true, true, true};  // true for each Kind that NCCL may execute
  std::string library;
  std::vector<std::string> candidates;
  // Seconds that the creation of a communicator may take: a warning after `slow`, an error after `patience`.
  double slow = 10, patience = 120;
  bool sharing_is_meant = false;  // True to log no warning when ranks share a GPU.
  // True for hierarchical allreduce even where NCCL could connect the hosts (engine/device/hierarchical_nccl_path.h).
  bool by_hosts = false;
  bool wanted() const { return std::find(kinds.begin(), kinds.end(), true) != kinds.end(); }
};

// True if ranks on one host may access each other's GPU memory.
struct IpcOptions {
  bool wanted = true;
  // Bytes of tensors that are exchanged at a time, a multiple of 2 MiB; the buffer on the GPU has twice this size.
  size_t window = 32u << 20;
};

struct EngineOptions {
  int rank = 0;
  int size = 1;
  std::vector<int> node_of;  // Node of each rank. Nodes are numbered in the order of their first rank.
  std::vector<std::string> labels;  // Label of each rank, for messages.
  // Shared memory of the node. If null, the rank is alone on its node, and private memory is allocated.
  std::shared_ptr<Segment> segment;
  std::vector<int> event_fds;  // Wakeup eventfd of each local rank of this node; owned.
  std::unique_ptr<Link> parent;  // Control link to the parent; see Control.
  std::map<int, std::unique_ptr<Link>> children;
  std::map<int, std::unique_ptr<Link>> data;  // data links to ranks on other nodes
  std::unique_ptr<Backend> backend;
  Settings settings;
  NcclOptions nccl;
  IpcOptions ipc;
  LogSink log;
};

// Return all file descriptors in the options.
std::vector<int> descriptors(const EngineOptions& options);

// Replace the control links between ranks of one node by NodeControlLinks over the segment.
void talk_through_memory(EngineOptions& options);

// Return an empty text if the options are consistent, otherwise a description of what is wrong.
std::string check(const EngineOptions& options);

}  // namespace hvd

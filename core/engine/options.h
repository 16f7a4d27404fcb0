// Configuration and resources of an engine. The creator (Python or a test) has opened and authenticated all
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

// Tunable settings of an engine. Those of rank 0 apply where ranks must agree.
struct Settings {
  size_t fusion_threshold = 128u << 20;  // Maximum bytes of a fused operation; 0: no fusion.
  double cycle_time = 1e-3;              // seconds: upper bound of the batching window.
  size_t cache_capacity = 1024;          // Maximum operations of a schedule; 0: always negotiate.
  bool groups_apart = false;
  double timeout = 30;                   // Seconds without progress after which a collective fails.
  double heartbeat = 0;  // Seconds without an acknowledgement after which a peer's host counts as lost; 0: never.
  double stall_warning = 60;             // Seconds until a stall warning; 0: never.
  double stall_shutdown = 0;             // Seconds until a stall ends the job; 0: never.
  std::string algorithm;                 // Overrides the algorithm table.
  Tuning tuning;                         // Must be equal on all ranks.
  int spins = 2000;
  int cpu = -1;                          // Core for the engine's thread; -1: any.
  std::string cuda_library = "libcuda.so.1";  // CUDA driver library, loaded when the first GPU tensor is submitted.
  size_t staged_memory = 256u << 20;  // Bytes of pinned memory for staging device tensors, see engine/device/host_staged_path.h.
};

// Operations that NCCL may execute, and where its library is; see nccl::Search.
struct NcclOptions {
  std::array<bool, 6> kinds{true, true, true, true, true, true};  // whether NCCL may execute each Kind
  std::string library;
  std::vector<std::string> candidates;
  // Seconds for creating a communicator: a warning after `slow`, an error after `patience`.
  double slow = 10, patience = 120;
  bool sharing_is_meant = false;  // Do not warn when ranks share a GPU.
  bool by_hosts = false;  // Hierarchical allreduce even where NCCL could connect the hosts (engine/device/hierarchical_nccl_path.h).
  bool wanted() const { return std::find(kinds.begin(), kinds.end(), true) != kinds.end(); }
};

// Whether ranks on one host may access each other's GPU memory.
struct IpcOptions {
  bool wanted = true;
  size_t window = 32u << 20;  // bytes of tensors exchanged at a time, a multiple of 2 MiB; the GPU keeps twice as much
};

struct EngineOptions {
  int rank = 0;
  int size = 1;
  std::vector<int> node_of;  // Node of each rank; nodes are numbered in order of first appearance.
  std::vector<std::string> labels;  // Label of each rank, for messages.
  // Shared memory of the node; if null (alone on the node), private memory is allocated.
  std::shared_ptr<Segment> segment;
  std::vector<int> event_fds;  // Wakeup eventfd of each local rank of this node; owned.
  std::unique_ptr<Link> parent;  // Control link, see Control.
  std::map<int, std::unique_ptr<Link>> children;
  std::map<int, std::unique_ptr<Link>> data;  // links to ranks on other nodes
  std::unique_ptr<Backend> backend;
  Settings settings;
  NcclOptions nccl;
  IpcOptions ipc;
  LogSink log;
};

// Return every descriptor in the options.
std::vector<int> descriptors(const EngineOptions& options);

// Replace control links between ranks of one node by NodeControlLinks over the segment.
void talk_through_memory(EngineOptions& options);

// Return "" if the options are consistent, otherwise what is wrong.
std::string check(const EngineOptions& options);

}  // namespace hvd

// What an engine is made from. Whoever makes it (Python, tests) has opened and authenticated everything.
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

struct Settings {
  size_t fusion_threshold = 128u << 20;  // bytes; 0: no fusion
  double cycle_time = 1e-3;              // seconds: upper bound of the batching window
  size_t cache_capacity = 1024;          // operations of a schedule; 0: always negotiate
  bool groups_apart = false;
  double timeout = 30;                   // seconds without progress inside a collective
  double heartbeat = 0;                  // seconds without an acknowledgement after which a peer's host is lost; 0: never
  double stall_warning = 60;             // seconds; 0: never warn
  double stall_shutdown = 0;             // seconds; 0: never
  std::string algorithm;                 // override of the algorithm table
  Tuning tuning;                         // the same on all ranks
  int spins = 2000;
  int cpu = -1;                          // core of the engine thread; -1: any
  std::string cuda_library = "libcuda.so.1";  // of the CUDA driver; looked for when the first tensor on a GPU comes
  size_t staged_memory = 256u << 20;  // bytes of pinned memory that tensors of a device use at a time, see engine/device/staged.h
};

// Which operations NCCL may carry out, and where its library is, see nccl::Search.
struct NcclOptions {
  std::array<bool, 6> kinds{true, true, true, true, true, true};  // by Kind
  std::string library;
  std::vector<std::string> candidates;
  // Seconds in which a communicator is made: after `slow` there is a warning, after `patience` none is made.
  double slow = 10, patience = 120;
  bool sharing_is_meant = false;  // no warning that ranks share a GPU
  bool by_hosts = false;  // allreduces inside hosts, also where NCCL could connect them (engine/device/by_hosts.h)
  bool wanted() const { return std::find(kinds.begin(), kinds.end(), true) != kinds.end(); }
};

// Whether ranks of one host may use each other's memory on GPUs.
struct IpcOptions {
  bool wanted = true;
  size_t window = 32u << 20;  // bytes of tensors that are exchanged at a time, a multiple of 2 MiB; twice as much is kept on the GPU
};

struct EngineOptions {
  int rank = 0;
  int size = 1;
  std::vector<int> node_of;  // by rank; nodes are numbered in order of first appearance
  std::vector<std::string> labels;  // by rank, for messages
  std::shared_ptr<Segment> segment;  // the node's memory; made in process when null (alone on the node)
  std::vector<int> event_fds;  // by local rank on my node; owned
  std::unique_ptr<Link> parent;  // control links, see Control
  std::map<int, std::unique_ptr<Link>> children;
  std::map<int, std::unique_ptr<Link>> data;  // to ranks on other nodes
  std::unique_ptr<Backend> backend;
  Settings settings;
  NcclOptions nccl;
  IpcOptions ipc;
  LogSink log;
};

// Every descriptor in the options.
std::vector<int> descriptors(const EngineOptions& options);

// Replaces control links between ranks of one node by NodeControlLinks over the segment.
void talk_through_memory(EngineOptions& options);

// "" when consistent, else what is wrong.
std::string check(const EngineOptions& options);

}  // namespace hvd

// Device memory that the ranks of a host share (CUDA IPC), and counters in host memory that synchronize the ranks'
// streams.
#pragma once
#include <array>
#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "devices/device.h"
#include "transport/segment.h"

namespace hvd {

class StreamCounters {
 public:
  // Maximum number of counters of one rank.
  static constexpr size_t kMax = 8;

  // Open the counters of one rank on this host. This can wait for work on the device. Ranks that are threads of one process share the
  // registration of the memory.
  static Status open(std::shared_ptr<Segment> segment, const std::shared_ptr<Device>& device, int local_rank,
                     std::unique_ptr<StreamCounters>* out);
  StreamCounters(const StreamCounters&) = delete;

  Status tell(size_t word, Device::Stream stream);
  Status await(int local_rank, size_t word, Device::Stream stream);
  // Release all streams that wait for a counter. A released stream can still write to its counter, so repeat this while any stream waits.
  void release() const;
  void release(int local_rank, size_t word) const;

 private:
  struct Registered;
  // Counter of one rank. Its two values are on separate cache lines.
  struct Counter {
    // Value that the rank's GPU writes and other GPUs wait for.
    alignas(64) std::atomic<uint32_t> reached;
    // Value published by the rank's host code.
    alignas(64) std::atomic<uint32_t> recorded;
  };
  StreamCounters(std::shared_ptr<const Registered> registered, int local_rank)
      : registered_(std::move(registered)), local_rank_(local_rank) {}
  Counter& counter(int local_rank, size_t word) const;
  std::byte* on_device(int local_rank, size_t word) const;

  const std::shared_ptr<const Registered> registered_;
  const int local_rank_;
};

// Exchange of device memory between the processes of a host (CUDA IPC): peers access this rank's memory, and this rank
// accesses theirs. Each rank creates one buffer of two slots, and each peer opens the buffer once. Counters in host
// memory (StreamCounters above) publish the progress.
//
// The engine allocates the buffer itself, because a framework could free its memory while a peer has the memory open.
// The buffer is freed only after all peers have closed it, possibly after this rank's engine has shut down; see
// retire().
//
// Not thread-safe. Used only by the thread that runs the engine's progress loop, which must have entered the device
// (Device::Turn).

// Identity and location of this process. Ranks that are threads of one process use each other's pointers directly.
struct Whereabouts {
  // Random number that identifies the process.
  uint64_t token;
  // PID namespace in which `process` is valid.
  uint64_t namespace_of_ids;
  int32_t process;
  bool same_process(const Whereabouts& other) const { return token == other.token && process == other.process; }
};
Whereabouts whereabouts();

class Exchange {
 public:
  static constexpr int kSlots = 2;
  static constexpr size_t kPatternBytes = 64;

  // Description of a rank's memory, which each rank sends to its peers.
  struct Card {
    Whereabouts where;
    int32_t local_rank;
    uint64_t slot_bytes;
    std::byte* memory;
    Device::Handle handle;
  };
  // Indices of a rank's counters in shared memory.
  enum Word : size_t {
    // Number of windows (parts of the tensors that fit in a slot) whose data are in the rank's buffer. One counter per slot.
    kReady,
    // Number of windows for which the rank has written all results and no longer reads other ranks' slots. One counter per slot.
    kDone = kReady + kSlots,
    // Counter that becomes 1 once the rank has written its test pattern.
    kWritten = kDone + kSlots,
    kWords,
  };
  static_assert(kWords <= StreamCounters::kMax);
  // Memory of a peer as seen by this process. The slots are contiguous, and the peer's test pattern follows them.
  struct Peer {
    std::byte* memory = nullptr;
    size_t slot_bytes = 0;
    Whereabouts where{};
    int local_rank = 0;
    // True if this process has opened the memory and must close it.
    bool opened = false;
    // True if this process can use the memory.
    bool met = false;
  };

  // `slot_bytes` must be a multiple of 2 MiB.
  Exchange(std::shared_ptr<Segment> segment, int local_rank, size_t slot_bytes)
      : segment_(std::move(segment)), local_rank_(local_rank), slot_bytes_(slot_bytes) {}
  ~Exchange();
  Exchange(const Exchange&) = delete;

  // Create this rank's buffer, at most once. `out` receives its description. If memory is short, the slots are smaller than requested; the
  // description contains their size. The call can wait for the device.
  Status prepare(const std::shared_ptr<Device>& device, Card* out);
  // Free the buffer that prepare() created. Allowed only while no peer has opened the memory.
  void discard();
  // Store the memory description that `rank` has sent. Call this before meet().
  void acquaint(int rank, const Card& card);
  // Open the memory of `rank`, at most once. Then wait a few seconds for the rank to write its test pattern, and read
  // the pattern.
  Status meet(int rank, const Card& card);

  std::byte* slot(const Peer& peer, uint64_t window) const { return peer.memory + window % kSlots * peer.slot_bytes; }
  // Publish (tell) or wait for (await) the counter of the window's slot, in stream order. `word` is kReady or kDone.
  Status tell(Word word, uint64_t window) { return counters_->tell(word + window % kSlots, stream_); }
  Status await(const Peer& peer, Word word, uint64_t window) { return counters_->await(peer.local_rank, word + window % kSlots, stream_); }
  const Peer& me() const { return me_; }
  const Peer& peer(int rank) const { return peers_.at(rank); }
  Device::Stream stream() const { return stream_; }
  // True if the device did not have enough memory for slots of the requested size. Valid after prepare().
  bool scarce() const { return scarce_; }

  // Retire this exchange at the end of the job. Its resources are released by sweep() once the device has finished the work on the stream
  // and the peers have closed this rank's memory. With `release`, streams no longer wait for a lost rank, and continue with invalid data.
  void retire(bool release);
  // Release the resources of retired exchanges in this process. Return true if devices still use some of them, possibly
  // forever.
  static bool sweep();

 private:
  struct Retired;
  static std::list<Retired>& aside();
  Status make_all();
  Status make(Card* out);
  Status allocate();
  static std::byte* pattern_of(const Peer& peer) { return peer.memory + kSlots * peer.slot_bytes; }
  Status open(const Card& card, Peer* peer);
  Status await_probing();
  Status read_pattern(const Peer& peer);

  const std::shared_ptr<Segment> segment_;
  const int local_rank_;
  const size_t slot_bytes_;
  std::shared_ptr<Device> device_;
  Device::Stream stream_ = nullptr, probing_ = nullptr;
  bool scarce_ = false;
  // Host buffer that is used to write and read the test patterns.
  std::byte* pinned_ = nullptr;
  std::shared_ptr<StreamCounters> counters_;
  Peer me_;
  // Opened memory of the peers, keyed by global rank.
  std::map<int, Peer> peers_;
};

}  // namespace hvd

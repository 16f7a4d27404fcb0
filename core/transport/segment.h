// Memory shared by the ranks of one host: an anonymous file (memfd) that the host's first rank creates in Python and passes to the others
// as a descriptor. It has no name, and is freed when its last user exits, even after kill -9.
//
// The segment consists of these parts, in order:
//   - header: the abort flag
//   - wakeups: one WakeupWord per local rank
//   - words: one page per local rank, with words that GPUs write and wait for (engine/device/ipc_memory.h)
//   - set blocks: per process set and local rank, a cache line with the words that peers wait for, and one with the
//     progress at the end of the last collective
//   - rings: per ordered pair of local ranks, a byte ring for data and one for control messages (shm links)
//   - staging: per local rank, the staging area that the others read
//   - arenas: per local rank, memory for its tensors that the others can read and write (arena.h)
//
// Untouched pages cost nothing, so the layout can be generous. It depends only on the number of local ranks and the
// sizes.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/limits.h"
#include "base/status.h"
#include "transport/wakeup_event.h"

namespace hvd {

// Sizes that determine the layout of a segment.
struct SegmentSpec {
  int local_size = 1;
  // Size of one ring in bytes; a power of two.
  size_t ring_bytes = 64 << 10;
  // Size of a rank's staging area in bytes; a multiple of 4096.
  size_t staging_bytes = 8 << 20;
  // Size of a rank's arena in bytes, a multiple of 4096, or 0 for no arenas.
  size_t arena_bytes = 0;
};

struct SegmentHeader {
  uint64_t magic;
  uint32_t local_size;
  // Abort flag. If nonzero, the job is over, and all waits in shared memory return.
  alignas(64) std::atomic<uint32_t> abort;
  // One bit for each of the first 64 local ranks: set once the rank no longer uses other ranks' device memory.
  std::atomic<uint64_t> let_go;
};

// Shared-memory counters of one local rank in one process set.
struct SetLine {
  // Number of collective stages that this rank has finished, for which its peers wait in every operation. NodeGroup::withdraw() takes one
  // stage back.
  alignas(64) std::atomic<uint64_t> progress{0};
  // This rank's ScheduleWord: its position in the running schedule. Used by the engine.
  std::atomic<uint64_t> schedule{0};
  // Value of `progress` at the end of the last collective. Peers rarely read it, so it has a separate cache line.
  alignas(64) std::atomic<uint64_t> finished{0};
};

enum class RingChannel : uint8_t { data = 0, control = 1 };
inline constexpr int kRingChannels = 2;

struct RingHeader {
  // Total number of bytes written to the ring.
  alignas(64) std::atomic<uint64_t> head{0};
  // Total number of bytes read from the ring.
  alignas(64) std::atomic<uint64_t> tail{0};
};

class Segment {
 public:
  static constexpr size_t kWordsBytes = 4096;
  static size_t bytes_needed(const SegmentSpec& spec);
  // Map `fd`, which stays owned by the caller. The file must have at least bytes_needed() bytes, zero-filled when new. Space beyond the
  // fixed parts forms the arenas, so the creator of the file decides their size, not spec.arena_bytes. If the process cannot map that much
  // (address-space limit), there are no arenas, and arena() returns null.
  static Status map(int fd, const SegmentSpec& spec, std::shared_ptr<Segment>* out);
  // Create private memory, for ranks that are threads of one process (tests).
  static std::shared_ptr<Segment> in_process(const SegmentSpec& spec);
  ~Segment();

  const SegmentSpec& spec() const { return spec_; }
  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(base_); }
  WakeupWord& wakeup(int local_rank) const;
  // Return a rank's page of kWordsBytes bytes, with words that GPUs write and wait for. The pages of all ranks are contiguous.
  std::byte* words(int local_rank) const;
  SetLine& set_line(int set_slot, int local_rank) const;
  RingHeader& ring(int from, int to, RingChannel channel) const;
  std::byte* ring_data(int from, int to, RingChannel channel) const;
  std::byte* staging(int local_rank) const;
  // Return the rank's arena, or null if there are no arenas.
  std::byte* arena(int local_rank) const;

 private:
  Segment(std::byte* base, size_t bytes, const SegmentSpec& spec) : base_(base), bytes_(bytes), spec_(spec) {}
  size_t ring_index(int from, int to, RingChannel channel) const;

  std::byte* base_;
  size_t bytes_;
  SegmentSpec spec_;
};

}  // namespace hvd

// The memory that the ranks of one host share: one anonymous file (memfd) made by the host's first rank in Python and handed to
// the others as a descriptor, so that it has no name and vanishes with its last user, kill -9 included.
//
//   header      abort flag
//   bells       one BellWord a local rank
//   words       a page for each local rank, of words that GPUs write and await (engine/device/words.h)
//   set blocks  for each process set and local rank: a cache line with a progress counter and one with a schedule word
//   rings       for each ordered pair of local ranks a byte ring for data and one for control messages (shm links)
//   staging     for each local rank: the fusion buffer that the others read
//   arenas      for each local rank: memory for its tensors, which the others can read and write (arena.h)
//
// Untouched pages cost nothing, so the layout is generous. It is a pure function of (local ranks, sizes).
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/limits.h"
#include "base/status.h"
#include "transport/bell.h"

namespace hvd {

struct SegmentSpec {
  int local_size = 1;
  size_t ring_bytes = 64 << 10;     // capacity of one pair's ring, a power of two
  size_t staging_bytes = 8 << 20;   // a rank's staging area, a multiple of 4096
  size_t arena_bytes = 0;           // a rank's arena, a multiple of 4096; 0: none
};

struct SegmentHeader {
  uint64_t magic;
  uint32_t local_size;
  alignas(64) std::atomic<uint32_t> abort;
  std::atomic<uint64_t>
      let_go;  // a bit for each of the first 64 local ranks: it uses nothing any more of what others have on their devices
};

struct SetLine {  // one per process set and local rank
  alignas(64) std::atomic<uint64_t> progress{0};  // stages of collectives that this rank has finished (NodeGroup)
  alignas(64) std::atomic<uint64_t> schedule{0};  // position in the running schedule that this rank is ready for (engine)
};

enum class RingChannel : uint8_t { data = 0, control = 1 };
inline constexpr int kRingChannels = 2;

struct RingHeader {
  alignas(64) std::atomic<uint64_t> head{0};    // bytes ever written
  alignas(64) std::atomic<uint64_t> tail{0};    // bytes ever read
};

class Segment {
 public:
  static constexpr size_t kWordsBytes = 4096;
  static size_t bytes_needed(const SegmentSpec& spec);
  // Maps `fd` (at least bytes_needed long, zero-filled when new). The fd stays the caller's. What the file has beyond the rest are the
  // arenas, so who makes it decides about their size, and spec.arena_bytes is not looked at. If this process may not map that much (a
  // limit of its address space), it does without: arena() is null.
  static Status map(int fd, const SegmentSpec& spec, std::shared_ptr<Segment>* out);
  // Private memory for ranks that are threads of one process (tests).
  static std::shared_ptr<Segment> in_process(const SegmentSpec& spec);
  ~Segment();

  const SegmentSpec& spec() const { return spec_; }
  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(base_); }
  BellWord& bell(int local_rank) const;
  std::byte* words(int local_rank) const;  // kWordsBytes, those of all ranks one behind the other
  SetLine& set_line(int set_slot, int local_rank) const;
  RingHeader& ring(int from, int to, RingChannel channel) const;
  std::byte* ring_data(int from, int to, RingChannel channel) const;
  std::byte* staging(int local_rank) const;
  std::byte* arena(int local_rank) const;  // null without arenas

 private:
  Segment(std::byte* base, size_t bytes, const SegmentSpec& spec) : base_(base), bytes_(bytes), spec_(spec) {}
  size_t ring_index(int from, int to, RingChannel channel) const;

  std::byte* base_;
  size_t bytes_;
  SegmentSpec spec_;
};

}  // namespace hvd

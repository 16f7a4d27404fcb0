// Memory shared by the ranks of one communicator, threads and processes alike: a memfd without a name, which
// the creator of the unique id sends through an abstract Unix socket. A process that dies leaves nothing
// behind.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "nccl_abi.h"

namespace simnccl {

constexpr int kMostRanks = 64, kMostMessages = 64;

enum class Phase : int { living = 0, destroyed, aborted };

// The operation that a rank is about to run; it must be equal on all ranks for the same number.
struct Signature {
  uint64_t hash = 0;
  char text[240] = {};
};

struct RankState {
  std::atomic<uint64_t> arrived{0};  // number of the kernel whose input is in its area, from 1
  std::atomic<uint64_t> done{0};  // of the last kernel that it has finished
  std::atomic<uint32_t> connected{0};  // kinds of collectives that it has called
  std::atomic<int> phase{0};
  Signature signature;                 // of `arrived`
  uint64_t host = 0;
};

// Messages from one rank to another: all messages of one kernel are consecutive in the channel's area.
struct Channel {
  std::atomic<uint64_t> posted{0}, taken{0};  // number of messages since the start
  std::atomic<uint32_t> sends{0}, receives{0};  // which ends have been connected
  uint64_t first = 0;                          // number of the first message in the area, from 0
  uint64_t bytes[kMostMessages] = {};
};

struct Control {
  std::atomic<uint32_t> mismatch{0};  // the mismatch has been reported
  RankState ranks[kMostRanks];
  Channel channels[kMostRanks * kMostRanks];  // by sender, then receiver
};

class Shared {
 public:
  Shared(int fd, int size);
  ~Shared();
  Shared(const Shared&) = delete;

  Control& control() { return *control_; }
  RankState& rank(int r) { return control_->ranks[r]; }
  Channel& channel(int from, int to) { return control_->channels[from * size_ + to]; }
  int size() const { return size_; }

  // Areas for data: a rank's, and a channel's. Mapped while a piece lives.
  class Piece {
   public:
    Piece(int fd, uint64_t offset, size_t bytes);
    ~Piece();
    Piece(const Piece&) = delete;
    std::byte* data() const { return data_; }

   private:
    void* base_ = nullptr;
    size_t length_ = 0;
    std::byte* data_ = nullptr;
  };
  Piece area(int rank, size_t offset, size_t bytes) const { return {fd_, area_at(rank) + offset, bytes}; }
  Piece area(int from, int to, size_t offset, size_t bytes) const { return {fd_, channel_at(from, to) + offset, bytes}; }
  void forget_area(int rank) const;  // releases its pages

 private:
  uint64_t area_at(int rank) const;
  uint64_t channel_at(int from, int to) const;
  const int fd_, size_;
  Control* control_;
};

// A rank's record when it joins.
struct Joining {
  int size, rank, version;
  uint64_t host;
  char uuid[33];
  char bus[24];
};

// Creates an id and starts the thread that serves it, once.
ncclResult_t serve(ncclUniqueId* id);

// Blocks until all ranks have joined, or `give_up` returns true. Threads of one process get the same object.
ncclResult_t join(const ncclUniqueId& id, const Joining& joining, const std::function<bool()>& give_up, std::shared_ptr<Shared>* out);

}  // namespace simnccl

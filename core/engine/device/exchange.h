// Memory of this rank's device that ranks of other processes on the host read and write, and theirs here (CUDA IPC). Each rank makes one
// such buffer, of two slots; others open it once. Who has done what in it is told by words in the host's memory (engine/device/words.h).
//
// It is the engine's own: what a framework allocates may be freed while a peer has it open. Whoever made it frees it only after all others
// have let go of it, so a rank that ends leaves it behind, see retire().
//
// Used only by whoever drives the engine, with a Turn on the device.
#pragma once
#include <array>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "devices/device.h"
#include "engine/device/words.h"
#include "transport/segment.h"

namespace hvd {

// Where this process is, and what it is: ranks that are threads of one process use each other's pointers as they are.
struct Whereabouts {
  uint64_t token;      // of the process, made up at random
  uint64_t namespace_of_ids;  // in which the next one means something
  int32_t process;
  bool same_process(const Whereabouts& other) const { return token == other.token && process == other.process; }
};
Whereabouts whereabouts();

class Exchange {
 public:
  static constexpr int kSlots = 2;
  static constexpr size_t kPatternBytes = 64;

  // What one rank has, as it tells the others.
  struct Card {
    Whereabouts where;
    int32_t local_rank;
    uint64_t slot_bytes;
    std::byte* memory;
    Device::Handle handle;
  };
  // What each rank counts.
  enum Word : size_t {
    kReady,  // what belongs into a slot is there; one for each slot
    kDone = kReady + kSlots,  // it needs the others' slots no more, and has written what it had to
    kWritten = kDone + kSlots,  // the pattern is there
    kWords,
  };
  static_assert(kWords <= Words::kMost);
  // The same as this process sees it. Slots lie one behind the other, the pattern behind them.
  struct Peer {
    std::byte* memory = nullptr;
    size_t slot_bytes = 0;
    Whereabouts where{};
    int local_rank = 0;
    bool opened = false;  // to be closed
    bool met = false;  // what it has can be used here
  };

  // `slot_bytes`: a multiple of 2 MiB.
  Exchange(std::shared_ptr<Segment> segment, int local_rank, size_t slot_bytes)
      : segment_(std::move(segment)), local_rank_(local_rank), slot_bytes_(slot_bytes) {}
  ~Exchange();
  Exchange(const Exchange&) = delete;

  // Makes this rank's part, once; may wait for the device. With smaller slots, which the card says, where there is no memory for those
  // that are wanted. An error says what failed.
  Status prepare(const std::shared_ptr<Device>& device, Card* out);
  // Frees what prepare() has made, where nobody has opened it.
  void discard();
  // What that rank has told, which it has told all others of the set; before meet().
  void acquaint(int rank, const Card& card);
  // Opens that, once for each, and reads the pattern there when that rank's word says that it is there. Waits for this, some seconds at
  // most.
  Status meet(int rank, const Card& card);

  std::byte* slot(const Peer& peer, uint64_t window) const { return peer.memory + window % kSlots * peer.slot_bytes; }
  // `word`: kReady or kDone, of the window's slot. In the order of the stream.
  Status tell(Word word, uint64_t window) { return words_->tell(word + window % kSlots, stream_); }
  Status await(const Peer& peer, Word word, uint64_t window) { return words_->await(peer.local_rank, word + window % kSlots, stream_); }
  const Peer& me() const { return me_; }
  const Peer& peer(int rank) const { return peers_.at(rank); }
  Device::Stream stream() const { return stream_; }
  // Has the device no memory for slots of the size that is wanted? After prepare().
  bool scarce() const { return scarce_; }

  // The job is over: lets go of everything as soon as the device has done what is on the stream, and others have let go of what is this
  // rank's. Until then it is kept aside. `release`: the stream may wait for a rank that is lost; it goes on, over garbage.
  void retire(bool release);
  // Looks after what was kept aside in this process. True: some of it still waits for its device, which may never come.
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
  std::byte* pinned_ = nullptr;  // what the pattern is written from, and read to
  std::shared_ptr<Words> words_;
  Peer me_;
  std::map<int, Peer> peers_;  // by global rank
};

}  // namespace hvd

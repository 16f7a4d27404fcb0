#include "engine/device/ipc_memory.h"

#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "engine/device/completion.h"

namespace hvd {

namespace {

// Maximum seconds for reading a peer's test pattern. Reading can be slow, because processes that share a device take
// turns.
constexpr double kProbeWithin = 5;
// Minimum size of an allocation in bytes. CUDA would place smaller allocations in a block together with other data, and
// an IPC handle gives access to the whole block.
constexpr size_t kGranule = size_t{2} << 20;

// Write this rank's test pattern. The other ranks read it to check their access.
void write_pattern(const Whereabouts& where, int local_rank, std::byte* to) {
  uint64_t words[Exchange::kPatternBytes / sizeof(uint64_t)];
  for (uint64_t i = 0; i < std::size(words); ++i) words[i] = (where.token + static_cast<uint64_t>(local_rank)) * (2 * i + 1);
  std::memcpy(to, words, sizeof words);
}

// True if the process has ended. False if it is alive, or if its PID belongs to another PID namespace.
bool gone(const Whereabouts& other) {
  return other.namespace_of_ids == whereabouts().namespace_of_ids && ::kill(other.process, 0) != 0 && errno == ESRCH;
}

uint64_t bit_of(int local_rank) { return local_rank < 64 ? uint64_t{1} << local_rank : 0; }

}  // namespace

Whereabouts whereabouts() {
  static const uint64_t token = std::random_device{}() * (uint64_t{1} << 32) + std::random_device{}();
  struct stat ids{};
  if (::stat("/proc/self/ns/pid", &ids) != 0) ids.st_ino = token;
  return {token, ids.st_ino, ::getpid()};
}

// Resources of an ended job (Exchange::retire). First, this rank's device finishes, and the rank closes the peers' memory. Then, once all
// peers have closed this rank's memory, it is freed.
struct Exchange::Retired {
  std::shared_ptr<Segment> segment;
  std::shared_ptr<Device> device;
  std::shared_ptr<const Completion> last;
  Peer me;
  std::byte* pinned = nullptr;
  std::shared_ptr<StreamCounters> words;
  bool release = false;
  std::vector<Peer> peers;
  int local_rank = 0;
  bool closed = false;

  // Unmap the peers' memory from this process once this rank's device no longer uses it.
  void let_go() {
    const Device::Turn turn(*device);
    if (closed || !turn.status().ok()) return;
    if (release) words->release();
    bool ended = false;
    if (!last->passed(&ended).ok() || !ended) return;
    for (const Peer& peer : peers) close(peer);
    if (pinned) device->unpin(pinned);
    words.reset();
    segment->header().let_go.fetch_or(bit_of(local_rank));
    closed = true;
  }
  // Free this rank's memory if all peers have closed it. Return true if it was freed.
  bool free() {
    const Device::Turn turn(*device);
    if (!closed || !turn.status().ok()) return false;
    const uint64_t there = segment->header().let_go.load();
    for (const Peer& peer : peers) {
      if ((there & bit_of(peer.local_rank)) == 0 && !gone(peer.where)) return false;
    }
    device->free(me.memory);
    return true;
  }
  void close(const Peer& peer) const {
    if (peer.opened) device->close(peer.memory);
  }
};

namespace {

// Leak the mutex on purpose: static destructors would run after the driver has shut down.
std::mutex& aside_mutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

}  // namespace

Exchange::~Exchange() { retire(false); }

Status Exchange::prepare(const std::shared_ptr<Device>& device, Card* out) {
  if (me_.memory) return make(out);
  device_ = device;
  Status status = make_all();
  if (status.ok()) status = make(out);
  if (!status.ok()) discard();
  return status;
}

Status Exchange::make_all() {
  HVD_RETURN_IF_ERROR(device_->load_kernels());
  if (!stream_) HVD_RETURN_IF_ERROR(device_->make_stream(&stream_));
  if (!probing_) HVD_RETURN_IF_ERROR(device_->make_stream(&probing_));
  HVD_RETURN_IF_ERROR(device_->pin(2 * kPatternBytes, &pinned_));
  std::unique_ptr<StreamCounters> words;
  HVD_RETURN_IF_ERROR(StreamCounters::open(segment_, device_, local_rank_, &words));
  counters_ = std::move(words);
  HVD_RETURN_IF_ERROR(allocate());
  me_.where = whereabouts();
  me_.local_rank = local_rank_;
  write_pattern(me_.where, local_rank_, pinned_);
  HVD_RETURN_IF_ERROR(device_->copy(pattern_of(me_), pinned_, kPatternBytes, probing_));
  return counters_->tell(kWritten, probing_);
}

// Allocate the slots and the test pattern. If too little memory is available, use smaller slots.
Status Exchange::allocate() {
  void* memory = nullptr;
  for (size_t slot = slot_bytes_;; slot = slot / 2 / kGranule * kGranule) {
    const Status status = device_->allocate(kSlots * slot + kGranule, &memory);
    scarce_ = !status.ok() || slot < slot_bytes_;
    if (!status.ok() && slot < 2 * kGranule) return status;
    if (!status.ok()) continue;
    me_.memory = static_cast<std::byte*>(memory);
    me_.slot_bytes = slot;
    return {};
  }
}

void Exchange::discard() {
  if (!device_ || !peers_.empty()) return;
  const bool idle = await_probing().ok();
  if (idle && me_.memory) device_->free(me_.memory);
  if (idle && pinned_) device_->unpin(pinned_);
  if (!idle && counters_) leave_behind(std::move(counters_));
  counters_.reset();
  me_ = {};
  pinned_ = nullptr;
}

Status Exchange::make(Card* out) {
  out->where = me_.where;
  out->local_rank = local_rank_;
  out->slot_bytes = me_.slot_bytes;
  out->memory = me_.memory;
  return device_->share(me_.memory, &out->handle);
}

void Exchange::acquaint(int rank, const Card& card) {
  Peer& peer = peers_[rank];
  peer.where = card.where;
  peer.local_rank = card.local_rank;
  peer.slot_bytes = card.slot_bytes;
}

Status Exchange::meet(int rank, const Card& card) {
  Peer& peer = peers_.at(rank);
  if (peer.met) return {};
  if (!peer.memory) HVD_RETURN_IF_ERROR(open(card, &peer));
  HVD_RETURN_IF_ERROR(read_pattern(peer));
  peer.met = true;
  return {};
}

Status Exchange::open(const Card& card, Peer* peer) {
  if (card.where.same_process(me_.where)) {
    peer->memory = card.memory;
    return {};
  }
  void* memory = nullptr;
  HVD_RETURN_IF_ERROR(device_->open(card.handle, &memory));
  peer->memory = static_cast<std::byte*>(memory);
  peer->opened = true;
  return {};
}

Status Exchange::await_probing() {
  std::shared_ptr<const Completion> completion;
  HVD_RETURN_IF_ERROR(Completion::record(device_, probing_, &completion));
  bool there = false;
  for (const Deadline deadline = Deadline::after(kProbeWithin); !there;) {
    HVD_RETURN_IF_ERROR(completion->reached(&there));
    if (!there && deadline.passed()) {
      // Leak the buffer, because the copy might still write to it.
      pinned_ = nullptr;
      return Status(Code::internal, "a copy from its memory did not finish");
    }
    if (!there) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return {};
}

Status Exchange::read_pattern(const Peer& peer) {
  if (!pinned_) return Status(Code::internal, "an earlier copy from another rank's memory did not finish");
  std::byte* const read = pinned_ + kPatternBytes;
  std::memset(read, 0, kPatternBytes);
  HVD_RETURN_IF_ERROR(counters_->await(peer.local_rank, kWritten, probing_));
  HVD_RETURN_IF_ERROR(device_->copy(read, pattern_of(peer), kPatternBytes, probing_));
  const Status status = await_probing();
  if (!status.ok()) counters_->release(peer.local_rank, kWritten);
  HVD_RETURN_IF_ERROR(status);
  std::byte expected[kPatternBytes];
  write_pattern(peer.where, peer.local_rank, expected);
  if (std::memcmp(read, expected, kPatternBytes) != 0)
    return Status(Code::internal, "the data read from its memory differ from the data that it wrote");
  return {};
}

std::list<Exchange::Retired>& Exchange::aside() {
  // Leak the list on purpose: static destructors would run after the driver has shut down.
  static auto& all = *new std::list<Retired>;
  return all;
}

void Exchange::retire(bool release) {
  if (!me_.memory) return;
  Retired left{segment_, device_, nullptr, me_, pinned_, counters_, release, {}, local_rank_};
  for (const auto& [rank, peer] : peers_) left.peers.push_back(peer);
  me_.memory = nullptr;
  peers_.clear();
  counters_.reset();
  if (release) left.words->release();
  const Device::Turn turn(*device_);
  // Leak the memory, because the device has failed.
  if (!turn.status().ok()) return leave_behind(std::move(left.words));
  // Record an event after all work on both streams. If that fails, the resources are never released.
  std::shared_ptr<const Completion> probed;
  const bool known = Completion::record(device_, probing_, &probed).ok() && probed->order(stream_).ok() &&
                     Completion::record(device_, stream_, &left.last).ok();
  if (!known) return leave_behind(std::move(left.words));
  const std::lock_guard lock(aside_mutex());
  aside().push_back(std::move(left));
}

bool Exchange::sweep() {
  const std::lock_guard lock(aside_mutex());
  bool waits = false;
  // Close every entry first: memory can be freed only after all other ranks, some of which can run in this process, have closed it.
  for (Retired& left : aside()) {
    left.let_go();
    waits |= !left.closed;
  }
  std::erase_if(aside(), [](Retired& left) { return left.free(); });
  return waits;
}

// Registration of the host's shared memory with a device. Ranks in one process share it, because memory can be registered only once.
struct StreamCounters::Registered {
  std::shared_ptr<Segment> segment;
  std::shared_ptr<Device> device;
  std::byte* on_device = nullptr;

  ~Registered() {
    const Device::Turn turn(*device);
    if (on_device && turn.status().ok()) device->unregister_host(segment->words(0));
  }
  size_t bytes() const { return static_cast<size_t>(segment->spec().local_size) * Segment::kWordsBytes; }
};

Status StreamCounters::open(std::shared_ptr<Segment> segment, const std::shared_ptr<Device>& device, int local_rank,
                            std::unique_ptr<StreamCounters>* out) {
  static_assert(kMax * sizeof(Counter) <= Segment::kWordsBytes);
  static std::mutex& mutex = *new std::mutex;
  static auto& all = *new std::map<std::pair<Segment*, Device*>, std::weak_ptr<const Registered>>;
  std::lock_guard lock(mutex);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  auto& known = all[{segment.get(), device.get()}];
  std::shared_ptr<const Registered> registered = known.lock();
  if (!registered) {
    auto made = std::make_shared<Registered>();
    made->segment = std::move(segment);
    made->device = device;
    HVD_RETURN_IF_ERROR(device->register_host(made->segment->words(0), made->bytes(), &made->on_device));
    registered = std::move(made);
    known = registered;
  }
  out->reset(new StreamCounters(std::move(registered), local_rank));
  return {};
}

StreamCounters::Counter& StreamCounters::counter(int local_rank, size_t word) const {
  return reinterpret_cast<Counter*>(registered_->segment->words(local_rank))[word];
}

std::byte* StreamCounters::on_device(int local_rank, size_t word) const {
  const auto* host = reinterpret_cast<std::byte*>(&counter(local_rank, word).reached);
  return registered_->on_device + (host - registered_->segment->words(0));
}

Status StreamCounters::tell(size_t word, Device::Stream stream) {
  std::atomic<uint32_t>& recorded = counter(local_rank_, word).recorded;
  const uint32_t value = recorded.load(std::memory_order_relaxed) + 1;
  HVD_RETURN_IF_ERROR(registered_->device->write_word(on_device(local_rank_, word), value, stream));
  recorded.store(value, std::memory_order_release);
  return {};
}

Status StreamCounters::await(int local_rank, size_t word, Device::Stream stream) {
  const uint32_t value = counter(local_rank, word).recorded.load(std::memory_order_acquire);
  return registered_->device->await_word(on_device(local_rank, word), value, stream);
}

void StreamCounters::release(int local_rank, size_t word) const {
  constexpr uint32_t kBeyond = uint32_t{1} << 30;
  Counter& c = counter(local_rank, word);
  c.reached.store(c.recorded.load(std::memory_order_acquire) + kBeyond, std::memory_order_seq_cst);
}

void StreamCounters::release() const {
  for (int rank = 0; rank < registered_->segment->spec().local_size; ++rank) {
    for (size_t word = 0; word < kMax; ++word) release(rank, word);
  }
}

}  // namespace hvd

#include "engine/device/exchange.h"

#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <list>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "engine/device/completion.h"

namespace hvd {
namespace {

constexpr double kProbeWithin = 5;  // seconds for a pattern to be read: processes on one device may take turns
constexpr size_t kGranule = size_t{2} << 20;  // smaller allocations share a block, which a handle would show as a whole

// What a rank writes for others to read.
void write_pattern(const Whereabouts& where, int local_rank, std::byte* to) {
  uint64_t words[Exchange::kPatternBytes / sizeof(uint64_t)];
  for (uint64_t i = 0; i < std::size(words); ++i) words[i] = (where.token + static_cast<uint64_t>(local_rank)) * (2 * i + 1);
  std::memcpy(to, words, sizeof words);
}

// Is that process no more? False where its number means nothing here.
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

// What is left of one, in two steps: what others have is closed when this rank's device has ended its work; what is this rank's is freed
// when the others have closed it.
struct Exchange::Retired {
  std::shared_ptr<Segment> segment;
  std::shared_ptr<Device> device;
  std::shared_ptr<const Completion> last;
  Peer me;
  std::byte* pinned = nullptr;
  std::vector<Peer> peers;
  int local_rank = 0;
  bool closed = false;

  // True: nothing is left.
  bool look() {
    const Device::Turn turn(*device);
    if (!turn.status().ok()) return false;
    bool ended = closed;
    if (!ended && (!last->passed(&ended).ok() || !ended)) return false;
    if (!closed) {
      for (const Peer& peer : peers) close(peer);
      if (pinned) device->unpin(pinned);
      segment->header().let_go.fetch_or(bit_of(local_rank));
      closed = true;
    }
    const uint64_t there = segment->header().let_go.load();
    for (const Peer& peer : peers) {
      if ((there & bit_of(peer.local_rank)) == 0 && !gone(peer.where)) return false;
    }
    device->free(me.memory);
    for (const auto& events : {me.ready, me.done}) {
      for (Device::Event event : events) device->destroy_shared_event(event);
    }
    device->destroy_shared_event(me.written);
    return true;
  }
  void close(const Peer& peer) const {
    if (!peer.opened) return;
    for (const auto& events : {peer.ready, peer.done}) {
      for (Device::Event event : events) device->destroy_shared_event(event);
    }
    device->destroy_shared_event(peer.written);
    device->close(peer.memory);
  }
};

namespace {

// Leaked: after the driver's own end nothing may be touched.
std::mutex& aside_mutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

}  // namespace

Exchange::~Exchange() { retire(); }

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
  HVD_RETURN_IF_ERROR(device_->make_stream(&stream_));
  HVD_RETURN_IF_ERROR(device_->make_stream(&probing_));
  HVD_RETURN_IF_ERROR(device_->pin(2 * kPatternBytes, &pinned_));
  for (auto* events : {&me_.ready, &me_.done}) {
    for (Device::Event& event : *events) HVD_RETURN_IF_ERROR(device_->make_shared_event(&event));
  }
  HVD_RETURN_IF_ERROR(device_->make_shared_event(&me_.written));
  void* memory = nullptr;
  HVD_RETURN_IF_ERROR(device_->allocate(kSlots * slot_bytes_ + kGranule, &memory));
  me_.memory = static_cast<std::byte*>(memory);
  me_.where = whereabouts();
  me_.local_rank = local_rank_;
  write_pattern(me_.where, local_rank_, pinned_);
  HVD_RETURN_IF_ERROR(device_->copy(me_.memory + kSlots * slot_bytes_, pinned_, kPatternBytes, probing_));
  return device_->record(me_.written, probing_);
}

void Exchange::discard() {
  if (!device_ || !peers_.empty()) return;
  const bool idle = await_probing().ok();
  for (auto* events : {&me_.ready, &me_.done}) {
    for (Device::Event event : *events) {
      if (event) device_->destroy_shared_event(event);
    }
  }
  if (me_.written) device_->destroy_shared_event(me_.written);
  if (idle && me_.memory) device_->free(me_.memory);
  if (idle && pinned_) device_->unpin(pinned_);
  me_ = {};
  pinned_ = nullptr;
}

Status Exchange::make(Card* out) {
  out->where = me_.where;
  out->local_rank = local_rank_;
  out->slot_bytes = slot_bytes_;
  out->memory = me_.memory;
  out->ready = me_.ready;
  out->done = me_.done;
  out->written = me_.written;
  HVD_RETURN_IF_ERROR(device_->share(me_.memory, &out->memory_handle));
  HVD_RETURN_IF_ERROR(device_->share_event(me_.written, &out->written_handle));
  for (size_t i = 0; i < kSlots; ++i) {
    HVD_RETURN_IF_ERROR(device_->share_event(me_.ready[i], &out->ready_handles[i]));
    HVD_RETURN_IF_ERROR(device_->share_event(me_.done[i], &out->done_handles[i]));
  }
  return {};
}

void Exchange::acquaint(int rank, const Card& card) {
  Peer& peer = peers_[rank];
  peer.where = card.where;
  peer.local_rank = card.local_rank;
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
    peer->ready = card.ready;
    peer->done = card.done;
    peer->written = card.written;
    peer->memory = card.memory;
    return {};
  }
  HVD_RETURN_IF_ERROR(device_->open_event(card.written_handle, &peer->written));
  for (size_t i = 0; i < kSlots; ++i) {
    HVD_RETURN_IF_ERROR(device_->open_event(card.ready_handles[i], &peer->ready[i]));
    HVD_RETURN_IF_ERROR(device_->open_event(card.done_handles[i], &peer->done[i]));
  }
  void* memory = nullptr;
  HVD_RETURN_IF_ERROR(device_->open(card.memory_handle, &memory));
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
      pinned_ = nullptr;  // the copy may still come
      return Status(Code::internal, "a copy from there does not end; is /dev/shm common to both?");
    }
    if (!there) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return {};
}

Status Exchange::read_pattern(const Peer& peer) {
  if (!pinned_) return Status(Code::internal, "an earlier copy from another rank's memory did not end");
  std::byte* const read = pinned_ + kPatternBytes;
  std::memset(read, 0, kPatternBytes);
  HVD_RETURN_IF_ERROR(device_->wait(probing_, peer.written));
  HVD_RETURN_IF_ERROR(device_->copy(read, peer.memory + kSlots * slot_bytes_, kPatternBytes, probing_));
  HVD_RETURN_IF_ERROR(await_probing());
  std::byte expected[kPatternBytes];
  write_pattern(peer.where, peer.local_rank, expected);
  if (std::memcmp(read, expected, kPatternBytes) != 0)
    return Status(Code::internal, "what is read from its memory is not what it has written");
  return {};
}

std::list<Exchange::Retired>& Exchange::aside() {
  static auto& all = *new std::list<Retired>;  // leaked: after the driver's own end nothing may be touched
  return all;
}

void Exchange::retire() {
  if (!me_.memory) return;
  Retired left{segment_, device_, nullptr, me_, pinned_, {}, local_rank_};
  for (const auto& [rank, peer] : peers_) left.peers.push_back(peer);
  me_.memory = nullptr;
  peers_.clear();
  const Device::Turn turn(*device_);
  if (!turn.status().ok()) return;  // the device has failed: the memory goes with the process
  // Behind what either stream does. Where that cannot be asked for nothing is ever let go.
  std::shared_ptr<const Completion> probed;
  const bool known = Completion::record(device_, probing_, &probed).ok() && probed->order(stream_).ok() &&
                     Completion::record(device_, stream_, &left.last).ok();
  if (!known) return;
  const std::lock_guard lock(aside_mutex());
  aside().push_back(std::move(left));
}

bool Exchange::sweep() {
  const std::lock_guard lock(aside_mutex());
  bool waits = false;
  for (auto left = aside().begin(); left != aside().end();) {
    const bool over = left->look();
    waits |= !left->closed;
    left = over ? aside().erase(left) : std::next(left);
  }
  return waits;
}

}  // namespace hvd

#include "engine/device/by_nccl_sets.h"

#include <algorithm>
#include <cstring>
#include <set>

namespace hvd {
namespace {

constexpr double kEndWithin = 5;  // seconds for communicators to end
constexpr double kAbortWithin = 2;

// What a thread of NCCL's helper does around its calls: it needs the device's context. Lives as long as the process.
struct Around {
  std::shared_ptr<Device> device;
  static inline thread_local int mode = 0;
  static void enter(void* self) { (void)static_cast<Around*>(self)->device->enter(&mode); }
  static void leave(void* self) { static_cast<Around*>(self)->device->leave(mode); }
};

}  // namespace

// What ranks of a set tell each other about their GPUs.
struct NcclSets::Record {
  uint8_t device = 0;  // has one
  uint8_t wanted = 0;
  uint8_t busy = 0;  // has communicators of other sets
  uint8_t uuid[16] = {};
  int32_t version = 0;  // of NCCL; 0: none
  int32_t capability = 0;
};

Status NcclSets::say(Comm& comm, const void* mine, size_t bytes, std::vector<std::byte>* all) {
  const std::vector<size_t> each(static_cast<size_t>(comm.size), bytes);
  all->resize(bytes * each.size());
  return host_->allgather(comm, static_cast<const std::byte*>(mine), all->data(), each);
}

Status NcclSets::find(uint32_t id, Comm& comm, const std::shared_ptr<Device>& device, const NcclSet** out) {
  if (device && !device_) device_ = device;
  Set& set = sets_[id];
  if (set.state == State::unasked) HVD_RETURN_IF_ERROR(ask(&set, comm));
  if (set.state == State::making) HVD_RETURN_IF_ERROR(hear_whether_made(&set, comm));
  *out = set.state == State::by_nccl ? &set : nullptr;
  return {};
}

void NcclSets::open() {
  if (looked_ || !device_) return;
  looked_ = true;
  if (!options_.wanted()) return;
  const nccl::Found found = nccl::find({options_.library, options_.candidates, device_->kind() == DeviceKind::hip});
  library_ = found.library;
  why_not_ = found.why_not;
}

Status NcclSets::ask(Set* set, Comm& comm) {
  open();
  Record mine;
  if (device_) {
    mine.device = 1;
    const auto uuid = device_->uuid();
    std::copy(uuid.begin(), uuid.end(), mine.uuid);
    mine.capability = device_->capability();
  }
  mine.wanted = options_.wanted();
  mine.busy = std::any_of(sets_.begin(), sets_.end(), [](const auto& other) { return other.second.communicator != nullptr; });
  if (library_) mine.version = library_->version;
  std::vector<std::byte> all;
  HVD_RETURN_IF_ERROR(say(comm, &mine, sizeof mine, &all));
  std::string why;
  std::set<std::string> seen;
  bool all_have_devices = true, all_want = true, busy = false;
  set->capability = mine.capability;
  for (int i = 0; i < comm.size; ++i) {
    Record theirs;
    std::memcpy(&theirs, all.data() + static_cast<size_t>(i) * sizeof theirs, sizeof theirs);
    all_have_devices &= theirs.device != 0;
    all_want &= theirs.wanted != 0;
    busy |= theirs.busy != 0;
    set->capability = std::min(set->capability, static_cast<int>(theirs.capability));
    const std::string who = "rank " + std::to_string(comm.global_ranks[static_cast<size_t>(i)]);
    if (!why.empty()) continue;
    if (theirs.version == 0) {
      why = who + " has no NCCL" + (i == comm.rank && !why_not_.empty() ? ": " + why_not_ : "");
    } else if (theirs.version != mine.version && mine.version != 0) {
      why = who + " has NCCL " + nccl::version_text(theirs.version) + ", rank " +
            std::to_string(comm.global_ranks[static_cast<size_t>(comm.rank)]) + " " + nccl::version_text(mine.version) +
            "; it needs the same on all";
    } else if (!seen.emplace(reinterpret_cast<const char*>(theirs.uuid), sizeof theirs.uuid).second) {
      why = who + " shares its GPU with another rank, which NCCL refuses";
      if (comm.rank == 0 && log_) {
        log_(LogLevel::warning,
             who +
                 " uses a GPU that another rank uses: they take turns on it, and NCCL is not used. If that is not meant, "
                 "call torch.cuda.set_device(hvd.local_rank()) right after hvd.init(), or start with "
                 "`horovodrun --gpus-per-worker 1`");
      }
    }
  }
  if (!all_have_devices) return {};  // one has joined before it had any; it is asked again
  if (!all_want) {
    set->state = State::by_host;
    return {};
  }
  if (!why.empty()) {
    give_up(set, why);
    return {};
  }
  return make(set, comm, !busy);
}

void NcclSets::give_up(Set* set, const std::string& why) {
  set->state = State::by_host;
  if (log_) log_(LogLevel::info, "tensors on GPUs go by way of the host's memory, not by NCCL: " + why);
}

Status NcclSets::make(Set* set, Comm& comm, bool warm_up) {
  const Device::Turn turn(*device_);
  HVD_RETURN_IF_ERROR(turn.status());
  // An id that could not be made is zeros, of which others hear in their own creation; whoever failed says so when asked.
  nccl::UniqueId id{};
  Status made;
  if (comm.rank == 0) made = nccl::make_id(*library_, &id);
  HVD_RETURN_IF_ERROR(host_->broadcast(comm, reinterpret_cast<std::byte*>(&id), sizeof id, 0));
  uint8_t good = made.ok();
  HVD_RETURN_IF_ERROR(host_->broadcast(comm, reinterpret_cast<std::byte*>(&good), 1, 0));
  if (!good) {
    give_up(set, made.ok() ? "its first rank could not begin" : made.message());
    return {};
  }
  nccl::WarmUp first;
  if (warm_up) {
    // What is launched here is launched at another place between other operations on each rank: on a stream of its own, and only where
    // there are no other communicators, since kernels that wait for each other in different orders may never end. Later sets connect at
    // their first operation.
    first.bytes = nccl::warm_up_bytes(comm.size);
    HVD_RETURN_IF_ERROR(device_->make_stream(&first.stream));
    HVD_RETURN_IF_ERROR(device_->allocate(first.bytes, &first.memory));  // for as long as the process lives: some bytes
  }
  auto* around = new Around{device_};
  set->version = library_->version;
  set->communicator = nccl::Communicator::make(*library_, {&Around::enter, &Around::leave, around}, id, comm.size, comm.rank, first);
  set->state = State::making;
  return {};
}

Status NcclSets::hear_whether_made(Set* set, Comm& comm) {
  using Made = nccl::Communicator::State;
  const Made made = set->communicator->state();
  const uint8_t mine = made == Made::making ? 0 : made == Made::ready ? 1 : 2;
  std::vector<std::byte> all;
  HVD_RETURN_IF_ERROR(say(comm, &mine, 1, &all));
  if (std::all_of(all.begin(), all.end(), [](std::byte b) { return b == std::byte{1}; })) {
    set->state = State::by_nccl;
  } else if (std::any_of(all.begin(), all.end(), [](std::byte b) { return b == std::byte{2}; })) {
    const std::string why = mine == 2 ? set->communicator->error().message() : "another rank cannot";
    nccl::abort(std::span(&set->communicator, 1), Status(Code::internal, why), kAbortWithin);
    set->communicator.reset();
    if (log_) log_(LogLevel::warning, "NCCL cannot be used: " + why);
    give_up(set, why);
  }
  return {};
}

void NcclSets::forget(uint32_t set) {
  const auto it = sets_.find(set);
  if (it == sets_.end()) return;
  if (it->second.communicator) nccl::destroy(std::span(&it->second.communicator, 1), kEndWithin);
  sets_.erase(it);
}

void NcclSets::end(const Status& why) {
  std::vector<std::shared_ptr<nccl::Communicator>> all;
  for (auto& [id, set] : sets_) {
    if (set.communicator) all.push_back(std::move(set.communicator));
  }
  sets_.clear();
  if (!all.empty()) ending_ = why.ok() ? nccl::destroy(all, kEndWithin) : nccl::abort(all, why, kAbortWithin);
}

void NcclSets::await_end() {
  if (ending_) ending_->wait();
}

}  // namespace hvd

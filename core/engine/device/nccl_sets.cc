#include "engine/device/nccl_sets.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <mutex>

#include "engine/device/completion.h"

namespace hvd {
namespace {

// Maximum seconds to wait for communicators to shut down.
constexpr double kEndWithin = 5;
constexpr double kAbortWithin = 2;

// Hooks that enter and leave the device around NCCL calls on a helper thread.
struct Around {
  std::shared_ptr<Device> device;
  static inline thread_local int mode = 0;
  static void enter(void* self) { (void)static_cast<Around*>(self)->device->enter(&mode); }
  static void leave(void* self) { static_cast<Around*>(self)->device->leave(mode); }
};

// Return the hooks for a device. NCCL's helper threads use them as long as the process runs.
nccl::Surroundings surroundings_of(const std::shared_ptr<Device>& device) {
  static std::mutex& mutex = *new std::mutex;
  static auto& all = *new std::map<Device*, Around>;
  std::lock_guard lock(mutex);
  return {&Around::enter, &Around::leave, &all.try_emplace(device.get(), Around{device}).first->second};
}

// A rank's progress in creating a communicator.
enum class Made : uint8_t { not_yet, yes, failed, late };

// Return this rank's progress in creating communicator `c`. While `first` warms up, no other communicator counts as created, because its
// kernels must not run during the warm-up.
Made made_of(const nccl::Communicator& c, const nccl::Communicator& first, bool late) {
  using State = nccl::Communicator::State;
  const bool waits = c.state() == State::making || (c.state() == State::ready && first.state() == State::making);
  if (waits) return late ? Made::late : Made::not_yet;
  return c.state() == State::ready ? Made::yes : Made::failed;
}

// True if the ranks of a set must tell each other at its n-th response how far the creation of its communicator is. This costs a host
// collective, so it happens at every response in the beginning and less often later.
bool asks_again(uint64_t n) {
  constexpr uint64_t kOften = 32, kMax = 64;
  return n % std::clamp<uint64_t>(std::bit_floor(n) / kOften, 1, kMax) == 0;
}

std::string name_of(const Comm& comm, ptrdiff_t rank) { return "rank " + std::to_string(comm.global_ranks[static_cast<size_t>(rank)]); }
std::string name_of_set(uint32_t id) { return id == 0 ? "all ranks" : "process set " + std::to_string(id); }

}  // namespace

Status NcclSets::share(Comm& comm, const void* own, size_t bytes, std::vector<std::byte>* all) {
  const std::vector<size_t> each(static_cast<size_t>(comm.size), bytes);
  all->resize(bytes * each.size());
  return host_->allgather(comm, static_cast<const std::byte*>(own), all->data(), each);
}

Status NcclSets::find(uint32_t id, Comm& comm, const std::shared_ptr<Device>& device, const NcclSet** out) {
  if (device && !device_) device_ = device;
  Set& set = sets_[id];
  if (set.state == State::unasked) HVD_RETURN_IF_ERROR(ask(&set, comm));
  if (set.state == State::making) HVD_RETURN_IF_ERROR(hear_whether_made(id, &set, comm));
  *out = set.state == State::nccl ? &set : nullptr;
  return {};
}

// Prepare this rank for the creation of the communicator.
Status NcclSets::prepare(const Comm& comm, bool warm_up, nccl::UniqueId* id, nccl::WarmUp* first) {
  if (!memory_) {
    memory_ = std::make_shared<GpuMemory>(device_, log_);
    compute_ = std::make_unique<Compute>(device_);
    loaded_ = compute_->load();
    if (!loaded_.ok() && log_) {
      log_(LogLevel::info,
           "16-bit averages and scaled reductions of tensors on GPUs may use host memory, and small tensors are not packed: " +
               loaded_.message());
    }
  }
  if (!common_->stream) HVD_RETURN_IF_ERROR(device_->make_stream(&common_->stream));
  if (warm_up) {
    // Use a separate stream for the warm-up, which each rank launches at another point in the order of operations. Only the first
    // communicator has one, because kernels that wait for each other in different orders can deadlock. Others connect at their first
    // operation, which waits until the warm-up is over (made_of).
    first->bytes = nccl::warm_up_bytes(comm.size);
    HVD_RETURN_IF_ERROR(device_->make_stream(&first->stream));
    HVD_RETURN_IF_ERROR(memory_->take(first->bytes, &warmed_.emplace_back()));
    first->memory = warmed_.back()->data();
  }
  return comm.rank == 0 ? nccl::make_id(*library_, id) : Status();
}

Status NcclSets::make(Set* set, Comm& comm, bool warm_up) {
  const Device::Turn turn(*device_);
  nccl::UniqueId id{};
  nccl::WarmUp first;
  const Status own = turn.status().ok() ? prepare(comm, warm_up, &id, &first) : turn.status();
  const uint8_t good = !own.ok() ? 0 : loaded_.ok() ? 2 : 1;
  std::vector<std::byte> all;
  HVD_RETURN_IF_ERROR(share(comm, &good, 1, &all));
  if (const auto bad = std::find(all.begin(), all.end(), std::byte{0}); bad != all.end()) {
    give_up(set, name_of(comm, bad - all.begin()) + " could not prepare its communicator" + (own.ok() ? "" : ": " + own.message()));
    return {};
  }
  HVD_RETURN_IF_ERROR(host_->broadcast(comm, reinterpret_cast<std::byte*>(&id), sizeof id, 0));
  set->kernels = std::ranges::all_of(all, [](std::byte b) { return b == std::byte{2}; });
  set->version = library_->version;
  set->communicator = nccl::Communicator::make(*library_, surroundings_of(device_), id, comm.size, comm.rank, first);
  if (!common_->first) common_->first = set->communicator;
  set->state = State::making;
  set->begun = Clock::now();
  return {};
}

Status NcclSets::hear_whether_made(uint32_t id, Set* set, Comm& comm) {
  if (!asks_again(++set->waited)) return {};
  const bool late = Clock::now() - set->begun > std::chrono::duration<double>(options_.patience);
  const Made made = made_of(*set->communicator, *common_->first, late);
  std::vector<std::byte> all;
  HVD_RETURN_IF_ERROR(share(comm, &made, 1, &all));
  const auto first_with = [&all](Made what) { return std::find(all.begin(), all.end(), static_cast<std::byte>(what)) - all.begin(); };
  const auto size = static_cast<ptrdiff_t>(all.size());
  if (const ptrdiff_t failed = first_with(Made::failed); failed < size) {
    const Status error = set->communicator->error();
    const std::string why = error.ok() ? name_of(comm, failed) + " cannot" : error.message();
    if (log_) log_(LogLevel::warning, "NCCL cannot be used: " + why);
    abandon(set, Status(Code::internal, why));
  } else if (first_with(Made::late) < size) {
    const std::string why = "its communicator was not created within " + std::to_string(std::lround(options_.patience)) + " s";
    if (log_) log_(LogLevel::warning, "NCCL is not used for " + name_of_set(id) + ": " + why);
    abandon(set, Status(Code::timeout, why));
  } else if (first_with(Made::not_yet) == size) {
    set->state = State::nccl;
  } else if (!set->warned && comm.rank == 0 && Clock::now() - set->begun > std::chrono::duration<double>(options_.slow)) {
    warn(id, set, comm, all);
  }
  return {};
}

// Warn that the communicator is not ready. Usually, a rank is waiting for a connection from another rank; which one is not known here.
void NcclSets::warn(uint32_t id, Set* set, const Comm& comm, const std::vector<std::byte>& made) {
  set->warned = true;
  std::string ranks;
  for (size_t i = 0; i < made.size(); ++i) {
    if (made[i] == static_cast<std::byte>(Made::not_yet)) ranks += (ranks.empty() ? "" : ", ") + std::to_string(comm.global_ranks[i]);
  }
  if (!log_) return;
  log_(LogLevel::warning, "NCCL's communicator for " + name_of_set(id) + " is not ready after " +
                              std::to_string(std::lround(options_.slow)) + " s: waiting for rank" +
                              (ranks.find(',') == std::string::npos ? " " : "s ") + ranks +
                              ". Until then, tensors on GPUs are reduced through host memory. NCCL_DEBUG=INFO shows what NCCL does; most "
                              "likely it uses a network that does not reach the other ranks: choose another with NCCL_SOCKET_IFNAME");
}

// Stop using NCCL for the whole set, permanently.
void NcclSets::abandon(Set* set, const Status& why) {
  abort({std::move(set->communicator)}, why);
  give_up(set, why.message());
}

bool NcclSets::gives_up(uint32_t id) const {
  const auto set = sets_.find(id);
  return set != sets_.end() && set->second.state == State::host;
}

Status NcclSets::async_error() const {
  for (const auto& [id, set] : sets_) {
    if (set.state == State::nccl) HVD_RETURN_IF_ERROR(set.communicator->async_error());
  }
  return {};
}

void NcclSets::destroy(std::vector<std::shared_ptr<nccl::Communicator>> communicators) {
  if (communicators.empty()) return;
  auto ending = nccl::destroy(communicators, kEndWithin);
  leaving_.push_back({std::move(communicators), std::move(ending)});
}

void NcclSets::abort(std::vector<std::shared_ptr<nccl::Communicator>> communicators, const Status& why) {
  if (communicators.empty()) return;
  auto ending = nccl::abort(communicators, why, kAbortWithin);
  leaving_.push_back({std::move(communicators), std::move(ending), true});
}

void NcclSets::forget(uint32_t id) {
  std::erase_if(leaving_, [](const Leaving& l) { return !l.stuck(); });
  const auto it = sets_.find(id);
  if (it == sets_.end()) return;
  Set& set = it->second;
  // Destruction waits for the other ranks. If some of them might still be creating the communicator, abort it.
  if (set.communicator && set.state == State::nccl) {
    destroy({std::move(set.communicator)});
  } else if (set.communicator) {
    abort({std::move(set.communicator)}, Status(Code::shutdown, "the process set was removed"));
  }
  sets_.erase(it);
}

void NcclSets::end(const Status& why) {
  std::vector<std::shared_ptr<nccl::Communicator>> well, others;
  for (auto& [id, set] : sets_) {
    if (set.communicator) (why.ok() && set.state == State::nccl ? well : others).push_back(std::move(set.communicator));
  }
  sets_.clear();
  for (const Leaving& l : leaving_) {
    if (!why.ok() && !l.aborted && l.stuck()) others.insert(others.end(), l.communicators.begin(), l.communicators.end());
  }
  abort(std::move(others), why.ok() ? Status(Code::shutdown, "the job has ended") : why);
  destroy(std::move(well));
}

void NcclSets::await_end() {
  bool all_over = true;
  for (size_t i = 0; i < leaving_.size(); ++i) {
    // Copy the element, because abort() adds elements to the list.
    const Leaving l = leaving_[i];
    l.ending->wait();
    if (!l.ending->leaked()) continue;
    all_over = false;
    // Abort kernels that might wait for another rank forever, because freeing memory waits for them.
    if (!l.aborted)
      abort(l.communicators,
            Status(Code::timeout, "NCCL did not end its communicators within " + std::to_string(std::lround(kEndWithin)) + " s"));
  }
  leaving_.clear();
  // Leak the memory if a communicator has not ended: freeing it would wait for kernels that might wait for other ranks forever.
  if (!all_over)
    leave_behind(std::make_shared<std::pair<std::shared_ptr<GpuMemory>, std::vector<std::shared_ptr<GpuMemory::Block>>>>(
        std::move(memory_), std::move(warmed_)));
  warmed_.clear();
  memory_.reset();
}

}  // namespace hvd

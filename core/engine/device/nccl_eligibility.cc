// Part of the NCCL path that determines whether NCCL can connect the ranks of a set, and which ranks share a GPU.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "engine/device/nccl_sets.h"
#include "engine/device/splitting.h"

namespace hvd {
namespace {

std::string name_of(const Comm& comm, size_t rank) { return "rank " + std::to_string(comm.global_ranks[rank]); }

// Return a hash of NCCL_HOSTID, or 0 if the variable is not set. NCCL treats ranks with different values as being on
// different hosts, so they can share a GPU. Used for tests; unrelated to NCCL_MULTI_RANK_GPU_ENABLE.
uint64_t host_id() {
  const char* const text = std::getenv("NCCL_HOSTID");
  if (!text) return 0;
  // Initial value of the FNV-1a hash. In contrast to std::hash, FNV-1a gives the same result in every process.
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : std::string_view(text)) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

// GPU properties of a rank. The ranks of a set exchange these records.
struct NcclSets::Record {
  // Nonzero if the rank has a device.
  uint8_t device = 0;
  uint8_t wanted = 0;
  // Nonzero if the rank has created a communicator before.
  uint8_t busy = 0;
  // Nonzero if the rank has logged a warning about ranks that share a GPU.
  uint8_t warned = 0;
  Uuid uuid{};
  uint64_t host_id = 0;
  int32_t version = 0;
  int32_t capability = 0;
};

void NcclSets::open() {
  if (looked_ || !device_) return;
  looked_ = true;
  if (!options_.wanted()) return;
  const nccl::Found found = nccl::find({options_.library, options_.candidates});
  library_ = found.library;
  why_not_ = found.why_not;
}

NcclSets::Record NcclSets::record() {
  open();
  Record own;
  if (device_) {
    own.device = 1;
    own.uuid = device_->uuid();
    own.capability = device_->capability();
  }
  own.wanted = options_.wanted();
  own.busy = common_->first != nullptr;
  own.warned = common_->warned_of_sharing;
  own.host_id = host_id();
  if (library_) own.version = library_->version;
  return own;
}

Status NcclSets::ask(Set* set, Comm& comm) {
  const Record own = record();
  std::vector<std::byte> bytes;
  HVD_RETURN_IF_ERROR(share(comm, &own, sizeof own, &bytes));
  std::vector<Record> all(static_cast<size_t>(comm.size));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  const auto every = [&all](uint8_t Record::* what) { return std::ranges::all_of(all, [what](const Record& r) { return r.*what != 0; }); };
  // A rank that has called join() might not have a device. Choose between GPU and host at a later operation of the set.
  if (!every(&Record::device)) return {};
  warn_of_sharing(comm, all);
  set->capability = std::ranges::min_element(all, {}, &Record::capability)->capability;
  if (!every(&Record::wanted)) {
    set->state = State::host;
    return {};
  }
  if (const std::string why = why_not(comm, all); !why.empty()) {
    give_up(set, why);
    return {};
  }
  return make(set, comm, std::ranges::none_of(all, [](const Record& r) { return r.busy != 0; }));
}

// Return the reason why NCCL cannot connect the ranks, or an empty string if it can.
std::string NcclSets::why_not(const Comm& comm, const std::vector<Record>& all) const {
  const auto me = static_cast<size_t>(comm.rank);
  std::set<std::pair<uint64_t, Uuid>> seen;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string who = name_of(comm, i);
    if (all[i].version == 0) return who + " has no NCCL" + (i == me && !why_not_.empty() ? ": " + why_not_ : "");
    if (all[i].version != all[me].version && all[me].version != 0) {
      return who + " has NCCL " + nccl::version_text(all[i].version) + ", " + name_of(comm, me) + " " +
             nccl::version_text(all[me].version) + "; it needs the same on all";
    }
    if (!seen.emplace(all[i].host_id, all[i].uuid).second) return who + " shares its GPU with another rank, which NCCL refuses";
  }
  return "";
}

// Warn that ranks share a GPU, usually because the program does not select a different one for each rank. Such ranks take turns, with any
// path. Warn only once, even if several process sets are affected.
void NcclSets::warn_of_sharing(const Comm& comm, const std::vector<Record>& all) {
  constexpr size_t kMaxNamed = 8;
  std::string ranks;
  size_t sharing = 0;
  bool warned = false;
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::ranges::count(all, all[i].uuid, &Record::uuid) < 2) continue;
    if (++sharing <= kMaxNamed) ranks += (ranks.empty() ? "" : ", ") + std::to_string(comm.global_ranks[i]);
    warned |= all[i].warned != 0;
  }
  if (sharing == 0) return;
  common_->warned_of_sharing = true;
  if (warned || options_.sharing_is_meant || comm.rank != 0 || !log_) return;
  if (sharing > kMaxNamed) ranks += " and " + std::to_string(sharing - kMaxNamed) + " more";
  log_(LogLevel::warning, "ranks " + ranks +
                              " share a GPU with each other and take turns on it. If that is not meant, call "
                              "torch.cuda.set_device(hvd.local_rank()) right after hvd.init(), or start with `horovodrun "
                              "--gpus-per-worker 1`; if it is, HOROVOD_SHARED_GPU=1 says so");
}

void NcclSets::give_up(Set* set, const std::string& why) {
  set->state = State::host;
  if (log_) log_(LogLevel::info, "tensors on GPUs go by way of the host's memory, not by NCCL: " + why);
}

}  // namespace hvd

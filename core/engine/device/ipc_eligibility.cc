// Part of the IPC path that determines whether the ranks can access each other's device memory.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "engine/device/ipc_path.h"
#include "engine/execute.h"

namespace hvd {
namespace {

// Maximum seconds to wait for unfinished work of an earlier job.
constexpr double kStuckFor = 3;
// Maximum number of ranks per host. SegmentHeader::let_go has one bit per rank.
constexpr int kMaxLocals = 64;

// Fixed-size text buffer with which ranks exchange the reason for a failure.
struct Text {
  char bytes[400] = "";
  void set(const std::string& text) { std::snprintf(bytes, sizeof bytes, "%s", text.c_str()); }
};

bool carries(const Response& r) {
  if (r.kind == Kind::broadcast) return true;
  if (sums_exactly(r) || (r.partial && needs_neutral(r))) return false;
  return (r.kind == Kind::allreduce || r.kind == Kind::reducescatter) && r.wire == WireFormat::none && Compute::reduces(r.op);
}

}  // namespace

struct IpcPath::Hello {
  Uuid uuid;
  Whereabouts where;
  uint8_t has_device, wanted, stuck;
};
struct IpcPath::Offer {
  Exchange::Card card;
  // Reason why the rank cannot use IPC, or empty if it can.
  Text why_not;
};
struct IpcPath::Verdict {
  Text why_not;
};

template <class Record>
Status IpcPath::share(Comm& comm, const Record& own, std::vector<Record>* all) {
  static_assert(std::is_trivially_copyable_v<Record>);
  all->resize(static_cast<size_t>(comm.size));
  const std::vector<size_t> each(all->size(), sizeof own);
  return host_->allgather(comm, reinterpret_cast<const std::byte*>(&own), reinterpret_cast<std::byte*>(all->data()), each);
}

Status IpcPath::eligible(const Response& r, Comm& comm, const std::shared_ptr<Device>& device, bool* yes) {
  *yes = false;
  if (device && !device_) device_ = device;
  if (!comm.node || connections_->local_size() > kMaxLocals) return {};
  Set& set = sets_[r.set];
  if (set.state == State::unasked) HVD_RETURN_IF_ERROR(ask(&set, comm));
  *yes = set.state == State::ipc && carries(r);
  return {};
}

Status IpcPath::ask(Set* set, Comm& comm) {
  Hello own{};
  own.where = whereabouts();
  own.has_device = device_ != nullptr;
  own.wanted = options_.wanted;
  if (device_) own.uuid = device_->uuid();
  // Wait briefly, because work from an earlier job might be about to finish.
  for (const Deadline patience = Deadline::after(kStuckFor); (own.stuck = Exchange::sweep()) && !patience.passed();) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::vector<Hello> all;
  HVD_RETURN_IF_ERROR(share(comm, own, &all));
  if (std::any_of(all.begin(), all.end(), [](const Hello& h) { return !h.has_device; }))
    // A rank that has called join() might not have a device. Choose between GPU and host at a later operation of the set.
    return {};
  if (std::any_of(all.begin(), all.end(), [](const Hello& h) { return !h.wanted; })) {
    set->state = State::host;
    return {};
  }
  std::vector<Uuid> devices;
  for (size_t i = 0; i < all.size(); ++i) {
    devices.push_back(all[i].uuid);
    const std::string who = "rank " + std::to_string(comm.global_ranks[i]);
    if (all[i].stuck) {
      give_up(set, "operations of an earlier job still wait on the GPU of " + who);
      return {};
    }
    for (size_t k = 0; k < i; ++k) {
      const std::string both = "rank " + std::to_string(comm.global_ranks[k]) + " and " + who;
      const bool same = all[i].where.same_process(all[k].where);
      if (same && all[i].uuid != all[k].uuid) {
        give_up(set, both + " are threads of one process with a GPU each");
        return {};
      }
      if (!same && all[i].where.process == all[k].where.process) {
        give_up(set,
                both + " are processes of equal numbers in different containers, which CUDA mistakes for one; share the namespace of PIDs");
        return {};
      }
    }
  }
  set->sharing = sharing_of(devices);
  return offer(set, comm);
}

Status IpcPath::offer(Set* set, Comm& comm) {
  const Device::Turn turn(*device_);
  HVD_RETURN_IF_ERROR(turn.status());
  if (!exchange_) exchange_ = std::make_unique<Exchange>(connections_->segment_pointer(), connections_->local_rank(), options_.window);
  Offer own{};
  const Status prepared = exchange_->prepare(device_, &own.card);
  if (!prepared.ok()) own.why_not.set(prepared.message());
  if (exchange_->scarce()) warn_of_memory(prepared, own.card.slot_bytes);
  std::vector<Offer> offers;
  HVD_RETURN_IF_ERROR(share(comm, own, &offers));
  Verdict verdict{};
  // If any rank has failed, all ranks stop here. If not, each rank has a description (Card) of every other rank's memory.
  const bool all_can = std::all_of(offers.begin(), offers.end(), [](const Offer& o) { return !o.why_not.bytes[0]; });
  if (all_can) {
    if (const Status s = meet(comm, offers); !s.ok()) verdict.why_not.set(s.message());
  } else {
    verdict.why_not = own.why_not;
    exchange_->discard();
  }
  std::vector<Verdict> verdicts;
  HVD_RETURN_IF_ERROR(share(comm, verdict, &verdicts));
  for (size_t i = 0; i < verdicts.size(); ++i) {
    if (!verdicts[i].why_not.bytes[0]) continue;
    give_up(set, "rank " + std::to_string(comm.global_ranks[i]) + ": " + verdicts[i].why_not.bytes);
    return {};
  }
  set->state = State::ipc;
  const auto smaller = [](const Offer& a, const Offer& b) { return a.card.slot_bytes < b.card.slot_bytes; };
  set->window = std::min_element(offers.begin(), offers.end(), smaller)->card.slot_bytes;
  compute_.emplace(device_);
  if (log_ && comm.rank == 0) log_(LogLevel::info, "tensors on GPUs are reduced in each other's memory (CUDA IPC)");
  return {};
}

Status IpcPath::meet(Comm& comm, const std::vector<Offer>& offers) {
  for (size_t i = 0; i < offers.size(); ++i) exchange_->acquaint(comm.global_ranks[i], offers[i].card);
  for (size_t i = 0; i < offers.size(); ++i) {
    const int rank = comm.global_ranks[i];
    HVD_RETURN_IF_ERROR(exchange_->meet(rank, offers[i].card).with("memory of rank " + std::to_string(rank)));
  }
  return {};
}

void IpcPath::warn_of_memory(const Status& status, size_t slot_bytes) {
  if (warned_ || !log_) return;
  warned_ = true;
  const auto mib = [](size_t bytes) { return std::to_string(bytes >> 20) + " MiB"; };
  const std::string what = device_->description() + " has no memory left for the " + mib(Exchange::kSlots * options_.window) +
                           " in which ranks of a host reduce in each other's memory: ";
  const std::string then = status.ok() ? "they take " + mib(Exchange::kSlots * slot_bytes) + " and are slower"
                                       : "tensors on GPUs go by way of the host's memory (" + status.message() + ")";
  log_(LogLevel::warning, what + then + ". Have the program leave it some");
}

void IpcPath::give_up(Set* set, const std::string& why) {
  set->state = State::host;
  if (log_) log_(LogLevel::info, "tensors on GPUs go by way of the host's memory, not by CUDA IPC: " + why);
}

}  // namespace hvd

#include "engine/device/hierarchical_nccl_path.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/execute.h"
#include "nccl/collectives.h"

namespace hvd {
namespace {

// Maximum size of a part in bytes. Parts of this size are large enough for copies to reach the speed of the PCIe link,
// and small enough for several parts to be in flight.
constexpr size_t kMaxOfPart = size_t{4} << 20;

size_t total_of(const Response& r) {
  size_t total = 0;
  for (const auto& shape : r.shapes) total += elements_of(shape);
  return total;
}

}  // namespace

// State of a rank's NCCL communicator within its host. The ranks of all hosts exchange these states.
struct HierarchicalNcclPath::Word {
  uint8_t has = 0, never = 0;
  int32_t members = 0, version = 0, capability = 0;
};

bool HierarchicalNcclPath::fits(const Response& r, const Comm& comm) const {
  return wanted_ && comm.local && r.kind == Kind::allreduce && !r.partial && r.wire == WireFormat::none && r.op != ReduceOp::adasum &&
         !sums_exactly(r);
}

Status HierarchicalNcclPath::eligible(const Response& r, Comm& comm, const std::shared_ptr<Device>& device, bool* yes) {
  if (device && !device_) device_ = device;
  *yes = false;
  Set& set = settled_[r.set];
  if (set.eligibility == Eligibility::no) return {};
  HVD_RETURN_IF_ERROR(sets_.find(r.set, *comm.local, device, &found_));
  if (set.eligibility == Eligibility::unsettled) {
    Word own;
    own.has = found_ != nullptr;
    own.never = sets_.gives_up(r.set);
    own.members = comm.local->size;
    if (found_) own.version = found_->version, own.capability = found_->capability;
    std::vector<Word> all(static_cast<size_t>(comm.size));
    const std::vector<size_t> each(all.size(), sizeof own);
    HVD_RETURN_IF_ERROR(host_->allgather(comm, reinterpret_cast<const std::byte*>(&own), reinterpret_cast<std::byte*>(all.data()), each));
    const bool alike = std::all_of(all.begin(), all.end(), [&](const Word& w) { return w.members == own.members; });
    if (!alike || std::any_of(all.begin(), all.end(), [](const Word& w) { return w.never; })) {
      set.eligibility = Eligibility::no;
      if (log_) {
        log_(LogLevel::info, std::string("tensors on GPUs are not reduced within each host first: ") +
                                 (alike ? "NCCL is not available on a host" : "the hosts have different numbers of ranks"));
      }
    } else if (std::all_of(all.begin(), all.end(), [](const Word& w) { return w.has; })) {
      set.eligibility = Eligibility::yes;
      const auto less = [](int Word::* field) { return [field](const Word& a, const Word& b) { return a.*field < b.*field; }; };
      set.version = std::min_element(all.begin(), all.end(), less(&Word::version))->version;
      set.capability = std::min_element(all.begin(), all.end(), less(&Word::capability))->capability;
    }
  }
  if (set.eligibility != Eligibility::yes) return {};
  const nccl::Reduction how = reduction(set, r, comm);
  *yes = how.possible() && how.before.identity() && how.after.identity();
  return {};
}

namespace {

// Return a factor by which values are divided before the sum, so that the sum of 16-bit floats does not overflow if their average does not.
// The sum is multiplied by it. The factor is a power of two, so only denormals change.
double reserve(const Response& r, const Comm& comm) {
  const bool needed = r.op == ReduceOp::average && r.dtype == DType::float16;
  return needed ? static_cast<double>(std::bit_ceil(static_cast<unsigned>(comm.size))) : 1;
}

}  // namespace

// Return the reduction within a host. The caller scales the full sum over all hosts.
nccl::Reduction HierarchicalNcclPath::reduction(const Set& set, const Response& r, const Comm& comm) const {
  nccl::Question q;
  q.element = nccl::element_of(r.dtype);
  q.op = backend_op(r.op);
  q.prescale = r.prescale / reserve(r, comm);
  q.size = comm.local->size;
  q.version = set.version;
  q.capability = set.capability;
  return nccl::decide(q);
}

Status HierarchicalNcclPath::open() {
  if (pool_) return {};
  HVD_RETURN_IF_ERROR(device_->make_stream(&down_));
  HVD_RETURN_IF_ERROR(device_->make_stream(&up_));
  pool_ = std::make_shared<PinnedPool>(device_);
  return {};
}

Status HierarchicalNcclPath::start(const Response& r, const Comm& comm, std::vector<OperationPtr> operations) {
  const Device::Turn turn(*device_);
  Flight& flight = flights_.emplace_back();
  flight.operations = std::move(operations);
  flight.what = described(r);
  Status status = turn.status();
  if (status.ok()) status = open();
  if (status.ok()) status = begin(r, comm, &flight);
  return status.ok() ? status : status.with(device_->description());
}

Status HierarchicalNcclPath::begin(const Response& r, const Comm& comm, Flight* flight) {
  flight->communicator = found_->communicator;
  flight->between = request_like(r);
  flight->between.across_hosts = true;
  flight->between.prescale = 1;
  flight->between.postscale *= reserve(r, comm);
  flight->members = comm.local->size;
  flight->me = comm.local->rank;
  const Device::Stream stream = sets_.stream();
  for (const OperationPtr& op : flight->operations) HVD_RETURN_IF_ERROR(device_->wait(stream, op->on_device->ready));
  const size_t element = size_of(r.dtype), members = static_cast<size_t>(flight->members);
  // Add a number to the name of an unnamed operation. A schedule repeats generated names, so several operations in flight can have the same
  // one.
  const bool unnamed = flight->operations.front()->request.unnamed;
  flight->name = r.names.front() + (unnamed ? "/hosts." + std::to_string(++begun_[r.set]) : "/hosts");
  flight->between.fence = flight->operations.front()->request.fence;
  const std::vector<PartPlan> plan = plan_parts(total_of(r), members, element, kMaxOfPart);
  if (plan.empty()) return finish(*flight);
  const size_t bytes = (plan.back().first + plan.back().part * members) * element;
  HVD_RETURN_IF_ERROR(sets_.memory().take(bytes, &flight->buffer));
  HVD_RETURN_IF_ERROR(pack(*flight, bytes));
  const nccl::Reduction how = reduction(settled_[r.set], r, comm);
  flight->parts.resize(plan.size());
  flight->open = plan.size();
  flight->carrier = new_carrier(flight->operations);
  for (size_t i = 0; i < plan.size(); ++i) {
    Part& part = flight->parts[i];
    part.self = this;
    part.flight = flight;
    part.plan = plan[i];
    const std::vector<size_t> counts(members, part.plan.part);
    std::byte* const whole = flight->buffer->data() + part.plan.first * element;
    HVD_RETURN_IF_ERROR(nccl::reducescatter(*flight->communicator, stream, how, whole, part_of(*flight, part.plan), counts));
    HVD_RETURN_IF_ERROR(Completion::record(device_, stream, &part.reduced));
  }
  submissions_->expect(plan.size());
  return {};
}

// Pack the tensors contiguously, and pad the last part with zeros.
Status HierarchicalNcclPath::pack(const Flight& flight, size_t bytes) {
  std::byte* to = flight.buffer->data();
  for (const OperationPtr& op : flight.operations) {
    const size_t some = op->request.bytes();
    if (some > 0) HVD_RETURN_IF_ERROR(device_->copy(to, op->in, some, sets_.stream()));
    to += some;
  }
  const size_t left = bytes - static_cast<size_t>(to - flight.buffer->data());
  return left > 0 ? device_->zero(to, left, sets_.stream()) : Status();
}

std::byte* HierarchicalNcclPath::part_of(const Flight& flight, const PartPlan& plan) const {
  return flight.buffer->data() + (plan.first + static_cast<size_t>(flight.me) * plan.part) * size_of(flight.between.dtype);
}

// Copy this rank's part to pinned memory once NCCL has reduced it. Prepare the host operation for the part.
Status HierarchicalNcclPath::bring(Flight& flight, Part* part) {
  const size_t bytes = part->plan.part * size_of(flight.between.dtype);
  HVD_RETURN_IF_ERROR(part->reduced->order(down_));
  part->reduced.reset();
  HVD_RETURN_IF_ERROR(device_->copy(part->pinned->data(), part_of(flight, part->plan), bytes, down_));
  HVD_RETURN_IF_ERROR(device_->take_event(&part->copied));
  HVD_RETURN_IF_ERROR(device_->record(part->copied, down_));
  Request q = flight.between;
  q.shape = {static_cast<int64_t>(part->plan.part)};
  std::string name = flight.name;
  if (flight.brought > 0) name.append("/").append(std::to_string(flight.brought));
  part->host = host_part(std::move(q), std::move(name), flight.carrier);
  ++flight.brought;
  part->host->in = part->host->out = part->pinned->data();
  part->host->on_done = &HierarchicalNcclPath::arrived;
  part->host->context = part;
  return {};
}

// State of one call of advance(), which visits all operations in flight, oldest first.
struct HierarchicalNcclPath::Look {
  bool moved = false;
  // True if there was no pinned memory for a part. Later parts must then wait, so that all ranks process the oldest part first.
  bool full = false;
  // True if a copy is unfinished. Later copies on the same stream are then unfinished too.
  bool copying = false;
};

bool HierarchicalNcclPath::advance(std::vector<HostStagedPath::Done>* done, Status* status) {
  const Device::Turn turn(*device_);
  Look how;
  *status = turn.status();
  if (status->ok()) *status = deferred_.sweep();
  if (status->ok()) *status = failure_;
  if (status->ok()) *status = sets_.async_error();
  for (auto flight = flights_.begin(); flight != flights_.end() && status->ok();) {
    *status = look(*flight, &how);
    if (!status->ok() || flight->open > 0) {
      ++flight;
      continue;
    }
    done->push_back({std::move(flight->operations), std::move(flight->status)});
    flight = flights_.erase(flight);
    how.moved = true;
  }
  if (!status->ok()) *status = status->with(device_->description());
  return how.moved;
}

Status HierarchicalNcclPath::look(Flight& flight, Look* how) {
  while (flight.brought < flight.parts.size() && !how->full) {
    Part& part = flight.parts[flight.brought];
    const size_t used = pool_->used(), bytes = part.plan.part * size_of(flight.between.dtype);
    how->full = used > 0 && used + bytes > staged_memory_;
    if (how->full) break;
    if (Status s = pool_->take(bytes, &part.pinned); !s.ok()) {
      if (used == 0) return s;
      // Copy nothing more until pinned memory is free again.
      staged_memory_ = used;
      how->full = true;
      break;
    }
    HVD_RETURN_IF_ERROR(bring(flight, &part));
    how->moved = true;
  }
  while (flight.submitted < flight.brought && !how->copying) {
    Part& part = flight.parts[flight.submitted];
    bool there = false;
    HVD_RETURN_IF_ERROR(device_->reached(part.copied, &there));
    how->copying = !there;
    if (!there) break;
    device_->give_back(part.copied);
    part.copied = nullptr;
    ++flight.submitted;
    submit_host_part(part.host, submissions_, *observers_);
    how->moved = true;
  }
  return {};
}

// Gather a part that has been reduced across hosts. All ranks of a host complete host operations in the same order, so they also launch
// NCCL calls in the same order.
void HierarchicalNcclPath::arrived(Operation& op, void* context) {
  if (!context) return;
  Part& part = *static_cast<Part*>(context);
  HierarchicalNcclPath& self = *part.self;
  Flight& flight = *part.flight;
  if (!op.status().ok() && flight.status.ok()) flight.status = op.status();
  const Device::Turn turn(*self.device_);
  Status status = turn.status();
  if (status.ok() && op.status().ok()) status = self.collect(part);
  --flight.open;
  if (status.ok() && flight.open == 0) status = self.finish(flight);
  if (self.failure_.ok()) self.failure_ = status;
}

Status HierarchicalNcclPath::collect(Part& part) {
  Flight& flight = *part.flight;
  const size_t element = size_of(flight.between.dtype), bytes = part.plan.part * element;
  std::byte* const own = part_of(flight, part.plan);
  HVD_RETURN_IF_ERROR(device_->copy(own, part.pinned->data(), bytes, up_));
  std::shared_ptr<const Completion> there;
  HVD_RETURN_IF_ERROR(Completion::record(device_, up_, &there));
  deferred_.keep(there, std::move(part.pinned));
  HVD_RETURN_IF_ERROR(there->order(sets_.stream()));
  const std::vector<size_t> each(static_cast<size_t>(flight.members), bytes);
  return nccl::allgather(*flight.communicator, sets_.stream(), own, flight.buffer->data() + part.plan.first * element, each);
}

Status HierarchicalNcclPath::finish(Flight& flight) {
  if (flight.status.ok() && flight.buffer) {
    const std::byte* from = flight.buffer->data();
    for (const OperationPtr& op : flight.operations) {
      const size_t some = op->request.bytes();
      if (some > 0) HVD_RETURN_IF_ERROR(device_->copy(op->out, from, some, sets_.stream()));
      from += some;
    }
  }
  std::shared_ptr<const Completion> completion;
  HVD_RETURN_IF_ERROR(Completion::record(device_, sets_.stream(), &completion));
  for (const OperationPtr& op : flight.operations) op->on_device->completion = completion;
  // Release the buffer now: its next user runs on the same stream, so it waits for this work.
  flight.buffer.reset();
  launched_.add(std::move(completion), flight.what);
  return {};
}

void HierarchicalNcclPath::forget(uint32_t set) {
  sets_.forget(set);
  settled_.erase(set);
  begun_.erase(set);
}

std::vector<OperationPtr> HierarchicalNcclPath::take_all() {
  std::vector<OperationPtr> out;
  if (flights_.empty()) return out;
  const Device::Turn turn(*device_);
  // Keep the memory of all operations until the work on all three streams is done.
  std::shared_ptr<const Completion> down, up, all;
  const Device::Stream stream = sets_.stream();
  const bool known = turn.status().ok() && pool_ && stream && Completion::record(device_, down_, &down).ok() && down->order(stream).ok() &&
                     Completion::record(device_, up_, &up).ok() && up->order(stream).ok() && Completion::record(device_, stream, &all).ok();
  for (Flight& flight : flights_) {
    std::vector<std::shared_ptr<void>> memory{std::move(flight.buffer)};
    for (Part& part : flight.parts) {
      if (part.copied) device_->give_back(part.copied);
      if (part.host) part.host->context = nullptr;
      memory.push_back(std::move(part.pinned));
    }
    for (auto& block : memory) {
      if (!block) continue;
      if (known) {
        deferred_.keep(all, std::move(block));
      } else {
        leave_behind(std::move(block));
      }
    }
    for (OperationPtr& op : flight.operations) {
      if (known) op->on_device->completion = all;
      out.push_back(std::move(op));
    }
  }
  if (known) launched_.add(std::move(all), flights_.front().what);
  flights_.clear();
  return out;
}

void HierarchicalNcclPath::end(const Status& why) {
  if (!why.ok()) launched_.fail(why);
  launched_.clear();
  sets_.end(why);
}

}  // namespace hvd

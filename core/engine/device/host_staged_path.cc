#include "engine/device/host_staged_path.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "engine/execute.h"

namespace hvd {

namespace {

// Maximum size of a piece in bytes. Pieces of this size are large enough for copies to reach the speed of the PCIe
// link, and small enough for several pieces to be in flight.
constexpr size_t kPiece = size_t{4} << 20;

size_t cache_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

// True if the tensors of a response can be split anywhere. Adasum and compressed values need whole tensors.
bool divisible(const Response& r) {
  return r.kind == Kind::broadcast || (r.kind == Kind::allreduce && r.op != ReduceOp::adasum && r.wire == WireFormat::none);
}

}  // namespace

HostStagedPath::~HostStagedPath() { take_all(); }

Status HostStagedPath::open() {
  if (pool_) return {};
  HVD_RETURN_IF_ERROR(device_->make_stream(&down_));
  HVD_RETURN_IF_ERROR(device_->make_stream(&up_));
  pool_ = std::make_shared<PinnedPool>(device_);
  outputs_ = std::make_shared<PinnedPool>(device_);
  return {};
}

Status HostStagedPath::start(const Response& r, const Comm& comm, std::vector<OperationPtr> operations) {
  ++begun_[r.set];
  if (operations.empty()) return {};
  if (!device_) device_ = operations.front()->on_device->device;
  const Device::Turn turn(*device_);
  Flight& flight = flights_.emplace_back();
  flight.operations = std::move(operations);
  Status status = turn.status();
  if (status.ok()) status = open();
  if (!status.ok()) return status.with(device_->description());
  flight.carrier = new_carrier(flight.operations);
  // Add a number to the name of an unnamed operation. A schedule repeats generated names, so several operations in flight can have the same
  // one.
  const bool unnamed = flight.operations.front()->request.unnamed;
  const std::string suffix = unnamed ? "/staged." + std::to_string(begun_[r.set]) : "/staged";
  if (divisible(r)) {
    const bool from = r.kind != Kind::broadcast || comm.global_ranks[static_cast<size_t>(comm.rank)] == r.root;
    plan_pieces(r, from, suffix, &flight);
  } else {
    for (size_t i = 0; i < flight.operations.size(); ++i) plan_whole(r, comm, *flight.operations[i], r.names[i] + suffix, &flight);
  }
  flight.open = flight.parts.size();
  status = bring_all();
  return status.ok() ? status : status.with(device_->description());
}

HostStagedPath::Loaded& HostStagedPath::add_load(size_t bytes, Flight* flight) {
  window_bytes_ += bytes;
  if (window_bytes_ > kPiece) {
    ++window_;
    window_bytes_ = bytes;
  }
  Loaded& load = flight->loads.emplace_back();
  load.bytes = bytes;
  load.first = load.end = flight->parts.size();
  return load;
}

HostStagedPath::Part& HostStagedPath::add_part(Request request, const Operation& op, std::string name, Flight* flight) {
  Part& part = flight->parts.emplace_back();
  part.load = flight->loads.size() - 1;
  ++flight->loads.back().end;
  ++flight->loads.back().open;
  // Write the number of the window (tensors that are copied together) to the lower bits of the fence. Parts of different windows are then
  // not fused, because fused operations must have equal fences.
  constexpr uint64_t kWeak = (uint64_t{1} << kWeakFenceBits) - 1;
  request.fence = (op.request.fence & ~kWeak) | (window_ & kWeak);
  part.host = host_part(std::move(request), std::move(name), flight->carrier);
  return part;
}

void HostStagedPath::plan_pieces(const Response& r, bool from, const std::string& suffix, Flight* flight) {
  const size_t element = size_of(r.dtype);
  std::vector<size_t> tensors;
  for (const auto& shape : r.shapes) tensors.push_back(elements_of(shape) * element);
  for (const Load& load : cut(tensors, kPiece)) {
    add_load(load.bytes, flight);
    for (const Piece& piece : load.pieces) {
      const Operation& op = *flight->operations[piece.tensor];
      Request q = request_like(r);
      q.shape = {static_cast<int64_t>(piece.bytes / element)};
      const std::string name = r.names[piece.tensor] + suffix;
      Part& part = add_part(std::move(q), op, piece.number == 0 ? name : name + "/" + std::to_string(piece.number), flight);
      part.in = part.out = piece.at;
      if (from) part.come.push_back({const_cast<std::byte*>(op.in) + piece.first, piece.at, piece.bytes});
      part.back.push_back({op.out + piece.first, piece.at, piece.bytes});
    }
  }
}

// Plan the copies of a tensor that must not be split, and its host operation.
void HostStagedPath::plan_whole(const Response& r, const Comm& comm, Operation& op, const std::string& name, Flight* flight) {
  const size_t bytes = op.request.bytes();
  const auto& shape = op.request.shape;
  size_t more = 0;
  if (r.kind == Kind::reducescatter) {
    more = scattered_elements(shape[0], elements_of(shape, 1), comm.size, comm.rank) * size_of(r.dtype);
  } else if (r.kind == Kind::allreduce && op.residual) {
    more = bytes;
  }
  add_load(cache_lines(bytes) + cache_lines(more), flight);
  Part& part = add_part(op.request, op, name, flight);
  part.come.push_back({const_cast<std::byte*>(op.in), 0, bytes});
  if (r.kind == Kind::allreduce) {
    part.out = 0;
    part.back.push_back({op.out, 0, bytes});
    if (!op.residual) return;
    part.residual = cache_lines(bytes);
    part.come.push_back({reinterpret_cast<std::byte*>(op.residual), part.residual, bytes});
    part.back.push_back(part.come.back());
  } else if (r.kind == Kind::reducescatter) {
    part.out = cache_lines(bytes);
    part.back.push_back({op.out, part.out, more});
  } else {
    part.for_output = &op;
    part.host->outputs = [device = device_, pool = outputs_](size_t size) -> std::shared_ptr<Output> {
      const Device::Turn turn(*device);
      Block block;
      if (!turn.status().ok() || !pool->take(size, &block).ok()) return nullptr;
      std::byte* data = block->data();
      return std::make_shared<Output>(std::move(block), data, size);
    };
  }
}

// True if the parts of this batch can be copied now: the pinned memory in use stays within the limit, or none is in use.
bool HostStagedPath::room(const Loaded& load) const { return pool_->used() == 0 || pool_->used() + load.bytes <= memory_; }

// Start the copies of all operations, oldest first, until no pinned memory is left.
Status HostStagedPath::bring_all() {
  HVD_RETURN_IF_ERROR(deferred_.sweep());
  for (Flight& flight : flights_) {
    for (; flight.brought < flight.loads.size(); ++flight.brought) {
      Loaded& load = flight.loads[flight.brought];
      if (!room(load)) return {};
      if (Status s = pool_->take(load.bytes, &load.block); !s.ok()) {
        if (pool_->used() == 0) return s;
        // Copy nothing more until pinned memory is free again.
        memory_ = pool_->used();
        return {};
      }
      HVD_RETURN_IF_ERROR(bring(flight, load));
    }
  }
  return {};
}

Status HostStagedPath::bring(Flight& flight, Loaded& load) {
  // Wait for the input of all operations first, because the input of one can depend on the result of an earlier one.
  if (flight.brought == 0) {
    for (const OperationPtr& op : flight.operations) HVD_RETURN_IF_ERROR(device_->wait(down_, op->on_device->ready));
  }
  std::byte* const memory = load.block->data();
  for (size_t i = load.first; i < load.end; ++i) {
    Part& part = flight.parts[i];
    Operation& host = *part.host;
    host.in = memory + part.in;
    if (part.out != Part::kNone) host.out = memory + part.out;
    if (part.residual != Part::kNone) host.residual = reinterpret_cast<float*>(memory + part.residual);
    for (const Copy& copy : part.come) HVD_RETURN_IF_ERROR(device_->copy(memory + copy.at, copy.device, copy.bytes, down_));
  }
  Device::Event& copied = flight.parts[load.first].copied;
  HVD_RETURN_IF_ERROR(device_->take_event(&copied));
  HVD_RETURN_IF_ERROR(device_->record(copied, down_));
  submissions_->expect(load.end - load.first);
  return {};
}

bool HostStagedPath::advance(std::vector<Done>* done, Status* status) {
  const Device::Turn turn(*device_);
  bool moved = false, copying = false;
  *status = turn.status();
  for (auto flight = flights_.begin(); flight != flights_.end() && status->ok();) {
    *status = look(*flight, &moved, &copying);
    const bool launched = status->ok() && flight->open == 0;
    if (launched) *status = settle(*flight, done);
    flight = launched && status->ok() ? flights_.erase(flight) : std::next(flight);
  }
  if (status->ok()) *status = bring_all();
  if (!status->ok()) *status = status->with(device_->description());
  return moved;
}

// Submit the parts of an operation whose copies have completed, and launch the copies back of those whose host operation is done. `copying`
// becomes true at the first incomplete copy: later copies on the same stream need no check.
Status HostStagedPath::look(Flight& flight, bool* moved, bool* copying) {
  for (Part& part : flight.parts) {
    if (part.load >= flight.brought) break;
    if (!part.submitted) {
      if (part.copied) {
        bool there = false;
        if (!*copying) HVD_RETURN_IF_ERROR(device_->reached(part.copied, &there));
        *copying = !there;
        if (!there) return {};
        device_->give_back(part.copied);
        part.copied = nullptr;
      }
      part.submitted = true;
      submit_host_part(part.host, submissions_, *observers_);
      *moved = true;
    } else if (!part.launched && part.host->done()) {
      HVD_RETURN_IF_ERROR(launch(flight, part));
      *moved = true;
    }
  }
  return {};
}

Status HostStagedPath::launch(Flight& flight, Part& part) {
  part.launched = true;
  --flight.open;
  Loaded& load = flight.loads[part.load];
  if (part.host->status().ok()) {
    if (part.for_output) {
      part.for_output->sizes = part.host->sizes;
      part.for_output->output = part.host->output;
    }
    for (const Copy& copy : part.back) HVD_RETURN_IF_ERROR(device_->copy(copy.device, load.block->data() + copy.at, copy.bytes, up_));
  } else if (flight.status.ok()) {
    flight.status = part.host->status();
  }
  if (--load.open > 0) return {};
  std::shared_ptr<const Completion> completion;
  HVD_RETURN_IF_ERROR(Completion::record(device_, up_, &completion));
  deferred_.keep(std::move(completion), std::move(load.block));
  return {};
}

Status HostStagedPath::settle(Flight& flight, std::vector<Done>* done) {
  std::shared_ptr<const Completion> completion;
  HVD_RETURN_IF_ERROR(Completion::record(device_, up_, &completion));
  for (const OperationPtr& op : flight.operations) op->on_device->completion = completion;
  done->push_back({std::move(flight.operations), std::move(flight.status)});
  return {};
}

double HostStagedPath::resting_seconds() const { return resting_seconds_after(flights_.front().begun); }

std::vector<OperationPtr> HostStagedPath::take_all() {
  std::vector<OperationPtr> out;
  if (flights_.empty()) return out;
  const Device::Turn turn(*device_);
  // Copies in both directions can still access the program's memory. Give the operations an event that follows the work of both streams.
  std::shared_ptr<const Completion> down, both;
  const bool known = turn.status().ok() && pool_ && Completion::record(device_, down_, &down).ok() && down->order(up_).ok() &&
                     Completion::record(device_, up_, &both).ok();
  for (Flight& flight : flights_) {
    for (Part& part : flight.parts) {
      if (part.copied) device_->give_back(part.copied);
    }
    for (Loaded& load : flight.loads) {
      if (!load.block) continue;
      if (known) {
        deferred_.keep(both, std::move(load.block));
      } else {
        leave_behind(std::move(load.block));
      }
    }
    for (OperationPtr& op : flight.operations) {
      if (known) op->on_device->completion = both;
      out.push_back(std::move(op));
    }
  }
  flights_.clear();
  return out;
}

uint64_t new_carrier(const std::vector<OperationPtr>& operations) {
  static std::atomic<uint64_t> last{0};
  const uint64_t number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  for (const OperationPtr& op : operations) op->on_device->carried.store(number, std::memory_order_relaxed);
  return number;
}

OperationPtr host_part(Request request, std::string name, uint64_t carrier) {
  auto op = std::make_shared<Operation>();
  op->request = std::move(request);
  Request& q = op->request;
  q.name = std::move(name);
  q.device = DeviceKind::host;
  q.group.clear();
  q.group_size = 0;
  q.unnamed = false;
  op->carries = carrier;
  // A caller might already wait for the device operation, so negotiate without delay.
  op->awaited = true;
  // No caller waits for a part itself. The callback makes the watchdog check it.
  op->on_done = [](Operation&, void*) {};
  return op;
}

void submit_host_part(const OperationPtr& part, Submissions* submissions, const Observers& observers) {
  bool wake = false;
  observers.stamp(*part);
  observers.tell_submission(&Observer::submitted, *part);
  if (Status s = submissions->submit(part, &wake); !s.ok()) part->complete(std::move(s));
}

double resting_seconds_after(Clock::time_point begun) {
  constexpr double kLeast = 50e-6, kMax = 1e-3;
  const double age = std::chrono::duration<double>(Clock::now() - begun).count();
  return std::clamp(age / 8, kLeast, kMax);
}

}  // namespace hvd

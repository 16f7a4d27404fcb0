#include "engine/device/staged.h"

#include <algorithm>
#include <string>

#include "engine/execute.h"

namespace hvd {
namespace {

// Bytes of a piece: long enough for the copies to reach the link's speed, short enough for several to be under way.
constexpr size_t kPiece = size_t{4} << 20;

// May the tensors of a response be seen as one, and cut anywhere? Adasum and coded values look at whole tensors.
bool divisible(const Response& r) {
  return r.kind == Kind::broadcast || (r.kind == Kind::allreduce && r.op != ReduceOp::adasum && r.wire == WireFormat::none);
}

OperationPtr on_host(Request request, const std::string& name) {
  auto op = std::make_shared<Operation>();
  op->request = std::move(request);
  op->request.name = name;
  op->request.device = DeviceKind::host;
  op->request.group.clear();
  op->request.group_size = 0;
  op->awaited = true;                         // announced at once: it waits already
  op->on_done = [](Operation&, void*) {};     // nobody will come and wait, see Lookout
  return op;
}

}  // namespace

Staged::~Staged() { take_all(); }

Status Staged::open() {
  if (pool_) return {};
  HVD_RETURN_IF_ERROR(device_->make_stream(&down_));
  HVD_RETURN_IF_ERROR(device_->make_stream(&up_));
  pool_ = std::make_shared<PinnedPool>(device_);
  return {};
}

Status Staged::start(const Response& r, const Comm& comm, std::vector<OperationPtr> operations) {
  ++begun_[r.set];
  if (operations.empty()) return {};
  if (!device_) device_ = operations.front()->on_device->device;
  const Device::Turn turn(*device_);
  Flight& flight = flights_.emplace_back();
  flight.operations = std::move(operations);
  Status status = turn.status();
  if (status.ok()) status = open();
  if (status.ok()) status = begin(r, comm, &flight);
  return status.ok() ? status : status.with(device_->description());
}

Status Staged::begin(const Response& r, const Comm& comm, Flight* flight) {
  HVD_RETURN_IF_ERROR(held_.sweep());
  const auto& operations = flight->operations;
  for (const OperationPtr& op : operations) HVD_RETURN_IF_ERROR(device_->wait(down_, op->on_device->ready));
  // Several operations without a name may be under way under the one that they had when a schedule was made.
  const bool unnamed = operations.front()->request.unnamed;
  const std::string suffix = unnamed ? "/staged." + std::to_string(begun_[r.set]) : "/staged";
  if (divisible(r)) {
    const bool from = r.kind != Kind::broadcast || comm.global_ranks[static_cast<size_t>(comm.rank)] == r.root;
    HVD_RETURN_IF_ERROR(cut(r, operations, from, r.names.front() + suffix, &flight->parts));
  } else {
    for (size_t i = 0; i < operations.size(); ++i) {
      HVD_RETURN_IF_ERROR(whole(r, comm, operations[i], r.names[i] + suffix, &flight->parts.emplace_back()));
    }
  }
  flight->open = flight->parts.size();
  const uint64_t number = ++flights_begun_;
  for (const OperationPtr& op : operations) op->on_device->carried.store(number, std::memory_order_relaxed);
  for (Part& part : flight->parts) {
    part.host->carries = number;
    part.host->request.fence = operations.front()->request.fence;
  }
  submissions_->expect(flight->parts.size());
  return {};
}

Status Staged::take(size_t bytes, Part* part, std::byte** out) {
  HVD_RETURN_IF_ERROR(pool_->take(bytes, &part->blocks.emplace_back()));
  *out = part->blocks.back()->data();
  return {};
}

// The tensors laid end to end, in pieces. An empty one is a piece too: it has to be agreed on.
Status Staged::cut(const Response& r, const std::vector<OperationPtr>& operations, bool from, const std::string& name,
                   std::vector<Part>* parts) {
  const size_t element = size_of(r.dtype), step = kPiece / element;
  size_t total = 0;
  for (const auto& shape : r.shapes) total += elements_of(shape);
  size_t tensor = 0, inside = 0;  // where the next piece begins
  for (size_t first = 0; first == 0 || first < total; first += step) {
    const size_t count = std::min(step, total - first);
    Part& part = parts->emplace_back();
    std::byte* at = nullptr;
    HVD_RETURN_IF_ERROR(take(count * element, &part, &at));
    Request q = request_like(r);
    q.shape = {static_cast<int64_t>(count)};
    part.host = on_host(std::move(q), first == 0 ? name : name + "/" + std::to_string(first / step));
    part.host->in = part.host->out = at;
    for (size_t left = count; left > 0;) {
      const size_t here = elements_of(r.shapes[tensor]) - inside, some = std::min(left, here), bytes = some * element;
      const Operation& op = *operations[tensor];
      if (from) HVD_RETURN_IF_ERROR(bring({at, op.in + inside * element, bytes}));
      part.back.push_back({op.out + inside * element, at, bytes});
      at += bytes;
      left -= some;
      inside += some;
      if (some == here) ++tensor, inside = 0;
    }
    HVD_RETURN_IF_ERROR(device_->take_event(&part.copied));
    HVD_RETURN_IF_ERROR(device_->record(part.copied, down_));
  }
  return {};
}

// One tensor as it is.
Status Staged::whole(const Response& r, const Comm& comm, const OperationPtr& op, const std::string& name, Part* part) {
  const size_t bytes = op->request.bytes();
  part->host = on_host(op->request, name);
  Operation& host = *part->host;
  host.request.unnamed = false;
  std::byte* at = nullptr;
  HVD_RETURN_IF_ERROR(take(bytes, part, &at));
  HVD_RETURN_IF_ERROR(bring({at, op->in, bytes}));
  host.in = at;
  if (r.kind == Kind::allreduce) {
    host.out = at;
    part->back.push_back({op->out, at, bytes});
    if (op->residual) {
      std::byte* residual = nullptr;
      auto* carried = reinterpret_cast<std::byte*>(op->residual);
      HVD_RETURN_IF_ERROR(take(bytes, part, &residual));
      HVD_RETURN_IF_ERROR(bring({residual, carried, bytes}));
      host.residual = reinterpret_cast<float*>(residual);
      part->back.push_back({carried, residual, bytes});
    }
  } else if (r.kind == Kind::reducescatter) {
    const auto& shape = op->request.shape;
    const size_t mine = scattered_elements(shape[0], elements_of(shape, 1), comm.size, comm.rank) * size_of(r.dtype);
    HVD_RETURN_IF_ERROR(take(mine, part, &at));
    host.out = at;
    part->back.push_back({op->out, at, mine});
  } else {
    part->for_output = op.get();
    host.outputs = [device = device_, pool = pool_](size_t size) -> std::shared_ptr<Output> {
      const Device::Turn turn(*device);
      Block block;
      if (!turn.status().ok() || !pool->take(size, &block).ok()) return nullptr;
      std::byte* data = block->data();
      return std::make_shared<Output>(std::move(block), data, size);
    };
  }
  HVD_RETURN_IF_ERROR(device_->take_event(&part->copied));
  return device_->record(part->copied, down_);
}

bool Staged::advance(std::vector<Done>* done, Status* status) {
  const Device::Turn turn(*device_);
  bool moved = false, copying = false;
  *status = turn.status();
  for (auto flight = flights_.begin(); flight != flights_.end() && status->ok();) {
    *status = look(*flight, &moved, &copying);
    const bool launched = status->ok() && flight->open == 0;
    if (launched) *status = settle(*flight, done);
    flight = launched && status->ok() ? flights_.erase(flight) : std::next(flight);
  }
  if (!status->ok()) *status = status->with(device_->description());
  return moved;
}

// `copying`: a copy is under way, so those behind it on the same stream need no look.
Status Staged::look(Flight& flight, bool* moved, bool* copying) {
  for (Part& part : flight.parts) {
    if (!part.submitted) {
      bool there = false;
      if (!*copying) HVD_RETURN_IF_ERROR(device_->reached(part.copied, &there));
      *copying = !there;
      if (!there) return {};
      device_->give_back(part.copied);
      part.copied = nullptr;
      part.submitted = true;
      bool wake = false;
      observers_->stamp(*part.host);
      observers_->tell_submission(&Observer::submitted, *part.host);
      if (Status s = submissions_->submit(part.host, &wake); !s.ok()) part.host->complete(std::move(s));
      *moved = true;
    } else if (!part.launched && part.host->done()) {
      HVD_RETURN_IF_ERROR(launch(flight, part));
      *moved = true;
    }
  }
  return {};
}

Status Staged::launch(Flight& flight, Part& part) {
  part.launched = true;
  --flight.open;
  if (!part.host->status().ok()) {
    if (flight.status.ok()) flight.status = part.host->status();
    return {};
  }
  if (part.for_output) {
    part.for_output->sizes = part.host->sizes;
    part.for_output->output = part.host->output;
  }
  for (const Copy& copy : part.back) HVD_RETURN_IF_ERROR(device_->copy(copy.to, copy.from, copy.bytes, up_));
  return {};
}

Status Staged::settle(Flight& flight, std::vector<Done>* done) {
  std::shared_ptr<const Completion> completion;
  HVD_RETURN_IF_ERROR(Completion::record(device_, up_, &completion));
  for (const OperationPtr& op : flight.operations) op->on_device->completion = completion;
  hold(completion, flight);
  done->push_back({std::move(flight.operations), std::move(flight.status)});
  return {};
}

void Staged::hold(const std::shared_ptr<const Completion>& until, Flight& flight) {
  for (Part& part : flight.parts) {
    for (Block& block : part.blocks) held_.keep(until, std::move(block));
  }
}

double Staged::resting_seconds() const {
  constexpr double kLeast = 50e-6, kMost = 1e-3;
  const double age = std::chrono::duration<double>(Clock::now() - flights_.front().begun).count();
  return std::clamp(age / 8, kLeast, kMost);
}

std::vector<OperationPtr> Staged::take_all() {
  std::vector<OperationPtr> out;
  if (flights_.empty()) return out;
  const Device::Turn turn(*device_);
  // Copies of either direction may be under way, from and to the program's memory too: it finds out when they are done as it always does.
  std::shared_ptr<const Completion> down, both;
  const bool known = turn.status().ok() && pool_ && Completion::record(device_, down_, &down).ok() && down->order(up_).ok() &&
                     Completion::record(device_, up_, &both).ok();
  for (Flight& flight : flights_) {
    for (Part& part : flight.parts) {
      if (part.copied) device_->give_back(part.copied);
      for (Block& block : part.blocks) {
        if (known) {
          held_.keep(both, std::move(block));
        } else {
          new Block(std::move(block));  // nobody can say when the device is done with it
        }
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

}  // namespace hvd

// Driver: start device operations that were agreed on, and poll those in flight.
#include <algorithm>
#include <cmath>

#include "engine/driver.h"

namespace hvd {

// Start `ops`, taking them out of `keep`. They complete in look_at_devices(), or with all unfinished operations if this
// fails.
Status Driver::launch(const Response& response, const std::vector<Operation*>& ops, std::vector<OperationPtr>* keep) {
  std::vector<OperationPtr> mine;
  auto at = keep->begin();
  for (const Operation* op : ops) {
    if (!op) continue;
    at = std::find_if(at, keep->end(), [op](const OperationPtr& kept) { return kept.get() == op; });
    mine.push_back(std::move(*at));
  }
  std::erase(*keep, nullptr);
  const Status status = choose_way(response, *world_.comm(response.set), std::move(mine));
  return status.with(label(rank_));
}

// Choose the path of an operation. All members of the set ask the same for the same responses and get the same answers.
Status Driver::ask_for_way(const Response& response, Comm& comm, const std::shared_ptr<Device>& device, Way* way) {
  bool yes = false;
  const bool among_hosts = by_hosts_.fits(response, comm);
  if (among_hosts && hosts_first_) HVD_RETURN_IF_ERROR(by_hosts_.asks(response, comm, device, &yes));
  if (yes) *way = Way::by_hosts;
  // Until by_hosts_ is decided, go through host memory, so that no unwanted communicator is created.
  const bool hosts_later = among_hosts && hosts_first_ && !by_hosts_.gives_up(response.set);
  if (yes || hosts_later || comm.size == 1) return {};
  HVD_RETURN_IF_ERROR(by_nccl_.asks(response, comm, device, &yes));
  if (yes) *way = Way::by_nccl;
  if (yes || !by_nccl_.gives_up(response.set)) return {};
  HVD_RETURN_IF_ERROR(by_ipc_.asks(response, comm, device, &yes));
  if (yes) *way = Way::by_ipc;
  if (yes || !among_hosts || hosts_first_) return {};
  HVD_RETURN_IF_ERROR(by_hosts_.asks(response, comm, device, &yes));
  if (yes) *way = Way::by_hosts;
  return {};
}

Status Driver::choose_way(const Response& response, Comm& comm, std::vector<OperationPtr> mine) {
  if (Alone::fits(response, comm)) {
    const Status status = alone_.start(response, mine);
    (status.ok() ? launched_ : unlaunched_).push_back({std::move(mine), {}});
    return status;
  }
  if (!mine.empty() && mine.size() != response.names.size()) {
    unlaunched_.push_back({std::move(mine), {}});
    return Status(
        Code::internal,
        "a rank that has joined submitted only some of the tensors that other ranks have fused; submit them after join() has returned");
  }
  const std::shared_ptr<Device> device = mine.empty() ? nullptr : mine.front()->on_device->device;
  Way way = Way::staged;
  Status status = ask_for_way(response, comm, device, &way);
  if (status.ok() && way == Way::staged) return staged_.start(response, comm, std::move(mine));
  if (status.ok() && way == Way::by_hosts) return by_hosts_.start(response, comm, std::move(mine));
  if (status.ok()) status = way == Way::by_nccl ? by_nccl_.start(response, comm, mine) : by_ipc_.start(response, comm, mine);
  (status.ok() ? launched_ : unlaunched_).push_back({std::move(mine), {}});
  return status;
}

// Poll launched operations. Return false if the job ends because of one.
bool Driver::look_at_launched() {
  if (farewell_.over()) return true;
  Status status = by_nccl_.in_flight() ? by_nccl_.look() : Status();
  if (status.ok() && by_hosts_.in_flight()) status = by_hosts_.look();
  if (status.ok() && by_ipc_.in_flight()) status = by_ipc_.look();
  if (!status.ok()) fail(status.with(label(rank_)), true);
  return status.ok();
}

// Before this rank's goodbye: other ranks may wait on their devices for work launched here, and would hang if the
// process ended first.
void Driver::drain_devices() {
  const Deadline deadline = Deadline::after(settings_.timeout);
  while (!farewell_.over() && all_take_part() && any_in_flight()) {
    if (!look_at_launched()) return;
    if (deadline.passed()) {
      const std::string text =
          " leaves although its GPU has not finished operations launched " + std::to_string(std::lround(settings_.timeout)) + " s ago";
      return fail(Status(Code::timeout, label(rank_) + text, rank_), true);
    }
    world_.waiter().nap(Deadline::after(0.001));
    control_.probe();
    control_.pump();
    hear_urgent();
  }
}

bool Driver::look_at_devices() {
  if (any_in_flight() && !look_at_launched()) return true;
  if (staged_.idle() && by_hosts_.idle() && launched_.empty()) return false;
  std::vector<Staged::Done> done = std::move(launched_);
  launched_.clear();
  Status failed;
  bool moved = !done.empty();
  if (!staged_.idle()) moved |= staged_.advance(&done, &failed);
  if (!by_hosts_.idle() && failed.ok()) moved |= by_hosts_.advance(&done, &failed);
  for (const Staged::Done& some : done) {
    std::vector<Operation*> ops;
    for (const OperationPtr& op : some.operations) ops.push_back(op.get());
    finish(ops, some.status);
  }
  if (!failed.ok() && !farewell_.over()) fail(failed.with(label(rank_)), true);
  return moved;
}

}  // namespace hvd

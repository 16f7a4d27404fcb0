// The driver's part in operations on devices: beginning one that has been agreed on, and looking at those under way.
#include <algorithm>

#include "engine/driver.h"

namespace hvd {

// `ops`, taken out of `keep`, are under way from now on and end in look_at_devices(), or, where this fails, with all that is unfinished.
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

// All members of the set ask the same of the same responses, and hear the same.
Status Driver::ask_for_way(const Response& response, Comm& comm, const std::shared_ptr<Device>& device, Way* way) {
  bool yes = false;
  const bool among_hosts = by_hosts_.fits(response, comm);
  if (among_hosts && hosts_first_) HVD_RETURN_IF_ERROR(by_hosts_.asks(response, comm, device, &yes));
  if (yes) *way = Way::by_hosts;
  // Meanwhile by way of the host: no communicator is made that nobody has asked for.
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
  const std::shared_ptr<Device> device = mine.empty() ? nullptr : mine.front()->on_device->device;
  Way way = Way::staged;
  Status status = ask_for_way(response, comm, device, &way);
  if (status.ok() && way == Way::staged) return staged_.start(response, comm, std::move(mine));
  if (status.ok() && way == Way::by_hosts) return by_hosts_.start(response, comm, std::move(mine));
  if (status.ok()) status = way == Way::by_nccl ? by_nccl_.start(response, comm, mine) : by_ipc_.start(response, comm, mine);
  (status.ok() ? launched_ : unlaunched_).push_back({std::move(mine), {}});
  return status;
}

bool Driver::look_at_devices() {
  if (by_nccl_.in_flight() && !farewell_.over()) {
    if (Status s = by_nccl_.look(); !s.ok()) {
      fail(s.with(label(rank_)), true);
      return true;
    }
  }
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

// Part of the driver that starts agreed device operations and polls those in flight.
#include <algorithm>
#include <cmath>

#include "engine/driver.h"

namespace hvd {

// Launch device operations and take them out of `keep`. look_at_devices() completes them later. A failed launch ends the job.
Status Driver::launch(const Response& response, const std::vector<Operation*>& ops, std::vector<OperationPtr>* keep) {
  std::vector<OperationPtr> own;
  auto at = keep->begin();
  for (const Operation* op : ops) {
    if (!op) continue;
    at = std::find_if(at, keep->end(), [op](const OperationPtr& kept) { return kept.get() == op; });
    own.push_back(std::move(*at));
  }
  std::erase(*keep, nullptr);
  const Status status = start_on_path(response, *connections_.comm(response.set), std::move(own));
  return status.with(label(rank_));
}

// Choose the path for a device operation. All ranks of the set evaluate the same conditions in the same order, so they choose the same
// path.
Status Driver::choose_path(const Response& response, Comm& comm, const std::shared_ptr<Device>& device, DevicePath* path) {
  bool yes = false;
  const bool among_hosts = hierarchical_path_.fits(response, comm);
  if (among_hosts && hosts_first_) HVD_RETURN_IF_ERROR(hierarchical_path_.eligible(response, comm, device, &yes));
  if (yes) *path = DevicePath::hierarchical_nccl;
  // Use host memory until the hierarchical path has decided whether it serves this set. NCCL might otherwise create a communicator that is
  // never used.
  const bool hosts_later = among_hosts && hosts_first_ && !hierarchical_path_.gives_up(response.set);
  if (yes || hosts_later || comm.size == 1) return {};
  HVD_RETURN_IF_ERROR(nccl_path_.eligible(response, comm, device, &yes));
  if (yes) *path = DevicePath::nccl;
  if (yes || !nccl_path_.gives_up(response.set)) return {};
  HVD_RETURN_IF_ERROR(ipc_path_.eligible(response, comm, device, &yes));
  if (yes) *path = DevicePath::ipc;
  if (yes || !among_hosts || hosts_first_) return {};
  HVD_RETURN_IF_ERROR(hierarchical_path_.eligible(response, comm, device, &yes));
  if (yes) *path = DevicePath::hierarchical_nccl;
  return {};
}

Status Driver::start_on_path(const Response& response, Comm& comm, std::vector<OperationPtr> own) {
  if (SingleRankPath::fits(response, comm)) {
    const Status status = single_rank_path_.start(response, own);
    (status.ok() ? launched_ : unlaunched_).push_back({std::move(own), {}});
    return status;
  }
  if (!own.empty() && own.size() != response.names.size()) {
    unlaunched_.push_back({std::move(own), {}});
    return Status(
        Code::internal,
        "a rank that has joined submitted only some of the tensors that other ranks have fused; submit them after join() has returned");
  }
  const std::shared_ptr<Device> device = own.empty() ? nullptr : own.front()->on_device->device;
  DevicePath path = DevicePath::host_staged;
  Status status = choose_path(response, comm, device, &path);
  if (status.ok() && path == DevicePath::host_staged) return host_staged_path_.start(response, comm, std::move(own));
  if (status.ok() && path == DevicePath::hierarchical_nccl) return hierarchical_path_.start(response, comm, std::move(own));
  if (status.ok()) status = path == DevicePath::nccl ? nccl_path_.start(response, comm, own) : ipc_path_.start(response, comm, own);
  (status.ok() ? launched_ : unlaunched_).push_back({std::move(own), {}});
  return status;
}

// Poll launched operations. Return false if an error has ended the job.
bool Driver::look_at_launched() {
  if (shutdown_state_.over()) return true;
  Status status = nccl_path_.in_flight() ? nccl_path_.look() : Status();
  if (status.ok() && hierarchical_path_.in_flight()) status = hierarchical_path_.look();
  if (status.ok() && ipc_path_.in_flight()) status = ipc_path_.look();
  if (!status.ok()) fail(status.with(label(rank_)), true);
  return status.ok();
}

// Wait for launched device operations before this rank sends its goodbye. The devices of other ranks might wait for them, and would hang if
// this process ended first.
void Driver::drain_devices() {
  const Deadline deadline = Deadline::after(settings_.timeout);
  while (!shutdown_state_.over() && all_take_part() && any_in_flight()) {
    if (!look_at_launched()) return;
    if (deadline.passed()) {
      const std::string text =
          " leaves although its GPU has not finished operations launched " + std::to_string(std::lround(settings_.timeout)) + " s ago";
      return fail(Status(Code::timeout, label(rank_) + text, rank_), true);
    }
    connections_.waiter().nap(Deadline::after(0.001));
    control_.probe();
    control_.pump();
    hear_urgent();
  }
}

bool Driver::look_at_devices() {
  if (any_in_flight() && !look_at_launched()) return true;
  if (host_staged_path_.idle() && hierarchical_path_.idle() && launched_.empty()) return false;
  std::vector<HostStagedPath::Done> done = std::move(launched_);
  launched_.clear();
  Status failed;
  bool moved = !done.empty();
  if (!host_staged_path_.idle()) moved |= host_staged_path_.advance(&done, &failed);
  if (!hierarchical_path_.idle() && failed.ok()) moved |= hierarchical_path_.advance(&done, &failed);
  for (const HostStagedPath::Done& some : done) {
    std::vector<Operation*> ops;
    for (const OperationPtr& op : some.operations) ops.push_back(op.get());
    finish(ops, some.status);
  }
  if (!failed.ok() && !shutdown_state_.over()) fail(failed.with(label(rank_)), true);
  return moved;
}

}  // namespace hvd

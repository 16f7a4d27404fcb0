#include "group.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "driver.h"
#include "knobs.h"

namespace simnccl {
namespace {

struct Group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<Task> tasks;
  std::vector<Creation> creations;
  std::vector<ncclComm_t> aborts;
};

// The calling thread's group. Not thread_local: see knobs.cc.
Group& own() {
  static auto* const mutex = new std::mutex;
  static auto* const all = new std::map<std::thread::id, Group>;
  std::lock_guard lock(*mutex);
  return (*all)[std::this_thread::get_id()];
}

// Launches kernels in the order in which their communicators were first used.
ncclResult_t launch_all(const std::vector<Task>& tasks) {
  std::vector<ncclComm_t> comms;
  for (const Task& t : tasks) {
    if (std::find(comms.begin(), comms.end(), t.comm) == comms.end()) comms.push_back(t.comm);
  }
  for (ncclComm_t c : comms) {
    std::vector<Task> part;
    for (const Task& t : tasks) {
      if (t.comm == c) part.push_back(t);
    }
    if (const ncclResult_t r = launch(c, std::move(part)); r != ncclSuccess) return r;
  }
  return ncclSuccess;
}

ncclResult_t run_tasks(std::vector<Task> tasks) {
  const bool blocking = tasks.front().comm->blocking;
  for (const Task& t : tasks) {
    if (t.comm->blocking != blocking) return failed(ncclInvalidUsage, "blocking and non-blocking communicators in one group");
  }
  if (blocking) return launch_all(tasks);
  for (const Task& t : tasks) t.comm->state = ncclInProgress;
  ncclComm_t first = tasks.front().comm;
  on_helper(first, [tasks = std::move(tasks)] {
    const ncclResult_t r = launch_all(tasks);
    // Once for each communicator: after that, its state may be that of the caller's next group.
    std::set<ncclComm_t> comms;
    for (const Task& t : tasks) {
      int expected = ncclInProgress;
      if (comms.insert(t.comm).second) t.comm->state.compare_exchange_strong(expected, r);
    }
  });
  return ncclInProgress;
}

ncclResult_t run_creations(const std::vector<Creation>& creations) {
  std::vector<std::thread> threads;
  std::vector<ncclResult_t> results(creations.size());
  for (size_t i = 0; i < creations.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = create(creations[i]); });
  }
  for (std::thread& t : threads) t.join();
  for (const ncclResult_t r : results) {
    if (r != ncclSuccess) return r;
  }
  return ncclSuccess;
}

}  // namespace

bool in_group() { return own().depth > 0; }

ncclResult_t add_to_group(const Creation& creation) {
  own().creations.push_back(creation);
  return ncclSuccess;
}

ncclResult_t add_abort_to_group(ncclComm_t comm) {
  if (version() < 22200) mistake("ncclCommAbort in a group, which NCCL has since 2.22");
  own().aborts.push_back(comm);
  return ncclSuccess;
}

ncclResult_t fail_group(ncclResult_t result) {
  if (in_group() && own().error == ncclSuccess) own().error = result;
  return result;
}

ncclResult_t submit(const Task& task) {
  if (!in_group()) return run_tasks({task});
  own().tasks.push_back(task);
  return ncclSuccess;
}

}  // namespace simnccl

using namespace simnccl;

ncclResult_t ncclGroupStart() {
  if (const ncclResult_t r = count_call("GroupStart", -1); r != ncclSuccess) return r;
  ++own().depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  Group& group = own();
  if (group.depth == 0) return failed(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
  if (--group.depth > 0) return ncclSuccess;
  const Group all = std::move(group);
  group = {};
  const int rank = all.tasks.empty() ? -1 : all.tasks.front().comm->rank;
  if (const ncclResult_t r = count_call("GroupEnd", rank); r != ncclSuccess) return r;
  if (all.error != ncclSuccess) return all.error;
  if (!all.creations.empty() + !all.tasks.empty() + !all.aborts.empty() > 1) {
    return failed(ncclInvalidUsage, "creating, operating and aborting in one group");
  }
  if (!all.aborts.empty()) abort_together(all.aborts);
  if (!all.creations.empty()) return run_creations(all.creations);
  return all.tasks.empty() ? ncclSuccess : run_tasks(all.tasks);
}

#include "process.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "knobs.h"

namespace simmpi {
namespace {

// Handles of different kinds have different numbers, so that one is not taken for another.
constexpr int kGroups = 1000, kRequests = 2000;

std::atomic<long> inside{0};  // the thread within a call; counted only where one at a time is allowed
thread_local int depth = 0;  // MPI_Finalize calls the caller's functions

}  // namespace

Process& Process::get() {
  static auto* const process = new Process;
  return *process;
}

Process::Process() {
  const World& world = World::get();
  Communicator all{1, 0, {}, world.rank(), false};
  for (int i = 0; i < world.size(); ++i) all.members.push_back(i);
  communicators_.push_back(all);
  communicators_.push_back({2, 0, {world.rank()}, 0, false});
}

Process::Call::Call(const char* name) {
  Process& p = get();
  const std::string named = std::string("MPI_") + name;
  if (!p.started) mistake(named + " before MPI_Init");
  if (p.ended) mistake(named + " after MPI_Finalize");
  const long thread = ::syscall(SYS_gettid);
  if (p.level <= 1 && p.first != thread) mistake(named + " by another thread than the one that may");
  if (p.level < 3 && depth++ == 0) {
    long no_value = 0;
    if (!inside.compare_exchange_strong(no_value, thread)) mistake(named + " while another thread is in a call");
  }
  fails_ = enter(name);
}

Process::Call::~Call() {
  if (get().level < 3 && --depth == 0) inside.store(0);
}

Communicator& Process::communicator(H handle) {
  std::lock_guard lock(mutex);
  const Id id = id_of(handle);
  const size_t number = id == kWorldComm ? 0 : id == kSelfComm ? 1 : static_cast<size_t>(number_of(handle)) + 1;
  if (number == 1 && id != kSelfComm) mistake("this is no communicator");
  if (number >= communicators_.size() || communicators_[number].freed) mistake("this is no communicator, or one that was freed");
  return communicators_[number];
}

H Process::created(Communicator comm) {
  std::lock_guard lock(mutex);
  communicators_.push_back(std::move(comm));
  return made_handle(static_cast<int>(communicators_.size()) - 2);
}

std::vector<int>& Process::group(H handle) {
  std::lock_guard lock(mutex);
  const int number = number_of(handle) - kGroups;
  if (number < 0 || static_cast<size_t>(number) >= groups_.size()) mistake("this is no group");
  return groups_[static_cast<size_t>(number)];
}

H Process::created(std::vector<int> group) {
  std::lock_guard lock(mutex);
  groups_.push_back(std::move(group));
  return made_handle(kGroups + static_cast<int>(groups_.size()) - 1);
}

Pending& Process::pending(H handle) {
  std::lock_guard lock(mutex);
  const int number = number_of(handle) - kRequests;
  if (number < 0 || static_cast<size_t>(number) >= pending_.size()) mistake("this is no request");
  return pending_[static_cast<size_t>(number)];
}

H Process::created(Pending pending) {
  std::lock_guard lock(mutex);
  size_t at = 0;
  while (at < pending_.size() && !pending_[at].done) ++at;
  if (at == pending_.size()) pending_.emplace_back();
  pending_[at] = std::move(pending);
  return made_handle(kRequests + static_cast<int>(at));
}

}  // namespace simmpi

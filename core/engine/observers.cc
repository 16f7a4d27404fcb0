#include "engine/observers.h"

#include <algorithm>

namespace hvd {

std::string_view Execution::algorithm() const {
  if (guarded) return "guarded";
  const auto collective = [this] {
    switch (response.kind) {
      case Kind::allgather: return Collective::allgather;
      case Kind::broadcast: return Collective::broadcast;
      case Kind::alltoall: return Collective::alltoall;
      case Kind::reducescatter: return Collective::reducescatter;
      case Kind::barrier: return Collective::barrier;
      default: return response.op == ReduceOp::adasum ? Collective::adasum : Collective::allreduce;
    }
  };
  return backend.algorithm(comm, collective(), response.dtype, response.wire, bytes);
}

void Observers::add(std::shared_ptr<Observer> observer) {
  std::lock_guard lock(mutex_);
  all_.push_back(std::move(observer));
  changed();
}

void Observers::remove(const Observer* observer) {
  // Keep the removed observer until the lock is released, because its destructor runs arbitrary code.
  std::shared_ptr<Observer> last;
  std::lock_guard lock(mutex_);
  const auto it = std::find_if(all_.begin(), all_.end(), [observer](const auto& o) { return o.get() == observer; });
  if (it == all_.end()) return;
  last = std::move(*it);
  all_.erase(it);
  changed();
}

void Observers::changed() {
  submissions_wanted_.store(std::any_of(all_.begin(), all_.end(), [](const auto& o) { return o->wants_submissions(); }),
                            std::memory_order_release);
  times_wanted_.store(std::any_of(all_.begin(), all_.end(), [](const auto& o) { return o->wants_submission_times(); }),
                      std::memory_order_relaxed);
  changed_.store(true, std::memory_order_release);
}

void Observers::follow() {
  // Destroy the old list only after the lock is released, because destructors of observers may run arbitrary code.
  std::vector<std::shared_ptr<Observer>> before;
  std::lock_guard lock(mutex_);
  changed_.store(false, std::memory_order_relaxed);
  before.swap(followed_);
  followed_ = all_;
}

std::vector<std::shared_ptr<Observer>> Observers::wanting_submissions() const {
  std::vector<std::shared_ptr<Observer>> out;
  std::lock_guard lock(mutex_);
  std::copy_if(all_.begin(), all_.end(), std::back_inserter(out), [](const auto& o) { return o->wants_submissions(); });
  return out;
}

}  // namespace hvd

#include "transport/node_group.h"

namespace hvd {

NodeGroup::NodeGroup(std::shared_ptr<Segment> segment, int set_slot, uint32_t generation, std::vector<int> locals, int me, std::vector<BellRef> bells,
                     StagingLedger* ledger, Waiter* waiter, double timeout_seconds)
    : segment_(std::move(segment)), slot_(set_slot), locals_(std::move(locals)), me_(me), bells_(std::move(bells)),
      ledger_(ledger), waiter_(waiter), timeout_(timeout_seconds), staging_(locals_.size()) {
  mine_ = base_ = static_cast<uint64_t>(generation) << 40;
  progress(me_).store(mine_, std::memory_order_seq_cst);
}

NodeGroup::~NodeGroup() {
  for (auto& use : ledger_->half) {
    if (use.group == this) use = {};
  }
}

Status NodeGroup::begin(Stage* stage) {
  half_ = static_cast<int>(operations_++ & 1);
  auto& use = ledger_->half[half_];
  if (use.group) {
    NodeGroup& g = *use.group;
    for (int m = 0; m < g.size(); ++m) {
      if (g.progress(m).load(std::memory_order_seq_cst) >= use.done) continue;
      Wait wait(*waiter_, timeout_, "local ranks to leave the staging buffer");
      while (g.progress(m).load(std::memory_order_seq_cst) < use.done) HVD_RETURN_IF_ERROR(wait.pause());
    }
    use = {};
  }
  base_ = mine_;
  const size_t bytes = segment_->spec().staging_bytes / 2;
  for (int m = 0; m < size(); ++m) staging_[m] = segment_->staging(locals_[m]) + half_ * bytes;
  *stage = {staging_.data(), bytes};
  return {};
}

void NodeGroup::publish() {
  progress(me_).store(++mine_, std::memory_order_seq_cst);
  for (int m = 0; m < size(); ++m) {
    if (m != me_) bells_[m].wake(Mood::waiting);
  }
}

Status NodeGroup::await(int member, uint64_t stage) {
  if (reached(member, stage)) return {};
  Wait wait(*waiter_, timeout_, [&] { return "local rank " + std::to_string(locals_[member]); });
  while (!reached(member, stage)) HVD_RETURN_IF_ERROR(wait.pause());
  return {};
}

Status NodeGroup::await_all(uint64_t stage) {
  for (int m = 0; m < size(); ++m) {
    if (m != me_) HVD_RETURN_IF_ERROR(await(m, stage));
  }
  return {};
}

void NodeGroup::finish() {
  publish();
  ledger_->half[half_] = {this, mine_};
}

}  // namespace hvd

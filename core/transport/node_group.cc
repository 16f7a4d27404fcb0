#include "transport/node_group.h"

namespace hvd {

NodeGroup::NodeGroup(std::shared_ptr<Segment> segment, int set_slot, uint32_t generation, std::vector<int> locals, int me,
                     std::vector<WakeupEvent> wakeups, StagingLedger* ledger, Waiter* waiter, double timeout_seconds)
    : segment_(std::move(segment)), locals_(std::move(locals)), me_(me), wakeups_(std::move(wakeups)), ledger_(ledger), waiter_(waiter),
      timeout_(timeout_seconds), staging_(locals_.size()) {
  SetLines lines;
  for (int local : locals_) lines.push_back(&segment_->set_line(set_slot, local));
  lines_ = std::make_shared<const SetLines>(std::move(lines));
  own_ = base_ = static_cast<uint64_t>(generation) << 40;
  SetLine& line = *(*lines_)[me_];
  line.finished.store(own_, std::memory_order_seq_cst);
  line.progress.store(own_, std::memory_order_seq_cst);
}

Status NodeGroup::begin(Stage* stage) {
  if (early_) {
    early_ = false;
    set_up(stage);
    return {};
  }
  half_ = static_cast<int>(operations_++ & 1);
  auto& use = ledger_->half[half_];
  if (use.done) {
    for (const SetLine* line : *use.lines) {
      if (line->finished.load(std::memory_order_seq_cst) >= use.done) continue;
      Wait wait(*waiter_, timeout_, "local ranks to leave the staging buffer");
      while (line->finished.load(std::memory_order_seq_cst) < use.done) HVD_RETURN_IF_ERROR(wait.pause());
    }
    use.done = 0;
  }
  base_ = own_;
  set_up(stage);
  return {};
}

void NodeGroup::set_up(Stage* stage) {
  const size_t bytes = segment_->spec().staging_bytes / 2;
  for (int m = 0; m < size(); ++m) staging_[m] = segment_->staging(locals_[m]) + half_ * bytes;
  *stage = {staging_.data(), bytes, own_ - base_, (operations_ - 1) / 2};
}

bool NodeGroup::begin_early(Stage* stage) {
  const auto& use = ledger_->half[operations_ & 1];
  const auto in_use = [&](const SetLine* line) { return line->finished.load(std::memory_order_seq_cst) < use.done; };
  if (use.done && std::any_of(use.lines->begin(), use.lines->end(), in_use)) return false;
  (void)begin(stage);
  early_ = true;
  return true;
}

void NodeGroup::publish_early() { (*lines_)[me_]->progress.store(++own_, std::memory_order_seq_cst); }

void NodeGroup::withdraw() {
  early_ = false;
  own_ = base_;
  --operations_;
  (*lines_)[me_]->progress.store(own_, std::memory_order_seq_cst);
}

void NodeGroup::publish() {
  (*lines_)[me_]->progress.store(++own_, std::memory_order_seq_cst);
  wake_members();
}

void NodeGroup::wake_members() const {
  for (int m = 0; m < size(); ++m) {
    if (m != me_) wakeups_[m].wake(SleepState::waiting);
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
  // All ranks of the group have reached this stage, so they have finished all earlier operations, and the other half is free.
  if (auto& other = ledger_->half[half_ ^ 1]; other.lines == lines_) other.done = 0;
  return {};
}

void NodeGroup::finish_at(uint64_t stages) {
  own_ = base_ + stages - 1;
  finish();
}

void NodeGroup::finish() {
  (*lines_)[me_]->finished.store(++own_, std::memory_order_seq_cst);
  wake_members();
  auto& use = ledger_->half[half_];
  if (use.lines != lines_) use.lines = lines_;
  use.done = own_;
}

}  // namespace hvd

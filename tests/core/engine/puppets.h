// Ranks without threads: real drivers over real links that take one turn at a time when the test says so.
// Their backend records operations and moves no data, so a test controls every interleaving of submissions
// and engine turns.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/counters.h"
#include "engine/driver.h"
#include "wiring.h"

namespace hvd::testing {

// Records executed operations by process set; no collective waits for other ranks.
class Notebook final : public Backend {
 public:
  std::map<std::vector<int>, std::string> lines;

  const char* name() const override { return "notebook"; }
  Status allreduce(Comm& c, const Segments& s, DType d, ReduceOp op, const Scale&) override {
    std::string text = "allreduce " + std::string(name_of(d)) + " " + std::string(name_of(op));
    for (const auto& piece : s.pieces) text += " " + std::to_string(piece.count);
    return note(c, text);
  }
  Status allreduce_compressed(Comm& c, const Segments& s, std::span<float* const>, WireFormat, const Scale& scale) override {
    return allreduce(c, s, DType::float32, ReduceOp::sum, scale);
  }
  bool may_be_guarded(const Comm&, size_t count, DType) const override { return count < 100; }
  Status broadcast(Comm& c, std::byte*, size_t bytes, int root) override {
    return note(c, "broadcast " + std::to_string(bytes) + " " + std::to_string(root));
  }
  Status allgather(Comm& c, const std::byte*, std::byte*, std::span<const size_t> bytes) override { return note(c, "allgather", bytes); }
  Status alltoall(Comm& c, const std::byte*, std::span<const size_t>, std::byte*, std::span<const size_t>) override {
    return note(c, "alltoall");
  }
  Status reducescatter(Comm& c, const std::byte*, std::byte*, std::span<const size_t> counts, DType, ReduceOp, const Scale&) override {
    return note(c, "reducescatter", counts);
  }
  Status barrier(Comm& c) override { return note(c, "barrier"); }

 private:
  Status note(const Comm& c, std::string text, std::span<const size_t> numbers = {}) {
    for (size_t n : numbers) text += " " + std::to_string(n);
    lines[c.global_ranks] += text + "\n";
    return {};
  }
};

class Puppets {
 public:
  explicit Puppets(int size, Layout layout, Settings settings = {}) : wiring_(size, setup(layout, settings)), books_(size) {
    for (int r = 0; r < size; ++r) {
      EngineOptions& o = wiring_.options[r];
      talk_through_memory(o);
      auto book = std::make_unique<Notebook>();
      books_[r] = book.get();
      o.backend = std::move(book);
      submissions_.push_back(std::make_unique<Submissions>(r, size));
      observers_.push_back(std::make_unique<Observers>());
      counters_.push_back(std::make_shared<Counters>());
      observers_.back()->add(counters_.back());
      message_bus_.push_back(std::make_unique<MessageBus>());
      drivers_.push_back(
          std::make_unique<Driver>(o, submissions_.back().get(), observers_.back().get(), message_bus_.back().get(), &abort_request_));
    }
  }

  int size() const { return static_cast<int>(drivers_.size()); }
  Submissions& submissions(int rank) { return *submissions_[rank]; }
  Observers& observers(int rank) { return *observers_[rank]; }
  MessageBus& message_bus(int rank) { return *message_bus_[rank]; }
  Counted counted(int rank) const { return counters_[rank]->read(); }
  Driver& driver(int rank) { return *drivers_[rank]; }
  const Negotiator& negotiator() const { return drivers_[0]->coordinator()->negotiator(); }

  // The test provides the tensor's memory; only guarded allreduces read it.
  OperationPtr submit(int rank, Request q) {
    auto op = std::make_shared<Operation>();
    op->in = memory_.data();
    op->out = memory_.data();
    op->request = std::move(q);
    bool wake = false;
    const Status s = submissions_[rank]->submit(op, &wake);
    if (!s.ok()) op->complete(s);
    return op;
  }
  bool step(int rank) { return drivers_[rank]->step(true); }
  // Runs turns of all ranks until nothing changes.
  bool settle() {
    bool any = false;
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& d : drivers_) moved |= d->step(true) | d->step(false);
      any |= moved;
    }
    return any;
  }
  // Compares what members of each set have executed; "" if equal.
  std::string disagreement() const {
    for (int r = 0; r < static_cast<int>(books_.size()); ++r) {
      for (const auto& [ranks, text] : books_[r]->lines) {
        for (int other : ranks) {
          const auto other_lines = books_[other]->lines.find(ranks);
          if (other_lines == books_[other]->lines.end() || other_lines->second != text) {
            return "rank " + std::to_string(r) + ":\n" + text + "rank " + std::to_string(other) + ":\n" +
                   (other_lines == books_[other]->lines.end() ? "nothing" : other_lines->second);
          }
        }
      }
    }
    return "";
  }

 private:
  static Setup setup(Layout layout, Settings settings) {
    settings.cycle_time = 0;  // requests wait only for their turn
    settings.stall_warning = 0;
    Setup g{layout, settings};
    g.staging = 16 << 10;
    return g;
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(1 << 18);
  Wiring wiring_;
  std::vector<Notebook*> books_;
  std::vector<std::unique_ptr<Submissions>> submissions_;
  std::vector<std::unique_ptr<Observers>> observers_;
  std::vector<std::shared_ptr<Counters>> counters_;
  std::vector<std::unique_ptr<MessageBus>> message_bus_;
  const AbortRequest abort_request_;
  std::vector<std::unique_ptr<Driver>> drivers_;
};

}  // namespace hvd::testing

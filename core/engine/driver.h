// The driver: one turn of the engine's work. Whoever holds the engine's baton (its thread, or a caller that waits) calls step(); it never
// runs twice at a time. Order of a turn: take submissions, announce, hear what others say, execute what has been agreed.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "agree/coordinator.h"
#include "agree/stall.h"
#include "agree/watch.h"
#include "engine/control.h"
#include "engine/execute.h"
#include "engine/guard.h"
#include "engine/steady.h"
#include "engine/submissions.h"

namespace hvd {

struct Counters {
  std::atomic<uint64_t> announcements{0}, negotiated{0}, scheduled{0}, schedules{0}, revocations{0}, responses{0}, errors{0};
  std::atomic<uint64_t> control_ns{0};  // CPU time beside collectives, in turns in which something moved; an estimate, see Driver::step
};

class Driver {
 public:
  Driver(EngineOptions& options, Submissions* submissions);

  // One turn. `flush`: a caller waits, announce at once. True: something moved, call again. Never sleeps outside collectives.
  bool step(bool flush);

  // Before sleeping: what to be woken for, until when at the latest, and whether there is something to do after all.
  Mood resting_mood() const;
  double resting_seconds() const;
  bool work_waiting() const;
  // Control messages wait for room in a socket.
  bool unsent() const { return control_.unsent(); }
  void poll_fds(std::vector<std::pair<int, short>>& fds) const;
  // A guarded operation is under way: the next thing to happen is a peer's message, not this rank's doing.
  bool awaits_peers() const { return !over_ && guard_.under_way(); }

  // The program leaves: says goodbye (with `reason`), fails what is pending and waits briefly until the neighbours have heard it.
  void leave(const std::string& reason);
  // Another thread asks for that; a collective under way gives up.
  void request_stop() { stopping_.store(true, std::memory_order_seq_cst); }

  World& world() { return world_; }
  const Counters& counters() const { return counters_; }
  const Executor::Counters& executed() const { return executor_.counters(); }
  const Coordinator* coordinator() const { return coordinator_.get(); }  // null but on rank 0

 private:
  struct Bye {
    int rank;
    uint64_t executed;
    Status why;
  };

  bool turn(bool flush);
  Status carry_out(const Response& response, const std::vector<Operation*>& ops);
  Status carry_out(const Schedule::Bucket& bucket, const std::vector<Operation*>& ops);
  Status hook();
  void hear_urgent();
  bool take_submissions();
  bool announce(bool flush);
  bool hear();
  void on_frame(Frame& frame);
  void decide();
  bool execute_agreed();
  void execute(Response response);
  Status check(const Response& response, const std::vector<Operation*>& ops);
  void adopt(const Response& response);
  bool run_schedule();
  bool run_bucket();
  enum class Vote { idle, decided, ended };
  Vote vote(const Submissions::Progress& progress, bool* moved);
  void finish_guarded();
  void leave_schedule(uint64_t final_position);
  void finish(const std::vector<Operation*>& ops, const Status& status);
  void apply_set_change(const Response& response, Operation* op);
  std::vector<Operation*> find(const Response& response, std::vector<OperationPtr>* keep);
  void remember(const Operation& op);
  void lost(int rank, const Status& why);
  bool beyond_goodbye() const;
  bool past_goodbye() const;
  bool has_no_part() const;
  void watch();
  bool anything_waits() const;
  void collective_failed(const Status& status);
  std::vector<OperationPtr> take_unfinished();
  void fail(Status why, bool tell);
  double now() const;
  const std::string& label(int rank) const { return labels_[rank]; }

  const int rank_;
  const std::vector<std::string> labels_;
  const Settings settings_;
  LogSink log_;
  Submissions* submissions_;
  Control control_;
  World world_;
  std::unique_ptr<Backend> backend_;
  Executor executor_;
  std::unique_ptr<Coordinator> coordinator_;  // rank 0
  Stall stall_;
  Watch watch_;
  Clock::time_point start_ = Clock::now();
  double last_divergence_check_ = 0;
  double last_executed_ = 0;  // kept while this rank has joined

  std::vector<OperationPtr> to_announce_;
  size_t to_announce_bytes_ = 0;
  std::unordered_map<std::string, OperationPtr> pending_;  // announced; by key_of()
  std::map<uint8_t, OperationPtr> joins_;                  // by face
  std::deque<Response> order_;
  uint64_t epoch_ = 0;
  uint64_t executed_ = 0;  // operations of the common order that are behind this rank
  std::unique_ptr<Steady> steady_;
  Guard guard_;
  std::unordered_map<std::string, Request> recent_;  // requests of operations negotiated lately, for schedules
  std::deque<std::pair<uint64_t, std::string>> recent_order_;  // by age; outdated when the stamp is not the newest of its key
  std::unordered_map<std::string, uint64_t> recent_stamp_;
  uint64_t stamps_ = 0;
  std::optional<Frame> early_revoked_;  // arrived before the schedule that it ends was adopted here

  std::string busy_;                             // what is being executed, for messages
  const Schedule::Bucket* in_bucket_ = nullptr;  // likewise
  std::optional<Bye> bye_;
  std::set<int> parted_;  // ranks that have said goodbye or told of the end: their links may close
  std::string last_words_;  // what told of a rank's loss, said again when this one leaves
  bool over_ = false;
  Status told_;  // what callers of unfinished operations were told at the end
  std::atomic<bool> stopping_{false};
  uint64_t turns_ = 0;
  bool timing_ = false;             // this turn
  uint64_t in_collectives_ = 0;     // of it, in ns
  Counters counters_;
};

}  // namespace hvd

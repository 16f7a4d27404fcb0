// The driver: one turn of the engine's work. Whoever holds the engine's baton (its thread, or a caller that waits) calls step(); it never
// runs twice at a time. Order of a turn: take submissions, announce, hear what others say, execute what has been agreed.
//
//                    adopt(): its turn in the common order has come
//   negotiating ----------------------------------------------------> following a schedule
//   to_announce_ -> pending_      run by run_schedule(): a bucket starts when all ranks are ready for it (steady_), which
//   order_ -> execute()           ranks that are alone on their nodes find out by a vote that may carry the data (guard_)
//        ^                                                                |
//        +----------------------------------------------------------------+
//          leave_schedule(): all ranks know its last position and are there
//
//   From either, once, to the end: fail() when a rank is lost, an operation cannot be carried out or all that a goodbye promised is done
//   (farewell_), leave() when this program shuts down. After that a turn only passes on what others say in parting.
//
// driver.cc: turns, announcing, executing; driver_messages.cc: what others say; driver_schedule.cc, driver_guarded.cc: schedules;
// driver_devices.cc: tensors on devices; driver_end.cc: the end; driver_sleep.cc: what to be woken for.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "agree/coordinator.h"
#include "agree/recent.h"
#include "agree/stall.h"
#include "agree/watch.h"
#include "engine/control.h"
#include "engine/device/alone.h"
#include "engine/device/by_hosts.h"
#include "engine/device/by_ipc.h"
#include "engine/device/by_nccl.h"
#include "engine/device/staged.h"
#include "engine/execute.h"
#include "engine/farewell.h"
#include "engine/guard.h"
#include "engine/notes.h"
#include "engine/observers.h"
#include "engine/protocol.h"
#include "engine/steady.h"
#include "engine/submissions.h"
#include "engine/surrender.h"

namespace hvd {

class Driver {
 public:
  Driver(EngineOptions& options, Submissions* submissions, Observers* observers, Notes* notes, const Surrender* surrender);

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
  bool awaits_peers() const { return !farewell_.over() && guard_.under_way(); }

  // The program leaves: says goodbye (with `reason`), fails what is pending and waits briefly until the neighbours have heard it.
  void leave(const std::string& reason);
  // Another thread asks for that; a collective under way gives up.
  void request_stop() { stopping_.store(true, std::memory_order_seq_cst); }

  World& world() { return world_; }
  const Control& control() const { return control_; }
  const Coordinator* coordinator() const { return coordinator_.get(); }  // null but on rank 0

 private:
  bool turn(bool flush);
  Status carry_out(const Response& response, const std::vector<Operation*>& ops);
  Status carry_out(const Schedule::Bucket& bucket, const std::vector<Operation*>& ops, std::vector<OperationPtr>* keep);
  Status hook();
  void hear_urgent();
  bool take_submissions();
  bool announce(bool flush);
  bool hear();
  void send_notes();
  void look_for_stalls();
  void on_frame(const Frame& frame);
  // What a message says to this rank. False: nobody may say that here.
  bool on(int from, Announcement& message);
  bool on(int from, Decisions& message);
  bool on(int from, ReadyUpTo& message);
  bool on(int from, GoUpTo& message);
  bool on(int from, Revoke& message);
  bool on(int from, Revoked& message);
  bool on(int from, Settled& message);
  bool on(int from, StalledKeys& message);
  bool on(int from, NoteUp& message);
  bool on(int from, NoteDown& message);
  bool on(int from, Goodbye& message);
  bool on(int from, Abort& message);
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
  Status launch(const Response& response, const std::vector<Operation*>& ops, std::vector<OperationPtr>* keep);
  enum class Way : uint8_t { by_nccl, by_ipc, by_hosts, staged };
  Status ask_for_way(const Response& response, Comm& comm, const std::shared_ptr<Device>& device, Way* way);
  Status choose_way(const Response& response, Comm& comm, std::vector<OperationPtr> mine);
  bool look_at_devices();
  bool any_in_flight() const { return by_nccl_.in_flight() || by_hosts_.in_flight() || by_ipc_.in_flight(); }
  bool look_at_launched();
  void drain_devices();
  void end_devices(const Status& why);
  double resting_seconds_of_the_host() const;
  void apply_set_change(const Response& response, Operation* op);
  std::vector<Operation*> find(const Response& response, std::vector<OperationPtr>* keep);
  void lost(int rank, const Status& why);
  // Ends the job if somebody outside has said that it is over.
  void surrender();
  // Somebody has left, and all that it took part in is done.
  bool past_goodbye() const;
  bool all_take_part() const;
  // Does this rank take no part in the running schedule? It does not count its operations while it runs.
  bool has_no_part() const;
  void watch();
  // An end for waiting too long, with where it is told what ranks did, if somebody has written that.
  Status with_report(const Status& end) const;
  // Before the job ends for waiting too long: is somebody to find out what ranks do, who was not told before? For a few seconds at most.
  bool awaits_report();
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
  Observers* observers_;
  Notes* notes_;
  const Surrender* surrender_;
  Control control_;
  World world_;
  std::unique_ptr<Backend> backend_;
  Executor executor_;
  Staged staged_;
  NcclCommon nccl_;
  ByNccl by_nccl_;
  ByHosts by_hosts_;
  const bool hosts_first_;  // that way also where NCCL could connect the hosts
  ByIpc by_ipc_;
  Alone alone_;
  std::vector<Staged::Done> launched_, unlaunched_;  // and not told yet; the job ends because of the latter
  std::unique_ptr<Coordinator> coordinator_;  // rank 0
  Stall stall_;
  Watch watch_;
  Clock::time_point start_ = Clock::now();
  double last_divergence_check_ = 0;
  double report_asked_ = 0;
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
  RecentRequests recent_;
  std::optional<Revoked> early_revoked_;  // arrived before the schedule that it ends was adopted here

  std::string busy_;                             // what is being executed, for messages
  const Schedule::Bucket* in_bucket_ = nullptr;  // likewise
  Farewell farewell_;
  std::atomic<bool> stopping_{false};
  uint64_t turns_ = 0;
  bool timing_ = false;             // this turn
  uint64_t in_collectives_ = 0;     // of it, in ns
};

}  // namespace hvd

#include "mpi/session.h"

#include <unistd.h>

#include <memory>

namespace hvd::mpi {
namespace {

// Message tag for the creation of communicators.
constexpr int kTag = 0x4856;
// Seconds between two calls of Session::Look while an MPI call runs.
constexpr double kBetweenLooks = 0.5e-3;

std::atomic<Session*> the_session{nullptr};

Status refuse(std::string why) { return {Code::invalid_argument, std::move(why)}; }

}  // namespace

Session* Session::current() {
  Session* session = the_session.load(std::memory_order_acquire);
  return session && session->pid_ == ::getpid() ? session : nullptr;
}

Status Session::open(const StartOptions& options, Session** out) {
  if (Session* session = current()) {
    *out = session;
    return session->usable();
  }
  const Library* library = nullptr;
  HVD_RETURN_IF_ERROR(load(options.library, &library));
  int begun = 0, ended = 0;
  if (library->initialized(&begun) != 0 || library->finalized(&ended) != 0)
    return refuse(library->path + " cannot tell whether MPI is initialized");
  if (ended) return refuse("the program has called MPI_Finalize, and MPI cannot be initialized again; call hvd.init() before it");
  if (!begun && !fits(options.launcher, library->open_mpi))
    return refuse(options.launcher + " has started this process, but the library is " + library->version +
                  ": the launcher is of another MPI than the library; start the job with the mpirun of " + library->version +
                  ", or choose the launcher's library");
  // Never free the session, because threads might use it when the process exits, and MPI_Finalize calls it.
  auto* session = new Session;
  session->library_ = library;
  session->pid_ = ::getpid();
  Status status = begun ? session->join() : session->begin(options);
  if (status.ok()) {
    if (session->level_ >= Threads::serialized)
      status = session->look_around();
    else
      session->mpi_thread_.run([&] { status = session->look_around(); });
  }
  // Remember a failed initialization, so that a second attempt gets the same error.
  if (!status.ok()) session->spoil(status.message());
  if (begun == 0 || status.ok()) the_session.store(session, std::memory_order_release);
  *out = session;
  return status;
}

Status Session::begin(const StartOptions& options) {
  struct Result {
    int code = 0, level = 0, handler = 0;
  };
  auto result = std::make_shared<Result>();
  const int wanted = abi().levels[static_cast<int>(options.one_thread ? Threads::funneled : Threads::multiple)];
  const bool ended = mpi_thread_.run([result, wanted, library = library_] {
    result->code = library->init_thread(nullptr, nullptr, wanted, &result->level);
    if (result->code == 0) result->handler = library->comm_set_errhandler(library->abi.world, library->abi.errors_return);
  }, options.patience);
  if (!ended) {
    char seconds[32];
    snprintf(seconds, sizeof seconds, "%g", options.patience);
    return Status(Code::timeout, "MPI_Init of " + library_->version + " (" + library_->path + ") has not returned within " + seconds +
                                     " s; it waits for all processes of the job, so perhaps one has not called hvd.init(), has another "
                                     "HOROVOD_CPU_OPERATIONS, or was started by another MPI than this library's");
  }
  if (const std::string message = library_->error(result->code, "MPI_Init_thread"); !message.empty()) return refuse(message);
  ours_ = true;
  level_ = level_of(abi(), result->level);
  const std::string message = library_->error(result->handler, "MPI_Comm_set_errhandler");
  return message.empty() ? Status() : refuse(message);
}

Status Session::join() {
  int level = 0;
  if (const std::string message = library_->error(library_->query_thread(&level), "MPI_Query_thread"); !message.empty())
    return refuse(message);
  level_ = level_of(abi(), level);
  if (level_ >= Threads::serialized) return {};
  return refuse(
      "MPI's thread level must be MPI_THREAD_MULTIPLE, or MPI_THREAD_SERIALIZED if the program calls MPI only while no operation of "
      "Horovod is in flight, got " +
      std::string(name_of(level_)) +
      "; the engine calls MPI from its own thread. Choose the level when the program initializes MPI (mpi4py: "
      "mpi4py.rc.thread_level = 'multiple', its default, before `from mpi4py import MPI`), or let hvd.init() initialize MPI");
}

Status Session::look_around() {
  Handle parent = 0;
  for (const auto& [result, what] : {std::pair(library_->comm_rank(abi().world, &rank_), "MPI_Comm_rank"),
                                     std::pair(library_->comm_size(abi().world, &size_), "MPI_Comm_size"),
                                     std::pair(library_->comm_get_parent(&parent), "MPI_Comm_get_parent")}) {
    if (const std::string message = library_->error(result, what); !message.empty()) return refuse(message);
  }
  if (parent != abi().comm_null)
    return refuse("this process was started by MPI_Comm_spawn, which Horovod does not support; start all processes with mpirun");
  return watch_finalize();
}

// Ask MPI to call finalizing() at the start of MPI_Finalize, so that the engine knows that MPI is ending. MPI_Finalize first deletes the
// attributes of MPI_COMM_SELF, one of which is set here.
Status Session::watch_finalize() {
  int key = 0;
  const CopyAttribute never = [](Handle, int, void*, void*, void*, int* flag) { return *flag = 0; };
  const int made = library_->comm_create_keyval(never, &Session::finalizing, &key, this);
  if (const std::string message = library_->error(made, "MPI_Comm_create_keyval"); !message.empty()) return refuse(message);
  const std::string message = library_->error(library_->comm_set_attr(abi().self, key, this), "MPI_Comm_set_attr");
  return message.empty() ? Status() : refuse(message);
}

int Session::finalizing(Handle, int, void*, void* extra) {
  auto* session = static_cast<Session*>(extra);
  session->over_.store(true, std::memory_order_seq_cst);
  // Wait for the MPI call in progress, which ends soon: usable() now returns an error.
  std::lock_guard wait(session->using_);
  return 0;
}

Status Session::use(const std::function<Status()>& work) {
  std::lock_guard lock(using_);
  HVD_RETURN_IF_ERROR(usable());
  if (level_ >= Threads::serialized) return work();
  Status status;
  mpi_thread_.run([&] { status = work(); });
  return status;
}

Status Session::usable() const {
  if (over_.load(std::memory_order_seq_cst))
    return Status(Code::internal, "the program has called MPI_Finalize, but this job uses MPI; call hvd.shutdown() before it");
  if (spoilt_.load(std::memory_order_acquire)) return Status(Code::internal, "MPI cannot be used in this process any more: " + why_spoilt_);
  return {};
}

void Session::spoil(const std::string& why) {
  if (spoilt_.load(std::memory_order_acquire)) return;
  why_spoilt_ = why;
  spoilt_.store(true, std::memory_order_release);
}

// Run `work` on the MPI thread, whatever MPI's thread level, so that the caller can abandon it. Abandoned work can run forever, so it must
// own what it uses.
Status Session::attended(const std::function<Status()>& work, const Look& look) {
  auto result = std::make_shared<Status>();
  mpi_thread_.begin([work, result] { *result = work(); });
  while (!mpi_thread_.ended(kBetweenLooks)) {
    Status status = usable();
    if (status.ok()) status = look();
    if (status.ok() || mpi_thread_.ended(0)) continue;
    spoil("an earlier job was left while MPI was in a call that cannot be interrupted (" + status.message() + ")");
    return status;
  }
  return *result;
}

Status Session::communicator(const std::vector<int>& ranks, const Look& look, Handle* out) {
  std::lock_guard lock(using_);
  HVD_RETURN_IF_ERROR(usable());
  if (const auto known = communicators_.find(ranks); known != communicators_.end()) {
    *out = known->second;
    return {};
  }
  auto made = std::make_shared<Handle>(0);
  HVD_RETURN_IF_ERROR(attended([this, ranks, made] { return make(ranks, made.get()); }, look));
  communicators_[ranks] = *out = *made;
  return {};
}

Status Session::make(const std::vector<int>& ranks, Handle* out) const {
  const Library& l = *library_;
  Handle all = 0, some = 0;
  int result = 0;
  const char* what = "";
  const auto call = [&](int code, const char* name) {
    result = code;
    what = name;
    return code == 0;
  };
  (void)(call(l.comm_group(abi().world, &all), "MPI_Comm_group") &&
         call(l.group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some), "MPI_Group_incl") &&
         // Do not use MPI_Comm_split: only the given ranks create the communicator, and other ranks of MPI_COMM_WORLD
         // might not be in the job.
         call(l.comm_create_group(abi().world, some, kTag, out), "MPI_Comm_create_group") &&
         call(l.comm_set_errhandler(*out, abi().errors_return), "MPI_Comm_set_errhandler"));
  if (some) (void)l.group_free(&some);
  if (all) (void)l.group_free(&all);
  return result == 0 ? Status() : Status(Code::peer_lost, l.error(result, what));
}

void Session::forget(const std::vector<int>& ranks, const Look& look) {
  std::lock_guard lock(using_);
  const auto known = communicators_.find(ranks);
  if (known == communicators_.end() || !usable().ok()) return;
  const Status freed = attended([library = library_, comm = known->second]() mutable {
    (void)library->comm_free(&comm);
    return Status();
  }, look);
  if (freed.ok()) communicators_.erase(known);
}

bool Session::finish(double seconds) {
  if (finishing_) return mpi_thread_.ended(seconds);
  if (!ours_ || !usable().ok()) return true;
  finishing_ = true;
  return mpi_thread_.run([library = library_] {
    int ended = 0;
    if (library->finalized(&ended) == 0 && !ended) (void)library->finalize();
  }, seconds);
}

}  // namespace hvd::mpi

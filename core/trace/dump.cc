#include "trace/dump.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <span>

#include "base/json.h"
#include "base/thread.h"

namespace hvd {
namespace {

Status failure(const std::string& what, const std::string& path) {
  return Status(Code::invalid_argument, what + " " + path + ": " + std::strerror(errno));
}

// Create all missing folders in a path, accessible only to this user.
void make_folders(const std::string& path) {
  for (size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    ::mkdir(path.substr(0, at).c_str(), 0700);
    if (at == std::string::npos) return;
  }
}

Status write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failure("cannot write", path);
    text.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}

uint64_t unix_ns() {
  timespec t{};
  ::clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

Status open_given(const std::string& folder, int* out) {
  make_folders(folder);
  *out = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return *out < 0 ? failure("cannot create or open the folder", folder) : Status();
}

// Open the folder `name` inside the open folder `parent`, and create it first if it is missing. Store the result of
// fstat in `about`. Return the file descriptor, or -1 with the reason in errno.
int open_folder(int parent, const std::string& name, struct stat* about) {
  ::mkdirat(parent, name.c_str(), 0700);
  const int fd = ::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 || ::fstat(fd, about) == 0) return fd;
  ::close(fd);
  return -1;
}

constexpr mode_t by_others = S_IWGRP | S_IWOTH;

bool is_private(const struct stat& about) { return about.st_uid == ::geteuid() && !(about.st_mode & by_others); }

// True if the status of a folder does not reveal who created it: some file systems show everything, even a new folder, as owned by one user
// or open to all.
bool tells_nothing(const struct stat& found, const struct stat& fresh) {
  return !is_private(fresh) && found.st_uid == fresh.st_uid && !(found.st_mode & ~fresh.st_mode & by_others);
}

// Open the folder `*name` in the open folder `parent`, accessible only to this user. If another user owns it, create a folder beside it
// with an unpredictable name, and return that name in `*name`.
int open_private(int parent, std::string* name) {
  struct stat found{}, made{};
  const int fd = open_folder(parent, *name, &found);
  if (fd >= 0 ? is_private(found) : errno != ELOOP && errno != ENOTDIR && errno != EACCES) return fd;
  uint64_t chance = 0;
  if (::getrandom(&chance, sizeof chance, 0) != static_cast<ssize_t>(sizeof chance)) {
    if (fd >= 0) ::close(fd);
    errno = EPERM;
    return -1;
  }
  const std::string beside = *name + '-' + std::to_string(chance);
  const int fresh = open_folder(parent, beside, &made);
  if (fd >= 0 && fresh >= 0 && tells_nothing(found, made)) {
    ::close(fresh);
    ::unlinkat(parent, beside.c_str(), AT_REMOVEDIR);
    return fd;
  }
  const int error = errno;
  if (fd >= 0) ::close(fd);
  errno = error;
  if (fresh >= 0) *name = beside;
  return fresh;
}

// Open the folder `*folder`, which only this user can write to. If open_private() chooses another name, the whole process uses it from then
// on.
Status open_own(std::string* folder, int* out) {
  static std::mutex mutex;
  static std::map<std::string, std::string> instead;
  const size_t slash = folder->rfind('/');
  if (slash == std::string::npos || slash == 0) return open_given(*folder, out);
  std::string name = folder->substr(slash + 1);
  int parent = -1;
  if (!open_given(folder->substr(0, slash), &parent).ok()) return failure("cannot create or open the folder", *folder);
  {
    const std::lock_guard lock(mutex);
    const auto found = instead.find(*folder);
    if (found != instead.end()) name = found->second;
    const std::string asked = name;
    *out = open_private(parent, &name);
    if (name != asked) instead[*folder] = name;
  }
  const int error = errno;
  ::close(parent);
  errno = error;
  *folder = folder->substr(0, slash + 1) + name;
  return *out < 0 ? failure("cannot create or open the folder", *folder) : Status();
}

}  // namespace

void append_entry(std::string* out, const FlightRecorder::Entry& e, const TickScale::Line& line) {
  *out += '{';
  append_member(out, "number", e.number);
  append_member(out, "what", name_of(e.what));
  append_member(out, "begin", line.ns(e.begin));
  append_member(out, "end", line.ns(e.end));
  append_member(out, "name", e.text());
  append_member(out, "kind", name_of(e.kind));
  append_member(out, "dtype", name_of(e.dtype));
  append_member(out, "op", name_of(e.op));
  append_member(out, "set", e.set);
  append_member(out, "face", e.frontend);
  append_list(out, "shape", std::span(e.shape).first(std::min<size_t>(e.dimensions, e.kShape)));
  append_member(out, "dimensions", e.dimensions);
  append_member(out, "count", e.count);
  append_member(out, "bytes", e.bytes);
  // Write the number as text, because many JSON readers do not support 64-bit numbers.
  append_member(out, "schedule", std::to_string(e.schedule));
  append_member(out, "position", e.position);
  append_member(out, "guarded", e.guarded);
  *out += '}';
}

Status write_into(const std::string& folder, FolderKind kind, const std::string& name, std::string_view text, std::string* path) {
  std::string where = folder;
  int dir = -1;
  HVD_RETURN_IF_ERROR(kind == FolderKind::own ? open_own(&where, &dir) : open_given(where, &dir));
  // Several threads can write at the same time, so number the files: the driver at the end of the job, the thread of the signal watch, and
  // the program's threads.
  static std::atomic<uint64_t> files{0};
  const std::string full = where + '/' + name;
  const std::string fresh = name + ".part" + std::to_string(::getpid()) + '-' + std::to_string(files.fetch_add(1));
  ::unlinkat(dir, fresh.c_str(), 0);
  // Create a new file owned by this user, even in a folder that others can write to.
  const int fd = ::openat(dir, fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  Status status = fd < 0 ? failure("cannot create", full) : write_all(fd, text, full);
  if (fd >= 0) ::close(fd);
  if (status.ok() && ::renameat(dir, fresh.c_str(), dir, name.c_str()) != 0) status = failure("cannot create", full);
  if (!status.ok() && fd >= 0) ::unlinkat(dir, fresh.c_str(), 0);
  ::close(dir);
  if (path) *path = full;
  return status;
}

Dumper::Dumper(std::shared_ptr<FlightRecorder> recorder, int rank, int size, std::string label, std::string folder)
    : recorder_(std::move(recorder)), rank_(rank), size_(size), label_(std::move(label)), folder_(std::move(folder)) {}

Status Dumper::dump(const std::string& folder, std::string_view why, std::string* path) {
  const std::string& where = folder.empty() ? folder_ : folder;
  if (where.empty()) return Status(Code::invalid_argument, "no folder is given for the flight recorder's entries");
  std::string text = "{";
  append_member(&text, "horovod", "recorder");
  append_member(&text, "version", 1);
  append_member(&text, "rank", rank_);
  append_member(&text, "size", size_);
  append_member(&text, "label", label_);
  append_member(&text, "pid", ::getpid());
  append_member(&text, "why", why);
  const TickScale::Line line = recorder_->line();
  append_member(&text, "monotonic_ns", monotonic_ns());
  append_member(&text, "unix_ns", unix_ns());
  text += "}\n";
  for (const FlightRecorder::Entry& entry : recorder_->last(SIZE_MAX)) {
    append_entry(&text, entry, line);
    text += '\n';
  }
  const std::string name = "recorder.rank" + std::to_string(rank_) + ".jsonl";
  return write_into(where, folder.empty() ? FolderKind::own : FolderKind::given, name, text, path);
}

void Dumper::ended(const Status& why) {
  if (why.ok() || why.code() == Code::shutdown || folder_.empty()) return;
  // A rank whose disk is full must still fail with its original error, so ignore errors here.
  if (Status s = dump("", why.message(), nullptr); !s.ok()) return;
}

// ---- Handling of signals --------------------------------------------------------------------------------------------
namespace {

std::atomic<int> signal_event{-1}, signal_process{-1};

void on_signal(int) {
  const int before = errno;
  if (::getpid() == signal_process.load()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(signal_event.load(), &one, sizeof one);
  }
  errno = before;
}

}  // namespace

std::unique_ptr<SignalWatch> SignalWatch::start(int signal, std::function<void()> call) {
  struct sigaction now{};
  if (::sigaction(signal, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) || now.sa_handler != SIG_DFL) return nullptr;
  int none = -1;
  const int event = ::eventfd(0, EFD_CLOEXEC);
  if (event < 0) return nullptr;
  if (!signal_event.compare_exchange_strong(none, event)) {
    ::close(event);
    return nullptr;
  }
  signal_process = ::getpid();
  std::unique_ptr<SignalWatch> watch(new SignalWatch(signal, event, std::move(call)));
  struct sigaction ours{};
  ours.sa_handler = &on_signal;
  ours.sa_flags = SA_RESTART;
  ::sigemptyset(&ours.sa_mask);
  ::sigaction(signal, &ours, nullptr);
  return watch;
}

SignalWatch::SignalWatch(int signal, int event, std::function<void()> call)
    : signal_(signal), event_(event), process_(::getpid()), call_(std::move(call)) {
  thread_ = thread_without_signals([this] { run(); });
}

void SignalWatch::run() {
  pthread_setname_np(pthread_self(), "hvd-signal");
  for (uint64_t times = 0; !stop_.load();) {
    if (::read(event_, &times, sizeof times) == static_cast<ssize_t>(sizeof times) && !stop_.load()) call_();
  }
}

void SignalWatch::give_back() {
  struct sigaction now{};
  // Do not replace a handler that the program has installed since.
  if (::sigaction(signal_, nullptr, &now) == 0 && now.sa_handler == &on_signal) ::signal(signal_, SIG_DFL);
}

SignalWatch::~SignalWatch() {
  give_back();
  stop_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(event_, &one, sizeof one);
  thread_.join();
  signal_event = -1;
  ::close(event_);
}

void SignalWatch::abandon_in_child() {
  give_back();
  signal_event = -1;
  ::close(event_);
}

}  // namespace hvd

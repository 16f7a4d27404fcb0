#include "trace/process_state.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <vector>

#include "base/json.h"
#include "base/ticks.h"

namespace hvd {
namespace {

// Return the content of a /proc file, or "" if it cannot be read.
std::string contents(const std::string& path) {
  std::string out;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return out;
  char piece[4096];
  for (ssize_t n; (n = ::read(fd, piece, sizeof piece)) > 0 && out.size() < (64u << 10);) out.append(piece, static_cast<size_t>(n));
  ::close(fd);
  while (!out.empty() && (out.back() == '\n' || out.back() == '\0')) out.pop_back();
  return out;
}

// Process name and the fields after it in /proc/PID/stat (proc(5)). The name can contain any characters. Field [0] is the state.
struct Stat {
  std::string name;
  std::vector<std::string> fields;
  uint64_t number(size_t index) const { return index < fields.size() ? std::strtoull(fields[index].c_str(), nullptr, 10) : 0; }
  char state() const { return fields.empty() || fields[0].empty() ? '?' : fields[0][0]; }
  uint64_t cpu() const { return number(11) + number(12); }
  uint64_t faults() const { return number(9); }
  uint64_t blocked() const { return number(39); }
};

std::optional<Stat> stat_of(const std::string& folder) {
  const std::string text = contents(folder + "/stat");
  const size_t open = text.find('('), close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return std::nullopt;
  Stat stat{text.substr(open + 1, close - open - 1), {}};
  for (size_t at = close + 1; at < text.size();) {
    const size_t begin = text.find_first_not_of(' ', at);
    if (begin == std::string::npos) break;
    const size_t end = std::min(text.find(' ', begin), text.size());
    stat.fields.push_back(text.substr(begin, end - begin));
    at = end;
  }
  return stat;
}

// Return the number after `name` in /proc/PID/status, as in "Name: 12 kB", or 0 if there is no such line.
uint64_t number_after(const std::string& status, const std::string& name) {
  const size_t at = status.find('\n' + name + ':');
  return at == std::string::npos ? 0 : std::strtoull(status.c_str() + at + name.size() + 2, nullptr, 10);
}

// True for system calls whose first argument is a file descriptor: read, write, pread64, pwrite64, readv, writev,
// recvfrom, recvmsg, sendto, sendmsg, fsync, fdatasync, connect, accept.
bool of_descriptor(long call) {
#if defined(__x86_64__)
  constexpr std::array<long, 14> kCalls{0, 1, 17, 18, 19, 20, 45, 47, 44, 46, 74, 75, 42, 43};
#elif defined(__aarch64__)
  constexpr std::array<long, 14> kCalls{63, 64, 67, 68, 65, 66, 207, 212, 206, 211, 82, 83, 203, 202};
#else
  constexpr std::array<long, 1> kCalls{-1};
#endif
  return std::find(kCalls.begin(), kCalls.end(), call) != kCalls.end() && call >= 0;
}

void append_thread(std::string* out, const std::string& process, int id) {
  const std::string folder = process + "/task/" + std::to_string(id);
  const std::optional<Stat> stat = stat_of(folder);
  if (!stat) return;
  if (out->back() != '[') out->push_back(',');
  *out += '{';
  append_member(out, "id", id);
  append_member(out, "name", stat->name);
  append_member(out, "state", std::string(1, stat->state()));
  append_member(out, "cpu", stat->cpu());
  const std::string wait = contents(folder + "/wchan");
  append_member(out, "wait", wait == "0" ? "" : wait);
  // /proc/PID/syscall holds "running", or the number of a system call, its arguments and two addresses.
  const std::string call = contents(folder + "/syscall");
  char* rest = nullptr;
  const long number = std::strtol(call.c_str(), &rest, 10);
  const bool known = rest != call.c_str();
  std::string file;
  if (known && of_descriptor(number)) {
    const std::string link = process + "/fd/" + std::to_string(std::strtoull(rest, nullptr, 16));
    char target[512];
    const ssize_t n = ::readlink(link.c_str(), target, sizeof target);
    if (n > 0) file.assign(target, static_cast<size_t>(n));
  }
  append_member(out, "call", known ? number : -1);
  append_member(out, "file", file);
  *out += '}';
}

}  // namespace

std::string process_state(int pid, size_t threads) {
  const std::string folder = "/proc/" + std::to_string(pid);
  const std::optional<Stat> stat = stat_of(folder);
  if (!stat) return "";
  const std::string status = contents(folder + "/status");
  std::string out = "{";
  append_member(&out, "pid", pid);
  append_member(&out, "at", monotonic_ns());
  append_member(&out, "tracer", number_after(status, "TracerPid"));
  append_member(&out, "resident_kib", number_after(status, "VmRSS"));
  append_member(&out, "swapped_kib", number_after(status, "VmSwap"));
  append_member(&out, "faults", stat->faults());
  append_member(&out, "blocked", stat->blocked());
  append_name(&out, "threads");
  out += '[';
  append_thread(&out, folder, pid);
  if (DIR* tasks = ::opendir((folder + "/task").c_str())) {
    for (const dirent* entry; threads > 0 && (entry = ::readdir(tasks));) {
      const int id = std::atoi(entry->d_name);
      if (id <= 0 || id == pid) continue;
      append_thread(&out, folder, id);
      --threads;
    }
    ::closedir(tasks);
  }
  return out + "]}";
}

}  // namespace hvd

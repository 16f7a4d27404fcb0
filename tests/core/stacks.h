// The stacks of all threads of this process, for reports of hangs: from gdb if it is installed, else by
// signalling each thread. Threads that block signals, such as the engines', do not answer.
#pragma once
#include <dirent.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace hvd::testing {

struct StackOfThread {
  std::array<void*, 40> frames;
  int count = 0;
  std::atomic<bool> done{false};
};
inline std::atomic<StackOfThread*> wanted_stack{nullptr};

// "function at file:line" if addr2line and debug information are available, else the function.
inline std::string describe_frame(void* address) {
  Dl_info info{};
  if (!dladdr(address, &info) || !info.dli_fname) return "?";
  char command[512], line[512];
  std::string text;
  const auto offset = static_cast<unsigned long>(static_cast<char*>(address) - static_cast<char*>(info.dli_fbase) - 1);
  std::snprintf(command, sizeof command, "addr2line -Cifpe '%s' 0x%lx 2>/dev/null", info.dli_fname, offset);
  if (FILE* out = ::popen(command, "r")) {
    while (std::fgets(line, sizeof line, out)) text += line;  // several lines for inlined functions
    ::pclose(out);
  }
  if (text.empty() || text.front() == '?') text = info.dli_sname ? info.dli_sname : info.dli_fname;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

inline std::string stacks_by_asking() {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  void* warm[2];
  (void)::backtrace(warm, 2);  // the first call allocates, which is forbidden in a handler
  struct sigaction action{}, before{};
  action.sa_handler = [](int) {
    if (StackOfThread* stack = wanted_stack.load()) {
      stack->count = ::backtrace(stack->frames.data(), static_cast<int>(stack->frames.size()));
      stack->done = true;
    }
  };
  ::sigaction(SIGURG, &action, &before);
  std::string text;
  DIR* tasks = ::opendir("/proc/self/task");
  while (const dirent* entry = tasks ? ::readdir(tasks) : nullptr) {
    const long id = std::atol(entry->d_name);
    if (id <= 0) continue;
    std::string name;
    std::getline(std::ifstream("/proc/self/task/" + std::to_string(id) + "/comm") >> std::ws, name);
    text += "thread " + std::to_string(id) + " " + name + "\n";
    static std::vector<std::unique_ptr<StackOfThread>> requests;  // never freed: a thread may answer too late
    StackOfThread* stack = requests.emplace_back(std::make_unique<StackOfThread>()).get();
    wanted_stack = stack;
    ::syscall(SYS_tgkill, ::getpid(), id, SIGURG);
    for (int i = 0; i < 200 && !stack->done; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    wanted_stack = nullptr;
    if (!stack->done) text += "  no answer\n";
    for (int i = 2; stack->done && i < stack->count; ++i) text += "  " + describe_frame(stack->frames[static_cast<size_t>(i)]) + "\n";
  }
  if (tasks) ::closedir(tasks);
  ::sigaction(SIGURG, &before, nullptr);
  return text;
}

inline std::string stacks_by_gdb() {
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  const std::string command = "gdb -p " + std::to_string(::getpid()) + " -batch -nx -ex 'thread apply all backtrace 30' 2>/dev/null";
  std::string text;
  if (FILE* out = ::popen(command.c_str(), "r")) {
    char line[4096];
    while (std::fgets(line, sizeof line, out)) text += line;
    ::pclose(out);
  }
  return text;
}

inline std::string all_stacks() {
  const std::string text = stacks_by_gdb();
  return text.find("#1 ") == std::string::npos ? stacks_by_asking() : text;
}

}  // namespace hvd::testing

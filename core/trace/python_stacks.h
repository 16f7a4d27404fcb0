// Reads Python's stacks without Python. The signal handler of the faulthandler module writes them when it is called
// from any thread. It needs no GIL, which a hung thread may hold forever.
//
// While Python runs, its frames change under the handler, which may then read freed memory and crash the process. So
// use this only if Python does not run (Answerer asks Python first).
#pragma once
#include <mutex>
#include <string>

namespace hvd {

class PythonStacks {
 public:
  // `signal` is a signal for which faulthandler.register(signal, file, all_threads=True) was called, where the file is
  // the memfd `fd`, which is duplicated here. The handler that sigaction(2) returns now is used, and the signal is
  // never sent.
  PythonStacks(int signal, int fd);
  ~PythonStacks();
  PythonStacks(const PythonStacks&) = delete;

  // Return the stacks, or "" if there is no handler or it writes nothing. Callable from any thread.
  std::string take();

 private:
  const int signal_;
  int fd_;
  void (*handler_)(int) = nullptr;
  std::mutex mutex_;
};

}  // namespace hvd

// Python's stacks without Python: the faulthandler module's signal handler writes them when called from any thread,
// without the GIL, which a hung thread may hold forever.
//
// While Python runs, frames change under the handler, which may then read freed memory and crash the process. So use
// this only if Python does not run (Answerer asks Python first).
#pragma once
#include <mutex>
#include <string>

namespace hvd {

class PythonStacks {
 public:
  // `signal`: a signal for which faulthandler.register(signal, file, all_threads=True) was called with `fd`, a memfd
  // that is duplicated here, as its file. Uses the handler that sigaction(2) returns now; the signal is never sent.
  PythonStacks(int signal, int fd);
  ~PythonStacks();
  PythonStacks(const PythonStacks&) = delete;

  // Return the stacks; "" if there is no handler or it writes nothing. Callable from any thread.
  std::string take();

 private:
  const int signal_;
  int fd_;
  void (*handler_)(int) = nullptr;
  std::mutex mutex_;
};

}  // namespace hvd

// Reads Python's stacks without running Python code. It calls the signal handler of the faulthandler module, which
// writes the stacks from any thread. The handler does not need the GIL, which a hung thread can hold forever.
//
// Use this class only when Python is hung: if Python is running, its frames can change under the handler, which can then read freed memory
// and crash the process. The Answerer therefore first asks Python for its stacks, and uses this class only if Python does not respond in
// time.
#pragma once
#include <mutex>
#include <string>

namespace hvd {

class PythonStacks {
 public:
  // `signal` was passed to faulthandler.register(signal, file, all_threads=True), and `fd` is the memfd of that file, which is duplicated.
  // The reader calls the signal's current handler and never sends the signal.
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

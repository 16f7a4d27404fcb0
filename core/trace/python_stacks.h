// Python's stacks without Python: its faulthandler module writes them from whatever thread calls the handler that it has registered for a
// signal, without the interpreter's lock, which somebody may hold for ever.
//
// While Python runs, frames change under the handler, which may then read memory that is gone, and end the process; so it is for when
// Python does not run (Answerer asks Python first).
#pragma once
#include <mutex>
#include <string>

namespace hvd {

class PythonStacks {
 public:
  // `signal`: one for which faulthandler.register(signal, file, all_threads=True) was called, with `fd` (a memfd, of which a copy is kept)
  // as its file. The handler is what sigaction(2) has now; the signal is never sent.
  PythonStacks(int signal, int fd);
  ~PythonStacks();
  PythonStacks(const PythonStacks&) = delete;

  // Any thread. "": there is no handler, or it has nothing to say.
  std::string take();

 private:
  const int signal_;
  int fd_;
  void (*handler_)(int) = nullptr;
  std::mutex mutex_;
};

}  // namespace hvd

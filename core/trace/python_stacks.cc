#include "trace/python_stacks.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

namespace hvd {

PythonStacks::PythonStacks(int signal, int fd) : signal_(signal), fd_(::fcntl(fd, F_DUPFD_CLOEXEC, 3)) {
  struct sigaction action{};
  if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) return;
  if (!(action.sa_flags & SA_SIGINFO)) handler_ = action.sa_handler;
}

PythonStacks::~PythonStacks() {
  if (fd_ >= 0) ::close(fd_);
}

std::string PythonStacks::take() {
  constexpr size_t kMax = 256u << 10;
  std::lock_guard lock(mutex_);
  if (!handler_ || fd_ < 0 || ::ftruncate(fd_, 0) != 0 || ::lseek(fd_, 0, SEEK_SET) != 0) return "";
  handler_(signal_);
  std::string out(kMax, '\0');
  const ssize_t n = ::pread(fd_, out.data(), out.size(), 0);
  out.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return out;
}

}  // namespace hvd

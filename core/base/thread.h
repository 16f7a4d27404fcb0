// Threads of the library's own.
#pragma once
#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace hvd {

// A thread that no signal interrupts: signals are the program's business, not those of the library's threads.
template <class Run>
std::thread thread_without_signals(Run run) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(run));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace hvd

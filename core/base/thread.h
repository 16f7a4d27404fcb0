// Helpers for the threads that the library starts.
#pragma once
#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace hvd {

// Start a thread with all signals blocked, so that the program's own threads receive them.
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

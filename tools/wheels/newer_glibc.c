/* Functions that libstdc++ and its headers need but glibc 2.28 lacks. Part of libc.so in the sysroot, like libc_nonshared.a:
   only the needed ones are linked, as hidden symbols. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

#define OURS __attribute__((visibility("hidden")))

/* glibc 2.32: true if there is one thread, so that atomics are not needed. Always false is correct, too. */
OURS char __libc_single_threaded = 0;

/* glibc 2.36, for std::random_device. getrandom returns four bytes completely or not at all, and succeeds after the system's start. */
OURS uint32_t arc4random(void) {
  uint32_t value;
  while (getrandom(&value, sizeof value, 0) != (ssize_t)sizeof value) {
  }
  return value;
}

static int64_t nanoseconds(struct timespec time) { return time.tv_sec * INT64_C(1000000000) + time.tv_nsec; }

static int64_t now(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return nanoseconds(time);
}

/* glibc 2.30, for a std::condition_variable that waits until a time of the steady clock. Uses the system's function if it exists.
   Otherwise it waits on the system clock, one second at a time, so that setting the clock forward does not end a wait too early.
   Setting it back during a wait prolongs the wait. */
OURS int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const struct timespec* until) {
  typedef int Wait(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
  Wait* system = (Wait*)dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
  if (system != NULL) return system(condition, mutex, clock, until);
  for (;;) {
    const int64_t left = nanoseconds(*until) - now(clock);
    if (left <= 0) return ETIMEDOUT;
    const int64_t end = now(CLOCK_REALTIME) + (left < INT64_C(1000000000) ? left : INT64_C(1000000000));
    const struct timespec slice = {.tv_sec = end / 1000000000, .tv_nsec = end % 1000000000};
    const int ended = pthread_cond_timedwait(condition, mutex, &slice);
    if (ended != ETIMEDOUT) return ended;
  }
}

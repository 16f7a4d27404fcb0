// Bare loop: sums float32 vectors in memory that all processes share, without synchronization. It shows the machine's
// limit. Also the exchange of small messages by plain sockets. Compiled by limit.py when needed.
#include <errno.h>
#include <stddef.h>
#include <sys/socket.h>

enum { BLOCK = 2048 };  // number of floats that stay in the L1 cache between reading and writing

// Replaces elements [first, last) of all vectors by their sum.
void bare_loop(float** vectors, size_t members, size_t first, size_t last) {
  for (size_t at = first; at < last; at += BLOCK) {
    const size_t n = last - at < BLOCK ? last - at : BLOCK;
    if (members == 2) {
      float* restrict a = vectors[0] + at, * restrict b = vectors[1] + at;
      for (size_t i = 0; i < n; ++i) a[i] = b[i] = a[i] + b[i];
      continue;
    }
    float sum[BLOCK];
    for (size_t i = 0; i < n; ++i) sum[i] = vectors[0][at + i];
    for (size_t m = 1; m < members; ++m) {
      for (size_t i = 0; i < n; ++i) sum[i] += vectors[m][at + i];
    }
    for (size_t m = 0; m < members; ++m) {
      for (size_t i = 0; i < n; ++i) vectors[m][at + i] = sum[i];
    }
  }
}

// Barrier of `members` processes. `round` is the number of calls so far by this process, including this one.
void barrier(unsigned long* arrived, unsigned long members, unsigned long round) {
  __atomic_add_fetch(arrived, 1, __ATOMIC_ACQ_REL);
  extern int sched_yield(void);
  while (__atomic_load_n(arrived, __ATOMIC_ACQUIRE) < members * round) sched_yield();
}

// Sends `bytes` to the socket `to` and receives as many from `from`, without sleeping. Returns 0, or -1 if it fails.
int exchange(int to, const char* data, int from, char* target, size_t bytes) {
  size_t sent = 0, received = 0;
  while (sent < bytes || received < bytes) {
    ssize_t n = sent < bytes ? send(to, data + sent, bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
    if (n < 0 && errno != EAGAIN) return -1;
    if (n > 0) sent += (size_t)n;
    if (received == bytes) continue;
    n = recv(from, target + received, bytes - received, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN)) return -1;
    if (n > 0) received += (size_t)n;
  }
  return 0;
}

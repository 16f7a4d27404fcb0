"""Replacements for functions of a newer glibc, compiled here and used as on an older system."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = r"""
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

uint32_t arc4random(void);
int pthread_cond_clockwait(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);

static int asked;
void* dlsym(void* handle, const char* name) {  // an old glibc: it has no such function
  (void)handle, (void)name;
  ++asked;
  return 0;
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static int told;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

static struct timespec after(double seconds) {
  const double end = now() + seconds;
  return (struct timespec){.tv_sec = (time_t)end, .tv_nsec = (long)((end - (time_t)end) * 1e9)};
}

static void* teller(void* nothing) {
  usleep(50000);
  pthread_mutex_lock(&mutex);
  told = 1;
  pthread_cond_signal(&condition);
  pthread_mutex_unlock(&mutex);
  return nothing;
}

int main(void) {
  pthread_mutex_lock(&mutex);
  double begin = now();
  const struct timespec soon = after(1.3), past = after(-1), late = after(30);  // 1.3 s: more than one slice
  assert(pthread_cond_clockwait(&condition, &mutex, CLOCK_MONOTONIC, &soon) == ETIMEDOUT);
  assert(now() - begin >= 1.3);
  assert(pthread_cond_clockwait(&condition, &mutex, CLOCK_MONOTONIC, &past) == ETIMEDOUT);
  pthread_t thread;
  pthread_create(&thread, 0, teller, 0);
  begin = now();
  while (!told) assert(pthread_cond_clockwait(&condition, &mutex, CLOCK_MONOTONIC, &late) == 0);
  assert(now() - begin < 29);
  pthread_mutex_unlock(&mutex);
  pthread_join(thread, 0);
  assert(asked >= 3);
  const uint32_t first = arc4random();
  int same = 1;
  for (int i = 0; i < 4; ++i) same &= arc4random() == first;
  assert(!same);
  return 0;
}
"""


def test_an_old_system_waits_by_the_steady_clock_and_has_random_numbers(tmp_path):
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc)")
    (tmp_path / "program.c").write_text(PROGRAM)
    sources = [tmp_path / "program.c", ROOT / "tools/wheels/newer_glibc.c"]
    flags = ["-Wall", "-Wextra", "-Werror", "-O1", "-pthread", "-fno-builtin"]
    subprocess.run(["cc", *flags, *sources, "-o", tmp_path / "program"], check=True, timeout=60)
    subprocess.run([tmp_path / "program"], check=True, timeout=60)

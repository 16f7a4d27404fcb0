/* First process of a pod: holds its namespaces, reaps orphaned children, and ends on SIGTERM or SIGINT. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int number) {
  (void)number;
  _exit(0);
}

static void reap(int number) {
  (void)number;
  while (waitpid(-1, 0, WNOHANG) > 0) {
  }
}

int main(void) {
  struct sigaction ends = {.sa_handler = end}, reaps = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
  if (sigaction(SIGTERM, &ends, 0) || sigaction(SIGINT, &ends, 0) || sigaction(SIGCHLD, &reaps, 0)) return 1;
  for (;;) pause();
}

// Network with a delay, for kernels without netem: forwards packets between COUNT TUN devices, each DELAY microseconds
// after it arrived. Packets for address 10.0.0.N go to device N (from 1). Prints "ready" when the devices (delay1, delay2
// and so on) exist; they can then be moved to other network namespaces. Ends when stdin is closed.
//
//   cc -O2 -o switch switch.c && ./switch COUNT DELAY
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { kMostDevices = 64, kMostBytes = 9216, kQueue = 2048 };  // limits; kQueue is the maximum number of packets in flight

struct Packet {
  uint64_t due;
  uint16_t to, bytes;
  uint8_t data[kMostBytes];
};

// A FIFO queue is enough because all packets have the same delay.
static struct Packet queue[kQueue];
static uint64_t first, last;
static int devices[kMostDevices];

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int open_device(int number) {
  const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  struct ifreq request;
  memset(&request, 0, sizeof request);
  snprintf(request.ifr_name, sizeof request.ifr_name, "delay%d", number);
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (fd < 0 || ioctl(fd, TUNSETIFF, &request) != 0) {
    fprintf(stderr, "%s: %s\n", request.ifr_name, strerror(errno));
    exit(1);
  }
  return fd;
}

// Reads the packets that a device has sent. Packets are dropped if the queue is full or the address does not exist.
static void take(int device, int count, uint64_t delay_ns) {
  while (last - first < kQueue) {
    struct Packet* p = &queue[last % kQueue];
    const ssize_t n = read(device, p->data, sizeof p->data);
    if (n < 20) {
      if (n < 0) return;
      continue;
    }
    if (p->data[0] >> 4 != 4) continue;  // ignore IPv6
    const int to = p->data[19];
    if (to < 1 || to > count) continue;
    p->due = now_ns() + delay_ns;
    p->to = (uint16_t)(to - 1);
    p->bytes = (uint16_t)n;
    ++last;
  }
}

int main(int argc, char** argv) {
  const int count = argc == 3 ? atoi(argv[1]) : 0;
  const double delay = argc == 3 ? atof(argv[2]) : -1;
  if (count < 1 || count > kMostDevices || delay < 0) {
    fprintf(stderr, "usage: %s COUNT DELAY (1 to %d devices, microseconds)\n", argv[0], kMostDevices);
    return 2;
  }
  const uint64_t delay_ns = (uint64_t)(delay * 1000);
  prctl(PR_SET_TIMERSLACK, 1);
  struct pollfd polls[kMostDevices + 1];
  for (int i = 0; i < count; ++i) {
    devices[i] = open_device(i + 1);
    polls[i] = (struct pollfd){.fd = devices[i], .events = POLLIN};
  }
  polls[count] = (struct pollfd){.fd = 0, .events = POLLIN};
  puts("ready");
  fflush(stdout);
  for (;;) {
    for (; first < last && queue[first % kQueue].due <= now_ns(); ++first) {
      const struct Packet* p = &queue[first % kQueue];
      if (write(devices[p->to], p->data, p->bytes) < 0 && errno != EIO && errno != EAGAIN) return 1;  // EIO: the device is down
    }
    struct timespec wait, *limit = NULL;
    if (first < last) {
      const uint64_t due = queue[first % kQueue].due, now = now_ns(), left = due > now ? due - now : 0;
      wait = (struct timespec){.tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u)};
      limit = &wait;
    }
    if (ppoll(polls, (nfds_t)count + 1, limit, NULL) < 0 && errno != EINTR) return 1;
    char byte;
    if (polls[count].revents && read(0, &byte, 1) <= 0) return 0;
    for (int i = 0; i < count; ++i) {
      if (polls[i].revents) take(devices[i], count, delay_ns);
    }
  }
}

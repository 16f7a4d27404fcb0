// Ethernet switch between TAP devices, whose links have a rate and a delay, for kernels without netem.
//
//     switch MBIT DELAY_US NAME...
//
// Creates a TAP device for each NAME in the current network namespace, prints "ready", and forwards frames until its
// standard input is closed. A frame occupies the sender's and the receiver's link for its bytes divided by the rate
// (0: no limit), and arrives DELAY_US later. A full queue drops frames, as in a real switch. Needs root.

#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PORTS = 64, HEADER = 10 /* struct virtio_net_hdr */, MAX_FRAME = HEADER + 14 + 65536, BURST = 16 };
static const size_t kMaxQueued = 4u << 20;  // bytes that wait for a receiver

typedef struct Frame {
  struct Frame* next;
  uint64_t at;  // time of arrival
  size_t size;
  unsigned char data[];
} Frame;

typedef struct {
  int fd;
  unsigned char address[6];  // source of the last frame
  uint64_t sends_until, receives_until;
  Frame *first, *last;
  size_t queued;
} Port;

static Port ports[MAX_PORTS];
static int count;
static double ns_per_byte;
static uint64_t delay_ns;

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int open_tap(const char* name) {
  struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
  strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
  // Segmentation offload, so that a frame holds up to 64 KiB and the switch needs little CPU time.
  if (fd < 0 || ioctl(fd, TUNSETIFF, &request) || ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)) {
    perror(name);
    exit(1);
  }
  return fd;
}

static void queue(Port* from, Port* to, const unsigned char* data, size_t size) {
  if (to->queued + size > kMaxQueued) return;
  uint64_t t = now(), duration = (uint64_t)((double)(size - HEADER) * ns_per_byte);
  uint64_t begin = from->sends_until > t ? from->sends_until : t;
  from->sends_until = begin + duration;
  if (to->receives_until > begin) begin = to->receives_until;
  to->receives_until = begin + duration;
  Frame* frame = malloc(sizeof *frame + size);
  if (!frame) abort();
  frame->next = NULL;
  frame->at = to->receives_until + delay_ns;
  frame->size = size;
  memcpy(frame->data, data, size);
  if (to->first)
    to->last->next = frame;
  else
    to->first = frame;
  to->last = frame;
  to->queued += size;
}

static void forward(Port* from, const unsigned char* data, size_t size) {
  const unsigned char *to = data + HEADER, *sender = to + 6;
  memcpy(from->address, sender, 6);
  if (!(to[0] & 1))  // not a broadcast
    for (int i = 0; i < count; ++i)
      if (!memcmp(ports[i].address, to, 6)) {
        if (&ports[i] != from) queue(from, &ports[i], data, size);
        return;
      }
  for (int i = 0; i < count; ++i)
    if (&ports[i] != from) queue(from, &ports[i], data, size);
}

// Deliver the frames that are due, and return the time of the next one.
static uint64_t deliver(void) {
  uint64_t t = now(), next = UINT64_MAX;
  for (int i = 0; i < count; ++i) {
    Port* port = &ports[i];
    while (port->first && port->first->at <= t) {
      Frame* frame = port->first;
      if (write(port->fd, frame->data, frame->size) < 0) {
      }  // the interface is down or full: the frame is lost
      port->first = frame->next;
      port->queued -= frame->size;
      free(frame);
    }
    if (port->first && port->first->at < next) next = port->first->at;
  }
  return next;
}

int main(int argc, char** argv) {
  if (argc < 4 || argc - 3 > MAX_PORTS) return 2;
  double mbit = atof(argv[1]);
  ns_per_byte = mbit > 0 ? 8e3 / mbit : 0;
  delay_ns = (uint64_t)(atof(argv[2]) * 1e3);
  struct pollfd watched[MAX_PORTS + 1];
  for (; count < argc - 3; ++count) {
    ports[count].fd = open_tap(argv[3 + count]);
    watched[count] = (struct pollfd){.fd = ports[count].fd, .events = POLLIN};
  }
  watched[count] = (struct pollfd){.fd = 0, .events = POLLIN};
  puts("ready");
  fflush(stdout);
  for (;;) {
    uint64_t next = deliver(), t = now();
    uint64_t wait = next > t ? next - t : 0;
    struct timespec limit = {(time_t)(wait / 1000000000), (long)(wait % 1000000000)};
    if (ppoll(watched, (nfds_t)count + 1, next == UINT64_MAX ? NULL : &limit, NULL) < 0) return 1;
    if (watched[count].revents) return 0;
    for (int i = 0; i < count; ++i)
      for (int k = 0; k < BURST && watched[i].revents; ++k) {
        static unsigned char data[MAX_FRAME];
        ssize_t size = read(ports[i].fd, data, sizeof data);
        if (size <= HEADER + 14) break;
        forward(&ports[i], data, (size_t)size);
      }
  }
}

// How the ranks of a communicator find one another: the thread that serves a unique id waits for all of them,
// compares their records, and answers all at once.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "knobs.h"
#include "shared.h"

namespace simnccl {
namespace {

constexpr int kTick = 5;  // milliseconds between checks whether a rank gave up

struct Answer {
  ncclResult_t result = ncclSuccess;
  char text[240] = {};
};

// An abstract address: a zero byte, then the name.
socklen_t address(const char* name, sockaddr_un* out) {
  *out = {};
  out->sun_family = AF_UNIX;
  std::snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "%s", name);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + std::strlen(name));
}

void send_answer(int to, const Answer& answer, int fd) {
  Answer copy = answer;
  iovec part{&copy, sizeof copy};
  alignas(cmsghdr) char extra[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = extra;
    message.msg_controllen = sizeof extra;
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  static_cast<void>(::sendmsg(to, &message, MSG_NOSIGNAL));
}

bool receive_answer(int from, Answer* answer, int* fd) {
  iovec part{answer, sizeof *answer};
  alignas(cmsghdr) char extra[CMSG_SPACE(sizeof *fd)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = extra;
  message.msg_controllen = sizeof extra;
  if (::recvmsg(from, &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(sizeof *answer)) return false;
  if (const cmsghdr* c = CMSG_FIRSTHDR(&message)) std::memcpy(fd, CMSG_DATA(c), sizeof *fd);
  return true;
}

struct Joined {
  int fd;
  Joining who;
};

Answer refusal(ncclResult_t result, const std::string& text) {
  Answer a;
  a.result = result;
  std::snprintf(a.text, sizeof a.text, "%s", text.c_str());
  return a;
}

// The conflict between `newcomer` and the ranks that have joined; ok if there is none.
Answer compare(const std::vector<Joined>& all, const Joining& newcomer) {
  for (const Joined& j : all) {
    if (j.who.size != newcomer.size) {
      return refusal(ncclInvalidUsage,
                     "ranks disagree about their number: " + std::to_string(j.who.size) + " and " + std::to_string(newcomer.size));
    }
    if (j.who.rank == newcomer.rank) return refusal(ncclInvalidUsage, "two ranks are number " + std::to_string(newcomer.rank));
    if (j.who.version != newcomer.version) {
      return refusal(ncclInvalidUsage, "Mismatched NCCL version detected : rank " + std::to_string(j.who.rank) + " version " +
                                           std::to_string(j.who.version) + " rank " + std::to_string(newcomer.rank) + " version " +
                                           std::to_string(newcomer.version));
    }
  }
  return {};
}

// Detects two ranks on one device of one host, once all have joined.
Answer duplicates(const std::vector<Joined>& all) {
  for (const Joined& a : all) {
    for (const Joined& b : all) {
      if (a.who.rank < b.who.rank && a.who.host == b.who.host && std::strcmp(a.who.uuid, b.who.uuid) == 0) {
        return refusal(ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(a.who.rank) + " and rank " +
                                             std::to_string(b.who.rank) + " both on CUDA device " + a.who.bus);
      }
    }
  }
  return {};
}

// Removes ranks that have gone: the others keep waiting, as with NCCL.
void forget_gone(std::vector<Joined>* all) {
  std::erase_if(*all, [](const Joined& j) {
    pollfd p{j.fd, POLLIN, 0};
    if (::poll(&p, 1, 0) == 0) return false;
    ::close(j.fd);
    return true;
  });
}

void accept_all(int listener) {
  std::vector<Joined> all;
  Answer answer;
  for (;;) {
    pollfd p{listener, POLLIN, 0};
    if (::poll(&p, 1, all.empty() ? -1 : kTick) > 0) {
      const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      Joining who;
      if (fd < 0) continue;
      if (::recv(fd, &who, sizeof who, 0) != static_cast<ssize_t>(sizeof who)) {
        ::close(fd);
        continue;
      }
      if (answer.result == ncclSuccess) answer = compare(all, who);
      all.push_back({fd, who});
    }
    forget_gone(&all);
    if (answer.result != ncclSuccess || (!all.empty() && static_cast<int>(all.size()) == all.front().who.size)) break;
  }
  ::close(listener);  // an id serves one creation
  if (answer.result == ncclSuccess) answer = duplicates(all);
  const int memory = answer.result == ncclSuccess ? ::memfd_create("simnccl", MFD_CLOEXEC) : -1;
  for (const Joined& j : all) {
    send_answer(j.fd, answer, memory);
    ::close(j.fd);
  }
  if (memory >= 0) ::close(memory);
}

// One object for all threads of the process, by the memory's inode, so that race checkers see one address.
std::shared_ptr<Shared> attach(int fd, int size) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const known = new std::map<std::pair<dev_t, ino_t>, std::weak_ptr<Shared>>;
  struct stat s{};
  if (::fstat(fd, &s) != 0) std::abort();
  std::lock_guard lock(*mutex);
  std::weak_ptr<Shared>& entry = (*known)[{s.st_dev, s.st_ino}];
  if (auto there = entry.lock()) {
    ::close(fd);
    return there;
  }
  auto shared = std::make_shared<Shared>(fd, size);
  entry = shared;
  return shared;
}

}  // namespace

ncclResult_t serve(ncclUniqueId* id) {
  std::random_device random;
  *id = {};
  std::snprintf(id->internal, sizeof id->internal, "simnccl-%08x%08x%08x", random(), random(), random());
  // Random bytes follow the name, because ids are bytes and may contain zeros.
  for (size_t i = 48; i < sizeof id->internal; ++i) id->internal[i] = static_cast<char>(random());
  sockaddr_un a;
  const socklen_t length = address(id->internal, &a);
  const int listener = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (listener < 0 || ::bind(listener, reinterpret_cast<sockaddr*>(&a), length) != 0 || ::listen(listener, kMostRanks) != 0) {
    return failed(ncclSystemError, "cannot listen for the ranks of a communicator");
  }
  std::thread(accept_all, listener).detach();
  return ncclSuccess;
}

ncclResult_t join(const ncclUniqueId& id, const Joining& joining, const std::function<bool()>& give_up, std::shared_ptr<Shared>* out) {
  if (std::strncmp(id.internal, "simnccl-", 8) != 0 || std::memchr(id.internal, 0, 48) == nullptr) {
    return failed(ncclInvalidArgument, "this is no unique id");
  }
  sockaddr_un a;
  const socklen_t length = address(id.internal, &a);
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0 || ::connect(fd, reinterpret_cast<sockaddr*>(&a), length) != 0) {
    if (fd >= 0) ::close(fd);
    return failed(ncclSystemError, "nobody listens for the ranks of this communicator: its id has served before, or its maker has ended");
  }
  static_cast<void>(::send(fd, &joining, sizeof joining, MSG_NOSIGNAL));
  pollfd p{fd, POLLIN, 0};
  while (!give_up() && ::poll(&p, 1, kTick) <= 0) continue;
  if (give_up()) {
    ::close(fd);
    return failed(ncclInternalError, "the creation of the communicator was aborted");
  }
  Answer answer;
  int memory = -1;
  const bool received = receive_answer(fd, &answer, &memory);
  ::close(fd);
  if (!received) return failed(ncclRemoteError, "the maker of this communicator's id has ended");
  if (answer.result != ncclSuccess) return failed(answer.result, answer.text);
  *out = attach(memory, joining.size);
  return ncclSuccess;
}

}  // namespace simnccl

#include "trace/timeline_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <initializer_list>
#include <vector>

namespace hvd {
namespace {

constexpr std::string_view kBegin = "[", kEnd = "\n]\n";
constexpr uint64_t kLeastRoom = 64u << 10, kMaxRoom = 4u << 20;

// Write all pieces, usually with one system call. Return 0 or errno.
int write_all(int fd, std::initializer_list<std::string_view> pieces, uint64_t at) {
  std::vector<iovec> left;
  for (std::string_view piece : pieces) {
    if (!piece.empty()) left.push_back({const_cast<char*>(piece.data()), piece.size()});
  }
  for (size_t first = 0; first < left.size();) {
    ssize_t n = ::pwritev(fd, left.data() + first, static_cast<int>(left.size() - first), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : ENOSPC;
    at += static_cast<uint64_t>(n);
    for (; first < left.size() && static_cast<size_t>(n) >= left[first].iov_len; ++first) n -= static_cast<ssize_t>(left[first].iov_len);
    if (first == left.size()) break;
    left[first].iov_base = static_cast<char*>(left[first].iov_base) + n;
    left[first].iov_len -= static_cast<size_t>(n);
  }
  return 0;
}

std::string sentence(const std::string& path, const std::string& what, int error) {
  return path + ": " + what + (error ? std::string(": ") + ::strerror(error) : "");
}

}  // namespace

Status TimelineFile::failed(const char* what, int error) const { return Status(Code::internal, sentence(path_, what, error)); }

Status TimelineFile::open(const std::string& path, std::unique_ptr<TimelineFile>* out, int* error) {
  *error = 0;
  // O_NONBLOCK: do not wait for a reader if the path is a pipe. O_NOFOLLOW: another user could have placed a link there.
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0666);
  if (fd < 0) {
    *error = errno;
    const char* what = errno == ELOOP ? "is a symbolic link, or one of too many leads to it" : "cannot be opened for writing";
    return Status(Code::internal, sentence(path, what, errno == ELOOP ? 0 : *error));
  }
  std::unique_ptr<TimelineFile> file(new TimelineFile(path, fd));
  struct stat about;
  if (::fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
    *error = EINVAL;
    return file->failed("is not a regular file", 0);
  }
  if (about.st_nlink > 1) {
    *error = EMLINK;
    return file->failed("is also the name of another file", 0);
  }
  // Lock the file until close(). Some network file systems do not support locks, so other errors are ignored.
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    *error = EBUSY;
    ::close(std::exchange(file->fd_, -1));
    return Status(Code::internal, sentence(path, "is being written by another process, perhaps of a job with the same file name", 0));
  }
  if (::ftruncate(fd, 0) != 0) {
    *error = errno;
    return file->failed("cannot be emptied", *error);
  }
  file->end_ = kBegin.size();
  *error = write_all(fd, {kBegin, kEnd}, 0);
  if (*error) return file->failed("cannot be written", *error);
  file->size_ = kBegin.size() + kEnd.size();
  *out = std::move(file);
  return {};
}

TimelineFile::~TimelineFile() { close(); }

Status TimelineFile::make_room(uint64_t least) {
  static const std::string blanks(kLeastRoom, ' ');
  const uint64_t until = least + std::clamp(least / 8, kLeastRoom, kMaxRoom);
  while (size_ < until) {
    const size_t n = static_cast<size_t>(std::min<uint64_t>(blanks.size(), until - size_));
    if (const int error = write_all(fd_, {std::string_view(blanks).substr(0, n)}, size_); error) {
      struct stat about;
      if (::fstat(fd_, &about) == 0) size_ = static_cast<uint64_t>(about.st_size);
      return size_ >= least ? Status() : failed("cannot be written any more", error);
    }
    size_ += n;
  }
  return {};
}

Status TimelineFile::append(std::string_view elements) {
  constexpr std::string_view kBetween = ",\n";
  if (fd_ < 0) return failed("is closed", 0);
  if (elements.size() < kBetween.size()) return {};
  elements.remove_suffix(kBetween.size());
  const std::string_view before = any_ ? kBetween : kBetween.substr(1);
  const uint64_t end = end_ + before.size() + elements.size();
  if (end + kEnd.size() > size_) {
    if (Status s = make_room(end + kEnd.size()); !s.ok()) {
      // Give back the space that was reserved before the failure.
      if (::ftruncate(fd_, static_cast<off_t>(end_ + kEnd.size())) == 0) size_ = end_ + kEnd.size();
      return s;
    }
  }
  if (const int error = write_all(fd_, {before, elements, kEnd}, end_); error) {
    // Undo the write, which can fail on copy-on-write file systems even if space was reserved.
    if (::ftruncate(fd_, static_cast<off_t>(end_)) == 0) size_ = end_;
    (void)write_all(fd_, {kEnd}, end_);
    return failed("cannot be written any more", error);
  }
  end_ = end;
  any_ = true;
  return {};
}

void TimelineFile::close() {
  if (fd_ < 0) return;
  const uint64_t whole = end_ + kEnd.size();
  if (size_ > whole && ::ftruncate(fd_, static_cast<off_t>(whole)) == 0) size_ = whole;
  // Forked children share the lock through the inherited descriptor and can outlive this process, so unlock explicitly.
  ::flock(fd_, LOCK_UN);
  ::close(std::exchange(fd_, -1));
}

}  // namespace hvd

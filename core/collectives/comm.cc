#include "collectives/comm.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace hvd {
namespace {

constexpr size_t kAlign = 64;

std::string peer_name(const Comm& comm, int peer) {
  const bool known = static_cast<size_t>(peer) < comm.global_ranks.size();
  return "rank " + std::to_string(known ? comm.global_ranks[peer] : peer);
}

Status no_link(const Comm& comm, int peer) {
  return Status(Code::internal, "no link to " + peer_name(comm, peer));
}

Link* link_to(const Comm& comm, int peer) {
  return peer >= 0 && static_cast<size_t>(peer) < comm.links.size() ? comm.links[peer] : nullptr;
}

// One direction of a transfer: moves what can be moved now and shortens `rest`.
template <class Span, class Move>
Status advance(const Comm& comm, int peer, Span& rest, bool& moved, Move move) {
  Link& link = *comm.links[peer];
  const int64_t n = move(link, rest);
  if (n < 0) return link.error().with(peer_name(comm, peer));
  if (n > 0) {
    rest = rest.subspan(static_cast<size_t>(n));
    moved = true;
  }
  return {};
}

Status advance_out(const Comm& comm, int peer, ConstBytes& out, bool& moved) {
  if (out.empty()) return {};
  return advance(comm, peer, out, moved, [](Link& link, ConstBytes data) { return link.try_send(data); });
}

Status advance_in(const Comm& comm, int peer, Bytes& in, bool& moved) {
  if (in.empty()) return {};
  return advance(comm, peer, in, moved, [](Link& link, Bytes data) { return link.try_recv(data); });
}

// What an exchange waits for, for the message of a timeout. One pointer to it fits into a std::function without an allocation.
struct Pending {
  const Comm& comm;
  int to, from;
  const ConstBytes& out;
  const Bytes& in;

  std::string text() const {
    std::string what;
    if (!in.empty()) what = "data from " + peer_name(comm, from);
    if (!out.empty()) what += (what.empty() ? "" : " and ") + peer_name(comm, to) + " to take data";
    return what;
  }
};

}  // namespace

void Scratch::Free::operator()(std::byte* p) const { ::operator delete(p, std::align_val_t(kAlign)); }

std::byte* Scratch::get(int slot, size_t bytes) {
  if (blocks_.size() <= static_cast<size_t>(slot)) blocks_.resize(slot + 1);
  Block& block = blocks_[slot];
  if (block.bytes < bytes || !block.memory) {
    const size_t size = (std::max<size_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
    block.memory.reset();  // before the new one exists, so that the peak is not the sum of both
    block.memory.reset(static_cast<std::byte*>(::operator new(size, std::align_val_t(kAlign))));
    block.bytes = size;
  }
  return block.memory.get();
}

size_t Scratch::held() const {
  size_t sum = 0;
  for (const Block& block : blocks_) sum += block.bytes;
  return sum;
}

Status send_to(Comm& comm, int peer, ConstBytes data) { return exchange(comm, peer, data, peer, {}); }
Status recv_from(Comm& comm, int peer, Bytes data) { return exchange(comm, peer, {}, peer, data); }

Status exchange(Comm& comm, int to, ConstBytes out, int from, Bytes in) {
  if (!out.empty() && !link_to(comm, to)) return no_link(comm, to);
  if (!in.empty() && !link_to(comm, from)) return no_link(comm, from);
  const Pending pending{comm, to, from, out, in};
  Wait wait(*comm.waiter, comm.timeout, [&pending] { return pending.text(); });
  while (true) {
    bool moved = false;
    HVD_RETURN_IF_ERROR(advance_out(comm, to, out, moved));
    HVD_RETURN_IF_ERROR(advance_in(comm, from, in, moved));
    if (out.empty() && in.empty()) return {};
    if (moved) {
      wait.progress();
    } else {
      HVD_RETURN_IF_ERROR(wait.pause());
    }
  }
}

Status exchange_all(Comm& comm, std::span<Transfer> transfers) {
  for (const Transfer& t : transfers) {
    if ((!t.out.empty() || !t.in.empty()) && !link_to(comm, t.peer)) return no_link(comm, t.peer);
  }
  struct View {
    const Comm& comm;
    std::span<Transfer> transfers;
  } view{comm, transfers};
  Wait wait(*comm.waiter, comm.timeout, [&view] {
    for (const Transfer& t : view.transfers) {
      if (!t.out.empty() || !t.in.empty()) return Pending{view.comm, t.peer, t.peer, t.out, t.in}.text();
    }
    return std::string("data");
  });
  while (true) {
    bool moved = false, done = true;
    for (Transfer& t : transfers) {
      HVD_RETURN_IF_ERROR(advance_out(comm, t.peer, t.out, moved));
      HVD_RETURN_IF_ERROR(advance_in(comm, t.peer, t.in, moved));
      done = done && t.out.empty() && t.in.empty();
    }
    if (done) return {};
    if (moved) {
      wait.progress();
    } else {
      HVD_RETURN_IF_ERROR(wait.pause());
    }
  }
}

namespace {

// Calls f(piece, first element in the piece, elements) for what [first, first + count) covers.
template <class F>
void for_range(std::span<const Segments::Piece> pieces, size_t first, size_t count, F f) {
  for (const Segments::Piece& piece : pieces) {
    if (count == 0) return;
    if (first >= piece.count) {
      first -= piece.count;
      continue;
    }
    const size_t n = std::min(count, piece.count - first);
    f(piece, first, n);
    first = 0;
    count -= n;
  }
}

}  // namespace

void Segments::gather(size_t first, size_t count, size_t element, std::byte* to) const {
  for_range(pieces, first, count, [&](const Piece& piece, size_t at, size_t n) {
    if (piece.in) {
      std::memcpy(to, piece.in + at * element, n * element);
    } else {
      std::memset(to, 0, n * element);
    }
    to += n * element;
  });
}

void Segments::scatter(size_t first, size_t count, size_t element, const std::byte* from) const {
  for_range(pieces, first, count, [&](const Piece& piece, size_t at, size_t n) {
    if (piece.out) std::memcpy(piece.out + at * element, from, n * element);
    from += n * element;
  });
}

}  // namespace hvd

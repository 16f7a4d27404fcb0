#include "collectives/comm.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "collectives/flow.h"

namespace hvd {

int Comm::rank_of(int global) const {
  const auto at = std::find(global_ranks.begin(), global_ranks.end(), global);
  return at == global_ranks.end() ? -1 : static_cast<int>(at - global_ranks.begin());
}
namespace {

constexpr size_t kScratchAlignment = 64;
// Maximum bytes to move in one direction before the other direction gets its turn, so that the data stay in the cache.
constexpr size_t kTurn = 256 << 10;

Status no_link(const Comm& comm, int peer) { return Status(Code::internal, "no link to " + peer_name(comm, peer)); }

Link* link_to(const Comm& comm, int peer) {
  return peer >= 0 && static_cast<size_t>(peer) < comm.links.size() ? comm.links[peer] : nullptr;
}

template <class Span>
Status took(const Comm& comm, int peer, int64_t n, Span& rest, bool& moved) {
  if (n < 0) {
    const Status& why = comm.links[peer]->error();
    const bool known = static_cast<size_t>(peer) < comm.global_ranks.size() && why.code() == Code::peer_lost;
    const char* what = why.code() == Code::peer_lost ? " was lost: " : ": ";
    return Status(why.code(), peer_name(comm, peer) + what + why.message(), known ? comm.global_ranks[peer] : why.rank());
  }
  if (n > 0) {
    rest = rest.subspan(static_cast<size_t>(n));
    moved = true;
  }
  return {};
}

}  // namespace

std::string peer_name(const Comm& comm, int peer) {
  if (peer >= 0 && static_cast<size_t>(peer) < comm.labels.size()) return comm.labels[peer];
  const bool known = peer >= 0 && static_cast<size_t>(peer) < comm.global_ranks.size();
  return "rank " + std::to_string(known ? comm.global_ranks[peer] : peer);
}

std::string pending_text(const Comm& comm, int to, bool sending, int from, bool receiving) {
  std::string what;
  if (receiving) what = "data from " + peer_name(comm, from);
  if (sending) what += (receiving ? " and " : "") + peer_name(comm, to) + " to take data";
  return what;
}

Status advance_out(const Comm& comm, int peer, ConstBytes& out, bool& moved) {
  if (out.empty()) return {};
  if (!link_to(comm, peer)) return no_link(comm, peer);
  const size_t before = out.size();
  HVD_RETURN_IF_ERROR(took(comm, peer, comm.links[peer]->try_send(out.first(std::min(out.size(), kTurn))), out, moved));
  if (comm.traffic && out.size() < before) comm.traffic->add(before - out.size());
  return {};
}

Status advance_in(const Comm& comm, int peer, Bytes& in, bool& moved) {
  if (in.empty()) return {};
  if (!link_to(comm, peer)) return no_link(comm, peer);
  return took(comm, peer, comm.links[peer]->try_recv(in.first(std::min(in.size(), kTurn))), in, moved);
}

bool over_sockets(const Comm& comm) {
  return std::any_of(comm.links.begin(), comm.links.end(), [](const Link* link) { return link && link->fd() >= 0 && !link->in_memory(); });
}

void Scratch::Free::operator()(std::byte* p) const { ::operator delete(p, std::align_val_t(kScratchAlignment)); }

std::byte* Scratch::get(int slot, size_t bytes) {
  if (blocks_.size() <= static_cast<size_t>(slot)) blocks_.resize(slot + 1);
  Block& block = blocks_[slot];
  if (block.bytes < bytes || !block.memory) {
    const size_t size = (std::max<size_t>(bytes, 1) + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
    // Free the old block first, so that the two never exist at the same time.
    block.memory.reset();
    block.memory.reset(static_cast<std::byte*>(::operator new(size, std::align_val_t(kScratchAlignment))));
    held_ += size - block.bytes;
    block.bytes = size;
  }
  return block.memory.get();
}

Status send_to(Comm& comm, int peer, ConstBytes data) { return exchange(comm, peer, data, peer, {}); }
Status recv_from(Comm& comm, int peer, Bytes data) { return exchange(comm, peer, {}, peer, data); }

Status exchange(Comm& comm, int to, ConstBytes out, int from, Bytes in) {
  auto text = [&] { return pending_text(comm, to, !out.empty(), from, !in.empty()); };
  return pump(comm, text, [&](bool& moved, bool& done) -> Status {
    HVD_RETURN_IF_ERROR(advance_out(comm, to, out, moved));
    HVD_RETURN_IF_ERROR(advance_in(comm, from, in, moved));
    done = out.empty() && in.empty();
    return {};
  });
}

Status exchange_all(Comm& comm, std::span<Transfer> transfers) {
  auto text = [&] {
    for (const Transfer& t : transfers) {
      if (!t.out.empty() || !t.in.empty()) return pending_text(comm, t.peer, !t.out.empty(), t.peer, !t.in.empty());
    }
    return std::string("data");
  };
  return pump(comm, text, [&](bool& moved, bool& done) -> Status {
    done = true;
    for (Transfer& t : transfers) {
      HVD_RETURN_IF_ERROR(advance_out(comm, t.peer, t.out, moved));
      HVD_RETURN_IF_ERROR(advance_in(comm, t.peer, t.in, moved));
      done = done && t.out.empty() && t.in.empty();
    }
    return {};
  });
}

namespace {

// Call f(piece, first element in the piece, elements) for the pieces of [first, first + count).
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

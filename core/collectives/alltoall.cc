// All-to-all over shared memory. A sub-buffer has a region for each receiver. In each round, every rank fills its regions and empties the
// regions meant for it. To send and receive m bytes, one of n ranks reads and writes m bytes of user memory, and reads m (n - 1) / n bytes
// of other ranks' staging areas. A rank knows only its own sizes, so a header before the first round holds the sizes of all ranks. From
// it, all ranks compute the same number of rounds and check that the sent and expected sizes match.
#include <cstring>
#include <numeric>

#include "collectives/collectives.h"
#include "collectives/flow.h"
#include "collectives/shm.h"

namespace hvd {

namespace {

uint64_t header_word(const NodeGroup::Stage& stage, int member, size_t i) {
  uint64_t word;
  memcpy(&word, stage.staging[member] + i * sizeof word, sizeof word);
  return word;
}

// Write this rank's header. Word 0 is the largest number of bytes for any other rank. Word 1 + i is the number of bytes
// for rank i.
void write_header(const NodeGroup::Stage& stage, int me, std::span<const size_t> send_bytes) {
  uint64_t largest = 0;
  for (size_t i = 0; i < send_bytes.size(); ++i) {
    const uint64_t size = send_bytes[i];
    if (static_cast<int>(i) != me) largest = std::max(largest, size);
    memcpy(stage.staging[me] + (1 + i) * sizeof size, &size, sizeof size);
  }
  memcpy(stage.staging[me], &largest, sizeof largest);
}

Status read_headers(const Comm& comm, const NodeGroup::Stage& stage, std::span<const size_t> recv_bytes, uint64_t* largest) {
  *largest = 0;
  for (int m = 0; m < comm.size; ++m) {
    *largest = std::max(*largest, header_word(stage, m, 0));
    const uint64_t sent = header_word(stage, m, 1 + comm.rank);
    if (sent == recv_bytes[m]) continue;
    const bool known = static_cast<size_t>(m) < comm.global_ranks.size();
    return Status(Code::mismatch, "alltoall: rank " + std::to_string(known ? comm.global_ranks[m] : m) + " sends " + std::to_string(sent) +
                                      " bytes to this rank, which expects " + std::to_string(recv_bytes[m]));
  }
  return {};
}

}  // namespace

Status alltoall_shm(Comm& comm, const std::byte* in, std::span<const size_t> send_bytes, std::byte* out,
                    std::span<const size_t> recv_bytes) {
  const size_t members = comm.size, me = comm.rank;
  if (send_bytes.size() != members || recv_bytes.size() != members) {
    return Status(Code::invalid_argument, "send_bytes and recv_bytes must have one entry per member (" + std::to_string(members) +
                                              "), got " + std::to_string(send_bytes.size()) + " and " + std::to_string(recv_bytes.size()));
  }
  if (send_bytes[me] != recv_bytes[me]) {
    return Status(Code::mismatch, "alltoall: " + std::to_string(send_bytes[me]) + " bytes for this rank itself, which expects " +
                                      std::to_string(recv_bytes[me]));
  }
  const size_t mine_in = std::accumulate(send_bytes.begin(), send_bytes.begin() + me, size_t{0});
  const size_t mine_out = std::accumulate(recv_bytes.begin(), recv_bytes.begin() + me, size_t{0});
  const size_t all = std::accumulate(recv_bytes.begin(), recv_bytes.end(), size_t{0});
  copy_bytes(out + mine_out, in + mine_in, send_bytes[me], all >= comm.tuning.stream_bytes);
  if (members == 1) return {};

  NodeGroup& node = *comm.node;
  NodeGroup::Stage stage;
  HVD_RETURN_IF_ERROR(node.begin(&stage));
  const SubBuffers subs(stage, kDepth, round_up((1 + members) * sizeof(uint64_t), kLine));
  HVD_RETURN_IF_ERROR(subs.check(members));
  const size_t step = round_down(std::min(subs.bytes / members, comm.tuning.chunk_bytes), kLine);
  auto part = [&](size_t bytes, size_t k) { return bytes > k * step ? std::min(step, bytes - k * step) : 0; };

  auto stage_in = [&](size_t k) {
    const std::byte* from = in;
    for (size_t m = 0; m < members; from += send_bytes[m], ++m) {
      const size_t some = m == me ? 0 : part(send_bytes[m], k);
      if (some > 0) copy_bytes(subs.at(node.me(), k) + m * step, from + k * step, some, false);
    }
  };
  auto take_out = [&](size_t k) -> Status {
    std::byte* to = out + mine_out + recv_bytes[me];
    for (size_t i = 1; i < members; ++i) {
      const size_t m = (me + i) % members;
      if (m == 0) to = out;
      HVD_RETURN_IF_ERROR(node.await(static_cast<int>(m), k + 1));
      copy_bytes(to + k * step, subs.at(static_cast<int>(m), k) + me * step, part(recv_bytes[m], k), all >= comm.tuning.stream_bytes);
      to += recv_bytes[m];
    }
    return {};
  };
  write_header(stage, node.me(), send_bytes);
  stage_in(0);
  node.publish();
  HVD_RETURN_IF_ERROR(node.await_all(1));
  uint64_t largest = 0;
  HVD_RETURN_IF_ERROR(read_headers(comm, stage, recv_bytes, &largest));
  return run_rounds(node, ceil_div(largest, step), 1, stage_in, take_out);
}

// Pairwise all-to-all: every rank sends directly to every other rank, to several peers at a time (collectives/flow.h).
// A slow pair does not delay the other pairs in its window.
//
// Cost for P ranks and N bytes (alpha-beta-gamma model of plan/cost.h): (P-1) * alpha + (P-1)/P * N * beta. The latencies (alpha) overlap
// within a window of peers. Source: the pairwise exchange in R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective
// Communication Operations in MPICH", IJHPCA 19(1), 2005. The symmetric rounds are the circle method for tournaments.

Status alltoall_pairwise(Comm& comm, const std::byte* in, std::span<const size_t> send_bytes, std::byte* out,
                         std::span<const size_t> recv_bytes) {
  const size_t n = static_cast<size_t>(comm.size);
  auto* from = reinterpret_cast<size_t*>(comm.scratch->get(kSlotOffsets, 2 * n * sizeof(size_t)));
  size_t* to = from + n;
  for (size_t i = 0, sent = 0, received = 0; i < n; sent += send_bytes[i], received += recv_bytes[i], ++i) {
    from[i] = sent;
    to[i] = received;
  }
  const size_t me = static_cast<size_t>(comm.rank);
  if (send_bytes[me] != recv_bytes[me]) {
    return Status(Code::internal, "alltoall: " + peer_name(comm, comm.rank) + " sends itself " + std::to_string(send_bytes[me]) +
                                      " bytes and expects " + std::to_string(recv_bytes[me]));
  }
  if (send_bytes[me] > 0) std::memcpy(out + to[me], in + from[me], send_bytes[me]);
  return with_every_peer(comm, [&](int peer) {
    return Transfer{peer, ConstBytes(in + from[peer], send_bytes[peer]), Bytes(out + to[peer], recv_bytes[peer])};
  });
}

}  // namespace hvd

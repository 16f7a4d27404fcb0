// Whole engines: sums of averaged or scaled integers, and contributions of joined ranks to other reductions.
#include <doctest/doctest.h>

#include <limits>

#include "everywhere.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

// Near the end of the range, and a little more on each rank.
template <class T>
T large(int rank) {
  return static_cast<T>(std::numeric_limits<T>::max() - 20 + rank);
}

template <class T>
void averages(Program& p, DType d) {
  const auto n = static_cast<int64_t>(p.size);
  const T want = static_cast<T>(large<T>(0) + (n - 1) / 2);
  struct Pending {
    TaskPtr task;
    size_t count;
    const char* what;
  };
  std::vector<Pending> pending;
  for (const size_t count : {size_t{1}, size_t{100}, size_t{300'001}}) {
    Request q = Program::request(Kind::allreduce, std::string(name_of(d)) + std::to_string(count), {static_cast<int64_t>(count)}, d);
    q.op = ReduceOp::average;
    pending.push_back({p.submit(q, Program::bytes_of(std::vector<T>(count, large<T>(p.rank)))), count, "average"});
    q.name += "scaled";
    q.op = ReduceOp::sum;
    q.prescale = 4;
    q.postscale = 0.25 / static_cast<double>(p.size);
    if (count < 1000 && sizeof(T) < 8 && (p.size & (p.size - 1)) == 0)
      pending.push_back({p.submit(std::move(q), Program::bytes_of(std::vector<T>(count, large<T>(p.rank)))), count, "scaled sum"});
  }
  for (const Pending& a : pending) {
    p.wait(*a.task);
    p.equal(a.task->template at<T>(0), want, std::string("first of ") + a.what);
    p.equal(a.task->template at<T>(a.count - 1), want, std::string("last of ") + a.what);
  }
  // Rows for n ranks, and one more.
  Request q = Program::request(Kind::reducescatter, std::string(name_of(d)) + "part", {n + 1, 3}, d);
  q.op = ReduceOp::average;
  TaskPtr part = p.submit(std::move(q), Program::bytes_of(std::vector<T>(static_cast<size_t>(3 * (n + 1)), large<T>(p.rank))));
  p.wait(*part);
  for (size_t i = 0; i < 3; ++i) p.equal(part->template at<T>(i), want, "reducescatter's average");
}

template <class T>
void without_rank_0(Program& p, DType d, ReduceOp op, T value, T want) {
  if (p.rank == 0) {
    p.last_joined();
    return;
  }
  Request q = Program::request(Kind::allreduce, std::string(name_of(d)) + std::string(name_of(op)), {33}, d);
  q.op = op;
  TaskPtr t = p.submit(std::move(q), Program::bytes_of(std::vector<T>(33, value)));
  p.wait(*t);
  p.equal(t->template at<T>(0), want, "first element");
  p.equal(t->template at<T>(32), want, "last element");
  p.last_joined();
}

}  // namespace

TEST_CASE("averages and scaled sums of integers fit wherever their values do") {
  everywhere([](Program& p) {
    for (int step = 0; step < 4; ++step) {  // the later ones follow a schedule
      averages<uint8_t>(p, DType::uint8);
      averages<int8_t>(p, DType::int8);
      averages<uint16_t>(p, DType::uint16);
      averages<int16_t>(p, DType::int16);
      averages<int32_t>(p, DType::int32);
      averages<int64_t>(p, DType::int64);
    }
  });
}

TEST_CASE("a rank that has joined changes no minimum, maximum or product") {
  for (Layout layout : kLayouts) {
    CAPTURE(name_of(layout));
    check_ranks(3, {layout, crowded()}, [](Program& p) {
      without_rank_0<float>(p, DType::float32, ReduceOp::max, -5, -5);
      without_rank_0<float>(p, DType::float32, ReduceOp::min, 5, 5);
      without_rank_0<float>(p, DType::float32, ReduceOp::product, 3, 9);
      without_rank_0<double>(p, DType::float64, ReduceOp::max, -5, -5);
      without_rank_0<uint16_t>(p, DType::float16, ReduceOp::min, 0x4000, 0x4000);
      without_rank_0<uint16_t>(p, DType::float16, ReduceOp::max, 0xc000, 0xc000);
      without_rank_0<uint16_t>(p, DType::bfloat16, ReduceOp::product, 0x4000, 0x4080);
      without_rank_0<int8_t>(p, DType::int8, ReduceOp::max, -5, -5);
      without_rank_0<uint8_t>(p, DType::uint8, ReduceOp::min, 200, 200);
      without_rank_0<int64_t>(p, DType::int64, ReduceOp::product, -3, 9);
      without_rank_0<uint8_t>(p, DType::boolean, ReduceOp::product, 1, 1);
      without_rank_0<uint8_t>(p, DType::boolean, ReduceOp::max, 0, 0);
    });
  }
}

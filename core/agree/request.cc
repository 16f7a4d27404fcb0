#include "agree/request.h"

#include <algorithm>
#include <functional>

#include "base/wire.h"

namespace hvd {

const char* name_of(Kind kind) {
  static const char* const names[] = {"allreduce", "allgather", "broadcast",       "alltoall",           "reducescatter",
                                      "barrier",   "join",      "add_process_set", "remove_process_set", "adopt_schedule"};
  return names[static_cast<size_t>(kind)];
}

std::string unnamed_prefix(Kind kind) { return std::string(name_of(kind)) + ".noname."; }

int64_t Request::elements() const {
  // Check for zero dimensions first, so that the product cannot overflow.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

bool Request::same_signature(const Request& o) const {
  return kind == o.kind && set == o.set && frontend == o.frontend && unnamed == o.unnamed && (unnamed || name == o.name) &&
         dtype == o.dtype && op == o.op && wire == o.wire && device == o.device && across_hosts == o.across_hosts && root == o.root &&
         prescale == o.prescale && postscale == o.postscale && shape == o.shape && splits == o.splits && group_size == o.group_size &&
         (unnamed || group == o.group);
}

uint64_t Request::signature_hash() const {
  uint64_t h = 0x9e3779b97f4a7c15ull;
  auto mix = [&h](uint64_t v) {
    h ^= v + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2);
    h *= 0xff51afd7ed558ccdull;
    h ^= h >> 32;
  };
  mix(static_cast<uint64_t>(kind));
  mix(set);
  mix(static_cast<uint64_t>(across_hosts) << 40 | static_cast<uint64_t>(device) << 32 | static_cast<uint64_t>(frontend) << 24 |
      static_cast<uint64_t>(wire) << 16 | static_cast<uint64_t>(dtype) << 8 | static_cast<uint64_t>(op));
  mix(static_cast<uint64_t>(root) << 32 | group_size);
  mix(std::hash<double>{}(prescale));
  mix(std::hash<double>{}(postscale));
  for (int64_t d : shape) mix(static_cast<uint64_t>(d));
  for (int64_t s : splits) mix(static_cast<uint64_t>(s));
  if (!unnamed) mix(std::hash<std::string>{}(name));
  return h;
}

Request request_like(const Response& r) {
  Request q;
  q.kind = r.kind;
  q.set = r.set;
  q.frontend = r.frontend;
  q.dtype = r.dtype;
  q.op = r.op;
  q.wire = r.wire;
  q.device = r.device;
  q.across_hosts = r.across_hosts;
  q.root = r.root;
  q.prescale = r.prescale;
  q.postscale = r.postscale;
  return q;
}

std::string shape_string(const std::vector<int64_t>& shape) {
  std::string s = "[";
  for (size_t i = 0; i < shape.size(); ++i) s += (i ? ", " : "") + std::to_string(shape[i]);
  return s + "]";
}

namespace {

void put(Writer& w, const Request& r) {
  w.put(r.kind);
  w.put(r.set);
  w.put(r.frontend);
  w.put(r.name);
  w.put(r.unnamed);
  w.put(r.dtype);
  w.put(r.op);
  w.put(r.wire);
  w.put(r.device);
  w.put(r.across_hosts);
  w.put(r.root);
  w.put(r.prescale);
  w.put(r.postscale);
  w.put(r.shape);
  w.put(r.splits);
  w.put(r.group);
  w.put(r.group_size);
  w.put(r.fence);
}

// True if no dimension is negative and the tensor fits into the address space. Products of the dimensions then cannot
// overflow.
bool possible(const std::vector<int64_t>& shape) {
  constexpr int64_t kMaxElements = int64_t{1} << 58;
  if (std::any_of(shape.begin(), shape.end(), [](int64_t d) { return d < 0; })) return false;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return true;
  int64_t n = 1;
  for (int64_t d : shape) {
    if (__builtin_mul_overflow(n, d, &n) || n > kMaxElements) return false;
  }
  return true;
}

void get(Reader& r, Request* q) {
  r.get(&q->kind, Kind::remove_set);
  r.get(&q->set);
  r.get(&q->frontend);
  r.get(&q->name);
  r.get(&q->unnamed);
  r.get(&q->dtype, DType::bfloat16);
  r.get(&q->op, kLastReduceOp);
  r.get(&q->wire, WireFormat::int8);
  r.get(&q->device, DeviceKind::cuda);
  r.get(&q->across_hosts);
  r.get(&q->root);
  r.get(&q->prescale);
  r.get(&q->postscale);
  r.get(&q->shape);
  if (!possible(q->shape)) r.fail();
  r.get(&q->splits);
  r.get(&q->group);
  r.get(&q->group_size);
  r.get(&q->fence);
}

void put(Writer& w, const Response& r) {
  w.put(r.kind);
  w.put(r.set);
  w.put(r.frontend);
  w.put(r.dtype);
  w.put(r.op);
  w.put(r.wire);
  w.put(r.device);
  w.put(r.across_hosts);
  w.put(r.partial);
  w.put(r.root);
  w.put(r.prescale);
  w.put(r.postscale);
  w.put(r.names);
  w.put(static_cast<uint32_t>(r.shapes.size()));
  for (const auto& s : r.shapes) w.put(s);
  w.put(r.sizes);
  w.put(r.error.code());
  w.put(r.error.message());
  w.put(r.payload);
}

void get(Reader& r, Response* p) {
  r.get(&p->kind, Kind::adopt_schedule);
  r.get(&p->set);
  r.get(&p->frontend);
  r.get(&p->dtype, DType::bfloat16);
  r.get(&p->op, kLastReduceOp);
  r.get(&p->wire, WireFormat::int8);
  r.get(&p->device, DeviceKind::cuda);
  r.get(&p->across_hosts);
  r.get(&p->partial);
  r.get(&p->root);
  r.get(&p->prescale);
  r.get(&p->postscale);
  r.get(&p->names);
  p->shapes.resize(r.count(sizeof(uint32_t)));
  for (auto& s : p->shapes) {
    r.get(&s);
    if (!possible(s)) r.fail();
  }
  if (p->names.size() != p->shapes.size()) r.fail();
  r.get(&p->sizes);
  Code code = Code::ok;
  std::string message;
  r.get(&code, Code::internal);
  r.get(&message);
  if (code != Code::ok) p->error = Status(code, std::move(message));
  r.get(&p->payload);
}

// Minimum size in bytes of an encoded request or response.
constexpr size_t kLeastBytes = 48;

template <class T>
void encode_all(const std::vector<T>& items, std::string* out) {
  Writer w(out);
  w.put(static_cast<uint32_t>(items.size()));
  for (const T& item : items) put(w, item);
}

template <class T>
bool decode_all(const char** at, const char* end, std::vector<T>* out) {
  Reader r(*at, end);
  const uint32_t n = r.count(kLeastBytes);
  out->resize(n);
  for (auto& item : *out) {
    if (!r.ok()) break;
    get(r, &item);
  }
  if (r.ok()) *at = r.at();
  return r.ok();
}

}  // namespace

void encode(const std::vector<Request>& requests, std::string* out) { encode_all(requests, out); }
void encode(const std::vector<Response>& responses, std::string* out) { encode_all(responses, out); }
bool decode(const char** at, const char* end, std::vector<Request>* out) { return decode_all(at, end, out); }
bool decode(const char** at, const char* end, std::vector<Response>* out) { return decode_all(at, end, out); }

}  // namespace hvd

// Python interface to the planning functions of the core: algorithms, the rules that choose between them, predicted
// costs, and fusion. horovod.benchmark and horovod.planner use these functions. No engine is needed.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "agree/fuse.h"
#include "glue.h"
#include "plan/algorithms.h"
#include "plan/cost.h"

namespace hvd::python {
namespace {

[[noreturn]] void refuse(const std::string& text) { throw nb::value_error(text.c_str()); }

Collective collective_of(const std::string& name) {
  std::string accepted;
  for (int c = 0; c < kCollectiveCount; ++c) {
    const auto collective = static_cast<Collective>(c);
    if (name_of(collective) == name) return collective;
    accepted.append(accepted.empty() ? "" : ", ").append(name_of(collective));
  }
  refuse("collective must be one of " + accepted + ", got '" + name + "'");
}

Algorithm algorithm_of(Collective collective, const std::string& name) {
  std::string accepted;
  for (Algorithm algorithm : algorithms_of(collective)) {
    if (name_of(algorithm) == name) return algorithm;
    accepted.append(accepted.empty() ? "" : ", ").append(name_of(algorithm));
  }
  refuse("algorithm of " + std::string(name_of(collective)) + " must be one of " + accepted + ", got '" + name + "'");
}

WorldShape world_of(const std::vector<int>& node_of) {
  Topology topology;
  check(Topology::make(0, node_of, &topology));
  return WorldShape::of(topology);
}

constexpr std::pair<const char*, double CostModel::*> kParameters[] = {{"alpha", &CostModel::alpha},
                                                                       {"beta", &CostModel::beta},
                                                                       {"gamma", &CostModel::gamma},
                                                                       {"local_alpha", &CostModel::local_alpha},
                                                                       {"local_beta", &CostModel::local_beta}};

CostModel model_of(const std::map<std::string, double>& values) {
  CostModel model;
  for (const auto& [name, value] : values) {
    bool known = false;
    for (const auto& [parameter, member] : kParameters) {
      if (name != parameter) continue;
      known = true;
      model.*member = value;
    }
    if (!known) refuse("names in model must be alpha, beta, gamma, local_alpha or local_beta, got '" + name + "'");
    // The condition is negated, so that it also rejects NaN.
    if (!(value >= 0)) refuse("model: " + name + " must be 0 or more seconds, got " + std::to_string(value));
  }
  return model;
}

std::string order_name(Order order) {
  switch (order) {
    case Order::the_order: return "fixed";
    case Order::by_host: return "by host";
    case Order::by_slice: return "by slice";
    default: return "";
  }
}

DType dtype_of(int code) {
  if (code < 0 || code >= kDTypeCount) {
    refuse("dtype must be 0 to " + std::to_string(kDTypeCount - 1) + ", got " + std::to_string(code));
  }
  return static_cast<DType>(code);
}

}  // namespace

void define_plan(nb::module_& m) {
  using namespace nb::literals;
  m.def("algorithms", [](const std::string& collective) {
    std::vector<std::string> names;
    for (Algorithm a : algorithms_of(collective_of(collective))) names.emplace_back(name_of(a));
    return names;
  }, "collective"_a);
  m.def("runs_in", [](const std::string& collective, const std::string& algorithm, const std::vector<int>& node_of) {
    return runs_in(algorithm_of(collective_of(collective), algorithm), world_of(node_of));
  }, "collective"_a, "algorithm"_a, "node_of"_a);
  m.def("choose_algorithm",
        [](const std::string& collective, int dtype, size_t bytes, const std::vector<int>& node_of, const std::string& override_text,
           const std::string& tuning_text) {
    const DType type = dtype_of(dtype);
    Overrides overrides;
    check(Overrides::parse(override_text, &overrides));
    Tuning tuning;
    check(Tuning::parse(tuning_text, &tuning));
    const WorldShape world = world_of(node_of);
    return std::string(name_of(select(collective_of(collective), type, bytes, world, overrides, tuning)));
  },
        "collective"_a, "dtype"_a, "bytes"_a, "node_of"_a, "override"_a = "", "tuning"_a = "");
  m.def("tuning", [](const std::string& text) {
    Tuning tuning;
    check(Tuning::parse(text, &tuning));
    std::map<std::string, size_t> values;
    for (const TuningField& field : tuning_fields()) values[std::string(field.name)] = tuning.*field.value;
    return values;
  }, "text"_a = "");
  m.def("addition_order", [](const std::string& collective, const std::string& algorithm) {
    const Collective c = collective_of(collective);
    return order_name(order_of(c, algorithm_of(c, algorithm)));
  }, "collective"_a, "algorithm"_a);
  m.def("cost_formula", [](const std::string& collective, const std::string& algorithm) {
    const Collective c = collective_of(collective);
    return std::string(cost_of(c, algorithm_of(c, algorithm))->formula);
  }, "collective"_a, "algorithm"_a);
  m.def("cost_model", [] {
    std::map<std::string, double> values;
    for (const auto& [parameter, member] : kParameters) values[parameter] = CostModel().*member;
    return values;
  });
  m.def("predict",
        [](const std::string& collective, const std::string& algorithm, size_t bytes, const std::vector<int>& node_of,
           const std::map<std::string, double>& model) {
    const Collective c = collective_of(collective);
    return predict(c, algorithm_of(c, algorithm), world_of(node_of), bytes, model_of(model));
  },
        "collective"_a, "algorithm"_a, "bytes"_a, "node_of"_a, "model"_a = std::map<std::string, double>());
  m.def("fuse", [](const std::vector<size_t>& bytes, const std::vector<int>& dtypes, size_t threshold) {
    if (dtypes.size() != bytes.size()) {
      refuse("dtypes must have one value for each of the " + std::to_string(bytes.size()) + " bytes, got " + std::to_string(dtypes.size()));
    }
    std::vector<Ready> ready(bytes.size());
    for (size_t i = 0; i < bytes.size(); ++i) {
      ready[i].bytes = bytes[i];
      ready[i].response.dtype = dtype_of(dtypes[i]);
      ready[i].response.names = {std::string()};
      ready[i].response.shapes = {{}};
    }
    std::vector<std::vector<size_t>> members;
    fuse(std::move(ready), FuseOptions{threshold}, &members);
    return members;
  }, "bytes"_a, "dtypes"_a, "threshold"_a);
}

}  // namespace hvd::python

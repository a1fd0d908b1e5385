// SPDX-License-Identifier: BSD-3-Clause
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>
#include <utility>

#include "all_algorithms.h"
#include "base/error.h"

#include "import/import.h"
#include "profiler/check.h"
#include "provider/cuda_device.h"
#include "python/module.h"

namespace py = pybind11;

namespace torchalgo {
namespace {

// The CUDA that the driver and the loaded runtime have, 13000 each.
std::pair<int, int> cuda_versions() {
  const CudaRuntime& runtime = cuda_runtime();
  int driver = 0, loaded = 0;
  check_cuda(runtime, runtime.get_driver_version(&driver), "cudaDriverGetVersion");
  check_cuda(runtime, runtime.get_runtime_version(&loaded), "cudaRuntimeGetVersion");
  return {driver, loaded};
}

at::Tensor run_primitive(const std::string& text, const Primitive& primitive, std::uint64_t seed,
                         const std::optional<Device>& device) {
  const Problem problem = parse_problem(text);
  const Algorithm* const algorithm = find_algorithm(all_algorithms(), primitive.name);
  TORCHALGO_CHECK(algorithm != nullptr, "TA4004 run_primitive: no algorithm has the name '{}'",
                  primitive.name);
  const Sample sample = make_sample(problem, seed, torch_device(device.value_or(Device())));
  return run_once(*algorithm, problem, primitive, sample);
}

}  // namespace

void bind_cuda(py::module_& m) {
  m.def(
      "cuda_device", [](int index) { return cuda_device(index); }, py::arg("index") = 0);
  m.def("cuda_versions", &cuda_versions);
  m.def("keep_fake_cuda_guard", &keep_fake_cuda_guard);
  m.def("run_primitive", &run_primitive, py::arg("problem"), py::arg("primitive"),
        py::arg("seed") = 0, py::arg("device") = py::none(),
        py::call_guard<py::gil_scoped_release>());
  m.def("with_tf32_convolutions",
        [](const ImportedGraph& imported) { return with_tf32_convolutions(imported); });
}

}  // namespace torchalgo

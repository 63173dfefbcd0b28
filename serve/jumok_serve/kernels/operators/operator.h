// Makes an ONNX Runtime operator of a C++ class, and gives its kernel tensors.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "runtime/ort_api.h"

namespace jumok {

constexpr int kMaxAxes = 4;

// Input or output of an operator.
struct Argument {
  ort::Type type;
  ort::Presence presence = ort::Presence::kRequired;
};

// A contiguous tensor, or an absent optional one. An empty tensor may have no data.
struct Tensor {
  bool present = false;
  void* data = nullptr;
  int64_t sizes[kMaxAxes] = {};
  size_t axes = 0;

  explicit operator bool() const { return present; }
  template <typename Element>
  Element* as() const {
    return static_cast<Element*>(data);
  }
  int64_t count() const {
    int64_t product = 1;
    for (size_t axis = 0; axis < axes; ++axis) product *= sizes[axis];
    return product;
  }
};

// Reads a value's shape and data, and checks its type; returns the first error, or null.
inline ort::Status* read(const ort::Api& api, const ort::Value* value, ort::Type type, Tensor& tensor) {
  ort::Shape* shape = nullptr;
  if (ort::Status* status = api.GetShape(value, &shape)) return status;
  ort::Type found{};
  ort::Status* status = api.GetType(shape, &found);
  if (status == nullptr && found != type)
    status = api.CreateStatus(ort::Code::kInvalidArgument, "a tensor has a type that the operator does not take");
  if (status == nullptr) status = api.GetAxes(shape, &tensor.axes);
  if (status == nullptr && tensor.axes > kMaxAxes) {
    tensor.axes = 0;
    status = api.CreateStatus(ort::Code::kInvalidArgument, "a tensor has too many axes");
  }
  if (status == nullptr) status = api.GetSizes(shape, tensor.sizes, tensor.axes);
  if (status == nullptr) status = api.GetData(const_cast<ort::Value*>(value), &tensor.data);
  api.ReleaseShape(shape);
  tensor.present = status == nullptr;
  return status;
}

// One call of a kernel; keeps the first error, after which nothing may be computed: tensors may lack data then.
class Call {
 public:
  Call(const ort::Api& api, ort::KernelContext* context, const std::vector<Argument>& inputs,
       const std::vector<Argument>& outputs)
      : api_(api), context_(context), inputs_(inputs), outputs_(outputs) {}

  // Fails the call if a required input is absent, or an input has another type.
  Tensor input(size_t index) {
    Tensor tensor;
    const ort::Value* value = nullptr;
    if (!ok(api_.GetInput(context_, index, &value))) return tensor;
    if (value != nullptr)
      ok(read(api_, value, inputs_[index].type, tensor));
    else if (inputs_[index].presence == ort::Presence::kRequired)
      fail("a required input is missing");
    return tensor;
  }

  // Fails the call if a required output has no name.
  Tensor output(size_t index, const int64_t* sizes, size_t axes) {
    Tensor tensor;
    ort::Value* value = nullptr;
    if (!ok(api_.GetOutput(context_, index, sizes, axes, &value))) return tensor;
    if (value == nullptr) {
      if (outputs_[index].presence == ort::Presence::kRequired) fail("a required output is missing");
      return tensor;
    }
    tensor.present = ok(api_.GetData(value, &tensor.data));
    std::copy(sizes, sizes + axes, tensor.sizes);
    tensor.axes = axes;
    return tensor;
  }

  Tensor output(size_t index, std::initializer_list<int64_t> sizes) {
    return output(index, sizes.begin(), sizes.size());
  }

  // Calls `part(first, last)` for parts of 0 .. count-1, on several threads if there is enough work. An exception fails
  // the call: it must not reach ONNX Runtime's threads, nor unwind while other parts run.
  template <typename Part>
  void parallel_for(int64_t count, int64_t work, Part part) {
    const int64_t parts = std::min({count, work / kMinWorkPerPart, kMaxParts});
    if (parts <= 1) {
      part(0, count);
      return;
    }
    struct Parallel {
      Part* part;
      int64_t count, parts;
      std::atomic<bool> failed;
    } parallel{&part, count, parts, {false}};
    ok(api_.ParallelFor(
        context_,
        [](void* data, size_t index) {
          auto& all = *static_cast<Parallel*>(data);
          const int64_t i = static_cast<int64_t>(index);
          try {
            (*all.part)(i* all.count / all.parts, (i + 1) * all.count / all.parts);
          } catch (...) {
            all.failed = true;
          }
        },
        static_cast<size_t>(parts), &parallel));
    if (parallel.failed) fail("a kernel ran out of memory");
  }

  void fail(const char* message) {
    if (status_ == nullptr) status_ = api_.CreateStatus(ort::Code::kInvalidArgument, message);
  }
  bool failed() const { return status_ != nullptr; }
  ort::Status* status() const { return status_; }

 private:
  static constexpr int64_t kMinWorkPerPart = 1 << 14;  // in floats read: some microseconds
  static constexpr int64_t kMaxParts = 16;

  bool ok(ort::Status* status) {
    if (status_ == nullptr) status_ = status;
    return status == nullptr;
  }

  const ort::Api& api_;
  ort::KernelContext* context_;
  const std::vector<Argument>&inputs_, &outputs_;
  ort::Status* status_ = nullptr;
};

// Attributes and constant inputs of a node.
class Settings {
 public:
  Settings(const ort::Api& api, const ort::KernelInfo* info, const std::vector<Argument>& inputs)
      : api_(api), info_(info), inputs_(inputs) {}

  template <typename Number>
  Number get(const char* name) {
    Number value{};
    ort::Status* status = api_.GetAttribute(info_, name, &value);
    keep(status);
    return value;
  }

  // An attribute that graphs of older bundles lack.
  int64_t get_or(const char* name, int64_t otherwise) {
    int64_t value = otherwise;
    if (ort::Status* status = api_.GetAttribute(info_, name, &value)) {
      api_.ReleaseStatus(status);
      return otherwise;
    }
    return value;
  }

  Tensor constant(size_t index) {
    Tensor tensor;
    int constant = 0;
    const ort::Value* value = nullptr;
    if (!keep(api_.GetConstant(info_, index, &constant, &value))) return tensor;
    if (constant == 0 || value == nullptr)
      fail("weights, scales, zero points and biases have to be constant");
    else
      keep(read(api_, value, inputs_[index].type, tensor));
    return tensor;
  }

  // Scale and zero point of quantized values.
  template <typename Quantization>
  Quantization quantization(size_t scale, size_t zero_point) {
    const Tensor one = constant(scale), zero = constant(zero_point);
    if (!failed() && (one.count() != 1 || zero.count() != 1)) fail("a scale and a zero point have one value each");
    if (!failed() && !(*one.as<float>() > 0 && std::isfinite(*one.as<float>())))
      fail("a scale must be positive and finite");
    return failed() ? Quantization{} : Quantization{*one.as<float>(), *zero.as<uint8_t>()};
  }

  void fail(const char* message) {
    if (status_ == nullptr) status_ = api_.CreateStatus(ort::Code::kInvalidArgument, message);
  }
  bool failed() const { return status_ != nullptr; }
  ort::Status* status() const { return status_; }

 private:
  bool keep(ort::Status* status) {
    if (status_ == nullptr) status_ = status;
    return status == nullptr;
  }

  const ort::Api& api_;
  const ort::KernelInfo* info_;
  const std::vector<Argument>& inputs_;
  ort::Status* status_ = nullptr;
};

// An operator whose kernel is made by `Kernel(Settings&)` and computes by `kernel.compute(Call&)`.
template <typename Kernel>
class Operator : public ort::CustomOp {
 public:
  Operator(std::string name, std::vector<Argument> inputs, std::vector<Argument> outputs)
      : CustomOp{}, name_(std::move(name)), inputs_(std::move(inputs)), outputs_(std::move(outputs)) {
    version = ort::kStructVersion;
    GetName = [](const CustomOp* op) { return self(op).name_.c_str(); };
    GetExecutionProviderType = [](const CustomOp*) -> const char* { return nullptr; };  // the CPU
    GetInputType = [](const CustomOp* op, size_t index) { return self(op).inputs_[index].type; };
    GetInputTypeCount = [](const CustomOp* op) { return self(op).inputs_.size(); };
    GetOutputType = [](const CustomOp* op, size_t index) { return self(op).outputs_[index].type; };
    GetOutputTypeCount = [](const CustomOp* op) { return self(op).outputs_.size(); };
    GetInputCharacteristic = [](const CustomOp* op, size_t index) { return self(op).inputs_[index].presence; };
    GetOutputCharacteristic = [](const CustomOp* op, size_t index) { return self(op).outputs_[index].presence; };
    GetInputMemoryType = [](const CustomOp*, size_t) { return 0; };
    GetVariadicInputMinArity = GetVariadicOutputMinArity = [](const CustomOp*) { return 1; };
    GetVariadicInputHomogeneity = GetVariadicOutputHomogeneity = [](const CustomOp*) { return 1; };
    GetStartVersion = [](const CustomOp*) { return 1; };
    GetEndVersion = [](const CustomOp*) { return 1; };
    CreateKernelV2 = [](const CustomOp* op, const ort::Api* api, const ort::KernelInfo* info, void** kernel) {
      Settings settings(*api, info, self(op).inputs_);
      try {
        auto* made = new Node{*api, self(op), Kernel(settings)};
        if (settings.failed())
          delete made;
        else
          *kernel = made;
      } catch (const std::exception& error) {
        settings.fail(error.what());
      }
      return settings.status();
    };
    KernelComputeV2 = [](void* kernel, ort::KernelContext* context) {
      const auto& node = *static_cast<Node*>(kernel);
      Call call(node.api, context, node.op.inputs_, node.op.outputs_);
      try {
        node.kernel.compute(call);
      } catch (const std::exception& error) {  // must not leave the library; most likely memory ran out
        call.fail(error.what());
      }
      return call.status();
    };
    KernelDestroy = [](void* kernel) { delete static_cast<Node*>(kernel); };
  }

 private:
  struct Node {
    const ort::Api& api;
    const Operator& op;
    Kernel kernel;
  };

  static const Operator& self(const CustomOp* op) { return *static_cast<const Operator*>(op); }

  std::string name_;
  std::vector<Argument> inputs_, outputs_;
};

}  // namespace jumok

// The part of ONNX Runtime's C API that kernels use; ONNX Runtime's Python packages lack its header.
//
// The API is a table of functions whose released entries never move. So the positions below hold for all versions since
// `kVersion`, 1.23. They are those of OrtApi and OrtCustomOp in
// https://github.com/microsoft/onnxruntime/blob/main/include/onnxruntime/core/session/onnxruntime_c_api.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ort {

constexpr uint32_t kVersion = 23;        // of the API
constexpr uint32_t kStructVersion = 20;  // of the structures below, which lack later fields

struct Status;
struct Env;
struct MemoryInfo;
struct SessionOptions;
struct CustomOpDomain;
struct KernelInfo;
struct KernelContext;
struct Value;
struct Shape;
struct CustomOp;

enum class Type : int { kFloat = 1, kUint8 = 2, kInt8 = 3, kInt32 = 6, kInt64 = 7, kBool = 9, kHalf = 10 };
enum class Presence : int { kRequired = 0, kOptional = 1 };
enum class Code : int { kInvalidArgument = 2 };

// Reserve allocates memory that lasts as long as a session.
struct Allocator {
  uint32_t version;
  void* (*Alloc)(Allocator*, size_t);
  void (*Free)(Allocator*, void*);
  const MemoryInfo* (*Info)(const Allocator*);
  void* (*Reserve)(Allocator*, size_t);
};

// A null Status means success.
class Api {
 public:
  Status* CreateStatus(Code code, const char* message) const {
    return At<Status* (*)(Code, const char*)>(0)(code, message);
  }
  // The environment of the process, counted by references. Logs warnings and errors.
  Status* CreateEnv(const char* name, Env** environment) const {
    return At<Status* (*)(int, const char*, Env**)>(3)(2, name, environment);
  }
  Status* CreateDomain(const char* name, CustomOpDomain** domain) const {
    return At<Status* (*)(const char*, CustomOpDomain**)>(26)(name, domain);
  }
  Status* AddToDomain(CustomOpDomain* domain, const CustomOp* op) const {
    return At<Status* (*)(CustomOpDomain*, const CustomOp*)>(27)(domain, op);
  }
  Status* AddDomain(SessionOptions* options, CustomOpDomain* domain) const {
    return At<Status* (*)(SessionOptions*, CustomOpDomain*)>(28)(options, domain);
  }
  Status* GetData(Value* value, void** data) const { return At<Status* (*)(Value*, void**)>(51)(value, data); }
  Status* GetType(const Shape* shape, Type* type) const {
    return At<Status* (*)(const Shape*, Type*)>(60)(shape, type);
  }
  Status* GetAxes(const Shape* shape, size_t* axes) const {
    return At<Status* (*)(const Shape*, size_t*)>(61)(shape, axes);
  }
  Status* GetSizes(const Shape* shape, int64_t* sizes, size_t axes) const {
    return At<Status* (*)(const Shape*, int64_t*, size_t)>(62)(shape, sizes, axes);
  }
  Status* GetShape(const Value* value, Shape** shape) const {
    return At<Status* (*)(const Value*, Shape**)>(65)(value, shape);
  }
  // For an allocator other than ONNX Runtime's own arena.
  Status* CreateCpuMemoryInfo(MemoryInfo** info) const {
    return At<Status* (*)(int, int, MemoryInfo**)>(69)(0, 0, info);
  }
  Status* GetAttribute(const KernelInfo* info, const char* name, float* value) const {
    return At<Status* (*)(const KernelInfo*, const char*, float*)>(85)(info, name, value);
  }
  Status* GetAttribute(const KernelInfo* info, const char* name, int64_t* value) const {
    return At<Status* (*)(const KernelInfo*, const char*, int64_t*)>(86)(info, name, value);
  }
  Status* GetInput(const KernelContext* context, size_t index, const Value** value) const {
    return At<Status* (*)(const KernelContext*, size_t, const Value**)>(90)(context, index, value);
  }
  Status* GetOutput(KernelContext* context, size_t index, const int64_t* sizes, size_t axes, Value** value) const {
    return At<Status* (*)(KernelContext*, size_t, const int64_t*, size_t, Value**)>(91)(context, index, sizes, axes,
                                                                                        value);
  }
  void ReleaseEnv(Env* environment) const { At<void (*)(Env*)>(92)(environment); }
  void ReleaseStatus(Status* status) const { At<void (*)(Status*)>(93)(status); }
  void ReleaseShape(Shape* shape) const { At<void (*)(Shape*)>(99)(shape); }
  Status* RegisterAllocator(Env* environment, Allocator* allocator) const {
    return At<Status* (*)(Env*, Allocator*)>(176)(environment, allocator);
  }
  // `constant` is 1 and `value` lives as long as the kernel, or `constant` is 0.
  Status* GetConstant(const KernelInfo* info, size_t index, int* constant, const Value** value) const {
    return At<Status* (*)(const KernelInfo*, size_t, int*, const Value**)>(249)(info, index, constant, value);
  }
  // Calls `part(data, i)` for i = 0 .. parts-1 on the session's threads.
  Status* ParallelFor(const KernelContext* context, void (*part)(void*, size_t), size_t parts, void* data) const {
    return At<Status* (*)(const KernelContext*, void (*)(void*, size_t), size_t, size_t, void*)>(274)(context, part,
                                                                                                      parts, 0, data);
  }

 private:
  template <typename Function>
  Function At(size_t position) const {
    return reinterpret_cast<Function>(reinterpret_cast<void* const*>(this)[position]);
  }
};

struct ApiBase {
  const Api* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

struct CustomOp {
  uint32_t version;
  void* (*CreateKernel)(const CustomOp*, const Api*, const KernelInfo*);
  const char* (*GetName)(const CustomOp*);
  const char* (*GetExecutionProviderType)(const CustomOp*);
  Type (*GetInputType)(const CustomOp*, size_t);
  size_t (*GetInputTypeCount)(const CustomOp*);
  Type (*GetOutputType)(const CustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const CustomOp*);
  void (*KernelCompute)(void*, KernelContext*);
  void (*KernelDestroy)(void*);
  Presence (*GetInputCharacteristic)(const CustomOp*, size_t);
  Presence (*GetOutputCharacteristic)(const CustomOp*, size_t);
  int (*GetInputMemoryType)(const CustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const CustomOp*);
  int (*GetVariadicInputHomogeneity)(const CustomOp*);
  int (*GetVariadicOutputMinArity)(const CustomOp*);
  int (*GetVariadicOutputHomogeneity)(const CustomOp*);
  Status* (*CreateKernelV2)(const CustomOp*, const Api*, const KernelInfo*, void**);
  Status* (*KernelComputeV2)(void*, KernelContext*);
  Status* (*InferOutputShape)(const CustomOp*, void*);
  int (*GetStartVersion)(const CustomOp*);
  int (*GetEndVersion)(const CustomOp*);
  size_t (*GetMayInplace)(int**, int**);
  void (*ReleaseMayInplace)(int*, int*);
  size_t (*GetAliasMap)(int**, int**);
  void (*ReleaseAliasMap)(int*, int*);
};

}  // namespace ort

// Entry point of the library: registers the operators of the domain `jumok`, and the allocator.
#include "operators/register.h"

#include <mutex>
#include <vector>

#include "isa/row.h"
#include "runtime/allocator.h"
#include "runtime/ort_api.h"

// Called by SessionOptions.register_custom_ops_library.
extern "C" __attribute__((visibility("default"))) ort::Status* RegisterCustomOps(ort::SessionOptions* options,
                                                                                 const ort::ApiBase* base) {
  static std::mutex mutex;
  static ort::CustomOpDomain* domain = nullptr;  // never freed, as sessions may live until the end of the process
  const ort::Api* api = base->GetApi(ort::kVersion);
  if (api == nullptr)
    return base->GetApi(1)->CreateStatus(ort::Code::kInvalidArgument, "ONNX Runtime is older than 1.23");
  if (jumok::row_kernels() == nullptr)
    return api->CreateStatus(ort::Code::kInvalidArgument,
                             "this processor has neither AVX2 with FMA and F16C nor, if it is an ARM, dot products");
  const std::lock_guard<std::mutex> lock(mutex);
  if (domain == nullptr) {
    ort::CustomOpDomain* made = nullptr;
    if (ort::Status* status = api->CreateDomain("jumok", &made)) return status;
    std::vector<const ort::CustomOp*> operators;
    jumok::add_attention(operators);
    jumok::add_embedding(operators);
    jumok::add_kv_entries(operators);
    jumok::add_layer_norm(operators);
    jumok::add_listed_logits(operators);
    jumok::add_listed_product(operators);
    jumok::add_matmul(operators);
    jumok::add_select(operators);
    jumok::add_ssru(operators);
    for (const ort::CustomOp* op : operators)
      if (ort::Status* status = api->AddToDomain(made, op)) return status;
    if (ort::Status* status = jumok::register_allocator(*api)) return status;
    domain = made;
  }
  return api->AddDomain(options, domain);
}

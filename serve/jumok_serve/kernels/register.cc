// The library's entry: gives ONNX Runtime the operators of the domain `jumok`, and memory to compute in.
#include <mutex>
#include <vector>

#include "allocator.h"
#include "attention.h"
#include "embedding.h"
#include "entries.h"
#include "norm.h"
#include "ort.h"
#include "product.h"
#include "rows.h"
#include "select.h"

// What SessionOptions.register_custom_ops_library calls.
extern "C" __attribute__((visibility("default"))) ort::Status* RegisterCustomOps(ort::SessionOptions* options,
                                                                                  const ort::ApiBase* base) {
  static std::mutex mutex;
  static ort::CustomOpDomain* domain = nullptr;  // lives as long as the process, as sessions may
  const ort::Api* api = base->GetApi(ort::kVersion);
  if (api == nullptr)
    return base->GetApi(1)->CreateStatus(ort::Code::kInvalidArgument, "ONNX Runtime is older than 1.23");
  if (jumok::rows() == nullptr)
    return api->CreateStatus(ort::Code::kInvalidArgument, "this processor has no AVX2, FMA and F16C");
  const std::lock_guard<std::mutex> lock(mutex);
  if (domain == nullptr) {
    ort::CustomOpDomain* made = nullptr;
    if (ort::Status* status = api->CreateDomain("jumok", &made)) return status;
    std::vector<const ort::CustomOp*> operators;
    jumok::add_attention(operators);
    jumok::add_embedding(operators);
    jumok::add_entries(operators);
    jumok::add_norm(operators);
    jumok::add_products(operators);
    jumok::add_select(operators);
    for (const ort::CustomOp* op : operators)
      if (ort::Status* status = api->AddToDomain(made, op)) return status;
    if (ort::Status* status = jumok::register_allocator(*api)) return status;
    domain = made;
  }
  return api->AddDomain(options, domain);
}

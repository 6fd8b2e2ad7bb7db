// An accelerator that is none: its tensors live in host memory, and every kernel is the CPU's. Mixing its tensors with
// CPU tensors is refused as CUDA refuses it, and its collective operations take no CPU tensors, as NCCL takes none.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/extension.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace {

using at::IntArrayRef;
using at::Tensor;
constexpr auto TYPE = c10::DeviceType::PrivateUse1;
const c10::Device DEVICE(TYPE, 0);

// 1. One device with one stream. Copies to the host that are not waited for happen when an event or the stream is.

std::mutex unfinished_copies_mutex;
std::vector<std::pair<Tensor, Tensor>> unfinished_copies;  // target on the host, and a snapshot of the source

void finish_copies() {
  const std::lock_guard<std::mutex> lock(unfinished_copies_mutex);
  at::AutoDispatchBelowADInplaceOrView guard;
  for (auto& [target, snapshot] : unfinished_copies) target.copy_(snapshot);
  unfinished_copies.clear();
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = TYPE;
  c10::DeviceType type() const override { return TYPE; }
  c10::Device exchangeDevice(c10::Device) const override { return DEVICE; }
  c10::Device getDevice() const override { return DEVICE; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, DEVICE); }
  c10::Stream getNewStream(c10::Device, int) const override { return c10::Stream(c10::Stream::DEFAULT, DEVICE); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return false; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return false; }
  void synchronizeStream(const c10::Stream&) const override { finish_copies(); }
  void synchronizeEvent(void*) const override { finish_copies(); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

void release(void* memory) { std::free(memory); }

struct HostAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = bytes ? std::aligned_alloc(64, (bytes + 63) / 64 * 64) : nullptr;
    return {memory, memory, &release, DEVICE};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};
HostAllocator allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto fresh = allocator.allocate(bytes);
    std::memcpy(fresh.get(), storage.data(), std::min(bytes, storage.nbytes()));
    auto* target = const_cast<c10::StorageImpl*>(storage.unsafeGetStorageImpl());
    target->set_data_ptr_noswap(std::move(fresh));
    target->set_nbytes(bytes);
  }
};
Hooks hooks;
const bool hooks_are_registered = [] {
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

// 2. Memory: tensors are made, viewed and copied.

Tensor empty(
    c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), &allocator, keys, at::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &allocator, keys, at::dtype_or_default(dtype));
}

// The same memory as a CPU tensor.
Tensor host(const Tensor& x) {
  if (x.is_cpu()) return x;
  const auto options = at::TensorOptions().dtype(x.dtype()).device(at::kCPU);
  return at::from_blob(const_cast<void*>(x.const_data_ptr()), x.sizes(), x.strides(), options);
}

Tensor copy_from(const Tensor& source, const Tensor& target, bool non_blocking) {
  at::AutoDispatchBelowADInplaceOrView guard;
  if (non_blocking && target.is_cpu() && source.numel()) {
    const std::lock_guard<std::mutex> lock(unfinished_copies_mutex);
    unfinished_copies.emplace_back(target, host(source).clone());
    return target;
  }
  if (source.numel()) host(target).copy_(host(source));
  return target;
}

Tensor copy_from_and_resize(const Tensor& source, const Tensor& target) {
  if (source.sizes() != target.sizes()) target.resize_(source.sizes());
  return copy_from(source, target, false);
}

Tensor on_device(const Tensor& x) {
  if (!x.defined()) return x;
  auto moved = at::empty_strided(x.sizes(), x.strides(), x.options().device(DEVICE));
  copy_from(x, moved, false);
  return moved;
}

Tensor view(const Tensor& x, c10::SymIntArrayRef size) { return at::native::view(x, C10_AS_INTARRAYREF_SLOW(size)); }

Tensor as_strided(
    const Tensor& x, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  std::optional<int64_t> start;
  if (offset.has_value()) start = offset->expect_int();
  return at::native::as_strided_tensorimpl(
      x, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), start);
}

Tensor reshape_alias(const Tensor& x, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(x, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

const Tensor& resize(const Tensor& x, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* target = x.unsafeGetTensorImpl();
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  const size_t bytes = (target->storage_offset() + c10::multiply_integers(sizes)) * x.itemsize();
  if (bytes > x.storage().nbytes()) hooks.resizePrivateUse1Bytes(x.storage(), bytes);
  target->set_sizes_contiguous(sizes);
  return x;
}

Tensor& set_storage(
    Tensor& x, c10::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  auto* target = x.unsafeGetTensorImpl();
  target->set_storage_keep_dtype(std::move(storage));
  target->set_sizes_and_strides(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  return x;
}

// 3. Kernels: the CPU's, after a check that all tensors are on one device.

void check_same(const Tensor& x, const Tensor& weight) {
  TORCH_CHECK(x.device() == weight.device(), "input and weight are on ", x.device(), " and ", weight.device());
  TORCH_CHECK(x.dtype() == weight.dtype(), "input and weight are of ", x.dtype(), " and ", weight.dtype());
}

Tensor convolution(
    const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, IntArrayRef stride, IntArrayRef padding,
    IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups) {
  check_same(x, weight);
  at::AutoDispatchBelowADInplaceOrView guard;
  std::optional<Tensor> added;
  if (bias && bias->defined()) added = host(*bias);
  return on_device(at::convolution(
      host(x), host(weight), added, stride, padding, dilation, transposed, output_padding, groups));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& x, const Tensor& weight, IntArrayRef stride, IntArrayRef padding,
    IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  at::AutoDispatchBelowADInplaceOrView guard;
  const int64_t outputs = transposed ? weight.size(1) * groups : weight.size(0);
  const auto [of_x, of_weight, of_bias] = at::convolution_backward(
      host(gradient), host(x), host(weight), at::OptionalIntArrayRef(outputs), stride, padding, dilation, transposed,
      output_padding, groups, mask);
  return {on_device(of_x), on_device(of_weight), on_device(of_bias)};
}

// The plain implementation of scaled dot product attention.
int64_t choose_attention(
    const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool, std::optional<double>,
    bool) {
  return 0;
}

// CUDA's kernels, too, take indices on the CPU, and single numbers there.
const std::set<std::string> TAKE_CPU_INDICES = {"aten::index", "aten::index_put_", "aten::_index_put_impl_"};

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  bool any_on_cpu = false;
  bool any_on_device = false;
  const auto look_at = [&](const Tensor& x) {
    if (!x.defined()) return;
    any_on_device |= !x.is_cpu();
    any_on_cpu |= x.is_cpu() && x.dim() > 0;
  };
  for (const auto& argument : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (argument.isTensor()) look_at(argument.toTensor());
    if (argument.isTensorList()) {
      for (const Tensor& x : argument.toTensorList()) look_at(x);
    }
  }
  const auto& name = op.schema().name();
  const bool mixed = any_on_cpu && any_on_device && !TAKE_CPU_INDICES.count(name);
  TORCH_CHECK(!mixed, "expected all tensors to be on the same device, but found simulated and cpu in ", name);
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("view", &view);
  library.impl("as_strided", &as_strided);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("resize_", &resize);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("convolution_overrideable", &convolution);
  library.impl("convolution_backward_overrideable", &convolution_backward);
  library.impl("_fused_sdp_choice", &choose_attention);
}

// 4. Collective operations: another backend's, on the same memory.

std::vector<Tensor> on_host(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> views;
  for (const Tensor& x : tensors) {
    TORCH_CHECK(!x.is_cpu(), "no backend of this process group takes CPU tensors");
    views.push_back(host(x));
  }
  return views;
}

struct Collectives final : c10d::Backend {
  Collectives(int rank, int size, c10::intrusive_ptr<c10d::Backend> of_host)
      : Backend(rank, size), of_host_(std::move(of_host)) {}

  const std::string getBackendName() const override { return "simulated"; }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<Tensor>& x, const c10d::BroadcastOptions& options) override {
    auto views = on_host(x);
    return finished(of_host_->broadcast(views, options));
  }

  // The mean as NCCL has it, of whole numbers too.
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<Tensor>& x, const c10d::AllreduceOptions& options) override {
    auto views = on_host(x);
    if (options.reduceOp != c10d::ReduceOp::AVG) return finished(of_host_->allreduce(views, options));
    auto sum = options;
    sum.reduceOp = c10d::ReduceOp::SUM;
    auto work = finished(of_host_->allreduce(views, sum));
    for (Tensor& values : views) {
      if (values.is_floating_point()) values.div_(getSize());
      else values.div_(getSize(), "trunc");
    }
    return work;
  }

  c10::intrusive_ptr<c10d::Work> reduce(std::vector<Tensor>& x, const c10d::ReduceOptions& options) override {
    auto views = on_host(x);
    return finished(of_host_->reduce(views, options));
  }

  c10::intrusive_ptr<c10d::Work> allgather(
      std::vector<std::vector<Tensor>>& outputs, std::vector<Tensor>& inputs,
      const c10d::AllgatherOptions& options) override {
    std::vector<std::vector<Tensor>> to;
    for (const auto& output : outputs) to.push_back(on_host(output));
    auto from = on_host(inputs);
    return finished(of_host_->allgather(to, from, options));
  }

  c10::intrusive_ptr<c10d::Work> gather(
      std::vector<std::vector<Tensor>>& outputs, std::vector<Tensor>& inputs,
      const c10d::GatherOptions& options) override {
    std::vector<std::vector<Tensor>> to;
    for (const auto& output : outputs) to.push_back(on_host(output));
    auto from = on_host(inputs);
    return finished(of_host_->gather(to, from, options));
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override {
    return finished(of_host_->barrier(options));
  }

 private:
  // The views do not own their memory: it must be there until the work is done.
  static c10::intrusive_ptr<c10d::Work> finished(c10::intrusive_ptr<c10d::Work> work) {
    work->wait();
    return work;
  }

  c10::intrusive_ptr<c10d::Backend> of_host_;
};

c10::intrusive_ptr<c10d::Backend> collectives(int rank, int size, c10::intrusive_ptr<c10d::Backend> of_host) {
  return c10::make_intrusive<Collectives>(rank, size, std::move(of_host));
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { module.def("collectives", &collectives); }

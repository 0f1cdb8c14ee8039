// A pretend accelerator for tests on machines without one: two devices named "fake", whose memory is host memory and whose
// streams are threads. Copies and fills run late, in stream order, outside the caller's thread; streams, events, pinned memory and
// torch.accelerator behave as on a GPU, so code that orders its copies wrongly reads wrong values here too.
// Every other operator waits for both devices and runs on the CPU.
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <queue>
#include <set>
#include <thread>

namespace {
using Clock = std::chrono::steady_clock;
constexpr int kDevices = 2;
constexpr auto kType = c10::DeviceType::PrivateUse1;

std::atomic<double> ns_per_byte{0.0};   // how long an asynchronous copy takes
std::atomic<bool> pinning_fails{false};  // as with a low locked-memory limit
std::mutex stats_mutex;
std::map<std::string, long> stats;  // what tests want to count

void count(const std::string& what) {
  std::lock_guard<std::mutex> lock(stats_mutex);
  ++stats[what];
}

// Waiting must not hold the GIL, or a stream that needs it could never finish.
struct NoGil {
  std::optional<pybind11::gil_scoped_release> release;
  NoGil() { if (Py_IsInitialized() && PyGILState_Check()) release.emplace(); }
};

class StreamThread {
 public:
  StreamThread() { std::thread([this] { run(); }).detach(); }
  size_t push(std::function<void()> job) {
    std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push(std::move(job));
    changed_.notify_all();
    return ++issued_;
  }
  void wait(size_t ticket) {
    NoGil no_gil;
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= ticket; });
  }
  size_t last() { std::lock_guard<std::mutex> lock(mutex_); return issued_; }
  bool idle() { std::lock_guard<std::mutex> lock(mutex_); return done_ >= issued_; }

 private:
  void run() {
    for (;;) {
      std::function<void()> job;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return !jobs_.empty(); });
        job = std::move(jobs_.front());
        jobs_.pop();
      }
      job();
      job = nullptr;
      { std::lock_guard<std::mutex> lock(mutex_); ++done_; }
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::queue<std::function<void()>> jobs_;
  size_t issued_ = 0, done_ = 0;
};

std::mutex streams_mutex;
std::map<std::pair<int, int64_t>, StreamThread*> streams;  // live until the process ends
std::atomic<int64_t> next_stream{1};
thread_local int current_device = 0;
thread_local int64_t current_stream[kDevices] = {};

StreamThread& stream_thread(int device, int64_t id) {
  std::lock_guard<std::mutex> lock(streams_mutex);
  auto& stream = streams[{device, id}];
  if (!stream) stream = new StreamThread();
  return *stream;
}
StreamThread& stream_here(int device) {
  count("used device " + std::to_string(device));
  return stream_thread(device, current_stream[device]);
}

struct FakeEvent {
  std::mutex mutex;
  std::condition_variable changed;
  bool fired = true;
  Clock::time_point at;
  void arm() { std::lock_guard<std::mutex> lock(mutex); fired = false; }
  void fire() { { std::lock_guard<std::mutex> lock(mutex); fired = true; at = Clock::now(); } changed.notify_all(); }
  void wait() { std::unique_lock<std::mutex> lock(mutex); changed.wait(lock, [&] { return fired; }); }
  bool query() { std::lock_guard<std::mutex> lock(mutex); return fired; }
};

// A job that waits until resume(), so that a test decides when a stream goes on, whatever the speed of the machine.
std::mutex gate_mutex;
std::condition_variable gate_changed;
long gate_number = 0;

void stall(int device) {
  std::lock_guard<std::mutex> lock(gate_mutex);
  stream_thread(device, current_stream[device]).push([number = gate_number] {
    std::unique_lock<std::mutex> inner(gate_mutex);
    gate_changed.wait(inner, [&] { return gate_number > number; });
  });
}
void resume() {
  { std::lock_guard<std::mutex> lock(gate_mutex); ++gate_number; }
  gate_changed.notify_all();
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Device device(int i) { return {kType, static_cast<c10::DeviceIndex>(i)}; }
  static int index(c10::Device d) { return d.index() < 0 ? current_device : d.index(); }
  static c10::Stream stream(int d, int64_t id) { return c10::Stream(c10::Stream::UNSAFE, device(d), id); }

  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device d) const override { auto old = device(current_device); current_device = index(d); return old; }
  c10::Device getDevice() const override { return device(current_device); }
  void setDevice(c10::Device d) const override { current_device = index(d); }
  void uncheckedSetDevice(c10::Device d) const noexcept override { current_device = index(d); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device d) const override { return stream(index(d), current_stream[index(d)]); }
  c10::Stream getDefaultStream(c10::Device d) const override { return stream(index(d), 0); }
  c10::Stream getNewStream(c10::Device d, int) const override { return stream(index(d), next_stream++); }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return getNewStream(d, 0); }
  c10::Stream exchangeStream(c10::Stream s) const override {
    auto old = stream(s.device_index(), current_stream[s.device_index()]);
    current_stream[s.device_index()] = s.id();
    return old;
  }
  bool queryStream(const c10::Stream& s) const override { return stream_thread(s.device_index(), s.id()).idle(); }
  void synchronizeStream(const c10::Stream& s) const override {
    count("host waits");
    auto& thread = stream_thread(s.device_index(), s.id());
    thread.wait(thread.last());
  }
  void synchronizeDevice(const c10::DeviceIndex d) const override {
    count("host waits");
    std::vector<StreamThread*> all;
    {
      std::lock_guard<std::mutex> lock(streams_mutex);
      for (auto& [key, thread] : streams) if (key.first == d) all.push_back(thread);
    }
    for (auto* thread : all) thread->wait(thread->last());
  }

  void record(void** event, const c10::Stream& s, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new FakeEvent();  // never freed: a queued job may still hold it
    auto* e = static_cast<FakeEvent*>(*event);
    e->arm();
    stream_thread(s.device_index(), s.id()).push([e] { e->fire(); });
  }
  void block(void* event, const c10::Stream& s) const override {
    if (!event) return;
    auto* e = static_cast<FakeEvent*>(event);
    stream_thread(s.device_index(), s.id()).push([e] { e->wait(); });
  }
  bool queryEvent(void* event) const override { return !event || static_cast<FakeEvent*>(event)->query(); }
  void synchronizeEvent(void* event) const override {
    count("host waits");
    NoGil no_gil;
    if (event) static_cast<FakeEvent*>(event)->wait();
  }
  double elapsedTime(void* a, void* b, const c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(static_cast<FakeEvent*>(b)->at - static_cast<FakeEvent*>(a)->at).count();
  }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

std::mutex pinned_mutex;
std::set<const void*> pinned;

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override { void* p = n ? malloc(n) : nullptr; return {p, p, &free, Guard::device(current_device)}; }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t n) const override { memcpy(to, from, n); }
} device_allocator;
REGISTER_ALLOCATOR(kType, &device_allocator);

void unpin(void* p) {
  { std::lock_guard<std::mutex> lock(pinned_mutex); pinned.erase(p); }
  free(p);
}
struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    TORCH_CHECK(!pinning_fails, "fake: cannot lock memory");
    count("pinned allocations");
    void* p = n ? malloc(n) : nullptr;
    { std::lock_guard<std::mutex> lock(pinned_mutex); pinned.insert(p); }
    return {p, p, &unpin, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* to, const void* from, std::size_t n) const override { memcpy(to, from, n); }
} pinned_allocator;

struct Hooks : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex d) const override { current_device = d; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex d) const override { int old = current_device; if (d >= 0) current_device = d; return old; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex d) const override { return exchangeDevice(d); }
  bool isPinnedPtr(const void* p) const override { std::lock_guard<std::mutex> lock(pinned_mutex); return pinned.count(p) > 0; }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  at::Device getDeviceFromPtr(void*) const override { return Guard::device(current_device); }
};

// ---- operators -----------------------------------------------------------------------------------------------------------------
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty_memory_format(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device> device,
                               std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device.value());
  return at::detail::empty_generic(size, &device_allocator, kKeys, dtype.value_or(at::kFloat), format);
}
at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(device.value());
  return at::detail::empty_strided_generic(size, stride, &device_allocator, kKeys, dtype.value_or(at::kFloat));
}
at::Tensor on_cpu(const at::Tensor& t) {  // the same memory, seen as a CPU tensor; does not own it
  return at::from_blob(t.data_ptr(), t.sizes(), t.strides(), [](void*) {}, t.options().device(at::kCPU));
}
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const int device = from.device().is_cpu() ? to.device().index() : from.device().index();
  const bool on_device = !from.device().is_cpu() && !to.device().is_cpu();
  const bool late = non_blocking || on_device;
  auto source = on_cpu(from), target = on_cpu(to);
  const auto nanoseconds = static_cast<int64_t>(ns_per_byte * from.nbytes());
  auto& stream = stream_here(device);
  // Like a real device, the queue does not keep the tensors alive: freeing one too early is the caller's mistake.
  const auto ticket = stream.push([=] {
    if (late && nanoseconds > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds));
    at::AutoDispatchBelowADInplaceOrView below;
    target.copy_(source);
  });
  if (!late) { count("host waits"); stream.wait(ticket); }
  return to;
}
at::Tensor& fill_scalar(at::Tensor& t, const at::Scalar& value) {
  auto target = on_cpu(t);
  stream_here(t.device().index()).push([=] { at::AutoDispatchBelowADInplaceOrView below; target.fill_(value); });
  return t;
}
at::Tensor as_strided(const at::Tensor& t, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  return at::cpu::as_strided_symint(t, size, stride, offset);
}
at::Tensor view(const at::Tensor& t, c10::SymIntArrayRef size) { return at::native::view(t, C10_AS_INTARRAYREF_SLOW(size)); }
const at::Tensor& resize(const at::Tensor& t, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  size_t bytes = t.element_size();
  for (auto n : sizes) bytes *= n;
  auto* storage = t.storage().unsafeGetStorageImpl();
  if (storage->nbytes() < bytes) {
    c10::DeviceGuard guard(t.device());
    storage->set_data_ptr(device_allocator.allocate(bytes));
    storage->set_nbytes(bytes);
  }
  t.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return t;
}
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}
at::Scalar local_scalar(const at::Tensor& t) { Guard().synchronizeDevice(t.device().index()); return on_cpu(t).item(); }
at::Tensor& set_storage(at::Tensor& t, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(storage);
  impl->set_storage_offset(offset.expect_int());
  impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
  return t;
}
void wait_and_run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  for (int d = 0; d < kDevices; ++d) Guard().synchronizeDevice(d);
  at::native::cpu_fallback(op, stack);
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty_memory_format);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("as_strided", &as_strided);
  m.impl("fill_.Scalar", &fill_scalar);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("view", &view);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&wait_and_run_on_cpu>()); }
}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  m.def("set_copy_time", [](double ns) { ns_per_byte = ns; }, "nanoseconds per byte of an asynchronous copy");
  m.def("stall", &stall, "make the current stream of this thread on a device wait for resume()");
  m.def("resume", &resume, "let all stalled streams go on");
  m.def("set_pinning_fails", [](bool fails) { pinning_fails = fails; });
  m.def("stats", [] { std::lock_guard<std::mutex> lock(stats_mutex); return stats; });
  m.def("reset_stats", [] { std::lock_guard<std::mutex> lock(stats_mutex); stats.clear(); });
}

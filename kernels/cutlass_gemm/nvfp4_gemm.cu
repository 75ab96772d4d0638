// One NVFP4 GEMM for SM120 and SM121, put together by CUTLASS's CollectiveBuilder. See abi.h for what it offers.
//
// Build parameters, integers because nvcc splits the value of -D at commas:
//   FP4TUNE_TILE_M, _N, _K   elements of the kernel's tile
//   FP4TUNE_PINGPONG         0 cooperative, 1 ping-pong
//   FP4TUNE_STREAM_K         0 dynamic persistent tiles (cluster launch control), 1 stream-K
//   FP4TUNE_SWAP_AB          0 tokens on m, 1 tokens on n
//   FP4TUNE_OUT              0 bfloat16, 1 float16, 2 float32

#include "abi.h"

#include <cuda_runtime_api.h>

#include <limits>
#include <new>
#include <type_traits>

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/device_kernel.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/gemm/kernel/tile_scheduler.hpp"
#include "cutlass/version.h"

namespace {

constexpr bool kPingpong = FP4TUNE_PINGPONG != 0;
constexpr bool kStreamK = FP4TUNE_STREAM_K != 0;
constexpr bool kSwapAB = FP4TUNE_SWAP_AB != 0;
constexpr int kScaleGroup = 16;
constexpr int32_t kCudaStatus = 1000;

template <int Which>
struct OutputType;
template <>
struct OutputType<0> { using type = cutlass::bfloat16_t; };
template <>
struct OutputType<1> { using type = cutlass::half_t; };
template <>
struct OutputType<2> { using type = float; };

using Operand = cutlass::nv_float4_t<cutlass::float_e2m1_t>;
using Output = OutputType<FP4TUNE_OUT>::type;
using Accumulator = float;
using Arch = cutlass::arch::Sm120;
using BlockScaled = cutlass::arch::OpClassBlockScaledTensorOp;

using BlockTile = cute::Shape<cute::Int<FP4TUNE_TILE_M>, cute::Int<FP4TUNE_TILE_N>, cute::Int<FP4TUNE_TILE_K>>;
using OneBlock = cute::Shape<cute::_1, cute::_1, cute::_1>;  // SM120 has no multicast, and so no larger cluster

// TMA moves 16 bytes at least: 32 codes, or 128 bits of D.
constexpr int kOperandAlignment = 32;
constexpr int kOutputAlignment = 128 / cutlass::sizeof_bits<Output>::value;

// The row-major D of a swapped product is a column-major D^T.
using OutputLayout = std::conditional_t<kSwapAB, cutlass::layout::ColumnMajor, cutlass::layout::RowMajor>;

using MainloopSchedule = std::conditional_t<kPingpong, cutlass::gemm::KernelTmaWarpSpecializedPingpongNvf4Sm120,
                                            cutlass::gemm::KernelTmaWarpSpecializedNvf4Sm120>;
using TileScheduler =
    std::conditional_t<kStreamK, cutlass::gemm::StreamKScheduler, cutlass::gemm::PersistentScheduler>;

// D = alpha * accumulator, rounded once; there is no C to read, so none of its tiles take shared memory.
using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    Arch, BlockScaled, BlockTile, OneBlock, cutlass::epilogue::collective::EpilogueTileAuto, Accumulator, Accumulator,
    void, OutputLayout, kOutputAlignment, Output, OutputLayout, kOutputAlignment,
    cutlass::epilogue::collective::EpilogueScheduleAuto>::CollectiveOp;

// As many stages as fit beside the epilogue.
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    Arch, BlockScaled, Operand, cutlass::layout::RowMajor, kOperandAlignment, Operand, cutlass::layout::ColumnMajor,
    kOperandAlignment, Accumulator, BlockTile, OneBlock,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
    MainloopSchedule>::CollectiveOp;

using ProblemShape = cute::Shape<int, int, int, int>;  // m, n, k, batch
using Kernel = cutlass::gemm::kernel::GemmUniversal<ProblemShape, Mainloop, Epilogue, TileScheduler>;
using ScaleLayout = typename Mainloop::Sm1xxBlkScaledConfig;
using RasterOptions = typename Kernel::TileScheduler::RasterOrderOptions;

static_assert(Kernel::SharedStorageSize <= cutlass::arch::sm120_smem_capacity_bytes,
              "the kernel needs more shared memory than a block can have");

// What fp4tune_run reads. `arguments` are kept because the barriers of stream-K are cleared before every launch.
struct Plan {
  typename Kernel::Arguments arguments;
  typename Kernel::Params params;
  void* workspace;
  int device;
};
static_assert(std::is_trivially_destructible_v<Plan>, "a plan is memory of the caller's");
static_assert(alignof(Plan) <= FP4TUNE_PLAN_ALIGNMENT, "a plan is aligned to what abi.h says");

// Makes a device current, and puts back the one that was.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    status_ = cudaGetDevice(&before_);
    if (status_ == cudaSuccess && before_ != device) {
      status_ = cudaSetDevice(device);
      moved_ = status_ == cudaSuccess;
    }
  }
  ~CurrentDevice() {
    if (moved_) cudaSetDevice(before_);
  }
  CurrentDevice(CurrentDevice const&) = delete;
  CurrentDevice& operator=(CurrentDevice const&) = delete;
  cudaError_t status() const { return status_; }

 private:
  int before_ = 0;
  bool moved_ = false;
  cudaError_t status_ = cudaSuccess;
};

int32_t of(cutlass::Status status) { return static_cast<int32_t>(status); }

int32_t of(cudaError_t error) {
  if (error == cudaSuccess) return 0;
  cudaGetLastError();  // what was not sticky is not to be found by whoever asks next
  return kCudaStatus + static_cast<int32_t>(error);
}

RasterOptions raster_of(int32_t raster) {
  if (raster == FP4TUNE_RASTER_ALONG_M) return RasterOptions::AlongM;
  if (raster == FP4TUNE_RASTER_ALONG_N) return RasterOptions::AlongN;
  return RasterOptions::Heuristic;
}

// Only stream-K has splits.
template <class SchedulerArguments>
void set_splits([[maybe_unused]] SchedulerArguments& scheduler, [[maybe_unused]] int32_t splits) {
  if constexpr (kStreamK) scheduler.splits = splits;
}

// Stride of a dense matrix of which each row (or column, for a column-major D) has `leading` elements.
template <class Stride>
Stride dense(int64_t leading) {
  Stride stride{};
  if constexpr (std::is_integral_v<std::decay_t<decltype(cute::get<0>(stride))>>) {
    cute::get<0>(stride) = leading;
  } else {
    cute::get<1>(stride) = leading;
  }
  return stride;  // of the third mode, the batch: 0, there is one
}

typename Kernel::Arguments arguments_of(Fp4tuneProduct const& p) {
  using Code = typename Mainloop::ElementA;
  using Scale = typename Mainloop::ElementSF;
  int const rows = kSwapAB ? p.n : p.m, columns = kSwapAB ? p.m : p.n;
  void const* left = kSwapAB ? p.b : p.a;
  void const* right = kSwapAB ? p.a : p.b;
  void const* left_scale = kSwapAB ? p.b_scale : p.a_scale;
  void const* right_scale = kSwapAB ? p.a_scale : p.b_scale;
  auto const shape = cute::make_shape(rows, columns, p.k, 1);

  typename Kernel::Arguments arguments{};
  arguments.mode = cutlass::gemm::GemmUniversalMode::kGemm;
  arguments.problem_shape = shape;
  arguments.mainloop.ptr_A = static_cast<Code const*>(left);
  arguments.mainloop.dA = dense<typename Kernel::StrideA>(p.k);
  arguments.mainloop.ptr_B = static_cast<Code const*>(right);
  arguments.mainloop.dB = dense<typename Kernel::StrideB>(p.k);
  arguments.mainloop.ptr_SFA = static_cast<Scale const*>(left_scale);
  arguments.mainloop.layout_SFA = ScaleLayout::tile_atom_to_shape_SFA(shape);
  arguments.mainloop.ptr_SFB = static_cast<Scale const*>(right_scale);
  arguments.mainloop.layout_SFB = ScaleLayout::tile_atom_to_shape_SFB(shape);
  arguments.epilogue.thread.alpha_ptr = p.alpha;
  arguments.epilogue.thread.beta = 0.0f;
  arguments.epilogue.ptr_D = static_cast<Output*>(p.out);
  arguments.epilogue.dD = dense<typename Kernel::StrideD>(p.n);
  arguments.epilogue.dC = dense<typename Kernel::StrideC>(p.n);
  arguments.hw_info.device_id = p.device;
  arguments.hw_info.sm_count = p.sms;
  arguments.hw_info.max_active_clusters = p.sms;
  arguments.scheduler.max_swizzle_size = p.max_swizzle;
  arguments.scheduler.raster_order = raster_of(p.raster);
  set_splits(arguments.scheduler, p.splits);
  return arguments;
}

bool sensible(Fp4tuneProduct const& p) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  return p.m > 0 && p.n > 0 && p.k > 0 && p.sms > 0 && p.splits >= 1 && (kStreamK || p.splits == 1) &&
         p.max_swizzle >= 1 && p.raster >= FP4TUNE_RASTER_AUTO && p.raster <= FP4TUNE_RASTER_ALONG_N &&
         // CuTe's layout of the scales counts in 32 bits.
         (int64_t(p.m > p.n ? p.m : p.n) + 127) / 128 * 128 * ((int64_t(p.k) + 63) / 64 * 4) <= most;
}

bool is_aligned(void const* pointer, size_t to) { return reinterpret_cast<uintptr_t>(pointer) % to == 0; }

bool usable(Fp4tuneProduct const& p) {
  void const* const operands[] = {p.a, p.b, p.a_scale, p.b_scale, p.out};
  for (void const* pointer : operands) {
    if (pointer == nullptr || !is_aligned(pointer, 16)) return false;
  }
  return p.alpha != nullptr && is_aligned(p.alpha, sizeof(float)) && is_aligned(p.workspace, 16);
}

}  // namespace

extern "C" {

char const* fp4tune_status_text(int32_t status) {
  if (status >= kCudaStatus) return cudaGetErrorString(static_cast<cudaError_t>(status - kCudaStatus));
  switch (static_cast<cutlass::Status>(status)) {
    case cutlass::Status::kErrorMisalignedOperand: return "an operand is null or not aligned to 16 bytes";
    case cutlass::Status::kErrorInvalidProblem: return "a dimension or a run-time parameter is out of range";
    case cutlass::Status::kErrorWorkspaceNull: return "the workspace is missing or too small";
    case cutlass::Status::kInvalid: return "the kernel does not take this shape: k must be a multiple of 32, and a "
                                           "row of D a multiple of 16 bytes";
    default: return cutlassGetStatusString(static_cast<cutlass::Status>(status));
  }
}

void fp4tune_describe(Fp4tuneDescription* into) {
  *into = Fp4tuneDescription{FP4TUNE_ABI,
                             CUTLASS_VERSION,
                             FP4TUNE_TILE_M,
                             FP4TUNE_TILE_N,
                             FP4TUNE_TILE_K,
                             Mainloop::DispatchPolicy::Stages,
                             kPingpong,
                             kStreamK,
                             kSwapAB,
                             cutlass::sizeof_bits<Output>::value,
                             static_cast<int32_t>(Kernel::MaxThreadsPerBlock),
                             Kernel::SharedStorageSize,
                             static_cast<int64_t>(sizeof(Plan))};
}

int32_t fp4tune_can_implement(Fp4tuneProduct const* product) {
  if (!sensible(*product)) return of(cutlass::Status::kErrorInvalidProblem);
  return of(Kernel::can_implement(arguments_of(*product)) ? cutlass::Status::kSuccess : cutlass::Status::kInvalid);
}

int64_t fp4tune_workspace_bytes(Fp4tuneProduct const* product) {
  return sensible(*product) ? static_cast<int64_t>(Kernel::get_workspace_size(arguments_of(*product))) : 0;
}

int32_t fp4tune_plan(Fp4tuneProduct const* product, void* plan) {
  if (int32_t const unfit = fp4tune_can_implement(product)) return unfit;
  if (!usable(*product) || !is_aligned(plan, alignof(Plan))) {
    return of(cutlass::Status::kErrorMisalignedOperand);
  }
  int64_t const needed = fp4tune_workspace_bytes(product);
  if (needed > 0 && (product->workspace == nullptr || product->workspace_bytes < needed)) {
    return of(cutlass::Status::kErrorWorkspaceNull);
  }
  // Asked before CUTLASS is: a TMA descriptor that cannot be encoded is dumped to standard error.
  CurrentDevice const current(product->device);
  if (current.status() != cudaSuccess) return of(current.status());
  if (cudaError_t const unfit =
          cudaFuncSetAttribute(cutlass::device_kernel<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               Kernel::SharedStorageSize)) {
    return of(unfit);
  }
  Plan* made = new (plan) Plan{};
  made->arguments = arguments_of(*product);
  made->params = Kernel::to_underlying_arguments(made->arguments, product->workspace);
  made->workspace = product->workspace;
  made->device = product->device;
  return 0;
}

int32_t fp4tune_run(void const* plan, void* stream) {
  Plan const& made = *static_cast<Plan const*>(plan);
  cudaStream_t const on = static_cast<cudaStream_t>(stream);
  CurrentDevice const current(made.device);
  if (current.status() != cudaSuccess) return of(current.status());
  // Stream-K's barriers are counters that nobody resets: they are cleared on the stream; nothing for other schedulers.
  cutlass::Status const cleared = Kernel::initialize_workspace(made.arguments, made.workspace, on);
  if (cleared != cutlass::Status::kSuccess) return of(cleared);
  dim3 const grid = Kernel::get_grid_shape(made.params);
  cutlass::device_kernel<Kernel>
      <<<grid, Kernel::get_block_shape(), Kernel::SharedStorageSize, on>>>(made.params);
  return of(cudaGetLastError());
}

int64_t fp4tune_sf_elems(int32_t rows, int32_t k) {
  auto const layout = ScaleLayout::tile_atom_to_shape_SFA(cute::make_shape(rows, 1, k, 1));
  return static_cast<int64_t>(cute::size(cute::filter_zeros(layout)));
}

int64_t fp4tune_sf_index(int32_t rows, int32_t k, int32_t row, int32_t group) {
  auto const layout = ScaleLayout::tile_atom_to_shape_SFA(cute::make_shape(rows, 1, k, 1));
  return static_cast<int64_t>(layout(row, group * kScaleGroup, 0));
}

}  // extern "C"

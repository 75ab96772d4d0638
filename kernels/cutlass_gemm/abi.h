// What a shared object built from nvfp4_gemm.cu offers. Plain C; library.py mirrors it with ctypes.
//
// One shared object holds one kernel. It computes D[m, n] = alpha * A[m, k] * B[n, k]^T, both operands NVFP4 with one
// E4M3 scale for 16 elements of k, the scales in the 128x4 layout. A, B and D are dense and row-major.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Everything else in a shared object is hidden: several of them share one process.
#define FP4TUNE_EXPORT __attribute__((visibility("default")))

#if defined(__cplusplus)
extern "C" {
#endif

// Grows with every change below; library.py refuses another one.
#define FP4TUNE_ABI 1

#define FP4TUNE_PLAN_ALIGNMENT 128

// Order in which the kernel's own tiles are walked. With swap_ab its rows are the n of the problem.
enum { FP4TUNE_RASTER_AUTO = 0, FP4TUNE_RASTER_ALONG_M = 1, FP4TUNE_RASTER_ALONG_N = 2 };

// What was compiled in.
struct Fp4tuneDescription {
  int32_t abi;
  int32_t cutlass_version;  // 100 * major + 10 * minor + patch
  int32_t tile_m, tile_n, tile_k;  // elements; of the kernel's own tile, so with swap_ab tile_m runs over n
  int32_t stages;                  // depth of the shared memory pipeline
  int32_t pingpong;                // 1: two consumer warp groups on two tiles; 0: both on one (cooperative)
  int32_t stream_k;                // 1: `splits` counts; 0: one tile, one block
  int32_t swap_ab;                 // 1: the kernel computes D^T = B * A^T, tokens on its n
  int32_t out_bits;                // 16 or 32
  int32_t threads;                 // a block
  int32_t shared_bytes;            // a block, dynamic
  int64_t plan_bytes;              // for fp4tune_plan, aligned to FP4TUNE_PLAN_ALIGNMENT
};

// One product. Pointers are device memory, aligned to 16 bytes (alpha to 4).
struct Fp4tuneProduct {
  int32_t m, n, k;                      // of the problem, whatever swap_ab is
  int32_t splits;                       // stream-K only: 1 lets CUTLASS decide, more is split-K into so many parts
  int32_t max_swizzle;                  // most tiles that are walked side by side: 1, 2, 4, 8
  int32_t raster;                       // FP4TUNE_RASTER_*
  int32_t sms;                          // multiprocessors that stream-K spreads over
  int32_t device;                       // CUDA ordinal
  void const* a;                        // [m, k/2] bytes
  void const* b;                        // [n, k/2] bytes
  void const* a_scale;                  // fp4tune_sf_elems(m, k) bytes
  void const* b_scale;                  // fp4tune_sf_elems(n, k) bytes
  float const* alpha;                   // one number
  void* out;                            // [m, n]
  void* workspace;                      // fp4tune_workspace_bytes of it; null if that is 0
  int64_t workspace_bytes;
};

// A status is 0 (done), below 1000 a cutlass::Status, from 1000 on 1000 + a cudaError_t.
// The text is static and never null.
FP4TUNE_EXPORT char const* fp4tune_status_text(int32_t status);

FP4TUNE_EXPORT void fp4tune_describe(struct Fp4tuneDescription* into);

// Whether the kernel takes the shape and the run-time parameters. Looks at no pointer and needs no device.
FP4TUNE_EXPORT int32_t fp4tune_can_implement(struct Fp4tuneProduct const* product);

// Bytes that `workspace` must have; looks at no pointer and needs no device.
FP4TUNE_EXPORT int64_t fp4tune_workspace_bytes(struct Fp4tuneProduct const* product);

// Fill `plan` (the caller's memory) with everything a launch needs. Encodes the TMA descriptors, so the device must be
// there. The plan holds addresses and owns nothing.
FP4TUNE_EXPORT int32_t fp4tune_plan(struct Fp4tuneProduct const* product, void* plan);

// Launch a plan on a stream (cudaStream_t) of its device. Does not wait, allocates nothing: may be captured.
FP4TUNE_EXPORT int32_t fp4tune_run(void const* plan, void* stream);

// The 128x4 layout as CUTLASS has it: bytes for [rows, k/16] scales, and the byte of the scale of (row, group).
FP4TUNE_EXPORT int64_t fp4tune_sf_elems(int32_t rows, int32_t k);
FP4TUNE_EXPORT int64_t fp4tune_sf_index(int32_t rows, int32_t k, int32_t row, int32_t group);

#if defined(__cplusplus)
}
#endif

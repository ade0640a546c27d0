// Instructions that C++ has no words for, on a GPU. The emulated device has the same functions.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/cuda/hardware/hopper.cuh"

namespace hillstar::cuda {

// a + b, made 0 below 0 and 1 above 1.
__device__ __forceinline__ float AddSaturated(float a, float b) {
  float sum;
  asm("add.rn.sat.f32 %0,%1,%2;" : "=f"(sum) : "f"(a), "f"(b));
  return sum;
}

// c += a b for integers: a [16 rows, 32], b [32, 8 columns], c [16, 8]. Lane l = 4 g + t holds
//   a: rows g, g + 8, g, g + 8 at k = 4 t .. 4 t + 3, the last two at k + 16
//   b: column g at k = 4 t .. 4 t + 3 and k + 16
//   c: (row g, columns 2 t, 2 t + 1), (row g + 8, likewise)
// All lanes of a warp together.
__device__ __forceinline__ void MmaUnsignedSigned(int (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                  uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void MmaSignedSigned(int (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four matrices of 8 rows x 16 bytes of shared memory: lane l gives the address of row l % 8 of
// matrix l / 8 (16-byte aligned) and gets of each matrix bytes 4 t .. 4 t + 3 of row g.
__device__ __forceinline__ void LoadMatrices(uint32_t (&r)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Likewise, but of each matrix the columns of 2 bytes: those of column g of rows 2 t and 2 t + 1.
__device__ __forceinline__ void LoadMatricesTransposed(uint32_t (&r)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// 16 bytes of memory that is read once and not written in this kernel's life.
__device__ __forceinline__ uint4 LoadStreaming(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// 16 bytes to shared memory behind the program's back; done after CommitCopies and WaitForCopies.
// Where !valid, 16 zeros.
__device__ __forceinline__ void CopyAsync16(void* shared, const void* from, bool valid = true) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0],[%1],16,%2;" ::"r"(to), "l"(from),
               "r"(bytes)
               : "memory");
}
// Likewise 4 bytes, through the L1 cache: of a line whose other words follow soon.
__device__ __forceinline__ void CopyAsync4(void* shared, const void* from, bool valid = true) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0],[%1],4,%2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() { asm volatile("cp.async.commit_group;"); }
// Until at most `kPending` of this thread's committed groups are on their way.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Waits for `threads` threads of whole warps that come here with the same number, 1 to 15.
__device__ __forceinline__ void SyncWarps(int number, int threads) {
  asm volatile("barrier.sync %0,%1;" ::"r"(number), "r"(threads) : "memory");
}

// A barrier in shared memory of `arrivals` arrivals a phase: 8 bytes. Once all are begun,
// FenceBarriers (hopper.cuh) by who began them, and a barrier of the threads that use them;
// WaitForBarrier there waits.
__device__ __forceinline__ void InitBarrier(uint64_t* barrier, int arrivals) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(at), "r"(arrivals) : "memory");
}
// What this thread has done before is seen by who has waited.
__device__ __forceinline__ void Arrive(uint64_t* barrier) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state,[%0];\n}" ::"r"(at)
               : "memory");
}
// An arrival of this thread once its copies (CopyAsync16, ...) so far are there.
__device__ __forceinline__ void ArriveAfterCopies(uint64_t* barrier) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
}
// The float of an IEEE binary16's bits.
__device__ __forceinline__ float HalfBitsToFloat(uint16_t bits) {
  float v;
  asm("cvt.f32.f16 %0,%1;" : "=f"(v) : "h"(bits));
  return v;
}

// From here on the compiler takes x for unknown: what follows from it is computed where it is
// needed, and does not keep registers through a loop.
__device__ __forceinline__ void Forget(int& x) { asm volatile("" : "+r"(x)); }

// Round to the nearest integer, ties to even.
__device__ __forceinline__ float RoundToInteger(float x) {
  float v;
  asm("cvt.rni.f32.f32 %0,%1;" : "=f"(v) : "f"(x));
  return v;
}

}  // namespace hillstar::cuda

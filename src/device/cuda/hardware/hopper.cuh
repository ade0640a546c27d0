// Instructions that Hopper brought, and what GPUs before it do instead. Through ptx.cuh.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace hillstar::cuda {

// For kernels that may begin before the one before them has ended: waits for its results.
__device__ __forceinline__ void WaitForPrevious() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel may begin: its blocks find room as this one's end.
__device__ __forceinline__ void LetNextBegin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// After InitBarrier (ptx.cuh).
__device__ __forceinline__ void FenceBarriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
// Until the phase of this parity has ended; the first has parity 0, and the one before it has
// ended.
__device__ __forceinline__ void WaitForBarrier(uint64_t* barrier, uint32_t parity) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\nagain_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done,[%0],%1;\n@!done bra again_%=;\n}" ::"r"(at),
      "r"(parity)
      : "memory");
#else
  asm volatile(
      "{\n.reg .pred done;\nagain_%=:\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done,[%0],%1;\n@!done bra again_%=;\n}" ::"r"(at),
      "r"(parity)
      : "memory");
#endif
}
// Whether there are copies of any multiple of 16 bytes by one thread: BulkCopy, whose bytes are
// waited for by a phase that one arrival was told of them.
__device__ __forceinline__ constexpr bool HasBulkCopies() {
#if __CUDA_ARCH__ >= 900
  return true;
#else
  return false;
#endif
}
__device__ __forceinline__ void ArriveExpecting(uint64_t* barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(at), "r"(bytes)
               : "memory");
#endif
}
// What is copied so is mostly read once (weights; KV rows by up to 64 heads): in the L2 cache it
// makes way before anything else does.
__device__ __forceinline__ void BulkCopy(void* shared, const void* from, int bytes,
                                         uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile(
      "{\n.reg .b64 once;\n"
      "createpolicy.fractional.L2::evict_first.b64 once,1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0],[%1],%2,[%3],once;\n}" ::"r"(to),
      "l"(from), "r"(bytes), "r"(at)
      : "memory");
#endif
}

}  // namespace hillstar::cuda

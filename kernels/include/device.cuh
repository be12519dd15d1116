// The basis of every kernel: storage types, packs of 16 bytes, sums over a warp and a block, shared
// memory.
//
// NVRTC compiles it without other headers; the CPU shim (crates/cuda/tests/kernels/shim) provides
// CUDA's built-ins.
#pragma once

#ifdef CPU_SHIM
#include "shim.h"
#else
// Adds a kernel to the shim's table; does nothing on a device.
#define EXPORT(name)
extern __shared__ __align__(128) unsigned char shared_bytes[];
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#endif

#include "ptx.cuh"

constexpr unsigned WARP = 32;

// Some tokens of one sequence, as rows of a batch. `start` tokens are in the state already; with 0
// the slot counts as empty, whatever it holds.
struct Span {
    unsigned base;    // first row
    unsigned length;  // rows; 0 for an unused span of a fixed-size batch
    unsigned start;
    unsigned slot;
};

// A part of a span: rows base + first and on.
struct Tile {
    unsigned span;
    unsigned first;
};

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(bf16 value) { return float_of_bits((unsigned)value.bits << 16); }

template <class T> __device__ __forceinline__ T narrow(float value);
template <> __device__ __forceinline__ float narrow<float>(float value) { return value; }
template <> __device__ __forceinline__ bf16 narrow<bf16>(float value) { return bf16_of(value); }

// A value rounded to its stored type.
template <class T> __device__ __forceinline__ float rounded(float value) { return widen(narrow<T>(value)); }

// N values moved together, up to 16 bytes by one instruction.
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
    T v[N];
};

template <int N, class T> __device__ __forceinline__ Pack<T, N> load(const T* from) {
    return *reinterpret_cast<const Pack<T, N>*>(from);
}

template <int N, class T> __device__ __forceinline__ void store(T* to, const Pack<T, N>& pack) {
    *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// N stored values as float32.
template <int N, class T> __device__ __forceinline__ void load_floats(const T* from, float (&to)[N]) {
    const Pack<T, N> pack = load<N>(from);
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = widen(pack.v[i]);
}

template <int N, class T> __device__ __forceinline__ void store_floats(T* to, const float (&from)[N]) {
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; i++) pack.v[i] = narrow<T>(from[i]);
    store<N>(to, pack);
}

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

// ln(1 + e^x) without overflow.
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// Sum over the lanes of a warp, returned to all of them.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
    return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) value = fmaxf(value, shuffle_xor(value, mask));
    return value;
}

// Sum over the threads of a block, returned to all of them. `partial` has an entry for each warp; a
// barrier must pass before it is reused.
__device__ __forceinline__ float block_sum(float value, float* partial) {
    value = warp_sum(value);
    if (threadIdx.x % WARP == 0) partial[threadIdx.x / WARP] = value;
    __syncthreads();
    const unsigned lane = threadIdx.x % WARP;
    return warp_sum(lane < blockDim.x / WARP ? partial[lane] : 0.0f);
}

// Allocates from the shared memory of the launch, aligned to 16 bytes.
struct Shared {
    unsigned used = 0;

    template <class T> __device__ __forceinline__ T* take(unsigned count) {
        T* taken = reinterpret_cast<T*>(shared_bytes + used);
        used += (unsigned)(count * sizeof(T) + 15) / 16 * 16;
#ifdef CPU_SHIM
        shim_shared_used(used);
#endif
        return taken;
    }
};

// Softmax attention of one query row by one warp for any type and any head size up to 256,
// everything in float32: 32 keys at a time, each lane has a key's score; a running maximum and sum,
// outputs rescaled when the maximum rises; then the lanes divide the values' columns among them.
#pragma once
#include "device.cuh"

struct AttendingPlainly {
    static constexpr int COLUMNS_MAX = 8;  // of a lane: 8 x 32 = 256

    float sums[COLUMNS_MAX] = {}, most = -INFINITY, total = 0.0f;

    // Processes at most 32 keys and their values, rows of `size` values `stride` apart; the row
    // sees the first `there` of them, and no others are read.
    template <class T>
    __device__ __forceinline__ void take(const T* q, const T* keys, const T* values, size_t stride, unsigned size, float scale, unsigned there) {
        const unsigned lane = threadIdx.x % WARP;
        float score = -INFINITY;
        if (lane < there) {
            score = 0.0f;
            for (unsigned i = 0; i < size; i++) score = fmaf(widen(q[i]), widen(keys[lane * stride + i]), score);
            score *= scale;
        }
        const float highest = fmaxf(most, warp_max(score)), fade = expf(most - highest);
        const float weight = lane < there ? expf(score - highest) : 0.0f;
        most = highest;
        total = total * fade + warp_sum(weight);
#pragma unroll
        for (int i = 0; i < COLUMNS_MAX; i++) sums[i] *= fade;
        for (unsigned key = 0; key < WARP && key < there; key++) {
            const float of_key = shuffle_from(weight, key);
#pragma unroll
            for (int i = 0; i < COLUMNS_MAX; i++)
                if (lane + i * WARP < size) sums[i] = fmaf(of_key, widen(values[key * stride + lane + i * WARP]), sums[i]);
        }
    }

    // The row's `size` outputs.
    template <class T> __device__ __forceinline__ void end(T* out, unsigned size) const {
        const unsigned lane = threadIdx.x % WARP;
#pragma unroll
        for (int i = 0; i < COLUMNS_MAX; i++)
            if (lane + i * WARP < size) out[lane + i * WARP] = narrow<T>(sums[i] / total);
    }
};

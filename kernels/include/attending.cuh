// Softmax attention of 16 query rows by one warp, with matrix products in bfloat16 and everything
// else in float32: scores of some keys at a time, a running maximum and sum a row, outputs rescaled
// when the maximum rises.
//
// The weights go into their product rounded to bfloat16; their sum is of the unrounded ones. Scores
// are taken to base 2, scale times log2(e) being one multiplication.
#pragma once
#include "device.cuh"

template <int SIZE> struct Attending {
    static constexpr float LOG2_E = 1.44269504f;

    unsigned q[SIZE / 16][4];
    float out[SIZE / 8][4];
    float most[2], sum[2];  // of rows g and g + 8

    // From queries in shared memory, 16 rows.
    __device__ __forceinline__ void begin(const bf16* queries, unsigned stride) {
        const unsigned lane = threadIdx.x % WARP;
#pragma unroll
        for (int k = 0; k < SIZE / 16; k++) load_matrices(q[k], queries + (lane % 8 + lane / 8 % 2 * 8) * stride + k * 16 + lane / 16 * 8);
#pragma unroll
        for (int j = 0; j < SIZE / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) out[j][i] = 0.0f;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            most[half] = -INFINITY;
            sum[half] = 0.0f;
        }
    }

    // Processes 8 x COLUMNS keys and their values, in shared memory. Row g sees the first
    // visible[0] of them, row g + 8 the first visible[1]; values that no row sees must still be
    // finite.
    template <int COLUMNS>
    __device__ __forceinline__ void take(const bf16* keys, const bf16* values, unsigned stride, float scale, const int (&visible)[2]) {
        const unsigned lane = threadIdx.x % WARP, at = lane % 8, low = lane / 8 % 2 * 8, high = lane / 16 * 8;
        float scores[COLUMNS][4] = {};
#pragma unroll
        for (int k = 0; k < SIZE / 16; k++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j += 2) {
                unsigned b[4];
                load_matrices(b, keys + (j * 8 + high + at) * stride + k * 16 + low);
                mma(scores[j], q[k], {b[0], b[1]});
                mma(scores[j + 1], q[k], {b[2], b[3]});
            }
        float highest[2] = {most[0], most[1]};
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int key = j * 8 + lane % 4 * 2 + i % 2;
                scores[j][i] = key < visible[i / 2] ? scores[j][i] * (scale * LOG2_E) : -INFINITY;
                highest[i / 2] = fmaxf(highest[i / 2], scores[j][i]);
            }
        float shift[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            highest[half] = fmaxf(highest[half], shuffle_xor(highest[half], 1));
            highest[half] = fmaxf(highest[half], shuffle_xor(highest[half], 2));
            // A row that has seen no key yet: any finite shift keeps its weights at 0.
            shift[half] = highest[half] == -INFINITY ? 0.0f : highest[half];
            const float fade = exp2_approx(most[half] - shift[half]);
            most[half] = highest[half];
            sum[half] *= fade;
#pragma unroll
            for (int j = 0; j < SIZE / 8; j++) {
                out[j][half * 2] *= fade;
                out[j][half * 2 + 1] *= fade;
            }
        }
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                scores[j][i] = exp2_approx(scores[j][i] - shift[i / 2]);
                sum[i / 2] += scores[j][i];
            }
#pragma unroll
        for (int k = 0; k < COLUMNS / 2; k++) {
            unsigned weights[4];
#pragma unroll
            for (int i = 0; i < 4; i++) weights[i] = pack_bf16(scores[2 * k + i / 2][i % 2 * 2], scores[2 * k + i / 2][i % 2 * 2 + 1]);
#pragma unroll
            for (int j = 0; j < SIZE / 16; j++) {
                unsigned v[4];
                load_transposed(v, values + (k * 16 + low + at) * stride + j * 16 + high);
                mma(out[2 * j], weights, {v[0], v[1]});
                mma(out[2 * j + 1], weights, {v[2], v[3]});
            }
        }
    }

    // Sums of the rows over their four lanes; once, at the end.
    __device__ __forceinline__ void end() {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sum[half] += shuffle_xor(sum[half], 1);
            sum[half] += shuffle_xor(sum[half], 2);
        }
    }
};

// Starts copying rows of SIZE values to shared memory by all threads of a block; rows from `there`
// on become zeros.
template <int SIZE, int ROWS>
__device__ __forceinline__ void begin_rows(bf16* to, unsigned stride, const bf16* from, size_t from_stride, unsigned there) {
    for (unsigned i = threadIdx.x; i < ROWS * (SIZE / 8); i += blockDim.x) {
        const unsigned row = i / (SIZE / 8), at = i % (SIZE / 8) * 8;
        copy_async(to + row * stride + at, from + row * from_stride + at, row < there);
    }
}

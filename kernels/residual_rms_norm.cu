// The addition of a layer to the residual stream, and the norm before the next one, in one pass:
//
//   h = h + d;   y = w .* h / sqrt(mean(h^2) + eps)
//
// h [rows, width] in R (bfloat16, or float32 if the residual stream is stored in it), d, w and y in
// T; sums in float32. The norm is that of h as stored. Without d (null) only the norm. With `rows`
// (not null) row r of y belongs to row rows[r] of h and d.
//
// A block for each row: the row stays in shared memory, as float32, until its sum is known.
//
// Bytes a row: h read and written, d read, y written: 8 x width in bfloat16. 100 rows of 5,120: 4.1
// MB, 0.95 us at 4.3 TB/s, 62 times a step: 0.06 ms of a decode step of 13 ms.
#include "device.cuh"

constexpr int VALUES = 4;

template <class R, class T>
__device__ __forceinline__ void residual_rms_norm(R* h, const T* d, const unsigned* rows, const T* w, T* y, unsigned width, float epsilon) {
    Shared shared;
    float* row = shared.take<float>(width);
    float* partial = shared.take<float>(WARP);
    const unsigned source = rows ? rows[blockIdx.x] : blockIdx.x;
    h += (size_t)source * width;
    if (d) d += (size_t)source * width;
    y += (size_t)blockIdx.x * width;

    float squares = 0.0f;
    for (unsigned i = threadIdx.x * VALUES; i < width; i += blockDim.x * VALUES) {
        float values[VALUES];
        load_floats(h + i, values);
        if (d) {
            float added[VALUES];
            load_floats(d + i, added);
#pragma unroll
            for (int v = 0; v < VALUES; v++) values[v] = rounded<R>(values[v] + added[v]);
            store_floats(h + i, values);
        }
#pragma unroll
        for (int v = 0; v < VALUES; v++) squares = fmaf(values[v], values[v], squares);
        store_floats(row + i, values);
    }
    const float scale = 1.0f / sqrtf(block_sum(squares, partial) / width + epsilon);
    for (unsigned i = threadIdx.x * VALUES; i < width; i += blockDim.x * VALUES) {
        float values[VALUES], weights[VALUES];
        load_floats(row + i, values);
        load_floats(w + i, weights);
#pragma unroll
        for (int v = 0; v < VALUES; v++) values[v] = values[v] * scale * weights[v];
        store_floats(y + i, values);
    }
}

#define KERNEL(name, R, T)                                                                                                          \
    extern "C" __global__ void __launch_bounds__(1024)                                                                              \
        name(R* h, const T* d, const unsigned* rows, const T* w, T* y, unsigned width, float epsilon) {                             \
        residual_rms_norm<R, T>(h, d, rows, w, y, width, epsilon);                                                                  \
    }                                                                                                                               \
    EXPORT(name)

KERNEL(residual_rms_norm_f32, float, float)
KERNEL(residual_rms_norm_bf16, bf16, bf16)
KERNEL(residual_rms_norm_f32_bf16, float, bf16)

// The end of a Mamba-2 mixer before its last projection: first the gate, then an RMS norm over each
// group of channels separately.
//
//   g = y .* silu(z);   out = w .* g / sqrt(mean over the group(g^2) + eps)
//
// y and out [rows, width], z [rows, z_stride] (a slice of in_proj's rows), w [width], all in T;
// sums in float32. out may be y.
//
// A block has a group of a row; the gated values stay in shared memory, as float32, until their sum
// is known.
//
// Bytes a row: y and z read, out written, 6 x width in bfloat16. 100 rows of 10,240: 6.1 MB, 1.4 us
// at 4.3 TB/s, 0.04 ms a step for 28 layers.
#include "device.cuh"

constexpr int VALUES = 4;

template <class T>
__device__ __forceinline__ void gated_norm(const T* y, const T* z, unsigned z_stride, const T* w, T* out, unsigned width, unsigned group, float epsilon) {
    Shared shared;
    float* gated = shared.take<float>(group);
    float* partial = shared.take<float>(WARP);
    const unsigned row = blockIdx.y, first = blockIdx.x * group;
    y += (size_t)row * width + first;
    z += (size_t)row * z_stride + first;
    w += first;
    out += (size_t)row * width + first;
    float squares = 0.0f;
    for (unsigned i = threadIdx.x * VALUES; i < group; i += blockDim.x * VALUES) {
        float values[VALUES], gates[VALUES];
        load_floats(y + i, values);
        load_floats(z + i, gates);
#pragma unroll
        for (int v = 0; v < VALUES; v++) {
            values[v] *= silu(gates[v]);
            squares = fmaf(values[v], values[v], squares);
        }
        store_floats(gated + i, values);
    }
    const float scale = 1.0f / sqrtf(block_sum(squares, partial) / group + epsilon);
    for (unsigned i = threadIdx.x * VALUES; i < group; i += blockDim.x * VALUES) {
        float values[VALUES], weights[VALUES];
        load_floats(gated + i, values);
        load_floats(w + i, weights);
#pragma unroll
        for (int v = 0; v < VALUES; v++) values[v] = values[v] * scale * weights[v];
        store_floats(out + i, values);
    }
}

#define GATED(name, T)                                                                                                            \
    extern "C" __global__ void __launch_bounds__(1024)                                                                            \
        name(const T* y, const T* z, unsigned z_stride, const T* w, T* out, unsigned width, unsigned group, float epsilon) {      \
        gated_norm<T>(y, z, z_stride, w, out, width, group, epsilon);                                                             \
    }                                                                                                                             \
    EXPORT(name)

GATED(gated_norm_f32, float)
GATED(gated_norm_bf16, bf16)

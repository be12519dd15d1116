// Common to the kernels of the Mamba-2 recurrence: how dt gives a step, and where a head finds its
// x, B and C.
#pragma once
#include "device.cuh"

// x | B | C of the rows after the convolution: x of all heads, B of all groups, C of all groups.
// Head h uses group h / (heads / groups).
template <class T> struct Mixed {
    const T* rows;
    unsigned stride, x, b, c;

    __device__ __forceinline__ Mixed(const T* rows, unsigned stride, unsigned head, unsigned heads, unsigned groups, unsigned size, unsigned n)
        : rows(rows), stride(stride) {
        const unsigned group = head / (heads / groups);
        x = head * size;
        b = heads * size + group * n;
        c = heads * size + (groups + group) * n;
    }
    __device__ __forceinline__ const T* row(unsigned row) const { return rows + (size_t)row * stride; }
};

// softplus(dt + bias) within the limits; a NaN stays NaN. There is no other lower limit.
__device__ __forceinline__ float step_of(float dt, float bias, float low, float high) {
    const float step = softplus(dt + bias);
    return step < low ? low : step > high ? high : step;
}

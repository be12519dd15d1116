// The output of the vision tower: drops the prefix, and joins s x s neighbouring patches to one
// wide row.
//
//   out[i across + j] = patches (s i + a, s j + b) one after another, a before b;  "v1" has rows and columns of its tokens swapped
//
// h [tiles, prefixes + side^2, width], out [tiles x (side / s)^2, s^2 width], both in T: a copy in
// another order.
//
// A block has an output row. Bytes a tile of 32 x 32 patches of 1,280 in bfloat16: 2.6 MB read and
// written, 1.2 us at 4.3 TB/s.
#include "device.cuh"

constexpr int VALUES = 8;

template <class T>
__device__ __forceinline__ void pixel_shuffle(const T* h, T* out, unsigned prefixes, unsigned side, unsigned s, unsigned swapped, unsigned width) {
    const unsigned across = side / s, token = blockIdx.x, row = token / across, column = token % across;
    const unsigned i = swapped ? column : row, j = swapped ? row : column;
    h += ((size_t)blockIdx.y * (prefixes + side * side) + prefixes) * width;
    out += ((size_t)blockIdx.y * across * across + token) * s * s * width;
    for (unsigned at = threadIdx.x * VALUES; at < s * s * width; at += blockDim.x * VALUES) {
        const unsigned patch = at / width, a = patch / s, b = patch % s;
        store<VALUES>(out + at, load<VALUES>(h + (size_t)((s * i + a) * side + s * j + b) * width + at % width));
    }
}

#define SHUFFLE(name, T)                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(256)                                                                                    \
        name(const T* h, T* out, unsigned prefixes, unsigned side, unsigned s, unsigned swapped, unsigned width) {                       \
        pixel_shuffle<T>(h, out, prefixes, side, s, swapped, width);                                                                     \
    }                                                                                                                                    \
    EXPORT(name)

SHUFFLE(pixel_shuffle_f32, float)
SHUFFLE(pixel_shuffle_bf16, bf16)

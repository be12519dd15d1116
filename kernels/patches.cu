// The input of the vision tower: pixels to the rows of the patch product, and its rows to the
// residual stream.
//
//   cut_patches:     patch[p][c, y, x] = pixels[c][row(p) side + y][column(p) side + x]
//   write_residual:  h = prefix tokens unchanged, then  embedded + position
//
// pixels [tiles, 3, tile, tile] in float32, patches [tiles x count, 3 side^2] in T, row-major over
// the tile; prefix [prefixes, width] and embedded [tiles x count, width] in T, positions [count,
// width] in float32 (the table at the tile's size), h [tiles, prefixes + count, width] in T.
//
// A block has a patch, or a token. Bytes a tile of 512 x 512: pixels 3.1 MB, patches 1.6 MB written
// and read, rows 2.6 MB read and written, positions from the second-level cache: 12 MB, 3 us at 4.3
// TB/s.
#include "device.cuh"

constexpr int VALUES = 8;

template <class T> __device__ __forceinline__ void cut_patches(const float* pixels, T* patches, unsigned tile, unsigned side) {
    const unsigned across = tile / side, count = across * across, patch = blockIdx.x, values = 3 * side * side;
    pixels += (size_t)blockIdx.y * 3 * tile * tile + (size_t)(patch / across) * side * tile + patch % across * side;
    patches += ((size_t)blockIdx.y * count + patch) * values;
    for (unsigned i = threadIdx.x; i < values; i += blockDim.x) {
        const unsigned channel = i / (side * side), y = i / side % side, x = i % side;
        patches[i] = narrow<T>(pixels[((size_t)channel * tile + y) * tile + x]);
    }
}

template <class T>
__device__ __forceinline__ void write_residual(const T* prefix, unsigned prefixes, const T* embedded, const float* positions, T* h, unsigned count,
                                              unsigned width) {
    const unsigned token = blockIdx.x;
    h += ((size_t)blockIdx.y * (prefixes + count) + token) * width;
    for (unsigned i = threadIdx.x * VALUES; i < width; i += blockDim.x * VALUES) {
        float values[VALUES];
        if (token < prefixes) {
            load_floats(prefix + (size_t)token * width + i, values);
        } else {
            const unsigned patch = token - prefixes;
            float position[VALUES];
            load_floats(embedded + ((size_t)blockIdx.y * count + patch) * width + i, values);
            load_floats(positions + (size_t)patch * width + i, position);
#pragma unroll
            for (int v = 0; v < VALUES; v++) values[v] += position[v];
        }
        store_floats(h + i, values);
    }
}

#define PATCHES(T, cut, write)                                                                                                               \
    extern "C" __global__ void __launch_bounds__(256) cut(const float* pixels, T* patches, unsigned tile, unsigned side) {                   \
        cut_patches<T>(pixels, patches, tile, side);                                                                                         \
    }                                                                                                                                        \
    EXPORT(cut)                                                                                                                              \
    extern "C" __global__ void __launch_bounds__(256)                                                                                        \
        write(const T* prefix, unsigned prefixes, const T* embedded, const float* positions, T* h, unsigned count, unsigned width) {         \
        write_residual<T>(prefix, prefixes, embedded, positions, h, count, width);                                                           \
    }                                                                                                                                        \
    EXPORT(write)

PATCHES(float, cut_patches_f32, write_residual_f32)
PATCHES(bf16, cut_patches_bf16, write_residual_bf16)

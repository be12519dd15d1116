// Full attention inside tiles: every token of a tile attends to every token of it, without a mask;
// tiles do not attend to each other.
//
//   out = softmax(q k^T / sqrt(size)) v
//
// qkv [tiles x tokens, 3 heads size]: q | k | v, each head-major, biases added; out [tiles x
// tokens, heads size]; sums and softmax in float32.
//
// attend_image_64, _80: in bfloat16, heads of 64 or 80. A block has a head and 64 query tokens of a
// tile, a warp 16 of them. Keys and values pass through shared memory in tiles of 64, one tile
// ahead; after the last token zeros are copied and masked.
//
// Operations: 4 x 1,040^2 x 80 x 16 heads = 5.5 GFLOP a tile and block, 7 us at 788 TFLOP/s, 0.22
// ms a tile for 32 blocks. 1,040 = 16 x 65 tokens waste 3/4 of the last of 17 query tiles.
//
// attend_image_f32, _bf16: any head size up to 256, the plain form: a warp has a query token, as in
// attending_plainly.cuh. Keys and values are read for every query: 4 x 1,040^2 x 80 x 16 bytes from
// a cache for each tile and block in float32.
#include "attending.cuh"
#include "attending_plainly.cuh"

constexpr int WARPS = 4, TOKENS = 16 * WARPS, PAD = 8;

template <int SIZE> __device__ __forceinline__ void attend_image(const bf16* qkv, bf16* out, unsigned tokens, unsigned heads, float scale) {
    constexpr unsigned STRIDE = SIZE + PAD, KEY_TILE = TOKENS * STRIDE;
    const unsigned head = blockIdx.x, first = blockIdx.y * TOKENS, hidden = heads * SIZE, stride = 3 * hidden;
    const unsigned key_tiles = (tokens + TOKENS - 1) / TOKENS;
    qkv += (size_t)blockIdx.z * tokens * stride + head * SIZE;
    Shared shared;
    bf16* queries = shared.take<bf16>(KEY_TILE);
    bf16* pairs = shared.take<bf16>(4 * KEY_TILE);  // two tiles of keys and values

    const auto begin_key_tile = [&](unsigned key_tile) {
        if (key_tile < key_tiles) {
            const bf16* keys = qkv + (size_t)key_tile * TOKENS * stride + hidden;
            bf16* to = pairs + key_tile % 2 * 2 * KEY_TILE;
            begin_rows<SIZE, TOKENS>(to, STRIDE, keys, stride, tokens - key_tile * TOKENS);
            begin_rows<SIZE, TOKENS>(to + KEY_TILE, STRIDE, keys + hidden, stride, tokens - key_tile * TOKENS);
        }
        copy_commit();
    };
    begin_rows<SIZE, TOKENS>(queries, STRIDE, qkv + (size_t)first * stride, stride, tokens - first);
    begin_key_tile(0);
    copy_wait<0>();
    __syncthreads();  // the queries and the first tile are complete
    const unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, own = first + warp * 16 + lane / 4;
    Attending<SIZE> rows;
    rows.begin(queries + warp * 16 * STRIDE, STRIDE);
    for (unsigned key_tile = 0; key_tile < key_tiles; key_tile++) {
        begin_key_tile(key_tile + 1);
        const bf16* keys = pairs + key_tile % 2 * 2 * KEY_TILE;
        const int visible = (int)(tokens - key_tile * TOKENS);
        rows.template take<8>(keys, keys + KEY_TILE, STRIDE, scale, {visible, visible});
        copy_wait<0>();
        __syncthreads();  // this tile may be overwritten, the next one is complete
    }
    rows.end();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (own + half * 8 >= tokens) continue;
        bf16* to = out + ((size_t)blockIdx.z * tokens + own + half * 8) * hidden + head * SIZE + lane % 4 * 2;
        const float scale_out = 1.0f / rows.sum[half];
#pragma unroll
        for (int j = 0; j < SIZE / 8; j++) {
            const float two[2] = {rows.out[j][half * 2] * scale_out, rows.out[j][half * 2 + 1] * scale_out};
            store_floats(to + j * 8, two);
        }
    }
}

template <class T>
__device__ __forceinline__ void attend_plainly(const T* qkv, T* out, unsigned tokens, unsigned heads, unsigned size, float scale) {
    const unsigned head = blockIdx.x, token = blockIdx.y * WARPS + threadIdx.x / WARP;
    if (token >= tokens) return;
    const unsigned hidden = heads * size, stride = 3 * hidden;
    const T* of_tile = qkv + (size_t)blockIdx.z * tokens * stride + head * size;
    const T* q = of_tile + (size_t)token * stride;
    AttendingPlainly own;
    for (unsigned first = 0; first < tokens; first += WARP) {
        const T* keys = of_tile + (size_t)first * stride + hidden;
        own.take(q, keys, keys + hidden, stride, size, scale, tokens - first);
    }
    own.end(out + ((size_t)blockIdx.z * tokens + token) * hidden + head * size, size);
}

#define IMAGE(name, SIZE)                                                                                                            \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP)                                                                       \
        name(const bf16* qkv, bf16* out, unsigned tokens, unsigned heads, float scale) {                                             \
        attend_image<SIZE>(qkv, out, tokens, heads, scale);                                                                          \
    }                                                                                                                                \
    EXPORT(name)

IMAGE(attend_image_64, 64)
IMAGE(attend_image_80, 80)

#define IMAGE_PLAINLY(name, T)                                                                                                       \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP)                                                                       \
        name(const T* qkv, T* out, unsigned tokens, unsigned heads, unsigned size, float scale) {                                    \
        attend_plainly<T>(qkv, out, tokens, heads, size, scale);                                                                     \
    }                                                                                                                                \
    EXPORT(name)

IMAGE_PLAINLY(attend_image_f32, float)
IMAGE_PLAINLY(attend_image_bf16, bf16)

// The experts of a mixture over a batch: groups rows by expert, computes two products with every
// expert's own weights, and sums over each row's experts.
//
//   wide[p] = max(W_up[e] x[row of p], 0)^2 for the pairs p of a row and an expert e that it chose
//   answered[p] = W_down[e] wide[p]
//   out[row]    = sum over the row's experts, ascending, of weight * answered
//
// chosen [m, k] as moe_route.cu writes it: pair r k + i is row r and its i-th expert. Grouping is a
// stable sort by expert: `order` [m k] has the pairs one expert after another with rows ascending,
// `sorted_index` [m k] where each pair is in it, `offsets` [experts + 1] the first pair of each
// expert. `tiles` divides the experts' pairs into groups of 64; their number depends on the choice,
// so the list has the maximum length and ends in empty tiles.
// x [m, stride] in T, W_up [experts, inner, width], W_down [experts, width, inner]; wide [m k, inner] in T, answered [m k, width] in float32.
//
// A row's sums run over k and over its experts in fixed order, with any rows in its tile: its
// result does not depend on the batch.
//
// The product by tiles: a block has a tile and 64 columns, a warp 16 of its rows; 64 columns of x
// and of W at a time are copied to shared memory one step ahead. Bytes: the weights of every expert
// that some row chose, once if at most 64 rows chose it. 128 experts of 2,688 x 1,856, six a row:
// 100 rows choose nearly all, 128 x 2 x 2,688 x 1,856 x 2 B = 2.55 GB, 0.59 ms at 4.3 TB/s; with
// 1,852 rows each has 87: two tiles of 64, 2.2e11 operations, 0.28 ms at 788 TFLOP/s, still less
// than the bytes of the weights take.
#include "device.cuh"

constexpr unsigned NONE = 0xffffffffu, ROWS = 64;

// Sums of a value over the threads up to and including this one, and over all. `counts` has an
// entry for each warp; a barrier must pass before it is reused.
__device__ __forceinline__ unsigned block_prefix(unsigned value, unsigned& all, unsigned* counts) {
    const unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
    for (int by = 1; by < (int)WARP; by *= 2) {
        const unsigned lower = shuffle_up(value, by);
        if ((int)lane >= by) value += lower;
    }
    if (lane == WARP - 1) counts[warp] = value;
    __syncthreads();  // the counts of all warps are complete
    all = 0;
    for (unsigned w = 0; w < blockDim.x / WARP; w++) {
        if (w < warp) value += counts[w];
        all += counts[w];
    }
    return value;
}

// A block has an expert.
extern "C" __global__ void __launch_bounds__(256)
    group_rows(const unsigned* chosen, unsigned pairs, unsigned* order, unsigned* sorted_index, unsigned* offsets) {
    Shared shared;
    unsigned* counts = shared.take<unsigned>(2 * WARP);
    const unsigned expert = blockIdx.x;
    unsigned lower = 0, begin = 0;
    for (unsigned p = threadIdx.x; p < pairs; p += blockDim.x) lower += chosen[p] < expert;
    block_prefix(lower, begin, counts);
    if (threadIdx.x == 0) {
        offsets[expert] = begin;
        if (expert == gridDim.x - 1) offsets[expert + 1] = pairs;
    }
    unsigned round = 0;
    for (unsigned first = 0; first < pairs; first += blockDim.x) {
        const unsigned p = first + threadIdx.x;
        const bool mine = p < pairs && chosen[p] == expert;
        unsigned all = 0;
        // Two sets of counts in turn: a warp that is in the next round writes to the other one.
        const unsigned at = begin + block_prefix(mine, all, counts + ++round % 2 * WARP) - 1;
        if (mine) {
            order[at] = p;
            sorted_index[p] = at;
        }
        begin += all;
    }
}
EXPORT(group_rows)

// One block. `tiles_max`: length of the list of tiles.
extern "C" __global__ void __launch_bounds__(256) cut_tiles(const unsigned* offsets, unsigned experts, Tile* tiles, unsigned tiles_max) {
    Shared shared;
    unsigned* counts = shared.take<unsigned>(2 * WARP);
    unsigned used = 0, round = 0;
    for (unsigned first = 0; first < experts; first += blockDim.x) {
        const unsigned expert = first + threadIdx.x;
        const unsigned rows = expert < experts ? offsets[expert + 1] - offsets[expert] : 0, own = (rows + ROWS - 1) / ROWS;
        unsigned all = 0;
        const unsigned begin = used + block_prefix(own, all, counts + ++round % 2 * WARP) - own;
        for (unsigned i = 0; i < own; i++) tiles[begin + i] = {expert, i * ROWS};
        used += all;
    }
    for (unsigned t = used + threadIdx.x; t < tiles_max; t += blockDim.x) tiles[t] = {0, NONE};
}
EXPORT(cut_tiles)

// Common to both products: the pairs of a tile, and the position of a pair's input.
struct ExpertTile {
    unsigned expert, begin, rows;  // no rows: the tile is empty

    __device__ __forceinline__ ExpertTile(const Tile* tiles, const unsigned* offsets) {
        const Tile tile = tiles[blockIdx.y];
        expert = tile.span;
        begin = rows = 0;
        if (tile.first == NONE) return;
        begin = offsets[expert] + tile.first;
        const unsigned left = offsets[expert + 1] - begin;
        rows = left < ROWS ? left : ROWS;
    }
    // For `up` an input row is a row of the batch, which k pairs share; for `down` it is the pair's
    // own.
    template <bool UP> __device__ __forceinline__ size_t input(unsigned row, const unsigned* order, unsigned k) const {
        return UP ? order[begin + row] / k : begin + row;
    }
};

__device__ __forceinline__ float squared_relu(float value) { return value < 0.0f ? 0.0f : value * value; }

// Any sizes: a thread has a column, and processes the tile's rows one after another.
template <bool UP, class T, class R>
__device__ __forceinline__ void plain_product(const T* x, unsigned stride, const unsigned* order, unsigned k, const Tile* tiles, const unsigned* offsets,
                                              const T* w, R* out, unsigned input, unsigned width) {
    const ExpertTile tile(tiles, offsets);
    const unsigned column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= width) return;
    const T* own = w + ((size_t)tile.expert * width + column) * input;
    for (unsigned row = 0; row < tile.rows; row++) {
        const T* from = x + tile.input<UP>(row, order, k) * stride;
        float sum = 0.0f;
        for (unsigned i = 0; i < input; i++) sum = fmaf(widen(own[i]), widen(from[i]), sum);
        out[(size_t)(tile.begin + row) * width + column] = narrow<R>(UP ? squared_relu(sum) : sum);
    }
}

#define PLAIN(name, UP, T, R)                                                                                                                     \
    extern "C" __global__ void __launch_bounds__(128)                                                                                             \
        name(const T* x, unsigned stride, const unsigned* order, unsigned k, const Tile* tiles, const unsigned* offsets, const T* w, R* out,      \
             unsigned input, unsigned width) {                                                                                                    \
        plain_product<UP, T, R>(x, stride, order, k, tiles, offsets, w, out, input, width);                                                       \
    }                                                                                                                                             \
    EXPORT(name)

PLAIN(experts_up_f32, true, float, float)
PLAIN(experts_down_f32, false, float, float)
PLAIN(experts_up_bf16, true, bf16, bf16)
PLAIN(experts_down_bf16, false, bf16, float)

constexpr int WARPS = 4, COLUMNS = 64, DEPTH = 64, PAD = 8, STRIDE = DEPTH + PAD, STAGE = (ROWS + COLUMNS) * STRIDE;

// Only sizes that are multiples of 64.
template <bool UP, class R>
__device__ __forceinline__ void tile_product(const bf16* x, unsigned stride, const unsigned* order, unsigned k, const Tile* tiles, const unsigned* offsets,
                                             const bf16* w, R* out, unsigned input, unsigned width) {
    const ExpertTile tile(tiles, offsets);
    if (tile.rows == 0) return;
    Shared shared;
    bf16* stages = shared.take<bf16>(2 * STAGE);  // rows of x, then rows of W, of two steps
    constexpr int THREADS = WARPS * WARP, PACKS = DEPTH / 8, COPIES = ROWS * PACKS / THREADS;
    const unsigned at = threadIdx.x % PACKS * 8;
    const bf16* columns = w + ((size_t)tile.expert * width + blockIdx.x * COLUMNS) * input;
    const bf16* rows[COPIES];
#pragma unroll
    for (int c = 0; c < COPIES; c++) {
        const unsigned row = (threadIdx.x + c * THREADS) / PACKS;
        rows[c] = x + (row < tile.rows ? tile.input<UP>(row, order, k) : 0) * stride + at;
    }
    const auto begin_step = [&](unsigned first) {
        if (first < input) {
            bf16* to = stages + first / DEPTH % 2 * STAGE;
#pragma unroll
            for (int c = 0; c < COPIES; c++) {
                const unsigned row = (threadIdx.x + c * THREADS) / PACKS;
                copy_async(to + row * STRIDE + at, rows[c] + first, row < tile.rows);
                copy_async(to + (ROWS + row) * STRIDE + at, columns + (size_t)row * input + first + at, true);
            }
        }
        copy_commit();
    };
    begin_step(0);
    copy_wait<0>();
    __syncthreads();  // the first step is complete
    const unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, low = lane / 8 % 2 * 8, high = lane / 16 * 8;
    float sums[COLUMNS / 8][4] = {};
    for (unsigned first = 0; first < input; first += DEPTH) {
        begin_step(first + DEPTH);
        const bf16* left = stages + first / DEPTH % 2 * STAGE + (warp * 16 + lane % 8 + low) * STRIDE + high;
        const bf16* right = stages + first / DEPTH % 2 * STAGE + (ROWS + lane % 8 + high) * STRIDE + low;
#pragma unroll
        for (int d = 0; d < DEPTH; d += 16) {
            unsigned a[4];
            load_matrices(a, left + d);
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; j += 2) {
                unsigned b[4];
                load_matrices(b, right + j * 8 * STRIDE + d);
                mma(sums[j], a, {b[0], b[1]});
                mma(sums[j + 1], a, {b[2], b[3]});
            }
        }
        copy_wait<0>();
        __syncthreads();  // this step may be overwritten, the next one is complete
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const unsigned row = warp * 16 + lane / 4 + half * 8;
        if (row >= tile.rows) continue;
        R* to = out + (size_t)(tile.begin + row) * width + blockIdx.x * COLUMNS + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j++) {
            float two[2] = {sums[j][half * 2], sums[j][half * 2 + 1]};
            if (UP) two[0] = squared_relu(two[0]), two[1] = squared_relu(two[1]);
            store_floats(to + j * 8, two);
        }
    }
}

#define TILES(name, UP, R)                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP)                                                                                    \
        name(const bf16* x, unsigned stride, const unsigned* order, unsigned k, const Tile* tiles, const unsigned* offsets, const bf16* w,        \
             R* out, unsigned input, unsigned width) {                                                                                            \
        tile_product<UP, R>(x, stride, order, k, tiles, offsets, w, out, input, width);                                                           \
    }                                                                                                                                             \
    EXPORT(name)

TILES(experts_up_tiles, true, bf16)
TILES(experts_down_tiles, false, float)

// A block has a row, a thread some of its columns.
template <class T>
__device__ __forceinline__ void join_experts(const float* answered, const unsigned* sorted_index, const float* weights, unsigned k, T* out, unsigned width) {
    const unsigned row = blockIdx.x;
    for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
        float sum = 0.0f;
        for (unsigned e = 0; e < k; e++) sum = fmaf(answered[(size_t)sorted_index[row * k + e] * width + i], weights[row * k + e], sum);
        out[(size_t)row * width + i] = narrow<T>(sum);
    }
}

#define JOIN(name, T)                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(256)                                                                                             \
        name(const float* answered, const unsigned* sorted_index, const float* weights, unsigned k, T* out, unsigned width) {                     \
        join_experts<T>(answered, sorted_index, weights, k, out, width);                                                                          \
    }                                                                                                                                             \
    EXPORT(name)

JOIN(join_experts_f32, float)
JOIN(join_experts_bf16, bf16)

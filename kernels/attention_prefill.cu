// Grouped-query attention of many new tokens a span over the span's pages.
//
// Mathematics and layouts as in attention.cu, in bfloat16; head size 64 or 128. The keys and values
// of the new tokens have been stored.
//
// A block has a query head and a tile of 64 new tokens, a warp 16 of them. It processes the pages
// up to the tile's last position; a page's keys and values are copied to shared memory one page
// ahead. Pages begin at absolute positions, so a row sums in the same order for any cut of its
// prefill.
//
// Operations: 4 x size a key and query head, half of them masked at the beginning of a prompt:
// 1,852 tokens after 16,384 of the 12B: 40 heads x 1,852 x 17,310 x 512 = 0.66 TFLOP a layer, 0.83
// ms at 788 TFLOP/s. Bytes: each tile of each head reads a page from the second-level cache.
#include "attending.cuh"
#include "pages.cuh"

constexpr int WARPS = 4, TOKENS = 16 * WARPS, PAD = 8;

template <int SIZE>
__device__ __forceinline__ void attend_tile(const bf16* qkv, unsigned stride, const Span* spans, const Tile* tiles, Pages<bf16> pages, bf16* out,
                                            unsigned heads, float scale) {
    constexpr unsigned STRIDE = SIZE + PAD, PAGE = PAGE_TOKENS * STRIDE;
    const unsigned head = blockIdx.x, kv_head = head / (heads / pages.kv_heads);
    const Tile tile = tiles[blockIdx.y];
    const Span span = spans[tile.span];
    if (tile.first >= span.length) return;
    const unsigned rows = span.length - tile.first < TOKENS ? span.length - tile.first : TOKENS;
    const unsigned row = span.base + tile.first, position = span.start + tile.first, end = (position + rows - 1) / PAGE_TOKENS + 1;
    Shared shared;
    bf16* queries = shared.take<bf16>(TOKENS * STRIDE);
    bf16* pairs = shared.take<bf16>(4 * PAGE);  // keys and values of two pages

    const auto begin_page = [&](unsigned index) {
        if (index < end) {
            const bf16* keys = pages.keys(tile.span, index, kv_head);
            // Memory after the tile's last position may never have been written: copy zeros
            // instead, because 0 times NaN is not 0.
            const unsigned there = position + rows - index * PAGE_TOKENS;
            bf16* to = pairs + index % 2 * 2 * PAGE;
            begin_rows<SIZE, PAGE_TOKENS>(to, STRIDE, keys, SIZE, there);
            begin_rows<SIZE, PAGE_TOKENS>(to + PAGE, STRIDE, keys + PAGE_TOKENS * SIZE, SIZE, there);
        }
        copy_commit();
    };
    begin_rows<SIZE, TOKENS>(queries, STRIDE, qkv + (size_t)row * stride + head * SIZE, stride, rows);
    begin_page(0);
    copy_wait<0>();
    __syncthreads();  // the queries and the first page are complete
    const unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, own = warp * 16 + lane / 4;
    Attending<SIZE> rows_of_warp;
    rows_of_warp.begin(queries + warp * 16 * STRIDE, STRIDE);
    for (unsigned index = 0; index < end; index++) {
        begin_page(index + 1);
        const bf16* keys = pairs + index % 2 * 2 * PAGE;
        const int visible = (int)(position + own + 1) - (int)(index * PAGE_TOKENS);
        rows_of_warp.template take<8>(keys, keys + PAGE, STRIDE, scale, {visible, visible + 8});
        copy_wait<0>();
        __syncthreads();  // this page may be overwritten, the next one is complete
    }
    rows_of_warp.end();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (own + half * 8 >= rows) continue;
        bf16* to = out + ((size_t)(row + own + half * 8) * heads + head) * SIZE + lane % 4 * 2;
        const float scale_out = 1.0f / rows_of_warp.sum[half];
#pragma unroll
        for (int j = 0; j < SIZE / 8; j++) {
            const float two[2] = {rows_of_warp.out[j][half * 2] * scale_out, rows_of_warp.out[j][half * 2 + 1] * scale_out};
            store_floats(to + j * 8, two);
        }
    }
}

#define PREFILL(name, SIZE)                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP)                                                                                \
        name(const bf16* qkv, unsigned stride, const Span* spans, const Tile* tiles, bf16* pages, unsigned long long page_stride,             \
             const unsigned* table, unsigned table_stride, bf16* out, unsigned heads, unsigned kv_heads, float scale) {                       \
        attend_tile<SIZE>(qkv, stride, spans, tiles, {pages, page_stride, table, table_stride, kv_heads, SIZE}, out, heads, scale);           \
    }                                                                                                                                         \
    EXPORT(name)

PREFILL(attend_tile_64, 64)
PREFILL(attend_tile_128, 128)

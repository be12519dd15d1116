// Grouped-query attention of one new token a span, split over the context: the pages of every span
// are divided among blocks, whose partial results are combined.
//
// Mathematics and layouts as in attention.cu, in bfloat16; head size 64 or 128, at most 16 query
// heads a KV head. A span's row is `base`, its position `start`; the keys of all positions up to
// that one have been stored. A span of length 0 is an unused entry of a fixed-size batch.
//
// attend_split: a block has a KV head, a span and `split_pages` of its pages; the query heads of
// the group are the rows of one 16-row product. Each of 4 warps takes 16 keys of every page; pages
// are copied to shared memory one ahead. The parts, unnormalised, go to parts [spans, splits,
// heads, size] with their maxima (to base 2) and sums [spans, splits, heads, 2], in float32.
// join_splits: a block has a head of a span and combines its parts. The number of pages a split is
// fixed, so the grouping of sums does not depend on the batch.
//
// Bytes: keys and values read once, 4 x kv_heads x size a position: 4,096 for a layer of the 12B;
// 100 sessions at 8,192 tokens: 3.4 GB, 0.78 ms at 4.3 TB/s, 4.7 ms a step for 6 layers. The parts
// are 1.6 % of that at 8 pages a split.
#include "attending.cuh"
#include "pages.cuh"

constexpr int WARPS = 4, GROUP_MAX = 16, PAD = 8;

__device__ __forceinline__ unsigned pages_of(const Span& span) { return span.start / PAGE_TOKENS + 1; }

template <int SIZE>
__device__ __forceinline__ void attend_split(const bf16* qkv, unsigned stride, const Span* spans, Pages<bf16> pages, float* parts, float* weights,
                                             unsigned heads, unsigned split_pages, float scale) {
    constexpr unsigned STRIDE = SIZE + PAD, PAGE = PAGE_TOKENS * STRIDE;
    const unsigned kv_head = blockIdx.x, split = blockIdx.y, splits = gridDim.y, number = blockIdx.z, group = heads / pages.kv_heads;
    const Span span = spans[number];
    const unsigned first = split * split_pages;
    if (span.length == 0 || first >= pages_of(span)) return;
    const unsigned end = pages_of(span) - first < split_pages ? pages_of(span) : first + split_pages;
    Shared shared;
    bf16* queries = shared.take<bf16>(GROUP_MAX * STRIDE);
    bf16* pairs = shared.take<bf16>(4 * PAGE);  // keys and values of two pages

    const auto begin_page = [&](unsigned index) {
        if (index < end) {
            const bf16* keys = pages.keys(number, index, kv_head);
            // Memory after the newest position was never written: copy zeros instead, because 0
            // times NaN is not 0.
            const unsigned there = span.start - index * PAGE_TOKENS + 1;
            bf16* to = pairs + index % 2 * 2 * PAGE;
            begin_rows<SIZE, PAGE_TOKENS>(to, STRIDE, keys, SIZE, there);
            begin_rows<SIZE, PAGE_TOKENS>(to + PAGE, STRIDE, keys + PAGE_TOKENS * SIZE, SIZE, there);
        }
        copy_commit();
    };
    begin_rows<SIZE, GROUP_MAX>(queries, STRIDE, qkv + (size_t)span.base * stride + kv_head * group * SIZE, SIZE, group);
    begin_page(first);
    copy_wait<0>();
    __syncthreads();  // the queries and the first page are complete
    const unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    Attending<SIZE> rows;
    rows.begin(queries, STRIDE);
    for (unsigned index = first; index < end; index++) {
        begin_page(index + 1);
        const bf16* keys = pairs + index % 2 * 2 * PAGE + warp * 16 * STRIDE;
        const int visible = (int)(span.start + 1 - index * PAGE_TOKENS) - (int)warp * 16;
        rows.template take<2>(keys, keys + PAGE, STRIDE, scale, {visible, visible});
        copy_wait<0>();
        __syncthreads();  // this page may be overwritten, the next one is complete
    }
    rows.end();

    // The warps' rows side by side, in the memory of the pages: outputs, maxima, sums.
    float* outs = reinterpret_cast<float*>(pairs);
    float* most = outs + WARPS * GROUP_MAX * SIZE;
    float* sums = most + WARPS * GROUP_MAX;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const unsigned row = warp * GROUP_MAX + lane / 4 + half * 8;
        if (lane % 4 == 0) {
            most[row] = rows.most[half];
            sums[row] = rows.sum[half];
        }
#pragma unroll
        for (int j = 0; j < SIZE / 8; j++) {
            const float two[2] = {rows.out[j][half * 2], rows.out[j][half * 2 + 1]};
            store_floats(outs + row * SIZE + j * 8 + lane % 4 * 2, two);
        }
    }
    __syncthreads();
    const size_t part = ((size_t)number * splits + split) * heads + kv_head * group;
    for (unsigned i = threadIdx.x; i < group * SIZE; i += blockDim.x) {
        const unsigned row = i / SIZE;
        // Position 0 of every page is visible, so the first warp has a visible key.
        float highest = most[row], out = 0.0f, sum = 0.0f;
        for (unsigned w = 1; w < WARPS; w++) highest = fmaxf(highest, most[w * GROUP_MAX + row]);
        for (unsigned w = 0; w < WARPS; w++) {
            const float share = exp2_approx(most[w * GROUP_MAX + row] - highest);
            out = fmaf(share, outs[(w * GROUP_MAX + row) * SIZE + i % SIZE], out);
            sum = fmaf(share, sums[w * GROUP_MAX + row], sum);
        }
        parts[part * SIZE + i] = out;
        if (i % SIZE == 0) {
            weights[(part + row) * 2] = highest;
            weights[(part + row) * 2 + 1] = sum;
        }
    }
}

#define DECODE(name, SIZE)                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP)                                                                                  \
        name(const bf16* qkv, unsigned stride, const Span* spans, bf16* pages, unsigned long long page_stride, const unsigned* table,           \
             unsigned table_stride, float* parts, float* weights, unsigned heads, unsigned kv_heads, unsigned split_pages, float scale) {       \
        attend_split<SIZE>(qkv, stride, spans, {pages, page_stride, table, table_stride, kv_heads, SIZE}, parts, weights, heads, split_pages,   \
                           scale);                                                                                                              \
    }                                                                                                                                           \
    EXPORT(name)

DECODE(attend_split_64, 64)
DECODE(attend_split_128, 128)

extern "C" __global__ void __launch_bounds__(256)
    join_splits(const float* parts, const float* weights, const Span* spans, bf16* out, unsigned heads, unsigned size, unsigned splits, unsigned split_pages) {
    const unsigned head = blockIdx.x, number = blockIdx.y;
    const Span span = spans[number];
    if (span.length == 0) return;
    const unsigned used = (pages_of(span) + split_pages - 1) / split_pages;
    const size_t part = (size_t)number * splits * heads + head;
    for (unsigned i = threadIdx.x; i < size; i += blockDim.x) {
        float highest = -INFINITY, sum = 0.0f, total = 0.0f;
        for (unsigned s = 0; s < used; s++) highest = fmaxf(highest, weights[(part + (size_t)s * heads) * 2]);
        for (unsigned s = 0; s < used; s++) {
            const float share = exp2_approx(weights[(part + (size_t)s * heads) * 2] - highest);
            sum = fmaf(share, parts[(part + (size_t)s * heads) * size + i], sum);
            total = fmaf(share, weights[(part + (size_t)s * heads) * 2 + 1], total);
        }
        out[((size_t)span.base * heads + head) * size + i] = narrow<bf16>(sum / total);
    }
}
EXPORT(join_splits)

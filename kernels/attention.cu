// Writes keys and values to their pages; and grouped-query attention over pages for any type and
// head size, the plain form.
//
//   out = softmax(q K^T / sqrt(size)) V, causal: a row at position p sees 0..p; query head h uses
//   KV head h / (heads / kv_heads)
//
// qkv [rows, stride]: q of all heads, k, v of all KV heads; pages as in pages.cuh; out [rows, heads
// x size]; all in T, sums and softmax in float32. span_of [rows] is the span of each row.
// attention_decode.cu and attention_prefill.cu are faster where they apply (bfloat16, head size 64
// or 128).
//
// store_kv: a block for each row; bytes a row: 4 x kv_heads x size x 2. attend: a warp for each row
// and query head, as in attending_plainly.cuh. The head size is at most 256.
#include "attending_plainly.cuh"
#include "pages.cuh"

constexpr int WARPS = 4;

template <class T>
__device__ __forceinline__ void store_kv(const T* qkv, unsigned stride, const Span* spans, const unsigned* span_of, Pages<T> pages, unsigned heads) {
    const unsigned row = blockIdx.x, span = span_of[row], position = spans[span].start + row - spans[span].base;
    const unsigned width = pages.kv_heads * pages.size;
    const T* from = qkv + (size_t)row * stride + heads * pages.size;
    for (unsigned i = threadIdx.x; i < 2 * width; i += blockDim.x) {
        const unsigned half = i / width, head = i % width / pages.size, at = i % pages.size;
        T* keys = pages.keys(span, position / PAGE_TOKENS, head);
        keys[(half * PAGE_TOKENS + position % PAGE_TOKENS) * pages.size + at] = from[i];
    }
}

template <class T>
__device__ __forceinline__ void attend(const T* qkv, unsigned stride, const Span* spans, const unsigned* span_of, Pages<T> pages, T* out, unsigned rows,
                                       unsigned heads, float scale) {
    const unsigned task = blockIdx.x * WARPS + threadIdx.x / WARP, size = pages.size;
    if (task >= rows * heads) return;
    const unsigned row = task / heads, head = task % heads, kv_head = head / (heads / pages.kv_heads), span = span_of[row];
    const unsigned visible = spans[span].start + row - spans[span].base + 1;
    const T* q = qkv + (size_t)row * stride + head * size;
    AttendingPlainly own;
    for (unsigned first = 0; first < visible; first += WARP) {
        // 32 keys of one page, because 64 is a multiple of 32.
        const T* keys = pages.keys(span, first / PAGE_TOKENS, kv_head) + first % PAGE_TOKENS * size;
        own.take(q, keys, keys + (size_t)PAGE_TOKENS * size, size, size, scale, visible - first);
    }
    own.end(out + ((size_t)row * heads + head) * size, size);
}

#define ATTENTION(T, store_name, attend_name)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(256)                                                                                           \
        store_name(const T* qkv, unsigned stride, const Span* spans, const unsigned* span_of, T* pages, unsigned long long page_stride,         \
                   const unsigned* table, unsigned table_stride, unsigned heads, unsigned kv_heads, unsigned size) {                            \
        store_kv<T>(qkv, stride, spans, span_of, {pages, page_stride, table, table_stride, kv_heads, size}, heads);                             \
    }                                                                                                                                           \
    EXPORT(store_name)                                                                                                                          \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP)                                                                                  \
        attend_name(const T* qkv, unsigned stride, const Span* spans, const unsigned* span_of, T* pages, unsigned long long page_stride,        \
                    const unsigned* table, unsigned table_stride, T* out, unsigned rows, unsigned heads, unsigned kv_heads, unsigned size,      \
                    float scale) {                                                                                                              \
        attend<T>(qkv, stride, spans, span_of, {pages, page_stride, table, table_stride, kv_heads, size}, out, rows, heads, scale);             \
    }                                                                                                                                           \
    EXPORT(attend_name)

ATTENTION(float, store_kv_f32, attend_f32)
ATTENTION(bf16, store_kv_bf16, attend_bf16)

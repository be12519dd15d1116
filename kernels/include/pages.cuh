// Keys and values in pages of 64 positions. One layer's part of a page holds, for each KV head,
// keys [64, size] and then values [64, size], so a page and head is contiguous. A span's row of the
// page table has its pages in order; position p is in page p / 64.
#pragma once
#include "device.cuh"

constexpr unsigned PAGE_TOKENS = 64;

template <class T> struct Pages {
    T* values;                       // this layer's part of page 0
    unsigned long long page_stride;  // values from one page to the next
    const unsigned* table;           // [spans][table_stride]
    unsigned table_stride, kv_heads, size;

    // Keys of a KV head in the page at `index` of a span; its values are PAGE_TOKENS * size
    // further.
    __device__ __forceinline__ T* keys(unsigned span, unsigned index, unsigned kv_head) const {
        return values + table[(size_t)span * table_stride + index] * page_stride + (size_t)kv_head * 2 * PAGE_TOKENS * size;
    }
};

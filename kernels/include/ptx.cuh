// Instructions without a name in CUDA C++, each as a small function; under CPU_SHIM a version in
// plain C++ that does what the PTX manual specifies.
//
// Fragments of mma.m16n8k16, of lane l with g = l / 4 and t = l % 4 (PTX ISA, "Matrix Fragments for
// mma.m16n8k16"):
//   A, 16 x 16: a0 (g, 2t) and (g, 2t+1); a1 the same of row g+8; a2, a3 the same of columns + 8
//   B, 16 x 8:  b0 (2t, g) and (2t+1, g); b1 the same of rows + 8
//   C, 16 x 8:  c0 (g, 2t), c1 (g, 2t+1), c2 and c3 the same of row g+8
#pragma once

struct bf16 {
    unsigned short bits;
};

#ifndef CPU_SHIM

__device__ __forceinline__ float float_of_bits(unsigned bits) { return __uint_as_float(bits); }
__device__ __forceinline__ unsigned bits_of_float(float value) { return __float_as_uint(value); }

// To the nearest, ties to even.
__device__ __forceinline__ bf16 bf16_of(float value) {
    bf16 result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    return result;
}

// Two values in a register, the first in the low half.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
    unsigned result;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
}

// 2^x within 2 ulp; results under 2^-126 become 0.
__device__ __forceinline__ float exp2_approx(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// Never fused with the operation after it.
__device__ __forceinline__ float add_rounded(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float multiply_rounded(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double multiply_rounded(double a, double b) { return __dmul_rn(a, b); }

template <class T> __device__ __forceinline__ T shuffle_xor(T value, int mask) {
    return __shfl_xor_sync(0xffffffffu, value, mask);
}
template <class T> __device__ __forceinline__ T shuffle_up(T value, unsigned by) {
    return __shfl_up_sync(0xffffffffu, value, by);
}
template <class T> __device__ __forceinline__ T shuffle_from(T value, unsigned lane) {
    return __shfl_sync(0xffffffffu, value, lane);
}

// c += a b.
__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four 8 x 8 matrices; lane l passes the row l % 8 of matrix l / 8 in shared memory, 16 bytes each.
__device__ __forceinline__ void load_matrices(unsigned (&m)[4], const void* row) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(at) : "memory");
}

// The same, each matrix transposed.
__device__ __forceinline__ void load_transposed(unsigned (&m)[4], const void* row) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(at) : "memory");
}

// Starts copying 16 bytes to shared memory, or zeros if there is nothing to copy.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool there) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(there ? 16 : 0) : "memory");
}

// Closes the group of copies started since the last one.
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most LEFT groups of this thread are in progress; a barrier makes them visible to
// other threads.
template <int LEFT> __device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

#else

inline float float_of_bits(unsigned bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

inline unsigned bits_of_float(float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    return bits;
}

inline bf16 bf16_of(float value) {
    if (value != value) return {0x7fff};
    const unsigned bits = bits_of_float(value);
    return {(unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

inline unsigned pack_bf16(float low, float high) { return bf16_of(low).bits | (unsigned)bf16_of(high).bits << 16; }

inline float add_rounded(float a, float b) { return a + b; }
inline float multiply_rounded(float a, float b) { return a * b; }
inline double multiply_rounded(double a, double b) { return a * b; }

inline float exp2_approx(float x) { return x < -126.0f ? 0.0f : exp2f(x); }

template <class T> T shuffle_xor(T value, int mask) {
    const unsigned lane = threadIdx.x % 32;
    return shim_exchange(value, "shuffle_xor")[lane ^ (unsigned)mask];
}

template <class T> T shuffle_up(T value, unsigned by) {
    const unsigned lane = threadIdx.x % 32;
    return shim_exchange(value, "shuffle_up")[lane >= by ? lane - by : lane];
}

template <class T> T shuffle_from(T value, unsigned lane) { return shim_exchange(value, "shuffle_from")[lane % 32]; }

struct Operands {
    unsigned a[4], b[2];
};

inline void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    const auto all = shim_exchange(Operands{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}}, "mma");
    const unsigned lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float(*product)[8] = (float(*)[8])all.meeting.result;
    if (all.meeting.first) {
        float left[16][16], right[16][8];
        for (unsigned from = 0; from < 32; from++) {
            const Operands its = all[from];
            const unsigned row = from / 4, pair = from % 4 * 2;
            for (unsigned i = 0; i < 2; i++) {
                const auto half = [i](unsigned both) { return float_of_bits(i ? both & 0xffff0000u : both << 16); };
                for (unsigned r = 0; r < 4; r++) left[row + r % 2 * 8][pair + i + r / 2 * 8] = half(its.a[r]);
                for (unsigned r = 0; r < 2; r++) right[pair + i + r * 8][row] = half(its.b[r]);
            }
        }
        for (unsigned row = 0; row < 16; row++) {
            float sums[8] = {};
            for (unsigned k = 0; k < 16; k++)
                for (unsigned n = 0; n < 8; n++) sums[n] += left[row][k] * right[k][n];
            memcpy(product[row], sums, sizeof sums);
        }
    }
    for (unsigned i = 0; i < 4; i++) c[i] += product[g + i / 2 * 8][2 * t + i % 2];
}

struct Row {
    const unsigned short* at;
};

inline void load_matrices(unsigned (&m)[4], const void* row) {
    shim_shared_row(row);
    const auto all = shim_exchange(Row{(const unsigned short*)row}, "load_matrices");
    const unsigned lane = threadIdx.x % 32;
    for (unsigned i = 0; i < 4; i++) memcpy(&m[i], all[i * 8 + lane / 4].at + lane % 4 * 2, 4);
}

inline void load_transposed(unsigned (&m)[4], const void* row) {
    shim_shared_row(row);
    const auto all = shim_exchange(Row{(const unsigned short*)row}, "load_transposed");
    const unsigned lane = threadIdx.x % 32;
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = i * 8 + lane % 4 * 2;
        m[i] = all[row].at[lane / 4] | (unsigned)all[row + 1].at[lane / 4] << 16;
    }
}

inline void copy_async(void* to, const void* from, bool there) {
    shim_shared_row(to);
    shim_copy_begin(to, there ? from : nullptr);
}

inline void copy_commit() { shim_copy_commit(); }

template <int LEFT> void copy_wait() { shim_copy_wait(LEFT); }

#endif

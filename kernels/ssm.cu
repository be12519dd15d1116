// The Mamba-2 recurrence token by token: decode, short spans, any head and state size.
//
//   dt = softplus(dt + bias) within limits; S = exp(dt A) S + dt x B^T; y = S C + D x S [size, n]
//   of each head, float32 inside
//
// mixed [rows, mixed_stride] is x | B | C after the convolution, dt [rows, dt_stride] a slice of
// in_proj's rows, y [rows, heads x size], all in T; state [slots][slot_stride] of which [heads,
// size, n] is this layer's, in S; bias, a = -exp(A_log) and d [heads] in float32. A span with start
// = 0 begins from zeros, whatever its slot holds.
//
// A block has one head of one span and keeps its state in registers for all tokens of the span.
// With n = 128 a warp holds 8 rows of the state, a lane 4 neighbouring values of each: 8 loads of
// 512 bytes in flight for each warp. The 8 row sums are reduced across the lanes together, with 9
// shuffles instead of 40: at each halving a lane keeps half of its rows and passes the other half
// on.
//
// Bytes a token in decode: the state read and written, 2 x 128 x 80 x 128 x 4 = 10.5 MB a layer of
// the 12B; everything else is 0.6 %. 100 sessions: 1.05 GB, 244 us at 4.3 TB/s, 6.8 ms a step for
// 28 layers; half of that with a bfloat16 state.
#include "ssm.cuh"

constexpr int ROWS = 8, LANE_VALUES = 4, STATE = WARP * LANE_VALUES;

// Reduces 8 sums over the warp; lane l gets the sum of row l / 4 with its three bits reversed: 16
// -> 4, 8 -> 2, 4 -> 1, which is l / 4 itself.
__device__ __forceinline__ float sum_of_rows(const float (&sums)[ROWS]) {
    const unsigned lane = threadIdx.x % WARP;
    float fours[4], twos[2];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const bool upper = lane & 16;
        fours[i] = (upper ? sums[4 + i] : sums[i]) + shuffle_xor(upper ? sums[i] : sums[4 + i], 16);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const bool upper = lane & 8;
        twos[i] = (upper ? fours[2 + i] : fours[i]) + shuffle_xor(upper ? fours[i] : fours[2 + i], 8);
    }
    const bool upper = lane & 4;
    float sum = (upper ? twos[1] : twos[0]) + shuffle_xor(upper ? twos[0] : twos[1], 4);
    sum += shuffle_xor(sum, 2);
    return sum + shuffle_xor(sum, 1);
}

template <class T, class S>
__device__ __forceinline__ void ssm_128(const T* mixed, unsigned mixed_stride, const T* dt, unsigned dt_stride, const float* bias, const float* a,
                                        const float* d, float low, float high, S* state, unsigned long long slot_stride, const Span* spans,
                                        T* y, unsigned heads, unsigned groups, unsigned size) {
    const Span span = spans[blockIdx.y];
    if (span.length == 0) return;
    const unsigned head = blockIdx.x, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    const Mixed<T> inputs(mixed, mixed_stride, head, heads, groups, size, STATE);
    S* own = state + span.slot * slot_stride + (size_t)head * size * STATE + lane * LANE_VALUES;
    for (unsigned first = threadIdx.x / WARP * ROWS; first < size; first += warps * ROWS) {
        float values[ROWS][LANE_VALUES];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (span.start > 0) load_floats(own + (size_t)(first + r) * STATE, values[r]);
            else
#pragma unroll
                for (int i = 0; i < LANE_VALUES; i++) values[r][i] = 0.0f;
        }
        for (unsigned t = 0; t < span.length; t++) {
            const T* row = inputs.row(span.base + t);
            const float step = step_of(widen(dt[(size_t)(span.base + t) * dt_stride + head]), bias[head], low, high);
            const float decay = expf(step * a[head]);
            float b[LANE_VALUES], c[LANE_VALUES], x[ROWS], sums[ROWS];
            load_floats(row + inputs.b + lane * LANE_VALUES, b);
            load_floats(row + inputs.c + lane * LANE_VALUES, c);
            load_floats(row + inputs.x + first, x);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float input = step * x[r];
                sums[r] = 0.0f;
#pragma unroll
                for (int i = 0; i < LANE_VALUES; i++) {
                    values[r][i] = fmaf(input, b[i], decay * values[r][i]);
                    sums[r] = fmaf(values[r][i], c[i], sums[r]);
                }
            }
            const float sum = sum_of_rows(sums);
            const unsigned p = head * size + first + lane / 4;
            if (lane % 4 == 0) y[(size_t)(span.base + t) * heads * size + p] = narrow<T>(fmaf(d[head], widen(row[p]), sum));
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) store_floats(own + (size_t)(first + r) * STATE, values[r]);
    }
}

// Any sizes: a warp has a row of the state, which stays in memory (in a cache).
template <class T, class S>
__device__ __forceinline__ void ssm_any(const T* mixed, unsigned mixed_stride, const T* dt, unsigned dt_stride, const float* bias, const float* a,
                                        const float* d, float low, float high, S* state, unsigned long long slot_stride, const Span* spans,
                                        T* y, unsigned heads, unsigned groups, unsigned size, unsigned n) {
    const Span span = spans[blockIdx.y];
    const unsigned head = blockIdx.x, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    const Mixed<T> inputs(mixed, mixed_stride, head, heads, groups, size, n);
    S* own = state + span.slot * slot_stride + (size_t)head * size * n;
    for (unsigned p = threadIdx.x / WARP; p < size; p += warps) {
        for (unsigned t = 0; t < span.length; t++) {
            const T* row = inputs.row(span.base + t);
            const float step = step_of(widen(dt[(size_t)(span.base + t) * dt_stride + head]), bias[head], low, high);
            const float decay = expf(step * a[head]), x = widen(row[inputs.x + p]);
            float sum = 0.0f;
            for (unsigned i = lane; i < n; i += WARP) {
                const bool empty = span.start == 0 && t == 0;
                const float before = empty ? 0.0f : widen(own[(size_t)p * n + i]);
                const float value = fmaf(step * x, widen(row[inputs.b + i]), decay * before);
                own[(size_t)p * n + i] = narrow<S>(value);
                sum = fmaf(value, widen(row[inputs.c + i]), sum);
            }
            sum = warp_sum(sum);
            if (lane == 0) y[((size_t)(span.base + t) * heads + head) * size + p] = narrow<T>(fmaf(d[head], x, sum));
        }
    }
}

// Three blocks of 256 for each multiprocessor: 80 registers a thread, which suffice on every
// target. Without this bound the compiler uses 64 for 10.0 and spills.
#define SSM(T, S, name_128, name_any)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(256, 3)                                                                                  \
        name_128(const T* mixed, unsigned mixed_stride, const T* dt, unsigned dt_stride, const float* bias, const float* a,               \
                 const float* d, float low, float high, S* state, unsigned long long slot_stride, const Span* spans, T* y,                \
                 unsigned heads, unsigned groups, unsigned size) {                                                                        \
        ssm_128<T, S>(mixed, mixed_stride, dt, dt_stride, bias, a, d, low, high, state, slot_stride, spans, y, heads, groups, size);      \
    }                                                                                                                                     \
    EXPORT(name_128)                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(256, 1)                                                                                  \
        name_any(const T* mixed, unsigned mixed_stride, const T* dt, unsigned dt_stride, const float* bias, const float* a,               \
                 const float* d, float low, float high, S* state, unsigned long long slot_stride, const Span* spans, T* y,                \
                 unsigned heads, unsigned groups, unsigned size, unsigned n) {                                                            \
        ssm_any<T, S>(mixed, mixed_stride, dt, dt_stride, bias, a, d, low, high, state, slot_stride, spans, y, heads, groups, size, n);   \
    }                                                                                                                                     \
    EXPORT(name_any)

SSM(float, float, ssm_128_f32, ssm_any_f32)
SSM(bf16, float, ssm_128_bf16, ssm_any_bf16)
SSM(bf16, bf16, ssm_128_bf16_bf16, ssm_any_bf16_bf16)

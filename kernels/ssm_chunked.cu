// The Mamba-2 recurrence over chunks of 64 tokens, as matrix products: prefill, from any state,
// spans of any length.
//
// With a_t = dt_t A and L_t = a_1 + ... + a_t within a chunk that starts from state S [size, n]:
//
//   y_t = sum_{s<=t} exp(L_t - L_s) dt_s (C_t . B_s) x_s  +  exp(L_t) S C_t  +  D x_t
//   S'  = exp(L_Q) S  +  sum_s exp(L_Q - L_s) dt_s x_s B_s^T
//
// Layouts as in ssm.cu; activations in bfloat16, n = 128, size 64 or 80, state in float32 or
// bfloat16. Rows after a span's end count as zeros with dt = 0, which does not change L and S, so a
// chunk may be short.
//
// A block of 4 warps has one head of one span and processes its chunks in order; S stays in float32
// in registers (a warp has 32 of the 128 columns). x, B and C are exact in bfloat16. The others (S,
// the decayed scores, the decayed B) enter their product as the sum of two bfloat16 values, which
// keeps 16 bits: the scan and its state have nearly float32 precision, so decode and prefill agree.
//
// A chunk and head: 16 x 16 x 8 products: scores 4 x (1+2+3+4) / 4 x 2 x 8, outputs 4 x 10 x (2.5 +
// 8) x 2, state 4 x 20 x 4 x 2, about 1,600 of 4,096 operations. 1,852 tokens of the 12B: 29 chunks
// x 128 heads x 6.6 MFLOP = 24 GFLOP a layer, 31 us at 788 TFLOP/s, 0.9 ms for 28 layers; bytes:
// mixed read, y written, 83 MB or 19 us a layer. With one span 128 blocks share 132
// multiprocessors.
#include "ssm.cuh"

constexpr int CHUNK = 64, STATE = 128, PAD = 8, WARPS = 4;
constexpr int STATE_STRIDE = STATE + PAD;
// Columns of 8 of the state that a warp has.
constexpr int COLUMNS = STATE / WARPS / 8;

// A float32 value as the sum of two bfloat16 values, for two of them.
struct Halves {
    unsigned high, low;
};

__device__ __forceinline__ Halves split(float first, float second) {
    const unsigned high = pack_bf16(first, second);
    const float rest_first = first - float_of_bits(high << 16), rest_second = second - float_of_bits(high & 0xffff0000u);
    return {high, pack_bf16(rest_first, rest_second)};
}

// Row and column of the element whose address this lane passes to ldmatrix: of matrices side by
// side in k first (operand B), or in rows first (A).
__device__ __forceinline__ unsigned lane_row() { return threadIdx.x % 8; }
__device__ __forceinline__ unsigned lane_low() { return threadIdx.x / 8 % 2 * 8; }
__device__ __forceinline__ unsigned lane_high() { return threadIdx.x / 16 % 2 * 8; }

template <int SIZE, class S>
__device__ __forceinline__ void ssm_chunked(const bf16* mixed, unsigned mixed_stride, const bf16* dt, unsigned dt_stride, const float* bias,
                                            const float* a, const float* d, float low, float high, S* state, unsigned long long slot_stride,
                                            const Span* spans, bf16* y, unsigned heads, unsigned groups) {
    constexpr int X_STRIDE = SIZE + PAD;
    const Span span = spans[blockIdx.y];
    if (span.length == 0) return;
    Shared shared;
    bf16* xs = shared.take<bf16>(CHUNK * X_STRIDE);
    bf16* bs = shared.take<bf16>(CHUNK * STATE_STRIDE);
    bf16* cs = shared.take<bf16>(CHUNK * STATE_STRIDE);
    bf16* state_high = shared.take<bf16>(SIZE * STATE_STRIDE);
    bf16* state_low = shared.take<bf16>(SIZE * STATE_STRIDE);
    float* steps = shared.take<float>(CHUNK);
    float* sums = shared.take<float>(CHUNK);

    const unsigned head = blockIdx.x, thread = threadIdx.x, warp = thread / WARP, lane = thread % WARP, g = lane / 4, t2 = lane % 4 * 2;
    const Mixed<bf16> inputs(mixed, mixed_stride, head, heads, groups, SIZE, STATE);
    S* own = state + span.slot * slot_stride + (size_t)head * SIZE * STATE + warp * COLUMNS * 8;

    // Fragments of C: rows are p, columns n.
    float carried[SIZE / 16][COLUMNS][4];
#pragma unroll
    for (int m = 0; m < SIZE / 16; m++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float two[2] = {0.0f, 0.0f};
                if (span.start > 0) load_floats(own + (size_t)(m * 16 + half * 8 + g) * STATE + j * 8 + t2, two);
                carried[m][j][half * 2] = two[0];
                carried[m][j][half * 2 + 1] = two[1];
            }

    for (unsigned first = 0; first < span.length; first += CHUNK) {
        const unsigned rows = span.length - first < CHUNK ? span.length - first : CHUNK, base = span.base + first;
        __syncthreads();  // no thread reads the previous chunk any more
        for (unsigned i = thread; i < CHUNK * (SIZE / 8); i += WARPS * WARP) {
            const unsigned row = i / (SIZE / 8), at = i % (SIZE / 8) * 8;
            copy_async(xs + row * X_STRIDE + at, inputs.row(base + row) + inputs.x + at, row < rows);
        }
        for (unsigned i = thread; i < CHUNK * (STATE / 8); i += WARPS * WARP) {
            const unsigned row = i / (STATE / 8), at = i % (STATE / 8) * 8;
            copy_async(bs + row * STATE_STRIDE + at, inputs.row(base + row) + inputs.b + at, row < rows);
            copy_async(cs + row * STATE_STRIDE + at, inputs.row(base + row) + inputs.c + at, row < rows);
        }
        copy_commit();
        if (thread < CHUNK) {
            float step = 0.0f;
            if (thread < rows) step = step_of(widen(dt[(size_t)(base + thread) * dt_stride + head]), bias[head], low, high);
            steps[thread] = step;
        }
#pragma unroll
        for (int m = 0; m < SIZE / 16; m++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const Halves two = split(carried[m][j][half * 2], carried[m][j][half * 2 + 1]);
                    const unsigned at = (m * 16 + half * 8 + g) * STATE_STRIDE + warp * COLUMNS * 8 + j * 8 + t2;
                    *reinterpret_cast<unsigned*>(state_high + at) = two.high;
                    *reinterpret_cast<unsigned*>(state_low + at) = two.low;
                }
        __syncthreads();  // the steps are complete
        if (warp == 0) {
            // L: a lane has two neighbouring tokens; their sum is accumulated over the lanes.
            const float one = steps[lane * 2] * a[head], two = one + steps[lane * 2 + 1] * a[head];
            float sum = two;
#pragma unroll
            for (int by = 1; by < (int)WARP; by *= 2) {
                const float before = shuffle_up(sum, by);
                if ((int)lane >= by) sum += before;
            }
            sums[lane * 2] = sum - two + one;
            sums[lane * 2 + 1] = sum;
        }
        copy_wait<0>();
        __syncthreads();  // L, the state and the copies of all threads are complete

        const unsigned row = warp * 16;
        const float row_sums[2] = {sums[row + g], sums[row + g + 8]};
        float out[SIZE / 8][4] = {};
#pragma unroll 2
        for (int k = 0; k < STATE / 16; k++) {
            unsigned c[4];
            load_matrices(c, cs + (row + lane_low() + lane_row()) * STATE_STRIDE + k * 16 + lane_high());
#pragma unroll
            for (int j = 0; j < SIZE / 16; j++) {
                const unsigned at = (j * 16 + lane_high() + lane_row()) * STATE_STRIDE + k * 16 + lane_low();
                unsigned s[4];
                load_matrices(s, state_high + at);
                mma(out[2 * j], c, {s[0], s[1]});
                mma(out[2 * j + 1], c, {s[2], s[3]});
                load_matrices(s, state_low + at);
                mma(out[2 * j], c, {s[0], s[1]});
                mma(out[2 * j + 1], c, {s[2], s[3]});
            }
        }
        const float row_decays[2] = {expf(row_sums[0]), expf(row_sums[1])};
#pragma unroll
        for (int j = 0; j < SIZE / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) out[j][i] *= row_decays[i / 2];

#pragma unroll 1
        for (unsigned from = 0; from <= row; from += 16) {
            float scores[2][4] = {};
#pragma unroll 2
            for (int k = 0; k < STATE / 16; k++) {
                unsigned c[4], b[4];
                load_matrices(c, cs + (row + lane_low() + lane_row()) * STATE_STRIDE + k * 16 + lane_high());
                load_matrices(b, bs + (from + lane_high() + lane_row()) * STATE_STRIDE + k * 16 + lane_low());
                mma(scores[0], c, {b[0], b[1]});
                mma(scores[1], c, {b[2], b[3]});
            }
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const unsigned t = row + g + i / 2 * 8, s = from + j * 8 + t2 + i % 2;
                    scores[j][i] = s <= t ? scores[j][i] * expf(row_sums[i / 2] - sums[s]) * steps[s] : 0.0f;
                }
            unsigned upper[4], lower[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const Halves two = split(scores[i / 2][i % 2 * 2], scores[i / 2][i % 2 * 2 + 1]);
                upper[i] = two.high;
                lower[i] = two.low;
            }
#pragma unroll
            for (int j = 0; j < SIZE / 16; j++) {
                unsigned x[4];
                load_transposed(x, xs + (from + lane_low() + lane_row()) * X_STRIDE + j * 16 + lane_high());
                mma(out[2 * j], upper, {x[0], x[1]});
                mma(out[2 * j + 1], upper, {x[2], x[3]});
                mma(out[2 * j], lower, {x[0], x[1]});
                mma(out[2 * j + 1], lower, {x[2], x[3]});
            }
        }
#pragma unroll
        for (int j = 0; j < SIZE / 8; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const unsigned t = row + g + half * 8, p = j * 8 + t2;
                if (t >= rows) continue;
                const Pack<bf16, 2> x = load<2>(xs + t * X_STRIDE + p);
                const float two[2] = {fmaf(d[head], widen(x.v[0]), out[j][half * 2]), fmaf(d[head], widen(x.v[1]), out[j][half * 2 + 1])};
                store_floats(y + ((size_t)(base + t) * heads + head) * SIZE + p, two);
            }

        const float last = sums[CHUNK - 1], decay = expf(last);
#pragma unroll
        for (int m = 0; m < SIZE / 16; m++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) carried[m][j][i] *= decay;
#pragma unroll 1
        for (unsigned from = 0; from < CHUNK; from += 16) {
            float weights[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const unsigned s = from + t2 + i / 2 * 8 + i % 2;
                weights[i] = expf(last - sums[s]) * steps[s];
            }
            unsigned upper[COLUMNS][2], lower[COLUMNS][2];
#pragma unroll
            for (int j = 0; j < COLUMNS; j += 2) {
                unsigned b[4];
                load_transposed(b, bs + (from + lane_low() + lane_row()) * STATE_STRIDE + (warp * COLUMNS + j) * 8 + lane_high());
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const Halves two = split(float_of_bits(b[i] << 16) * weights[i % 2 * 2], float_of_bits(b[i] & 0xffff0000u) * weights[i % 2 * 2 + 1]);
                    upper[j + i / 2][i % 2] = two.high;
                    lower[j + i / 2][i % 2] = two.low;
                }
            }
#pragma unroll
            for (int m = 0; m < SIZE / 16; m++) {
                unsigned x[4];
                load_transposed(x, xs + (from + lane_high() + lane_row()) * X_STRIDE + m * 16 + lane_low());
#pragma unroll
                for (int j = 0; j < COLUMNS; j++) {
                    mma(carried[m][j], x, upper[j]);
                    mma(carried[m][j], x, lower[j]);
                }
            }
        }
    }
#pragma unroll
    for (int m = 0; m < SIZE / 16; m++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float two[2] = {carried[m][j][half * 2], carried[m][j][half * 2 + 1]};
                store_floats(own + (size_t)(m * 16 + half * 8 + g) * STATE + j * 8 + t2, two);
            }
}

#define CHUNKED(name, SIZE, S)                                                                                                         \
    extern "C" __global__ void __launch_bounds__(WARPS * WARP)                                                                         \
        name(const bf16* mixed, unsigned mixed_stride, const bf16* dt, unsigned dt_stride, const float* bias, const float* a,          \
             const float* d, float low, float high, S* state, unsigned long long slot_stride, const Span* spans, bf16* y,              \
             unsigned heads, unsigned groups) {                                                                                        \
        ssm_chunked<SIZE, S>(mixed, mixed_stride, dt, dt_stride, bias, a, d, low, high, state, slot_stride, spans, y, heads, groups);  \
    }                                                                                                                                  \
    EXPORT(name)

CHUNKED(ssm_chunked_64, 64, float)
CHUNKED(ssm_chunked_80, 80, float)
CHUNKED(ssm_chunked_64_bf16, 64, bf16)
CHUNKED(ssm_chunked_80_bf16, 80, bf16)

// Chooses the experts of each row, and their weights.
//
// s = sigmoid(logits). Experts are chosen by c = s + correction; a NaN ranks last. With groups,
// those whose two best c have the highest sum are kept, of equal ones the lower; the experts of the
// others rank last too. The k highest c are chosen, of equal ones the lower expert. An expert's
// weight is its s, divided by the sum over the chosen in ascending order (+ 1e-20) if the model
// normalises, times a scaling: exactly as in crates/model/src/layers/moe.rs.
//
// logits [m, experts] in float32, because the choice depends on small differences; correction
// [experts]; out: chosen [m, k] ascending, weights [m, k].
//
// A warp has a row: scores and corrected scores are in shared memory, and each of k rounds finds
// the best 64-bit key among all lanes. Bytes: 4 a logit and 8 a choice; 100 rows of 128: 56 kB. k
// rounds of experts / 32 comparisons a lane and 5 exchanges: a microsecond or two.
#include "device.cuh"

constexpr unsigned WARPS = 4;

// Key in the order of choice; the lowest is chosen first. An expert that is already taken ranks
// last.
__device__ __forceinline__ unsigned long long order_key(float corrected, unsigned expert) {
    if (corrected != corrected) return ~0ull;
    const unsigned bits = bits_of_float(corrected + 0.0f), ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (unsigned long long)~ascending << 32 | expert;
}

// Sum of the two best, or the only one.
__device__ __forceinline__ float two_best(const float* corrected, unsigned count) {
    float first = -INFINITY, second = -INFINITY;
    for (unsigned i = 0; i < count; i++) {
        if (corrected[i] > first) {
            second = first;
            first = corrected[i];
        } else if (corrected[i] > second) {
            second = corrected[i];
        }
    }
    return count == 1 ? first : first + second;
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP)
    route(const float* logits, const float* correction, unsigned rows, unsigned experts, unsigned groups, unsigned groups_kept, unsigned normalise,
          float scaling, unsigned k, unsigned* chosen, float* weights) {
    const unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = blockIdx.x * WARPS + warp;
    Shared shared;
    float* scores = shared.take<float>(WARPS * experts) + warp * experts;
    float* corrected = shared.take<float>(WARPS * experts) + warp * experts;
    float* ratings = shared.take<float>(WARPS * groups) + warp * groups;
    unsigned* found = shared.take<unsigned>(WARPS * k) + warp * k;
    unsigned* sorted = shared.take<unsigned>(WARPS * k) + warp * k;
    if (row >= rows) return;

    for (unsigned e = lane; e < experts; e += WARP) {
        const float score = 1.0f / (1.0f + expf(-logits[(size_t)row * experts + e])), sum = score + correction[e];
        scores[e] = score;
        corrected[e] = sum == sum ? sum : -INFINITY;
    }
    __syncwarp();
    if (groups > 1) {
        const unsigned size = experts / groups;
        for (unsigned g = lane; g < groups; g += WARP) ratings[g] = two_best(corrected + g * size, size);
        __syncwarp();  // the ratings are complete
        for (unsigned e = lane; e < experts; e += WARP) {
            const unsigned own = e / size;
            unsigned better = 0;
            for (unsigned g = 0; g < groups; g++) better += ratings[g] > ratings[own] || (ratings[g] == ratings[own] && g < own);
            if (better >= groups_kept) corrected[e] = -INFINITY;
        }
        __syncwarp();
    }
    for (unsigned i = 0; i < k; i++) {
        unsigned long long best = ~0ull;
        for (unsigned e = lane; e < experts; e += WARP) {
            const unsigned long long key = order_key(corrected[e], e);
            best = key < best ? key : best;
        }
#pragma unroll
        for (int mask = WARP / 2; mask > 0; mask /= 2) {
            const unsigned long long other = shuffle_xor(best, mask);
            best = other < best ? other : best;
        }
        if (lane == 0) {
            found[i] = (unsigned)best;
            corrected[(unsigned)best] = NAN;  // taken
        }
        __syncwarp();  // the choice of this round is known
    }
    for (unsigned i = lane; i < k; i += WARP) {
        unsigned lower = 0;
        for (unsigned j = 0; j < k; j++) lower += found[j] < found[i];
        sorted[lower] = found[i];
    }
    __syncwarp();
    float sum = 0.0f;
    for (unsigned i = 0; i < k; i++) sum += scores[sorted[i]];
    sum = normalise ? sum + 1e-20f : 1.0f;
    for (unsigned i = lane; i < k; i += WARP) {
        chosen[(size_t)row * k + i] = sorted[i];
        weights[(size_t)row * k + i] = multiply_rounded(scores[sorted[i]] / sum, scaling);
    }
}
EXPORT(route)

// Samples a token from rows of logits: temperature, allowed ids, top-k, top-p, min-p, both
// log-probabilities, entropy.
//
// crates/model/src/sample.rs defines the computation and the order of every sum: weights e^((logit
// - highest) / T) in float32 by the same polynomial, blocks of 256 of them summed in 16 lanes,
// blocks in float64 one after another. So the same uniform number samples the same token as on the
// CPU. Only the cut of top-p sums differently, in multiples of 2^-46; the CPU's own order is not
// fixed there either.
//
// logits [rows, vocabulary] in float32; picks [n]; allowed [sets, ceil(vocabulary / 64)], id i at
// bit i % 64 of element i / 64; for each pick: `ids` and `lefts` have the length of the vocabulary,
// `sums` twice the number of its blocks; picked [n], kept [n, 512].
//
// A block has a pick. A cut keeps the ids up to some key in a total order (the higher logit first,
// of equal ones the lower id). It finds the key digit by digit, 8 bits of 64 at a time, by counts
// or by weights; the ids that are left are compacted in ascending order.
//
// Bytes a pick of 131,072 ids: its logits three times, 1.5 MB from the second-level cache; with a
// cut 8 more passes over the ids that are left. 100 picks on as many multiprocessors: sums of 512
// blocks by one thread take 10 us, everything else less.
#include "device.cuh"

constexpr unsigned LANES = 16, BLOCK = 16 * LANES, THREADS = 512, KEPT_MAX = 512, NONE = 0xffffffffu;

struct Pick {
    double uniform;
    unsigned row, top_k, allowed;  // allowed: index of a set, or NONE
    float temperature, top_p, min_p;
};

struct Picked {
    unsigned id;          // NONE: the row is invalid
    unsigned kept_count;  // ids that were left; NONE: nothing was cut
    float logprob, sampled_logprob, entropy;
};

// One weight: e^x for -87 < x <= 0, see `exp` of sample.rs.
__device__ __forceinline__ float weight_at(float x) {
    if (!(x > -87.0f)) return 0.0f;
    const float turned = add_rounded(multiply_rounded(x, 1.44269504f), 12582912.0f), n = add_rounded(turned, -12582912.0f);
    const float r = add_rounded(add_rounded(x, -multiply_rounded(n, 0.6933594f)), -multiply_rounded(n, -2.1219444e-4f));
    const float factors[7] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    float series = 1.0f / 5040;
#pragma unroll
    for (int i = 0; i < 7; i++) series = add_rounded(multiply_rounded(series, r), factors[i]);
    return multiply_rounded(series, float_of_bits((bits_of_float(turned) + 127) << 23));
}

__device__ __forceinline__ float exponent(float logit, float highest, float temperature) {
    const float x = (logit - highest) / temperature;
    return x > -87.0f ? x : -87.0f;
}

// Key in the total order; the lowest comes first.
__device__ __forceinline__ unsigned long long order_key(float logit, unsigned id) {
    const unsigned bits = bits_of_float(logit + 0.0f), ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (unsigned long long)~ascending << 32 | id;
}

// Shared memory of a block.
struct Board {
    unsigned long long bins[256];
    double numbers[4];
    unsigned long long partials[THREADS / WARP];
    unsigned counts[THREADS / WARP];
    float block[BLOCK];
};

__device__ __forceinline__ unsigned long long block_least(unsigned long long value, Board* board) {
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        const unsigned long long other = shuffle_xor(value, mask);
        value = other < value ? other : value;
    }
    __syncthreads();  // all threads have read the last reduction
    if (threadIdx.x % WARP == 0) board->partials[threadIdx.x / WARP] = value;
    __syncthreads();
    for (unsigned w = 0; w < THREADS / WARP; w++) value = board->partials[w] < value ? board->partials[w] : value;
    return value;
}

__device__ __forceinline__ unsigned block_count(unsigned value, Board* board) {
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
    __syncthreads();  // all threads have read the counts of the last reduction
    if (threadIdx.x % WARP == 0) board->counts[threadIdx.x / WARP] = value;
    __syncthreads();
    value = 0;
    for (unsigned w = 0; w < THREADS / WARP; w++) value += board->counts[w];
    return value;
}

// Highest of some logits; the result is NaN or plus infinity if any of them is.
__device__ __forceinline__ float highest_of(const float* logits, unsigned count, Board* board) {
    unsigned long long best = ~0ull;
    unsigned spoilt = 0;
    for (unsigned i = threadIdx.x; i < count; i += THREADS) {
        spoilt |= logits[i] != logits[i];
        const unsigned long long key = order_key(logits[i], 0);
        best = key < best ? key : best;
    }
    spoilt = block_count(spoilt, board);
    best = block_least(best, board);
    if (spoilt) return NAN;
    const unsigned ascending = ~(unsigned)(best >> 32);
    return float_of_bits(ascending >> 31 ? ascending & 0x7fffffffu : ~ascending);
}

// Sums of weights, and of weights times exponents, over some logits.
struct Mass {
    float highest, temperature;
    double total, lift;

    __device__ __forceinline__ float logprob(float logit) const {
        const double x = ((double)logit - (double)highest) / (double)temperature - log(total);
        const float value = (float)(x < 0.0 ? x : 0.0);
        return value > -3.40282347e38f ? value : -3.40282347e38f;
    }
    __device__ __forceinline__ float entropy() const {
        const double value = log(total) - lift / total;
        return (float)(value > 0.0 ? value : 0.0);
    }
};

// Half a warp for each block of 256: lane l adds every sixteenth weight from the l-th on, then the
// lanes are added in order.
__device__ __forceinline__ Mass weigh(const float* logits, unsigned count, float highest, float temperature, double* sums, Board* board) {
    const unsigned blocks = (count + BLOCK - 1) / BLOCK, half = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    double* lifts = sums + blocks;
    __syncthreads();  // no thread reads the previous sums any more
    for (unsigned first = 0; first < blocks; first += THREADS / LANES) {
        const unsigned block = first + half;
        float sum = 0.0f, lift = 0.0f;
        for (unsigned i = 0; i < BLOCK / LANES; i++) {
            const unsigned at = block * BLOCK + i * LANES + lane;
            const float x = at < count ? exponent(logits[at], highest, temperature) : -87.0f, weight = weight_at(x);
            sum = add_rounded(sum, weight);
            lift = add_rounded(lift, multiply_rounded(weight, x));
        }
        double whole = 0.0, whole_lift = 0.0;
        for (unsigned l = 0; l < LANES; l++) {
            whole += (double)shuffle_from(sum, threadIdx.x % WARP / LANES * LANES + l);
            whole_lift += (double)shuffle_from(lift, threadIdx.x % WARP / LANES * LANES + l);
        }
        if (lane == 0 && block < blocks) {
            sums[block] = whole;
            lifts[block] = whole_lift;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double total = 0.0, lift = 0.0;
        for (unsigned b = 0; b < blocks; b++) {
            total += sums[b];
            lift += lifts[b];
        }
        board->numbers[0] = total;
        board->numbers[1] = lift;
    }
    __syncthreads();
    return {highest, temperature, board->numbers[0], board->numbers[1]};
}

// The index at which the running sum of the weights first exceeds `uniform` of their total, see
// `invert` of sample.rs.
__device__ __forceinline__ unsigned invert(const float* logits, unsigned count, const Mass& mass, double uniform, const double* sums, Board* board) {
    const unsigned blocks = (count + BLOCK - 1) / BLOCK;
    const double target = multiply_rounded(uniform, mass.total);
    if (threadIdx.x == 0) {
        double before = 0.0, kept = 0.0;
        unsigned found = 0;
        for (unsigned b = 0; b < blocks; b++) {
            if (sums[b] > 0.0) {
                found = b;
                kept = before;
            }
            if (before + sums[b] > target) break;
            before += sums[b];
        }
        board->counts[0] = found;
        board->numbers[2] = kept;
    }
    __syncthreads();
    const unsigned found = board->counts[0];
    for (unsigned i = threadIdx.x; i < BLOCK; i += THREADS) {
        const unsigned at = found * BLOCK + i;
        board->block[i] = at < count ? weight_at(exponent(logits[at], mass.highest, mass.temperature)) : 0.0f;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double within = 0.0, before = 0.0, share = (target - board->numbers[2]) / sums[found];
        for (unsigned i = 0; i < BLOCK; i++) within += (double)board->block[i];
        share = share < 0.0 ? 0.0 : share > 1.0 ? 1.0 : share;
        const double inside = multiply_rounded(share, within);
        unsigned last = 0;
        for (unsigned i = 0; i < BLOCK; i++) {
            const double weight = (double)board->block[i];
            if (weight > 0.0) last = i;
            if (before + weight > inside) break;
            before += weight;
        }
        board->counts[0] = found * BLOCK + last;
    }
    __syncthreads();
    const unsigned index = board->counts[0];
    __syncthreads();  // the counts may be reused
    return index;
}

// The first index at which, in the order of keys, the amounts sum to the target; the last index if
// they never do. AMOUNT(i) is the amount of the i-th.
template <class Amount>
__device__ __forceinline__ unsigned long long key_to_reach(const unsigned* ids, const float* logits, unsigned count, unsigned long long target,
                                                           Board* board, Amount amount) {
    unsigned long long prefix = 0, before = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (unsigned i = threadIdx.x; i < 256; i += THREADS) board->bins[i] = 0;
        __syncthreads();
        for (unsigned i = threadIdx.x; i < count; i += THREADS) {
            const unsigned long long key = order_key(logits[i], ids[i]);
            // The bits below the top digits found so far; a shift by 64 would be undefined.
            const bool inside = shift == 56 || key >> (shift + 8) == prefix;
            if (inside) atomicAdd(&board->bins[key >> shift & 255], amount(i));
        }
        __syncthreads();
        unsigned digit = 0;
        unsigned long long under = before, under_digit = before;
        for (unsigned d = 0; d < 256; d++) {
            if (board->bins[d] == 0) continue;
            digit = d;
            under_digit = under;
            if (under + board->bins[d] >= target) break;
            under += board->bins[d];
        }
        prefix = prefix << 8 | digit;
        before = under_digit;
        __syncthreads();  // all have read the bins
    }
    return prefix;
}

// Compacts the entries to keep, in their order, and returns their number. Never writes further than
// it has read.
template <class Keep>
__device__ __forceinline__ unsigned gather(unsigned count, unsigned* ids, float* lefts, Board* board, Keep keep) {
    const unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    unsigned kept = 0;
    for (unsigned first = 0; first < count; first += THREADS) {
        unsigned id = 0;
        float logit = 0.0f;
        const bool mine = first + threadIdx.x < count && keep(first + threadIdx.x, id, logit);
        unsigned rank = mine;
#pragma unroll
        for (int by = 1; by < (int)WARP; by *= 2) {
            const unsigned lower = shuffle_up(rank, by);
            if ((int)lane >= by) rank += lower;
        }
        __syncthreads();  // all threads have read what is overwritten now, and the counts
        if (lane == WARP - 1) board->counts[warp] = rank;
        __syncthreads();
        unsigned of_others = 0, of_all = 0;
        for (unsigned w = 0; w < THREADS / WARP; w++) {
            if (w < warp) of_others += board->counts[w];
            of_all += board->counts[w];
        }
        if (mine) {
            ids[kept + of_others + rank - 1] = id;
            lefts[kept + of_others + rank - 1] = logit;
        }
        kept += of_all;
    }
    __syncthreads();
    return kept;
}

// Weight as an integer: 2^46 for the highest, so that 131,072 of them stay below 2^63.
__device__ __forceinline__ unsigned long long whole_weight(float weight) { return (unsigned long long)((double)weight * 70368744177664.0); }

extern "C" __global__ void __launch_bounds__(THREADS)
    sample(const float* logits, unsigned vocabulary, const Pick* picks, const unsigned long long* allowed, unsigned* ids, float* lefts, double* sums,
           Picked* picked, unsigned* kept) {
    Shared shared;
    Board* board = shared.take<Board>(1);
    const Pick pick = picks[blockIdx.x];
    const float* row = logits + (size_t)pick.row * vocabulary;
    const unsigned long long* set = pick.allowed == NONE ? nullptr : allowed + (size_t)pick.allowed * ((vocabulary + 63) / 64);
    const auto is_allowed = [&](unsigned id) { return !set || (set[id / 64] >> id % 64 & 1); };
    ids += (size_t)blockIdx.x * vocabulary;
    lefts += (size_t)blockIdx.x * vocabulary;
    sums += (size_t)blockIdx.x * 2 * ((vocabulary + BLOCK - 1) / BLOCK);
    picked += blockIdx.x;
    kept += (size_t)blockIdx.x * KEPT_MAX;
    const auto refuse = [&] {
        if (threadIdx.x == 0) *picked = {NONE, NONE, 0.0f, 0.0f, 0.0f};
    };

    const float highest = highest_of(row, vocabulary, board);
    if (!(fabsf(highest) < INFINITY)) return refuse();
    const bool greedy = !(pick.temperature > 0.0f);
    const Mass whole = weigh(row, vocabulary, highest, greedy ? 1.0f : pick.temperature, sums, board);

    if (greedy) {
        unsigned long long best = ~0ull;
        for (unsigned i = threadIdx.x; i < vocabulary; i += THREADS)
            if (is_allowed(i) && row[i] > -INFINITY) {
                const unsigned long long key = order_key(row[i], i);
                best = key < best ? key : best;
            }
        best = block_least(best, board);
        if (best == ~0ull) return refuse();
        const unsigned id = (unsigned)best;
        if (threadIdx.x == 0) {
            *picked = {id, 1, whole.logprob(row[id]), 0.0f, 0.0f};
            kept[0] = id;
        }
        return;
    }
    if (!set && pick.top_k == 0 && pick.top_p >= 1.0f && pick.min_p <= 0.0f) {
        const unsigned id = invert(row, vocabulary, whole, pick.uniform, sums, board);
        if (threadIdx.x == 0) {
            const float logprob = whole.logprob(row[id]);
            *picked = {id, NONE, logprob, logprob, whole.entropy()};
        }
        return;
    }

    unsigned finite = 0;
    for (unsigned i = threadIdx.x; i < vocabulary; i += THREADS) finite += row[i] > -INFINITY;
    finite = block_count(finite, board);
    unsigned left = gather(vocabulary, ids, lefts, board, [&](unsigned i, unsigned& id, float& logit) {
        id = i;
        logit = row[i];
        return is_allowed(i) && logit > -INFINITY;
    });
    const auto keep_to = [&](unsigned long long last) {
        left = gather(left, ids, lefts, board, [&](unsigned i, unsigned& id, float& logit) {
            id = ids[i];
            logit = lefts[i];
            return order_key(logit, id) <= last;
        });
    };
    if (left > 0 && pick.top_k > 0 && pick.top_k < left)
        keep_to(key_to_reach(ids, lefts, left, pick.top_k, board, [](unsigned) { return 1ull; }));
    if (left > 0 && pick.top_p < 1.0f) {
        const float most = highest_of(lefts, left, board);
        const Mass mass = weigh(lefts, left, most, pick.temperature, sums, board);
        const double target = multiply_rounded((double)pick.top_p, mass.total) * 70368744177664.0;
        keep_to(key_to_reach(ids, lefts, left, (unsigned long long)target, board, [&](unsigned i) {
            return whole_weight(weight_at(exponent(lefts[i], most, pick.temperature)));
        }));
    }
    if (left > 0 && pick.min_p > 0.0f) {
        const double most = highest_of(lefts, left, board), least = log((double)pick.min_p);
        left = gather(left, ids, lefts, board, [&](unsigned i, unsigned& id, float& logit) {
            id = ids[i];
            logit = lefts[i];
            return ((double)logit - most) / (double)pick.temperature >= least;
        });
    }
    if (left == 0) return refuse();
    const Mass mass = weigh(lefts, left, highest_of(lefts, left, board), pick.temperature, sums, board);
    const unsigned index = invert(lefts, left, mass, pick.uniform, sums, board), id = ids[index];
    if (threadIdx.x == 0) *picked = {id, left < finite ? left : NONE, whole.logprob(row[id]), mass.logprob(row[id]), mass.entropy()};
    if (left < finite && left <= KEPT_MAX)
        for (unsigned i = threadIdx.x; i < left; i += THREADS) kept[i] = ids[i];
}
EXPORT(sample)

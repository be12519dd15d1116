// CUDA's built-in names for one thread of a block on the CPU: kernels are compiled against this,
// and run by shim.cpp.
//
// The threads of a block are fibers. One runs until it reaches a barrier or an operation of its
// warp, then another one runs, in a random order from the launch's seed: with an odd seed all warps
// alternate, with an even one each runs as far as it gets alone. So a missing barrier gives a wrong
// result. Blocks run one after another. Shared memory has the size of the launch and is filled with
// NaN before each block. Not detected: races inside the memory model, bank conflicts, speed.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct Index3 {
    unsigned x, y, z;
};

extern Index3 threadIdx, blockIdx, blockDim, gridDim;
extern unsigned char* shared_bytes;

// Waits for all threads of the block; the line identifies the barrier.
void shim_barrier(int line);
#define __syncthreads() shim_barrier(__LINE__)

constexpr size_t SHIM_VALUE = 32, SHIM_RESULT = 128;

// Values that the lanes of a warp brought to an operation that all of them have reached. They stay
// until the warp's next operation but one.
struct Meeting {
    const unsigned char* values;  // of each lane, SHIM_VALUE bytes apart
    float* result;                // memory for a result that is computed once for all of them
    bool first;                   // this lane computes it
};

Meeting shim_meet(const void* mine, size_t bytes, const char* what);

template <class T> struct Lanes {
    Meeting meeting;
    T operator[](unsigned lane) const {
        T value;
        memcpy(&value, meeting.values + lane * SHIM_VALUE, sizeof(T));
        return value;
    }
};

template <class T> Lanes<T> shim_exchange(const T& mine, const char* what) {
    static_assert(sizeof(T) <= SHIM_VALUE, "a lane's value is too large");
    return {shim_meet(&mine, sizeof(T), what)};
}

inline void __syncwarp() { shim_meet(nullptr, 0, "__syncwarp"); }

// No other thread runs between two waits.
template <class T> T atomicAdd(T* to, T more) {
    const T before = *to;
    *to += more;
    return before;
}

// Bytes that a block has taken of its shared memory so far.
void shim_shared_used(unsigned bytes);
// Refuses an address of 16 bytes that is not aligned or not in shared memory.
void shim_shared_row(const void* row);

// Copies that are performed no earlier than they are waited for.
void shim_copy_begin(void* to, const void* from);
void shim_copy_commit();
void shim_copy_wait(unsigned left);

// The kernels of this library. A library of planted bugs holds a file several times, each in a
// namespace of its own.
struct Kernel {
    const char* name;
    unsigned variant;
    const char* signature;
    void (*run)(void** arguments);
    Kernel* next;
};

void shim_register(Kernel* kernel);

#ifndef SHIM_VARIANT
#define SHIM_VARIANT 0
#endif

struct bf16;
struct Span;
struct Tile;

// A letter for each type that a parameter may have or point to; crates/cuda/src/launch.rs has the
// same.
inline char shim_letter(const float*) { return 'f'; }
inline char shim_letter(const double*) { return 'd'; }
inline char shim_letter(const unsigned*) { return 'u'; }
inline char shim_letter(const unsigned long long*) { return 'l'; }
inline char shim_letter(const unsigned char*) { return 'b'; }
inline char shim_letter(const bf16*) { return 'h'; }
inline char shim_letter(const Span*) { return 's'; }
inline char shim_letter(const Tile*) { return 't'; }

// Letters of types that kernel files define: they are in the file's namespace.
#define SHIM_NAMES                                          \
    struct Move;                                            \
    struct Pick;                                            \
    struct Picked;                                          \
    inline char shim_letter(const Move*) { return 'm'; }    \
    inline char shim_letter(const Pick*) { return 'p'; }    \
    inline char shim_letter(const Picked*) { return 'k'; }
SHIM_NAMES

template <class T> struct Described { static void put(char*& to) { *to++ = shim_letter((T*)nullptr); } };
template <class T> struct Described<T*> {
    static void put(char*& to) {
        *to++ = '*';
        *to++ = shim_letter((T*)nullptr);
    }
};

template <int... I> struct Indices {};
template <int N, int... I> struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};
template <int... I> struct MakeIndices<0, I...> { using Type = Indices<I...>; };

template <class... A, int... I> void shim_call(void (*kernel)(A...), void** arguments, Indices<I...>) {
    kernel(*(A*)arguments[I]...);
}

template <class... A> void shim_invoke(void (*kernel)(A...), void** arguments) {
    shim_call(kernel, arguments, typename MakeIndices<sizeof...(A)>::Type());
}

template <class... A> const char* shim_signature(void (*)(A...), char* to) {
    char* const begin = to;
    (Described<A>::put(to), ...);
    *to = 0;
    return begin;
}

#define EXPORT(name)                                                                                \
    static void shim_run_##name(void** arguments) { shim_invoke(name, arguments); }                 \
    static char shim_letters_##name[256];                                                           \
    static Kernel shim_kernel_##name = {#name, SHIM_VARIANT, shim_signature(name, shim_letters_##name), shim_run_##name, nullptr}; \
    static int shim_known_##name = (shim_register(&shim_kernel_##name), 0);

// Runs a kernel's blocks on the CPU, one after another, their threads as fibers. See shim.h.
#include "shim.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

Index3 threadIdx, blockIdx, blockDim, gridDim;
unsigned char* shared_bytes;

namespace {

constexpr unsigned THREADS_MAX = 1024, COPIES_MAX = 512;
// A few lines more than a power of two, so that the used upper ends of the stacks are in different
// cache sets.
constexpr size_t STACK = (64 << 10) + 5 * 64, SHARED_MAX = 227 << 10, GUARD = 4096;

#if defined(__x86_64__)
// Saves what a call must preserve on its own stack, and resumes the other fiber.
extern "C" void shim_switch(void** save, void* load);
asm(R"(
.text
.globl shim_switch
.hidden shim_switch
.type shim_switch, @function
shim_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.size shim_switch, .-shim_switch
)");

struct Context {
    void* sp;
};

void context_begin(Context& context, unsigned char* stack, void (*entry)()) {
    void** top = (void**)(stack + STACK);
    top[-1] = nullptr;  // the entry never returns; it is entered as after a call: 8 bytes off 16
    top[-2] = (void*)entry;
    for (int i = 3; i <= 8; i++) top[-i] = nullptr;
    context.sp = top - 8;
}

void context_switch(Context& from, Context& to) { shim_switch(&from.sp, to.sp); }
#else
#include <ucontext.h>

struct Context {
    ucontext_t state;
};

void context_begin(Context& context, unsigned char* stack, void (*entry)()) {
    getcontext(&context.state);
    context.state.uc_stack.ss_sp = stack;
    context.state.uc_stack.ss_size = STACK;
    context.state.uc_link = nullptr;
    makecontext(&context.state, entry, 0);
}

void context_switch(Context& from, Context& to) { swapcontext(&from.state, &to.state); }
#endif

enum Wait { READY, BLOCK, LANES, DONE };

struct PendingCopy {
    void* to;
    const void* from;
    unsigned group;
};

struct Fiber {
    Context context;
    Wait wait;
    const char* what;
    int line;
    unsigned phase;
    unsigned group, copies_begin, copies_end;
};

Fiber* fibers;
PendingCopy (*copies)[COPIES_MAX];  // of each fiber
unsigned char *stacks, *shared_memory;
// Two for each warp: a lane that goes on to the next operation writes to the other one, and none is
// two ahead.
struct Table {
    unsigned char values[32][SHIM_VALUE];
    float result[SHIM_RESULT];
    bool computed;
};

Table tables[THREADS_MAX / 32][2];
Context scheduler;
unsigned current;
unsigned shared_given, shared_taken;
char failure[512];
Kernel* kernels;
Kernel* running;
void** running_arguments;

template <class... A> void fail(const char* text, A... details) {
    if (failure[0]) return;
    const int used = snprintf(failure, sizeof failure, "block (%u, %u, %u), thread %u: ", blockIdx.x, blockIdx.y, blockIdx.z, current);
    snprintf(failure + used, sizeof failure - used, text, details...);
}

void yield() { context_switch(fibers[current].context, scheduler); }

void entry() {
    running->run(running_arguments);
    fibers[current].wait = DONE;
    yield();
}

void resume(unsigned fiber) {
    current = fiber;
    threadIdx = {fiber % blockDim.x, fiber / blockDim.x % blockDim.y, fiber / (blockDim.x * blockDim.y)};
    context_switch(scheduler, fibers[fiber].context);
}

// Resumes a warp whose lanes have all reached one operation.
void release_warp(unsigned warp) {
    const unsigned first = warp * 32;
    for (unsigned lane = first; lane < first + 32; lane++)
        if (fibers[lane].wait != LANES) return;
    for (unsigned lane = first + 1; lane < first + 32; lane++)
        if (strcmp(fibers[lane].what, fibers[first].what)) {
            current = lane;
            return fail("its warp is at %s, but it is at %s", fibers[first].what, fibers[lane].what);
        }
    for (unsigned lane = first; lane < first + 32; lane++) fibers[lane].wait = READY;
}

// Resumes the block when all its threads have reached one barrier; reports an error if nothing can
// continue. True when the block is done.
bool release_block(unsigned threads) {
    unsigned done = 0, at_barrier = 0;
    for (unsigned i = 0; i < threads; i++) {
        done += fibers[i].wait == DONE;
        at_barrier += fibers[i].wait == BLOCK;
        if (fibers[i].wait == READY) return false;
    }
    if (done == threads) return true;
    for (unsigned i = 0; i < threads; i++) {
        current = i;
        if (at_barrier != threads && fibers[i].wait == DONE) fail("it has ended while %u others wait: not all threads meet the barrier", threads - done);
        if (fibers[i].wait == LANES) fail("its warp never comes to %s: not all lanes meet it", fibers[i].what);
        if (at_barrier == threads && fibers[i].line != fibers[0].line) fail("it is at the barrier of line %d, thread 0 at that of line %d", fibers[i].line, fibers[0].line);
    }
    if (!failure[0])
        for (unsigned i = 0; i < threads; i++) fibers[i].wait = READY;
    return failure[0];
}

uint64_t next_random(uint64_t& state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

void shuffle(unsigned* order, unsigned count, uint64_t& random) {
    for (unsigned i = count; i > 1; i--) {
        const unsigned other = next_random(random) % i, mine = order[i - 1];
        order[i - 1] = order[other];
        order[other] = mine;
    }
}

// Runs a thread to its next wait; true if it could run.
bool run_fiber(unsigned fiber) {
    if (failure[0] || fibers[fiber].wait != READY) return false;
    resume(fiber);
    if (fibers[fiber].wait == LANES) release_warp(fiber / 32);
    return true;
}

// Runs a warp as far as it gets without the others, its lanes in this order.
void run_warp(const unsigned* lanes) {
    for (bool more = true; more;) {
        more = false;
        for (unsigned i = 0; i < 32; i++)
            if (run_fiber(lanes[i])) more = true;
    }
}

void run_block(unsigned threads, bool side_by_side, uint64_t& random) {
    static unsigned order[THREADS_MAX], warp_order[THREADS_MAX / 32];
    memset(shared_memory, 0xff, shared_given + GUARD);
    shared_taken = 0;
    for (unsigned i = 0; i < threads; i++) {
        Fiber& fiber = fibers[i];
        fiber.wait = READY;
        fiber.phase = fiber.group = fiber.copies_begin = fiber.copies_end = 0;
        context_begin(fiber.context, stacks + i * STACK, entry);
        order[i] = i;
        warp_order[i / 32] = i / 32;
    }
    const unsigned warps = threads / 32;
    for (;;) {
        if (side_by_side) {
            shuffle(order, threads, random);
            for (unsigned i = 0; i < threads; i++) run_fiber(order[i]);
        } else {
            shuffle(warp_order, warps, random);
            for (unsigned w = 0; w < warps; w++) {
                unsigned* lanes = order + warp_order[w] * 32;
                shuffle(lanes, 32, random);
                run_warp(lanes);
            }
        }
        if (failure[0]) return;
        if (release_block(threads)) break;
    }
    for (unsigned i = 0; i < GUARD && !failure[0]; i++)
        if (shared_memory[shared_given + i] != 0xff) fail("%s", "shared memory was written behind its end");
    // A block may end before it uses any.
    if (!failure[0] && shared_taken && (shared_given + 15) / 16 * 16 != shared_taken) fail("%u bytes of shared memory were asked for and %u taken", shared_given, shared_taken);
}

void prepare() {
    if (fibers) return;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    fibers = (Fiber*)mmap(nullptr, sizeof(Fiber) * THREADS_MAX, PROT_READ | PROT_WRITE, flags, -1, 0);
    copies = (PendingCopy(*)[COPIES_MAX])mmap(nullptr, sizeof *copies * THREADS_MAX, PROT_READ | PROT_WRITE, flags, -1, 0);
    stacks = (unsigned char*)mmap(nullptr, STACK * THREADS_MAX, PROT_READ | PROT_WRITE, flags, -1, 0);
    shared_memory = (unsigned char*)mmap(nullptr, SHARED_MAX + GUARD, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (fibers == MAP_FAILED || copies == MAP_FAILED || stacks == MAP_FAILED || shared_memory == MAP_FAILED) abort();
    shared_bytes = shared_memory;
}

}  // namespace

void shim_register(Kernel* kernel) {
    kernel->next = kernels;
    kernels = kernel;
}

void shim_barrier(int line) {
    fibers[current].wait = BLOCK;
    fibers[current].line = line;
    yield();
}

Meeting shim_meet(const void* mine, size_t bytes, const char* what) {
    const unsigned me = current;
    Table& table = tables[me / 32][fibers[me].phase++ % 2];
    if (bytes) memcpy(table.values[me % 32], mine, bytes);
    table.computed = false;
    fibers[me].wait = LANES;
    fibers[me].what = what;
    yield();
    const bool first = !table.computed;
    table.computed = true;
    return {table.values[0], table.result, first};
}

void shim_shared_used(unsigned bytes) {
    if (bytes > shared_taken) shared_taken = bytes;
    if (bytes > (shared_given + 15) / 16 * 16) fail("%u bytes of shared memory are taken, %u were asked for", bytes, shared_given);
    if (failure[0]) yield();
}

void shim_shared_row(const void* row) {
    const unsigned char* at = (const unsigned char*)row;
    if ((uintptr_t)at % 16 || at < shared_memory || at + 16 > shared_memory + shared_given) {
        fail("%s", "16 bytes of shared memory are named that are not aligned or not there");
        yield();
    }
}

void shim_copy_begin(void* to, const void* from) {
    Fiber& fiber = fibers[current];
    if (fiber.copies_end - fiber.copies_begin == COPIES_MAX) {
        fail("%s", "too many copies are under way");
        yield();
    }
    if ((uintptr_t)from % 16) {
        fail("%s", "a copy begins at an address that is not a multiple of 16");
        yield();
    }
    copies[current][fiber.copies_end++ % COPIES_MAX] = {to, from, fiber.group};
}

void shim_copy_commit() { fibers[current].group++; }

void shim_copy_wait(unsigned left) {
    Fiber& fiber = fibers[current];
    for (; fiber.copies_begin < fiber.copies_end; fiber.copies_begin++) {
        const PendingCopy& copy = copies[current][fiber.copies_begin % COPIES_MAX];
        if (copy.group + left >= fiber.group) break;
        if (copy.from) memcpy(copy.to, copy.from, 16); else memset(copy.to, 0, 16);
    }
}

extern "C" const Kernel* shim_kernels() { return kernels; }

struct Launch {
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    uint64_t seed;
};

// Runs a kernel; returns null or an error text.
extern "C" const char* shim_launch(Kernel* kernel, const Launch* launch, void** arguments) {
    static pthread_mutex_t alone = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&alone);
    prepare();
    failure[0] = 0;
    current = 0;
    gridDim = {launch->grid[0], launch->grid[1], launch->grid[2]};
    blockDim = {launch->block[0], launch->block[1], launch->block[2]};
    const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    running = kernel;
    running_arguments = arguments;
    shared_given = launch->shared_bytes;
    blockIdx = {0, 0, 0};
    if (threads == 0 || threads > THREADS_MAX || threads % 32) fail("%u threads a block", threads);
    if (shared_given > SHARED_MAX) fail("%u bytes of shared memory", shared_given);
    uint64_t random = launch->seed * 0x9e3779b97f4a7c15u | 1;
    for (blockIdx.z = 0; blockIdx.z < gridDim.z && !failure[0]; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y && !failure[0]; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x && !failure[0]; blockIdx.x++) run_block(threads, launch->seed % 2, random);
    pthread_mutex_unlock(&alone);
    return failure[0] ? failure : nullptr;
}

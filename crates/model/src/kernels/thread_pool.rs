//! A fixed pool of threads that work on one operation at a time.
//!
//! A forward pass dispatches a few hundred times a token, so a dispatch may cost only a microsecond
//! or two: idle threads spin for a moment before they sleep, tasks come from one counter, and the
//! caller works too. A thread that wakes too late to help is locked out and no caller waits for it,
//! so a busy machine costs speed in proportion and never causes a stall.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A thread pool. Dropping it ends its threads.
pub struct ThreadPool {
    shared: Arc<PoolState>,
    workers: Vec<JoinHandle<()>>,
}

/// How long an idle thread spins before it sleeps: longer than the caller's own work between two
/// operations of a forward pass (a norm over 5,120 values is 1 us), too short to matter on a shared
/// machine.
const SPIN_TIME: Duration = Duration::from_micros(60);

impl ThreadPool {
    /// A pool of this many threads, including the caller's. If the system refuses a thread, the
    /// pool has one less.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(PoolState::default());
        let worker = |index: usize| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name(format!("team-{index}")).spawn(move || shared.serve()).ok()
        };
        let workers = (1..threads.min(INSIDE as usize)).filter_map(worker).collect();
        Self { shared, workers }
    }

    /// Number of threads, including the caller's.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work(task)` once for every task below `tasks`, on any thread, and returns when all
    /// are done. If it is called from inside a task, or while another caller uses the pool, it runs
    /// the tasks itself. A panic in a task is propagated once no thread is in a task any more.
    pub fn tasks(&self, tasks: usize, work: impl Fn(usize) + Sync) {
        if self.workers.is_empty() || tasks < 2 || self.shared.taken.swap(true, Acquire) {
            return (0..tasks).for_each(work);
        }
        let outcome = self.shared.share(tasks, &work, &self.workers);
        self.shared.taken.store(false, Release);
        if let Err(panic) = outcome {
            resume_unwind(panic);
        }
    }

    /// Cuts `data` into pieces of `len` values (the last may be shorter) and calls
    /// `work(index, piece)` once for each.
    pub fn pieces<T: Send>(&self, data: &mut [T], len: usize, work: impl Fn(usize, &mut [T]) + Sync) {
        let data = SlicePieces::new(data, len);
        self.tasks(data.count(), |index| {
            // SAFETY: `tasks` hands out every index once, so no piece is handed out twice.
            work(index, unsafe { data.piece(index) });
        });
    }

    /// Cuts `a` and `b` into the same number of pieces, of `a_len` and `b_len` values (the last may
    /// be shorter), and calls `work(index, piece of a, piece of b)` once for each.
    pub fn pairs<A: Send, B: Send>(
        &self,
        (a, a_len): (&mut [A], usize),
        (b, b_len): (&mut [B], usize),
        work: impl Fn(usize, &mut [A], &mut [B]) + Sync,
    ) {
        let a = SlicePieces::new(a, a_len);
        let b = SlicePieces::new(b, b_len);
        assert_eq!(a.count(), b.count(), "the two slices have different numbers of pieces");
        self.tasks(a.count(), |index| {
            // SAFETY: as in `pieces`, for two slices at once.
            let (a, b) = unsafe { (a.piece(index), b.piece(index)) };
            work(index, a, b);
        });
    }
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadPool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.gate.store(LEAVE, SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its tasks, so it ends without a panic of its own.
            worker.join().ok();
        }
    }
}

/// A slice whose disjoint pieces several threads take.
struct SlicePieces<T> {
    start: *mut T,
    total: usize,
    len: usize,
}

// SAFETY: it only hands out `&mut [T]`, which may be sent to another thread if T may.
unsafe impl<T: Send> Sync for SlicePieces<T> {}

impl<T> SlicePieces<T> {
    fn new(data: &mut [T], len: usize) -> Self {
        assert!(len > 0 || data.is_empty(), "pieces of no values");
        Self { start: data.as_mut_ptr(), total: data.len(), len }
    }

    fn count(&self) -> usize {
        if self.total == 0 { 0 } else { self.total.div_ceil(self.len) }
    }

    /// SAFETY: the slice it was made from is still borrowed, `index < count`, and no other
    /// reference to this piece exists.
    #[expect(clippy::mut_from_ref, reason = "the caller holds each piece once")]
    unsafe fn piece(&self, index: usize) -> &mut [T] {
        let at = index * self.len;
        debug_assert!(at < self.total);
        let len = self.len.min(self.total - at);
        // SAFETY: at + len <= total, and by the contract above no other reference to the piece
        // exists.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}

/// The gate of a job: its number in the upper 48 bits (at 100,000 jobs a second they last for 89
/// years), whether it is open, and how many workers are inside.
const OPEN: u64 = 1 << 15;
const INSIDE: u64 = OPEN - 1;
const NUMBER: u64 = 1 << 16;
/// The number that ends the workers.
const LEAVE: u64 = u64::MAX << 16;

struct PoolState {
    /// A caller uses the pool.
    taken: AtomicBool,
    gate: AtomicU64,
    job: UnsafeCell<PoolJob>,
    /// The next task to run.
    next: AtomicUsize,
    /// Workers that sleep or are about to.
    asleep: AtomicUsize,
    /// Payload of the first task that panicked.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Borrowed from the caller's stack while the gate is open or a worker is inside.
#[derive(Clone, Copy)]
struct PoolJob {
    tasks: usize,
    work: *const (dyn Fn(usize) + Sync),
}

// SAFETY: `job` is written only while the gate is closed and no worker is inside, and read only
// from inside; `work` is `Sync`.
unsafe impl Sync for PoolState {}
// SAFETY: as above; the pointer is used only while its owner waits.
unsafe impl Send for PoolState {}

impl Default for PoolState {
    fn default() -> Self {
        Self {
            taken: AtomicBool::new(false),
            gate: AtomicU64::new(0),
            job: UnsafeCell::new(PoolJob { tasks: 0, work: &|_| {} }),
            next: AtomicUsize::new(0),
            asleep: AtomicUsize::new(0),
            panic: Mutex::new(None),
        }
    }
}

impl PoolState {
    /// The caller's side: opens the gate, works, closes it and waits for the workers inside. Only
    /// the caller that set `taken` may call it.
    fn share(
        &self,
        tasks: usize,
        work: &(dyn Fn(usize) + Sync),
        workers: &[JoinHandle<()>],
    ) -> thread::Result<()> {
        // SAFETY: only the lifetime changes, and `close` below waits until no worker uses the
        // pointer.
        let work: *const (dyn Fn(usize) + Sync + 'static) = unsafe { std::mem::transmute(work) };
        // SAFETY: the gate is closed and no worker is inside: the previous job waited for that, and
        // `taken` excludes other callers.
        unsafe { *self.job.get() = PoolJob { tasks, work } };
        self.next.store(0, Relaxed);
        let number = (self.gate.load(Relaxed) & !INSIDE & !OPEN) + NUMBER;
        self.gate.store(number | OPEN, Release);
        self.wake(workers);
        self.run_tasks();
        self.close();
        match self.panic.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(panic) => Err(panic),
            None => Ok(()),
        }
    }

    fn wake(&self, workers: &[JoinHandle<()>]) {
        // Pairs with the one in `await_job`: either this thread sees the sleeper here, or the
        // sleeper sees the open gate there.
        fence(SeqCst);
        if self.asleep.load(Relaxed) > 0 {
            workers.iter().for_each(|worker| worker.thread().unpark());
        }
    }

    /// Closes the gate and waits until no worker is inside.
    fn close(&self) {
        let mut gate = self.gate.fetch_and(!OPEN, Acquire);
        let mut turns = 0u32;
        while gate & INSIDE > 0 {
            turns += 1;
            // The worker may have lost its core to another program: then it needs this core more
            // than this thread does.
            if turns.is_multiple_of(1 << 12) {
                thread::yield_now();
            } else {
                spin_loop();
            }
            gate = self.gate.load(Acquire);
        }
    }

    /// The loop of a worker.
    fn serve(&self) {
        let mut done = 0;
        while let Some(number) = self.await_job(done) {
            done = number;
            if self.enter(number) {
                self.run_tasks();
                self.gate.fetch_sub(1, Release);
            }
        }
    }

    /// The number of the next open job that is not `done`; `None` when the pool ends.
    fn await_job(&self, done: u64) -> Option<u64> {
        let mut until: Option<Instant> = None;
        loop {
            for _ in 0..64 {
                let gate = self.gate.load(Relaxed);
                let number = gate & !INSIDE & !OPEN;
                if number == LEAVE {
                    return None;
                }
                if gate & OPEN > 0 && number != done {
                    return Some(number);
                }
                spin_loop();
            }
            let until = *until.get_or_insert_with(|| Instant::now() + SPIN_TIME);
            if Instant::now() >= until {
                self.sleep(done);
            }
        }
    }

    /// Parks the thread until a caller opens the gate. May return early.
    fn sleep(&self, done: u64) {
        self.asleep.fetch_add(1, SeqCst);
        fence(SeqCst);
        let gate = self.gate.load(Relaxed);
        let number = gate & !INSIDE & !OPEN;
        if number != LEAVE && (gate & OPEN == 0 || number == done) {
            thread::park();
        }
        self.asleep.fetch_sub(1, SeqCst);
    }

    /// Enters the gate of this job; false if it is closed.
    fn enter(&self, number: u64) -> bool {
        let mut gate = self.gate.load(Relaxed);
        while gate & OPEN > 0 && gate & !INSIDE & !OPEN == number {
            match self.gate.compare_exchange_weak(gate, gate + 1, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(now) => gate = now,
            }
        }
        false
    }

    /// Runs tasks until none are left. After a panic the tasks that have not begun are dropped.
    fn run_tasks(&self) {
        // SAFETY: called by the caller that set `taken` or from inside the gate, so the job does
        // not change and its owner waits.
        let PoolJob { tasks, work } = unsafe { *self.job.get() };
        let all = AssertUnwindSafe(|| {
            loop {
                let task = self.next.fetch_add(1, Relaxed);
                if task >= tasks {
                    return;
                }
                // SAFETY: as above.
                unsafe { (*work)(task) };
            }
        });
        if let Err(panic) = catch_unwind(all) {
            self.next.store(tasks, Relaxed);
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(threads: usize, tasks: usize) {
        let team = ThreadPool::new(threads);
        assert_eq!(team.threads(), threads.max(1));
        for _ in 0..20 {
            let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            team.tasks(tasks, |task| {
                counts[task].fetch_add(1, Relaxed);
            });
            assert!(counts.iter().all(|count| count.load(Relaxed) == 1), "{threads} threads, {tasks} tasks");
        }
    }

    #[test]
    fn each_task_is_done_once() {
        for threads in [0, 1, 2, 3, 5] {
            for tasks in [0, 1, 2, 3, 7, 100] {
                check(threads, tasks);
            }
        }
    }

    #[test]
    fn sleeping_threads_are_woken() {
        let team = ThreadPool::new(2);
        let met = AtomicUsize::new(0);
        for _ in 0..3 {
            let until = Instant::now() + SPIN_TIME * 20;
            while team.shared.asleep.load(SeqCst) == 0 || Instant::now() < until {
                spin_loop();
            }
            met.store(0, SeqCst);
            // Both tasks must run at the same time: the caller's own thread cannot run them one
            // after the other.
            team.tasks(2, |_| {
                met.fetch_add(1, SeqCst);
                while met.load(SeqCst) < 2 {
                    thread::yield_now();
                }
            });
        }
        assert_eq!(met.load(SeqCst), 2);
    }

    #[test]
    fn pieces_cover_the_slice() {
        for (len, piece) in [(0, 3), (1, 3), (3, 3), (10, 3), (1000, 7)] {
            let mut data = vec![usize::MAX; len];
            ThreadPool::new(3).pieces(&mut data, piece, |index, values| {
                assert!(values.len() == piece || index == len / piece);
                values.iter_mut().enumerate().for_each(|(at, value)| *value = index * piece + at);
            });
            assert!(data.iter().enumerate().all(|(at, value)| at == *value), "{len} by {piece}");
        }
    }

    #[test]
    fn pairs_go_together() {
        let mut a = vec![0; 10];
        let mut b = vec![0; 20];
        ThreadPool::new(2).pairs((&mut a, 3), (&mut b, 6), |index, a, b| {
            assert_eq!(a.len() * 2, b.len());
            a.fill(index);
            b.fill(index);
        });
        assert_eq!(a, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]);
        assert!(b.iter().enumerate().all(|(at, value)| a[at / 2] == *value));
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        let team = ThreadPool::new(2);
        for _ in 0..10 {
            let work = |task| {
                if task == 5 {
                    resume_unwind(Box::new("task five")); // a panic that prints nothing
                }
            };
            let caught = catch_unwind(AssertUnwindSafe(|| team.tasks(8, work)));
            assert_eq!(*caught.unwrap_err().downcast::<&str>().unwrap(), "task five");
            let sum = AtomicUsize::new(0);
            team.tasks(8, |task| {
                sum.fetch_add(task, Relaxed);
            });
            assert_eq!(sum.load(Relaxed), 28);
        }
    }

    #[test]
    fn nested_and_concurrent_use_runs_inline() {
        let team = ThreadPool::new(3);
        let sum = AtomicUsize::new(0);
        team.tasks(4, |_| {
            team.tasks(4, |task| {
                sum.fetch_add(task, Relaxed);
            });
        });
        assert_eq!(sum.swap(0, Relaxed), 24);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        team.tasks(4, |task| {
                            sum.fetch_add(task, Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(sum.load(Relaxed), 4 * 200 * 6);
    }
}

//! A fixed team of threads that share the work of one operation at a time.
//!
//! A forward pass dispatches a few hundred times a token, so a dispatch may cost a microsecond or two and no more: idle threads spin
//! for a moment before they sleep, tasks are drawn from one counter, and the caller works too. A thread that wakes too late to help is
//! locked out instead of being waited for, so a busy machine costs speed in proportion and never a stall.
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

/// The team. Dropping it ends its threads.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// How long an idle thread looks out for work before it sleeps: longer than the caller's own work between two operations
/// of a forward pass (a norm over 5,120 values is 1 us), shorter than anybody would notice on a shared machine.
const LOOKOUT: Duration = Duration::from_micros(60);

impl Team {
    /// A team of so many threads, the caller's included. One that the system refuses is done without.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared::default());
        let worker = |index: usize| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name(format!("team-{index}")).spawn(move || shared.serve()).ok()
        };
        let workers = (1..threads.min(INSIDE as usize)).filter_map(worker).collect();
        Self { shared, workers }
    }

    /// How many work together.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work(task)` once for every task below `tasks`, on any thread, and returns when all are done. Called from inside a task, or
    /// while another caller has the team, it does the tasks itself. A panic in a task is passed on once no thread is inside any more.
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

    /// Cuts `data` into pieces of `len` values (the last may be shorter) and calls `work(index, piece)` once for each.
    pub fn pieces<T: Send>(&self, data: &mut [T], len: usize, work: impl Fn(usize, &mut [T]) + Sync) {
        let data = Pieces::new(data, len);
        self.tasks(data.count(), |index| {
            // SAFETY: `tasks` hands out every index once, so no two pieces handed out are the same.
            work(index, unsafe { data.piece(index) });
        });
    }

    /// Cuts `a` and `b` into the same number of pieces, of `a_len` and `b_len` values (the last may be shorter), and calls
    /// `work(index, piece of a, piece of b)` once for each.
    pub fn pairs<A: Send, B: Send>(
        &self,
        (a, a_len): (&mut [A], usize),
        (b, b_len): (&mut [B], usize),
        work: impl Fn(usize, &mut [A], &mut [B]) + Sync,
    ) {
        let (a, b) = (Pieces::new(a, a_len), Pieces::new(b, b_len));
        assert_eq!(a.count(), b.count(), "pieces of the one for pieces of the other");
        self.tasks(a.count(), |index| {
            // SAFETY: as in `pieces`, for two slices at once.
            let (a, b) = unsafe { (a.piece(index), b.piece(index)) };
            work(index, a, b);
        });
    }
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Team").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.gate.store(LEAVE, SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches what its tasks throw, so it ends without a panic of its own.
            worker.join().ok();
        }
    }
}

/// A slice that several threads take disjoint pieces of.
struct Pieces<T> {
    start: *mut T,
    total: usize,
    len: usize,
}

// SAFETY: it only hands out `&mut [T]`, which may be sent to another thread when T may.
unsafe impl<T: Send> Sync for Pieces<T> {}

impl<T> Pieces<T> {
    fn new(data: &mut [T], len: usize) -> Self {
        assert!(len > 0 || data.is_empty(), "pieces of no values");
        Self { start: data.as_mut_ptr(), total: data.len(), len }
    }

    fn count(&self) -> usize {
        if self.total == 0 { 0 } else { self.total.div_ceil(self.len) }
    }

    /// SAFETY: the slice it was made of is still borrowed, `index < count`, and nobody else holds this piece.
    #[expect(clippy::mut_from_ref, reason = "the caller holds each piece once")]
    unsafe fn piece(&self, index: usize) -> &mut [T] {
        let at = index * self.len;
        debug_assert!(at < self.total);
        let len = self.len.min(self.total - at);
        // SAFETY: at + len <= total, and by the contract above the piece is ours alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}

/// The gate of a job: its number in the upper 48 bits (at 100,000 jobs a second they last for 89 years), whether it is open, and how
/// many workers are inside.
const OPEN: u64 = 1 << 15;
const INSIDE: u64 = OPEN - 1;
const NUMBER: u64 = 1 << 16;
/// The number of no job: the team is dissolved.
const LEAVE: u64 = u64::MAX << 16;

struct Shared {
    /// Somebody has the team.
    taken: AtomicBool,
    gate: AtomicU64,
    job: UnsafeCell<Job>,
    /// The next task to draw.
    next: AtomicUsize,
    /// Workers that sleep or are about to.
    asleep: AtomicUsize,
    /// What the first task that panicked said.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Borrowed from the caller's stack for as long as the gate is open or somebody is inside.
#[derive(Clone, Copy)]
struct Job {
    tasks: usize,
    work: *const (dyn Fn(usize) + Sync),
}

// SAFETY: `job` is written only while the gate is closed and nobody is inside, and read only from inside; `work` is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is used only while its owner waits.
unsafe impl Send for Shared {}

impl Default for Shared {
    fn default() -> Self {
        Self {
            taken: AtomicBool::new(false),
            gate: AtomicU64::new(0),
            job: UnsafeCell::new(Job { tasks: 0, work: &|_| {} }),
            next: AtomicUsize::new(0),
            asleep: AtomicUsize::new(0),
            panic: Mutex::new(None),
        }
    }
}

impl Shared {
    /// The caller's side: opens the gate, works, closes it and waits for those inside. Only the holder of `taken` may call it.
    fn share(
        &self,
        tasks: usize,
        work: &(dyn Fn(usize) + Sync),
        workers: &[JoinHandle<()>],
    ) -> thread::Result<()> {
        // SAFETY: only the lifetime changes, and `close` below outwaits every use of the pointer.
        let work: *const (dyn Fn(usize) + Sync + 'static) = unsafe { std::mem::transmute(work) };
        // SAFETY: the gate is closed and nobody is inside: the previous job waited for that, and `taken` keeps other callers out.
        unsafe { *self.job.get() = Job { tasks, work } };
        self.next.store(0, Relaxed);
        let number = (self.gate.load(Relaxed) & !INSIDE & !OPEN) + NUMBER;
        self.gate.store(number | OPEN, Release);
        self.wake(workers);
        self.draw();
        self.close();
        match self.panic.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(panic) => Err(panic),
            None => Ok(()),
        }
    }

    fn wake(&self, workers: &[JoinHandle<()>]) {
        // Pairs with the one in `await_job`: either we see the sleeper here or it sees the open gate there.
        fence(SeqCst);
        if self.asleep.load(Relaxed) > 0 {
            workers.iter().for_each(|worker| worker.thread().unpark());
        }
    }

    /// Lets nobody in any more and waits until nobody is inside.
    fn close(&self) {
        let mut gate = self.gate.fetch_and(!OPEN, Acquire);
        let mut turns = 0u32;
        while gate & INSIDE > 0 {
            turns += 1;
            // The other may have lost its core to some other program: then ours is of better use to it than to us.
            if turns.is_multiple_of(1 << 12) {
                thread::yield_now();
            } else {
                spin_loop();
            }
            gate = self.gate.load(Acquire);
        }
    }

    /// A worker's whole life.
    fn serve(&self) {
        let mut done = 0;
        while let Some(number) = self.await_job(done) {
            done = number;
            if self.enter(number) {
                self.draw();
                self.gate.fetch_sub(1, Release);
            }
        }
    }

    /// The number of the next open job that is not `done`; `None` when the team is dissolved.
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
            let until = *until.get_or_insert_with(|| Instant::now() + LOOKOUT);
            if Instant::now() >= until {
                self.sleep(done);
            }
        }
    }

    /// Parks until somebody opens the gate. May return early.
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

    /// Whether the gate of this job was still open.
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

    /// Does tasks until there are no more. After a panic the tasks that nobody has begun are dropped.
    fn draw(&self) {
        // SAFETY: called by the holder of the job or from inside the gate, so the job does not change and its owner waits.
        let Job { tasks, work } = unsafe { *self.job.get() };
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
        let team = Team::new(threads);
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
        let team = Team::new(2);
        let met = AtomicUsize::new(0);
        for _ in 0..3 {
            let until = Instant::now() + LOOKOUT * 20;
            while team.shared.asleep.load(SeqCst) == 0 || Instant::now() < until {
                spin_loop();
            }
            met.store(0, SeqCst);
            // Both tasks must be under way at once: the caller's own thread cannot do them one after the other.
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
            Team::new(3).pieces(&mut data, piece, |index, values| {
                assert!(values.len() == piece || index == len / piece);
                values.iter_mut().enumerate().for_each(|(at, value)| *value = index * piece + at);
            });
            assert!(data.iter().enumerate().all(|(at, value)| at == *value), "{len} by {piece}");
        }
    }

    #[test]
    fn pairs_go_together() {
        let (mut a, mut b) = (vec![0; 10], vec![0; 20]);
        Team::new(2).pairs((&mut a, 3), (&mut b, 6), |index, a, b| {
            assert_eq!(a.len() * 2, b.len());
            a.fill(index);
            b.fill(index);
        });
        assert_eq!(a, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]);
        assert!(b.iter().enumerate().all(|(at, value)| a[at / 2] == *value));
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        let team = Team::new(2);
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
        let team = Team::new(3);
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

//! Enforces a browser's limits: polls its processes and kills the page that uses too much.
//!
//! V8 limits the heap of a page's script, but not its buffers, canvases and workers. A control
//! group would limit all of them, but few of the machines that workers run on allow one to be
//! created; polling works on all of them and is therefore the only method (docs/decisions/0010).
//! Between two polls a page can exceed the limit by as much as it can write in that time.

use std::fmt;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use furrow_telemetry::{BrowserLimit, BrowserOverLimit, GroupMember, group_members};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

use crate::config::BrowserLimits;

/// Bytes that a page writes per second when it does nothing else. One core filled fresh memory at
/// 1.7 GB/s; a page with workers on many cores is assumed to reach five times that.
const FILL_BYTES_PER_SECOND: u64 = 8 << 30;

/// Longest time between two polls: with 20 pages, on a busy machine of 183 processes, a poll cost
/// 3.8 ms, which is 1.5 % of a core.
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(250);

/// Shortest time between two polls, when the limit is near: 20 % of a core.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(20);

/// Time within which a killed process is gone: one of 4 GiB took 0.8 s on a busy machine.
const DYING_MAX: Duration = Duration::from_secs(5);

/// Time within which a page crash is attributed to the limit that its browser exceeded.
const BLAME_MAX: Duration = Duration::from_secs(10);

/// Why a part of a browser was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LimitOverrun {
    pub limit: BrowserLimit,
    /// Bytes or threads of all its processes.
    used: u64,
    /// The limit that was exceeded.
    most: u64,
    /// The whole browser was killed, not one page of it.
    pub whole: bool,
}

impl fmt::Display for LimitOverrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { used, most, .. } = self;
        match self.limit {
            BrowserLimit::Memory => {
                write!(f, "its browser used {used} bytes, env.browser_memory_bytes_max is {most}")?;
            }
            BrowserLimit::Threads => {
                write!(f, "its browser had {used} threads, env.browser_threads_max is {most}")?;
            }
        }
        f.write_str(if self.whole { "; it was killed" } else { "; the page that used most was killed" })
    }
}

/// Results of the polls of one browser.
#[derive(Debug, Default)]
pub(super) struct BrowserUsage {
    memory_bytes: AtomicU64,
    last: Mutex<Option<(Instant, LimitOverrun)>>,
}

impl BrowserUsage {
    /// Memory in use at the last poll.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    /// Why a part of the browser was killed, if that was recently: a page that crashes an hour
    /// later did so for another reason.
    pub(super) fn overrun(&self) -> Option<LimitOverrun> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.filter(|(at, overrun)| overrun.whole || at.elapsed() < BLAME_MAX).map(|(_, overrun)| overrun)
    }
}

/// Polls the browser whose first process is `group` until `ended` is disconnected.
pub(super) fn enforce_limits(
    group: u32,
    browser: &str,
    limits: BrowserLimits,
    account: &BrowserUsage,
    ended: &Receiver<()>,
) {
    let mut pause = POLL_INTERVAL_MIN;
    let mut dying: Option<(u32, Instant)> = None;
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        // Processes that are not visible cannot be limited: the pool logged that when it started.
        let Ok(members) = group_members(group) else { continue };
        let memory_bytes = members.iter().map(|member| member.footprint_bytes).sum();
        account.memory_bytes.store(memory_bytes, Ordering::Relaxed);
        pause = next_poll_delay(memory_bytes, limits.memory_bytes);
        // A killed process counts until it is gone; no other process is to blame for its memory.
        dying = dying
            .filter(|&(pid, at)| at.elapsed() < DYING_MAX && members.iter().any(|member| member.pid == pid));
        if dying.is_some() {
            continue;
        }
        let Some(excess) = find_excess(&members, limits) else { continue };
        let parts: Vec<BrowserMember> = members.into_iter().map(BrowserMember::inspect).collect();
        let pid = worst_page(&parts, excess).unwrap_or(group);
        let LimitExcess { limit, used, most } = excess;
        let overrun = LimitOverrun { limit, used, most, whole: pid == group };
        *account.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), overrun));
        kill_member(pid, group);
        BrowserOverLimit { browser, pid, limit, used, most, whole: overrun.whole }.emit();
        dying = Some((pid, Instant::now()));
    }
}

/// The less memory is left, the sooner: the time it takes to fill what is left.
fn next_poll_delay(memory_bytes: u64, most: u64) -> Duration {
    let left = most.saturating_sub(memory_bytes);
    Duration::from_secs_f64(left as f64 / FILL_BYTES_PER_SECOND as f64)
        .clamp(POLL_INTERVAL_MIN, POLL_INTERVAL_MAX)
}

/// A limit that was exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LimitExcess {
    limit: BrowserLimit,
    used: u64,
    most: u64,
}

fn find_excess(members: &[GroupMember], limits: BrowserLimits) -> Option<LimitExcess> {
    let sum = |of: fn(&GroupMember) -> u64| members.iter().map(of).sum();
    let both = [
        LimitExcess {
            limit: BrowserLimit::Memory,
            used: sum(|member| member.footprint_bytes),
            most: limits.memory_bytes,
        },
        LimitExcess {
            limit: BrowserLimit::Threads,
            used: sum(|member| member.threads.into()),
            most: limits.threads.into(),
        },
    ];
    both.into_iter().find(|excess| excess.used > excess.most)
}

/// A process of a browser.
#[derive(Debug, Clone, Copy)]
struct BrowserMember {
    member: GroupMember,
    /// The process renders pages and does nothing else.
    is_page: bool,
}

impl BrowserMember {
    fn inspect(member: GroupMember) -> Self {
        let command = fs::read(format!("/proc/{}/cmdline", member.pid)).unwrap_or_default();
        let is_page =
            command.split(|byte| *byte == 0 || *byte == b' ').any(|argument| argument == b"--type=renderer");
        Self { member, is_page }
    }

    fn used(&self, limit: BrowserLimit) -> u64 {
        match limit {
            BrowserLimit::Memory => self.member.footprint_bytes,
            BrowserLimit::Threads => self.member.threads.into(),
        }
    }
}

/// The page that uses most; `None` if the browser would exceed its limit even without any page.
fn worst_page(parts: &[BrowserMember], excess: LimitExcess) -> Option<u32> {
    let usage = |part: &&BrowserMember| part.used(excess.limit);
    let beside: u64 = parts.iter().filter(|part| !part.is_page).map(|part| usage(&part)).sum();
    let worst = parts.iter().filter(|part| part.is_page).max_by_key(usage)?;
    (beside <= excess.most).then_some(worst.member.pid)
}

/// Kills one process of a group, or the whole group if it is the group's first process.
fn kill_member(pid: u32, group: u32) {
    let Some(id) = Pid::from_raw(pid as i32) else { return };
    // Every error here means that the process is already gone.
    if pid == group {
        kill_process_group(id, Signal::KILL).ok();
        return;
    }
    let Ok(process) = pidfd_open(id, PidfdFlags::empty()) else { return };
    // The process id may have been reused by now; the open pidfd still refers to the same process.
    let is_ours = group_members(group).is_ok_and(|members| members.iter().any(|member| member.pid == pid));
    if is_ours {
        pidfd_send_signal(&process, Signal::KILL).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Child, Command, Stdio};
    use std::sync::mpsc::sync_channel;

    use super::*;

    const MB: u64 = 1 << 20;

    fn part(pid: u32, is_page: bool, megabytes: u64, threads: u32) -> BrowserMember {
        BrowserMember { member: GroupMember { pid, footprint_bytes: megabytes * MB, threads }, is_page }
    }

    /// Which process is killed in a browser of these parts with limits of 1000 MB and 100 threads:
    /// 1 is the browser itself.
    #[track_caller]
    fn check(parts: &[BrowserMember], want: Option<u32>) {
        let limits = BrowserLimits { memory_bytes: 1000 * MB, threads: 100 };
        let members: Vec<GroupMember> = parts.iter().map(|part| part.member).collect();
        let ended = find_excess(&members, limits).map(|excess| worst_page(parts, excess).unwrap_or(1));
        assert_eq!(ended, want, "{parts:?}");
    }

    #[test]
    fn the_page_that_holds_most_is_ended_and_the_browser_only_if_no_page_is_to_blame() {
        check(&[], None);
        check(&[part(1, false, 100, 30), part(2, true, 900, 10)], None);
        check(&[part(1, false, 100, 30), part(2, true, 901, 10), part(3, true, 30, 12)], Some(2));
        check(&[part(1, false, 100, 30), part(2, true, 20, 10), part(3, true, 30, 61)], Some(3));
        // The browser uses most, but does not exceed the limit alone.
        check(&[part(1, false, 700, 30), part(2, true, 150, 10), part(3, true, 151, 10)], Some(3));
        check(&[part(1, false, 600, 30), part(4, false, 401, 5), part(3, true, 500, 10)], Some(1));
        check(&[part(1, false, 1001, 30)], Some(1));
        check(&[part(1, false, 10, 101), part(3, true, 500, 10)], Some(1));
    }

    #[test]
    fn the_nearer_the_limit_the_sooner_the_next_look() {
        let pause = |used| next_poll_delay(used, 4096 * MB).as_millis();
        assert_eq!(pause(0), 250);
        assert_eq!(pause(2048 * MB), 250);
        assert_eq!(pause(3072 * MB), 125); // 1 GiB at 8 GiB/s
        assert_eq!(pause(4095 * MB), 20);
        assert_eq!(pause(5000 * MB), 20);
    }

    #[test]
    fn an_overrun_names_its_key() {
        let overrun = LimitOverrun { limit: BrowserLimit::Memory, used: 9, most: 7, whole: false };
        let want =
            "its browser used 9 bytes, env.browser_memory_bytes_max is 7; the page that used most was killed";
        assert_eq!(overrun.to_string(), want);
    }

    /// A process that keeps as many zeros as it receives: `tail` buffers a line until it ends.
    fn memory_hog(group: u32, name: &str) -> Child {
        Command::new("tail")
            .arg0(name)
            .process_group(group as i32)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Feeds a process until it is dead; returns whether it took less than `most` bytes.
    fn feed(child: &mut Child, most: u64) -> bool {
        let mut stdin = child.stdin.take().unwrap();
        let zeros = [0; 1 << 16];
        // A write fails when the pipe's reader is dead.
        (0..most / zeros.len() as u64).any(|_| stdin.write_all(&zeros).is_err())
    }

    /// A group of a first process and a memory hog of this name, limited to 64 MB: returns whether
    /// each of them was killed, and why.
    fn run_to_limit(name: &str) -> (bool, bool, LimitOverrun) {
        let mut first = memory_hog(0, "first");
        let group = first.id();
        let account = BrowserUsage::default();
        let (alive, ended) = sync_channel(0);
        let mut page = memory_hog(group, name);
        let limits = BrowserLimits { memory_bytes: 64 * MB, threads: 100 };
        let killed = |child: &mut Child| child.wait().unwrap().signal() == Some(Signal::KILL.as_raw());
        let account_ref = &account;
        let fates = std::thread::scope(|scope| {
            scope.spawn(move || enforce_limits(group, "b", limits, account_ref, &ended));
            assert!(feed(&mut page, 8 << 30), "8 GB were written and the process was not killed");
            let page = killed(&mut page);
            drop(first.stdin.take());
            let fates = (killed(&mut first), page);
            drop(alive);
            fates
        });
        (fates.0, fates.1, account.overrun().unwrap())
    }

    #[test]
    fn a_page_is_ended_alone_and_a_browser_with_everything_it_started() {
        let (first, page, overrun) = run_to_limit("shell --type=renderer --lang=en");
        assert_eq!((first, page, overrun.whole), (false, true, false), "{overrun}");
        assert!(overrun.used > 64 * MB && overrun.limit == BrowserLimit::Memory, "{overrun}");
        let (first, page, overrun) = run_to_limit("shell --type=gpu-process");
        assert_eq!((first, page, overrun.whole), (true, true, true), "{overrun}");
    }
}

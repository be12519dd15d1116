//! Holds a browser to its limits: looks at its processes again and again, and ends the page that took too much.
//!
//! V8 bounds the heap of a page's script, not its buffers, canvases and workers. A control group would bound all of it, but few of the
//! machines a worker runs on let it make one; looking works on all of them, and is therefore the only way taken
//! (docs/decisions/0010). Between two looks a page can go beyond the limit by as much as it can write in that time.

use std::fmt;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use furrow_telemetry::{BrowserLimit, BrowserOverLimit, Member, group_members};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

use crate::config::BrowserLimits;

/// Bytes that a page writes in a second when it does nothing else. One core filled fresh memory at 1.7 GB/s; a page with workers on many
/// cores is taken to reach five times that.
const FILL_BYTES_PER_SECOND: u64 = 8 << 30;

/// Longest time between two looks: with 20 pages, on a busy machine of 183 processes, a look cost 3.8 ms, so 1.5 % of a core.
const LOOK_LATEST: Duration = Duration::from_millis(250);

/// Shortest time between two looks, when the limit is near: 20 % of a core.
const LOOK_SOONEST: Duration = Duration::from_millis(20);

/// A process that was killed is gone in this time: one of 4 GiB took 0.8 s on a busy machine.
const DYING_MAX: Duration = Duration::from_secs(5);

/// For so long a page that crashed is put down to the limit its browser passed before.
const BLAME_MAX: Duration = Duration::from_secs(10);

/// Why something of a browser was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overrun {
    pub limit: BrowserLimit,
    /// Bytes or threads of all its processes.
    held: u64,
    /// What they may hold.
    most: u64,
    /// The whole browser, not one page of it.
    pub whole: bool,
}

impl fmt::Display for Overrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { held, most, .. } = self;
        match self.limit {
            BrowserLimit::Memory => {
                write!(f, "its browser held {held} bytes, env.browser_memory_bytes_max is {most}")?;
            }
            BrowserLimit::Threads => {
                write!(f, "its browser had {held} threads, env.browser_threads_max is {most}")?;
            }
        }
        f.write_str(if self.whole { "; it was ended" } else { "; the page that held most was ended" })
    }
}

/// What the looks at one browser brought.
#[derive(Debug, Default)]
pub(super) struct Account {
    held_bytes: AtomicU64,
    last: Mutex<Option<(Instant, Overrun)>>,
}

impl Account {
    /// Memory it held at the last look.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// Why something of it was ended, if that was lately: a page that crashes an hour later did so for another reason.
    pub fn overrun(&self) -> Option<Overrun> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.filter(|(at, overrun)| overrun.whole || at.elapsed() < BLAME_MAX).map(|(_, overrun)| overrun)
    }
}

/// Looks after the browser whose first process is `group` until `ended` is disconnected.
pub(super) fn look_after(
    group: u32,
    browser: &str,
    limits: BrowserLimits,
    account: &Account,
    ended: &Receiver<()>,
) {
    let mut pause = LOOK_SOONEST;
    let mut dying: Option<(u32, Instant)> = None;
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        // What cannot be seen cannot be held: the pool said so when it started.
        let Ok(members) = group_members(group) else { continue };
        let held_bytes = members.iter().map(|member| member.held_bytes).sum();
        account.held_bytes.store(held_bytes, Ordering::Relaxed);
        pause = until_next_look(held_bytes, limits.memory_bytes);
        // Whoever was killed still counts until it is gone; nobody else is to blame for that.
        dying = dying
            .filter(|&(pid, at)| at.elapsed() < DYING_MAX && members.iter().any(|member| member.pid == pid));
        if dying.is_some() {
            continue;
        }
        let Some(excess) = excess(&members, limits) else { continue };
        let parts: Vec<Part> = members.into_iter().map(Part::of).collect();
        let pid = worst_page(&parts, excess).unwrap_or(group);
        let Excess { limit, held, most } = excess;
        let overrun = Overrun { limit, held, most, whole: pid == group };
        *account.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), overrun));
        end(pid, group);
        BrowserOverLimit { browser, pid, limit, held, most, whole: overrun.whole }.emit();
        dying = Some((pid, Instant::now()));
    }
}

/// The earlier the less is left: as long as filling what is left takes.
fn until_next_look(held_bytes: u64, most: u64) -> Duration {
    let left = most.saturating_sub(held_bytes);
    Duration::from_secs_f64(left as f64 / FILL_BYTES_PER_SECOND as f64).clamp(LOOK_SOONEST, LOOK_LATEST)
}

/// A limit that was passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Excess {
    limit: BrowserLimit,
    held: u64,
    most: u64,
}

fn excess(members: &[Member], limits: BrowserLimits) -> Option<Excess> {
    let sum = |of: fn(&Member) -> u64| members.iter().map(of).sum();
    let both = [
        Excess {
            limit: BrowserLimit::Memory,
            held: sum(|member| member.held_bytes),
            most: limits.memory_bytes,
        },
        Excess {
            limit: BrowserLimit::Threads,
            held: sum(|member| member.threads.into()),
            most: limits.threads.into(),
        },
    ];
    both.into_iter().find(|excess| excess.held > excess.most)
}

/// A process of a browser.
#[derive(Debug, Clone, Copy)]
struct Part {
    member: Member,
    /// It shows pages and nothing else.
    is_page: bool,
}

impl Part {
    fn of(member: Member) -> Self {
        let command = fs::read(format!("/proc/{}/cmdline", member.pid)).unwrap_or_default();
        let is_page =
            command.split(|byte| *byte == 0 || *byte == b' ').any(|word| word == b"--type=renderer");
        Self { member, is_page }
    }

    fn held(&self, limit: BrowserLimit) -> u64 {
        match limit {
            BrowserLimit::Memory => self.member.held_bytes,
            BrowserLimit::Threads => self.member.threads.into(),
        }
    }
}

/// The page that holds most; `None` when even without any page the browser would be beyond its limit.
fn worst_page(parts: &[Part], excess: Excess) -> Option<u32> {
    let held = |part: &&Part| part.held(excess.limit);
    let beside: u64 = parts.iter().filter(|part| !part.is_page).map(|part| held(&part)).sum();
    let worst = parts.iter().filter(|part| part.is_page).max_by_key(held)?;
    (beside <= excess.most).then_some(worst.member.pid)
}

/// Kills one process of a group, or, if that is its first, the whole group.
fn end(pid: u32, group: u32) {
    let Some(id) = Pid::from_raw(pid as i32) else { return };
    // What is gone already needs no killing: every error here says that.
    if pid == group {
        kill_process_group(id, Signal::KILL).ok();
        return;
    }
    let Ok(process) = pidfd_open(id, PidfdFlags::empty()) else { return };
    // Its number may be another's by now; that of the one held open cannot change hands any more.
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

    fn part(pid: u32, is_page: bool, megabytes: u64, threads: u32) -> Part {
        Part { member: Member { pid, held_bytes: megabytes * MB, threads }, is_page }
    }

    /// Who is ended in a browser of these parts that may hold 1000 MB and 100 threads: 1 is the browser itself.
    #[track_caller]
    fn check(parts: &[Part], want: Option<u32>) {
        let limits = BrowserLimits { memory_bytes: 1000 * MB, threads: 100 };
        let members: Vec<Member> = parts.iter().map(|part| part.member).collect();
        let ended = excess(&members, limits).map(|excess| worst_page(parts, excess).unwrap_or(1));
        assert_eq!(ended, want, "{parts:?}");
    }

    #[test]
    fn the_page_that_holds_most_is_ended_and_the_browser_only_if_no_page_is_to_blame() {
        check(&[], None);
        check(&[part(1, false, 100, 30), part(2, true, 900, 10)], None);
        check(&[part(1, false, 100, 30), part(2, true, 901, 10), part(3, true, 30, 12)], Some(2));
        check(&[part(1, false, 100, 30), part(2, true, 20, 10), part(3, true, 30, 61)], Some(3));
        // The browser holds most, but not alone too much.
        check(&[part(1, false, 700, 30), part(2, true, 150, 10), part(3, true, 151, 10)], Some(3));
        check(&[part(1, false, 600, 30), part(4, false, 401, 5), part(3, true, 500, 10)], Some(1));
        check(&[part(1, false, 1001, 30)], Some(1));
        check(&[part(1, false, 10, 101), part(3, true, 500, 10)], Some(1));
    }

    #[test]
    fn the_nearer_the_limit_the_sooner_the_next_look() {
        let pause = |held| until_next_look(held, 4096 * MB).as_millis();
        assert_eq!(pause(0), 250);
        assert_eq!(pause(2048 * MB), 250);
        assert_eq!(pause(3072 * MB), 125); // 1 GiB at 8 GiB/s
        assert_eq!(pause(4095 * MB), 20);
        assert_eq!(pause(5000 * MB), 20);
    }

    #[test]
    fn an_overrun_names_its_key() {
        let overrun = Overrun { limit: BrowserLimit::Memory, held: 9, most: 7, whole: false };
        let want =
            "its browser held 9 bytes, env.browser_memory_bytes_max is 7; the page that held most was ended";
        assert_eq!(overrun.to_string(), want);
    }

    /// A process that holds as many zeros as it is fed: `tail` keeps a line until it ends.
    fn hoarder(group: u32, name: &str) -> Child {
        Command::new("tail")
            .arg0(name)
            .process_group(group as i32)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Feeds a process until it is dead; says whether it took less than `most` bytes.
    fn feed(child: &mut Child, most: u64) -> bool {
        let mut stdin = child.stdin.take().unwrap();
        let zeros = [0; 1 << 16];
        // A pipe whose reader is dead is broken.
        (0..most / zeros.len() as u64).any(|_| stdin.write_all(&zeros).is_err())
    }

    /// A group of a first process and a hoarder of this name, held to 64 MB: whether each of them was killed, and why.
    fn hold(name: &str) -> (bool, bool, Overrun) {
        let mut first = hoarder(0, "first");
        let (group, account, (alive, ended)) = (first.id(), Account::default(), sync_channel(0));
        let mut page = hoarder(group, name);
        let limits = BrowserLimits { memory_bytes: 64 * MB, threads: 100 };
        let killed = |child: &mut Child| child.wait().unwrap().signal() == Some(Signal::KILL.as_raw());
        let seen = &account;
        let fates = std::thread::scope(|scope| {
            scope.spawn(move || look_after(group, "b", limits, seen, &ended));
            assert!(feed(&mut page, 8 << 30), "8 GB went in and nobody cared");
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
        let (first, page, overrun) = hold("shell --type=renderer --lang=en");
        assert_eq!((first, page, overrun.whole), (false, true, false), "{overrun}");
        assert!(overrun.held > 64 * MB && overrun.limit == BrowserLimit::Memory, "{overrun}");
        let (first, page, overrun) = hold("shell --type=gpu-process");
        assert_eq!((first, page, overrun.whole), (true, true, true), "{overrun}");
    }
}

//! The history of a run from its `metrics.jsonl`: where every microsecond of devices, slots and
//! sessions went.
//!
//! A process of a run appends a line every few seconds with totals since its start. So a run's
//! totals are the sum of the last lines of all its processes, and what happened between two lines
//! is a difference. A later process with the same pid is recognised by its uptime, which went back.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use furrow_rollout::TimeCause;
use furrow_telemetry::{DeviceUse, Label, SlotUse, kept_files};
use serde_json::{Map, Value};

use crate::file_identity::FileIdentity;
use crate::run_time::{Pause, PauseFinder};

/// Totals of a process, or of a run: microseconds by use, and the work done.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct MetricTotals {
    /// Device time, in the order of [`DeviceUse::ALL`].
    pub device_micros: Vec<u64>,
    /// Slot time of environment workers, in the order of [`SlotUse::ALL`].
    pub slot_micros: Vec<u64>,
    /// Session time in environment workers, in the order of [`TimeCause::ALL`].
    pub session_micros: Vec<u64>,
    /// Trajectories with a reward.
    pub scored: u64,
    /// CPU time of the processes and their descendants, in microseconds.
    pub cpu_micros: u64,
}

/// Totals at a time.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HistoryPoint {
    /// Seconds since the Unix epoch.
    pub unix_seconds: f64,
    /// Sum over all processes until then.
    pub totals: MetricTotals,
}

/// The known history of a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct RunHistory {
    /// Sum over all processes; `None` before the first line.
    pub totals: Option<MetricTotals>,
    /// In order, from the first line to the last.
    pub moments: Vec<HistoryPoint>,
    /// Between the starts of the run.
    pub pauses: Vec<Pause>,
    /// Number of lines that were read.
    pub lines: u64,
    /// Number of unreadable lines.
    pub unread: u64,
}

/// Reads a `metrics.jsonl` while it grows.
#[derive(Debug)]
pub(crate) struct MetricsReader {
    path: PathBuf,
    identity: Option<FileIdentity>,
    read: u64,
    partial_line: Vec<u8>,
    /// The last line of each process.
    current: BTreeMap<ProcessKey, (f64, MetricTotals)>,
    /// Sum over processes whose pid another one took.
    ended: MetricTotals,
    /// One point per `stride` lines, and after them the newest one.
    moments: Vec<HistoryPoint>,
    stride: u64,
    pauses: PauseFinder,
    lines: u64,
    unread: u64,
}

/// Points of a chart; beyond that, every second one is dropped, and from then on only every second
/// line adds one, so that the history is evenly spaced. A day of lines every 10 s is 8,640 of them.
const MOMENTS_MAX: usize = 1024;
/// A line has about 8 kB; a line longer than this was not written by furrow.
const LINE_BYTES_MAX: usize = 1 << 20;
const READ_BYTES: u64 = 4 << 20;

impl MetricsReader {
    /// A reader for a file that may not exist yet.
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            identity: None,
            read: 0,
            partial_line: Vec::new(),
            current: BTreeMap::new(),
            ended: MetricTotals::default(),
            moments: Vec::new(),
            stride: 1,
            pauses: PauseFinder::default(),
            lines: 0,
            unread: 0,
        }
    }

    /// Reads the lines added since, also those of files that were set aside; returns whether there
    /// were any. A missing file counts as empty.
    pub(crate) fn catch_up(&mut self) -> io::Result<bool> {
        let mut files = self.kept()?;
        let is_known =
            |(_, _, identity): &(File, u64, FileIdentity)| Some(identity) == self.identity.as_ref();
        let at = files.iter().position(is_known);
        let is_whole = at.is_some_and(|at| self.read <= files[at].1);
        if !is_whole && (self.identity.is_some() || files.is_empty()) {
            *self = Self::new(&self.path.clone()); // the files of another run: `--clean`
        }
        let before = self.lines_and_bytes();
        for (mut file, length, identity) in files.drain(if is_whole { at.unwrap_or(0) } else { 0 }..) {
            if self.identity.as_ref() != Some(&identity) {
                self.identity = Some(identity);
                self.read = 0;
            }
            self.read_to(&mut file, length)?;
        }
        Ok(self.lines_and_bytes() != before)
    }

    fn lines_and_bytes(&self) -> (u64, u64, u64) {
        (self.lines, self.unread, self.read)
    }

    /// The files that are kept with their lengths, the oldest first. They are opened from the
    /// newest on, so that one that is set aside meanwhile is found twice, not missed.
    fn kept(&self) -> io::Result<Vec<(File, u64, FileIdentity)>> {
        let aside = self.path.with_file_name("logs");
        let mut files: Vec<(File, u64, FileIdentity)> = Vec::new();
        for path in kept_files(&self.path, &aside) {
            let file = match File::open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file?,
            };
            let metadata = file.metadata()?;
            let identity = FileIdentity::from_metadata(&metadata);
            if files.iter().all(|(_, _, known)| *known != identity) {
                files.push((file, metadata.len(), identity));
            }
        }
        files.reverse();
        Ok(files)
    }

    fn read_to(&mut self, file: &mut File, length: u64) -> io::Result<()> {
        file.seek(SeekFrom::Start(self.read))?;
        while self.read < length {
            let mut bytes = Vec::new();
            let taken = (&mut *file).take(READ_BYTES).read_to_end(&mut bytes)?;
            if taken == 0 {
                break;
            }
            self.read += taken as u64;
            self.read_bytes(&bytes);
        }
        Ok(())
    }

    /// Totals of the whole run.
    pub(crate) fn totals(&self) -> Option<MetricTotals> {
        if self.current.is_empty() {
            return None;
        }
        let mut totals = self.ended.clone();
        self.current.values().for_each(|(_, of_process)| totals.add(of_process));
        Some(totals)
    }

    /// Whether no line was read.
    pub(crate) fn is_empty(&self) -> bool {
        self.lines == 0
    }

    /// A copy for requests, while reading continues.
    pub(crate) fn history(&self) -> RunHistory {
        RunHistory {
            totals: self.totals(),
            moments: self.moments.clone(),
            pauses: self.pauses.pauses().to_vec(),
            lines: self.lines,
            unread: self.unread,
        }
    }

    fn read_bytes(&mut self, bytes: &[u8]) {
        let mut parts = bytes.split(|&byte| byte == b'\n').peekable();
        while let Some(part) = parts.next() {
            if self.partial_line.len() + part.len() <= LINE_BYTES_MAX {
                self.partial_line.extend_from_slice(part);
            } else {
                self.partial_line.clear();
                self.partial_line.resize(LINE_BYTES_MAX, b' '); // too long: counts as unreadable at its end
            }
            if parts.peek().is_some() {
                let line = std::mem::take(&mut self.partial_line);
                self.read_line(&line);
            }
        }
    }

    fn read_line(&mut self, line: &[u8]) {
        if line.trim_ascii().is_empty() && line.len() < LINE_BYTES_MAX {
            return;
        }
        let Some((key, uptime, at, totals)) = serde_json::from_slice(line).ok().as_ref().and_then(parse)
        else {
            self.unread += 1;
            return;
        };
        self.pauses.add(&key.0, at, uptime);
        if let Some((before, last)) = self.current.get(&key)
            && *before > uptime
        {
            self.ended.add(last);
        }
        self.current.insert(key, (uptime, totals));
        let totals = self.totals().unwrap_or_default();
        self.add_moment(HistoryPoint { unix_seconds: at, totals });
    }

    /// The newest point is always the last one; the one before it stays only if its line is one of
    /// every `stride`.
    fn add_moment(&mut self, moment: HistoryPoint) {
        if self.lines > 0 && !(self.lines - 1).is_multiple_of(self.stride) {
            self.moments.pop();
        }
        self.moments.push(moment);
        self.lines += 1;
        if self.moments.len() > MOMENTS_MAX {
            let mut index = 0usize;
            let last = self.moments.len() - 1;
            self.moments.retain(|_| {
                index += 1;
                (index - 1).is_multiple_of(2) || index - 1 == last
            });
            self.stride *= 2;
        }
    }
}

impl MetricTotals {
    fn of_line(line: &Map<String, Value>) -> Self {
        let number = |key: &str| line.get(key).and_then(Value::as_u64).unwrap_or(0);
        fn each<L: Label>(name: &str, number: &impl Fn(&str) -> u64) -> Vec<u64> {
            L::ALL.iter().map(|label| number(&format!("{name}/{}", label.value()))).collect()
        }
        Self {
            device_micros: each::<DeviceUse>("policy/device_micros", &number),
            slot_micros: each::<SlotUse>("env/slot_micros", &number),
            session_micros: each::<TimeCause>("env/session_micros", &number),
            scored: number("rollout/scored"),
            cpu_micros: number("tree/cpu_micros"),
        }
    }

    fn add(&mut self, other: &Self) {
        for (mine, theirs) in [
            (&mut self.device_micros, &other.device_micros),
            (&mut self.slot_micros, &other.slot_micros),
            (&mut self.session_micros, &other.session_micros),
        ] {
            mine.resize(theirs.len().max(mine.len()), 0);
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine = mine.saturating_add(*theirs));
        }
        for (mine, theirs) in [(&mut self.scored, other.scored), (&mut self.cpu_micros, other.cpu_micros)] {
            *mine = mine.saturating_add(theirs);
        }
    }

    /// Time of one use of a device.
    pub(crate) fn device(&self, used: DeviceUse) -> u64 {
        self.device_micros.get(used.index()).copied().unwrap_or(0)
    }

    /// All time of devices.
    pub(crate) fn device_total(&self) -> u64 {
        self.device_micros.iter().sum()
    }

    /// Time in which devices worked.
    pub(crate) fn device_busy(&self) -> u64 {
        let idle = [DeviceUse::NoWork, DeviceUse::NoCapacity, DeviceUse::Host];
        self.device_total() - idle.map(|used| self.device(used)).iter().sum::<u64>()
    }

    /// All time of slots.
    pub(crate) fn slot_total(&self) -> u64 {
        self.slot_micros.iter().sum()
    }

    /// Time of slots with a trajectory in them.
    pub(crate) fn slot_busy(&self) -> u64 {
        self.slot_micros.get(SlotUse::Busy.index()).copied().unwrap_or(0)
    }
}

/// Role, pid, start time.
type ProcessKey = (String, u64, String);

type ParsedLine = (ProcessKey, f64, f64, MetricTotals);

/// The process, its uptime in seconds, the time, the totals.
fn parse(line: &Value) -> Option<ParsedLine> {
    let line = line.as_object()?;
    let role = line.get("role")?.as_str()?.to_owned();
    let pid = line.get("pid")?.as_u64()?;
    let uptime = line.get("uptime_seconds")?.as_f64().filter(|uptime| (0.0..1e12).contains(uptime))?;
    let at = unix_seconds(line.get("time")?.as_str()?)?;
    let totals = MetricTotals::of_line(line);
    let started = line.get("started").and_then(Value::as_str).unwrap_or_default().to_owned();
    Some(((role, pid, started), uptime, at, totals))
}

/// Parses `2026-11-22T08:00:00.5Z` to seconds since the Unix epoch; only UTC, which is all that the
/// exporter writes.
fn unix_seconds(text: &str) -> Option<f64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let year = date.next()??;
    let month = date.next()??;
    let day = date.next()??;
    let mut time = time.splitn(3, ':');
    let hour = time.next()?.parse::<i64>().ok()?;
    let minute = time.next()?.parse::<i64>().ok()?;
    let second = time.next()?.parse::<f64>().ok()?;
    let in_range = (1..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !in_range || !(0..24).contains(&hour) || !(0..60).contains(&minute) || !(0.0..61.0).contains(&second) {
        return None;
    }
    Some((days_since_epoch(year, month, day) * 86_400 + hour * 3600 + minute * 60) as f64 + second)
}

/// Days of the Gregorian calendar: years begin in March, so that the leap day comes last; from
/// there five months have 153 days.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let months_since_march = (month + 9) % 12;
    let day_of_year = (153 * months_since_march + 2) / 5 + day - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn line(pid: u64, uptime: f64, scored: u64, decode: u64, idle: u64) -> String {
        let line = json!({
            "time": format!("2026-11-22T08:00:{uptime:04.1}Z"), "role": "run", "pid": pid, "uptime_seconds": uptime,
            "rollout/scored": scored, "rollout/scored_per_second": 0.5, "policy/device_micros/decode": decode,
            "policy/device_micros/no_work": idle, "env/slot_micros/busy": 7, "env/slot_micros/starting": 3,
            "env/session_micros/policy": 7,
        });
        format!("{line}\n")
    }

    fn hours(text: &str) -> MetricsReader {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut hours = MetricsReader::new(&path);
        assert!(!hours.catch_up().unwrap());
        // In two parts, cut at any position.
        std::fs::write(&path, &text[..text.len() / 3]).unwrap();
        hours.catch_up().unwrap();
        std::fs::write(&path, text).unwrap();
        hours.catch_up().unwrap();
        assert!(!hours.catch_up().unwrap());
        hours
    }

    #[test]
    fn totals_are_of_all_processes() {
        let text = [line(1, 1.0, 3, 10, 1), line(1, 2.0, 5, 20, 2), line(2, 1.5, 1, 4, 1)].concat();
        let totals = hours(&text).totals().unwrap();
        assert_eq!((totals.scored, totals.device_total(), totals.device_busy()), (6, 27, 24));
        assert_eq!((totals.slot_total(), totals.slot_busy()), (20, 14));
        // Process 1 was resumed with the same pid: its earlier totals stay.
        let resumed = format!("{text}{}", line(1, 0.5, 2, 1, 0));
        let hours = hours(&resumed);
        assert_eq!(hours.totals().unwrap().scored, 8);
        let scored: Vec<u64> = hours.moments.iter().map(|moment| moment.totals.scored).collect();
        assert_eq!(scored, [3, 5, 6, 8]);
    }

    #[test]
    fn a_line_that_cannot_be_read_is_counted_and_left_out() {
        let text = format!("{}torn\n{{\"pid\":1}}\n{}", line(1, 1.0, 3, 0, 0), line(1, 2.0, 4, 0, 0));
        let short = hours(&text);
        assert_eq!((short.unread, short.totals().unwrap().scored), (2, 4));
        let long = format!("{}\n{}", "x".repeat(2 * LINE_BYTES_MAX), line(1, 2.0, 4, 0, 0));
        let long = hours(&long);
        assert_eq!((long.unread, long.totals().unwrap().scored), (1, 4));
    }

    #[test]
    fn many_moments_are_thinned_evenly_and_the_last_stays() {
        for count in [1, 1023, 1024, 1025, 1026, 2048, 2049, 3000, 20_000_usize] {
            let mut hours = MetricsReader::new(Path::new("none"));
            for line in 0..count {
                let moment = HistoryPoint { unix_seconds: line as f64, totals: MetricTotals::default() };
                hours.add_moment(moment);
            }
            let at: Vec<usize> = hours.moments.iter().map(|moment| moment.unix_seconds as usize).collect();
            assert!(
                at.len() <= MOMENTS_MAX && at.len() >= count.min(MOMENTS_MAX / 2),
                "{count}: {}",
                at.len()
            );
            assert_eq!((at[0], *at.last().unwrap()), (0, count - 1), "{count}");
            let gaps: Vec<usize> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let (last, even) = gaps.split_last().unwrap_or((&0, &[]));
            let stride = hours.stride as usize;
            assert!(even.iter().all(|gap| *gap == stride) && *last <= stride, "{count}: {gaps:?}");
        }
    }

    #[test]
    fn another_file_under_the_same_name_is_read_from_its_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        std::fs::write(&path, line(1, 1.0, 3, 0, 0)).unwrap();
        let mut hours = MetricsReader::new(&path);
        hours.catch_up().unwrap();
        // Longer than the part that was read of the first file.
        let other = folder.path().join("other");
        std::fs::write(&other, [line(2, 1.0, 7, 0, 0), line(2, 2.0, 9, 0, 0)].concat()).unwrap();
        std::fs::rename(&other, &path).unwrap();
        hours.catch_up().unwrap();
        assert_eq!((hours.totals().unwrap().scored, hours.lines), (9, 2));
        std::fs::remove_file(&path).unwrap();
        hours.catch_up().unwrap();
        assert_eq!(hours.history(), RunHistory::default());
    }

    #[test]
    fn files_that_were_set_aside_are_read_and_none_twice() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let logs = folder.path().join("logs");
        std::fs::create_dir(&logs).unwrap();
        let set_aside = || {
            std::fs::rename(logs.join("metrics.1.jsonl"), logs.join("metrics.2.jsonl")).ok();
            std::fs::rename(&path, logs.join("metrics.1.jsonl")).unwrap();
        };
        std::fs::write(&path, line(1, 1.0, 3, 0, 0)).unwrap();
        let mut follower = MetricsReader::new(&path);
        assert!(follower.catch_up().unwrap());
        // Lines come to the old file until it is set aside, and then twice so before the next look.
        std::fs::write(&path, [line(1, 1.0, 3, 0, 0), line(1, 2.0, 4, 0, 0)].concat()).unwrap();
        set_aside();
        std::fs::write(&path, line(2, 1.0, 5, 0, 0)).unwrap();
        set_aside();
        std::fs::write(&path, line(3, 1.0, 7, 0, 0)).unwrap();
        assert!(follower.catch_up().unwrap());
        assert!(!follower.catch_up().unwrap());
        let mut fresh = MetricsReader::new(&path);
        fresh.catch_up().unwrap();
        for reader in [&follower, &fresh] {
            assert_eq!((reader.totals().unwrap().scored, reader.lines, reader.unread), (16, 4, 0));
        }
    }

    #[test]
    fn times_are_parsed_as_utc() {
        let check = |text: &str, want: Option<f64>| assert_eq!(unix_seconds(text), want, "{text}");
        check("1970-01-01T00:00:03Z", Some(3.0));
        check("2000-02-29T12:00:00.25Z", Some(951_825_600.25));
        check("2026-11-22T08:26:11Z", Some(1_795_335_971.0));
        check("2026-11-22T08:26:11+01:00", None);
        check("2026-13-22T08:26:11Z", None);
        check("yesterday", None);
    }
}

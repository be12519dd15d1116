//! Writes log lines from a thread of its own, so that a disk that stalls stops no other thread.
//!
//! A thread that logs waits until its line is written, so that a process that is killed has lost no
//! line; but it waits for [`WAIT`] at most, and while the disk stalls not at all. Lines then gather
//! up to a limit, and further ones are dropped and counted.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tracing_subscriber::fmt::MakeWriter;

use crate::rotation::RotatingFile;

/// A disk that takes longer for a line stalls.
const WAIT: Duration = Duration::from_millis(20);
/// Most bytes of lines that wait: some 10,000 lines.
const QUEUED_BYTES_MAX: usize = 4 << 20;

/// Hands lines to the thread that writes them.
#[derive(Debug, Clone)]
pub(crate) struct LogWriter {
    shared: Arc<SharedQueue>,
}

#[derive(Debug, Default)]
struct SharedQueue {
    queue: Mutex<LineQueue>,
    arrived: Condvar,
    written: Condvar,
}

#[derive(Debug, Default)]
struct LineQueue {
    lines: Vec<Vec<u8>>,
    bytes: usize,
    /// Lines handed over, and lines that were written or could not be.
    taken: u64,
    done: u64,
    dropped: u64,
    /// A line took longer than [`WAIT`], and the queue was not empty since.
    is_stalled: bool,
}

/// A line in the making.
#[derive(Debug)]
pub(crate) struct LogLine<'a> {
    writer: &'a LogWriter,
    text: Vec<u8>,
}

impl LogWriter {
    /// Starts the thread, which ends with the process.
    pub(crate) fn start(file: RotatingFile) -> io::Result<Self> {
        Self::start_with(file)
    }

    fn start_with(sink: impl LineSink) -> io::Result<Self> {
        let shared = Arc::new(SharedQueue::default());
        let writing = Arc::clone(&shared);
        std::thread::Builder::new().name("log".to_owned()).spawn(move || writing.write_all(sink))?;
        Ok(Self { shared })
    }

    fn hand_over(&self, line: Vec<u8>) {
        let mut queue = self.shared.lock();
        if queue.bytes + line.len() > QUEUED_BYTES_MAX {
            queue.dropped += 1;
            return;
        }
        queue.bytes += line.len();
        queue.lines.push(line);
        queue.taken += 1;
        let own = queue.taken;
        self.shared.arrived.notify_one();
        if queue.is_stalled {
            return;
        }
        let waits = |queue: &mut LineQueue| queue.done < own && !queue.is_stalled;
        let waited = self.shared.written.wait_timeout_while(queue, WAIT, waits);
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if queue.done < own {
            queue.is_stalled = true;
            self.shared.written.notify_all();
        }
    }
}

/// Where lines go; a test has one that stalls.
trait LineSink: Send + 'static {
    fn append(&mut self, line: &[u8]) -> io::Result<()>;
}

impl LineSink for RotatingFile {
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        RotatingFile::append(self, line)
    }
}

impl SharedQueue {
    fn lock(&self) -> MutexGuard<'_, LineQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_all(&self, mut sink: impl LineSink) {
        loop {
            let mut queue = self.lock();
            while queue.lines.is_empty() && queue.dropped == 0 {
                queue = self.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            let lines = std::mem::take(&mut queue.lines);
            let dropped = std::mem::take(&mut queue.dropped);
            queue.bytes = 0;
            drop(queue);
            // A line that the disk refuses is lost: there is nowhere to say so.
            for line in &lines {
                sink.append(line).ok();
            }
            if dropped > 0 {
                sink.append(&dropped_line(dropped)).ok();
            }
            let mut queue = self.lock();
            queue.done += lines.len() as u64;
            queue.is_stalled &= !queue.lines.is_empty();
            self.written.notify_all();
        }
    }
}

/// In the form of all other lines.
fn dropped_line(count: u64) -> Vec<u8> {
    let now = OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default();
    let line = json!({
        "timestamp": now,
        "level": "WARN",
        "message": "the disk stalled: log lines were dropped",
        "dropped": count,
        "target": module_path!(),
    });
    format!("{line}\n").into_bytes()
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = LogLine<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        LogLine { writer: self, text: Vec::new() }
    }
}

impl io::Write for LogLine<'_> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogLine<'_> {
    fn drop(&mut self) {
        if !self.text.is_empty() {
            self.writer.hand_over(std::mem::take(&mut self.text));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, sync_channel};
    use std::time::Instant;

    use super::*;

    /// Keeps the lines once the test lets it.
    struct GatedSink {
        gate: Receiver<()>,
        kept: Arc<Mutex<Vec<u8>>>,
    }

    impl LineSink for GatedSink {
        fn append(&mut self, line: &[u8]) -> io::Result<()> {
            // A gate that is gone stays open.
            self.gate.recv().ok();
            self.kept.lock().unwrap().extend_from_slice(line);
            Ok(())
        }
    }

    #[test]
    fn a_disk_that_stalls_stops_nobody_and_what_is_dropped_is_counted() {
        let (open, gate) = sync_channel(1);
        let kept = Arc::<Mutex<Vec<u8>>>::default();
        let writer = LogWriter::start_with(GatedSink { gate, kept: Arc::clone(&kept) }).unwrap();
        let line = [vec![b'x'; 1023], b"\n".to_vec()].concat();
        let began = Instant::now();
        let lines = 2 * QUEUED_BYTES_MAX / line.len();
        (0..lines).for_each(|_| writer.hand_over(line.clone()));
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        drop(open);
        let deadline = Instant::now() + Duration::from_secs(30);
        let text = loop {
            let text = String::from_utf8(kept.lock().unwrap().clone()).unwrap();
            if text.contains("dropped") {
                break text;
            }
            assert!(Instant::now() < deadline, "the lines were never written");
            std::thread::park_timeout(Duration::from_millis(5));
        };
        let written = text.lines().filter(|line| line.starts_with('x')).count();
        let note = text.lines().find(|line| line.contains("dropped")).unwrap();
        let note: serde_json::Value = serde_json::from_str(note).unwrap();
        assert_eq!(written as u64 + note["dropped"].as_u64().unwrap(), lines as u64);
        assert!(written >= lines / 2 - 2 && written < lines, "{written} of {lines}");
    }

    #[test]
    fn a_line_is_written_when_its_event_was_logged() {
        let (open, gate) = sync_channel(100);
        (0..100).for_each(|_| open.send(()).unwrap());
        let kept = Arc::<Mutex<Vec<u8>>>::default();
        let writer = LogWriter::start_with(GatedSink { gate, kept: Arc::clone(&kept) }).unwrap();
        for number in 1..=100 {
            writer.hand_over(b"x\n".to_vec());
            let written = kept.lock().unwrap().len() / 2;
            assert!(written == number || writer.shared.lock().is_stalled, "{written} of {number}");
        }
    }
}

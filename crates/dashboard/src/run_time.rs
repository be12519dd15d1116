//! The wall clock of a run: without the pauses between its starts, in which nothing ran. Each rate
//! by wall clock divides by it, in the pages, the report and the terminal.

use furrow_wire::v1::ProgressResponse;

/// Time between two starts of a run, in seconds since the Unix epoch.
pub(crate) type Pause = (f64, f64);

/// Most pauses that are kept; a run with more counts the later ones as running.
const PAUSES_MAX: usize = 1000;
/// A gap below this is the rounding of two clocks.
const PAUSE_SECONDS_MIN: f64 = 1.0;

/// Finds the pauses of a run from the lines of its coordinators, in their order.
#[derive(Debug, Clone, Default)]
pub(crate) struct PauseFinder {
    alive_until: Option<f64>,
    pauses: Vec<Pause>,
}

impl PauseFinder {
    /// Takes a line that a process wrote at this time, `uptime` seconds after its start.
    pub(crate) fn add(&mut self, role: &str, at: f64, uptime: f64) {
        if !matches!(role, "run" | "coordinator") {
            return;
        }
        let began = at - uptime;
        if let Some(until) = self.alive_until
            && began > until + PAUSE_SECONDS_MIN
            && self.pauses.len() < PAUSES_MAX
        {
            self.pauses.push((until, began));
        }
        self.alive_until = Some(self.alive_until.map_or(at, |until| until.max(at)));
    }

    pub(crate) fn pauses(&self) -> &[Pause] {
        &self.pauses
    }
}

/// Microseconds from one point of the wall clock to another, without pauses.
pub(crate) fn run_micros(from: i64, to: i64, pauses: &[Pause]) -> i64 {
    let overlap = |&(began, ended): &Pause| {
        let began = ((began * 1e6).round() as i64).max(from);
        let ended = ((ended * 1e6).round() as i64).min(to);
        ended.saturating_sub(began).max(0)
    };
    to.saturating_sub(from).saturating_sub(pauses.iter().map(overlap).sum()).max(0)
}

/// Trajectories with a reward per hour since the coordinator's start; `None` of a coordinator that
/// does not say when it started. What an earlier start scored took time that this one did not run.
pub fn trajectories_per_hour(now: &ProgressResponse) -> Option<f64> {
    let hours = now.uptime_millis as f64 / 3.6e6;
    let scored = now.scored.saturating_sub(now.scored_before);
    (hours > 0.0).then(|| f64::from(scored) / hours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_lie_between_the_starts_of_coordinators_alone() {
        let mut finder = PauseFinder::default();
        let lines = [
            ("run", 110.0, 10.0),
            ("policy", 500.0, 1.0),
            ("run", 120.0, 20.0),
            // Resumed at 1000, then again half a second after that start's last line.
            ("run", 1010.0, 10.0),
            ("coordinator", 1015.0, 4.5),
            ("env", 5000.0, 1.0),
            ("run", 3001.0, 1.0),
        ];
        lines.into_iter().for_each(|(role, at, uptime)| finder.add(role, at, uptime));
        assert_eq!(finder.pauses(), [(120.0, 1000.0), (1015.0, 3000.0)]);
    }

    #[test]
    fn a_pause_counts_as_far_as_it_lies_within() {
        let second = 1_000_000;
        let pauses = [(10.0, 20.0), (30.0, 40.0)];
        for (from, to, want) in
            [(0, 50, 30), (0, 15, 10), (15, 35, 10), (12, 18, 0), (41, 50, 9), (50, 41, 0)]
        {
            assert_eq!(run_micros(from * second, to * second, &pauses), want * second, "{from} to {to}");
        }
    }

    /// 431 scored before, none since: a resumed run that just began.
    #[test]
    fn a_rate_is_of_this_start() {
        let rate = |scored, scored_before, uptime_millis| {
            trajectories_per_hour(&ProgressResponse {
                scored,
                scored_before,
                uptime_millis,
                ..ProgressResponse::default()
            })
        };
        assert_eq!(rate(431, 431, 1000), Some(0.0));
        assert_eq!(rate(441, 431, 1_800_000), Some(20.0));
        assert_eq!(rate(3, 0, 1000), Some(10_800.0));
        assert_eq!(rate(3, 0, 0), None);
    }
}

//! `furrow-bench soak`: runs thousands of trajectories on one worker and measures whether anything
//! grows.
//!
//! The whole farm runs in a separate process with the random policy on real pages; processes, open
//! files and memory of its whole tree are sampled from outside. The report gives the rise of a
//! straight line through the samples per thousand trajectories.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use furrow::{CommandFailure, ScratchDir, runtime};
use furrow_env::EnvFile;
use furrow_telemetry::{MemoryMeasure, tree_open_files, tree_usage};
use tokio::time::{Instant, sleep};

use crate::BenchArgs;
use crate::child::{FarmPathArgs, FarmPlan, FarmProcess};
use crate::pace::BenchPage;
use crate::report::{BenchReport, percentile};

#[derive(Debug, Args)]
pub(crate) struct SoakArgs {
    /// Number of trajectories to run
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    trajectories: u32,
    /// Steps of each trajectory
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    steps: u32,
    /// Number of concurrent trajectories
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=200))]
    sessions: u32,
    /// Number of trajectories after which a browser is replaced
    #[arg(long, default_value_t = EnvFile::default().trajectories_per_browser)]
    trajectories_per_browser: u32,
    #[command(flatten)]
    paths: FarmPathArgs,
    #[command(flatten)]
    bench: BenchArgs,
}

/// Time between two samples: reading the memory of 20 processes takes the kernel 26 ms. The farm
/// updates its trajectory count every 5 s.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);

/// A trajectory of two steps takes a second or two; after a minute it is stuck.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// One sample of the whole process tree.
#[derive(Debug, Clone, Copy)]
struct ResourceSample {
    /// Number of trajectories that had ended.
    trajectories: f64,
    processes: f64,
    files: f64,
    pss_megabytes: f64,
}

pub(crate) fn run(args: &SoakArgs) -> Result<(), CommandFailure> {
    let program = args.paths.program.find()?;
    let mut report = BenchReport::begin(&args.bench)?;
    let scratch = ScratchDir::make(&args.paths.dir)?;
    let (samples, took) = runtime()?.block_on(soak(args, &program, &scratch))?;
    // During the first tenth everything fills: caches, pools, the browsers themselves.
    let settled: Vec<ResourceSample> = samples
        .into_iter()
        .filter(|sample| sample.trajectories >= f64::from(args.trajectories) / 10.0)
        .collect();
    let ended = settled.last().map_or(0.0, |last| last.trajectories);
    report.add("trajectories", "ended", ended);
    report.add("trajectories a second", "", ended / took.as_secs_f64());
    type SampleField = fn(&ResourceSample) -> f64;
    let kinds: [(&str, &str, SampleField); 3] = [
        ("processes", "", |sample| sample.processes),
        ("open files", "", |sample| sample.files),
        ("PSS", "MB", |sample| sample.pss_megabytes),
    ];
    for (name, unit, of) in kinds {
        let values: Vec<f64> = settled.iter().map(of).collect();
        let points: Vec<(f64, f64)> =
            settled.iter().map(|sample| (sample.trajectories / 1e3, of(sample))).collect();
        let fifth = values.len().div_ceil(5);
        for (part, values) in [("first", &values[..fifth]), ("last", &values[values.len() - fifth..])] {
            if let Some(median) = percentile(values, 50.0) {
                report.add(format!("{name}, {part} fifth"), unit, median);
            }
        }
        if let Some(slope) = slope(&points) {
            report.add(format!("{name}, rise a thousand trajectories"), unit, slope);
        }
    }
    report.note(format!("{} samples, {} s apart", settled.len(), SAMPLE_INTERVAL.as_secs()));
    report.print(&args.bench)
}

async fn soak(
    args: &SoakArgs,
    program: &Path,
    scratch: &ScratchDir,
) -> Result<(Vec<ResourceSample>, Duration), CommandFailure> {
    let env = EnvFile {
        sessions_max: args.sessions,
        trajectories_per_browser: args.trajectories_per_browser,
        browser: args.paths.browser.clone(),
        ..EnvFile::default()
    };
    let plan = FarmPlan {
        env,
        think: Duration::ZERO,
        max_delay: Duration::from_secs(30),
        simulated_screenshot_bytes: None,
        steps_max: Some(args.steps),
    };
    let folder = scratch.fresh("soak")?;
    let mut farm = FarmProcess::start(program, folder, &args.paths.pages, BenchPage::Shop, &plan)?;
    let began = Instant::now();
    let mut moved = Instant::now();
    let mut samples: Vec<ResourceSample> = Vec::new();
    loop {
        sleep(SAMPLE_INTERVAL).await;
        let Some(now) = farm.now()? else { continue };
        let usage = tree_usage(farm.pid()?, MemoryMeasure::RssAndPss)?;
        let sample = ResourceSample {
            trajectories: now.number("env/trajectories"),
            processes: usage.processes as f64,
            files: tree_open_files(farm.pid()?)? as f64,
            pss_megabytes: usage.pss_bytes.unwrap_or(usage.rss_bytes) as f64 / 1e6,
        };
        if samples.last().is_none_or(|last| last.trajectories < sample.trajectories) {
            moved = Instant::now();
        }
        samples.push(sample);
        if sample.trajectories >= f64::from(args.trajectories) {
            break;
        }
        if moved.elapsed() > STALL_TIMEOUT {
            let stuck = format!("no trajectory ended for {} s", STALL_TIMEOUT.as_secs());
            return Err(anyhow::anyhow!(stuck).into());
        }
    }
    let took = began.elapsed();
    farm.stop().await?;
    Ok((samples, took))
}

/// Least-squares slope of a line through points: sum((x - mean x)(y - mean y)) / sum((x - mean
/// x)^2).
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let x_mean = mean(|point| point.0);
    let y_mean = mean(|point| point.1);
    let spread: f64 = points.iter().map(|(x, _)| (x - x_mean).powi(2)).sum();
    let rise: f64 = points.iter().map(|(x, y)| (x - x_mean) * (y - y_mean)).sum();
    (spread > 0.0).then(|| rise / spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slope_is_that_of_the_line() {
        assert_eq!(slope(&[]), None);
        assert_eq!(slope(&[(1.0, 5.0)]), None);
        assert_eq!(slope(&[(1.0, 5.0), (1.0, 7.0)]), None);
        assert_eq!(slope(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]), Some(2.0));
        assert_eq!(slope(&[(0.0, 4.0), (1.0, 0.0), (2.0, 4.0)]), Some(0.0));
    }
}

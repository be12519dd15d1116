//! `furrow bench soak`: thousands of trajectories in a row on one worker, and whether anything of it grows.
//!
//! The whole farm runs in a process of its own with the random policy on real pages; from outside, the processes, the open files and the memory
//! of its whole tree are sampled. What a straight line through the samples rises by is told for a thousand trajectories.

use std::time::Duration;

use clap::Args;
use furrow_env::EnvFile;
use furrow_telemetry::{Memory, tree_open_files, tree_usage};
use tokio::time::{Instant, sleep};

use super::BenchArgs;
use super::child::{Farm, PlaceArgs, Plan};
use super::pace::Page;
use super::report::{Report, percentile};
use crate::commands::scratch::Scratch;
use crate::{Failure, launch};

/// How much and with what.
#[derive(Debug, Args)]
pub struct SoakArgs {
    /// Trajectories that end before it is over
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    trajectories: u32,
    /// Steps of each
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    steps: u32,
    /// Trajectories at once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=200))]
    sessions: u32,
    /// Trajectories after which a browser is replaced
    #[arg(long, default_value_t = EnvFile::default().trajectories_per_browser)]
    trajectories_per_browser: u32,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    bench: BenchArgs,
}

/// Time between two looks: reading the memory of 20 processes takes the kernel 26 ms. The farm counts its trajectories every 5 s.
const LOOK: Duration = Duration::from_secs(5);

/// A trajectory of two steps takes a second or two; one that takes a minute is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// One look at the whole tree.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// Trajectories that had ended.
    trajectories: f64,
    processes: f64,
    files: f64,
    pss_megabytes: f64,
}

/// Runs the command.
pub fn run(args: &SoakArgs) -> Result<(), Failure> {
    let mut report = Report::begin(&args.bench)?;
    let scratch = Scratch::make(&args.place.dir)?;
    let (samples, took) = launch::runtime()?.block_on(soak(args, &scratch))?;
    // Until a tenth is over everything fills: caches, pools, the browsers themselves.
    let settled: Vec<Sample> = samples
        .into_iter()
        .filter(|sample| sample.trajectories >= f64::from(args.trajectories) / 10.0)
        .collect();
    let ended = settled.last().map_or(0.0, |last| last.trajectories);
    report.add("trajectories", "ended", ended);
    report.add("trajectories a second", "", ended / took.as_secs_f64());
    type Of = fn(&Sample) -> f64;
    let kinds: [(&str, &str, Of); 3] = [
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
    report.note(format!("{} samples, {} s apart", settled.len(), LOOK.as_secs()));
    report.print(&args.bench)
}

async fn soak(args: &SoakArgs, scratch: &Scratch) -> Result<(Vec<Sample>, Duration), Failure> {
    let env = EnvFile {
        sessions_max: args.sessions,
        trajectories_per_browser: args.trajectories_per_browser,
        browser: args.place.browser.clone(),
        ..EnvFile::default()
    };
    let plan = Plan {
        env,
        think: Duration::ZERO,
        max_delay: Duration::from_secs(30),
        air: None,
        steps_max: Some(args.steps),
    };
    let mut farm = Farm::start(scratch.fresh("soak")?, &args.place.pages, Page::Shop, &plan)?;
    let (began, mut moved) = (Instant::now(), Instant::now());
    let mut samples: Vec<Sample> = Vec::new();
    loop {
        sleep(LOOK).await;
        let Some(now) = farm.now()? else { continue };
        let usage = tree_usage(farm.pid()?, Memory::RssAndPss)?;
        let sample = Sample {
            trajectories: now.of("env/trajectories"),
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
        if moved.elapsed() > PATIENCE {
            let stuck = format!("no trajectory ended for {} s", PATIENCE.as_secs());
            return Err(anyhow::anyhow!(stuck).into());
        }
    }
    let took = began.elapsed();
    farm.stop().await?;
    Ok((samples, took))
}

/// Slope of the straight line of least squares through points: sum((x - mean x)(y - mean y)) / sum((x - mean x)^2).
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x_mean, y_mean) = (mean(|point| point.0), mean(|point| point.1));
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

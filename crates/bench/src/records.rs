//! `furrow-bench records`: measures how fast screenshots become durable shards, and how soon a
//! finished trajectory is in the manifest.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use furrow::{CommandFailure, ScratchDir};
use furrow_env::simulated::{SimConfig, SimulatedBrowser};
use furrow_env::{EnvFile, EnvironmentFactory};
use furrow_policy::PolicyFile;
use furrow_records::fixtures::TrajectoryFixture;
use furrow_records::{RecordsFile, ShardPlan, ShardWriter};
use furrow_rollout::{Id, PolicyKind, Screenshot, StepRecord, TrajectoryRecord};

use crate::BenchArgs;
use crate::child::{FarmPlan, FarmProcess};
use crate::pace::{self, BenchPage};
use crate::program::ProgramArgs;
use crate::report::{BenchReport, megabytes_a_second};

#[derive(Debug, Args)]
pub(crate) struct RecordsArgs {
    /// Megabytes of screenshots to write in each round
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    megabytes: u64,
    /// Size of each screenshot in bytes
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1_000..=4_000_000))]
    screenshot_bytes: u32,
    /// Number of sessions of the farm whose commits are timed; they act on simulated pages
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    sessions: u32,
    /// Seconds that this farm runs in each round
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(10..=3600))]
    seconds: u64,
    /// Number of rounds; the result is the median over the rounds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Directory on the disk to measure; everything written is removed at the end
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Directory that has shop.html
    #[arg(long, default_value = "envs/bench")]
    pages: PathBuf,
    #[command(flatten)]
    program: ProgramArgs,
    #[command(flatten)]
    bench: BenchArgs,
}

type GeneratedRecords = Vec<(TrajectoryRecord, Vec<StepRecord>)>;

/// Different pictures, so that no layer can deduplicate them.
const PICTURES: u64 = 16;

const STEPS: u32 = 30;

/// Longest time until an ended trajectory is committed, as for a trainer that reads along.
const MAX_DELAY: Duration = Duration::from_secs(2);

/// With random actions a simulated page takes some forty clicks: each session ends a trajectory
/// about every four seconds.
const THINK: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &RecordsArgs) -> Result<(), CommandFailure> {
    if !args.pages.join("shop.html").is_file() {
        let folder = args.pages.display();
        return Err(CommandFailure::Input(vec![format!(
            "--pages: {folder} has no shop.html; use the repository's envs/bench"
        )]));
    }
    let program = args.program.find()?;
    let mut report = BenchReport::begin(&args.bench)?;
    let scratch = ScratchDir::make(&args.dir)?;
    let runtime = furrow::runtime()?;
    let pictures = runtime.block_on(pictures(args.screenshot_bytes as usize))?;
    for _ in 0..args.rounds {
        throughput(args, &pictures, &scratch, &mut report)?;
        runtime.block_on(delay(args, &program, &scratch, &mut report))?;
    }
    report.note(
        "the delay's percentiles are upper bounds of histogram buckets, at most an eighth above the value",
    );
    report.print(&args.bench)
}

/// Writes shards, then plain files of the same size to the same disk.
fn throughput(
    args: &RecordsArgs,
    pictures: &[Screenshot],
    scratch: &ScratchDir,
    report: &mut BenchReport,
) -> Result<(), CommandFailure> {
    let made = trajectories(args.megabytes * 1_000_000, pictures);
    let bytes: u64 = made.iter().flat_map(|(_, steps)| steps).map(screenshot_bytes).sum();
    let (wrote, time) = write_shards(&scratch.fresh("shards")?, &made)?;
    let shards = megabytes_a_second(bytes, time);
    let time = write_plain(&scratch.fresh("plain")?, wrote, pictures)?;
    let disk = megabytes_a_second(wrote, time);
    report.add("screenshots into durable shards", "MB/s", shards);
    report.add("the disk, written in order and synced", "MB/s", disk);
    report.add("shards / disk", "x", shards / disk);
    scratch.fresh("shards")?;
    scratch.fresh("plain")?;
    Ok(())
}

async fn delay(
    args: &RecordsArgs,
    program: &Path,
    scratch: &ScratchDir,
    report: &mut BenchReport,
) -> Result<(), CommandFailure> {
    let env = EnvFile { sessions_max: args.sessions, ..EnvFile::default() };
    let simulated_bytes = Some(args.screenshot_bytes as usize);
    let plan = FarmPlan {
        env,
        think: THINK,
        max_delay: MAX_DELAY,
        simulated_screenshot_bytes: simulated_bytes,
        steps_max: None,
    };
    let folder = scratch.fresh("farm")?;
    let mut farm = FarmProcess::start(program, folder, &args.pages, BenchPage::Shop, &plan)?;
    let seconds = args.seconds as f64;
    farm.until(|now| now.number("uptime_seconds") >= seconds, Duration::from_secs(args.seconds)).await?;
    let life = farm.stop().await?;
    report.add("trajectories committed", "count", life.number("records/commit_micros/count"));
    report.add("end to manifest p50", "s", life.number("records/commit_micros/p50") / 1e6);
    report.add("end to manifest p99", "s", life.number("records/commit_micros/p99") / 1e6);
    Ok(())
}

/// Noise screenshots of simulated pages.
async fn pictures(screenshot_bytes: usize) -> Result<Vec<Screenshot>, CommandFailure> {
    let assignment = pace::assignment(
        0,
        BenchPage::Shop,
        &PolicyFile::default().check().map_err(CommandFailure::Input)?.session,
    )?;
    let mut pictures = Vec::new();
    for seed in 0..PICTURES {
        let browser = SimulatedBrowser::new(SimConfig { seed, screenshot_bytes, ..SimConfig::default() });
        pictures.push(browser.open(&assignment).await?.observe().await?.screenshot);
    }
    Ok(pictures)
}

/// Trajectories with this many bytes of screenshots; they share the pictures' memory.
fn trajectories(bytes: u64, pictures: &[Screenshot]) -> GeneratedRecords {
    let mut pictures = pictures.iter().cycle();
    let mut left = bytes;
    let mut made = Vec::new();
    while left > 0 {
        let plot = TrajectoryFixture {
            group: made.len() as u64,
            steps: STEPS,
            kind: PolicyKind::Random,
            ..TrajectoryFixture::default()
        };
        let (record, mut steps) = plot.trajectory();
        for (step, picture) in steps.iter_mut().zip(&mut pictures) {
            step.observation.screenshot = picture.clone();
            left = left.saturating_sub(screenshot_bytes(step));
        }
        made.push((record, steps));
    }
    made
}

fn screenshot_bytes(step: &StepRecord) -> u64 {
    step.observation.screenshot.bytes.len() as u64
}

/// Writes as the coordinator does: one shard after another, each synced and read back. Returns the
/// bytes of all files.
fn write_shards(data_dir: &Path, made: &GeneratedRecords) -> Result<(u64, Duration), CommandFailure> {
    let max_shard_bytes = RecordsFile::default().check().map_err(CommandFailure::Input)?.max_shard_bytes;
    let began = Instant::now();
    let mut wrote = 0;
    let mut shards = 0;
    let mut writer = ShardWriter::create(shard_plan(data_dir, shards)?);
    for (record, steps) in made {
        writer.add_trajectory(record, steps)?;
        if writer.bytes() >= max_shard_bytes {
            shards += 1;
            let full = std::mem::replace(&mut writer, ShardWriter::create(shard_plan(data_dir, shards)?));
            wrote += finish(full)?;
        }
    }
    wrote += finish(writer)?;
    Ok((wrote, began.elapsed()))
}

fn finish(writer: ShardWriter) -> Result<u64, CommandFailure> {
    Ok(writer.finish(|_, _| {})?.iter().map(|file| file.bytes).sum())
}

fn shard_plan(data_dir: &Path, index: u32) -> Result<ShardPlan, CommandFailure> {
    let config = RecordsFile::default().check().map_err(CommandFailure::Input)?;
    Ok(ShardPlan {
        data_dir: data_dir.to_owned(),
        shard_id: Id::new(format!("bench-{index}"))?,
        run_id: Id::new("test")?,
        job_toml: String::new(),
        row_group_bytes: config.row_group_bytes,
        compression_level: config.compression_level,
    })
}

/// The lower bound: the same bytes without encoding, in files of a shard's size, each synced.
fn write_plain(folder: &Path, bytes: u64, pictures: &[Screenshot]) -> Result<Duration, CommandFailure> {
    let file_bytes = RecordsFile::default().max_shard_bytes;
    let began = Instant::now();
    let mut left = bytes;
    while left > 0 {
        let mut file = File::create(folder.join(format!("{left}")))?;
        let end = left.saturating_sub(file_bytes);
        for picture in pictures.iter().cycle() {
            let part = picture.bytes.len().min((left - end) as usize);
            file.write_all(&picture.bytes[..part])?;
            left -= part as u64;
            if left == end {
                break;
            }
        }
        file.sync_all()?;
    }
    File::open(folder)?.sync_all()?;
    Ok(began.elapsed())
}

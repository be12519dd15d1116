//! `furrow bench records`: how fast screenshots become durable shards, and how soon a finished trajectory is in the manifest.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use furrow_env::sim::{Air, SimConfig};
use furrow_env::{EnvFile, Stages};
use furrow_policy::PolicyFile;
use furrow_records::fixtures::Plot;
use furrow_records::{RecordsFile, ShardPlan, ShardWriter};
use furrow_rollout::{Id, PolicyKind, Screenshot, StepRecord, TrajectoryRecord};

use super::BenchArgs;
use super::child::{Farm, Plan};
use super::pace::{self, Page};
use super::report::{Report, megabytes_a_second};
use crate::commands::scratch::Scratch;
use crate::{Failure, launch};

/// How much, and where.
#[derive(Debug, Args)]
pub struct RecordsArgs {
    /// Megabytes of screenshots in each round
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    megabytes: u64,
    /// Size of each screenshot
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1_000..=4_000_000))]
    screenshot_bytes: u32,
    /// Sessions of the farm whose trajectories are timed; they act on pages of air
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    sessions: u32,
    /// Seconds that this farm runs in each round
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(10..=3600))]
    seconds: u64,
    /// Rounds; each figure is the median of theirs
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Folder whose disk is measured; what is written is removed
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Folder that holds shop.html
    #[arg(long, default_value = "envs/bench")]
    pages: PathBuf,
    #[command(flatten)]
    bench: BenchArgs,
}

type Made = Vec<(TrajectoryRecord, Vec<StepRecord>)>;

/// Pictures that differ, so that nothing on their way can fold them together.
const PICTURES: u64 = 16;

/// Steps of a trajectory.
const STEPS: u32 = 30;

/// The oldest an unpublished trajectory may grow where a trainer follows.
const MAX_DELAY: Duration = Duration::from_secs(2);

/// At random, a page of air takes some forty clicks: each session ends a trajectory every four seconds or so.
const THINK: Duration = Duration::from_millis(100);

/// Runs the command.
pub fn run(args: &RecordsArgs) -> Result<(), Failure> {
    if !args.pages.join("shop.html").is_file() {
        let folder = args.pages.display();
        return Err(Failure::Input(vec![format!("--pages: {folder} holds no shop.html; name envs/bench")]));
    }
    let mut report = Report::begin(&args.bench)?;
    let scratch = Scratch::make(&args.dir)?;
    let runtime = launch::runtime()?;
    let pictures = runtime.block_on(pictures(args.screenshot_bytes as usize))?;
    for _ in 0..args.rounds {
        throughput(args, &pictures, &scratch, &mut report)?;
        runtime.block_on(delay(args, &scratch, &mut report))?;
    }
    report.note(
        "the delay's percentiles are upper bounds of histogram buckets, at most an eighth above the value",
    );
    report.print(&args.bench)
}

/// Shards, then plain files of the same size on the same disk.
fn throughput(
    args: &RecordsArgs,
    pictures: &[Screenshot],
    scratch: &Scratch,
    report: &mut Report,
) -> Result<(), Failure> {
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

async fn delay(args: &RecordsArgs, scratch: &Scratch, report: &mut Report) -> Result<(), Failure> {
    let env = EnvFile { sessions_max: args.sessions, ..EnvFile::default() };
    let air = Some(args.screenshot_bytes as usize);
    let plan = Plan { env, think: THINK, max_delay: MAX_DELAY, air, steps_max: None };
    let mut farm = Farm::start(scratch.fresh("farm")?, &args.pages, Page::Shop, &plan)?;
    let seconds = args.seconds as f64;
    farm.until(|now| now.of("uptime_seconds") >= seconds, Duration::from_secs(args.seconds)).await?;
    let life = farm.stop().await?;
    report.add("trajectories published", "count", life.of("records/publish_micros/count"));
    report.add("end to manifest p50", "s", life.of("records/publish_micros/p50") / 1e6);
    report.add("end to manifest p99", "s", life.of("records/publish_micros/p99") / 1e6);
    Ok(())
}

/// Pictures of noise from pages of air.
async fn pictures(screenshot_bytes: usize) -> Result<Vec<Screenshot>, Failure> {
    let assignment =
        pace::assignment(0, Page::Shop, &PolicyFile::default().check().map_err(Failure::Input)?.session)?;
    let mut pictures = Vec::new();
    for seed in 0..PICTURES {
        let air = Air::new(SimConfig { seed, screenshot_bytes, ..SimConfig::default() });
        pictures.push(air.open(&assignment).await?.observe().await?.screenshot);
    }
    Ok(pictures)
}

/// Trajectories with so many bytes of screenshots; the pictures' bytes are shared.
fn trajectories(bytes: u64, pictures: &[Screenshot]) -> Made {
    let mut pictures = pictures.iter().cycle();
    let mut left = bytes;
    let mut made = Vec::new();
    while left > 0 {
        let plot =
            Plot { group: made.len() as u64, steps: STEPS, kind: PolicyKind::Random, ..Plot::default() };
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

/// Writes as the coordinator does, one shard after another, each synced and read back. Returns the bytes of all files.
fn write_shards(data_dir: &Path, made: &Made) -> Result<(u64, Duration), Failure> {
    let max_shard_bytes = RecordsFile::default().check().map_err(Failure::Input)?.max_shard_bytes;
    let began = Instant::now();
    let (mut wrote, mut shards) = (0, 0);
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

fn finish(writer: ShardWriter) -> Result<u64, Failure> {
    Ok(writer.finish(|_, _| {})?.iter().map(|file| file.bytes).sum())
}

fn shard_plan(data_dir: &Path, index: u32) -> Result<ShardPlan, Failure> {
    let config = RecordsFile::default().check().map_err(Failure::Input)?;
    Ok(ShardPlan {
        data_dir: data_dir.to_owned(),
        shard_id: Id::new(format!("bench-{index}"))?,
        run_id: Id::new("test")?,
        job_toml: String::new(),
        row_group_bytes: config.row_group_bytes,
        compression_level: config.compression_level,
    })
}

/// The floor: the same bytes, nothing made of them, in files of a shard's size, each synced.
fn write_plain(folder: &Path, bytes: u64, pictures: &[Screenshot]) -> Result<Duration, Failure> {
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

//! `furrow records export`: one trajectory as a file to pass on, a page or an animated GIF.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use furrow_dashboard::trajectory_html;
use furrow_records::{DataSet, FoundTrajectory, PictureError};
use furrow_rollout::{Id, Trajectory};

use crate::animation::Animation;
use crate::{CommandFailure, output, whole_file};

/// Which trajectory to export, and as what.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Id of the trajectory
    trajectory: String,
    /// Run directory, or its `data` directory, that holds the trajectory
    #[arg(long)]
    run: PathBuf,
    /// Write a self-contained HTML page to this file: the arrow keys move between the steps, and it
    /// loads nothing
    #[arg(long, value_name = "FILE", required_unless_present = "video")]
    html: Option<PathBuf>,
    /// Write an animated GIF to this file: a picture for each step, with the target of its action
    /// marked, in at most 256 colours
    #[arg(long, value_name = "FILE")]
    video: Option<PathBuf>,
    /// Seconds that the animated GIF shows each step, 0.05 to 60
    #[arg(long, default_value_t = 1.0, requires = "video")]
    seconds: f64,
}

pub(crate) fn run(args: &ExportArgs) -> Result<(), CommandFailure> {
    let found = args.check()?;
    let (record, steps) = &found;
    if let Some(path) = &args.html {
        let html = trajectory_html(record, steps);
        write(path, |file| Ok(file.write_all(html.as_bytes())?))?;
    }
    if let Some(path) = &args.video {
        let animation = Animation::of(record, steps)?;
        write(path, |file| animation.write(args.seconds, file))?;
    }
    Ok(())
}

impl ExportArgs {
    /// The trajectory, once everything that was asked for can be done.
    fn check(&self) -> Result<FoundTrajectory, CommandFailure> {
        let mut problems = Vec::new();
        let is_gif =
            |path: &PathBuf| path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gif"));
        if let Some(path) = self.video.as_ref().filter(|path| !is_gif(path)) {
            problems.push(format!(
                "--video: {}: only animated GIFs are written; use a name that ends in .gif",
                path.display()
            ));
        }
        if !(0.05..=60.0).contains(&self.seconds) {
            problems.push(format!("--seconds: {}; use 0.05 to 60", self.seconds));
        }
        let id = Id::<Trajectory>::new(&self.trajectory).map_err(|bad| {
            problems.push(format!("{}: is not a valid trajectory id: {bad}", self.trajectory));
        });
        let Some(id) = id.ok().filter(|_| problems.is_empty()) else {
            return Err(CommandFailure::Input(problems));
        };
        let set = DataSet::open(&self.run)?;
        let found = set.find(std::slice::from_ref(&id))?.pop();
        found.ok_or_else(|| CommandFailure::Input(vec![no_trajectory(id.as_str(), &self.run, &set)]))
    }
}

/// Why there is no trajectory of this id.
pub(super) fn no_trajectory(id: &str, run: &Path, set: &DataSet) -> String {
    let expired = if set.snapshot().has_expired() { ", whose oldest rows have expired" } else { "" };
    format!("{id}: {} holds no trajectory with this id{expired}", run.display())
}

fn write(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<File>) -> anyhow::Result<()>,
) -> Result<(), CommandFailure> {
    let failure = |why: anyhow::Error| {
        let remedy = match why.is::<PictureError>() {
            true => "this trajectory's picture is damaged, export another one",
            false => "use another path",
        };
        anyhow::anyhow!("cannot write {} ({why:#}); {remedy}", path.display())
    };
    let length = whole_file::write_with(path, fill).map_err(failure)?;
    output::progress_line(format!("{} ({})", path.display(), output::bytes(length)));
    Ok(())
}

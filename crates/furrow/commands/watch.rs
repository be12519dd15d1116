//! `furrow watch`: the dashboard's figures in a terminal, of a dashboard that is served somewhere or of a run directory.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use clap::Args;
use furrow_dashboard::{DashboardAddress, DashboardFile, WatchSource};
use tokio_util::sync::CancellationToken;

use super::view::subject;
use crate::{Failure, launch, output};

/// What is watched, and how it is told.
#[derive(Debug, Args)]
pub struct WatchArgs {
    /// Run directory, or a dashboard: http://127.0.0.1:7380/ or the address with its token as furrow printed it; left out: the dashboard of this machine
    #[arg(value_name = "RUN or URL")]
    of: Option<String>,
    /// File that holds the dashboard's token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Price of an hour of a device in US dollars, for the cost of a trajectory of a run directory
    #[arg(long, value_name = "USD")]
    usd_per_device_hour: Option<f64>,
    /// Print all pages once, as lines
    #[arg(long)]
    once: bool,
    /// Print the figures once, as JSON
    #[arg(long)]
    json: bool,
}

/// Columns of what is printed where there is no terminal.
const COLUMNS: u16 = 100;

/// Runs the command.
pub fn run(args: &WatchArgs) -> Result<(), Failure> {
    let source = args.source()?;
    let is_printed = args.once || args.json;
    if !is_printed && !std::io::stdout().is_terminal() {
        let told = "watch: this is no terminal; print the figures once with --once, or as JSON with --json";
        return Err(Failure::Input(vec![told.to_owned()]));
    }
    launch::runtime()?.block_on(async {
        if !is_printed {
            return watch(&source).await;
        }
        let seen = furrow_dashboard::look(&source).await?;
        if args.json {
            output::json(&seen.told())?;
        } else {
            seen.lines(COLUMNS).iter().for_each(output::line);
        }
        Ok(())
    })
}

/// Until `q`, or until it is told to stop: the terminal is as it was then.
async fn watch(source: &WatchSource) -> Result<(), Failure> {
    let stop = CancellationToken::new();
    let watched = furrow_dashboard::watch(source, stop.clone());
    let mut watched = std::pin::pin!(watched);
    tokio::select! {
        watched = &mut watched => return Ok(watched?),
        signalled = launch::signalled() => signalled?,
    }
    stop.cancel();
    Ok(watched.await?)
}

impl WatchArgs {
    fn source(&self) -> Result<WatchSource, Failure> {
        let own = || format!("http://{}/", DashboardFile::default().listen);
        let of = self.of.clone().unwrap_or_else(own);
        let dir = Path::new(&of);
        if !of.contains("://") && dir.is_dir() {
            return Ok(WatchSource::Run(subject(dir, self.usd_per_device_hour.filter(|price| *price > 0.0))));
        }
        if !of.contains("://") {
            let told = format!("{of:?}: name a run directory, or a dashboard as http://HOST:PORT/");
            return Err(Failure::Input(vec![told]));
        }
        let address = DashboardAddress::new(&of, self.token_file.clone());
        Ok(WatchSource::Dashboard(address.map_err(|why| Failure::Input(vec![crate::chain(&why.into())]))?))
    }
}

//! `furrow watch`: shows the dashboard's metrics in a terminal, from a served dashboard or a run
//! directory.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use clap::Args;
use furrow_dashboard::{DashboardAddress, DashboardFile, WatchSource};
use tokio_util::sync::CancellationToken;

use super::view::subject;
use crate::{CommandFailure, launch, output};

#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// Run directory, or URL of a dashboard: http://127.0.0.1:7380/ or the URL with the token as
    /// furrow printed it [default: the dashboard of this machine]
    #[arg(value_name = "RUN or URL")]
    target: Option<String>,
    /// File that holds the dashboard's token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Price of a device-hour in US dollars; with a run directory, adds the cost of a trajectory
    #[arg(long, value_name = "USD")]
    usd_per_device_hour: Option<f64>,
    /// Print all pages once as text and end, for logs and pipes
    #[arg(long)]
    once: bool,
    /// Print the metrics once as JSON and end
    #[arg(long)]
    json: bool,
}

/// Columns of the output without a terminal.
const COLUMNS: u16 = 100;

pub(crate) fn run(args: &WatchArgs) -> Result<(), CommandFailure> {
    let source = args.source()?;
    let is_printed = args.once || args.json;
    if !is_printed && !std::io::stdout().is_terminal() {
        let message =
            "watch: the output is not a terminal; print the metrics once with --once, or as JSON with --json";
        return Err(CommandFailure::Input(vec![message.to_owned()]));
    }
    launch::runtime()?.block_on(async {
        if !is_printed {
            return watch(&source).await;
        }
        let snapshot = furrow_dashboard::read_snapshot(&source).await?;
        if args.json {
            output::json(&snapshot)?;
        } else {
            snapshot.lines(COLUMNS).iter().for_each(output::line);
        }
        Ok(())
    })
}

/// Runs until `q` or a signal; then restores the terminal.
async fn watch(source: &WatchSource) -> Result<(), CommandFailure> {
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
    fn source(&self) -> Result<WatchSource, CommandFailure> {
        let own = || format!("http://{}/", DashboardFile::default().listen);
        let of = self.target.clone().unwrap_or_else(own);
        let dir = Path::new(&of);
        if !of.contains("://") && dir.is_dir() {
            return Ok(WatchSource::Run(subject(dir, self.usd_per_device_hour.filter(|price| *price > 0.0))));
        }
        if !of.contains("://") {
            let message = format!("{of:?}: use a run directory, or a dashboard's URL as http://HOST:PORT/");
            return Err(CommandFailure::Input(vec![message]));
        }
        let address = DashboardAddress::new(&of, self.token_file.clone());
        Ok(WatchSource::Dashboard(
            address.map_err(|why| CommandFailure::Input(vec![crate::chain(&why.into())]))?,
        ))
    }
}

//! `furrow view` and `furrow dashboard`: serve pages over a data set, finished or growing, and over
//! the run that fills it.

mod folder;
pub(crate) mod planned;
mod subject;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use furrow_dashboard::{
    AccessError, DashboardConfig, DashboardError, DashboardFile, DashboardServer, DashboardSubject,
    DeviceKind,
};
use furrow_records::DataSet;
use furrow_telemetry::{Level, LogTargets};
use tokio_util::sync::CancellationToken;

use folder::RunsFolder;
pub(crate) use subject::subject;

use crate::peers::IdentityArgs;
use crate::{CommandFailure, launch, output};

/// Which data set to serve, and how.
#[derive(Debug, Args)]
pub(crate) struct ViewArgs {
    /// Run directory, its `data` directory, or a folder of several runs
    dir: PathBuf,
    #[command(flatten)]
    listen: ListenArgs,
}

/// Where to serve pages, and to whom.
#[derive(Debug, Args)]
pub(crate) struct ListenArgs {
    /// Address and port to listen on; any address but loopback needs a token [default:
    /// 127.0.0.1:7380, or a free port if that one is taken]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// File that holds the token that browsers must present [default: a random token, printed with
    /// the URL, unless the address is loopback]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Price of a device-hour in US dollars, to show the cost of a trajectory
    #[arg(long, value_name = "USD")]
    usd_per_device_hour: Option<f64>,
}

/// A run in progress, or its coordinator.
#[derive(Debug, Args)]
pub(crate) struct DashboardArgs {
    /// Run directory, or address of a coordinator (host:port), which shows only the progress of the
    /// run
    run: String,
    /// Address of the coordinator (host:port), if the address in the run directory is not reachable
    /// from here
    #[arg(long, value_name = "ADDRESS")]
    coordinator: Option<String>,
    #[command(flatten)]
    identity: IdentityArgs,
    #[command(flatten)]
    listen: ListenArgs,
}

/// Runs `furrow view` until a signal stops it.
pub(crate) fn run(args: &ViewArgs) -> Result<(), CommandFailure> {
    let config = args.listen.config()?;
    if let Err(why) = DataSet::open(&args.dir) {
        let folder = RunsFolder::find(&args.dir, config.usd_per_device_hour).ok_or(why)?;
        return serve_subject(&args.listen, &config, Subject::Folder(Arc::new(folder)));
    }
    serve(&args.listen, &config, subject(&args.dir, config.usd_per_device_hour))
}

/// Runs `furrow dashboard` until a signal stops it.
pub(crate) fn dashboard(args: &DashboardArgs) -> Result<(), CommandFailure> {
    let config = args.listen.config()?;
    let price = config.usd_per_device_hour;
    let dir = Path::new(&args.run);
    let is_run = dir.join("job.toml").is_file() || dir.join("manifest").is_dir();
    let subject = match (is_run, args.run.rsplit_once(':')) {
        (true, _) => DashboardSubject {
            coordinator: args.coordinator.clone(),
            identity: args.identity.named().map(Path::to_owned),
            ..subject(dir, price)
        },
        (false, Some((host, port))) if !host.is_empty() && port.parse::<u16>().is_ok() => DashboardSubject {
            name: args.run.clone(),
            dir: None,
            coordinator: Some(args.run.clone()),
            identity: Some(args.identity.dir(None)?),
            job: None,
            device: DeviceKind::None,
            usd_per_device_hour: price,
            planned: None,
            floor: None,
        },
        _ => {
            let message = format!(
                "{:?}: use a run directory (it holds job.toml), or a coordinator as host:port",
                args.run
            );
            return Err(CommandFailure::Input(vec![message]));
        }
    };
    serve(&args.listen, &config, subject)
}

fn serve(
    args: &ListenArgs,
    config: &DashboardConfig,
    subject: DashboardSubject,
) -> Result<(), CommandFailure> {
    serve_subject(args, config, Subject::Run(Box::new(subject)))
}

/// What the pages are over.
#[derive(Clone)]
enum Subject {
    Run(Box<DashboardSubject>),
    Folder(Arc<RunsFolder>),
}

fn serve_subject(
    args: &ListenArgs,
    config: &DashboardConfig,
    subject: Subject,
) -> Result<(), CommandFailure> {
    LogTargets::to_stderr(Level::Warn).start()?;
    launch::runtime()?.block_on(async {
        let stop = CancellationToken::new();
        let dashboard = open_subject(config, args.listen.is_none(), subject).await?;
        let serving = tokio::spawn(dashboard.serve(stop.clone()));
        launch::signalled().await?;
        stop.cancel();
        Ok(serving.await?)
    })
}

impl ListenArgs {
    fn config(&self) -> Result<DashboardConfig, CommandFailure> {
        let file = DashboardFile::default();
        let listen = self.listen.map_or(file.listen.clone(), |listen| listen.to_string());
        let token_file = self.token_file.clone();
        let price = self.usd_per_device_hour.unwrap_or_default();
        let file = DashboardFile { listen, token_file, usd_per_device_hour: price, ..file };
        file.check().map_err(CommandFailure::Input)
    }
}

/// Binds and prints the URL. With `any_port`, another port replaces one that is taken.
pub(crate) async fn open(
    config: &DashboardConfig,
    any_port: bool,
    subject: DashboardSubject,
) -> Result<DashboardServer, CommandFailure> {
    open_subject(config, any_port, Subject::Run(Box::new(subject))).await
}

async fn open_subject(
    config: &DashboardConfig,
    any_port: bool,
    subject: Subject,
) -> Result<DashboardServer, CommandFailure> {
    let Some(listen) = config.listen else {
        return Err(CommandFailure::Input(vec!["dashboard.enabled: false; set it to true".to_owned()]));
    };
    let token =
        match &config.token_file {
            Some(file) => Some(furrow_http::read_token(file).map_err(|error| {
                CommandFailure::Input(vec![crate::chain(&AccessError::from(error).into())])
            })?),
            None if !listen.ip().is_loopback() => Some(format!("{:032x}", rand::random::<u128>())),
            None => None,
        };
    let bind = async |address| match subject.clone() {
        Subject::Run(run) => DashboardServer::bind(address, config, token.as_deref(), *run).await,
        Subject::Folder(folder) => {
            DashboardServer::bind_folder(address, config, token.as_deref(), folder).await
        }
    };
    let bound = match bind(listen).await {
        Err(DashboardError::Listen { .. }) if any_port => bind(SocketAddr::new(listen.ip(), 0)).await,
        bound => bound,
    };
    let dashboard = bound.map_err(|error| CommandFailure::Input(vec![crate::chain(&error.into())]))?;
    let made = token.filter(|_| config.token_file.is_none()).map(|token| format!("?token={token}"));
    output::progress_line(format!("dashboard: http://{}/{}", dashboard.address(), made.unwrap_or_default()));
    Ok(dashboard)
}

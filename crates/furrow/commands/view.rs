//! `furrow view` and `furrow dashboard`: pages over a data set, finished or growing, and over the run that fills it.

pub mod planned;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use furrow_dashboard::{
    AccessError, Dashboard, DashboardConfig, DashboardError, DashboardFile, Device, Subject,
};
use furrow_records::DataSet;
use furrow_telemetry::{Level, Logs};
use tokio_util::sync::CancellationToken;

use crate::{Failure, launch, output, run_dir};

/// Which data set, and who may look.
#[derive(Debug, Args)]
pub struct ViewArgs {
    /// Run directory, or its `data` folder
    dir: PathBuf,
    #[command(flatten)]
    listen: ListenArgs,
}

/// Where pages are served.
#[derive(Debug, Args)]
pub struct ListenArgs {
    /// Address and port; left out: 127.0.0.1:7380, or a free port where that is taken. Anything but loopback asks for a token
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// File that holds the token; left out: a token is made and shown
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Price of an hour of a device in US dollars, for the cost of a trajectory
    #[arg(long, value_name = "USD")]
    usd_per_device_hour: Option<f64>,
}

/// A run that goes on, or its coordinator.
#[derive(Debug, Args)]
pub struct DashboardArgs {
    /// Run directory, or the coordinator's address (`host:port`), which alone shows how far the run is
    run: String,
    /// Coordinator's address, where the run directory's own word for it does not lead there
    #[arg(long, value_name = "ADDRESS")]
    coordinator: Option<String>,
    #[command(flatten)]
    listen: ListenArgs,
}

/// Runs `furrow view` until it is told to stop.
pub fn run(args: &ViewArgs) -> Result<(), Failure> {
    DataSet::open(&args.dir)?;
    let config = args.listen.config()?;
    serve(&args.listen, &config, subject(&args.dir, config.usd_per_device_hour))
}

/// Runs `furrow dashboard` until it is told to stop.
pub fn dashboard(args: &DashboardArgs) -> Result<(), Failure> {
    let config = args.listen.config()?;
    let price = config.usd_per_device_hour;
    let dir = Path::new(&args.run);
    let is_run = dir.join("job.toml").is_file() || dir.join("manifest").is_dir();
    let subject = match (is_run, args.run.rsplit_once(':')) {
        (true, _) => Subject { coordinator: args.coordinator.clone(), ..subject(dir, price) },
        (false, Some((host, port))) if !host.is_empty() && port.parse::<u16>().is_ok() => Subject {
            name: args.run.clone(),
            dir: None,
            coordinator: Some(args.run.clone()),
            job: None,
            device: Device::None,
            usd_per_device_hour: price,
            planned: None,
            floor: None,
        },
        _ => {
            let told = format!(
                "{:?}: name a run directory (it holds job.toml), or a coordinator as host:port",
                args.run
            );
            return Err(Failure::Input(vec![told]));
        }
    };
    serve(&args.listen, &config, subject)
}

fn serve(args: &ListenArgs, config: &DashboardConfig, subject: Subject) -> Result<(), Failure> {
    Logs::to_stderr(Level::Warn).start()?;
    launch::runtime()?.block_on(async {
        let stop = CancellationToken::new();
        let dashboard = open(config, args.listen.is_none(), subject).await?;
        let serving = tokio::spawn(dashboard.serve(stop.clone()));
        launch::signalled().await?;
        stop.cancel();
        Ok(serving.await?)
    })
}

impl ListenArgs {
    fn config(&self) -> Result<DashboardConfig, Failure> {
        let file = DashboardFile::default();
        let listen = self.listen.map_or(file.listen.clone(), |listen| listen.to_string());
        let (token_file, price) = (self.token_file.clone(), self.usd_per_device_hour.unwrap_or_default());
        let file = DashboardFile { listen, token_file, usd_per_device_hour: price, ..file };
        file.check().map_err(Failure::Input)
    }
}

/// Binds and says where. `any_port`: a port that is taken is no error, another one is told.
pub async fn open(config: &DashboardConfig, any_port: bool, subject: Subject) -> Result<Dashboard, Failure> {
    let Some(listen) = config.listen else {
        return Err(Failure::Input(vec!["dashboard.enabled: false; set it to true".to_owned()]));
    };
    let token = match &config.token_file {
        Some(file) => Some(
            furrow_wire::read_token(file)
                .map_err(|error| Failure::Input(vec![crate::chain(&AccessError::from(error).into())]))?,
        ),
        None if !listen.ip().is_loopback() => Some(format!("{:032x}", rand::random::<u128>())),
        None => None,
    };
    let bound = Dashboard::bind(listen, config, token.as_deref(), subject.clone()).await;
    let bound = match bound {
        Err(DashboardError::Listen { .. }) if any_port => {
            Dashboard::bind(SocketAddr::new(listen.ip(), 0), config, token.as_deref(), subject).await
        }
        bound => bound,
    };
    let dashboard = bound.map_err(|error| Failure::Input(vec![crate::chain(&error.into())]))?;
    let made = token.filter(|_| config.token_file.is_none()).map(|token| format!("?token={token}"));
    output::aside(format!("dashboard: http://{}/{}", dashboard.address(), made.unwrap_or_default()));
    Ok(dashboard)
}

/// What a run directory or a data set is, as far as it says.
pub fn subject(dir: &Path, usd_per_device_hour: Option<f64>) -> Subject {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    // The `data` folder of a run: job and hours lie beside it.
    let is_data = absolute.join("manifest").is_dir();
    let above = absolute.parent().filter(|above| is_data && above.join("job.toml").is_file());
    let run = above.map_or(absolute.clone(), Path::to_owned);
    let job = run_dir::job_text(&run).ok().flatten();
    let table: toml::Table = job.as_deref().and_then(|job| job.parse().ok()).unwrap_or_default();
    // The run's own name, which its coordinator answers with; the folder may be called otherwise by now.
    let said = planned::text(&table, "run.name").map(str::to_owned);
    let folder = || run.file_name().map_or("data set".into(), |name| name.to_string_lossy().into_owned());
    let name = said.unwrap_or_else(folder);
    Subject {
        name,
        dir: Some(run),
        coordinator: None,
        device: device(&table),
        planned: planned::planned(&table),
        floor: planned::floor(&table),
        job,
        usd_per_device_hour,
    }
}

/// What the policy of a job computes with.
fn device(job: &toml::Table) -> Device {
    let word = |path| planned::text(job, path).unwrap_or_default();
    match (word("policy.kind"), word("policy.engine.backend")) {
        ("model", "cuda") => Device::Gpu,
        ("model", _) => Device::Cpu,
        _ => Device::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_called_what_its_job_says_wherever_it_lies() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().file_name().unwrap().to_string_lossy().into_owned();
        assert_eq!(subject(dir.path(), None).name, folder);
        for (job, want) in [("[run]\nname = \"night\"", "night"), ("[run]", &folder), ("not toml", &folder)] {
            std::fs::write(dir.path().join("job.toml"), job).unwrap();
            assert_eq!(subject(dir.path(), None).name, want, "{job}");
        }
    }

    #[test]
    fn a_job_says_what_it_computes_with() {
        let check = |job: &str, want: Device| assert_eq!(device(&job.parse().unwrap()), want, "{job}");
        check("[policy]\nkind = \"model\"\n[policy.engine]\nbackend = \"cuda\"", Device::Gpu);
        check("[policy]\nkind = \"model\"\n[policy.engine]\nbackend = \"cpu\"", Device::Cpu);
        check("[policy]\nkind = \"scripted\"\n[policy.engine]\nbackend = \"cpu\"", Device::None);
        check("", Device::None);
    }
}

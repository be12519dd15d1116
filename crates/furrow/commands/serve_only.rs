//! `furrow policy --serve-only`: chats with a model, without a run around it.

use std::path::PathBuf;

use clap::Args;
use furrow_telemetry::LogTargets;

use crate::job::served::ServedJob;
use crate::launch::{self, JobArgs, SignalledWork};
use crate::{CommandFailure, output};

#[derive(Debug, Args)]
pub(crate) struct ServeOnlyArgs {
    /// Only serve chats: JOB may be a checkpoint's directory, or a job file of which only the
    /// policy counts. Needs no tasks, browser, coordinator or run directory, and writes no file
    #[arg(long, conflicts_with_all = ["coordinator", "id", "listen"])]
    pub serve_only: bool,
    /// Address that serves chats, host:port; port 0 takes a free port [default: the job's
    /// policy.serve.listen, else 127.0.0.1:8000]
    #[arg(long, value_name = "ADDRESS", requires = "serve_only")]
    serve: Option<String>,
    /// The model's name for clients [default: the job's policy.serve.model, else the name of the
    /// checkpoint's directory]
    #[arg(long, value_name = "NAME", requires = "serve_only")]
    model: Option<String>,
    /// File with the token that clients send; needed for any address that is not loopback
    #[arg(long, value_name = "FILE", requires = "serve_only")]
    token_file: Option<PathBuf>,
    /// Sessions for chats, idle or running, and requests that run at once [default: the job's
    /// policy.serve.sessions_max and requests_max]
    #[arg(long, value_name = "NUMBER", requires = "serve_only", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    sessions: Option<u32>,
}

impl ServeOnlyArgs {
    /// The options as settings of the job, before those that the user wrote.
    fn settings(&self, written: &[String]) -> Vec<String> {
        let quoted = |key: &str, text: String| format!("policy.serve.{key}={}", toml::Value::from(text));
        let token_file = self.token_file.as_ref().map(|file| {
            std::path::absolute(file).unwrap_or_else(|_| file.clone()).to_string_lossy().into_owned()
        });
        let texts =
            [("listen", self.serve.clone()), ("model", self.model.clone()), ("token_file", token_file)];
        let texts = texts.into_iter().filter_map(|(key, text)| text.map(|text| quoted(key, text)));
        let sessions = self.sessions.iter().flat_map(|count| {
            ["sessions_max", "requests_max"].map(|key| format!("policy.serve.{key}={count}"))
        });
        texts.chain(sessions).chain(written.iter().cloned()).collect()
    }
}

/// Serves chats until a signal stops it.
pub(crate) fn run(args: &ServeOnlyArgs, job: &JobArgs) -> Result<(), CommandFailure> {
    let served = ServedJob::read(&job.job, &args.settings(&job.set)).map_err(CommandFailure::Input)?;
    let ServedJob { policy, telemetry, drain_grace } = served;
    launch::run_loading(async {
        LogTargets::to_stderr(telemetry.stderr_level).start()?;
        let Some(endpoint) = launch::chats(&policy).await? else { return Ok(()) };
        let stop = launch::stop_on_signal(SignalledWork::Chats)?;
        let cut_off = furrow_policy::serve_chats(policy, endpoint, drain_grace, stop).await?;
        report_cut_off(cut_off);
        Ok(())
    })
}

/// Says how many chats were cut when a worker stopped.
pub(crate) fn report_cut_off(cut_off: usize) {
    if cut_off > 0 {
        output::error_line(&format!("{cut_off} chats did not end within the grace period and were cut off"));
    }
}

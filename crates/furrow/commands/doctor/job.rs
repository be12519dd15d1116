//! `furrow doctor JOB`: whether this machine is fit for one job: its pages, hosts, browser,
//! checkpoint, disk, memory and open files.

use std::fs;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use serde::Serialize;
use toml::{Table, Value};

use crate::budget::{JobBudget, LocalRoles, MachineArgs, MachineCapacity};
use crate::launch::{JobArgs, JobLaunch};
use crate::preflight::{self, PreflightReport, PreflightScope};
use crate::sessions::{SessionSizes, mix_of};
use crate::{CommandFailure, output};

/// One finding of a job's check.
#[derive(Debug, Serialize)]
struct JobFinding {
    grade: FindingGrade,
    found: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum FindingGrade {
    Fit,
    /// It may run, and not as intended.
    Doubtful,
    /// The job would fail at its start, or at every task.
    Unfit,
}

/// Time for an endpoint to accept a connection.
const CONNECT_TIME: Duration = Duration::from_secs(2);

/// Open files that a process needs beside its sessions: logs, ledger, shards, libraries.
const FILES_BESIDE: u64 = 256;
/// Open files of a session at work: its proxy, and a request with both of its ends for each of the
/// six connections that a browser opens to a host.
const FILES_PER_SESSION: u64 = 1 + 2 * 6;

/// Endpoints that a job calls, and whether it works without.
const ENDPOINTS: [(&str, bool); 3] =
    [("policy.remote.endpoint", true), ("score.judge.endpoint", true), ("telemetry.otlp_endpoint", false)];

pub(super) fn check(args: &JobArgs, as_json: bool) -> Result<(), CommandFailure> {
    let launch = JobLaunch::read(args)?.with_key()?.with_policy_key()?;
    let report = preflight::run(&launch, PreflightScope::whole(true))?;
    let mut findings = of_report(&report);
    findings.extend(endpoints(&launch.job.resolved));
    findings.push(open_files(&launch));
    findings.extend(resources(&launch)?);
    if as_json {
        output::json(&findings)?;
    } else {
        for JobFinding { grade, found } in &findings {
            let mark = match grade {
                FindingGrade::Fit => "ok ",
                FindingGrade::Doubtful => "?  ",
                FindingGrade::Unfit => "BAD",
            };
            output::line(format!("{mark}  {found}"));
        }
    }
    match findings.iter().filter(|finding| finding.grade == FindingGrade::Unfit).count() {
        0 => Ok(()),
        bad => Err(anyhow::anyhow!("{bad} checks failed; see above what to do").into()),
    }
}

fn finding(grade: FindingGrade) -> impl Fn(&String) -> JobFinding {
    move |found| JobFinding { grade, found: found.clone() }
}

fn of_report(report: &PreflightReport) -> Vec<JobFinding> {
    let passed = report.passed.iter().map(finding(FindingGrade::Fit));
    let warnings = report.warnings.iter().map(finding(FindingGrade::Doubtful));
    let problems = report.problems.iter().chain(&report.low_disk).map(finding(FindingGrade::Unfit));
    passed.chain(warnings).chain(problems).collect()
}

/// Whether each endpoint of the job accepts a connection.
fn endpoints(resolved: &str) -> Vec<JobFinding> {
    let job: Table = resolved.parse().unwrap_or_default();
    let is_remote = text_at(&job, "policy.kind") == Some("openai");
    let used = ENDPOINTS.iter().filter(|(key, _)| is_remote || *key != "policy.remote.endpoint");
    let named = used.filter_map(|(key, is_needed)| {
        let endpoint = text_at(&job, key).filter(|endpoint| !endpoint.is_empty())?;
        Some((*key, *is_needed, endpoint))
    });
    named
        .map(|(key, is_needed, endpoint)| match connect(endpoint) {
            Ok(()) => JobFinding {
                grade: FindingGrade::Fit,
                found: format!("{key}: {} accepts connections", host_of(endpoint)),
            },
            Err(why) => JobFinding {
                grade: if is_needed { FindingGrade::Unfit } else { FindingGrade::Doubtful },
                found: format!(
                    "{key}: {} cannot be reached: {why}; start it, or correct the key",
                    host_of(endpoint)
                ),
            },
        })
        .collect()
}

fn connect(endpoint: &str) -> Result<(), String> {
    let url = url::Url::parse(endpoint).map_err(|why| why.to_string())?;
    let host = url.host_str().ok_or("it names no host")?.trim_matches(['[', ']']);
    let port = url.port_or_known_default().ok_or("it names no port")?;
    let addresses = (host, port).to_socket_addrs().map_err(|why| why.to_string())?;
    let mut last = "it has no address".to_owned();
    for address in addresses.take(4) {
        match TcpStream::connect_timeout(&address, CONNECT_TIME) {
            Ok(_) => return Ok(()),
            Err(why) => last = why.to_string(),
        }
    }
    Err(last)
}

/// Host and port: the rest of an endpoint may hold a secret.
fn host_of(endpoint: &str) -> String {
    let url = url::Url::parse(endpoint).ok();
    let host = url.as_ref().and_then(|url| url.host_str());
    let port = url.as_ref().and_then(url::Url::port_or_known_default).unwrap_or_default();
    host.map_or_else(|| "the endpoint".to_owned(), |host| format!("{host}:{port}"))
}

fn text_at<'a>(job: &'a Table, key: &str) -> Option<&'a str> {
    let mut parts = key.split('.');
    let first = job.get(parts.next()?)?;
    parts.try_fold(first, |value, part| value.get(part)).and_then(Value::as_str)
}

/// Whether the process may open as many files as its sessions need.
fn open_files(launch: &JobLaunch) -> JobFinding {
    let sessions = u64::from(launch.job.env.sessions_max);
    let needed = FILES_BESIDE + sessions * FILES_PER_SESSION;
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let Some(most) = open_files_limit(&limits) else {
        return JobFinding {
            grade: FindingGrade::Doubtful,
            found: "open files: the limit is unknown: /proc/self/limits cannot be read".to_owned(),
        };
    };
    let (grade, remedy) = match most >= needed {
        true => (FindingGrade::Fit, ""),
        false => (FindingGrade::Unfit, "; raise it with `ulimit -n`, or lower env.sessions_max"),
    };
    let found = format!("open files: {most} allowed, about {needed} needed for {sessions} sessions{remedy}");
    JobFinding { grade, found }
}

/// The soft limit in `/proc/self/limits`.
fn open_files_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        soft => soft.parse().ok(),
    }
}

/// Memory of GPU and machine, and disk, as `furrow plan --job` sums them up.
fn resources(launch: &JobLaunch) -> Result<Vec<JobFinding>, CommandFailure> {
    let job = &launch.job;
    let machine = MachineCapacity::detect(job, &MachineArgs::default(), None);
    let model = job.policy.model.as_ref();
    let config = model.and_then(|model| furrow_model::config::Config::read(&model.checkpoint).ok());
    if model.is_some() && config.is_none() {
        // The checkpoint is among the findings already.
        return Ok(Vec::new());
    }
    let mix = mix_of(job, Some(&launch.set), furrow_simulator::SessionMix::default());
    let sessions = SessionSizes::assumed(config.as_ref(), &mix, job.policy.session.context);
    let budget = JobBudget::for_job(job, LocalRoles::All, &sessions, &machine);
    let budget = match budget {
        Ok(budget) => budget,
        Err(problems) => return Ok(problems.iter().map(finding(FindingGrade::Unfit)).collect()),
    };
    let mut findings: Vec<JobFinding> = budget.fitting().iter().map(finding(FindingGrade::Fit)).collect();
    findings.extend(budget.warnings().iter().map(finding(FindingGrade::Doubtful)));
    findings.extend(budget.refusals().iter().map(finding(FindingGrade::Unfit)));
    if budget.on_a_gpu && machine.gpu.is_none() {
        findings.push(JobFinding {
            grade: FindingGrade::Unfit,
            found: "policy.engine.backend: \"cuda\", and no GPU can be opened here; `furrow doctor` says why"
                .to_owned(),
        });
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_open_files_are_read() {
        let table = |soft: &str| {
            format!(
                "Limit  Soft Limit  Hard Limit  Units\nMax processes 1 2 p\nMax open files            {soft}      524288       files\n"
            )
        };
        assert_eq!(open_files_limit(&table("1024")), Some(1024));
        assert_eq!(open_files_limit(&table("unlimited")), Some(u64::MAX));
        assert_eq!(open_files_limit("nothing"), None);
        assert!(open_files_limit(&fs::read_to_string("/proc/self/limits").unwrap()).is_some());
    }

    #[test]
    fn an_endpoint_that_is_away_is_unfit_and_shows_no_secret() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let job = |kind: &str, endpoint: &str| {
            format!("[policy]\nkind = {kind:?}\n[policy.remote]\nendpoint = {endpoint:?}\n")
        };
        let here = format!("http://{address}/v1/secret");
        let grades = |text: &str| endpoints(text).iter().map(|finding| finding.grade).collect::<Vec<_>>();
        assert_eq!(grades(&job("openai", &here)), [FindingGrade::Fit]);
        assert_eq!(grades(&job("random", &here)), []);
        drop(listener);
        let away = endpoints(&job("openai", &here));
        assert_eq!(away[0].grade, FindingGrade::Unfit);
        assert!(
            !away[0].found.contains("secret") && away[0].found.contains(&address.to_string()),
            "{away:?}"
        );
    }
}

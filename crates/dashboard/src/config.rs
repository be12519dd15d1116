//! Settings of `[dashboard]`: the section as a job file has it, and the checked form that a server
//! runs with.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The section as written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DashboardFile {
    /// Whether `furrow run` serves a dashboard.
    pub enabled: bool,
    /// Address to listen on, `address:port`. If the port is taken, a free one is used and printed.
    /// Any address but loopback needs a token.
    pub listen: String,
    /// File that holds the token; without it a token is created for the run and printed on the
    /// terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Price of a device-hour in US dollars, for the cost of a trajectory; 0: unknown.
    pub usd_per_device_hour: f64,
    /// GPU that a `cuda` policy runs on, as `furrow plan --gpu` names it: its lower bound is shown
    /// beside the measured rates; empty: not shown.
    pub gpu: String,
    /// Maximum number of open connections: a browser opens up to six per tab.
    pub connections_max: u32,
}

/// Checked settings; only [`DashboardFile::check`] creates them.
#[derive(Debug, Clone, PartialEq)]
pub struct DashboardConfig {
    /// Address to listen on; `None`: no dashboard.
    pub listen: Option<SocketAddr>,
    /// File that holds the token.
    pub token_file: Option<PathBuf>,
    /// Price of a device-hour in US dollars.
    pub usd_per_device_hour: Option<f64>,
    pub(crate) connections_max: usize,
}

impl Default for DashboardFile {
    fn default() -> Self {
        Self {
            enabled: true,
            listen: "127.0.0.1:7380".into(),
            token_file: None,
            usd_per_device_hour: 0.0,
            gpu: String::new(),
            // Ten users with a tab each; a connection takes about 100 kB.
            connections_max: 64,
        }
    }
}

impl DashboardFile {
    /// Checks every value and reports every problem.
    pub fn check(self) -> Result<DashboardConfig, Vec<String>> {
        let mut problems = Vec::new();
        let listen = self.listen.parse::<SocketAddr>().map_err(|_| {
            let listen: String = self.listen.chars().take(80).collect();
            problems.push(format!(
                "dashboard.listen: {listen:?}; use an address and a port, such as 127.0.0.1:7380, 0.0.0.0:7380 or [::1]:0"
            ));
        });
        let price = self.usd_per_device_hour;
        if !(0.0..=1e6).contains(&price) {
            problems.push(format!("dashboard.usd_per_device_hour: {price}; use 0 (unknown) to 1000000"));
        }
        let connections = self.connections_max;
        if !(4..=4096).contains(&connections) {
            problems.push(format!("dashboard.connections_max: {connections} is out of range; use 4 to 4096"));
        }
        match listen {
            Ok(listen) if problems.is_empty() => Ok(DashboardConfig {
                listen: self.enabled.then_some(listen),
                token_file: self.token_file,
                usd_per_device_hour: (price > 0.0).then_some(price),
                connections_max: connections as usize,
            }),
            _ => Err(problems),
        }
    }

    /// The same with its path absolute.
    pub fn resolved(self, base: &Path) -> Self {
        Self { token_file: self.token_file.map(|file| base.join(file)), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(change: impl Fn(&mut DashboardFile), want: Option<&str>) {
        let mut file = DashboardFile::default();
        change(&mut file);
        let got = file.check().err().map(|problems| problems.join("\n"));
        assert_eq!(got.as_deref(), want);
    }

    #[test]
    fn values_are_checked() {
        check(|_| (), None);
        check(|file| file.listen = "[::]:0".into(), None);
        check(
            |file| file.listen = "localhost".into(),
            Some(
                "dashboard.listen: \"localhost\"; use an address and a port, such as 127.0.0.1:7380, 0.0.0.0:7380 or [::1]:0",
            ),
        );
        check(
            |file| (file.usd_per_device_hour, file.connections_max) = (f64::NAN, 3),
            Some(
                "dashboard.usd_per_device_hour: NaN; use 0 (unknown) to 1000000\n\
                 dashboard.connections_max: 3 is out of range; use 4 to 4096",
            ),
        );
        let off = DashboardFile { enabled: false, ..DashboardFile::default() };
        assert_eq!(off.check().unwrap().listen, None);
    }
}

//! What can be said of a start page before a browser opens it: whether its address may be reached
//! at all, and whether the site that serves it has the file. A problem is a text that says what
//! would be right.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use furrow_telemetry::BlockReason;
use http::{Method, StatusCode, Uri};
use http_body_util::BodyExt as _;

use crate::egress::EgressLimits;
use crate::hosts::{AllowList, HostName, HostPort, is_private};
use crate::live::{LiveHosts, SystemResolver};
use crate::sites::SiteServer;

/// Time for a connection to a pinned address, which is on this machine or in its network.
const CONNECT_TIME: Duration = Duration::from_secs(1);

/// The hosts and sites that pages of a job can reach.
#[derive(Debug)]
pub struct ReachablePages<'a> {
    sites: &'a SiteServer,
    live: Option<LiveHosts>,
}

/// What a name resolves to, as far as it was found out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostLookup {
    /// Public addresses, a pin or a site of the job.
    Reachable,
    /// A private address without a pin: pages never reach it. The text says how they would.
    Private(String),
    /// No address within the deadline. It may be found when the job runs.
    Unresolved(String),
}

/// Name in the remedies; RFC 2606 keeps it free for examples.
const EXAMPLE_HOST: &str = "app.example";

impl<'a> ReachablePages<'a> {
    /// The pages that an environment worker with these sites and limits reaches.
    pub fn new(sites: &'a SiteServer, egress: &EgressLimits) -> Self {
        let live = egress.live.as_ref().map(|live| LiveHosts {
            resolver: std::sync::Arc::new(SystemResolver),
            pins: live.pins.clone(),
            deadline: egress.deadline,
        });
        Self { sites, live }
    }

    /// Why no browser of this job ever gets this start page; `None` if it may. Names are not
    /// resolved.
    pub async fn start_problem(&self, start_url: &str, allow_hosts: &[String]) -> Option<String> {
        let target = match HostPort::parse_url(start_url) {
            Ok(target) => target,
            Err(blocked) => return Some(unreachable_address(start_url, blocked.reason)),
        };
        if let Err(bad) = AllowList::new(start_url, allow_hosts) {
            return Some(bad.to_string());
        }
        let host = &target.host;
        if self.sites.has(host) {
            let is_plain = start_url.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("http://"));
            if !is_plain || target.port != 80 {
                return Some(format!("{host} is a site of the job, served at http://{host}/ alone"));
            }
            // Thousands of pictures would be cut to find out that their tasks name them.
            return if self.sites.is_made(host) { None } else { self.file_problem(host, start_url).await };
        }
        let Some(live) = &self.live else {
            return Some(format!(
                "no source of the job serves {host}, and env.live = false keeps pages from all other hosts"
            ));
        };
        match live.check_target(&target) {
            Ok(()) => None,
            Err(blocked) if blocked.reason == BlockReason::Port => Some(format!(
                "pages reach live hosts on ports 80 and 443 alone; pin the host with its port: write \
                 pins = [\"{host}=ADDRESS:{}\"] into [env]",
                target.port
            )),
            Err(_) => Some(format!(
                "no source of the job serves {host}, and no pin names it; for a server of your own write \
                 pins = [\"{host}=127.0.0.1:3000\"] into [env], with its address and port"
            )),
        }
    }

    /// Looks the host of a start page up, which takes at most this long.
    pub async fn lookup(&self, start_url: &str, deadline: Duration) -> HostLookup {
        let (Ok(target), Some(live)) = (HostPort::parse_url(start_url), &self.live) else {
            return HostLookup::Reachable;
        };
        let host = &target.host;
        if self.sites.has(host) || live.pins.names(host) {
            return HostLookup::Reachable;
        }
        let unresolved =
            |why: String| HostLookup::Unresolved(format!("{host} cannot be resolved here: {why}"));
        match tokio::time::timeout(deadline, live.resolver.resolve(host, target.port)).await {
            Err(_) => unresolved(format!("no answer within {} ms", deadline.as_millis())),
            Ok(Err(error)) => unresolved(error.to_string()),
            Ok(Ok(addresses)) => {
                let private = addresses.iter().find(|address| is_private(address.ip()));
                private.map_or(HostLookup::Reachable, |address| {
                    HostLookup::Private(format!(
                        "{host} has the private address {}, which pages never reach; pin it: write \
                         pins = [\"{host}={address}\"] into [env]",
                        address.ip()
                    ))
                })
            }
        }
    }

    /// Pins of hosts that no task may reach: each is a name that was written wrongly, or that a
    /// task must list.
    pub fn idle_pins<'t>(&self, tasks: impl Iterator<Item = (&'t str, &'t [String])>) -> Vec<String> {
        let Some(live) = &self.live else { return Vec::new() };
        let mut idle: Vec<&HostName> = live.pins.hosts().collect();
        for list in tasks.filter_map(|(start_url, allow_hosts)| AllowList::new(start_url, allow_hosts).ok()) {
            idle.retain(|host| !list.allows(host));
        }
        idle.sort_by_key(|host| host.as_str());
        let text = |host: &HostName| {
            format!(
                "env.pins: {host} has no effect: no task starts there or lists it in allow_hosts; correct the \
                 name, or add it to a source's allow_hosts"
            )
        };
        idle.into_iter().map(text).collect()
    }

    /// Pinned hosts of these start pages whose server takes no connection. Each is tried for a
    /// second.
    pub async fn silent_pins(&self, start_urls: impl Iterator<Item = &str>) -> Vec<String> {
        let Some(live) = &self.live else { return Vec::new() };
        let targets: BTreeMap<String, SocketAddr> = start_urls
            .filter_map(|start_url| HostPort::parse_url(start_url).ok())
            .filter_map(|target| Some((target.host.to_string(), live.pins.address(&target)?)))
            .collect();
        let mut silent = Vec::new();
        for (host, address) in targets {
            let connecting = tokio::net::TcpStream::connect(address);
            if !matches!(tokio::time::timeout(CONNECT_TIME, connecting).await, Ok(Ok(_))) {
                silent.push(format!(
                    "env.pins: no server takes connections at {address}, where {host} is; start it before the \
                     run"
                ));
            }
        }
        silent
    }

    /// The text of a page that a site of the job serves; `None` for any other page.
    pub async fn page_text(&self, url: &str) -> Option<String> {
        let target = HostPort::parse_url(url).ok()?;
        if !self.sites.has(&target.host) {
            return None;
        }
        let answer = self.sites.answer(&target.host, &Method::GET, &path_of(url)?).await;
        if answer.status() != StatusCode::OK {
            return None;
        }
        let bytes = answer.into_body().collect().await.ok()?.to_bytes();
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    async fn file_problem(&self, host: &HostName, start_url: &str) -> Option<String> {
        let Some(path) = path_of(start_url) else {
            return Some(format!("the path of {start_url:?} cannot be a file's"));
        };
        let answer = self.sites.answer(host, &Method::GET, &path).await;
        match answer.status() {
            StatusCode::OK | StatusCode::MOVED_PERMANENTLY => None,
            StatusCode::NOT_FOUND => Some(format!(
                "the site {host} has no file {:?}: the page would be 404; add the file, or correct start_url",
                path.path()
            )),
            StatusCode::INTERNAL_SERVER_ERROR => Some(format!(
                "{:?} of the site {host} cannot be served: it is unreadable, or larger than \
                 env.site_file_bytes_max",
                path.path()
            )),
            status => Some(format!("the site {host} answers {:?} with {status}", path.path())),
        }
    }
}

/// What to write instead of an address that no page may open. A server of one's own gets a name and
/// a pin.
fn unreachable_address(start_url: &str, reason: BlockReason) -> String {
    let parsed: Option<Uri> = start_url.parse().ok();
    let authority = parsed.as_ref().and_then(Uri::authority);
    let (BlockReason::PrivateAddress | BlockReason::OffList, Some(authority)) = (reason, authority) else {
        return format!("{start_url:?} is not an http or https address of a host");
    };
    let is_https = parsed.as_ref().and_then(Uri::scheme_str) == Some("https");
    let port = authority.port_u16().unwrap_or(if is_https { 443 } else { 80 });
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let address = match host.parse::<IpAddr>() {
        Ok(address) => SocketAddr::new(address, port).to_string(),
        Err(_) if host == "localhost" || host.ends_with(".localhost") => {
            SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port).to_string()
        }
        Err(_) => format!("ADDRESS:{port}"),
    };
    let path = parsed.as_ref().and_then(Uri::path_and_query).map_or("/", |path| path.as_str());
    let scheme = if is_https { "https" } else { "http" };
    format!(
        "pages never open an address or a name of the own network. For a server of your own write \
         pins = [\"{EXAMPLE_HOST}={address}\"] into [env], and start_url = \"{scheme}://{EXAMPLE_HOST}{path}\""
    )
}

/// The path of an absolute URL. A browser sends no fragment.
fn path_of(url: &str) -> Option<Uri> {
    let whole: Uri = url.split('#').next()?.parse().ok()?;
    whole.path_and_query().map_or_else(|| Some(Uri::from_static("/")), |path| path.as_str().parse().ok())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::EnvFile;
    use crate::sites::{FileRoot, SiteLimits, StaticSite};

    fn sites(folder: &std::path::Path) -> SiteServer {
        let root = FileRoot::Folder(folder.to_owned());
        let limits = SiteLimits { file_bytes_max: 1000, cache_bytes_max: 0 };
        SiteServer::open(&[StaticSite { host: "mine.test".into(), root }], limits).unwrap()
    }

    fn egress(change: impl FnOnce(&mut EnvFile)) -> EgressLimits {
        let mut file = EnvFile::default();
        change(&mut file);
        file.check(std::path::Path::new("/")).unwrap().egress
    }

    #[tokio::test]
    async fn a_start_page_that_no_browser_gets_is_refused_with_the_line_that_makes_it_work() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        std::fs::write(folder.path().join("sub/index.html"), "hello").unwrap();
        std::fs::write(folder.path().join("page.html"), "hello").unwrap();
        std::fs::write(folder.path().join("large.html"), "x".repeat(1001)).unwrap();
        let sites = sites(folder.path());
        let limits = egress(|file| file.pins = vec!["shop.example=10.0.0.5:8080".into()]);
        let pages = ReachablePages::new(&sites, &limits);
        let cases: &[(&str, &[&str])] = &[
            ("http://mine.test/page.html?q=1#top", &[]),
            ("http://mine.test/sub", &[]),
            ("http://shop.example/", &[]),
            ("http://shop.example:8080/", &[]),
            ("https://www.example.org/", &[]),
            (
                "http://127.0.0.1:3000/a?b=1",
                &[r#"pins = ["app.example=127.0.0.1:3000"]"#, r#"start_url = "http://app.example/a?b=1""#],
            ),
            (
                "http://localhost:3000/",
                &[r#"pins = ["app.example=127.0.0.1:3000"]"#, r#"start_url = "http://app.example/""#],
            ),
            ("https://10.0.0.7/", &[r#"["app.example=10.0.0.7:443"]"#, r#""https://app.example/""#]),
            ("http://[::1]:5000/", &[r#"["app.example=[::1]:5000"]"#]),
            ("http://8.8.8.8/", &[r#"["app.example=8.8.8.8:80"]"#]),
            ("http://wiki.corp/start", &[r#"["app.example=ADDRESS:80"]"#]),
            ("http://app.example/", &[r#"no pin names it"#, r#"pins = ["app.example=127.0.0.1:3000"]"#]),
            ("http://wiki/", &["no pin names it"]),
            ("http://other.test/", &["no source of the job serves other.test"]),
            ("http://www.example.org:8443/", &[r#"["www.example.org=ADDRESS:8443"]"#]),
            ("http://mine.test/none.html", &["no file \"/none.html\"", "404"]),
            ("http://mine.test/", &["no file \"/\"", "404"]),
            ("http://mine.test/large.html", &["env.site_file_bytes_max"]),
            ("https://mine.test/page.html", &["http://mine.test/ alone"]),
            ("http://mine.test:8000/page.html", &["http://mine.test/ alone"]),
            ("ftp://mine.test/", &["not an http or https address"]),
        ];
        for (url, parts) in cases {
            let problem = pages.start_problem(url, &[]).await;
            assert_eq!(problem.is_some(), !parts.is_empty(), "{url}: {problem:?}");
            for part in *parts {
                assert!(problem.as_ref().unwrap().contains(part), "{url}: {part:?} is not in {problem:?}");
            }
        }
        let bad = pages.start_problem("http://mine.test/page.html", &["127.0.0.1".into()]).await;
        assert!(bad.unwrap().contains("does not name a host"));
        let offline = egress(|file| file.live = false);
        let offline = ReachablePages::new(&sites, &offline);
        let live = offline.start_problem("https://www.example.org/", &[]).await;
        assert!(live.unwrap().contains("env.live = false"));
        assert_eq!(pages.page_text("http://mine.test/page.html#x").await.as_deref(), Some("hello"));
        assert_eq!(pages.page_text("http://mine.test/none.html").await, None);
        assert_eq!(pages.page_text("https://www.example.org/").await, None);
    }

    /// The line that a refusal gives makes the same server reachable.
    #[tokio::test]
    async fn the_line_of_a_refusal_works_as_it_is_written() {
        let sites = SiteServer::open(&[], SiteLimits { file_bytes_max: 1, cache_bytes_max: 0 }).unwrap();
        let pages_of = |limits: &EgressLimits| ReachablePages::new(&sites, limits).live.unwrap();
        let refused =
            ReachablePages::new(&sites, &egress(|_| {})).start_problem("http://127.0.0.1:3000/a", &[]).await;
        let refused = refused.unwrap();
        let between = |before: &str, after: &str| {
            let (_, rest) = refused.split_once(before).unwrap();
            rest.split_once(after).unwrap().0.to_owned()
        };
        let pin = between("pins = [\"", "\"]");
        let url = between("start_url = \"", "\"");
        let limits = egress(|file| file.pins = vec![pin]);
        assert_eq!(ReachablePages::new(&sites, &limits).start_problem(&url, &[]).await, None);
        let target = HostPort::parse_url(&url).unwrap();
        assert!(pages_of(&limits).check_target(&target).is_ok());
    }

    #[test]
    fn a_pin_that_no_task_reaches_is_named() {
        let sites = SiteServer::open(&[], SiteLimits { file_bytes_max: 1, cache_bytes_max: 0 }).unwrap();
        let pins = ["a.example=10.0.0.1", "b.example=10.0.0.1", "c.example=10.0.0.1"];
        let limits = egress(|file| file.pins = pins.map(str::to_owned).to_vec());
        let lists = ["b.example".to_owned()];
        let tasks =
            [("http://a.example/x", &[][..]), ("http://127.0.0.1/", &[]), ("http://a.example/", &lists)];
        let idle = ReachablePages::new(&sites, &limits).idle_pins(tasks.into_iter());
        assert_eq!(idle.len(), 1, "{idle:?}");
        assert!(idle[0].starts_with("env.pins: c.example has no effect"), "{idle:?}");
    }

    #[derive(Debug)]
    struct OneAddress(&'static str);

    #[async_trait::async_trait]
    impl crate::live::HostResolver for OneAddress {
        async fn resolve(&self, _: &HostName, port: u16) -> std::io::Result<Vec<SocketAddr>> {
            match self.0.parse() {
                Ok(address) => Ok(vec![SocketAddr::new(address, port)]),
                Err(_) => std::future::pending().await,
            }
        }
    }

    #[tokio::test]
    async fn a_name_with_a_private_address_needs_a_pin() {
        let sites = SiteServer::open(&[], SiteLimits { file_bytes_max: 1, cache_bytes_max: 0 }).unwrap();
        let limits = egress(|file| file.pins = vec!["pinned.org=10.0.0.5".into()]);
        let found = async |address, url: &str| {
            let mut pages = ReachablePages::new(&sites, &limits);
            pages.live.as_mut().unwrap().resolver = Arc::new(OneAddress(address));
            pages.lookup(url, Duration::from_millis(20)).await
        };
        assert_eq!(found("93.184.216.34", "http://a.org/").await, HostLookup::Reachable);
        assert_eq!(found("10.0.0.9", "http://pinned.org/").await, HostLookup::Reachable);
        let HostLookup::Private(text) = found("10.0.0.9", "http://a.org/").await else {
            panic!("not private")
        };
        assert!(text.contains(r#"pins = ["a.org=10.0.0.9:80"]"#), "{text}");
        let HostLookup::Unresolved(text) = found("silent", "http://a.org/").await else { panic!("resolved") };
        assert!(text.contains("20 ms"), "{text}");
    }
}

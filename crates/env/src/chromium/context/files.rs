//! The files of a context: what its policy may choose in file choosers, and what it downloads.

use std::time::Duration;

use furrow_rollout::{Assignment, DownloadReport, ExtraAction, Outcome, OutcomeName, TaskFiles, UploadFile};

use super::tabs::ContextTabs;
use crate::chromium::chooser::FileChooser;
use crate::chromium::downloads::{DOWNLOADS_MAX, DownloadWatch};
use crate::chromium::prewarm::PrewarmedContext;
use crate::chromium::session_folder::SessionFolder;
use crate::chromium::tab::BrowserTab;
use crate::chromium::user::owner;
use crate::config::BrowserConfig;
use crate::environment::EnvironmentError;

/// How long an upload waits for the chooser that a click of the same step opens, and how often it
/// looks.
const CHOOSER_WAIT: Duration = Duration::from_millis(500);
const CHOOSER_POLL: Duration = Duration::from_millis(25);

pub(in crate::chromium) struct ContextFiles {
    files: TaskFiles,
    /// Whether the policy's grammar can name a file.
    can_name: bool,
    downloads: Option<DownloadWatch>,
    /// Removed with the files in it; `None` if the task has none.
    folder: Option<SessionFolder>,
}

impl ContextFiles {
    /// Creates the folder of a session whose task needs one, and allows downloads into it.
    pub(crate) async fn open(
        prewarmed: &PrewarmedContext,
        config: &BrowserConfig,
        assignment: &Assignment,
    ) -> Result<Self, EnvironmentError> {
        let files = assignment.files.clone();
        let can_name = assignment.session.grammar.extra.contains(&ExtraAction::Upload);
        let mut this = Self { files, can_name, downloads: None, folder: None };
        if this.files == TaskFiles::default() {
            return Ok(this);
        }
        let owner = owner(config).map_err(|error| EnvironmentError::Failed(error.to_string()))?;
        let folder = prewarmed.browser.process.session_folders.open(owner);
        let folder = folder.map_err(|error| folder_error(&error))?;
        if let Some(bytes_max) = this.files.download_bytes_max {
            let running = prewarmed.browser.process();
            let id = prewarmed.id.clone();
            let watch = DownloadWatch::start(running, id, folder.downloads(), bytes_max, config).await?;
            this.downloads = Some(watch);
        }
        this.folder = Some(folder);
        Ok(this)
    }

    /// Chooses files by name in the chooser that the page opened.
    pub(crate) async fn upload(
        &self,
        names: &[String],
        tab: &BrowserTab,
    ) -> Result<Outcome, EnvironmentError> {
        if self.files.uploads.is_empty() {
            return Ok(self.denied());
        }
        if let Some(name) = names.iter().find(|name| self.files.find(name).is_none()) {
            return Ok(invalid(format!("there is no file {name:?}; upload {}", self.choices())));
        }
        let mut waited = Duration::ZERO;
        let chooser = loop {
            match tab.file_chooser() {
                Some(chooser) => break chooser,
                None if waited >= CHOOSER_WAIT => {
                    return Ok(invalid("no file chooser is open; click what opens one first".to_owned()));
                }
                None => tokio::time::sleep(CHOOSER_POLL).await,
            }
            waited += CHOOSER_POLL;
        };
        if names.len() > 1 && !chooser.takes_several {
            return Ok(invalid(format!("the page takes one file, and {} are named", names.len())));
        }
        if !chooser.takes_files() {
            return Ok(self.denied());
        }
        let paths = names.iter().filter_map(|name| self.files.find(name)).map(|file| self.path_of(file));
        let paths = paths.collect::<Result<Vec<_>, _>>()?;
        Ok(match give(tab, chooser, paths).await? {
            Ok(()) => Outcome::named(OutcomeName::Ok),
            Err(why) => invalid(format!("the page no longer waits for a file: {why}")),
        })
    }

    /// Chooses the task's only file for a policy that cannot name it. Returns the name if a chooser
    /// waited for it.
    pub(crate) async fn choose_only_file(
        &self,
        tab: &BrowserTab,
    ) -> Result<Option<String>, EnvironmentError> {
        let [file] = &self.files.uploads[..] else { return Ok(None) };
        match tab.file_chooser() {
            Some(chooser) if !self.can_name && chooser.takes_files() => {
                let chosen = give(tab, chooser, vec![self.path_of(file)?]).await?;
                Ok(chosen.is_ok().then(|| file.name.clone()))
            }
            _ => Ok(None),
        }
    }

    /// What a policy learns about a chooser that its action opened.
    pub(super) fn chooser_outcome(&self, tabs: &ContextTabs) -> Outcome {
        let waiting = tabs.active().ok().and_then(BrowserTab::file_chooser);
        match waiting.filter(|chooser| chooser.takes_files()) {
            _ if self.files.uploads.is_empty() => self.denied(),
            Some(_) if !self.can_name => {
                let count = self.files.uploads.len();
                let why =
                    format!("the page asks for a file, and this action grammar cannot name one of {count}");
                Outcome::with_detail(OutcomeName::UploadDenied, why)
            }
            Some(chooser) => {
                let several = if chooser.takes_several { " or several" } else { "" };
                let detail = format!("the page asks for a file; upload {}{several}", self.choices());
                Outcome::with_detail(OutcomeName::FileChooser, detail)
            }
            None => {
                let why = "the page opened a file chooser that takes no file from here";
                Outcome::with_detail(OutcomeName::UploadDenied, why)
            }
        }
    }

    pub(crate) fn allows_downloads(&self) -> bool {
        self.downloads.is_some()
    }

    /// Waits until nothing is being downloaded.
    pub(crate) async fn wait_downloaded(&self, timeout: Duration) {
        if let Some(downloads) = &self.downloads {
            downloads.wait(timeout).await;
        }
    }

    /// What a policy learns about downloads since the last call.
    pub(crate) fn download_outcome(&mut self) -> Option<Outcome> {
        let downloads = self.downloads.as_mut()?;
        let completed = downloads.take_completed();
        if downloads.take_excess() {
            let most = self.files.download_bytes_max.unwrap_or_default();
            let why = format!(
                "this task keeps at most {DOWNLOADS_MAX} files and {most} bytes; no more is downloaded"
            );
            return Some(Outcome::with_detail(OutcomeName::DownloadDenied, why));
        }
        let named: Vec<String> =
            completed.iter().map(|(name, bytes)| format!("{name:?} of {bytes} bytes")).collect();
        let detail = || format!("downloaded {}", named.join(", "));
        (!named.is_empty()).then(|| Outcome::with_detail(OutcomeName::Downloaded, detail()))
    }

    /// The completed downloads; `None` if the task allows none.
    pub(crate) async fn download_report(&self) -> Option<DownloadReport> {
        Some(self.downloads.as_ref()?.report().await)
    }

    fn path_of(&self, file: &UploadFile) -> Result<String, EnvironmentError> {
        let folder =
            self.folder.as_ref().ok_or_else(|| EnvironmentError::Failed("no session folder".into()))?;
        let path = folder.write(file).map_err(|error| folder_error(&error))?;
        Ok(path.display().to_string())
    }

    fn denied(&self) -> Outcome {
        let why = match self.files.uploads.is_empty() {
            true => "the page asks for a file; this task offers none",
            false => "the page opened a file chooser that takes no file from here",
        };
        Outcome::with_detail(OutcomeName::UploadDenied, why)
    }

    fn choices(&self) -> String {
        let names: Vec<String> = self.files.uploads.iter().map(|file| format!("{:?}", file.name)).collect();
        match &names[..] {
            [only] => only.clone(),
            several => format!("one of {}", several.join(", ")),
        }
    }
}

/// Gives files to a chooser and closes it. `Err` with a text if the page no longer waits for them.
async fn give(
    tab: &BrowserTab,
    chooser: FileChooser,
    paths: Vec<String>,
) -> Result<Result<(), String>, EnvironmentError> {
    tab.close_file_chooser();
    let given = tab.call(chooser.with_files(paths), tab.deadlines.input, "the page to take the files").await;
    match given {
        Ok(_) => Ok(Ok(())),
        Err(EnvironmentError::Failed(why)) => Ok(Err(why)),
        Err(error) => Err(error),
    }
}

fn invalid(why: String) -> Outcome {
    Outcome::with_detail(OutcomeName::InvalidAction, why)
}

fn folder_error(error: &std::io::Error) -> EnvironmentError {
    EnvironmentError::Failed(format!(
        "the session's folder in {}: {error}; free space there or set TMPDIR",
        std::env::temp_dir().display()
    ))
}

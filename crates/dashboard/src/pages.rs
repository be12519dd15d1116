//! The static files of `pages/`, which are part of the binary.

use sha2::{Digest, Sha256};

pub(crate) struct StaticAsset {
    pub name: &'static str,
    pub media_type: &'static str,
    pub bytes: &'static [u8],
}

macro_rules! assets {
    ($($name:literal as $media_type:ident),* $(,)?) => {
        /// All files, served as `/assets/<name>`.
        pub(crate) const ASSETS: &[StaticAsset] = &[
            $(StaticAsset { name: $name, media_type: $media_type, bytes: include_bytes!(concat!("../pages/", $name)) }),*
        ];
    };
}

const JS: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SVG: &str = "image/svg+xml";

assets! {
    "action.js" as JS,
    "app.js" as JS,
    "ask.js" as JS,
    "base.js" as JS,
    "charts.js" as JS,
    "compare.js" as JS,
    "dom.js" as JS,
    "format.js" as JS,
    "grid.js" as JS,
    "icon.svg" as SVG,
    "job.js" as JS,
    "learning.js" as JS,
    "numbers.js" as JS,
    "overview.js" as JS,
    "palette.css" as CSS,
    "picture.js" as JS,
    "plot.js" as JS,
    "result.js" as JS,
    "runs.js" as JS,
    "sessions.js" as JS,
    "step.js" as JS,
    "step_list.js" as JS,
    "style.css" as CSS,
    "ticks.js" as JS,
    "tiles.js" as JS,
    "trajectories.js" as JS,
    "trajectory.js" as JS,
    "trajectory_facts.js" as JS,
}

/// The page for all page URLs: its modules read the URL.
pub(crate) const INDEX: &[u8] = include_bytes!("../pages/index.html");
/// The form for the token.
pub(crate) const SIGN_IN: &[u8] = include_bytes!("../pages/sign-in.html");

/// What a browser gets at an address without a page.
pub(crate) const NOT_FOUND: &[u8] = include_bytes!("../pages/not-found.html");

/// The same form after a wrong token.
pub(crate) fn sign_in_again() -> String {
    let message = "<p class=\"wrong\" role=\"alert\">That is not the token.</p>\n<form";
    String::from_utf8_lossy(SIGN_IN).replacen("<form", message, 1)
}

/// Only the dashboard's own files, nothing inline, no frame around it, and no text that becomes
/// markup: Chromium refuses `innerHTML`.
pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

impl StaticAsset {
    /// The file with this name.
    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        ASSETS.iter().find(|asset| asset.name == name)
    }
}

/// The ETag of these bytes: a browser that has them gets no copy.
pub(crate) fn tag(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    hash[..16].iter().fold("\"".to_owned(), |tag, byte| format!("{tag}{byte:02x}")) + "\""
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_file_of_the_folder_is_served() {
        let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/pages")).unwrap();
        let names: BTreeSet<String> =
            folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        let served = ASSETS.iter().map(|asset| asset.name.to_owned());
        let pages = ["index.html", "sign-in.html", "not-found.html"];
        // Parts of files that the program writes: a report, and an exported trajectory.
        let written = ["report.css", "trajectory_file.css", "trajectory_file.js"];
        let others = pages.into_iter().chain(written).map(str::to_owned);
        assert_eq!(names, served.chain(others).collect());
    }

    #[test]
    fn no_text_becomes_markup_and_nothing_comes_from_elsewhere() {
        for asset in ASSETS.iter().filter(|asset| asset.media_type != SVG) {
            let text = std::str::from_utf8(asset.bytes).unwrap();
            for banned in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "://",
                "srcdoc",
            ] {
                let known = text.replace("http://www.w3.org/", "");
                assert!(!known.contains(banned), "{}: {banned}", asset.name);
            }
        }
        for page in [INDEX, SIGN_IN, NOT_FOUND] {
            let text = std::str::from_utf8(page).unwrap();
            assert!(!text.contains("://") && !text.contains("<style") && !text.contains(" style="), "{text}");
            assert!(
                !text.contains("<script>") && !text.contains("onload=") && !text.contains("onclick="),
                "{text}"
            );
        }
    }
}

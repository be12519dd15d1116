//! A budget as text and as JSON.

use serde_json::{Value, json};

use super::{JobBudget, ResourceDemand, SessionResidency};
use crate::output;

impl ResourceDemand {
    /// One line: what is needed, and what is available.
    pub(super) fn summary_line(&self) -> String {
        let total = self.total();
        match &self.available {
            None => format!("{}: available amount unknown", output::bytes(total)),
            Some(there) => {
                let has = output::bytes(there.bytes);
                let of = &there.source;
                match total.checked_sub(there.bytes).filter(|over| *over > 0) {
                    None => format!(
                        "{} of {has} ({of}): fits, {} left",
                        output::bytes(total),
                        output::bytes(there.bytes - total)
                    ),
                    Some(over) => format!(
                        "{} of {has} ({of}): does not fit, {} too much",
                        output::bytes(total),
                        output::bytes(over)
                    ),
                }
            }
        }
    }

    /// The demand that does not fit, with its terms and the remedy.
    pub(super) fn shortfall_text(&self) -> String {
        let term = |term: &super::DemandTerm| format!("{} {}", term.what, output::bytes(term.bytes));
        let mut terms: Vec<&super::DemandTerm> = self.terms.iter().filter(|term| term.bytes > 0).collect();
        terms.sort_by_key(|term| std::cmp::Reverse(term.bytes));
        let terms: Vec<String> = terms.into_iter().map(term).collect();
        format!("{}: {} ({}); {}", self.what, self.summary_line(), terms.join(" + "), self.remedy)
    }

    fn show(&self) {
        output::line(format!("\n{}", capitalized(self.what)));
        for term in &self.terms {
            output::line(
                format!("  {:<34}  {:>10}  {}", term.what, output::bytes(term.bytes), term.how).trim_end(),
            );
        }
        output::line(format!("  {:<34}  {}", "together", self.summary_line()));
        if self.fits() == Some(false) {
            output::line(format!("  {}", self.remedy));
        }
    }

    fn value(&self) -> Value {
        let terms: Vec<Value> = self
            .terms
            .iter()
            .map(|term| json!({ "what": term.what, "bytes": term.bytes, "how": term.how }))
            .collect();
        json!({
            "what": self.what, "bytes": self.total(), "terms": terms, "fits": self.fits(), "must_fit": self.must_fit,
            "there_bytes": self.available.as_ref().map(|there| there.bytes), "there_of": self.available.as_ref().map(|there| &there.source),
            "remedy": self.remedy,
        })
    }
}

impl JobBudget {
    /// Prints all demands, the residency of sessions, warnings, and whether the job would start.
    pub(crate) fn show(&self, of: &str) {
        let exact = match (self.on_a_gpu, self.is_exact) {
            (true, false) => {
                "; no weight files found: GPU and pinned memory are computed from the configuration"
            }
            _ => "",
        };
        output::line(format!("\nBudget of the job ({of}{exact})"));
        self.sums.iter().for_each(ResourceDemand::show);
        if let Some(residency) = &self.residency {
            residency.show();
        }
        let refusals = self.refusals();
        for warning in self.warnings() {
            output::line(format!("\nwarning: {warning}"));
        }
        output::line(match (self.on_a_gpu, refusals.is_empty()) {
            (false, _) => "\nA job on the CPU starts even if these do not fit.",
            (true, true) => "\nfits: the job would start",
            (true, false) => "\ndoes not fit: the job would not start",
        });
    }

    pub(crate) fn value(&self) -> Value {
        json!({
            "sums": self.sums.iter().map(ResourceDemand::value).collect::<Vec<_>>(), "residency": self.residency.map(|it| it.value()),
            "exact": self.is_exact, "on_a_gpu": self.on_a_gpu, "fits": self.refusals().is_empty(), "refusals": self.refusals(),
            "warnings": self.warnings(),
        })
    }
}

impl SessionResidency {
    fn show(&self) {
        let Self { sessions, admitted, even, longest, offload_bytes, tokens } = self;
        output::line(format!(
            "\nSessions on the GPU ({sessions} concurrent, at most {admitted} admitted, {} tokens at the longest, {} allowed; {} pinned for states)",
            tokens[0],
            tokens[1],
            output::bytes(*offload_bytes)
        ));
        let row = |name: &str, share: &super::residency::ResidencyShare| {
            vec![
                format!("  {name}"),
                share.pages.to_string(),
                share.resident.to_string(),
                share.swapped_out.to_string(),
                output::bytes(share.bytes),
                output::bytes(share.bytes_a_step),
                format!("{:.1} ms", share.seconds_a_step() * 1e3),
            ]
        };
        let rows = [row("ages spread evenly", even), row("all at their longest", longest)];
        output::table(
            &["  ", "pages each", "resident", "swapped out", "pinned", "bus per step, at most", "at 55 GB/s"],
            &rows,
        );
    }

    fn value(&self) -> Value {
        let share = |share: &super::residency::ResidencyShare| {
            json!({
                "pages": share.pages, "resident": share.resident, "swapped_out": share.swapped_out, "pinned_bytes": share.bytes,
                "bus_bytes_a_step_max": share.bytes_a_step, "bus_seconds_a_step_max": share.seconds_a_step(),
            })
        };
        json!({
            "sessions": self.sessions, "admitted": self.admitted, "even_ages": share(&self.even), "longest": share(&self.longest),
            "offload_bytes": self.offload_bytes, "step_tokens_max": self.tokens[0], "context_tokens_max": self.tokens[1],
        })
    }
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

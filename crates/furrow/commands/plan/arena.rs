//! `furrow plan --job`: what a job's model takes of a GPU, part by part, and whether it fits.

use std::path::PathBuf;

use clap::Args;
use furrow_cuda::device;
use furrow_cuda::gpu::RESERVE_BYTES;
use furrow_model::floor::Device;
use furrow_policy::{Arena, ModelConfig};
use serde_json::{Value, json};

use crate::job::Job;
use crate::{Failure, output};
use furrow_model::checkpoint::chain;

/// Which job, and how large its GPU is.
#[derive(Debug, Args)]
pub struct ArenaArgs {
    /// Job file whose [policy.engine] is planned, and whose checkpoint the model is
    #[arg(long, value_name = "FILE", conflicts_with = "checkpoint")]
    job: Option<PathBuf>,
    /// Replace a key of the job, such as `policy.engine.state_slots=100`; may be given again
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "job")]
    set: Vec<String>,
    /// Bytes of the GPU's memory [default: those of the GPU that is found here, else those that --gpu has]
    #[arg(long, requires = "job")]
    device_bytes: Option<u64>,
}

/// A planned arena beside a device's memory.
#[derive(Debug, PartialEq, Eq)]
pub struct Planned {
    arena: Arena,
    device_bytes: u64,
    /// Where that number is from.
    of: String,
}

impl ArenaArgs {
    /// The job's model, where there is a job.
    pub fn model(&self) -> Result<Option<ModelConfig>, Failure> {
        let Some(path) = &self.job else { return Ok(None) };
        let job = Job::read(path, &self.set).map_err(Failure::Input)?;
        let kind = job.policy.choice.kind().as_str();
        let none = format!("policy.kind: {kind:?} computes nothing; use \"model\"");
        job.policy.model.map(Some).ok_or_else(|| Failure::Input(vec![none]))
    }

    /// What a job's model takes; `None` where it computes on the processor.
    pub fn planned(&self, model: &ModelConfig, named: &Device) -> Result<Option<Planned>, Failure> {
        let arena = Arena::of(model).map_err(|why| Failure::Input(vec![chain(&why)]))?;
        let (device_bytes, of) = self.memory(model, named);
        Ok(arena.map(|arena| Planned { arena, device_bytes, of }))
    }

    fn memory(&self, model: &ModelConfig, named: &Device) -> (u64, String) {
        let found = || device::Device::open(model.engine.gpu as usize).ok();
        match (self.device_bytes, self.device_bytes.map_or_else(found, |_| None)) {
            (Some(bytes), _) => (bytes, "--device-bytes".into()),
            (None, Some(found)) => (found.memory_bytes() as u64, format!("{}, found here", found.name())),
            (None, None) => (named.memory as u64, format!("{}, no GPU is here", named.name)),
        }
    }
}

impl Planned {
    fn total(&self) -> u64 {
        self.arena.plan.total().saturating_add(RESERVE_BYTES)
    }

    fn fits(&self) -> bool {
        self.total() <= self.device_bytes
    }

    /// Each part with its bytes, the device's own needs last.
    fn parts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let parts = self.arena.plan.parts().iter().copied().filter(|(_, bytes)| *bytes > 0);
        parts.chain([("graphs, code, libraries", RESERVE_BYTES)])
    }

    /// The parts as a table, and the answer.
    pub fn tell(&self) {
        let exact = if self.arena.is_exact { "" } else { ", from the configuration alone" };
        output::line(format!("\nArena of the cuda backend{exact}"));
        for (name, bytes) in self.parts() {
            output::line(format!("  {name:<26}  {}", output::bytes(bytes)));
        }
        output::line(format!("  {:<26}  {}", "together", output::bytes(self.total())));
        output::line(format!("  {}", self.answer()));
    }

    fn answer(&self) -> String {
        let (total, there) = (self.total(), self.device_bytes);
        let (device, of) = (output::bytes(there), &self.of);
        match total.checked_sub(there).filter(|over| *over > 0) {
            None => format!("fits into {device} ({of}), {} are left", output::bytes(there - total)),
            Some(over) => format!(
                "does not fit into {device} ({of}): {} too much; give policy.engine fewer state_slots, snapshot_slots, kv_tokens or prefill_tokens",
                output::bytes(over)
            ),
        }
    }

    /// The same for machines.
    pub fn value(&self) -> Value {
        let parts: Vec<Value> =
            self.parts().map(|(name, bytes)| json!({ "part": name, "bytes": bytes })).collect();
        json!({
            "parts": parts, "bytes": self.total(), "device_bytes": self.device_bytes, "device_bytes_of": self.of, "fits": self.fits(),
            "exact": self.arena.is_exact,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(settings: &[&str], device_bytes: u64) -> Planned {
        let dir = tempfile::tempdir().unwrap();
        let text = include_str!("../../../model/tests/configs/nano_12b_vl.json");
        std::fs::write(dir.path().join("config.json"), text).unwrap();
        let job = dir.path().join("job.toml");
        let keys = "[policy]\nkind = \"model\"\ncheckpoint = \".\"\n[policy.engine]\nbackend = \"cuda\"\nkv_tokens = 819200\n\
            [[tasks.source]]\npath = \"config.json\"\nsuite = \"some\"\n";
        std::fs::write(&job, keys).unwrap();
        let set = settings.iter().map(ToString::to_string).collect();
        let args = ArenaArgs { job: Some(job), set, device_bytes: Some(device_bytes) };
        let model = args.model().unwrap().unwrap();
        args.planned(&model, Device::named("h200").unwrap()).unwrap().unwrap()
    }

    #[test]
    fn a_job_is_planned_by_part_and_what_does_not_fit_is_an_answer() {
        let hundred = ["policy.engine.state_slots=100", "policy.engine.snapshot_slots=0"];
        let fits = planned(&hundred, 141_000_000_000);
        let of = |name: &str| fits.parts().find(|(part, _)| *part == name).unwrap().1;
        assert!((26.2e9..26.4e9).contains(&(of("weights") as f64)), "{fits:?}");
        assert_eq!(of("state slots"), 100 * 148_865_024 + 256);
        assert_eq!(of("KV pages"), 12_801 * 64 * 24_576);
        for part in ["tiles being encoded", "tile features", "logits and sampling", "graphs, code, libraries"]
        {
            assert!(of(part) > 0, "{part}");
        }
        assert_eq!(fits.total(), fits.parts().map(|(_, bytes)| bytes).sum::<u64>());
        assert!(fits.fits() && fits.answer().starts_with("fits into"), "{}", fits.answer());
        assert_eq!(fits.value()["fits"], true);

        let enough = fits.total();
        assert!(planned(&hundred, enough).fits());
        let tight = planned(&hundred, enough - 1);
        assert!(!tight.fits() && tight.answer().contains("does not fit"), "{}", tight.answer());
        // Half the states' bytes: 73.4 MB a session less.
        let narrow = planned(&[&hundred[..], &["policy.engine.precision=narrow_state"]].concat(), enough);
        assert_eq!(enough - narrow.total(), 100 * 73_400_320);
    }
}

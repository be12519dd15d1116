//! Published weights while sessions run: every log-prob is that of the version its token is tagged
//! with, and no session is lost.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use furrow_model::backend::{
    Backend, BackendCapacity, ImageInset, LogitRows, PAGE_TOKENS, Page, SequenceSpan, Slot,
};
use furrow_model::checkpoint::Checkpoint;
use furrow_model::cpu::CpuBackend;
use furrow_model::forward::capacity_for;
use furrow_model::init::{InitSpec, ModelSize, StoredType, init};
use furrow_model::kernels::{ProductPrecision, ThreadPool};
use furrow_model::vision::{ImageLimits, ImageTile, ResampleMode, decode, prepare};
use furrow_model::weights::ModelWeights;
use furrow_policy::{ModelPolicy, Policy, WeightsFile};
use furrow_rollout::{
    ContextPolicy, PolicyReply, PolicyVersion, TokenTrace, Trace, WeightsForm, WeightsLink, WeightsOrder,
};
use furrow_wire::SessionOpening;
use serde_json::json;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::model::claims::{KeptTokens, logprobs};
use crate::model::fixture::*;

/// Kinds of versions, in turn: two whole checkpoints, and a delta and an adapter on the first of
/// them.
const KINDS: i32 = 4;

struct PublishedWeights {
    _dir: TempDir,
    links: Vec<Vec<WeightsLink>>,
    weights: Vec<Arc<ModelWeights>>,
    bytes: u64,
}

fn published() -> &'static PublishedWeights {
    static MADE: OnceLock<PublishedWeights> = OnceLock::new();
    MADE.get_or_init(make)
}

fn make() -> PublishedWeights {
    let dir = tempfile::tempdir().unwrap();
    let whole = |name: &str, seed: u64| {
        let path = dir.path().join(name);
        let what =
            InitSpec { size: ModelSize::Tiny, seed, dtype: StoredType::Float32, shard_bytes_max: u64::MAX };
        init(&path, &what).unwrap();
        path
    };
    let first = whole("first", 21);
    let second = whole("second", 22);
    let delta = dir.path().join("delta");
    let adapter = dir.path().join("adapter");
    let base = Checkpoint::open(&first).unwrap();
    write_delta(&delta, &base);
    write_adapter(&adapter, &base);
    let team = ThreadPool::new(2);
    let bytes = base.bytes();
    let load =
        |checkpoint: Checkpoint| Arc::new(ModelWeights::of(&checkpoint, &team, &mut |_, _| {}).unwrap());
    let open_base = || Checkpoint::open(&first).unwrap();
    let weights = vec![
        load(base),
        load(Checkpoint::open(&second).unwrap()),
        load(open_base().with_delta(&delta, &team).unwrap()),
        load(open_base().with_adapter(&adapter, &team).unwrap()),
    ];
    let link = |form, path: &Path| WeightsLink { form, directory: path.display().to_string() };
    let over = |form, path: &PathBuf| vec![link(WeightsForm::Full, &first), link(form, path)];
    let links = vec![
        vec![link(WeightsForm::Full, &first)],
        vec![link(WeightsForm::Full, &second)],
        over(WeightsForm::Delta, &delta),
        over(WeightsForm::Adapter, &adapter),
    ];
    PublishedWeights { _dir: dir, links, weights, bytes }
}

/// Deterministic values between -0.5 and 0.5 times `scale`.
fn noise(count: usize, scale: f32) -> Vec<u8> {
    let value = |at: u32| (at.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32 - 0.5;
    (0..count as u32).flat_map(|at| (value(at) * scale).to_le_bytes()).collect()
}

/// A safetensors file of float32 tensors.
fn write_tensors(path: &Path, tensors: &[(String, Vec<usize>, f32)]) -> String {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, shape, scale) in tensors {
        let start = data.len();
        data.extend(noise(shape.iter().product(), *scale));
        header.insert(
            name.clone(),
            json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]}),
        );
    }
    let mut text = serde_json::Value::Object(header).to_string();
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    let file = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &data].concat();
    fs::write(path, &file).unwrap();
    Sha256::digest(&file).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn write_delta(dir: &Path, base: &Checkpoint) {
    fs::create_dir(dir).unwrap();
    let head = base.tensor("lm_head.weight").unwrap().shape().to_vec();
    let path = dir.join("delta.safetensors");
    let sha256 = write_tensors(&path, &[("lm_head.weight".into(), head, 0.3)]);
    let bytes = path.metadata().unwrap().len();
    let manifest = json!({"format": "furrow.delta", "format_version": 1, "base_version": 1,
        "files": {"delta.safetensors": {"bytes": bytes, "sha256": sha256}}});
    fs::write(dir.join("delta.json"), manifest.to_string()).unwrap();
}

fn write_adapter(dir: &Path, base: &Checkpoint) {
    fs::create_dir(dir).unwrap();
    let [out, input] = base.tensor("lm_head.weight").unwrap().shape()[..] else {
        panic!("a head is a matrix")
    };
    let name = |part: &str| format!("base_model.model.lm_head.lora_{part}.weight");
    write_tensors(
        &dir.join("adapter_model.safetensors"),
        &[(name("A"), vec![3, input], 0.5), (name("B"), vec![out, 3], 0.5)],
    );
    let config = json!({"peft_type": "LORA", "r": 3, "lora_alpha": 6, "bias": "none"});
    fs::write(dir.join("adapter_config.json"), config.to_string()).unwrap();
}

fn order(version: i32) -> WeightsOrder {
    let links = published().links[(version % KINDS) as usize].clone();
    WeightsOrder { version: PolicyVersion(version), links, weights_sha256: None, taken: false }
}

/// The weights of a version; 0 is the job's own checkpoint.
fn weights_of(version: i32) -> Arc<ModelWeights> {
    static OWN: OnceLock<Arc<ModelWeights>> = OnceLock::new();
    let load = || Arc::new(ModelWeights::load(checkpoint(), &ThreadPool::new(2), &mut |_, _| {}).unwrap());
    match version {
        0 => OWN.get_or_init(load).clone(),
        version => published().weights[(version % KINDS) as usize].clone(),
    }
}

fn swapping(on_swap: &str) -> furrow_policy::PolicyConfig {
    config(|file| file.weights = WeightsFile { on_swap: on_swap.into(), ..WeightsFile::default() })
}

type ActedStep = (PolicyReply, Trace);

/// Acts one trajectory after another until it is stopped. Returns the opening and the steps of
/// each.
async fn act_on(
    model: Arc<ModelPolicy>,
    config: furrow_policy::PolicyConfig,
    lane: u64,
    stop: CancellationToken,
) -> Vec<(SessionOpening, Vec<ActedStep>)> {
    let mut all = Vec::new();
    while !stop.is_cancelled() || all.is_empty() {
        let index = all.len() as u64;
        let keep = POLICIES[(lane + index) as usize % POLICIES.len()];
        let opening = opening(&config, lane * 1000 + index, 0, keep);
        let rows = act_steps(&model, &opening, 3).await;
        all.push((opening, rows));
    }
    all
}

/// Runs parallel series of trajectories while versions are published in sequence, each after a
/// number of steps.
async fn published_under_load(
    on_swap: &str,
    versions: i32,
) -> (Arc<ModelPolicy>, Vec<(SessionOpening, Vec<ActedStep>)>, Vec<u64>) {
    let config = swapping(on_swap);
    let model = model(&config);
    let stop = CancellationToken::new();
    let lanes: Vec<_> =
        (0..5).map(|lane| tokio::spawn(act_on(model.clone(), config.clone(), lane, stop.clone()))).collect();
    let mut resident = Vec::new();
    for version in 1..=versions {
        model.take_weights(&order(version)).await.unwrap();
        assert_eq!(model.version(), Some(PolicyVersion(version)));
        resident.push(resident_bytes());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.cancel();
    let mut all = Vec::new();
    for lane in lanes {
        all.extend(lane.await.unwrap());
    }
    (model, all, resident)
}

/// Resident memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

fn versions(row: &TokenTrace) -> (i32, i32) {
    let all = || row.policy_versions.iter().copied();
    (all().min().unwrap(), all().max().unwrap())
}

/// Recomputes rows whose state and response have one version, at most `most` of them, spread
/// evenly. Returns how many there were.
fn recompute(all: &[(SessionOpening, Vec<ActedStep>)], most: usize) -> usize {
    let mut pure = Vec::new();
    for (opening, rows) in all {
        let mut kept = KeptTokens::default();
        for (_, trace) in rows {
            let row = tokens(trace);
            let prompt = kept.row(row);
            let (least, newest) = versions(row);
            if least == newest && trace.state_version_min == Some(PolicyVersion(least)) {
                pure.push((opening, prompt, row, least));
            }
        }
    }
    let every = pure.len().div_ceil(most).max(1);
    let mut compared = 0;
    let mut distinguished = 0;
    for (opening, prompt, row, version) in pure.iter().step_by(every) {
        let ids = [&prompt[..], &row.response_token_ids].concat();
        let gap = |version: i32| {
            let want = logprobs(&weights_of(version), opening, &ids, &row.image_spans);
            let got = row.logprobs.as_ref().unwrap().iter().enumerate();
            let gaps = got.filter_map(|(at, got)| Some((got.as_ref()? - want[prompt.len() + at - 1]).abs()));
            gaps.fold(0.0_f32, f32::max)
        };
        let own = gap(*version);
        assert!(own < 1e-4, "a row of version {version} differs by {own} from its weights");
        // An error of one version must be detectable.
        distinguished += usize::from(gap(*version + 1) > 1e-2);
        compared += 1;
    }
    assert!(distinguished * 10 >= compared * 9, "{distinguished} of {compared} rows distinguish versions");
    compared
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_versions_take_over_under_load_and_every_token_is_of_its_own() {
    let (model, all, resident) = published_under_load("keep", 100).await;
    let mut versions_acted = BTreeMap::new();
    for (opening, rows) in &all {
        assert_eq!(rows.len(), 3, "{} was lost", opening.ancestry.trajectory_id);
        let of_trajectory: Vec<i32> =
            rows.iter().flat_map(|(_, trace)| tokens(trace).policy_versions.clone()).collect();
        assert!(of_trajectory.is_sorted(), "{of_trajectory:?} is not sorted");
        for version in of_trajectory {
            *versions_acted.entry(version).or_insert(0) += 1;
        }
    }
    assert!(versions_acted.len() > 30, "only {} versions acted", versions_acted.len());
    assert!(recompute(&all, 24) >= 12);
    // A leak of every old version would be 80 of them.
    let growth = resident[99].saturating_sub(resident[19]);
    assert!(
        growth < 30 * published().bytes,
        "{growth} bytes of growth after 80 versions of {}",
        published().bytes
    );
    model.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rebuilt_sessions_have_nothing_of_older_weights() {
    let (model, all, _) = published_under_load("rebuild", 24).await;
    let mut rebuilt = 0;
    for (opening, rows) in &all {
        let mut before = 0;
        for (_, trace) in rows {
            let (least, newest) = versions(tokens(trace));
            let written = trace.state_version_min.unwrap().0;
            assert!(written >= before, "{}: state of {written} after {before}", opening.session.context);
            assert!(written <= least);
            rebuilt += usize::from(before > 0 && written > before);
            before = newest;
        }
    }
    assert!(rebuilt > 0, "no session was open when weights arrived");
    assert!(recompute(&all, 16) >= 8);
    model.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trajectory_that_finishes_on_old_weights_is_of_one_version() {
    let (model, all, _) = published_under_load("finish_on_old", 24).await;
    let mut later = 0;
    for (opening, rows) in &all {
        let first = versions(tokens(&rows[0].1)).0;
        for (_, trace) in rows {
            assert_eq!(versions(tokens(trace)), (first, first), "{}", opening.ancestry.trajectory_id);
            assert_eq!(trace.state_version_min, Some(PolicyVersion(first)));
        }
        later += usize::from(first > 0);
    }
    assert!(later > 4, "only {later} trajectories began after the first exchange");
    assert!(recompute(&all, 16) >= 12);
    model.stop().await.unwrap();
}

/// Log-probs of one sequence, whose tokens run on weights that change at given positions.
struct SequenceWalk {
    cpu: CpuBackend,
    done: usize,
    ids: Vec<u32>,
    insets: Vec<ImageInset>,
    pages: Vec<Page>,
    logprobs: Vec<f32>,
    last: Vec<f32>,
}

impl SequenceWalk {
    fn new(opening: &SessionOpening, ids: &[u32], row: &TokenTrace, version: i32) -> Self {
        let weights = weights_of(version);
        let vision = weights.config.vision.clone().unwrap();
        let mut tiles: Vec<Vec<ImageTile>> = Vec::new();
        for span in &row.image_spans {
            let rgb = decode(&page(opening, span.step).screenshot.bytes, ImageLimits::default()).unwrap();
            tiles.push(prepare(&rgb, &vision, ResampleMode::U8).tiles);
        }
        let count = tiles.iter().map(Vec::len).sum();
        let rows = ids.len() as u32;
        let all = BackendCapacity { rows_max: rows, logits_max: rows, ..capacity_for(ids.len(), count, 0) };
        let mut cpu = CpuBackend::open(weights, all, 2, ProductPrecision::Float32).unwrap();
        let mut insets = Vec::new();
        for (span, tiles) in row.image_spans.iter().zip(&tiles) {
            let len = vision.rows_per_tile() as u32;
            let mut at = span.token_start;
            for feature in cpu.encode(tiles).unwrap() {
                insets.push(ImageInset { at, len, feature, row: 0 });
                at += len;
            }
        }
        let pages = (0..ids.len().div_ceil(PAGE_TOKENS) as u32).map(Page).collect();
        Self { cpu, done: 0, ids: ids.into(), insets, pages, logprobs: vec![f32::NAN], last: Vec::new() }
    }

    /// Runs tokens up to a position that is not inside an image.
    fn run_to(&mut self, end: usize) {
        let inside = |inset: &&ImageInset| (self.done..end).contains(&(inset.at as usize));
        let shifted = |inset: &ImageInset| ImageInset { at: inset.at - self.done as u32, ..*inset };
        let insets: Vec<ImageInset> = self.insets.iter().filter(inside).map(shifted).collect();
        let tokens = &self.ids[self.done..end];
        let span = SequenceSpan {
            slot: Slot(0),
            pages: &self.pages,
            start: self.done as u32,
            tokens,
            insets: &insets,
            want: LogitRows::All,
        };
        self.cpu.run(&[span]).unwrap();
        for (row, at) in (self.done..end).enumerate() {
            if at > 0 {
                self.logprobs.push(log_softmax(&self.last, self.ids[at]));
            }
            self.last = self.cpu.logits(row as u32).unwrap().to_vec();
        }
        self.done = end;
    }
}

fn log_softmax(logits: &[f32], id: u32) -> f32 {
    let most = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    (f64::from(logits[id as usize] - most) - sum.ln()) as f32
}

/// A kept state matches the records: tokens up to the exchange ran on the old weights, later ones
/// on the new weights.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_state_goes_on_under_new_weights_exactly_where_the_records_say() {
    let config = swapping("keep");
    let model = model(&config);
    let opening = opening(&config, 3, 0, ContextPolicy::Append);
    let mut session = open(&model, &opening, &[]).await.unwrap();
    let first = replied(act(&mut *session, &opening, 0).await.unwrap());
    model.take_weights(&order(1)).await.unwrap();
    let second = replied(act(&mut *session, &opening, 1).await.unwrap());
    let before = tokens(&first.1);
    let after = tokens(&second.1);
    assert_eq!((versions(before), versions(after)), ((0, 0), (1, 1)));
    assert_eq!(first.1.state_version_min, Some(PolicyVersion(0)));
    assert_eq!(second.1.state_version_min, Some(PolicyVersion(0)), "its state contains what version 0 wrote");
    let mut kept = KeptTokens::default();
    kept.row(before);
    let prompt = kept.row(after);
    let ids = [&prompt[..], &after.response_token_ids].concat();
    // The last sampled token did not run: it begins the next span.
    let sampled = before.response_mask.iter().filter(|sampled| **sampled).count();
    let exchange = before.prompt_token_ids.len() + sampled - 1;
    let mut walk = SequenceWalk::new(&opening, &ids, after, 0);
    // The features of both images, each from the encoder of its time.
    walk.run_to(exchange);
    walk.cpu.replace_weights(weights_of(1)).unwrap();
    let vision = weights_of(1).config.vision.clone().unwrap();
    let span = after.image_spans.last().unwrap();
    let rgb = decode(&page(&opening, 1).screenshot.bytes, ImageLimits::default()).unwrap();
    let own: Vec<_> =
        walk.insets.iter().filter(|inset| inset.at >= span.token_start).map(|inset| inset.feature).collect();
    walk.cpu.release(&own);
    let features = walk.cpu.encode(&prepare(&rgb, &vision, ResampleMode::U8).tiles).unwrap();
    for (inset, feature) in walk.insets.iter_mut().filter(|inset| inset.at >= span.token_start).zip(features)
    {
        inset.feature = feature;
    }
    walk.run_to(ids.len());
    for (row, prompt_len) in [(before, before.prompt_token_ids.len()), (after, prompt.len())] {
        for (at, got) in row.logprobs.as_ref().unwrap().iter().enumerate() {
            let want = walk.logprobs[prompt_len + at];
            assert!(
                got.is_none_or(|got| (got - want).abs() < 1e-4),
                "token {at}: {got:?}, the walk gives {want}"
            );
        }
    }
    model.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_weights_are_refused_with_their_file_and_tensor_and_the_old_ones_stay() {
    let config = swapping("keep");
    let model = model(&config);
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("broken");
    fs::create_dir(&broken).unwrap();
    let base = Checkpoint::open(checkpoint()).unwrap();
    let shape = base.tensor("backbone.norm_f.weight").unwrap().shape().to_vec();
    let delta = |name: &str, scale: f32| {
        let file = broken.join("delta.safetensors");
        let sha256 = write_tensors(&file, &[(name.into(), shape.clone(), scale)]);
        let manifest = json!({"format": "furrow.delta", "format_version": 1, "base_version": 0,
            "files": {"delta.safetensors": {"bytes": file.metadata().unwrap().len(), "sha256": sha256}}});
        fs::write(broken.join("delta.json"), manifest.to_string()).unwrap();
    };
    let opening = opening(&config, 5, 0, ContextPolicy::Append);
    let want = act_steps(&model, &opening, 1).await;
    let check = async |order: WeightsOrder, parts: &[&str]| {
        let error = model.take_weights(&order).await.unwrap_err();
        assert!(parts.iter().all(|part| error.contains(part)), "{parts:?} not in {error}");
        assert_eq!(model.version(), Some(PolicyVersion(0)));
    };
    let link = WeightsLink { form: WeightsForm::Delta, directory: broken.display().to_string() };
    let of_delta = || WeightsOrder {
        version: PolicyVersion(1),
        links: vec![link.clone()],
        weights_sha256: None,
        taken: false,
    };
    delta("backbone.norm_f.weight", f32::INFINITY);
    check(of_delta(), &["backbone.norm_f.weight", "delta.safetensors", "at index 0", "finite"]).await;
    delta("backbone.norm_g.weight", 1.0);
    check(of_delta(), &["backbone.norm_g.weight", "not a tensor of this architecture"]).await;
    let gone =
        WeightsLink { form: WeightsForm::Full, directory: dir.path().join("gone").display().to_string() };
    check(WeightsOrder { links: vec![gone], ..of_delta() }, &["gone", "config.json"]).await;
    check(WeightsOrder { weights_sha256: Some("0".repeat(64)), ..order(1) }, &["changed after publication"])
        .await;
    check(WeightsOrder { version: PolicyVersion(0), ..order(1) }, &["not newer than 0"]).await;
    let steps = act_steps(&model, &opening, 1).await;
    assert_eq!(tokens(&steps[0].1).response_token_ids, tokens(&want[0].1).response_token_ids);
    model.stop().await.unwrap();
}
